"""The program of a code host: loads somebody's code, describes it, and runs its functions for a kernel (K-15).

Run by `onceward.code.hosts`, as `python -m onceward.code_host DESCRIPTOR`. It has no key and no store: what a function
spends, says and wants goes to the kernel."""

from __future__ import annotations

import ctypes
import inspect
import json
import os
import queue
import resource
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec

from onceward.artifacts.outputs import encoded, shown_as
from onceward.builds.hosted_plan import functions_said, plan_said, to_message
from onceward.builds.plan_file import function_named
from onceward.builds.plans import Plan
from onceward.code.channel import (
    Ask,
    Channel,
    FunctionAnswer,
    FunctionAsks,
    FunctionEnded,
    HostValue,
    Interrupt,
    Load,
    Loaded,
    Message,
    Refused,
    RunFunction,
    Said,
)
from onceward.code.hosts import file_digest
from onceward.code.python_file import imported, made_in, named_in
from onceward.core.text import described, place_of, text_of, traceback_of
from onceward.dispatch.event_loop import EventLoop
from onceward.dispatch.stage_words import require_one_argument
from onceward.dispatch.task import Task
from onceward.errors import (
    BudgetExceeded,
    ChildCancelled,
    ExecutionFailed,
    InvalidConfig,
    MalformedOutput,
    OncewardError,
    StoredError,
)
from onceward.people.credentials import Credential, credential_in
from onceward.processes.prints import at_work, overheard, step_threads
from onceward.sagas.saga_file import saga_in

_MOST_FILES = 10_000


def main(descriptor: str) -> None:
    # Nothing that its code starts inherits the line to the kernel.
    os.set_inheritable(int(descriptor), False)
    channel = Channel(socket.socket(fileno=int(descriptor)))
    messages = channel.messages()
    first = next(messages, None)
    if not isinstance(first, Load):
        os._exit(0)
    functions: dict[str, Callable[[Any], Any]] = {}
    _limit_memory(first.memory)
    report = _report(first, functions)
    _limit_memory(None)
    channel.send(report)
    if isinstance(report, Refused) or not functions:
        # The kernel ends a host that has nothing to run; until then it says nothing more.
        for _ in messages:
            pass
        os._exit(0)
    with overheard():
        CodeHostProgram(channel, functions).serve(messages)
    # Whatever its functions started, threads included, is not waited for: its kernel is gone.
    os._exit(0)


def _limit_memory(most: int | None) -> None:
    """While code is loaded, it gets so much memory; None lifts that again."""
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (hard if most is None else most, hard))


def _report(load: Load, functions: dict[str, Callable[[Any], Any]]) -> Message:
    try:
        description = _load(load, functions)
        return Loaded(description=description, files=_own_files(load))
    except MemoryError:
        return Refused(out_of_memory=True)
    except OncewardError as error:
        if _out_of_memory(error):
            return Refused(out_of_memory=True)
        return Refused(error=_short(error))
    except (Exception, SystemExit) as error:
        return Refused(error=_short(ExecutionFailed(f"{type(error).__name__}: {error}")))


def _load(load: Load, functions: dict[str, Callable[[Any], Any]]) -> Any:
    """Run the code, note its functions, and describe what it made."""
    place = Path(load.place)
    if load.kind == "saga":
        saga_in(place)
        return None
    if load.kind == "name":
        imported(load.place, Path(load.folder))
        return None
    if load.kind == "functions":
        calls = [(name, _step_function(name, Path(load.folder))) for name in load.names]
        functions.update(calls)
        return msgspec.to_builtins(functions_said(calls, Path(load.folder)))
    plan = named_in(place, lambda: made_in(place, Plan, "plan"))
    functions.update({s.name: s.call for s in plan.stages if s.call is not None})
    return msgspec.to_builtins(named_in(place, lambda: plan_said(plan)))


def _step_function(name: str, folder: Path) -> Callable[[Any], Any]:
    call = function_named(name, folder)
    require_one_argument(call)
    return call


def _own_files(load: Load) -> dict[str, str]:
    """The files that were imported and are neither Python's nor installed, with their digests."""
    installed = tuple(f"{Path(place).resolve()}/" for place in (sys.prefix, sys.base_prefix))
    ours = f"{Path(__file__).parent}/"
    found: dict[str, str] = {}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and not file.startswith((*installed, ours)):
            found[file] = file_digest(Path(file))
        if len(found) >= _MOST_FILES:
            break
    if load.kind == "plan":
        found[load.place] = file_digest(Path(load.place))
    return found


def _out_of_memory(error: BaseException | None) -> bool:
    """Whether a refusal came of it, however it was told on the way."""
    while error is not None and not isinstance(error, MemoryError):
        error = error.__cause__ or error.__context__
    return error is not None


def _short(error: OncewardError) -> dict[str, Any]:
    document = error.document()
    context = {name: value for name, value in error.context.items() if len(str(value)) < 500}
    return {**document, "message": error.message[:4000], "context": context}


class HostedRunning:
    """A function that runs here, as its task and the event loop see it."""

    def __init__(self, send: Callable[[Message], bool], call: int, credential: str) -> None:
        self._send, self._call = send, call
        self.asked = ""
        self.over = False
        self.abort: Callable[[], object] | None = None
        self.thread: int | None = None
        self._mutex = threading.Lock()
        self._credential = credential

    def credential(self) -> Credential | None:
        """What it shows to ask in its own name."""
        return credential_in(self._credential) if self._credential else None

    def ask(self, why: str) -> None:
        with self._mutex:
            self.asked = self.asked or why
            abort = self.abort
        if abort is not None:
            abort()

    def interrupt(self) -> None:
        with self._mutex:
            if self.thread is not None:
                raised = ctypes.py_object(ChildCancelled)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.thread), raised)
                self.thread = None

    def end(self) -> None:
        """Its own code has ended: nobody interrupts this thread any more."""
        with self._mutex:
            self.thread, self.over = None, True

    def tell(self, thousandths: object, note: object) -> None:
        known = isinstance(thousandths, int | float) and thousandths == thousandths
        self._send(
            Said(
                call=self._call,
                thousandths=float(thousandths) if known else None,  # type: ignore[arg-type]
                note=text_of(note),
            )
        )


class HostedTask(Task):
    """What a function is given here: the same as in the kernel's own process."""

    def __init__(self, host: CodeHostProgram, run: RunFunction) -> None:
        self._host, self._run = host, run
        self._folder = lambda: Path(run.place)
        self.running = HostedRunning(  # type: ignore[assignment]
            host.channel.send, run.call, run.credential
        )
        self.child_id, self.attempt = run.child_id, run.attempt
        self.build_id, self.stage, self.target = run.build_id, run.stage, run.target
        self.idempotency_key = run.idempotency_key
        self.config = json.loads(run.config)
        self.folder = Path(run.folder)
        self.inputs = HostedInputs(host, run)
        self.left = False
        self.shown = str
        self._partial = ""

    def spend(self, *, settled: bool = False, **lanes: Any) -> None:
        if not settled:
            self.check()
            if self.running.over:
                raise ChildCancelled("this child has ended; nothing more can be debited for it")
        amounts = {name: _plain_amount(amount) for name, amount in lanes.items()}
        try:
            self._host.wanted(self._run.call, lanes=amounts, settled=settled)
        except BudgetExceeded:
            self.running.asked = self.running.asked or "budget"
            raise

    def log(self, text: str) -> None:
        self._host.channel.send(Said(call=self._run.call, line=text_of(text)))

    def finish_log(self) -> None:
        """What was printed without an end of line."""
        if self._partial:
            self.log(self._partial)
            self._partial = ""


def _plain_amount(amount: Any) -> Any:
    """An amount as a message carries it: exactly, or, of a type of somebody's own, as it shows itself."""
    if isinstance(amount, bool | float | str) or amount is None:
        return amount
    if isinstance(amount, int):
        return amount if abs(amount) < 1 << 63 else str(amount)
    if isinstance(amount, Decimal):
        return str(amount)
    return text_of(amount)


class HostedInputs(Mapping[str, Any]):
    """What flows into a step, asked for when it is looked at."""

    def __init__(self, host: CodeHostProgram, run: RunFunction) -> None:
        self._host, self._run = host, run
        self._read: dict[str, Any] = {}

    def __getitem__(self, stage: str) -> Any:
        upstream = self._run.upstream
        if stage not in upstream:
            known = ", ".join(upstream) or "nothing"
            raise InvalidConfig(
                f"this step does not need {stage!r}; it needs {known}", context={"field": "needs"}
            )
        if stage in self._run.collected:
            if stage not in self._read:
                self._read[stage] = {
                    target: self._value(stage, target) for target in upstream[stage]
                }
            return self._read[stage]
        return self._value(stage, upstream[stage][0])

    def _value(self, stage: str, target: str) -> Any:
        return _from_kernel(self._host.wanted(self._run.call, stage=stage, target=target))

    def __repr__(self) -> str:
        return f"<inputs of {', '.join(self._run.upstream) or 'nothing'}>"

    def __contains__(self, stage: object) -> bool:
        return stage in self._run.upstream

    def get(self, stage: str, default: Any = None) -> Any:
        return self[stage] if stage in self._run.upstream else default

    def __iter__(self) -> Iterator[str]:
        return iter(self._run.upstream)

    def __len__(self) -> int:
        return len(self._run.upstream)


def _from_kernel(value: HostValue | None) -> Any:
    if value is None or value.kind == "none":
        return None
    if value.kind == "parts":
        return {name: _from_kernel(part) for name, part in value.parts.items()}
    if value.kind == "path":
        return Path(value.data.decode("utf-8", "surrogateescape"))
    if value.kind == "json":
        return json.loads(value.data)
    return value.data.decode() if value.kind == "text" else value.data


class CodeHostProgram:
    """Runs functions, each on a thread of its own; `async def` on one loop thread."""

    def __init__(self, channel: Channel, functions: Mapping[str, Callable[[Any], Any]]) -> None:
        self.channel, self._functions = channel, functions
        self._loop = EventLoop()
        self._mutex = threading.Lock()
        self._tasks: dict[int, HostedTask] = {}
        self._answers: dict[tuple[int, int], queue.SimpleQueue[FunctionAnswer]] = {}
        self._numbers = 0

    def serve(self, messages: Iterator[Message]) -> None:
        """Until the kernel says nothing more."""
        for message in messages:
            if isinstance(message, RunFunction):
                task = HostedTask(self, message)
                with self._mutex:
                    self._tasks[message.call] = task
                threading.Thread(
                    target=self._call, args=(message, task), name=message.child_id, daemon=True
                ).start()
            elif isinstance(message, FunctionAnswer):
                with self._mutex:
                    waiting = self._answers.pop((message.call, message.number), None)
                if waiting is not None:
                    waiting.put(message)
            elif isinstance(message, Ask | Interrupt):
                with self._mutex:
                    known = self._tasks.get(message.call)
                if known is not None and isinstance(message, Ask):
                    known.running.ask(message.why)  # type: ignore[arg-type]
                elif known is not None:
                    known.running.interrupt()

    def wanted(
        self,
        call: int,
        *,
        lanes: dict[str, Any] | None = None,
        settled: bool = False,
        stage: str = "",
        target: str = "",
    ) -> HostValue | None:
        """Ask the kernel for something, and wait for the answer on this thread."""
        answer: queue.SimpleQueue[FunctionAnswer] = queue.SimpleQueue()
        with self._mutex:
            self._numbers += 1
            number = self._numbers
            self._answers[call, number] = answer
        self.channel.send(
            FunctionAsks(
                call=call, number=number, lanes=lanes, settled=settled, stage=stage, target=target
            )
        )
        received = answer.get()
        if received.error is not None:
            raise _raised(received.error)
        return received.value

    def _call(self, run: RunFunction, task: HostedTask) -> None:
        """One function, on this thread, to its end."""
        at_work.set(task)
        step_threads[threading.get_ident()] = task
        running = task.running
        try:
            ended = self._ended(run, task)
        finally:
            running.end()
            step_threads.pop(threading.get_ident(), None)
            with self._mutex:
                self._tasks.pop(run.call, None)
        task.finish_log()
        self.channel.send(ended)

    def _ended(self, run: RunFunction, task: HostedTask) -> FunctionEnded:
        try:
            task.running.thread = threading.get_ident()
            value = self._functions[run.function](task)
            if inspect.isawaitable(value):
                value = self._loop.run(value, task.running)
            task.running.end()
        except BaseException as error:
            return _failed(run, task, error)
        return _returned(run, task, value)


def _raised(document: dict[str, Any]) -> OncewardError:
    """An error of the kernel's, as a function in its own process would have met it."""
    stored = StoredError(document)
    if document.get("cancelled"):
        return ChildCancelled(stored.message)
    for kind in (BudgetExceeded, InvalidConfig):
        if stored.code == kind.code:
            return kind(stored.message, context=stored.context, recovery=stored.recovery)
    return stored


def _returned(run: RunFunction, task: HostedTask, value: Any) -> FunctionEnded:
    try:
        return FunctionEnded(call=run.call, value=to_message(value), left=task.left)
    except BaseException as error:
        # Whatever a value of somebody's own class raises while it is looked at.
        why = error if isinstance(error, OncewardError) else MalformedOutput(described(error))
        return FunctionEnded(
            call=run.call,
            value=HostValue(kind="parts", parts=_parts(value)),
            left=task.left,
            undecodable=why.message,
            shown=shown_as(value),
        )


def _parts(value: Any) -> dict[str, HostValue]:
    """What can be kept of a value that cannot be recorded."""
    whole = [("value", value)]
    items = dict.items(value) if issubclass(type(value), dict) else whole
    found: dict[str, HostValue] = {}
    for name, part in items:
        with suppress(BaseException):
            if issubclass(type(part), Path):
                found[text_of(name)] = to_message(part)
            else:
                kind, data = encoded(part)
                found[text_of(name)] = HostValue(kind=kind, data=data)
    return found


def _failed(run: RunFunction, task: HostedTask, error: BaseException) -> FunctionEnded:
    """How a function that raised ended, in words."""
    trace = ""
    if isinstance(error, OncewardError):
        said = {"code": error.code, "message": error.message, "retryable": error.retryable}
        said["cancelled"] = isinstance(error, ChildCancelled)
    elif isinstance(error, ConnectionError | TimeoutError):
        said = {"code": "NETWORK_ERROR", "message": described(error), "retryable": True}
        trace = traceback_of(error)
    else:
        said = {"code": "EXECUTION_FAILED", "message": f"{described(error)}{place_of(error)}"}
        trace = traceback_of(error)
    return FunctionEnded(call=run.call, left=task.left, error=said, traceback=trace)


if __name__ == "__main__":
    main(*sys.argv[1:])
