"""A first look at whether a store agrees with itself: chains whole, states as their events say."""

from __future__ import annotations

from itertools import groupby

import msgspec

from onceward.kernel.canon import ZERO_HASH
from onceward.kernel.chain import first_break
from onceward.store.port import Reads
from onceward.store.tables.budgets import sums
from onceward.store.tables.events import all_events
from onceward.store.tables.subjects import SUBJECTS

_PAGE = 1000


class Findings(msgspec.Struct, frozen=True):
    """What was looked at and what is wrong; the same numbers for the same rows, whatever the store."""

    streams: int
    events: int
    subjects: int
    faults: list[str]


def check(rows: Reads) -> Findings:
    """Walk every stream and every subject once, in flat memory."""
    faults: list[str] = []
    streams = events = 0
    for stream, found in groupby(all_events(rows), lambda event: event.stream):
        streams += 1
        last = (0, ZERO_HASH)
        for event in found:
            events += 1
            broken = first_break([event], last)
            if broken:
                faults.append(f"stream {stream or '(unnamed)'}: {broken}")
            last = (event.seq, event.hash)
    for session, lane, total, summed in sums(rows):
        faults.append(f"session {session}: {lane} says {total}, but its debits make {summed}")
    subjects = sum(_check_subjects(rows, machine, faults) for machine in SUBJECTS)
    return Findings(streams, events, subjects, faults)


def _check_subjects(rows: Reads, machine: str, faults: list[str]) -> int:
    subject = SUBJECTS[machine]
    seen, after = 0, ""
    while True:
        page = rows.read(
            f"SELECT t.{subject.key}, t.{subject.state}, t.version, e.body FROM {subject.table} t"
            f" LEFT JOIN events e ON e.position = t.position"
            f" WHERE t.{subject.key} > ? ORDER BY t.{subject.key} LIMIT ?",
            (after, _PAGE),
        )
        for key, state, version, body in page:
            detail = msgspec.json.decode(body)["detail"] if body else {}
            said = (detail.get("to"), detail.get("transition_seq"))
            if said != (state, version) and state not in subject.silent:
                faults.append(f"{machine} {key} is {state} at version {version}, but its last event does not say so")
        seen += len(page)
        if len(page) < _PAGE:
            return seen
        after = page[-1][0]
