"""The coordinator of a session's children: its slots, threads and processes, and who waits for whom.

Everything that changes while children run lives here and is handed to the modules that need it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

import msgspec

from onceward.artifacts.blobs import Artifacts
from onceward.artifacts.redaction import Redactor
from onceward.core import canon
from onceward.core.limits import TARGET_WAIT_SECONDS
from onceward.core.records import Owner, Token
from onceward.core.text import described
from onceward.dispatch import child_run, debits, operations, queue, rules
from onceward.dispatch.budget import Estimated, Refusal, out_of_time, overrun
from onceward.dispatch.event_loop import EventLoop
from onceward.dispatch.held_targets import HeldTargets, retry_delay
from onceward.dispatch.late import LateBox
from onceward.dispatch.machine import Ended, Order
from onceward.dispatch.queue import Closing, Turn
from onceward.dispatch.work import Running, Work
from onceward.errors import LockLost, OncewardError, StorageError
from onceward.locks import TargetLocked
from onceward.people.credentials import Issuer
from onceward.processes.launcher import Processes
from onceward.processes.spool import Spool
from onceward.store.port import Reads
from onceward.store.store import Store
from onceward.store.tables.children import Tokens, is_terminal, put_off, recovery_done
from onceward.store.transaction import Transaction

_GIVE_UP = 500
_LOOK_SECONDS = 0.1
_OVERDUE_SECONDS = 0.3


class Children:
    """Runs the children of one session: at most `jobs` at once, lowest place in the queue first."""

    def __init__(
        self,
        store: Store,
        processes: Processes,
        artifacts: Artifacts,
        targets: HeldTargets,
        spool: Spool,
        *,
        session_id: str,
        actor: str,
        jobs: int,
        limits: Mapping[str, int] | None = None,
        registered: bool = False,
        late: LateBox | None = None,
        target_wait: float = TARGET_WAIT_SECONDS,
        on_pause: Literal["finish", "stop"] = "stop",
        decides_starts: bool = False,
        issuer: Issuer | None = None,
        held_secrets: Mapping[str, str] | None = None,
    ) -> None:
        """`on_pause` says what becomes of running children when the session's time is used up. With
        `decides_starts` whoever opened the session sees to it that nothing starts without budget."""
        self.store, self.processes, self.artifacts = store, processes, artifacts
        self.targets, self.target_wait = targets, target_wait
        self.spool = spool
        self.session_id, self.actor, self.jobs = session_id, actor, jobs
        self.registered = registered
        self.redactor = Redactor(held_secrets or {})
        """Takes what the kernel itself holds out of whatever children leave."""
        self.issuer = issuer
        """Gives a child what it shows to ask in its own name."""
        self.late = late
        tenure = store.tenure
        rules.require_tenure(tenure is not None)
        assert tenure is not None
        with store.read() as rows:
            rules.require_recovered(recovery_done(rows, tenure.fence))
        here = processes.here
        self.owner = Owner(here.hostname, here.boot_id, here.pid, here.process_start, tenure.fence)
        self.changed = threading.Condition()
        self.works: dict[str, Work] = {}
        self.running: dict[str, Running] = {}
        self.ended: dict[str, Ended] = {}
        self.successors: dict[str, str] = {}
        self.failed: BaseException | None = None
        self._threads: list[threading.Thread] = []
        self._stopping = False
        self._turning = 0
        """How many slots are between two children: what they will run is not known yet."""
        self._asked_early: set[str] = set()
        self.closed = False
        self.hurry = threading.Event()
        """Set when somebody who asked to stop asks again."""
        self.stuck = False  # A function that only the end of this process will end.
        self.heeded: Callable[[], None] | None = None
        """Told when somebody asked for something that may concern this session."""
        self.on_debit: Callable[[str, Mapping[str, int]], None] | None = None
        """Told what was debited for a child, once that is recorded."""
        self.on_overdue: Callable[[str, float], None] | None = None
        """Told of a function that goes on after its time is over: its child, and the limit in seconds."""
        self.left_running: dict[str, Running] = {}
        """Children that were given up and whose threads have not ended."""
        self._target_tries: dict[str, int] = {}
        self.on_held: Callable[[str, str], None] | None = None
        """Told once of a child that waits for its target: which, and who holds it."""
        self.on_pause = on_pause
        self._watch = threading.Event()
        self._loop = EventLoop()
        self._decides_starts = decides_starts
        self.change(jobs, limits or {}, actor)

    def change(self, jobs: int, limits: Mapping[str, int], actor: str) -> None:
        """Go on under this cap and with these limits, from the next turn of each slot on."""
        self.store.write(lambda tx: queue.open_(tx, self.session_id, jobs, limits, actor))
        with self.store.read() as rows:
            lanes = debits.lanes(rows, self.session_id)
            whole = debits.workspace(rows)
        self.jobs = jobs
        time_lane = lanes.get("duration_secs")
        self.timed = time_lane is not None and time_lane.limit is not None
        """Whether the session's time is limited."""
        limited = any(lane.limit is not None for lane in (*lanes.values(), *whole.values()))
        self._admits = limited and not self._decides_starts
        """Whether each child is held against the budget before it starts."""

    def spawn(
        self,
        works: Sequence[Work],
        ids: Sequence[str] = (),
        accept: Callable[[Transaction], None] = lambda tx: None,
        actor: str = "",
    ) -> list[str]:
        """Queue children, under ids that were fixed before if some were; answers their ids. They run as slots become
        free. Where the workspace wants it, each names an operation of the registry. `accept` is called in the commit
        that queues them, in the name of `actor` where that is not who opened the session."""
        rules.require_open(self.session_id, self.closed)
        orders = [
            self.order(work, child_id)
            for work, child_id in zip(works, ids or [""] * len(works), strict=True)
        ]
        named = [operations.Named("the command", work.operation, work.effect) for work in works]

        def spawn(tx: Transaction) -> None:
            operations.require(tx, named, self.registered)
            queue.spawn(tx, orders, self.owner, actor or self.actor)
            accept(tx)

        self.expect({order.child_id: work for order, work in zip(orders, works, strict=True)})
        try:
            self.store.write(spawn)
        except BaseException:
            self.forget([order.child_id for order in orders])
            raise
        self.rouse()
        return [order.child_id for order in orders]

    def expect(self, works: Mapping[str, Work]) -> None:
        """Children that are about to be queued: a slot may lease one in the very commit that queues it."""
        with self.changed:
            self.works |= works

    def forget(self, children: Sequence[str]) -> None:
        """They were not queued after all."""
        with self.changed:
            for child_id in children:
                self.works.pop(child_id, None)
        for child_id in children:
            self.targets.release(child_id)

    def rouse(self) -> None:
        """Something was queued: let slots look for it."""
        with self.changed:
            while len(self._threads) < min(self.jobs, len(self.works)):
                self._start_slot(len(self._threads) + 1)
            self.changed.notify_all()

    def wait(self, child_id: str, told: Callable[[str, Ended], None] | None = None) -> Ended:
        """How a child ended, its later attempts included; waits for it, and tells of each attempt."""
        while True:
            ended, successor = self._await_end(child_id)
            if told is not None:
                told(child_id, ended)
            if successor is None:
                return ended
            child_id = successor

    def _await_end(self, child_id: str) -> tuple[Ended, str | None]:
        with self.changed:
            while child_id not in self.ended:
                if self.failed is not None:
                    raise self.failed
                if self._stopping and not self._turning and child_id not in self.running:
                    return Ended("lease_orphaned", {"stopped": True}), None
                self.changed.wait(0.5)
            return self.ended[child_id], self.successors.get(child_id)

    def heed(self) -> None:
        """Look for children that somebody asked to end: running ones are asked, queued ones have ended already."""
        with self.changed:
            waiting = [child_id for child_id in self.works if child_id not in self.running]
        with self.store.read() as rows:
            asked = Tokens(rows).asked_to_end(self.session_id)
            gone = [child_id for child_id in waiting if is_terminal(rows, child_id)]
        with self.changed:
            running = [self.running[child_id] for child_id in asked if child_id in self.running]
            # One that is on its way to its slot is asked when it gets there.
            self._asked_early |= {child_id for child_id in asked if child_id not in self.running}
            steps = []
            for child_id in gone:
                if child_id in self.works and child_id not in self.running:
                    work = self.works.pop(child_id)
                    if work.step is None:
                        self.ended[child_id] = Ended("cancelled")
                    else:
                        steps.append(work.step)
            self.changed.notify_all()
        for child in running:
            child.cancel()
        for step in steps:
            step.cancelled()
        if self.heeded is not None:
            self.heeded()

    def at_work(self) -> list[tuple[Work, Running]]:
        """What runs now."""
        with self.changed:
            return [(self.works[child_id], running) for child_id, running in self.running.items()]

    def stop(self) -> None:
        """Dispatch nothing more and ask what runs to end."""
        with self.changed:
            self._stopping = True
            self.changed.notify_all()
        self.stop_running()

    def stop_running(self) -> None:
        """Ask what runs to end; what comes next is not touched."""
        with self.changed:
            running = list(self.running.values())
        for child in running:
            child.stop()

    @property
    def quiet(self) -> bool:
        """Whether it was told to stop and nothing of it runs or is about to; what is queued will not begin."""
        with self.changed:
            return self._stopping and not self._turning and not self.running

    @property
    def overdue(self) -> bool:
        """Whether something still runs long after everything was asked to stop."""
        with self.changed:
            asked = [child for child in self.running.values() if child.pressed_at is not None]
        patience = self._patience()
        late = [child for child in asked if (child.pressed_at or 0) + patience < time.monotonic()]
        # A process always ends; only a function can stay.
        return self._stopping and any(child.process is None for child in late)

    def _patience(self) -> float:
        """How long something that was asked to stop is waited for; less if somebody asked again."""
        return 1.0 if self.hurry.is_set() else 2 * self.processes.grace

    def close(self) -> None:
        """Wait until every slot is empty."""
        with self.changed:
            self._stopping = True
            self.changed.notify_all()
        patience = time.monotonic() + (0.2 if self.overdue else 3 * self.processes.grace)
        for thread in self._threads:
            thread.join(max(0.0, patience - time.monotonic()))
        self.stuck = any(thread.is_alive() for thread in self._threads)
        self._watch.set()
        self._loop.close()
        self.closed = True
        while self.failed is None and not self.stuck and self.store.write(self._give_up_queued):
            pass
        with self.changed:
            unstarted = [child_id for child_id in self.works if child_id not in self.running]
        for child_id in unstarted:
            self.targets.release(child_id)

    def run_async(self, coroutine: Any, running: Running) -> Any:
        """Run a coroutine on the one loop thread, and wait for it here."""
        return self._loop.run(coroutine, running)

    def _give_up_queued(self, tx: Transaction) -> int:
        """End what was never begun, some at a time; answers how many."""
        left = [
            t
            for t in Tokens(tx).queued_in(self.session_id, _GIVE_UP)
            if t.owner_fence == self.owner.fence
        ]
        for token in left:
            queue.fail_queued(tx, token, Ended("lease_orphaned", {"stopped": True}), self.actor)
        return len(left)

    def order(
        self, work: Work, child_id: str = "", attempt: int = 1, predecessor: str | None = None
    ) -> Order:
        return Order(
            child_id=child_id or self.store.sources.new_id("chd"),
            session_id=self.session_id,
            kind=work.kind,
            work=canon.canonical(work.described(self.spool.folder.parent.parent)).decode(),
            target=work.target,
            attempt=attempt,
            predecessor=predecessor,
        )

    def _start_slot(self, slot: int) -> None:
        if not self._threads:
            threading.Thread(
                target=self._watch_deadlines, name="children-watch", daemon=True
            ).start()
        thread = threading.Thread(
            target=self._slot, args=(slot,), name=f"child-slot-{slot}", daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def _slot(self, slot: int, closing: Closing | None = None) -> None:
        """One place for a running child: ends one and takes the next in the same commit, until there is none."""
        try:
            while True:
                turn = self.turn(slot, closing)
                if turn.unclaimed is not None:
                    closing = None
                    self._claim_target(turn.unclaimed)
                    continue
                if turn.next is not None:
                    closing = child_run.run_contained(self, turn.next)
                    if closing is None:
                        # It was given up, and another thread has this slot by now.
                        return
                    continue
                closing = None
                with self.changed:
                    if self._stopping:
                        return
                    self.changed.wait(self._pause())
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Nothing of this kernel may go on as if everything were recorded."""
        with self.changed:
            self.failed = self.failed or error
            self.changed.notify_all()
        self.stop()

    def turn(self, slot: int, closing: Closing | None) -> Turn:
        """End the child that had a slot, and lease the slot to the next: what one pass of a slot does."""
        if closing is None and not self._anything_queued():
            return Turn()
        with self.changed:
            self._turning += 1
            starts = not self._stopping and self.failed is None and slot <= self.jobs
        try:
            turn = self._commit(slot, closing, starts)
        except BaseException:
            with self.changed:
                self._turning -= 1
                self.changed.notify_all()
            raise
        finally:
            # Not before its end is durable: whoever waits for the target may take the result over.
            if closing is not None and not closing.ended.detail.get("given_up"):
                with suppress(OncewardError):
                    self.targets.release(closing.token.child_id)
        with self.changed:
            # In one step: at no moment is a leased child neither on its way nor running.
            self._turning -= 1
            if closing is not None and turn.ended is not None:
                self._note_end(closing.token, turn)
            for token, ended in turn.unstarted:
                self.works.pop(token.child_id, None)
                self.ended[token.child_id] = ended
            if turn.next is not None:
                self._note_start(turn.next, slot)
            self.changed.notify_all()
        if closing is not None and closing.step is not None:
            closing.step.recorded()
        return turn

    def _commit(self, slot: int, closing: Closing | None, starts: bool) -> Turn:
        def turn(tx: Transaction, closing: Closing | None) -> Turn:
            return queue.turn(
                tx,
                session_id=self.session_id,
                slot=slot,
                owner=self.owner,
                actor=self.actor,
                closing=closing,
                starts=starts,
                refusal=self._refusal if self._admits else None,
                claimed=lambda token: self.targets.holds(token.child_id),
            )

        try:
            return self.store.write(lambda tx: turn(tx, closing))
        except (LockLost, StorageError):
            if closing is not None and closing.step is not None:
                closing.step.lost()
            raise
        except Exception as error:
            if closing is None:
                raise
            # What it left cannot be recorded as it is; that it ended can.
            why = f"its result could not be recorded: {described(error)}"
            detail = {**closing.whose(), "error": "MALFORMED_OUTPUT", "message": why}
            reason = "execution_failed" if closing.token.phase == "started" else "start_failed"
            bare = msgspec.structs.replace(closing, ended=Ended(reason, detail), facts=closing.bare)
            return self.store.write(lambda tx: turn(tx, bare))

    def _claim_target(self, token: Token) -> None:
        """Claim the target of the child whose turn it is. Held by somebody else, the child stays in the queue and is
        tried again later; after too long a wait it has failed."""
        assert token.target is not None
        tries = self._target_tries.get(token.child_id, 0)
        try:
            self.targets.claim(token.target, token.child_id)
            self._target_tries.pop(token.child_id, None)
            return
        except TargetLocked as locked:
            held = locked
        self._target_tries[token.child_id] = tries + 1
        if not tries and self.on_held is not None:
            self.on_held(token.child_id, held.message)
        ended = Ended(
            "start_failed", {"error": held.code, "message": f"waited too long: {held.message}"}
        )

        def postpone(tx: Transaction) -> bool:
            current = Tokens(tx).get(token.child_id)
            if current.phase != "queued":
                return False
            if tx.now - current.created_at >= self.target_wait * 1_000_000:
                queue.fail_queued(tx, current, ended, self.actor)
                return True
            put_off(tx, token.child_id, tx.now + int(retry_delay(tries) * 1_000_000))
            if not tries:
                # Others go first: the order of dispatch is proven with this.
                detail = {"child_id": token.child_id, "target": token.target}
                tx.append(token.parent_stream_id, "TARGET_HELD", self.actor, detail)
            return False

        if self.store.write(postpone):
            self._target_tries.pop(token.child_id, None)
            with self.changed:
                self.works.pop(token.child_id, None)
                self.ended[token.child_id] = ended
                self.changed.notify_all()

    def _refusal(self, rows: Reads, token: Token) -> Refusal | None:
        """Why a queued child of a plain session must not start: a lane is over its limit."""
        work = self.works.get(token.child_id)
        if work is not None and work.excused:
            return None
        lanes = debits.lanes(rows, self.session_id)
        over = overrun(lanes) or overrun(debits.workspace(rows), "workspace")
        return over or out_of_time(lanes, self.running_micros())

    def running_micros(self, except_child: str = "") -> int:
        """For how long everything that runs now has been running, added up; one child may be left out."""
        now = time.monotonic()
        with self.changed:
            seconds = sum(
                now - child.begun
                for child_id, child in self.running.items()
                if child_id != except_child
            )
        return int(seconds * 1_000_000)

    def debited(self, child_id: str, amounts: Mapping[str, int]) -> None:
        if self.on_debit is not None:
            self.on_debit(child_id, amounts)

    def _note_start(self, token: Token, slot: int) -> None:
        child_id = token.child_id
        running = self.running[child_id] = Running()
        running.token, running.slot = token, slot
        if child_id in self._asked_early:
            running.cancel()
        if self._stopping:
            running.stop()

    def _watch_deadlines(self) -> None:
        """Ask functions to end when their time is over; commands are watched by their own slots."""
        while not self._watch.wait(_LOOK_SECONDS):
            with self.changed:
                now = time.monotonic()
                running = list(self.running.values())
            if self.timed and self.on_pause == "stop" and running:
                self._end_what_is_out_of_time()
            for child in running:
                if child.deadline is not None and child.deadline <= now and not child.asked:
                    child.ask("timeout")
                elif child.pressed_at is None or child.process is not None:
                    continue
                elif child.asked == "timeout":
                    self._look_at_overdue(child, now)
                elif child.pressed_at + self.processes.grace <= now:
                    child.interrupt()

    def _look_at_overdue(self, child: Running, now: float) -> None:
        """A function whose time is over and that goes on: name it soon, give its slot up after the grace time. It is
        not interrupted: it may wait for an answer that is paid for, and that is kept when it comes."""
        assert child.token is not None and child.pressed_at is not None
        if not child.overdue_told and child.pressed_at + _OVERDUE_SECONDS <= now:
            child.overdue_told = True
            if self.on_overdue is not None:
                self.on_overdue(child.token.child_id, child.limit)
        if child.pressed_at + self.processes.grace <= now and child.give_up():
            closing = child_run.given_up(self, child.token, child)
            thread = threading.Thread(
                target=self._slot,
                args=(child.slot, closing),
                name=f"child-slot-{child.slot}",
                daemon=True,
            )
            with self.changed:
                self.left_running[child.token.child_id] = child
                self._threads[child.slot - 1] = thread
                step = self.works[child.token.child_id].step
            if step is not None and step.lock_target:
                # Nobody runs the same step beside it, in this process or another.
                with suppress(OncewardError):
                    self.targets.claim(step.lock_target, child.token.child_id)
            thread.start()

    def settle(self, token: Token, spent: Estimated) -> None:
        """Record money that a child spent; also after its end, and where this kernel cannot write any more."""
        if self.late is None:
            self.store.write(lambda tx: debits.settle(tx, token, spent, self.actor))
            return
        left = self.late.settle(self.store, token, spent)
        if left is not None:
            self._fail(left)

    def thread_ended(self, child_id: str) -> None:
        """The thread of a child that was given up has ended."""
        with self.changed:
            self.left_running.pop(child_id, None)
        with suppress(OncewardError):
            self.targets.release(child_id)

    def _end_what_is_out_of_time(self) -> None:
        """Where the session's time is used up, ask what runs to end (C-30)."""
        with self.store.read() as rows:
            lanes = debits.lanes(rows, self.session_id)
        over = out_of_time(lanes, self.running_micros())
        if over is None:
            return
        with self.changed:
            running = [
                child
                for child_id, child in self.running.items()
                if not self.works[child_id].excused
            ]
        for child in running:
            if not child.asked:
                child.out_of_time = over.detail()
                child.ask("budget")

    def _note_end(self, token: Token, turn: Turn) -> None:
        assert turn.ended is not None
        work = self.works.pop(token.child_id)
        self.running.pop(token.child_id, None)
        self._asked_early.discard(token.child_id)
        if work.step is None:
            self.ended[token.child_id] = turn.ended
        if token.kind == "process":
            self.spool.forget(token.child_id)
        if turn.successor is not None:
            self.works[turn.successor.child_id] = work
            self.successors[token.child_id] = turn.successor.child_id

    def _anything_queued(self) -> bool:
        with self.changed:
            return len(self.works) > len(self.running)

    def _pause(self) -> float:
        """How long an idle slot sleeps: until somebody spawns, or until the next attempt is due."""
        if len(self.works) <= len(self.running):
            return 3600.0
        with self.store.read() as rows:
            due = Tokens(rows).next_due(self.session_id)
            now = rows.now()
        return 0.05 if due is None else min(3600.0, max(0.001, (due - now) / 1_000_000))
