"""One session made again, event by event in the order of its stream, and then its rows (R-1)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NoReturn

import msgspec

from onceward.builds.machine import BUILD
from onceward.core.bodies import decode_body
from onceward.core.canon import ZERO_HASH
from onceward.core.chain import Event, body_of, link
from onceward.core.fold import CARRIED, EventFacts, carry
from onceward.core.lanes import LANES
from onceward.core.records import Build, ChildRecord, Move, Owner, Token
from onceward.dispatch import machine as rules
from onceward.dispatch.budget import MODE, debits_digest
from onceward.dispatch.machine import CHILD, Order
from onceward.errors import IllegalTransition, ReplayOrderInvalid
from onceward.evidence.differences import Differs, decoded, explain, place
from onceward.evidence.findings import Findings
from onceward.evidence.lives import Life, cancel_mismatch
from onceward.evidence.records import Records, batches
from onceward.evidence.steps import TOLD, StepHistory
from onceward.store.schema import LIFECYCLES, context_of
from onceward.store.tables.budgets import DebitRow, LaneTotal
from onceward.store.tables.checkpoints import Checkpoint
from onceward.store.tables.children import SessionRow

_NOBODY: Final = Owner(host="", boot="", pid=0, start="", fence=0)
_MADE_FOR_CHILD: Final = frozenset(
    {
        "child_id",
        "queue_seq",
        "dispatch_seq",
        "lease_id",
        "phase_at_event",
        "code",
        "from",
        "to",
        "reason",
        "transition_seq",
        "parent_stream_id",
        "parent_seq",
        "spent",
        "debits",
        "cancel_request_id",
        CARRIED,
    }
)
"""The fields of a child's last event that follow from the rest of the record."""
_MADE_FOR_BUILD: Final = frozenset({"from", "to", "reason", "transition_seq"})
_FIELDS: Final = tuple(name for name in ChildRecord.__struct_fields__ if name != "updated_at")
_evidence = attrgetter(*_FIELDS)
_encode = msgspec.json.Encoder(order="sorted").encode


class _Begun(msgspec.Struct):
    """A child that was started, as far as it was replayed."""

    token: Token
    life: Life
    seen: int = 0
    hash: bytes = ZERO_HASH
    fence: int = 0


class SessionReplay:
    """One session, event by event in the order of its stream."""

    def __init__(
        self,
        records: Records,
        session: str,
        row: SessionRow | None,
        progress: Callable[[int], None] | None,
    ) -> None:
        self.records, self.row, self.session = records, row, session
        self.stream = f"session:{session}"
        self.context = context_of(session)
        self.made = hashlib.sha256()
        self.events = self.ended = 0
        self._progress = progress
        self.seq, self._hash = 0, ZERO_HASH
        self._part = ""
        self._lives: dict[str, Life] = {}
        self._begun: dict[str, _Begun] = {}
        self._cap = 0
        self._limits: dict[str, int] = {}
        self._widest: dict[str, int | None] = {}
        """The most that lanes ever were allowed; None where there was no limit at some time."""
        self._held: set[str] = set()
        """Children that waited for a target that somebody else held."""
        self._asked: dict[str, list[str]] = {}
        """By child, the requests to end it."""
        self._build = ("new", 0)
        self._steps = StepHistory(session)

    @property
    def looking_at(self) -> str:
        """The stream and event that are replayed now, for an error message."""
        return f"{self._part} of {self.session}" if self._part else f"{self.stream}#{self.seq + 1}"

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
        self._part = "the children"
        self._dispatched()
        self._part = "the debits"
        self._totals()
        self._part = "the rows"
        self._rows()

    def _fetch(self, page: list[Event], said: list[dict[str, Any]]) -> None:
        """The children that a page of events speaks of, together."""
        pairs = zip(page, said, strict=False)
        spoken = {
            str(facts["detail"].get("child_id"))
            for event, facts in pairs
            if event.source == "child"
        }
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
        hash_ = link(
            stream=event.stream,
            seq=seq,
            at=event.at,
            source=event.source,
            body=body,
            prev_hash=prev,
        )
        if hash_ != event.hash or body != event.body or seq != event.seq or prev != event.prev_hash:
            explain(event, seq=seq, prev=prev, body=body, hash_=hash_)
        self.made.update(hash_)
        self.events += 1
        return hash_

    def _of_child(
        self, event: Event, name: str, context: dict[str, Any], detail: dict[str, Any]
    ) -> None:
        child_id = str(detail.get("child_id"))
        begun = self._begun.get(child_id)
        if begun is None:
            life = self._lives.get(child_id)
            if life is None or life.child.parent_session_id != self.session:
                raise Differs(place(event), "detail.child_id", child_id, None)
            if life.child.parent_seq > self.seq:
                raise Differs(
                    f"child {child_id}", "parent_seq", life.child.parent_seq, f"at most {self.seq}"
                )
            begun = self._begun[child_id] = _Begun(_leased(life.child), life)
        actor = context["actor"]
        if name == "WORKER_START":
            move = rules.start(begun.token, event.at, actor)
            begun.fence = context["fence"]
            if len(self._begun) > self._cap:
                raise Differs(
                    place(event), "children that run", len(self._begun), f"at most {self._cap}"
                )
        else:
            self._check_end(event, begun, str(detail.get("reason")), context["fence"])
            facts = {key: value for key, value in detail.items() if key not in _MADE_FOR_CHILD}
            spent = begun.life.spent()
            debits = debits_digest(begun.life.debits)
            facts |= {"spent": spent} if spent else {}
            facts |= {"debits": debits} if debits else {}
            move = rules.end_again(begun.token, str(detail.get("reason")), facts, actor)
        said = {**move.said(), "parent_stream_id": self.stream, "parent_seq": self.seq + 1}
        said |= carry(
            CHILD.stated,
            EventFacts(name, event.at, context, said),
            move.columns,
            move.known,
            first=move.opens,
            skipped=LIFECYCLES["child"].skips,
        )
        body = body_of(_event_of(move), context, said)
        self._hash = self._take(event, self.seq + 1, self._hash, body)
        self.seq += 1
        self._in_own_stream(event, begun, body)
        begun.token = msgspec.structs.replace(rules.moved(begun.token, move), updated_at=event.at)
        if move.target == "terminal":
            self._over(begun)

    def _check_end(self, event: Event, begun: _Begun, reason: str, fence: int) -> None:
        """Exactly the children that were asked to end are cancelled; the next kernel ends what a
        dead one left, as such."""
        recovered = reason in ("terminated_on_restart", "lease_orphaned")
        asked = begun.token.cancel_request_id is not None
        if (reason != "cancelled" and asked and not recovered) or (
            reason == "cancelled" and not asked
        ):
            raise Differs(
                place(event),
                "detail.reason",
                reason,
                "cancelled" if asked else "no request to end it",
            )
        if begun.fence and fence != begun.fence and not recovered:
            raise Differs(place(event), "detail.reason", reason, "terminated_on_restart")

    def _in_own_stream(self, event: Event, begun: _Begun, body: bytes) -> None:
        """The child's own stream says the same, at its own place."""
        if begun.seen >= len(begun.life.events):
            raise Differs(
                f"child:{begun.token.child_id}#{begun.seen + 1}", "event", None, body.decode()
            )
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
            machine=BUILD,
            subject=self.session,
            source=state,
            target=str(detail.get("to")),
            version=version,
            actor="",
            reason=detail.get("reason"),
            detail=facts,
        )
        if name == "BUILD_SUCCEEDED":
            self._steps.made = detail.get("outputs")
        self._build = (move.target, version + 1)
        return move

    def _noted(self, event: Event, name: str, detail: dict[str, Any]) -> None:
        """Facts that are no change of state: what a session may do and spend, what became of
        steps."""
        if name in ("SESSION_OPENED", "SESSION_CHANGED"):
            self._cap = detail.get("max_active_children", 0)
            self._limits = detail.get("limits", {})
            for lane in LANES:
                most, limit = self._widest.get(lane, 0), self._limits.get(lane)
                self._widest[lane] = None if most is None or limit is None else max(most, limit)
        elif name == "TARGET_HELD":
            self._held.add(str(detail.get("child_id")))
        elif name == "CANCEL_ASKED":
            asked = self._asked.setdefault(str(detail.get("child_id")), [])
            asked.append(str(detail.get("cancel_request_id")))
        elif name in TOLD:
            self._steps.note(event, decode_body(event.body))

    def _dispatched(self) -> None:
        """The order of dispatch as the tokens have it, and those children that no event speaks
        of yet."""
        last = first = queued = dispatched = ended = 0
        for row in self.records.dispatched(self.session):
            where = f"child {row.child_id}"
            if row.dispatch_seq is not None:
                if row.dispatch_seq <= last:
                    raise Differs(
                        where,
                        field="dispatch_seq",
                        stored=row.dispatch_seq,
                        replayed=last + 1,
                        code=ReplayOrderInvalid.code,
                    )
                last = dispatched = row.dispatch_seq
                why = cancel_mismatch(row, self._asked.get(row.child_id, ()))
                if why:
                    raise Differs(where, "cancel_request_id", row.cancel_request_id, why)
                waits = row.attempt > 1 or row.child_id in self._held
                if not waits and row.queue_seq < first:
                    # A later attempt waits for its time, and some for their target (C-5); everybody
                    # else goes by their place in the queue.
                    raise Differs(
                        where,
                        field="queue_seq",
                        stored=row.queue_seq,
                        replayed=f"above {first}",
                        code=ReplayOrderInvalid.code,
                    )
                first = first if waits else row.queue_seq
            if (row.attempt > 1) != (row.predecessor is not None):
                raise Differs(
                    where, "predecessor", row.predecessor, f"that of attempt {row.attempt}"
                )
            queued = max(queued, row.queue_seq)
            ended += row.phase == "terminal"
            if row.phase != "terminal":
                self._still_open(row)
            self.made.update(_encode(row))
        if ended != self.ended:
            self._unended(ended)
        for field, value in (("queue_high", queued), ("dispatch_high", dispatched)):
            if self.row is not None and getattr(self.row, field) != value:
                raise Differs(f"session {self.session}", field, getattr(self.row, field), value)

    def _still_open(self, row: ChildRecord) -> None:
        """A child that has not ended: started, or, without any event, only leased or queued."""
        begun = self._begun.get(row.child_id)
        life = begun.life if begun is not None else self.records.lives([row.child_id])[row.child_id]
        seen = begun.seen if begun is not None else 0
        if len(life.events) > seen:
            raise Differs(
                place(life.events[seen]), "event", decoded(life.events[seen])["event"], None
            )
        if begun is not None:
            _same_child(row, begun.token)
            return
        token = _leased(row) if row.phase != "queued" else _queued(row)
        _same_child(row, msgspec.structs.replace(token, updated_at=row.updated_at))

    def _unended(self, ended: int) -> NoReturn:
        """Some child is terminal without an event that says so: look for it."""
        said = set()
        for event in self.records.stream(self.stream):
            if event.source == "child" and b'"to":"terminal"' in event.body:
                said.add(decoded(event)["detail"].get("child_id"))
        for row in self.records.dispatched(self.session):
            if row.phase == "terminal" and row.child_id not in said:
                raise Differs(
                    f"child {row.child_id}",
                    "phase",
                    "terminal",
                    "started" if row.started_at else "leased",
                )
        raise Differs(f"session {self.session}", "children that ended", ended, self.ended)

    def _totals(self) -> None:
        """Running totals, debit by debit: none that was asked for may pass its limit."""
        sums: dict[str, int] = {}
        for lane, debits in groupby(
            self.records.of(DebitRow, parent_session_id=self.session), lambda d: d.budget_lane
        ):
            total = 0
            for number, debit in enumerate(debits, 1):
                where = f"debit {self.session} {lane} {debit.debit_seq}"
                total += debit.amount
                if debit.debit_seq != number:
                    raise Differs(where, "debit_seq", debit.debit_seq, number)
                most = self._widest.get(lane)
                if not debit.settled and most is not None and total > most:
                    raise Differs(where, "total", total, f"at most {most}")
                self.made.update(_encode(debit))
            sums[lane] = total
        for row in self.records.of(LaneTotal, parent_session_id=self.session):
            where = f"total {self.session} {row.budget_lane}"
            made = {
                "total": sums.pop(row.budget_lane, 0),
                "limit_amount": self._limits.get(row.budget_lane),
            }
            for field, value in {**made, "accounting_mode": MODE}.items():
                if getattr(row, field) != value:
                    raise Differs(where, field, getattr(row, field), value)
            if not 0 <= row.carried < 1_000_000:
                raise Differs(where, "carried", row.carried, "less than a second")
            self.made.update(_encode(row))
        for lane, total in sums.items():
            raise Differs(f"total {self.session} {lane}", "total", None, total)

    def _rows(self) -> None:
        """The session, its build and the build's checkpoints."""
        where = f"session {self.session}"
        if self.row is None and self._cap:
            raise Differs(where, "session", None, "a session of that id")
        if self.row is not None and self.row.max_active_children != self._cap:
            raise Differs(where, "max_active_children", self.row.max_active_children, self._cap)
        self.made.update(_encode(self.row))
        builds = list(self.records.of(Build, build_id=self.session))
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
    """The decoded events, up to the first that cannot be decoded."""
    said = []
    for event in page:
        try:
            said.append(decoded(event))
        except Differs as broken:
            return said, broken
    return said, None


def _queued(row: ChildRecord) -> Token:
    order = Order(
        child_id=row.child_id,
        session_id=row.parent_session_id,
        kind=row.kind,
        work=row.work,
        target=row.target,
        attempt=row.attempt,
        predecessor=row.predecessor,
        due_at=row.due_at,
    )
    spawned = rules.spawn(
        order, head=row.parent_seq, queue_seq=row.queue_seq, owner=_NOBODY, actor=""
    )
    token = rules.born(spawned, row.created_at)
    return msgspec.structs.replace(
        token,
        cancel_request_id=row.cancel_request_id,
        joined_request_ids=row.joined_request_ids,
    )


def _leased(row: ChildRecord) -> Token:
    """A child as it stood before its first event: in the queue, and with its lease if it had
    one."""
    token = _queued(row)
    if row.dispatch_seq is None:
        return token
    return rules.moved(token, rules.lease(token, row.dispatch_seq, 0, ""))


def _same_child(row: ChildRecord, token: Token) -> None:
    if _evidence(row) != _evidence(token):
        for name in _FIELDS:
            stored, replayed = getattr(row, name), getattr(token, name)
            if stored != replayed:
                raise Differs(f"child {row.child_id}", name, stored, replayed)
    # The time of a lease stands nowhere else, and a clock may be set back after it.
    if row.updated_at < token.updated_at:
        raise Differs(f"child {row.child_id}", "updated_at", row.updated_at, token.updated_at)


def _event_of(move: Move) -> str:
    return (BUILD if move.machine is BUILD else CHILD).follow(
        move.source, move.target, move.reason
    ).event or ""
