"""One action or compensation of a saga as a child: its input, its outputs, and what its end means for the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onceward.artifacts.outputs import Kept, read_back
from onceward.core.canon import sha256_hex
from onceward.core.records import Token
from onceward.core.sagas import Run, SagaStep, Side
from onceward.core.steps import Output, lock_target, result_digest
from onceward.dispatch.machine import Ended, Order
from onceward.dispatch.stage import Stage
from onceward.dispatch.step_folder import StepFolder
from onceward.dispatch.task import Upstream
from onceward.dispatch.work import ChildTask, Command, Function, Work
from onceward.errors import OncewardError
from onceward.sagas.declaration import ActionTask
from onceward.sagas.machine import given_of
from onceward.store.tables.sagas import Runs
from onceward.store.transaction import Transaction

if TYPE_CHECKING:
    from onceward.sagas.run import SagaRun


class ActionRun:
    """An action or compensation of a run; the same object for all its attempts."""

    def __init__(self, saga: SagaRun, run: Run, stage: Stage, side: Side) -> None:
        self.saga, self.run, self.stage, self.side = saga, run, stage, side
        self.step = stage.name
        self.name = self.step if side == "action" else f"undo {self.step}"
        self.child_id = self.running = saga.store.sources.new_id("chd")
        self.left: Sequence[str] = ()
        """What a compensation had to leave as it is."""
        self.refused: Mapping[str, Any] | None = None
        """Why it did not lead on although it was done, or did not begin."""
        self.outputs: tuple[Output, ...] = ()
        """What it left, as recorded."""
        self.step_folder = StepFolder(
            saga.kernel.artifacts,
            lambda: saga.kernel.work / self.child_id,
            stage.secrets,
            self._flowing_in,
            held=saga.children.redactor,
        )
        self.work: Work = self._work()
        self.order: Order = saga.children.order(self.work, self.child_id)

    def current(self, run: Run) -> bool:
        """Whether the run is still in the state that this began in; somebody may have abandoned it meanwhile."""
        mine = (self.run.state, self.run.undone, self.run.stuck, self.run.settled)
        return (run.state, run.undone, run.stuck, run.settled) == mine

    @property
    def key(self) -> str:
        """The idempotency key: the same on every attempt, also after the run was resumed."""
        return sha256_hex(f"{self.run.saga_id}|{self.step}|{self.side}".encode())

    @property
    def said(self) -> dict[str, Any]:
        """The detail of the run's own event."""
        left = {"left": self.left} if self.left else {}
        return {
            "step": self.step,
            "child_id": self.running,
            "outputs": result_digest(self.outputs),
            **left,
        }

    def _work(self) -> Work:
        about = {"saga": self.run.name, "step": self.step, "side": self.side}
        terms: dict[str, Any] = {
            "timeout": self.stage.timeout,
            "attempts": self.stage.attempts,
            "step": self,
        }
        # What is to be undone is undone, whatever it costs.
        terms |= {"operation": self.stage.operation, "excused": self.side == "compensation"}
        if self.stage.call is not None:
            name = getattr(self.stage.call, "__qualname__", self.step)
            return Function(
                call=self.call, name=name, secrets=self.stage.secrets, said=about, **terms
            )
        return Command(
            argv=self.stage.run,
            cwd=self.saga.saga.folder,
            target=lock_target(self.run.name, self.name, self.run.idempotency_root),
            env=self.stage.env,
            secrets=self.stage.secrets,
            given={
                "ONCEWARD_SAGA": self.run.saga_id,
                "ONCEWARD_ROOT": self.run.idempotency_root,
                "ONCEWARD_STAGE": self.step,
                "ONCEWARD_IDEMPOTENCY_KEY": self.key,
                **self.step_folder.given(),
            },
            said=about,
            **terms,
        )

    lock_target = ""
    estimate: Mapping[str, int] = {}

    def call(self, child: ChildTask) -> Any:
        """Call the function of an attempt, on its own thread."""
        place = (self.run.saga_id, self.step, "")
        task = ActionTask(child, place, self.key, {}, lambda: self.step_folder.folder)
        task.root, task.input = self.run.idempotency_root, given_of(self.run)
        task.site = self.saga
        self.step_folder.seat(task, self.saga.saga.folder)
        if self.side == "compensation" and self.step in task.inputs:
            task.result = task.inputs[self.step]
        assert self.stage.call is not None
        return self.stage.call(task)

    def prepare(self, token: Token) -> None:
        files = [(step, output) for step, left in self._flowing_in().items() for output in left[""]]
        self.step_folder.lay_out(self.name, given_of(self.run), files)

    def collect(self, token: Token, value: Any) -> tuple[list[Kept], Any]:
        """Its outputs, stored; and the value that its check sees."""
        kept = self.step_folder.collect(value)
        if self.stage.call is None and self.saga.saga.actions[self.step].check is not None:
            value = {
                output.name: (self.step_folder.folder / "out" / output.name).read_bytes()
                for output, _ in kept
            }
        return kept, value

    def doubt(self, value: Any, why: OncewardError) -> None:
        """An action whose result cannot be recorded has failed: its compensation is what deals with that."""

    def late(self, token: Token, kept: Any) -> None:
        """An action that was abandoned has failed, and its end was handled then."""

    def close(
        self, token: Token, ended: Ended, kept: tuple[list[Kept], Any] | None
    ) -> ActionEnding:
        found, result = kept or ([], None)
        if self.side == "compensation" and self.saga.saga.reserves and isinstance(result, Mapping):
            self.left = list(result.get("left", ()))
        return ActionEnding(
            self, token, ended, kept=found, result=result, log=self.step_folder.clear()
        )

    def cancelled(self) -> None:
        self.saga.cancelled(self)

    def _flowing_in(self) -> Upstream:
        with self.saga.store.read() as rows:
            return upstream(
                Runs(rows).steps(self.run.saga_id),
                () if self.side == "compensation" else (self.step,),
            )


def upstream(steps: Sequence[SagaStep], but: Sequence[str] = ()) -> Upstream:
    """The outputs of finished actions, as later actions see them."""
    done = [
        step
        for step in steps
        if step.side == "action" and step.status == "done" and step.step not in but
    ]
    return {step.step: {"": read_back(step.outputs)} for step in done}


class ActionEnding:
    """The end of an attempt, and what its commit writes."""

    def __init__(
        self,
        act: ActionRun,
        token: Token,
        ended: Ended,
        *,
        kept: Sequence[Kept],
        result: Any,
        log: Any,
    ) -> None:
        self._act, self._token, self._kept, self._result, self._log = act, token, kept, result, log
        self._outputs = tuple(output for output, _ in kept)
        self.about = f"{act.run.saga_id}:{act.side}:{act.step}"
        self.detail: Mapping[str, Any] = {
            "step": act.step,
            "side": act.side,
            **({"outputs": result_digest(self._outputs)} if ended.reason == "completed" else {}),
            **({"logs": {"log": log.sha256}} if log is not None else {}),
        }
        self._final, self._again = ended, False

    def record(
        self, tx: Transaction, ended: Ended, spent: Mapping[str, int], state: str
    ) -> Sequence[Order]:
        act, artifacts = self._act, self._act.saga.kernel.artifacts
        self._final = ended
        self._again = (
            ended.retryable
            and ended.reason != "cancelled"
            and self._token.attempt < act.work.attempts
        )
        if self._log is not None:
            artifacts.record(tx, self._token.child_id, "log", "log", self._log)
        if self._again or ended.detail.get("stopped"):
            # It is tried again, now or when the run is taken up again.
            return ()
        if ended.reason == "completed":
            for output, blob in self._kept:
                artifacts.record(tx, self._token.child_id, output.name, output.kind, blob)
        act.running = self._token.child_id
        act.outputs = self._outputs if ended.reason == "completed" else ()
        act.saga.close(tx, act, ended, self._result)
        return ()

    def lost(self) -> None:
        """An action's run is recovered under its lease; a result without that is nothing to take (S-2)."""

    def recorded(self) -> None:
        act, ended = self._act, self._final
        if ended.detail.get("stopped"):
            status = "stopped"
        elif ended.reason == "completed":
            status = "done"
        else:
            status = "retry" if self._again else "failed"
        why: Mapping[str, Any] = {"reason": ended.reason, **ended.detail}
        if act.refused is not None:
            status, why = "failed", act.refused
        said = {
            "step": act.step,
            "side": act.side,
            "status": status,
            "child_id": self._token.child_id,
        }
        spent = ended.detail.get("spent", {})
        act.saga.ended(self._again, {**said, "spent": spent, "why": why})
