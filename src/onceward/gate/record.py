"""`gate record`: a locked fixture from a script, or from a session that really ran."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from onceward.errors import IntegrityFault, InvalidConfig
from onceward.evidence.differences import decoded
from onceward.evidence.records import Child, Debit, Records, SessionRow
from onceward.gate import script
from onceward.gate.manifest import METRICS, Entry, read_manifest
from onceward.gate.manifest import written as manifest_text
from onceward.gate.play import Play, Scratches, play
from onceward.gate.script import SCHEMA, Fixture, Op, read_fixture, written

_KEPT: Final = ("exit", "error", "message", "stopped")
"""What of a real end goes into a script."""


def lock(fixture: Fixture, scratches: Scratches) -> tuple[Fixture, Play]:
    """A fixture with the transcript it comes to, twice the same; refused where its records do not agree."""
    found = []
    for _ in range(2):
        with scratches() as scratch:
            found.append(play(fixture, scratch))
    if found[0].wrong or found[0].lines != found[1].lines:
        raise IntegrityFault(f"{fixture.name} cannot be locked: {found[0].wrong or 'two plays of it differ'}")
    return msgspec.structs.replace(fixture, expected=found[0].lines), found[0]


def write(path: Path, metric: str, fixture: Fixture, played: Play) -> bool:
    """Put a fixture beside its manifest and lock it there; whether the manifest has changed."""
    if metric not in METRICS:
        names = ", ".join(METRICS)
        raise InvalidConfig(f"there is no metric {metric[:60]!a}; there are {names}", context={"field": "metric"})
    metrics = {name: list(entries) for name, entries in listed(path).items()}
    file = f"{fixture.name}.json"
    data = written(fixture)
    for entries in metrics.values():
        entries[:] = [entry for entry in entries if entry.fixture != file]
    metrics.setdefault(metric, []).append(Entry(file, hashlib.sha256(data).hexdigest(), played.sha256))
    text = manifest_text(metrics)
    before = path.read_bytes() if path.exists() else b""
    path.parent.mkdir(parents=True, exist_ok=True)
    for place, said in ((path.parent / file, data), (path, text)):
        fresh = place.with_name(f".{place.name}.new")
        fresh.write_bytes(said)
        fresh.replace(place)
    return text != before


def listed(path: Path) -> dict[str, list[Entry]]:
    """What a manifest lists; nothing where there is none yet, or only the beginning of one."""
    if not path.exists():
        return {}
    try:
        return read_manifest(path.read_bytes(), str(path)).metrics
    except InvalidConfig:
        known = msgspec.json.decode(path.read_bytes()).get("metrics", {})
        return msgspec.convert(known, dict[str, list[Entry]])


def locked(path: Path) -> Iterator[tuple[str, Fixture]]:
    """The fixtures of a manifest with their metrics."""
    for metric, entries in listed(path).items():
        for entry in entries:
            yield metric, read_fixture((path.parent / entry.fixture).read_bytes(), entry.fixture)


def told(records: Records, session: str, name: str, about: str) -> Fixture:
    """A session that ran, as a script: the same children, spending, cancels, crashes and ends in the same order."""
    return Fixture(SCHEMA, name, about, list(_Telling(records, session).ops()), seed=session)


class _Telling:
    """What happened in a session, in order, told in the lines of a script."""

    def __init__(self, records: Records, session: str) -> None:
        self.records, self.session = records, session
        self.children = {child.child_id: child for child in records.dispatched(session)}
        by_queue = sorted(self.children.values(), key=lambda child: child.queue_seq)
        self.names = {child.child_id: f"c{number}" for number, child in enumerate(by_queue, 1)}
        self.queue = by_queue
        self.debits = sorted(
            records.of(Debit, parent_session_id=session), key=lambda debit: (debit.at, debit.debit_seq)
        )
        self.slots: dict[int, str] = {}
        self.waiting: list[Child] = []
        self.fence = 0

    def ops(self) -> Iterator[Op]:
        (row,) = self.records.of(SessionRow, session_id=self.session)
        cap = max(row.max_active_children, 1)
        limits: dict[str, int] = {}
        for event in self.records.stream(f"session:{self.session}"):
            said = decoded(event)
            detail, fence = said["detail"], said["context"].get("fence", 0)
            if said["event"] in ("SESSION_OPENED", "SESSION_CHANGED"):
                limits, cap = detail["limits"], detail["max_active_children"]
                if not self.fence:
                    yield script.Open(cap=cap, limits=limits)
                self.fence = self.fence or fence
            yield from self._until(event.at)
            if fence != self.fence and event.source == "child":
                yield from (script.Crash(), script.Recover(), script.Open(cap=cap, limits=limits))
                self.fence, self.slots = fence, {}
            if event.source == "child":
                yield from self._of_child(said["event"], detail, event.at, cap)
        yield from self._until(1 << 62)

    def _until(self, at: int) -> Iterator[Op]:
        """Whoever was queued, and what was debited, by then."""
        while self.queue and self.queue[0].created_at <= at:
            child = self.queue.pop(0)
            self.waiting.append(child)
            yield script.Spawn([self.names[child.child_id]], kind=child.kind)
        while self.debits and self.debits[0].at < at:
            yield from self._debit(self.debits.pop(0))

    def _debit(self, debit: Debit) -> Iterator[Op]:
        if debit.budget_lane != "duration_secs":
            yield script.Debit(self.names[debit.child_id], {debit.budget_lane: debit.amount}, bool(debit.settled))

    def _of_child(self, event: str, detail: dict[str, Any], at: int, cap: int) -> Iterator[Op]:
        child = self.children[detail["child_id"]]
        name = self.names[child.child_id]
        if event == "WORKER_START":
            yield from self._leased(child, cap)
            if child.kind == "process":
                yield script.Start(name)
            return
        while self.debits and self.debits[0].at <= at and self.debits[0].child_id == child.child_id:
            yield from self._debit(self.debits.pop(0))
        if child.cancel_request_id is not None:
            yield script.Cancel(name, child.cancel_request_id)
        reason = detail.get("observed", detail["reason"])
        recovered = reason in ("terminated_on_restart", "lease_orphaned") and not detail.get("stopped")
        if child.dispatch_seq is None or recovered:
            self.waiting = [one for one in self.waiting if one is not child]
            return
        if child.started_at is None:
            yield from self._leased(child, cap)
        micros = at - child.started_at if child.started_at is not None else 0
        kept: dict[str, Any] = {key: detail[key] for key in _KEPT if key in detail}
        yield script.Finish(name, reason, micros, kept)
        (slot,) = (number for number, holder in self.slots.items() if holder == name)
        del self.slots[slot]
        self._take(slot)

    def _leased(self, child: Child, cap: int) -> Iterator[Op]:
        """Slots take whoever is first, until this one has its own."""
        while self.names[child.child_id] not in self.slots.values():
            free = next((number for number in range(1, cap + 1) if number not in self.slots), None)
            if free is None or not self.waiting:
                raise InvalidConfig(f"{self.session} cannot be told as a script: {child.child_id} had no slot")
            yield script.Lease(free)
            self._take(free)

    def _take(self, slot: int) -> None:
        if self.waiting:
            self.slots[slot] = self.names[self.waiting.pop(0).child_id]
