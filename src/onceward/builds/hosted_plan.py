"""Plans whose functions run in a code host: described there, and made into a plan here (K-15)."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from onceward.artifacts.outputs import Encoded, Unrecordable, encoded
from onceward.builds.choices import Choices
from onceward.builds.plan_file import load_toml, names_functions
from onceward.builds.plans import Plan, Resolved
from onceward.code.channel import (
    FunctionAnswer,
    FunctionAsks,
    FunctionEnded,
    HostValue,
    Message,
    RunFunction,
    Said,
)
from onceward.code.hosts import CodeHost, CodeHosts, CodeSource, HostEnded
from onceward.code.python_file import named_in
from onceward.code.version import CodeVersion, code_version, first_version
from onceward.core.canon import canonical_config
from onceward.dispatch.stage import Rate, Stage
from onceward.dispatch.task import Inputs, Task
from onceward.dispatch.work import FunctionFailed
from onceward.errors import ChildCancelled, OncewardError

_LOOK_SECONDS = 0.2


class FunctionSaid(msgspec.Struct, frozen=True, kw_only=True):
    """A function, as a host describes it."""

    name: str
    qualname: str
    version: CodeVersion | None = None
    """None where the plan says the version itself."""
    first: str | None = None
    """Its version by the first algorithm."""


class StageSaid(msgspec.Struct, frozen=True, kw_only=True):
    """A stage, as a host describes it: its words, and its function."""

    words: dict[str, Any]
    function: FunctionSaid | None = None


class PlanSaid(msgspec.Struct, frozen=True, kw_only=True):
    """A plan, as a host describes it."""

    name: str
    limits: dict[str, int]
    config: dict[str, Any]
    jobs: int | None
    reuse: bool
    on_pause: str
    tree: str | None
    folder: str
    stages: list[StageSaid]


_FUNCTION_FIELDS = ("call", "rate")


def function_said(name: str, call: Any, folder: Path, versioned: bool = True) -> FunctionSaid:
    """In the host: what a function is."""
    return FunctionSaid(
        name=name,
        qualname=getattr(call, "__qualname__", name),
        version=code_version(call, folder) if versioned else None,
        first=first_version(call, folder) if versioned else None,
    )


def plan_said(plan: Plan) -> PlanSaid:
    """In the host: what a plan is."""
    return PlanSaid(
        name=plan.name,
        limits=dict(plan.limits),
        config=plan.config,
        jobs=plan.jobs,
        reuse=plan.reuse,
        on_pause=plan.on_pause,
        tree=plan.tree,
        folder=str(plan.folder),
        stages=[_stage_said(stage, plan.folder) for stage in plan.stages],
    )


def _stage_said(stage: Stage, folder: Path) -> StageSaid:
    words = {
        field: getattr(stage, field)
        for field in Stage.__struct_fields__
        if field not in _FUNCTION_FIELDS
    }
    if stage.rate is not None:
        words["rate"] = [stage.rate.count, stage.rate.seconds]
    if stage.call is None:
        return StageSaid(words=words)
    said = function_said(stage.name, stage.call, folder, versioned=not stage.version)
    return StageSaid(words=words, function=said)


class HostedFunction:
    """A function in a code host, called like one that is here."""

    def __init__(self, code: HostedCode, said: FunctionSaid) -> None:
        self._code, self._said = code, said
        self.version, self.first = said.version, said.first
        self.__qualname__ = said.qualname

    def __call__(self, task: Task) -> Any:
        """Run it in its host, and do here what it asks for while it runs."""
        return _Call(self._code, self._said.name, task).run()


class HostedCode:
    """The host of one plan. Steps of the plan call in from their own threads."""

    def __init__(self, hosts: CodeHosts, host: CodeHost) -> None:
        self.hosts, self._host = hosts, host
        self._released = False
        self._mutex = threading.Lock()

    def host(self) -> CodeHost:
        """The host, or another with the same code where that has ended."""
        with self._mutex:
            if not self._host.usable:
                before, self._host = self._host, self.hosts.again(self._host)
                self.hosts.let_go(before)
            return self._host

    def release(self) -> None:
        """The plan is not needed any more."""
        with self._mutex:
            if not self._released:
                self._released = True
                self.hosts.let_go(self._host)


class _Call:
    """One run of a function in a host."""

    def __init__(self, code: HostedCode, function: str, task: Task) -> None:
        self.host, self.function, self.task = code.host(), function, task
        self.number = next(code.hosts.numbers)
        self._grace = code.hosts.grace
        self._over = False
        """Whether it is known how the function ended."""

    def run(self) -> Any:
        running = self.task.running
        with self.host.call(self._order()) as messages:
            running.abort = lambda: self.host.ask(self.number, running.asked)
            try:
                if running.asked:
                    self.host.ask(self.number, running.asked)
                try:
                    return self._listen(messages)
                except ChildCancelled:
                    if self._over:
                        raise
                # It was asked to end and has not, so this thread was interrupted: so is its own, there.
                self.host.interrupt(self.number)
                return self._listen(messages, time.monotonic() + self._grace)
            finally:
                running.abort = None

    def _order(self) -> RunFunction:
        task = self.task
        credential = task.running.credential()
        inputs = task.inputs
        assert isinstance(inputs, Inputs)
        return RunFunction(
            call=self.number,
            function=self.function,
            child_id=task.child_id,
            attempt=task.attempt,
            build_id=task.build_id,
            stage=task.stage,
            target=task.target,
            idempotency_key=task.idempotency_key,
            config=canonical_config(task.config),
            folder=str(task.folder),
            place=str(task.place),
            upstream={stage: list(targets) for stage, targets in inputs.upstream.items()},
            collected=sorted(inputs.collected),
            credential=credential.text() if credential is not None else "",
        )

    def _listen(
        self, messages: queue.SimpleQueue[Message | HostEnded], until: float | None = None
    ) -> Any:
        """Do what the function asks for, until it has ended. One that goes on for longer than `until` is left to its
        process, which is ended with its other calls."""
        while until is None or time.monotonic() < until:
            try:
                message = messages.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                continue
            if isinstance(message, FunctionAsks):
                self.host.answer(self._answered(message))
            elif isinstance(message, Said):
                self._note(message)
            elif isinstance(message, FunctionEnded):
                self._over = True
                self.task.left = self.task.left or message.left
                return self._outcome(message)
            elif isinstance(message, HostEnded):
                self._over = True
                # Nobody can say whether it used its folder.
                self.task.left = True
                why = f"this step, or another one beside it, {message.why}"
                raise FunctionFailed("EXECUTION_FAILED", why)
        self._over = True
        self.host.retire()
        raise ChildCancelled("this child was asked to end, and its process is ended")

    def _answered(self, wanted: FunctionAsks) -> FunctionAnswer:
        try:
            value = None
            if wanted.lanes is not None:
                self.task.spend(settled=wanted.settled, **wanted.lanes)
            else:
                inputs = self.task.inputs
                assert isinstance(inputs, Inputs)
                value = to_message(inputs.value(wanted.stage, wanted.target))
        except OncewardError as error:
            cancelled = isinstance(error, ChildCancelled)
            document = {**error.document(), "cancelled": cancelled}
            return FunctionAnswer(call=self.number, number=wanted.number, error=document)
        return FunctionAnswer(call=self.number, number=wanted.number, value=value)

    def _note(self, said: Said) -> None:
        if said.line is not None:
            self.task.log(said.line)
        else:
            thousandths = said.thousandths if said.thousandths is not None else -1
            self.task.running.tell(thousandths if thousandths >= 0 else None, said.note)

    def _outcome(self, ended: FunctionEnded) -> Any:
        store_failed = self.task.running.store_failed
        if ended.error is not None:
            if store_failed is not None:
                raise store_failed
            if ended.error.get("cancelled"):
                raise ChildCancelled(str(ended.error["message"]))
            raise FunctionFailed(
                str(ended.error["code"]),
                str(ended.error["message"]),
                retryable=bool(ended.error.get("retryable")),
                trace=ended.traceback,
            )
        assert ended.value is not None
        if ended.undecodable:
            parts = {name: _part(value) for name, value in ended.value.parts.items()}
            return Unrecordable(ended.undecodable, ended.shown, parts)
        return from_host(ended.value)


def to_message(value: Any) -> HostValue:
    """A value that a step before left, for a function elsewhere."""
    if value is None:
        return HostValue(kind="none")
    if isinstance(value, Path):
        return HostValue(kind="path", data=str(value).encode("utf-8", "surrogateescape"))
    if isinstance(value, Mapping) and any(isinstance(v, bytes | Path) for v in value.values()):
        return HostValue(kind="parts", parts={str(k): to_message(v) for k, v in value.items()})
    kind, data = encoded(value)
    return HostValue(kind=kind, data=data)


def from_host(value: HostValue) -> Any:
    """What a function returned elsewhere, as it is kept here."""
    if value.kind == "none":
        return None
    if value.kind == "parts":
        return {name: _part(part) for name, part in value.parts.items()}
    return _part(value)


def _part(value: HostValue) -> Encoded | Path:
    if value.kind == "path":
        return Path(value.data.decode("utf-8", "surrogateescape"))
    return Encoded(value.kind, value.data)


def load_hosted(
    path: Path, choices: Choices | None, hosts: CodeHosts
) -> tuple[Resolved, HostedCode | None]:
    """The plan in a file, with its functions in a code host; no host where it has none."""
    file = path.absolute()
    if file.suffix == ".py" and file.is_file():
        code = HostedCode(hosts, hosts.host(CodeSource("plan", str(file))))
        with _let_go_if_refused(code):
            said = msgspec.convert(code.host().description, PlanSaid)
            resolved = named_in(file, lambda: Resolved(_plan_of(said, file, code), choices))
        return resolved, code
    names = names_functions(path)
    if not names:
        return load_toml(path, choices, None), None
    source = CodeSource("functions", str(file), tuple(names), str(file.parent))
    code = HostedCode(hosts, hosts.host(source))
    with _let_go_if_refused(code):
        found = {
            said.name: HostedFunction(code, said)
            for said in msgspec.convert(code.host().description, list[FunctionSaid])
        }
        return load_toml(path, choices, lambda name, folder: found[str(name)]), code


@contextmanager
def _let_go_if_refused(code: HostedCode) -> Iterator[None]:
    """A host that was taken for a plan is let go where the plan is refused."""
    try:
        yield
    except BaseException:
        with suppress(OncewardError):
            code.release()
        raise


def _plan_of(said: PlanSaid, file: Path, code: HostedCode) -> Plan:
    plan = Plan(said.name, folder=said.folder, jobs=said.jobs, reuse=said.reuse, tree=said.tree)
    plan.limits, plan.config, plan.file = said.limits, said.config, file
    plan.on_pause = said.on_pause  # type: ignore[assignment]
    plan.stages = [_stage_of(stage, code) for stage in said.stages]
    return plan


def _stage_of(said: StageSaid, code: HostedCode) -> Stage:
    words = dict(said.words)
    rate = words.pop("rate", None)
    tuples = ("needs", "collect", "after", "run", "inputs", "env", "secrets")
    for name in (*tuples, "environment", "unfollowed"):
        words[name] = tuple(words[name])
    if words["targets"] is not None:
        words["targets"] = tuple(words["targets"])
    return Stage(
        **words,
        rate=Rate(*rate) if rate is not None else None,
        call=HostedFunction(code, said.function) if said.function is not None else None,
    )


def functions_said(calls: Sequence[tuple[str, Any]], folder: Path) -> list[FunctionSaid]:
    """In the host: what the functions are that a plan in TOML names."""
    return [function_said(name, call, folder) for name, call in calls]
