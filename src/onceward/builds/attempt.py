"""One attempt at a step: its child, what it finds, what it leaves, and what its end means for the build."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from onceward.artifacts.blobs import Artifacts
from onceward.artifacts.outputs import Kept
from onceward.builds.admission import Pause
from onceward.core.canon import canonical, digest, sha256_hex
from onceward.core.records import Token
from onceward.core.sources import Micros
from onceward.core.steps import Output, fill, lock_target, result_digest, step_name
from onceward.dispatch.cut_off import StepOf, carried_on, done, not_done
from onceward.dispatch.machine import Ended, Order
from onceward.dispatch.stage_words import copied
from onceward.dispatch.step_folder import StepFolder
from onceward.dispatch.task import Task, Upstream
from onceward.dispatch.work import ChildTask, Command, Function, Work
from onceward.errors import OncewardError
from onceward.store.tables.checkpoints import Checkpoint, made_with, put_checkpoint
from onceward.store.transaction import Transaction

if TYPE_CHECKING:
    from onceward.builds.run import BuildRun


class Attempt:
    """A child of a build, about to carry out a step."""

    def __init__(
        self, run: BuildRun, step: int, context_hash: str, taken_at: Micros, early: bool
    ) -> None:
        self.run, self.number, self.context_hash, self.taken_at = run, step, context_hash, taken_at
        self.early = early
        """Taken before the step it waits for was recorded: both are one commit, or neither is."""
        k, self.target = run.steps.place(step)
        self.k, self.stage = k, run.steps.stages[k]
        self.child_id = run.store.sources.new_id("chd")
        before = run.before.get(step)
        self.try_ = run.attempts.get(step, 0) + 1
        """How often it was tried since this kernel took the build up."""
        self.attempt = (before.attempt if before is not None and before.child_id else 0) + 1
        """How often it was tried at all."""
        self.config = run.resolved.contexts[k].config(self.target)
        self.estimate = run.admissions.estimate(k)
        self.step_folder = StepFolder(
            run.artifacts,
            folder=lambda: run.kernel.work / self.child_id,
            secrets=self.stage.secrets,
            upstream=self._flowing_in,
            collected=self.stage.collect,
            held=run.children.redactor,
        )
        self.said = StepOf(
            stage=self.stage.name,
            target=self.target,
            context_hash=context_hash,
            on_crash=self.stage.on_crash,
            code_version=self.stage.code_version,
            environment_hash=self.stage.environment_hash or None,
        )
        self.work: Work = self._work()
        self.order: Order = run.children.order(
            self.work, self.child_id, self.attempt, before.child_id if before is not None else None
        )

    @property
    def name(self) -> str:
        return step_name(self.stage.name, self.target)

    @property
    def lock_target(self) -> str:
        return lock_target(self.run.resolved.plan.name, self.stage.name, self.target)

    @property
    def key(self) -> str:
        """The same on every attempt (B-7)."""
        said = "|".join((self.run.build_id, self.stage.name, self.target, self.context_hash))
        return sha256_hex(said.encode())

    def _work(self) -> Work:
        terms: dict[str, Any] = {
            "timeout": self.stage.timeout,
            "step": self,
            "said": self.said.said(),
        }
        terms["operation"] = self.stage.operation
        if self.stage.call is not None:
            name = getattr(self.stage.call, "__qualname__", self.stage.name)
            return Function(call=self.call, name=name, secrets=self.stage.secrets, **terms)
        argv = [fill(word, self.target) for word in self.stage.run]
        return Command(
            argv=argv,
            cwd=self.run.resolved.plan.folder,
            target=self.lock_target,
            env=self.stage.env,
            secrets=self.stage.secrets,
            given=self._environment(),
            **terms,
        )

    def _environment(self) -> dict[str, str]:
        return {
            "ONCEWARD_BUILD": self.run.build_id,
            "ONCEWARD_STAGE": self.stage.name,
            "ONCEWARD_TARGET": self.target,
            "ONCEWARD_IDEMPOTENCY_KEY": self.key,
            **self.step_folder.given(),
        }

    def call(self, child: ChildTask) -> Any:
        """A function's attempt, on its own thread."""
        step = (self.run.build_id, self.stage.name, self.target)
        # Its own copy: what it does to it concerns nobody else.
        config = copied(self.config)
        task = Task(child, step, self.key, config, lambda: self.step_folder.folder)
        assert self.stage.call is not None
        return self.stage.call(self.step_folder.seat(task, self.run.resolved.plan.folder))

    def _flowing_in(self) -> Upstream:
        with self.run.mutex:
            return self.run.flow.upstream(self.number)

    def prepare(self, token: Token) -> None:
        files = [
            (f"{stage}/{target}", output)
            for stage, targets in self._flowing_in().items()
            for target, outputs in targets.items()
            for output in outputs
        ]
        self.step_folder.lay_out(self.name, self.config, files)

    def collect(self, token: Token, value: Any) -> list[Kept]:
        return self.step_folder.collect(value)

    def doubt(self, value: Any, why: OncewardError) -> InDoubt:
        return InDoubt(why.code, why.message[:1000], self.step_folder.set_aside(value))

    def late(self, token: Token, kept: list[Kept] | InDoubt) -> None:
        """The thread of an attempt that was given up has ended: what it made is a result all the same (B-8)."""
        self.step_folder.clear()
        parts, doubt = (kept.kept, kept.message) if isinstance(kept, InDoubt) else (kept, "")
        self.run.kernel.late.record(self.run.store, self.run.artifacts, token, parts, doubt)

    def close(self, token: Token, ended: Ended, kept: Sequence[Kept] | InDoubt | None) -> Ending:
        # Whose thread still runs may still use its folder.
        log = None if ended.detail.get("given_up") else self.step_folder.clear()
        return Ending(self, token, ended, kept or [], log)

    def cancelled(self) -> None:
        self.run.ended(self, Ended("cancelled"), ())
        self.run.kernel.targets.release(self.child_id)

    def inputs_changed(self) -> bool:
        """Whether a file that it may have read is no longer what it was when it began."""
        if not self.stage.inputs and not self.stage.glob:
            return False
        try:
            with self.run.mutex:
                changed = self.run.flow.context_hash(self.number) != self.context_hash
        except OncewardError:
            changed = True
        if changed:
            self.run.told({"step": self.name, "status": "STALE", "spent": {}})
        return changed


class InDoubt(msgspec.Struct, frozen=True):
    """What a step left that cannot be taken as its result: a person decides what becomes of it (B-8)."""

    code: str
    message: str
    kept: Sequence[Kept]

    def detail(self) -> dict[str, Any]:
        """What the child's last event says of it."""
        kept = result_digest([output for output, _ in self.kept])
        return {"error": self.code, "message": self.message, "kept": kept}

    def record(
        self,
        tx: Transaction,
        artifacts: Artifacts,
        attempt: Attempt,
        token: Token,
        *,
        spent: Mapping[str, int],
        before: Checkpoint | None,
    ) -> Checkpoint:
        """In the commit of its child's end; answers the checkpoint of the step."""
        for output, blob in self.kept:
            artifacts.record(tx, attempt.child_id, output.name, output.kind, blob)
        error = {"reason": "in_doubt", "error": self.code, "message": self.message}
        checkpoint = not_done(attempt.said, token, "in_doubt", spent, before)
        tx.append(
            f"session:{token.parent_session_id}",
            "STEP_IN_DOUBT",
            attempt.run.actor.principal,
            {"step": attempt.name, "child_id": attempt.child_id},
        )
        return msgspec.structs.replace(
            checkpoint, status="IN_DOUBT", error=canonical(error).decode()
        )


class Unlaunchable(Exception):
    """A step whose turn it is cannot be begun."""

    def __init__(self, step: int, error: OncewardError) -> None:
        super().__init__(error.message)
        self.step, self.error = step, error


class Ending:
    """The end of an attempt: what its commit holds, and whom it lets run next."""

    def __init__(
        self,
        attempt: Attempt,
        token: Token,
        ended: Ended,
        kept: Sequence[Kept] | InDoubt,
        log: Any,
    ) -> None:
        self.attempt, self.run, self._token, self._log = attempt, attempt.run, token, log
        self.doubt = kept if isinstance(kept, InDoubt) else None
        self._kept: Sequence[Kept] = () if isinstance(kept, InDoubt) else kept
        self.outputs: tuple[Output, ...] = tuple(output for output, _ in self._kept)
        completed = ended.reason == "completed" and self.doubt is None
        self.about = f"{attempt.stage.name}:{attempt.target}:{attempt.context_hash}"
        self.detail: Mapping[str, Any] = {
            "step": attempt.name,
            "context_hash": attempt.context_hash,
            **made_with(attempt.said.code_version, attempt.said.environment_hash),
            **({"outputs": result_digest(self.outputs)} if completed else {}),
            **({"in_doubt": self.doubt.detail()} if self.doubt is not None else {}),
            **({"logs": {"log": log.sha256}} if log is not None else {}),
            **carried_on(token, self.run.before.get(attempt.number)),
        }
        # What it read may be neither the old nor the new: it flows on, but it is nobody else's result.
        stale = completed and attempt.inputs_changed()
        self._context_hash = (
            digest([attempt.context_hash, attempt.child_id]) if stale else attempt.context_hash
        )
        self.final = ended
        self.paused: Pause | None = None
        self._next: list[Attempt] = self.run.choose(attempt, completed, self.outputs)
        self._spawned: list[Attempt] = []
        self.waits_for_budget = False

    def record(
        self, tx: Transaction, ended: Ended, spent: Mapping[str, int], state: str
    ) -> Sequence[Order]:
        """In the commit: artifacts, refs, checkpoint, and either who runs next or a pause."""
        self.final, self.paused, self._spawned = ended, None, []
        attempt = self.attempt
        before = self.run.before.get(attempt.number)
        if self._log is not None:
            self.run.artifacts.record(tx, attempt.child_id, "log", "log", self._log)
        in_doubt = self.doubt if ended.reason == "completed" else None
        completed = ended.reason == "completed" and in_doubt is None
        if completed:
            for output, blob in self._kept:
                self.run.artifacts.record(tx, attempt.child_id, output.name, output.kind, blob)
            step = msgspec.structs.replace(attempt.said, context_hash=self._context_hash)
            checkpoint = done(step, self._token, self.outputs, spent)
            if before is not None and before.status != "SUCCESS":
                checkpoint = self._with_earlier(checkpoint, before)
        elif in_doubt is not None:
            checkpoint = in_doubt.record(
                tx, self.run.artifacts, attempt, self._token, spent=spent, before=before
            )
        else:
            checkpoint = not_done(attempt.said, self._token, ended.reason, spent, before)
            checkpoint = _with_error(checkpoint, ended, self.run.again(attempt, ended))
        put_checkpoint(tx, checkpoint, tx.now)
        self.checkpoint = checkpoint
        if state != "ACTIVE" or self.run.halted:
            return ()
        goes_on = ended.reason == "completed" or self.run.goes_on_after(attempt, ended)
        chosen = [launch for launch in self._next if goes_on and (completed or not launch.early)]
        admission = self.run.admissions.after(tx, attempt, ended, chosen)
        self.paused, self.waits_for_budget = admission.pause, admission.waits
        self._spawned = chosen[: admission.count]
        return self.run.queue(tx, self._spawned)

    def recorded(self) -> None:
        dropped = [attempt for attempt in self._next if attempt not in self._spawned]
        self.run.settle_ending(self, self._spawned, dropped)

    def lost(self) -> None:
        """Its commit failed because this kernel may not write any more, or cannot: what it made is left for the next."""
        if self.final.reason == "completed":
            parts, doubt = (self.doubt.kept, self.doubt.message) if self.doubt else (self._kept, "")
            if not doubt and self._context_hash != self.attempt.context_hash:
                doubt = "its inputs changed while it ran"
            self.run.kernel.late.put_result(self._token, parts, doubt)

    def _with_earlier(self, done: Checkpoint, before: Checkpoint) -> Checkpoint:
        return msgspec.structs.replace(
            done, cost=done.cost + before.cost, tokens=done.tokens + before.tokens
        )


def _with_error(done: Checkpoint, ended: Ended, again: bool) -> Checkpoint:
    """What a person wants to know of a failure, beside its reason, and whether it is tried again."""
    names = ("error", "message", "exit", "last_line", "lane", "limit", "observed", "asked", "code")
    said = {name: ended.detail[name] for name in names if ended.detail.get(name) is not None}
    error = {"reason": ended.reason, **said, **({"again": True} if again else {})}
    return msgspec.structs.replace(done, error=canonical(error).decode())
