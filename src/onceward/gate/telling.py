"""A session that really ran, told in the lines of a script."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from onceward.core.limits import RETRY_MAX_MICROS
from onceward.core.records import ChildRecord
from onceward.errors import InvalidConfig
from onceward.evidence.differences import decoded
from onceward.evidence.records import Records
from onceward.gate import script
from onceward.gate.script import Op
from onceward.store.tables.budgets import DebitRow
from onceward.store.tables.children import SessionRow

_KEPT: Final = ("exit", "error", "message", "stopped")
"""The fields of a real end that go into a script."""
_RECOVERED: Final = ("terminated_on_restart", "lease_orphaned")


class Telling:
    """What happened, in order. Later attempts that the session itself made are made again by the
    engine; those of a build's steps are children of their own."""

    def __init__(self, records: Records, session: str) -> None:
        self.records, self.session = records, session
        self.children = {child.child_id: child for child in records.dispatched(session)}
        self.queue = sorted(self.children.values(), key=lambda child: child.queue_seq)
        self.ends: dict[str, int] = {}
        self.born = self._births()
        self.names = self._names()
        debits = records.of(DebitRow, parent_session_id=session)
        self.debits = sorted(debits, key=lambda debit: (debit.at, debit.debit_seq))
        self.slots: dict[int, str] = {}
        self.waiting: list[ChildRecord] = []
        self.late: list[ChildRecord] = []
        """Later attempts that wait for their time."""
        self.fence = self.cap = 0

    def ops(self) -> Iterator[Op]:
        (row,) = self.records.of(SessionRow, session_id=self.session)
        self.cap = row.max_active_children
        limits: dict[str, int] = {}
        opened = False
        for event in self.records.stream(f"session:{self.session}"):
            facts = decoded(event)
            name, detail = facts["event"], facts["detail"]
            fence = facts["context"].get("fence", 0)
            new_kernel = opened and fence != self.fence
            if new_kernel:
                yield from self._until(event.at)
                yield from (script.Crash(), script.Recover())
                self.slots, self.waiting, self.late = {}, [], []
            self.fence = fence
            if name in ("SESSION_OPENED", "SESSION_CHANGED"):
                limits, self.cap = detail["limits"], detail["max_active_children"]
            if new_kernel or name == "SESSION_OPENED":
                yield script.Open(cap=self.cap, limits=limits)
                opened = True
            yield from self._until(event.at)
            if event.source == "child":
                yield from self._of_child(name, detail, event.at)
        yield from self._until(1 << 62)

    def _births(self) -> dict[str, int]:
        """Under which fence each child was queued; and when each ended."""
        born: dict[str, int] = {}
        now = before = 0
        for event in self.records.stream(f"session:{self.session}"):
            facts = decoded(event)
            fence = facts["context"].get("fence", 0)
            if fence != now:
                now, before = fence, now
            if event.source == "child":
                detail = facts["detail"]
                child = detail["child_id"]
                left = detail.get("reason") in _RECOVERED and not detail.get("stopped")
                born.setdefault(child, before if left else now)
                if facts["event"] != "WORKER_START":
                    self.ends[child] = event.at
        return {child: born.get(child, now) for child in self.children}

    def _names(self) -> dict[str, str]:
        names: dict[str, str] = {}
        for number, child in enumerate(self.queue, 1):
            name = f"c{number}"
            before = names.get(child.predecessor or "")
            if before is not None and self._again(child):
                name = f"{before.partition('.')[0]}.{child.attempt}"
            names[child.child_id] = name
        return names

    def _again(self, child: ChildRecord) -> bool:
        """Whether the end of its predecessor queued it."""
        return (
            child.predecessor is not None and self.ends.get(child.predecessor) == child.created_at
        )

    def _until(self, at: int) -> Iterator[Op]:
        """Spawns and debits up to a time, in this kernel's life."""
        while self.queue:
            child = self.queue[0]
            if child.created_at > at or self.born[child.child_id] > self.fence:
                break
            self.queue.pop(0)
            if self._again(child):
                self.late.append(child)
                continue
            self.waiting.append(child)
            yield script.Spawn(
                [self.names[child.child_id]], kind=child.kind, attempts=self._attempts(child)
            )
        while self.debits and self.debits[0].at < at:
            yield from self._debit(self.debits.pop(0))

    def _attempts(self, child: ChildRecord) -> int:
        root = self.names[child.child_id]
        own = [
            other.attempt
            for other in self.children.values()
            if self.names[other.child_id].partition(".")[0] == root
        ]
        return 1 + max(own) - min(own)

    def _debit(self, debit: DebitRow) -> Iterator[Op]:
        if debit.budget_lane != "duration_secs":
            yield script.Debit(
                self.names[debit.child_id], {debit.budget_lane: debit.amount}, bool(debit.settled)
            )

    def _of_child(self, event: str, detail: dict[str, Any], at: int) -> Iterator[Op]:
        child = self.children[detail["child_id"]]
        name = self.names[child.child_id]
        if event == "WORKER_START":
            yield from self._leased(child)
            if child.kind == "process":
                yield script.Start(name)
            return
        while self.debits and self.debits[0].at <= at and self.debits[0].child_id == child.child_id:
            yield from self._debit(self.debits.pop(0))
        reason = detail["reason"]
        if reason in _RECOVERED and not detail.get("stopped"):
            return
        if child.cancel_request_id is not None:
            yield script.Cancel(name, child.cancel_request_id)
            reason = detail.get("observed", reason)
        if child.dispatch_seq is None:
            self.waiting = [one for one in self.waiting if one is not child]
            return
        if child.started_at is None:
            yield from self._leased(child)
        micros = at - child.started_at if child.started_at is not None else 0
        kept: dict[str, Any] = {key: detail[key] for key in _KEPT if key in detail}
        again = any(
            one.predecessor == child.child_id and self._again(one) for one in self.children.values()
        )
        yield script.Finish(child=name, reason=reason, micros=micros, detail=kept, retryable=again)
        slot = next(number for number, holder in self.slots.items() if holder == name)
        del self.slots[slot]
        self._take(slot)

    def _leased(self, child: ChildRecord) -> Iterator[Op]:
        """Slots take whoever is first, until this one has its own."""
        if child in self.late:
            yield script.Wait(RETRY_MAX_MICROS)
            self.waiting = sorted(self.waiting + self.late, key=lambda child: child.queue_seq)
            self.late = []
        while self.names[child.child_id] not in self.slots.values():
            free_slots = (slot for slot in range(1, self.cap + 1) if slot not in self.slots)
            free = next(free_slots, None)
            if free is None or not self.waiting:
                raise InvalidConfig(
                    f"{self.session} cannot be told as a script: {child.child_id} had no slot"
                )
            yield script.Lease(free)
            self._take(free)

    def _take(self, slot: int) -> None:
        if self.waiting:
            self.slots[slot] = self.names[self.waiting.pop(0).child_id]
