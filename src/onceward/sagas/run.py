"""A run in progress: one action after another, and where one fails, compensations in reverse order (S-1).

Every write of a run checks its lease first, and writes nothing without it."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from onceward.artifacts.outputs import written
from onceward.core.canon import canonical
from onceward.core.grants import Scope
from onceward.core.limits import LEASE_SECONDS
from onceward.core.records import Move
from onceward.core.sagas import Lease, Run, SagaStep, Side
from onceward.core.text import described
from onceward.dispatch import queue
from onceward.dispatch.machine import Ended
from onceward.dispatch.task import Inputs
from onceward.errors import LockLost, OncewardError, StorageError
from onceward.grants import lifecycle as grants
from onceward.kernel import attest
from onceward.kernel.foreground import serving
from onceward.kernel.kernel import Kernel
from onceward.people.actor import Actor
from onceward.processes.prints import overheard
from onceward.sagas import machine, rules
from onceward.sagas.action_run import ActionRun, upstream
from onceward.sagas.declaration import Judge, Saga, Seen
from onceward.store.port import Transient
from onceward.store.tables.sagas import (
    Runs,
    find_lease,
    note_lease,
    put_step,
    release_lease,
    renew_lease,
    take_lease,
)
from onceward.store.transaction import Transaction

Told = Callable[[Mapping[str, Any]], None]
Why = Mapping[str, Any]


class SagaRun:
    """Carries one run to its end, or to where it is stuck. Its children call in from their own thread."""

    def __init__(
        self,
        kernel: Kernel,
        actor: Actor,
        saga: Saga,
        saga_id: str,
        lease: Lease | None,
        told: Told,
    ) -> None:
        self.kernel, self.actor, self.store = kernel, actor, kernel.store
        self.saga, self.saga_id = saga, saga_id
        self.lease, self.told = lease, told
        self.children = kernel.open_session(saga_id, 1, {}, saga.role, actor=actor)
        self.children.heeded = self._notify
        self._taken: Lease | None = None
        """A lease that is ours as soon as its commit is."""
        self.lost = False
        """Whether somebody else has the lease by now."""
        self._act: ActionRun | None = None
        self._stopping = False
        self._changed = threading.Condition()
        self._renewed = time.monotonic()

    def run(self) -> Run:
        """Until it is over, stuck, or asked to stop; answers how it stands."""
        while True:
            run = self.look()
            if run.over or run.stuck is not None or self._stopping:
                return run
            if machine.shape_of(run).place(run.state) is not None:
                self._begin(run, run.state, "action")
            elif (step := machine.pending(run)) is not None:
                self._begin(run, step, "compensation")
            else:
                self.store.write(self._settle)
                self._require_lease()

    def look(self) -> Run:
        with self.store.read() as rows:
            return Runs(rows).get(self.saga_id)

    def stop(self) -> None:
        """The kernel is to stop: begin nothing more."""
        self._stopping = True
        self._notify()

    # Under the lease.

    def hold(self, tx: Transaction) -> bool:
        """Whether this run still has its lease; renews it."""
        if self.lease is None:
            return True
        held = renew_lease(tx, self.lease, tx.now)
        # A run that somebody gave up has no lease any more, and has not lost it either.
        self.lost = self.lost or not (held or Runs(tx).get(self.saga_id).over)
        return held

    def write(self, work: Callable[[Transaction], Any]) -> Any:
        """A write under the lease."""

        def held(tx: Transaction) -> Any:
            rules.require_held(self.saga_id, self.hold(tx))
            return work(tx)

        return self.store.write(held)

    def reserve(self, tx: Transaction, scope: Scope) -> None:
        """Take the lease and use up the grant with the move that goes on: all of it, or nothing."""
        self._taken = reserve(tx, self.kernel, self.actor, Runs(tx).get(self.saga_id), scope)

    # One action or compensation.

    def _begin(self, run: Run, step: str, side: Side) -> None:
        act = ActionRun(self, run, self.saga.actions[step].side(side), side)
        with self._changed:
            self._act = act
        self.children.expect({act.child_id: act.work})
        if not self.store.write(partial(self._queue, act=act)):
            self.children.forget([act.child_id])
            self._act = None
            self._require_lease()
            if act.refused is not None:
                self.told({"step": step, "side": side, "status": "failed", "why": act.refused})
            return
        self.told({"step": step, "side": side, "status": "running", "child_id": act.child_id})
        self.children.rouse()
        self._await()

    def _queue(self, tx: Transaction, act: ActionRun) -> bool:
        """Queue the child, if the run is still in its state and the guard allows it; answers whether it is
        queued."""
        run = Runs(tx).get(self.saga_id)
        if not self.hold(tx) or (run.state, run.version) != (act.run.state, act.run.version):
            return False
        guard = self.saga.actions[act.step].guard if act.side == "action" else None
        why = self.judge(tx, run, guard, None, "guard") if guard is not None else None
        if why is not None:
            act.refused = why
            tx.move(machine.stop(run, "guard_failed", self.actor.principal, why))
            return False
        queue.spawn(tx, [act.order], self.children.owner, self.children.actor)
        return True

    def _await(self) -> None:
        with self._changed:
            while self._act is not None:
                if self.children.failed is not None:
                    raise self.children.failed
                if self.children.quiet or self.children.overdue:
                    self._act = None
                    break
                self._changed.wait(0.2)
                self._keep_lease()
        self._require_lease()

    def _keep_lease(self) -> None:
        """A long action must not outlive its run's lease."""
        if self.lease is not None and time.monotonic() - self._renewed > LEASE_SECONDS / 4:
            self._renewed = time.monotonic()
            if not self.store.write(self.hold):
                self.children.stop_running()

    def _require_lease(self) -> None:
        rules.require_not_lost(self.saga_id, self.lost)

    # What its children ask while they end.

    def close(self, tx: Transaction, act: ActionRun, ended: Ended, result: Any) -> None:
        """In the commit of a child's end: what it means for the run."""
        self._taken, act.refused = None, None
        run = Runs(tx).get(self.saga_id)
        if not self.hold(tx):
            return
        done = ended.reason == "completed"
        why = None if done else machine.failure(ended.reason, ended.detail)
        error = None if why is None else canonical(why).decode()
        put_step(
            tx,
            SagaStep(
                saga_id=self.saga_id,
                step=act.step,
                side=act.side,
                status="done" if done else "failed",
                outputs=written(act.outputs),
                child_id=act.running,
                error=error,
            ),
        )
        if not act.current(run):
            # Somebody gave the run up while this went on: its stop undoes it.
            return
        if act.side == "compensation":
            self._compensated(tx, run, act, why)
        else:
            self._acted(tx, run, act, why, result)

    def _acted(
        self, tx: Transaction, run: Run, act: ActionRun, why: Why | None, result: Any
    ) -> None:
        reason, actor = "action_failed", self.actor.principal
        if why is None:
            check = self.saga.actions[act.step].check
            why = self.judge(tx, run, check, result, "check") if check is not None else None
            reason = "check_failed"
            write = self.saga.actions[act.step].write
            if why is None and write is not None:
                why = _refusal(lambda: tx.attempt(lambda: write(tx, self)), "write")
        if why is not None:
            act.refused = why
            tx.move(machine.stop(run, reason, actor, {**why, "child_id": act.running}))
            return
        self._end(tx, run, machine.advance(run, actor, act.said))

    def _compensated(self, tx: Transaction, run: Run, act: ActionRun, why: Why | None) -> None:
        actor = self.actor.principal
        write = self.saga.actions[act.step].write
        if why is None and write is not None and machine.shape_of(run).stop(run.state).forward:
            # What finishes forward finishes all of it.
            why = _refusal(lambda: tx.attempt(lambda: write(tx, self)), "write")
        if why is not None:
            act.refused = why
            tx.move(machine.stick(run, actor, {"step": act.step, "child_id": act.running, **why}))
            return
        self._end(tx, run, machine.compensated(run, actor, act.said))

    def judge(self, tx: Transaction, run: Run, judge: Judge, result: Any, what: str) -> Why | None:
        """Why a check or guard does not allow the run to go on; None if it does."""
        seen = Seen(run.idempotency_root, machine.given_of(run), self.inputs(tx, ()), result, tx)
        return _refusal(lambda: judge(seen), what)

    def ended(self, again: bool, said: Mapping[str, Any]) -> None:
        """The end of a child is durable."""
        if self._taken is not None:
            self.lease, self._taken = self._taken, None
        self.told(said)
        if not again:
            with self._changed:
                self._act = None
                self._changed.notify_all()

    def cancelled(self, act: ActionRun) -> None:
        """A child that was cancelled before it began has failed like one that was cancelled later."""
        why = {"reason": "cancelled", "step": act.step}

        def stop(tx: Transaction) -> None:
            run = Runs(tx).get(self.saga_id)
            if self.hold(tx) and act.current(run):
                actor = self.actor.principal
                tx.move(
                    machine.stop(run, "action_failed", actor, why)
                    if act.side == "action"
                    else machine.stick(run, actor, why)
                )

        self.store.write(stop)
        self.ended(False, {"step": act.step, "side": act.side, "status": "failed", "why": why})

    # The end.

    def _settle(self, tx: Transaction) -> None:
        """Every compensation of the stop is done: settle the run."""
        run = Runs(tx).get(self.saga_id)
        if (
            not self.hold(tx)
            or run.over
            or run.stuck is not None
            or machine.pending(run) is not None
        ):
            return
        self._give_back(tx, run)
        place = machine.shape_of(run).stop(run.state)
        if place.again:
            why = self._why(tx, place.name)
            tx.move(machine.wait_for_person(run, self.actor.principal, why))
            return
        attest.end_of_saga(
            tx, machine.settle(run, self.actor.principal, {}), run, self.actor.signer
        )

    def _why(self, tx: Transaction, step: str) -> dict[str, Any]:
        """Why a state that can be retried failed."""
        failed = [
            one for one in Runs(tx).steps(self.saga_id) if (one.step, one.side) == (step, "action")
        ]
        said = msgspec.json.decode(failed[0].error) if failed and failed[0].error else {}
        names = ("reason", "error", "message")
        return {"step": step, "again": True, **{name: said[name] for name in names if name in said}}

    def _end(self, tx: Transaction, run: Run, move: Move) -> None:
        """A move, and if it is the last of a run that is done: its grant is stamped, its lease given back, its end
        signed."""
        if move.target != machine.DONE:
            tx.move(move)
            return
        if run.grant_id is not None:
            grants.finalize(tx, run.grant_id, run.idempotency_root, self.actor.principal)
        self._give_back(tx, run)
        attest.end_of_saga(tx, move, run, self.actor.signer)

    def _give_back(self, tx: Transaction, run: Run) -> None:
        if self.lease is not None:
            release_lease(tx, self.lease.name, self.lease.holder, self.lease.token)
            said = {"lease": self.lease.name, "epoch": self.lease.fence}
            tx.append(f"saga:{run.saga_id}", "LEASE_RELEASED", self.actor.principal, said)

    def inputs(self, tx: Any, but: Sequence[str]) -> Inputs:
        """The outputs of finished actions."""
        return Inputs(
            self.kernel.artifacts,
            upstream(Runs(tx).steps(self.saga_id), but),
            lambda: self.kernel.work,
        )

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()


def reserve(tx: Transaction, kernel: Kernel, actor: Actor, run: Run, scope: Scope | None) -> Lease:
    """The lease of a run, and its grant used up with it; refused before anything is written if either cannot be."""
    principal, root = actor.principal, run.idempotency_root
    rules.require_free_lease(run.lease, find_lease(tx, run.lease), root, tx.now)
    if scope is not None:
        assert run.grant_id is not None
        grants.consume(
            tx, kernel.authority, run.grant_id, scope=scope, executor=principal, root=root
        )
    lease = take_lease(tx, run.lease, root, tx.sources.secret()[:32], tx.now)
    assert lease is not None
    tx.append(
        f"saga:{run.saga_id}", "LEASE_TAKEN", principal, {"lease": lease.name, "epoch": lease.fence}
    )
    note_lease(tx, run.saga_id, lease.fence)
    return lease


def _refusal(ask: Callable[[], Any], what: str) -> Why | None:
    """Why the user's code does not allow the run to go on: it answered False, or raised. None if it does."""
    try:
        verdict = ask()
        if inspect.isawaitable(verdict):
            getattr(verdict, "close", lambda: None)()
            raise TypeError(f"a {what} cannot be async")
        allowed = verdict is None or bool(verdict)
    except (LockLost, StorageError, Transient):
        raise
    except (Exception, SystemExit, GeneratorExit) as error:
        code = error.code if isinstance(error, OncewardError) else "EXECUTION_FAILED"
        said = error.message if isinstance(error, OncewardError) else described(error)
        message = said[:1000].encode("utf-8", "replace").decode()
        return {"reason": f"{what}_failed", "error": code, "message": message}
    return None if allowed else {"reason": f"{what}_failed", "message": f"its {what} said no"}


def run_saga(kernel: Kernel, saga: SagaRun, stop: threading.Event | None = None) -> Run:
    """Run a saga until it is over or stuck; answers the run."""

    def on_stop() -> None:
        saga.stop()
        saga.children.stop()

    kernel.streams.look_over()
    try:
        with overheard(), serving(kernel, stop or threading.Event(), on_stop):
            return saga.run()
    finally:
        saga.children.close()
