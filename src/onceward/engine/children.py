"""The coordinator of a session's children: its slots, threads and processes, and who waits for whom.

Everything that changes while children run lives here and is handed to the modules that need it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from onceward.engine import child_dispatch, child_workflow
from onceward.engine.artifacts import Artifacts
from onceward.engine.child_dispatch import Closing, Turn
from onceward.engine.processes import Processes
from onceward.engine.work import Running, Work
from onceward.errors import LockLost
from onceward.kernel import canon
from onceward.kernel.records import Owner, Token
from onceward.lifecycles.child import Ended, Order
from onceward.locks import TargetLock
from onceward.store.store import Store
from onceward.store.tables.children import Tokens, recovery_done
from onceward.store.transaction import Transaction


class Children:
    """Runs the children of one session: at most `jobs` at once, lowest place in the queue first."""

    def __init__(
        self,
        store: Store,
        processes: Processes,
        artifacts: Artifacts,
        locks: TargetLock,
        *,
        session_id: str,
        actor: str,
        jobs: int,
        limits: Mapping[str, int] | None = None,
    ) -> None:
        self.store, self.processes, self.artifacts, self.locks = store, processes, artifacts, locks
        self.session_id, self.actor, self.jobs = session_id, actor, jobs
        tenure = store.tenure
        if tenure is None:
            raise LockLost("only the kernel of a workspace runs children")
        with store.read() as rows:
            if not recovery_done(rows, tenure.fence):
                raise LockLost("nothing is dispatched before recovery is done")
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
        self._loop: asyncio.AbstractEventLoop | None = None
        store.write(lambda tx: child_dispatch.open_(tx, session_id, jobs, limits or {}, actor))

    def spawn(self, works: Sequence[Work]) -> list[str]:
        """Queue children; answers their ids. They run as slots become free."""
        orders = [self._order(work) for work in works]
        tokens = self.store.write(lambda tx: child_dispatch.spawn(tx, orders, self.owner, self.actor))
        with self.changed:
            for token, work in zip(tokens, works, strict=True):
                self.works[token.child_id] = work
            while len(self._threads) < min(self.jobs, len(self.works)):
                self._start_slot(len(self._threads) + 1)
            self.changed.notify_all()
        return [token.child_id for token in tokens]

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
                if self._stopping and child_id not in self.running:
                    return Ended("lease_orphaned", {"stopped": True}), None
                self.changed.wait(0.5)
            return self.ended[child_id], self.successors.get(child_id)

    def heed(self) -> None:
        """Look for children that somebody asked to end: running ones are asked, queued ones have ended already."""
        with self.store.read() as rows:
            left = {token.child_id: token for token in Tokens(rows).open_in(self.session_id)}
        with self.changed:
            running = [c for i, c in self.running.items() if i in left and left[i].cancel_request_id is not None]
            for child_id in [i for i in self.works if i not in left and i not in self.running]:
                self.works.pop(child_id)
                self.ended[child_id] = Ended("cancelled")
            self.changed.notify_all()
        for child in running:
            child.cancel()

    def stop(self) -> None:
        """Dispatch nothing more and ask what runs to end."""
        with self.changed:
            self._stopping = True
            running = list(self.running.values())
            self.changed.notify_all()
        for child in running:
            child.stop()

    def close(self) -> None:
        """Wait until every slot is empty."""
        with self.changed:
            self._stopping = True
            self.changed.notify_all()
        for thread in self._threads:
            thread.join()
        if self.failed is None:
            self.store.write(self._give_up_queued)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)

    def run_async(self, coroutine: Any) -> Any:
        """Run a coroutine on the one loop thread, and wait for it here."""
        with self.changed:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=_run_loop, args=(self._loop,), name="children-loop", daemon=True).start()
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _give_up_queued(self, tx: Transaction) -> None:
        for token in Tokens(tx).open_in(self.session_id):
            if token.phase == "queued" and token.owner_fence == self.owner.fence:
                child_dispatch.fail_queued(tx, token, Ended("lease_orphaned", {"stopped": True}), self.actor)

    def _order(self, work: Work) -> Order:
        said = canon.canonical(work.described()).decode()
        return Order(self.store.sources.new_id("chd"), self.session_id, work.kind, said, work.target)

    def _start_slot(self, slot: int) -> None:
        thread = threading.Thread(target=self._slot, args=(slot,), name=f"child-slot-{slot}")
        self._threads.append(thread)
        thread.start()

    def _slot(self, slot: int) -> None:
        """One place for a running child: ends one and takes the next in the same commit, until there is none."""
        closing: Closing | None = None
        try:
            while True:
                turn = self._turn(slot, closing)
                if turn.next is not None:
                    closing = child_workflow.run(self, turn.next)
                    continue
                closing = None
                with self.changed:
                    if self._stopping:
                        return
                    self.changed.wait(self._pause())
        except BaseException as error:
            # Whatever this is, nothing of this kernel may go on as if it were recorded.
            with self.changed:
                self.failed = self.failed or error
                self.changed.notify_all()
            self.stop()

    def _turn(self, slot: int, closing: Closing | None) -> Turn:
        starts = not self._stopping and self.failed is None
        if closing is None and not self._anything_queued():
            return Turn()
        turn = self.store.write(
            lambda tx: child_dispatch.turn(tx, self.session_id, slot, self.owner, self.actor, closing, starts)
        )
        with self.changed:
            if closing is not None and turn.ended is not None:
                self._note_end(closing.token, turn)
            if turn.next is not None:
                self.running[turn.next.child_id] = Running()
            self.changed.notify_all()
        return turn

    def _note_end(self, token: Token, turn: Turn) -> None:
        assert turn.ended is not None
        work = self.works.pop(token.child_id)
        self.running.pop(token.child_id, None)
        self.ended[token.child_id] = turn.ended
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


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()
