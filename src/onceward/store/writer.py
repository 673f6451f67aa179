"""Group commit: a lone caller runs its transaction in place; callers that meet share one commit."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Set
from contextlib import suppress
from typing import Any, TypeVar

from onceward.core import faults
from onceward.core.chain import Event
from onceward.core.limits import GATHER_SECONDS, MAX_BATCH, TRANSIENT_RETRIES
from onceward.core.records import Tenure
from onceward.core.sources import Sources
from onceward.errors import CommitUnknown, LockLost, OncewardError, Recovery, StorageError
from onceward.store.heads import Heads
from onceward.store.port import CommitFailed, Database, DatabaseSession, Transient
from onceward.store.tables.events import event_at
from onceward.store.tables.singleton import retire_lock
from onceward.store.transaction import Transaction

T = TypeVar("T")
Work = Callable[[Transaction], T]


class _Slot:
    """One caller's work and what came of it."""

    __slots__ = (
        "alone",
        "batch",
        "done",
        "error",
        "last_event",
        "result",
        "taken",
        "thread",
        "wake",
        "work",
    )

    def __init__(self, work: Work[Any], alone: bool) -> None:
        self.work = work
        self.alone = alone
        self.wake = threading.Lock()
        self.wake.acquire()
        self.done = False
        self.taken = False
        self.thread = 0
        self.batch: list[_Slot] = []
        """Whom it takes along, if it has the lead."""
        self.result: Any = None
        self.error: BaseException | None = None
        self.last_event: Event | None = None

    def finish(self, error: BaseException | None) -> None:
        self.error, self.done = error, True

    def outcome(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.result


class _Spoiled(Exception):
    """One work of an unguarded batch failed: undo all, and run each again in a savepoint of its
    own."""


class Writer:
    """The kernel's only way to write. Holds the tenure under which every commit is fenced."""

    def __init__(
        self, database: Database, sources: Sources, sinks: Mapping[str, Set[str] | None]
    ) -> None:
        self._database = database
        self._session = database.connect(kernel=True)
        self._sources = sources
        self._sinks = sinks
        self._heads = Heads()
        self._mutex = threading.Lock()
        self._waiting: deque[_Slot] = deque()
        self._head: _Slot | None = None
        self._company = 1
        self._committing = False
        self._stopped: str | None = None
        self._forfeited: str | None = None
        self.tenure: Tenure | None = None

    def write(self, work: Work[T]) -> T:
        """Run `work` and commit it under the fence. It may be run again before it is committed."""
        return self._submit(_Slot(work, alone=False))  # type: ignore[no-any-return]

    def take(self, work: Work[Tenure]) -> Tenure:
        """Run `work`, which takes the writer lock, alone in its commit and outside the fence."""
        self.tenure = self._submit(_Slot(work, alone=True))
        self._forfeited = None
        return self.tenure

    def forfeit(self, why: str) -> None:
        """The tenure is not ours any more, or cannot be shown to be: commit nothing more, the end
        of it included.

        Called from the heartbeat's thread. The fence alone does not say so where only the
        program in the lock row differs; a work that is under way is undone before its commit."""
        self._forfeited = why
        self.tenure = None

    def close(self) -> None:
        self._session.close()

    def _submit(self, slot: _Slot) -> Any:
        head = self._head
        if head is not None and head.thread == threading.get_ident():
            raise RuntimeError("a write inside a write would wait for itself; do both in one work")
        try:
            with self._mutex:
                self._waiting.append(slot)
                if self._head is None:
                    self._head = slot
            if self._head is not slot:
                slot.wake.acquire()
            if not slot.done:
                self._lead(slot)
        except BaseException:
            _through(lambda: self._leave(slot))
            raise
        return slot.outcome()

    def _leave(self, slot: _Slot) -> None:
        """An interrupted caller: out of the queue, or through to the end of the commit it is
        part of."""
        with self._mutex:
            if slot in self._waiting and not slot.taken:
                self._waiting.remove(slot)
            if not slot.taken:
                return self._pass_on(slot)
        if self._head is slot:
            # The very call that would have given the lead away was interrupted before it began.
            return self._retire(slot)
        if not slot.done:
            slot.wake.acquire()
        return None

    def _lead(self, own: _Slot) -> None:
        try:
            self._committing = False
            own.thread = threading.get_ident()
            self._gather(own.batch)
            self._run(own.batch)
            self._note_loss(own.batch)
        finally:
            _through(lambda: self._retire(own))

    def _retire(self, own: _Slot) -> None:
        """Wake those whose work is decided and hand the lead to the next in line; may be
        repeated."""
        if not all(slot.done for slot in own.batch):
            with suppress(OncewardError):
                self._broken_off(own.batch)
        for slot in own.batch:
            if not slot.done:
                slot.finish(_interrupted())
            if slot is not own and slot.wake.locked():
                slot.wake.release()
        with self._mutex:
            # Only an interrupted leader leaves a slot here that is decided already: its own, or one
            # it had just taken.
            while self._waiting and (self._waiting[0].taken or self._waiting[0] is own):
                self._waiting.popleft()
            self._pass_on(own)

    def _pass_on(self, slot: _Slot) -> None:
        """With the mutex held: if `slot` has the lead, the first in the queue gets it, or nobody
        does.

        Python takes up an interrupt only after a call or at a loop's turn, so none comes between
        giving the lead and waking who has it: both happen, or neither, and doing it again does
        nothing.
        """
        if self._head is slot:
            heir = self._waiting[0] if self._waiting else None
            self._head = heir
            if heir is not None:
                heir.wake.release()

    def _gather(self, batch: list[_Slot]) -> None:
        """Collect the slots that share the next commit. A leader whose last commit was shared
        waits a moment for its company."""
        arrived = len(self._waiting)
        while arrived < self._company:
            time.sleep(GATHER_SECONDS)
            if len(self._waiting) == arrived:
                break
            arrived = len(self._waiting)
        with self._mutex:
            while self._waiting and len(batch) < MAX_BATCH:
                slot = self._waiting[0]
                if batch and (slot.alone or batch[0].alone):
                    break
                # In this order an interrupt leaves a slot in both places, never in none.
                slot.taken = True
                batch.append(slot)
                self._waiting.popleft()
        self._company = len(batch)

    def _run(self, batch: list[_Slot]) -> None:
        if self._stopped is not None:
            return _fail(batch, StorageError(self._stopped, context={"outcome": "failed"}))
        if self._forfeited is not None and not batch[0].alone:
            return _fail(batch, LockLost(self._forfeited))
        if self.tenure is None and not batch[0].alone:
            return _fail(
                batch, LockLost("this process does not hold the writer lock, so it may not write")
            )
        self._redial()
        guarded, tries = False, 0
        while True:
            try:
                return self._attempt(batch, guarded)
            except _Spoiled:
                self._undo_all()
                if len(batch) == 1:
                    return batch[0].finish(batch[0].error)
                guarded = True
            except Transient as error:
                self._undo_all()
                tries += 1
                if tries == TRANSIENT_RETRIES:
                    return _fail(batch, StorageError(f"the database kept refusing: {error}"))
                time.sleep(self._sources.fraction() * 0.005 * tries)
            except OncewardError as error:
                # Nothing of the batch is committed: the fence moved, or the database is out of
                # reach.
                self._undo_all()
                return _fail(batch, error)
            except BaseException:
                _through(lambda: self._broken_off(batch))
                raise

    def _note_loss(self, batch: list[_Slot]) -> None:
        """Once the fence has refused a write, nobody here may act as the holder of the lock any
        more."""
        lost = [slot.error for slot in batch if isinstance(slot.error, LockLost)]
        if lost and self.tenure is not None:
            self.forfeit(lost[0].message)

    def _broken_off(self, batch: list[_Slot]) -> None:
        """An interrupt in the leader's own thread: say truthfully whether the batch is
        committed."""
        self._heads = Heads()
        if self._committing and self._session.lost:
            # Works that had failed on their own keep their errors; a repeat takes up what is still
            # unknown.
            undecided = [
                slot
                for slot in batch
                if slot.error is None or isinstance(slot.error, CommitUnknown)
            ]
            _keep_errors([slot for slot in batch if slot not in undecided])
            self._resolve(undecided, "interrupted")
        elif self._committing and not self._session.open:
            _keep_errors(batch)
        else:
            self._undo_all()

    def _undo_all(self) -> None:
        self._heads = Heads()
        self._session.rollback()
        self._redial()

    def _redial(self) -> None:
        if self._session.lost:
            self._session.close()
            try:
                self._session = self._database.connect(kernel=True)
            except OncewardError:
                return

    def _attempt(self, batch: list[_Slot], guarded: bool) -> None:
        session, self._committing = self._session, False
        heads = Heads(Heads() if batch[0].alone else self._heads)
        session.begin(None if batch[0].alone else self.tenure)
        if len(batch) > 1:
            session.hold()
        faults.point("write.begun")
        for slot in batch:
            self._work(slot, heads, guarded)
        faults.point("write.worked")
        if self._forfeited is not None and not batch[0].alone:
            raise LockLost(self._forfeited)
        committing = [slot for slot in batch if slot.error is None]
        if committing:
            self._commit(committing, guarded)
            heads.keep()
        else:
            session.rollback()
        for slot in batch:
            slot.done = True

    def _work(self, slot: _Slot, heads: Heads, guarded: bool) -> None:
        slot.error = None
        # An unguarded batch stands or falls together, so its works may share what they learn.
        mine = Heads(heads) if guarded else heads
        fence = self.tenure.fence if self.tenure else 0
        tx = Transaction(
            session=self._session, heads=mine, fence=fence, sinks=self._sinks, sources=self._sources
        )
        try:
            if guarded:
                self._session.savepoint()
            slot.result = slot.work(tx)
            tx.require_sound()
            if guarded:
                self._session.release()
        except (Transient, KeyboardInterrupt, faults.SimulatedCrash):
            raise
        except BaseException as error:
            slot.error = error
            if not self._session.open:
                # The database itself gave up the whole transaction (a full disk, a lost
                # connection).
                raise _lost_all(error) from error
            if not guarded:
                raise _Spoiled from error
            self._session.undo()
        else:
            slot.last_event = tx.last_event
            if guarded:
                mine.keep()

    def _commit(self, slots: list[_Slot], guarded: bool) -> None:
        faults.point("commit.before")
        self._committing = True
        try:
            self._session.commit()
        except CommitFailed as error:
            self._resolve(slots, str(error))
        except OncewardError as error:
            # The database refused a write that was held back until now.
            self._committing = False
            if guarded:
                raise
            slots[0].error = error
            raise _Spoiled from error
        faults.point("commit.after")

    def _resolve(self, slots: list[_Slot], why: str) -> None:
        """A commit error means unknown: stop writing, look from a fresh connection, answer
        truthfully.

        Looking is itself a commit that retires our tenure: it waits for a commit still under way,
        overwrites what a failed sync left behind, and keeps a late one from being applied after we
        have given our word.
        """
        self._stopped = f"the store stopped after a commit went wrong ({why}); open it again"
        self._heads = Heads()
        tenure = self.tenure
        for slot in slots:
            slot.finish(_unknown(why))
        try:
            self._session.close()
            session = self._database.connect(kernel=True)
        except OncewardError:
            return
        try:
            session.begin(None)
            if tenure is not None:
                retire_lock(session, tenure.token)
            found = [
                slot.last_event and event_at(session, slot.last_event.position) for slot in slots
            ]
            session.commit()
        except (OncewardError, CommitFailed, Transient):
            return
        finally:
            session.close()
        self.tenure = None
        for slot, event in zip(slots, found, strict=True):
            if slot.last_event is not None:
                applied = event is not None and event.hash == slot.last_event.hash
                slot.finish(None if applied else _not_written(why))


def _through(work: Callable[[], None]) -> None:
    """Bring to an end what must be brought to an end: an interrupt on top of an interrupt
    changes nothing."""
    while True:
        try:
            return work()
        except KeyboardInterrupt:
            continue


def _fail(slots: list[_Slot], error: BaseException) -> None:
    for slot in slots:
        slot.finish(error)


def _keep_errors(slots: list[_Slot]) -> None:
    for slot in slots:
        slot.finish(slot.error)


def _lost_all(error: BaseException) -> OncewardError:
    if isinstance(error, OncewardError):
        return error
    return StorageError(
        "the database gave up the transaction; nothing was written", context={"outcome": "failed"}
    )


def _interrupted() -> StorageError:
    return StorageError(
        "the process was interrupted before the commit; nothing was written",
        context={"outcome": "failed"},
        recovery=[Recovery("run the same command again")],
    )


def _not_written(why: str) -> StorageError:
    return StorageError(
        f"nothing was written: {why}",
        context={"outcome": "failed"},
        recovery=[Recovery("mend the cause and run the same command again")],
    )


def _unknown(why: str) -> CommitUnknown:
    return CommitUnknown(
        f"the commit went wrong and nobody can tell yet whether it holds: {why}",
        context={"outcome": "unknown"},
        recovery=[Recovery("run the same command again with the same request id")],
    )


def commit_plainly(session: DatabaseSession, what: str) -> None:
    """COMMIT outside the writer; a commit error is unknown here too."""
    try:
        session.commit()
    except CommitFailed as error:
        raise _unknown(f"{what}: {error}") from error
