"""One pass over every event: chains, histories, and what the rest of the records must agree
with, in flat memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import msgspec

from onceward.builds.machine import BUILD
from onceward.core.acts import signed_events
from onceward.core.bodies import Detail, EventBody, decode_body
from onceward.core.canon import ZERO_HASH
from onceward.core.chain import STREAM, Event, link
from onceward.core.lanes import LANES
from onceward.core.limits import PERMIT_SECONDS
from onceward.core.machine import Machine
from onceward.core.records import ChildRecord
from onceward.dispatch.budget import SETTLED, debits_digest
from onceward.dispatch.machine import CHILD
from onceward.evidence.ahead import Ahead, mark, weight
from onceward.evidence.changes import PREFIXES, ChangeStreams
from onceward.evidence.entries import Entries
from onceward.evidence.findings import Findings
from onceward.evidence.lives import cancel_mismatch
from onceward.evidence.records import Records
from onceward.evidence.rows import FoldedRows
from onceward.evidence.sagas import Sagas
from onceward.evidence.signatures import SignatureCheck
from onceward.evidence.steps import TOLD, StepHistory
from onceward.store.schema import LIFECYCLES
from onceward.store.tables.approvals import Approval
from onceward.store.tables.checkpoints import Checkpoint
from onceward.store.tables.children import SessionRow
from onceward.store.tables.permits import PermitRow

T = TypeVar("T")
_BATCH = 300


def _silent(lifecycle: str) -> tuple[str, ...]:
    """The states of a lifecycle that no event tells of."""
    found = LIFECYCLES[lifecycle].lifecycle
    return found.silent if found is not None else ()


class Anchor(msgspec.Struct):
    """A place in the order of all events at which the head of every stream is wanted."""

    position: int
    take: Callable[[str, int, bytes], None]


class Walk:
    """The state of the pass, kept from event to event and from stream to stream."""

    def __init__(
        self,
        records: Records,
        findings: Findings,
        *,
        anchors: Sequence[Anchor] = (),
        line: Callable[[Event], None] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.records, self.findings = records, findings
        self._anchors, self._line, self._progress = anchors, line, progress
        self._children = FoldedRows(
            records,
            findings,
            "child",
            counted="children",
            rule="phase",
            eventless=self._without_stream,
            told_elsewhere=("cancel_request_id", "joined_request_ids"),
        )
        self._builds = FoldedRows(records, findings, "build", counted="builds")
        self.authority = SignatureCheck(records, findings)
        self.spent: dict[str, int] = {}
        """By session a sum that says which child spent how much, without remembering each."""
        self.late: dict[str, int] = {}
        """The same of what was debited for children after their end."""
        self.after_end: dict[str, dict[str, int]] = {}
        """By build and lane what was debited after its own end, and so is not in what was signed
        then."""
        self.open: set[str] = set()
        """Children that have not ended."""
        self._copies: dict[str, int] = {}
        self._debits: list[tuple[str, str, int]] = []
        """Children that spent something, and what their last event says of their debits, and
        when."""
        self.minted: dict[str, PermitRow] = {}
        self._tokens_of: dict[str, list[str]] = {}
        """The confirmation tokens of each build, the newest last."""
        self.sinks: list[tuple[int, dict[str, list[str] | None]]] = []
        """From which position on which sinks get which events."""
        self.answered = 0
        """A sum that says which requests were answered how, without remembering each."""
        self.widest: dict[str, dict[str, int | None]] = {}
        """The most that sessions were ever allowed to ask for, by lane; None without a limit."""
        self.limits: dict[str, dict[str, int]] = {}
        """By session, the limits that its last event about them states."""
        self._approvals = Ahead(records.all(Approval), lambda approval: approval.build_id)
        self._checkpoints = Ahead(records.all(Checkpoint), lambda checkpoint: checkpoint.build_id)
        self._sessions = Ahead(records.all(SessionRow), lambda session: session.session_id)
        self._backlog = ChangeStreams(records, findings, self.authority.expect)
        consumed: dict[str, int] = {}
        self._sagas = Sagas(records, findings, consumed)
        self._entries = Entries(records, findings, self._sagas.audited, consumed)
        self._logs: list[tuple[str, str, str, str]] = []
        self._signed_events = signed_events()
        self._lasting: list[tuple[int, int]] = []
        """From which position on confirmation tokens are valid for how many seconds."""
        self._confirmations: list[tuple[int, str, int]] = []
        """Tokens that somebody asked for: where, which, and for how many microseconds it is
        good."""
        self._seen, self._newest = 0, 0

    def run(self) -> None:
        name: str | None = None
        stream: Stream | None = None
        for event in self.records.events():
            if event.stream != name:
                self._end(stream)
                name = event.stream
                stream = self._begin(name)
            assert stream is not None
            try:
                self._one(stream, event)
            except (TypeError, ValueError, KeyError, AttributeError) as error:
                why = f"what it says cannot be read: {type(error).__name__}"
                self.findings.fault("form", f"{event.stream}#{event.seq}", why)
        self._end(stream)
        self._children.finish()
        for session in self._sessions.rest():
            self.findings.fault("state", session.session_id, "no event opened the session")
        for approval in self._approvals.rest():
            self.findings.fault("approval", approval.build_id, "no build's stream tells of it")
        for checkpoint in self._checkpoints.rest():
            self.findings.fault("checkpoint", checkpoint.build_id, "no build's stream tells of it")
        self._entries.finish()
        self._sagas.finish()
        self._backlog.finish()
        self._builds.finish()
        if self.records.whole and self._seen != self._newest:
            self.findings.fault(
                "gap",
                "events",
                f"there are {self._seen:,} events, but the newest is number {self._newest:,}",
            )
        self._compare_copies()
        self._check_logs()
        self._check_debits()
        self._check_confirmations()
        self.findings.count("events", self._seen)

    def _check_confirmations(self) -> None:
        """No token is good for longer than the settings said that were signed before."""
        if not self.records.whole:
            return
        for position, permit_id, lasting in self._confirmations:
            earlier = [seconds for since, seconds in self._lasting if since < position]
            allowed = earlier[-1] if earlier else PERMIT_SECONDS
            if lasting > allowed * 1_000_000:
                self.findings.fault(
                    "permit", permit_id, "it lasts longer than the settings allowed"
                )

    def _begin(self, name: str) -> Stream:
        self.findings.count("streams")
        if not STREAM.fullmatch(name):
            self.findings.fault("stream", name or "(unnamed)", "this is no stream's name")
        return Stream(name)

    def _one(self, stream: Stream, event: Event) -> None:
        self._seen += 1
        if self._progress is not None and not self._seen & 4095:
            self._progress(self._seen)
        if event.position > self._newest:
            self._newest = event.position
        stream.follow(event, self.findings, self.records.whole)
        for number, anchor in enumerate(self._anchors):
            if event.position <= anchor.position:
                stream.heads[number] = (event.seq, event.hash)
        if self._line is not None:
            self._line(event)
        try:
            body = decode_body(event.body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self.findings.fault("chain", f"{event.stream}#{event.seq}", "its body is no event")
            return
        if body.context.fence < stream.fence:
            self.findings.fault(
                "fence", f"{event.stream}#{event.seq}", "an older kernel wrote after a newer one"
            )
        stream.fence = body.context.fence
        if body.context.signed or body.event in self._signed_events:
            self.authority.look_at(event, body)
        if stream.kind == "child":
            self._of_child(stream, event, body)
        elif stream.kind == "session":
            self._of_session(stream, event, body)
        elif stream.kind == "workspace":
            self._of_workspace(event, body)
        elif stream.kind == "entry":
            self._reader_of(stream).note(stream, event, body)
        elif stream.kind == "saga":
            self._sagas.note(stream, event, body)

    def _reader_of(self, stream: Stream) -> ChangeStreams | Entries:
        """Who reads a stream whose name begins with `entry:`."""
        return self._backlog if stream.subject.startswith(PREFIXES) else self._entries

    def _of_workspace(self, event: Event, body: EventBody) -> None:
        self.authority.follow(event, body)
        if body.event == "SETTINGS_NOTED":
            self._backlog.noted(event, body.detail.policy)
            self._lasting.append((event.position, _confirmation_seconds(body.detail.policy)))
        elif body.event == "SINKS_CHANGED":
            self.sinks.append((event.position, body.detail.sinks or {}))
        elif body.event in ("REQUEST_ANSWERED", "REQUEST_REFUSED"):
            self.answered += answer_mark(event.at, body.detail)
        elif body.event == "BACKLOG_SWEPT":
            self._backlog.swept(event)

    def _of_child(self, stream: Stream, event: Event, body: EventBody) -> None:
        detail = body.detail
        stream.move(CHILD, event, body, self.findings)
        self._children.take(CHILD, event, event.facts())
        if detail.child_id != stream.subject:
            self.findings.fault(
                "copy", f"{event.stream}#{event.seq}", f"it is about {detail.child_id or 'nothing'}"
            )
        session = detail.parent_stream_id
        self._copies[session] = self._copies.get(session, 0) + mark(event.body)
        if detail.to == "terminal":
            stream.ends += 1
            if detail.logs:
                self._logs += [
                    (stream.subject, name, "log", sha256) for name, sha256 in detail.logs.items()
                ]
                if len(self._logs) >= _BATCH:
                    self._check_logs()
            if detail.spent or detail.debits:
                self._debits.append((stream.subject, detail.debits, event.at))
                if len(self._debits) >= _BATCH:
                    self._check_debits()
            for lane, amount in (detail.spent or {}).items():
                counted = amount * weight(stream.subject, lane)
                self.spent[session] = self.spent.get(session, 0) + counted
        if event.seq == 1:
            stream.begun = detail.parent_seq

    def _of_session(self, stream: Stream, event: Event, body: EventBody) -> None:
        detail, name = body.detail, body.event
        if event.source == "build":
            stream.move(BUILD, event, body, self.findings)
            self._builds.take(BUILD, event, event.facts())
            if name == "BUILD_SUCCEEDED" and detail.outputs:
                stream.steps.made = detail.outputs
        elif event.source == "child":
            if detail.parent_seq != event.seq:
                self.findings.fault(
                    "copy",
                    f"{event.stream}#{event.seq}",
                    f"it says it is number {detail.parent_seq}",
                )
            self._copies[event.stream] = self._copies.get(event.stream, 0) - mark(event.body)
        elif name in ("SESSION_OPENED", "SESSION_CHANGED"):
            self.limits[stream.subject] = limits = detail.limits or {}
            widest = self.widest.setdefault(stream.subject, dict.fromkeys(LANES, 0))
            for lane, most in widest.items():
                limit = limits.get(lane)
                widest[lane] = None if most is None or limit is None else max(most, limit)
            stream.opened = detail.max_active_children
            stream.opened_at = stream.opened_at or event.at
        elif name == "TARGET_HELD":
            stream.held.add(detail.child_id)
        elif name == "CANCEL_ASKED":
            stream.asked.setdefault(detail.child_id, []).append(detail.cancel_request_id or "")
        elif name == "DEBIT_LATE":
            self._late_debit(stream, event.at, detail.child_id, detail.amounts or {})
        elif name in TOLD:
            stream.steps.note(event, body)
        if detail.permit_id:
            self._of_permit(stream.subject, event, body)

    def _of_permit(self, build: str, event: Event, body: EventBody) -> None:
        """A confirmation token as the events tell of it: minted, made void by the next one,
        used."""
        detail = body.detail
        if body.event not in ("BUILD_PAUSED", "CONFIRMATION_MINTED"):
            used = self.minted.get(detail.permit_id)
            if used is not None:
                self.minted[used.permit_id] = msgspec.structs.replace(used, consumed_at=event.at)
            return
        if detail.permit_id in self.minted:
            self.findings.fault("permit", detail.permit_id, "it was minted twice")
        paused = body.event == "BUILD_PAUSED"
        if not paused:
            lasting = detail.expires_at - event.at
            self._confirmations.append((event.position, detail.permit_id, lasting))
        older = self._tokens_of.setdefault(build, [])
        for name in older:
            if (self.minted[name].consumed_at, self.minted[name].voided_at) == (None, None):
                self.minted[name] = msgspec.structs.replace(self.minted[name], voided_at=event.at)
        older.append(detail.permit_id)
        self.minted[detail.permit_id] = PermitRow(
            permit_id=detail.permit_id,
            build_id=build,
            transition_seq=detail.transition_seq if paused else detail.bound,
            token_hash=detail.token_hash,
            spent=detail.spent_micros,
            minted_at=event.at,
            expires_at=detail.expires_at,
            consumed_at=None,
            voided_at=None,
            statement_hash=None if paused else body.context.signed or None,
        )

    def _late_debit(
        self, stream: Stream, at: int, child_id: str, amounts: Mapping[str, int]
    ) -> None:
        ended = stream.state in BUILD.terminal
        for lane, amount in amounts.items():
            added = late_mark(child_id, lane, amount, at)
            self.late[stream.name] = self.late.get(stream.name, 0) + added
            if ended:
                lanes = self.after_end.setdefault(stream.subject, {})
                lanes[lane] = lanes.get(lane, 0) + amount

    def _end(self, stream: Stream | None) -> None:
        if stream is None:
            return
        try:
            self._close(stream)
        except (TypeError, ValueError, KeyError, AttributeError, msgspec.MsgspecError) as error:
            self.findings.fault(
                "form", stream.name, f"what belongs to it cannot be read: {type(error).__name__}"
            )

    def _close(self, stream: Stream) -> None:
        for number, anchor in enumerate(self._anchors):
            if number in stream.heads:
                anchor.take(stream.name, *stream.heads[number])
        if stream.kind == "child":
            self._end_child(stream)
        elif stream.kind == "entry":
            self._reader_of(stream).close(stream)
        elif stream.kind == "saga":
            self._sagas.close(stream)
        elif stream.kind == "session":
            if stream.opened:
                self._end_session(stream)
            if stream.version:
                self._end_build(stream)

    def _end_child(self, stream: Stream) -> None:
        child = self._children.close(stream.subject)
        if child is None:
            return
        if child.phase != "terminal":
            self.open.add(child.child_id)
        if stream.ends > 1:
            self.findings.fault("terminal", child.child_id, f"it ends {stream.ends} times")
        why = _misplaced(stream, child)
        if why:
            self.findings.fault("phase", child.child_id, why)

    def _without_stream(self, child: ChildRecord) -> None:
        """A child that never began has no event yet."""
        self.findings.count("children")
        self.open.add(child.child_id)
        if child.phase not in _silent("child"):
            self.findings.fault(
                "phase", child.child_id, f"it is {child.phase}, and no event says so"
            )

    def _end_session(self, stream: Stream) -> None:
        for passed in self._sessions.before(stream.subject):
            self.findings.fault("state", passed.session_id, "no event opened the session")
        session = self._sessions.at(stream.subject)
        stated = (stream.opened, stream.opened_at)
        if session is None or (session.max_active_children, session.created_at) != stated:
            self.findings.fault(
                "state", stream.subject, "the session that its stream tells of is not there"
            )
            return
        self._check_dispatch(stream, session)

    def _check_dispatch(self, stream: Stream, session: SessionRow) -> None:
        """Children went by their place in the queue; the session knows the highest numbers it
        gave."""
        last = first = queued = 0
        for row in self.records.dispatched(session.session_id):
            queued = max(queued, row.queue_seq)
            if (row.attempt > 1) != (row.predecessor is not None):
                self.findings.fault(
                    "phase", row.child_id, "its attempt is not that of what it follows"
                )
            if row.dispatch_seq is None:
                continue
            why = cancel_mismatch(row, stream.asked.get(row.child_id, ()))
            if why:
                self.findings.fault("phase", row.child_id, why)
            # A later attempt waits for its time, and some for their target (C-5).
            waits = row.attempt > 1 or row.child_id in stream.held
            if row.dispatch_seq <= last or (not waits and row.queue_seq < first):
                self.findings.fault(
                    "phase", row.child_id, f"its place in the order is not {row.dispatch_seq}"
                )
            last = row.dispatch_seq
            if not waits:
                first = row.queue_seq
        if (session.queue_high, session.dispatch_high) != (queued, last):
            self.findings.fault(
                "state",
                session.session_id,
                "the numbers that it gave are not those of its children",
            )

    def _end_build(self, stream: Stream) -> None:
        if self._builds.close(stream.subject) is None:
            return
        for passed in self._approvals.before(stream.subject):
            self.findings.fault("approval", passed.build_id, "no build's stream tells of it")
        stream.steps.check_approvals(self._approvals.all(stream.subject), self.findings)
        for passed in self._checkpoints.before(stream.subject):
            self.findings.fault("checkpoint", passed.build_id, "no build's stream tells of it")
        stream.steps.check_checkpoints(
            self._checkpoints.all(stream.subject), self.records, self.findings
        )

    def _check_logs(self) -> None:
        """The log of a child is the one that its last event names."""
        kept = self.records.refs_of(sorted({child for child, *_ in self._logs}))
        for child, name, _, _ in sorted(set(self._logs) - kept):
            self.findings.fault(
                "ref", f"{child} {name}", "its log is not the one that its last event names"
            )
        self._logs.clear()

    def _check_debits(self) -> None:
        """The debits of a child, their times and kinds are those that its last event states."""
        by_child = self.records.debits_of(sorted({child for child, *_ in self._debits}))
        for child, stated_digest, at in self._debits:
            debits = by_child.get(child, [])
            time_debits = [debit for debit in debits if debit.lane == "duration_secs"]
            on_time = all((debit.settled, debit.at) == (SETTLED, at) for debit in time_debits)
            if debits_digest(debits) != stated_digest or not on_time:
                self.findings.fault("totals", child, "its debits are not what its last event says")
        self._debits.clear()

    def _compare_copies(self) -> None:
        for session in sorted(session for session, left in self._copies.items() if left):
            self.findings.fault(
                "copy", session or "(none)", "it does not say what the streams of its children say"
            )


def _misplaced(stream: Stream, child: ChildRecord) -> str | None:
    """How a child's row contradicts itself, or the place of its first event."""
    if child.parent_stream_id != f"session:{child.parent_session_id}":
        return "it is another session's than its events say"
    if child.parent_seq >= stream.begun:
        return "it was queued after it began"
    recovered = child.reason in ("terminated_on_restart", "lease_orphaned")
    asked = child.cancel_request_id is not None
    if child.phase == "terminal" and not recovered and (child.reason == "cancelled") != asked:
        return "it was asked to end, or not, otherwise than its last event says"
    return None


def _confirmation_seconds(policy: object) -> int:
    seconds = policy.get("confirmation_seconds") if isinstance(policy, dict) else None
    return seconds if isinstance(seconds, int) else PERMIT_SECONDS


def late_mark(child_id: str, lane: str, amount: int, at: int) -> int:
    """What one debit after a child's end adds to the sum of all."""
    return mark(child_id, lane, amount, at)


def answer_mark(at: int, answered: Detail | Mapping[str, str]) -> int:
    """What one answered request adds to the sum of all: by its event's detail, or by its row."""
    names = ("verb", "request_id", "principal", "asked", "answer")
    if not isinstance(answered, Mapping):
        answered = msgspec.structs.asdict(answered)
    return mark(at, *(answered[name] for name in names))


class Stream:
    """The state of the pass within one stream."""

    __slots__ = (
        "asked",
        "at",
        "begun",
        "ends",
        "fence",
        "hash",
        "heads",
        "held",
        "kind",
        "name",
        "opened",
        "opened_at",
        "position",
        "seq",
        "state",
        "steps",
        "subject",
        "version",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.kind, _, self.subject = name.partition(":")
        self.seq, self.hash, self.position, self.fence = 0, ZERO_HASH, 0, 0
        self.heads: dict[int, tuple[int, bytes]] = {}
        self.state, self.version = "", 0
        self.ends = 0
        self.opened = 0
        self.opened_at = 0
        self.begun = 0
        """The place of a child's first event in its session's stream."""
        self.asked: dict[str, list[str]] = {}
        """By child of a session, the requests to end it, the first one first."""
        self.held: set[str] = set()
        """Children of a session that waited for their target."""
        self.at = 0
        if self.kind == "session":
            self.steps = StepHistory(self.subject)

    def follow(self, event: Event, findings: Findings, whole: bool) -> None:
        """The event must be the next of this stream."""
        seq, prev_hash = event.seq, event.prev_hash
        if seq != self.seq + 1 and (whole or self.kind != "workspace"):
            findings.fault("gap", f"{self.name}#{seq}", f"seq {seq} follows {self.seq}")
        elif prev_hash != self.hash and seq == self.seq + 1:
            findings.fault(
                "chain", f"{self.name}#{seq}", "it does not name the hash of its predecessor"
            )
        # The hash is over the line, in which the rest follows where the body ends.
        made = link(
            stream=event.stream,
            seq=seq,
            at=event.at,
            source=event.source,
            body=event.body,
            prev_hash=prev_hash,
        )
        if made != event.hash or event.body[-1:] != b"}":
            findings.fault("chain", f"{self.name}#{seq}", "it does not have the hash it claims")
        if whole and event.position <= self.position:
            findings.fault(
                "gap",
                f"{self.name}#{seq}",
                "it stands before its predecessor in the order of all events",
            )
        self.seq, self.hash, self.position = seq, event.hash, event.position
        self.at = event.at

    def move(self, machine: Machine, event: Event, body: EventBody, findings: Findings) -> None:
        """The event must be an arrow of the machine that follows the last one; silent moves may
        lie between."""
        detail = body.detail
        source = detail.came_from or "new"
        arrow = machine.find(source, detail.to or "", detail.reason)
        place = f"{self.name}#{event.seq}"
        if arrow is None or arrow.event != body.event:
            findings.fault(
                "history",
                place,
                f"{body.event} from {source} to {detail.to} ({detail.reason})"
                f" is no arrow of the {machine.name}",
            )
        silent = _silent(machine.name)
        through_silent = source in silent and self.state in ("", *silent)
        follows = source == (self.state or "new") or through_silent
        if not follows or detail.transition_seq <= self.version:
            why = f"{body.event} from {source} does not follow {self.state or 'nothing'}"
            findings.fault("history", place, why)
        self.state, self.version = detail.to or "", detail.transition_seq
