"""`replay`: what follows from the records made again by the rules alone, and held against what is stored (R-1).

Nothing is scheduled, no clock is read, no process is looked at. Facts come from the records: who asked, when, what was
seen. The rest is made anew: phases, leases, codes, the order of dispatch, every event's bytes and hash, totals."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec

from onceward.errors import (
    IllegalTransition,
    IntegrityFault,
    OncewardError,
    Recovery,
    ReplayOrderInvalid,
    StorageError,
)
from onceward.evidence.bundle import BundleRecords, Reader
from onceward.evidence.differences import Difference, Differs, decoded, explain, place
from onceward.evidence.findings import Findings
from onceward.evidence.records import BuildRow, Child, Debit, Life, Records, SessionRow, Total, batches
from onceward.evidence.steps import TOLD, Steps
from onceward.evidence.walk import decode_body
from onceward.kernel.canon import ZERO_HASH
from onceward.kernel.chain import Event, body_of, link
from onceward.kernel.records import Move, Owner, Token
from onceward.lifecycles import child as rules
from onceward.lifecycles.build import BUILD
from onceward.lifecycles.child import CHILD, Order
from onceward.store.tables.checkpoints import Checkpoint
from onceward.store.tables.subjects import context_of

_NOBODY: Final = Owner("", "", 0, "", 0)
_MADE_FOR_CHILD: Final = frozenset(
    {
        *("child_id", "queue_seq", "dispatch_seq", "lease_id", "phase_at_event", "code", "from", "to", "reason"),
        *("transition_seq", "parent_stream_id", "parent_seq", "spent", "cancel_request_id"),
    }
)
"""What of a child's last event follows from the rest of the record."""
_MADE_FOR_BUILD: Final = frozenset({"from", "to", "reason", "transition_seq"})
_FIELDS: Final = tuple(name for name in Child.__struct_fields__ if name != "updated_at")
_evidence = attrgetter(*_FIELDS)
_encode = msgspec.json.Encoder(order="sorted").encode


class Replayed(msgspec.Struct, frozen=True):
    """What came of a replay."""

    sha256: str
    """Of all that was made again: the same for the same records, whatever holds them."""
    events: int
    children: int
    sessions: int
    difference: Difference | None = None


def replay(
    records: Records, sessions: Sequence[str] | None = None, progress: Callable[[int], None] | None = None
) -> Replayed:
    """Replay some sessions, or all there are."""
    whole = hashlib.sha256()
    events = children = count = 0
    rows = (row for row in records.all(SessionRow) if sessions is None or row.session_id in sessions)
    for row in rows:
        count += 1
        one = _Session(records, row, progress)
        found = _outcome(one)
        if found is not None:
            return Replayed(one.made.hexdigest(), events + one.events, children + one.ended, count, found)
        whole.update(one.made.digest())
        events, children = events + one.events, children + one.ended
    return Replayed(whole.hexdigest(), events, children, count)


def replay_bundle(path: Path, progress: Callable[[int], None] | None = None) -> Replayed:
    """Replay what a bundle holds, with nothing else; one that is not whole is refused."""
    reader = Reader(path)
    try:
        for why in reader.check_members():
            raise IntegrityFault(
                f"{path.name} is not the bundle that was exported: {why}",
                recovery=[Recovery("see everything that is wrong with it", f"onceward verify {path.name}")],
            )
        return replay(BundleRecords(reader), None, progress)
    finally:
        reader.close()


def _outcome(session: _Session) -> Difference | None:
    try:
        session.run()
    except Differs as found:
        return found.difference
    except StorageError:
        raise
    except (OncewardError, TypeError, ValueError, KeyError, AttributeError) as error:
        where = f"{session.stream}#{session.seq + 1}"
        return Difference(where, "form", f"something cannot be read: {error}"[:300], None)
    return None


class _Begun(msgspec.Struct):
    """A child that was started, as far as it was replayed."""

    token: Token
    life: Life
    seen: int = 0
    hash: bytes = ZERO_HASH


class _Session:
    """One session, event by event in the order of its stream."""

    def __init__(self, records: Records, row: SessionRow, progress: Callable[[int], None] | None) -> None:
        self.records, self.row, self.session = records, row, row.session_id
        self.stream = f"session:{row.session_id}"
        self.context = context_of(row.session_id)
        self.made = hashlib.sha256()
        self.events = self.ended = 0
        self._progress = progress
        self.seq, self._hash = 0, ZERO_HASH
        self._lives: dict[str, Life] = {}
        self._begun: dict[str, _Begun] = {}
        self._ends = 0
        self._cap = 0
        self._limits: dict[str, int] = {}
        self._widest: dict[str, int] = {}
        self._build = ("new", 0)
        self._steps = Steps(row.session_id)

    def run(self) -> None:
        for page in batches(self.records.stream(self.stream)):
            said, broken = _read(page)
            self._fetch(page, said)
            for event, facts in zip(page, said, strict=False):
                self._event(event, facts)
            if broken is not None:
                raise broken
            if self._progress is not None:
                self._progress(self.events)
        self._dispatched()
        self._totals()
        self._rows()

    def _fetch(self, page: list[Event], said: list[dict[str, Any]]) -> None:
        """The children that a page of events speaks of, together."""
        pairs = zip(page, said, strict=False)
        spoken = {str(facts["detail"].get("child_id")) for event, facts in pairs if event.source == "child"}
        self._lives = self.records.lives(sorted(spoken - self._begun.keys()))

    def _event(self, event: Event, said: dict[str, Any]) -> None:
        context, detail, name = said["context"], said["detail"], said["event"]
        again = {**self.context, "actor": context.get("actor"), "fence": context.get("fence")}
        if "signed" in context:
            again["signed"] = context["signed"]
        try:
            if event.source == "child":
                self._of_child(event, name, again, detail)
                return
            if event.source == "build":
                move = self._of_build(event, name, detail)
                name, detail = _event_of(move), move.said()
            else:
                self._noted(event, name, detail)
        except IllegalTransition as error:
            raise Differs(place(event), "detail.to", detail.get("to"), error.message) from None
        self._hash = self._take(event, self.seq + 1, self._hash, body_of(name, again, detail))
        self.seq += 1

    def _take(self, event: Event, seq: int, prev: bytes, body: bytes) -> bytes:
        """An event made again; it must be what is stored, byte for byte. Answers its hash."""
        hash_ = link(event.stream, seq, event.at, event.source, body, prev)
        if hash_ != event.hash or body != event.body or seq != event.seq or prev != event.prev_hash:
            explain(event, seq, prev, body, hash_)
        self.made.update(hash_)
        self.events += 1
        return hash_

    def _of_child(self, event: Event, name: str, context: dict[str, Any], detail: dict[str, Any]) -> None:
        child_id = str(detail.get("child_id"))
        begun = self._begun.get(child_id)
        if begun is None:
            life = self._lives.get(child_id)
            if life is None or life.child.parent_session_id != self.session:
                raise Differs(place(event), "detail.child_id", child_id, None)
            begun = self._begun[child_id] = _Begun(_leased(life.child), life)
        actor = context["actor"]
        if name == "WORKER_START":
            move = rules.start(begun.token, event.at, actor)
        else:
            facts = {key: value for key, value in detail.items() if key not in _MADE_FOR_CHILD}
            spent = begun.life.spent()
            facts |= {"spent": spent} if spent else {}
            move = rules.end_again(begun.token, str(detail.get("reason")), facts, actor)
        said = {**move.said(), "parent_stream_id": self.stream, "parent_seq": self.seq + 1}
        body = body_of(_event_of(move), context, said)
        self._hash = self._take(event, self.seq + 1, self._hash, body)
        self.seq += 1
        self._in_own_stream(event, begun, body)
        begun.token = msgspec.structs.replace(rules.moved(begun.token, move), updated_at=event.at)
        if move.target == "terminal":
            self._over(begun)

    def _in_own_stream(self, event: Event, begun: _Begun, body: bytes) -> None:
        """The child's own stream says the same, at its own place."""
        if begun.seen >= len(begun.life.events):
            raise Differs(f"child:{begun.token.child_id}#{begun.seen + 1}", "event", None, body.decode())
        copy = begun.life.events[begun.seen]
        begun.seen += 1
        if copy.at != event.at:
            raise Differs(place(copy), "ts", copy.at, event.at)
        begun.hash = self._take(copy, begun.seen, begun.hash, body)

    def _over(self, begun: _Begun) -> None:
        self.ended += 1
        del self._begun[begun.token.child_id]
        if begun.seen != len(begun.life.events):
            extra = begun.life.events[begun.seen]
            raise Differs(place(extra), "event", decoded(extra)["event"], None)
        _same_child(begun.life.child, begun.token)

    def _of_build(self, event: Event, name: str, detail: dict[str, Any]) -> Move:
        state, version = self._build
        facts = {key: value for key, value in detail.items() if key not in _MADE_FOR_BUILD}
        move = Move(
            *(BUILD, self.session, state, str(detail.get("to")), version, ""), reason=detail.get("reason"), detail=facts
        )
        if name == "BUILD_SUCCEEDED":
            self._steps.made = detail.get("outputs")
        self._build = (move.target, version + 1)
        return move

    def _noted(self, event: Event, name: str, detail: dict[str, Any]) -> None:
        """Facts that are no change of state: what a session may do and spend, what became of steps."""
        if name in ("SESSION_OPENED", "SESSION_CHANGED"):
            self._cap = detail.get("max_active_children", 0)
            self._limits = detail.get("limits", {})
            for lane, limit in self._limits.items():
                self._widest[lane] = max(limit, self._widest.get(lane, 0))
        elif name in TOLD:
            self._steps.note(decode_body(event.body))

    def _dispatched(self) -> None:
        """The order of dispatch as the tokens have it, and those children that no event speaks of yet."""
        last = queued = dispatched = ended = 0
        for row in self.records.dispatched(self.session):
            where = f"child {row.child_id}"
            if row.dispatch_seq is not None:
                if row.dispatch_seq <= last:
                    raise Differs(where, "dispatch_seq", row.dispatch_seq, last + 1, ReplayOrderInvalid.code)
                last = dispatched = row.dispatch_seq
            queued = max(queued, row.queue_seq)
            begun = self._begun.get(row.child_id)
            ended += row.phase == "terminal"
            if begun is not None:
                _same_child(row, begun.token)
            elif row.phase != "terminal":
                # It has no event: all that happened to it is a place in the queue, or a lease.
                token = _leased(row) if row.phase != "queued" else _queued(row)
                _same_child(row, msgspec.structs.replace(token, updated_at=row.updated_at))
            self.made.update(_encode(row))
        if ended != self.ended:
            self._unended(ended)
        for field, value in (("queue_high", queued), ("dispatch_high", dispatched)):
            if getattr(self.row, field) != value:
                raise Differs(f"session {self.session}", field, getattr(self.row, field), value)

    def _unended(self, ended: int) -> NoReturn:
        """Some child is terminal without an event that says so: look for it."""
        said = set()
        for event in self.records.stream(self.stream):
            if event.source == "child" and b'"to":"terminal"' in event.body:
                said.add(decoded(event)["detail"].get("child_id"))
        for row in self.records.dispatched(self.session):
            if row.phase == "terminal" and row.child_id not in said:
                raise Differs(f"child {row.child_id}", "phase", "terminal", "started" if row.started_at else "leased")
        raise Differs(f"session {self.session}", "children that ended", ended, self.ended)

    def _totals(self) -> None:
        """Running totals, debit by debit: none that was asked for may pass its limit."""
        sums: dict[str, int] = {}
        for lane, debits in groupby(self.records.of(Debit, parent_session_id=self.session), lambda d: d.budget_lane):
            total = 0
            for number, debit in enumerate(debits, 1):
                where = f"debit {self.session} {lane} {debit.debit_seq}"
                total += debit.amount
                if debit.debit_seq != number:
                    raise Differs(where, "debit_seq", debit.debit_seq, number)
                if not debit.settled and lane in self._widest and total > self._widest[lane]:
                    raise Differs(where, "total", total, f"at most {self._widest[lane]}")
                self.made.update(_encode(debit))
            sums[lane] = total
        for row in self.records.of(Total, parent_session_id=self.session):
            where = f"total {self.session} {row.budget_lane}"
            for field, value in (("total", sums.pop(row.budget_lane, 0)), ("limit_amount", self._limit(row))):
                if getattr(row, field) != value:
                    raise Differs(where, field, getattr(row, field), value)
            self.made.update(_encode(row))
        for lane, total in sums.items():
            raise Differs(f"total {self.session} {lane}", "total", None, total)

    def _limit(self, row: Total) -> int | None:
        return self._limits.get(row.budget_lane)

    def _rows(self) -> None:
        """The session, its build and the build's checkpoints."""
        if self.row.max_active_children != self._cap:
            raise Differs(f"session {self.session}", "max_active_children", self.row.max_active_children, self._cap)
        self.made.update(_encode(self.row))
        builds = list(self.records.of(BuildRow, build_id=self.session))
        for build in builds:
            for field, value in zip(("state", "version"), self._build, strict=True):
                if getattr(build, field) != value:
                    raise Differs(f"build {self.session}", field, getattr(build, field), value)
            self.made.update(_encode(build))
        if not builds and self._build[1]:
            raise Differs(f"build {self.session}", "state", None, self._build[0])
        findings = Findings()
        self._steps.check_checkpoints(self._checkpoints(), self.records, findings)
        for fault in findings.faults:
            raise Differs(fault.subject, fault.rule, fault.detail, None)

    def _checkpoints(self) -> Iterator[Checkpoint]:
        for row in self.records.of(Checkpoint, build_id=self.session):
            self.made.update(_encode(row))
            yield row


def _read(page: list[Event]) -> tuple[list[dict[str, Any]], Differs | None]:
    """What events say, up to the first that says nothing."""
    said = []
    for event in page:
        try:
            said.append(decoded(event))
        except Differs as broken:
            return said, broken
    return said, None


def _queued(row: Child) -> Token:
    order = Order(
        *(row.child_id, row.parent_session_id, row.kind, row.work, row.target, row.attempt, row.predecessor),
    )
    token = rules.born(rules.spawn(order, row.parent_seq, row.queue_seq, _NOBODY, ""), row.created_at)
    return msgspec.structs.replace(token, cancel_request_id=row.cancel_request_id)


def _leased(row: Child) -> Token:
    """A child as it stood before its first event: in the queue, and with its lease if it had one."""
    token = _queued(row)
    if row.dispatch_seq is None:
        return token
    return rules.moved(token, rules.lease(token, row.dispatch_seq, 0, ""))


def _same_child(row: Child, token: Token) -> None:
    if _evidence(row) != _evidence(token):
        for name in _FIELDS:
            stored, replayed = getattr(row, name), getattr(token, name)
            if stored != replayed:
                raise Differs(f"child {row.child_id}", name, stored, replayed)
    # The time of a lease stands nowhere else, and a clock may be set back after it.
    if row.updated_at < token.updated_at:
        raise Differs(f"child {row.child_id}", "updated_at", row.updated_at, token.updated_at)


def _event_of(move: Move) -> str:
    return (BUILD if move.machine is BUILD else CHILD).follow(move.source, move.target, move.reason).event or ""
