"""Group commit: a lone caller runs its transaction in place; callers that meet share one commit."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from onceward.errors import CommitUnknown, LockLost, OncewardError, Recovery, StorageError
from onceward.kernel import faults
from onceward.kernel.limits import GATHER_SECONDS, MAX_BATCH, TRANSIENT_RETRIES
from onceward.kernel.records import Tenure
from onceward.kernel.sources import Sources
from onceward.store.heads import Heads
from onceward.store.port import CommitFailed, Database, Transient
from onceward.store.tables.events import event_at
from onceward.store.transaction import Transaction

T = TypeVar("T")
Work = Callable[[Transaction], T]


class _Slot:
    """One caller's work and what came of it."""

    __slots__ = ("alone", "done", "error", "last_event", "result", "wake", "work")

    def __init__(self, work: Work[Any], alone: bool) -> None:
        self.work = work
        self.alone = alone
        self.wake = threading.Lock()
        self.wake.acquire()
        self.done = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.last_event: Any = None

    def outcome(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.result


class _Spoiled(Exception):
    """One work of an unguarded batch failed: undo all, and run each again in a savepoint of its own."""


class Writer:
    """The kernel's only way to write. Holds the tenure under which every commit is fenced."""

    def __init__(self, database: Database, sources: Sources, sinks: Sequence[str]) -> None:
        self._database = database
        self._session = database.connect(kernel=True)
        self._sources = sources
        self._sinks = tuple(sinks)
        self._heads = Heads()
        self._mutex = threading.Lock()
        self._waiting: deque[_Slot] = deque()
        self._leading = False
        self._company = 1
        self._stopped: str | None = None
        self.tenure: Tenure | None = None

    def write(self, work: Work[T]) -> T:
        """Run `work` and commit it under the fence. It may be run again before it is committed."""
        return self._submit(_Slot(work, alone=False))  # type: ignore[no-any-return]

    def take(self, work: Work[Tenure]) -> Tenure:
        """Run `work`, which takes the writer lock, alone in its commit and outside the fence."""
        self._heads = Heads()
        self.tenure = self._submit(_Slot(work, alone=True))
        return self.tenure

    def close(self) -> None:
        self._session.close()

    def _submit(self, slot: _Slot) -> Any:
        with self._mutex:
            self._waiting.append(slot)
            follows, self._leading = self._leading, True
        if follows:
            slot.wake.acquire()
            if slot.done:
                return slot.outcome()
        self._lead()
        return slot.outcome()

    def _lead(self) -> None:
        batch = self._gather()
        try:
            self._run(batch)
        finally:
            with self._mutex:
                unfinished = [slot for slot in batch if not slot.done]
                self._waiting.extendleft(reversed(unfinished[1:] if not batch[0].done else unfinished))
                heir = self._waiting[0] if self._waiting else None
                self._leading = heir is not None
            for slot in batch[1:]:
                if slot.done:
                    slot.wake.release()
            if heir is not None:
                heir.wake.release()

    def _gather(self) -> list[_Slot]:
        """Who shares the next commit. A leader whose last commit was shared waits a moment for its company."""
        arrived = len(self._waiting)
        while arrived < self._company:
            time.sleep(GATHER_SECONDS)
            if len(self._waiting) == arrived:
                break
            arrived = len(self._waiting)
        batch: list[_Slot] = []
        with self._mutex:
            while self._waiting and len(batch) < MAX_BATCH:
                if batch and (self._waiting[0].alone or batch[0].alone):
                    break
                batch.append(self._waiting.popleft())
        self._company = len(batch)
        return batch

    def _run(self, batch: list[_Slot]) -> None:
        if self._stopped is not None:
            return _fail(batch, StorageError(self._stopped, context={"outcome": "failed"}))
        if self.tenure is None and not batch[0].alone:
            return _fail(batch, LockLost("this process does not hold the writer lock, so it may not write"))
        self._redial()
        guarded = False
        for left in reversed(range(TRANSIENT_RETRIES)):
            try:
                return self._attempt(batch, guarded)
            except _Spoiled:
                self._session.rollback()
                if len(batch) == 1:
                    batch[0].done = True
                    return None
                guarded = True
            except Transient as error:
                self._session.rollback()
                if not left:
                    return _fail(batch, StorageError(f"the database kept refusing: {error}"))
            except OncewardError as error:
                # Nothing of the batch is committed: the fence moved, or the database is out of reach.
                self._session.rollback()
                _fail(batch, error)
                return self._redial()
            except BaseException:
                self._session.rollback()
                raise
        return None

    def _redial(self) -> None:
        if self._session.lost:
            self._session.close()
            try:
                self._session = self._database.connect(kernel=True)
            except OncewardError:
                return

    def _attempt(self, batch: list[_Slot], guarded: bool) -> None:
        session = self._session
        heads = Heads(self._heads)
        session.begin(None if batch[0].alone else self.tenure)
        if len(batch) > 1:
            session.hold()
        faults.point("write.begun")
        for slot in batch:
            self._work(slot, heads, guarded)
        faults.point("write.worked")
        committing = [slot for slot in batch if slot.error is None]
        if not committing:
            session.rollback()
        else:
            self._commit(committing, guarded)
            heads.keep()
        for slot in batch:
            slot.done = True

    def _work(self, slot: _Slot, heads: Heads, guarded: bool) -> None:
        slot.error = None
        # An unguarded batch stands or falls together, so its works may share what they learn.
        mine = Heads(heads) if guarded else heads
        fence = self.tenure.fence if self.tenure else 0
        tx = Transaction(self._session, mine, fence, self._sinks, self._sources)
        try:
            if guarded:
                self._session.savepoint()
            slot.result = slot.work(tx)
            if guarded:
                self._session.release()
        except Transient:
            raise
        except Exception as error:
            slot.error = error
            if not self._session.open:
                # The database itself gave up the whole transaction (a full disk, a lost connection).
                raise
            if not guarded:
                raise _Spoiled from error
            self._session.undo()
        else:
            slot.last_event = tx.last_event
            if guarded:
                mine.keep()

    def _commit(self, slots: list[_Slot], guarded: bool) -> None:
        faults.point("commit.before")
        try:
            self._session.commit()
        except CommitFailed as error:
            self._resolve(slots, str(error))
        except OncewardError as error:
            # The database refused a write that was held back until now.
            if guarded:
                raise
            slots[0].error = error
            raise _Spoiled from error
        faults.point("commit.after")

    def _resolve(self, slots: list[_Slot], why: str) -> None:
        """A commit error means unknown: stop writing, look from a fresh connection, answer truthfully."""
        self._stopped = f"the store stopped after a commit went wrong ({why}); open it again"
        for slot in slots:
            slot.error = CommitUnknown(
                f"the commit went wrong and nobody can tell yet whether it holds: {why}",
                context={"outcome": "unknown"},
                recovery=[Recovery("run the same command again with the same request id")],
            )
        try:
            session = self._database.connect(kernel=True)
        except OncewardError:
            return
        try:
            # Waits until the broken transaction has ended one way or the other.
            self._database.exclusive(session)
            for slot in slots:
                if slot.last_event is not None:
                    found = event_at(session, slot.last_event.position)
                    applied = found is not None and found.hash == slot.last_event.hash
                    slot.error = (
                        None
                        if applied
                        else StorageError(
                            f"nothing was written: {why}",
                            context={"outcome": "failed"},
                            recovery=[Recovery("mend the cause and run the same command again")],
                        )
                    )
            session.rollback()
        except OncewardError:
            return
        finally:
            session.close()


def _fail(slots: list[_Slot], error: BaseException) -> None:
    for slot in slots:
        slot.error, slot.done = error, True
