"""`verify`: everything that is recorded held against everything else, offline, each fault by its
rule (E-1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Final

import msgspec

from onceward.builds.plan import hash_of_body
from onceward.core.bodies import decode_body
from onceward.core.canon import sha256_hex
from onceward.core.chain import Event
from onceward.core.limits import MAX_INTEGER
from onceward.core.records import Build, ChildRecord
from onceward.core.steps import step_name
from onceward.dispatch.budget import ASKED, LATE, MODE
from onceward.errors import OncewardError, StorageError
from onceward.evidence.ahead import weight
from onceward.evidence.findings import Findings
from onceward.evidence.records import Records, StoreRecords, batches
from onceward.evidence.walk import Anchor, Walk, answer_mark, late_mark
from onceward.store.copy import pages
from onceward.store.port import Reads
from onceward.store.tables.artifacts import RefRow
from onceward.store.tables.budgets import DebitRow, LaneTotal, workspace_lanes
from onceward.store.tables.builds import PlanRow
from onceward.store.tables.permits import PermitRow
from onceward.store.tables.requests import UNTOLD, Ledger
from onceward.store.transaction import dedupe_key


def verify_rows(rows: Reads) -> Findings:
    """Verify a store's rows; `verify` of a workspace looks at its files, too."""
    return verify(StoreRecords(rows))


def verify(
    records: Records,
    *,
    anchors: Sequence[Anchor] = (),
    line: Callable[[Event], None] | None = None,
    progress: Callable[[int], None] | None = None,
    into: Findings | None = None,
) -> Findings:
    """One pass over the events, then one over each other kind of record."""
    findings = into if into is not None else Findings()
    with readable(findings, "the keys"):
        walk = Walk(records, findings, anchors=anchors, line=line, progress=progress)
        with readable(findings, "the events"):
            walk.run()
        with readable(findings, "the signatures"):
            walk.authority.finish()
        with readable(findings, "the debits"):
            _totals(records, findings, walk)
        with readable(findings, "the permits"):
            _permits(records, findings, walk)
        if isinstance(records, StoreRecords):
            with readable(findings, "the requests"):
                _requests(records, findings, walk)
            with readable(findings, "the outbox"):
                _outbox(records, findings, walk)
    for what, look in (
        ("the plans", _plans),
        ("the children", _left_by_children),
        ("the refs", _refs),
    ):
        with readable(findings, what):
            look(records, findings)
    return findings


@contextmanager
def readable(findings: Findings, what: str) -> Iterator[None]:
    """A record that cannot be read becomes a fault; the check of the rest goes on."""
    try:
        yield
    except (StorageError, MemoryError):
        raise
    except OncewardError as error:
        findings.fault(error.context.get("rule", "form"), what, error.message)
    except Exception as error:
        findings.fault(
            "form",
            what,
            f"something in it cannot be read: {type(error).__name__}: {str(error)[:200]}",
        )


def _totals(records: Records, findings: Findings, walk: Walk) -> None:
    """Totals of lanes against limits, signatures and debits."""
    totals = {
        (total.parent_session_id, total.budget_lane): total for total in records.all(LaneTotal)
    }
    _check_limits(totals, findings, walk)
    for build, spent in walk.authority.spent.items():
        for lane, amount in spent.items():
            amount += walk.after_end.get(build, {}).get(lane, 0)
            if (build, lane) not in totals or totals[build, lane].total != amount:
                findings.fault(
                    "totals", build, f"{lane} is not what was signed when the build ended"
                )
    debited = _check_debits(records, totals, findings, walk)
    for stream, left in sorted(walk.spent.items()):
        if left:
            findings.fault(
                "totals", stream, "its children did not spend what their last events say"
            )
    for stream, left in sorted(walk.late.items()):
        if left:
            findings.fault(
                "totals", stream, "what was debited after a child's end is not what its events say"
            )
    if isinstance(records, StoreRecords):
        for lane, _, total in workspace_lanes(records.rows):
            if total != debited.get(lane, 0):
                findings.fault(
                    "totals",
                    "workspace",
                    f"{lane} says {total}, but all debits make {debited.get(lane, 0)}",
                )


def _check_limits(
    totals: Mapping[tuple[str, str], LaneTotal], findings: Findings, walk: Walk
) -> None:
    """Every lane with a limit has a total, and every total the limit that its session's events
    say."""
    for session, limits in walk.limits.items():
        for lane in limits:
            if (session, lane) not in totals:
                findings.fault("totals", session, f"its total of {lane} is not there")
    for (session, lane), total in totals.items():
        if session not in walk.limits:
            findings.fault("totals", session, f"{lane} has a total, but no event opened a session")
        elif total.limit_amount != walk.limits.get(session, {}).get(lane):
            findings.fault(
                "totals", session, f"the limit of {lane} is not what its last event says"
            )
        if total.accounting_mode != MODE:
            findings.fault("totals", session, f"{lane} is not accounted for by {MODE}")
        if not 0 <= total.carried < 1_000_000:
            findings.fault("totals", session, f"{lane} carries on more than a part of a second")


def _check_debits(
    records: Records,
    totals: Mapping[tuple[str, str], LaneTotal],
    findings: Findings,
    walk: Walk,
) -> dict[str, int]:
    """Every total is the sum of its debits; answers what was debited of each lane in all."""
    undebited = dict(totals)
    debited: dict[str, int] = {}
    for (session, lane), debits in groupby(
        records.all(DebitRow), lambda debit: (debit.parent_session_id, debit.budget_lane)
    ):
        summed = 0
        for number, debit in enumerate(debits, 1):
            if debit.debit_seq != number:
                findings.fault(
                    "gap",
                    f"{session} {lane}",
                    f"debit {debit.debit_seq} stands where {number} should",
                )
            summed += debit.amount
            most = walk.widest.get(session, {}).get(lane)
            if debit.settled == ASKED and most is not None and summed > most:
                findings.fault("totals", session, f"{lane} passed its limit by what was asked for")
            stream = f"session:{session}"
            if debit.settled == LATE:
                mark = late_mark(debit.child_id, lane, debit.amount, debit.at)
                walk.late[stream] = walk.late.get(stream, 0) - mark
            elif debit.child_id not in walk.open:
                counted = debit.amount * weight(debit.child_id, lane)
                walk.spent[stream] = walk.spent.get(stream, 0) - counted
            findings.count("debits")
        debited[lane] = debited.get(lane, 0) + summed
        row = undebited.pop((session, lane), None)
        if row is None or row.total != summed:
            what = "is not there" if row is None else f"says {row.total}"
            findings.fault("totals", session, f"{lane} {what}, but its debits make {summed}")
    for (session, lane), row in undebited.items():
        if row.total:
            findings.fault("totals", session, f"{lane} says {row.total}, but it has no debits")
    return debited


def _plans(records: Records, findings: Findings) -> None:
    known = set()
    for plan in records.all(PlanRow):
        findings.count("plans")
        known.add(plan.plan_hash)
        try:
            hash_ = hash_of_body(plan.body)
        except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
            hash_ = ""
        if hash_ != plan.plan_hash:
            findings.fault("plan", plan.plan_hash[:16], "it is not what its hash says")
    for build in records.all(Build):
        if build.plan_hash and build.plan_hash not in known:
            findings.fault("plan", build.build_id, "its plan is not there")


def _left_by_children(records: Records, findings: Findings) -> None:
    """Every child that ended as a step of a build left a checkpoint."""
    for batch in batches(records.all(ChildRecord)):
        steps = {}
        for child in batch:
            work = msgspec.json.decode(child.work)
            if child.phase == "terminal" and "context_hash" in work:
                steps[child.parent_session_id, work["stage"], work["target"]] = child.child_id
        found = records.places(sorted(steps))
        for place in sorted(steps.keys() - found):
            findings.fault(
                "checkpoint",
                f"{place[0]} {step_name(*place[1:])}",
                "its step ended, and left no checkpoint",
            )


def _permits(records: Records, findings: Findings, walk: Walk) -> None:
    for permit in records.all(PermitRow):
        findings.count("permits")
        stated = walk.minted.pop(permit.permit_id, None)
        if stated is None:
            findings.fault("permit", permit.permit_id, "no event of its build minted it")
        elif stated != permit:
            names = ", ".join(
                name
                for name in PermitRow.__struct_fields__
                if getattr(stated, name) != getattr(permit, name)
            )
            findings.fault("permit", permit.permit_id, f"its events say otherwise: {names}")
    for permit_id in walk.minted:
        findings.fault("permit", permit_id, "an event minted it, and it is not there")


def _refs(records: Records, findings: Findings) -> None:
    """Every artifact that is referred to is known."""
    for batch in batches(records.all(RefRow)):
        findings.count("refs", len(batch))
    if not isinstance(records, StoreRecords):
        return
    lost = records.rows.read(
        "SELECT r.owner, r.name FROM artifact_refs r LEFT JOIN artifacts a ON a.sha256 = r.sha256"
        " WHERE a.sha256 IS NULL ORDER BY r.owner, r.name LIMIT 100"
    )
    for owner, name in lost:
        findings.fault("ref", f"{owner} {name}", "what it refers to is not known")


def _requests(records: StoreRecords, findings: Findings, walk: Walk) -> None:
    """Every request is what it was asked with; every answer is what its event says, and no
    answer is gone."""
    left = walk.answered
    for request in records.all(Ledger):
        findings.count("requests")
        if sha256_hex(request.payload.encode()) != request.payload_hash:
            findings.fault(
                "request", f"{request.verb} {request.request_id}", "it is not what its hash says"
            )
        if request.answered_at is not None and request.verb not in UNTOLD:
            left -= answer_mark(request.answered_at, request.told())
    if left:
        _name_answers(records, findings)


def _name_answers(records: StoreRecords, findings: Findings) -> None:
    """Which requests are not what the events of their answers say."""
    marks = {}
    for event in records.stream("workspace"):
        body = decode_body(event.body)
        if body.event in ("REQUEST_ANSWERED", "REQUEST_REFUSED"):
            place = (body.detail.verb, body.detail.request_id)
            marks[place] = answer_mark(event.at, body.detail)
    for request in records.all(Ledger):
        mark = marks.pop((request.verb, request.request_id), None)
        if mark is None and (request.answered_at is None or request.verb in UNTOLD):
            continue
        if mark != answer_mark(request.answered_at or 0, request.told()):
            findings.fault(
                "request",
                f"{request.verb} {request.request_id}",
                "it was not asked or answered so, by the event of its answer",
            )
    for verb, request_id in sorted(marks):
        findings.fault("request", f"{verb} {request_id}", "it was answered, and is not there")


def _count_events(rows: Reads, first: int, last: int, names: Sequence[str] | None) -> int:
    """How many events there are from one place to another, of some names or, without any, of
    all. A child's own copies are for nobody: its session's are."""
    if names == []:
        return 0
    also = f" AND ({' OR '.join(['e.body LIKE ?'] * len(names))})" if names else ""
    ((count,),) = rows.read(
        "SELECT count(*) FROM events e JOIN streams s ON s.stream_no = e.stream_no"
        f" WHERE e.position >= ? AND e.position < ? AND s.stream NOT LIKE 'child:%'{also}",
        (first, last, *(f'%"event":"{name}"}}' for name in names or ())),
    )
    return int(count)


def _count_posted(rows: Reads, first: int, last: int, sink: str) -> int:
    ((count,),) = rows.read(
        "SELECT (SELECT count(*) FROM event_outbox"
        " WHERE sink = ? AND position >= ? AND position < ?)"
        " + (SELECT count(*) FROM outbox_used WHERE sink = ? AND position >= ? AND position < ?)",
        (sink, first, last, sink, first, last),
    )
    return int(count)


def _outbox(records: StoreRecords, findings: Findings, walk: Walk) -> None:
    """Every event is delivered, or waits to be, wherever it was to go; and nothing else is."""
    ends = [*(place for place, _ in walk.sinks[1:]), MAX_INTEGER]
    for (first, sinks), last in zip(walk.sinks, ends, strict=bool(walk.sinks)):
        for sink, names in sorted(sinks.items()):
            wanted = _count_events(records.rows, first, last, names)
            found = _count_posted(records.rows, first, last, sink)
            if wanted != found:
                findings.fault(
                    "outbox",
                    sink,
                    f"of {wanted:,} events since number {first:,} {found:,} were delivered or wait to be",
                )
    lost = records.rows.read(
        "SELECT o.sink, o.position FROM event_outbox o"
        " LEFT JOIN events e ON e.position = o.position"
        " WHERE e.position IS NULL ORDER BY o.sink, o.position LIMIT 100"
    )
    for sink, position in lost:
        findings.fault("outbox", f"{sink} {position}", "there is no such event to deliver")
    again = records.rows.read(
        "SELECT o.sink, o.position FROM event_outbox o JOIN outbox_used u ON u.sink = o.sink"
        " AND u.dedupe_key = o.dedupe_key ORDER BY o.sink, o.position LIMIT 100"
    )
    for sink, position in again:
        findings.fault("outbox", f"{sink} {position}", "it was delivered before")
    for table in ("event_outbox", "outbox_used"):
        _check_keys(records, findings, table)


_POSTED_KEY: Final = {
    "event_outbox": ("sink", "position"),
    "outbox_used": ("sink", "dedupe_key"),
}


def _check_keys(records: StoreRecords, findings: Findings, table: str) -> None:
    """What was delivered, or waits to be, is under the key of its event."""
    columns = ("sink", "dedupe_key", "position")
    rows = pages(records.rows, table, _POSTED_KEY[table], columns)
    for batch in batches(rows):
        places = sorted({int(position) for _, _, position in batch if position is not None})
        keys = _keys_at(records.rows, places)
        for sink, key, position in batch:
            if position in keys and bytes(key) not in keys[position]:
                findings.fault(
                    "outbox", f"{sink} {position}", "its key is not the one of its event"
                )


def _keys_at(rows: Reads, places: Sequence[int]) -> dict[int, set[bytes]]:
    """The keys that the event at each place may have."""
    if not places:
        return {}
    found = rows.read(
        "SELECT e.position, s.stream, e.seq, e.source, e.body FROM events e"
        " JOIN streams s ON s.stream_no = e.stream_no"
        f" WHERE e.position IN ({', '.join('?' * len(places))})",
        tuple(places),
    )
    keys: dict[int, set[bytes]] = {}
    for position, stream, seq, source, text in found:
        body = decode_body(text.encode())
        detail = body.detail
        owner = stream.partition(":")[2]
        subject = detail.child_id if source == "child" else owner
        move = f"{detail.to}:{detail.reason or ''}"
        step = f"{detail.step}:{detail.context_hash}"
        sides = [f"{owner}:{side}:{detail.step}" for side in ("action", "compensation")]
        keys[position] = {
            dedupe_key(body.event, stream, seq, body.event),
            *(
                dedupe_key(body.event, subject, detail.transition_seq, target)
                for target in (move, detail.permit_id, step, *sides)
            ),
        }
    return keys
