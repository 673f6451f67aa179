"""The outbox: what each sink has still to be told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from onceward.core.chain import Event
from onceward.store.port import Reads, Writes
from onceward.store.table import Table
from onceward.store.tables.events import event_of


class Parcel(msgspec.Struct, frozen=True):
    """One event on its way to one sink."""

    sink: str
    dedupe_key: bytes
    attempts: int
    due_at: int
    parked: bool
    event: Event


class SinkBacklog(msgspec.Struct, frozen=True):
    """How far behind a sink is."""

    sink: str
    waiting: int
    parked: int
    oldest_at: int | None
    last_error: str | None


OUTBOX: Final[Table[Any]] = Table(None, "event_outbox", key=("sink", "position"))
OUTBOX_USED: Final[Table[Any]] = Table(None, "outbox_used", key=("sink", "dedupe_key"))


def parcels(rows: Reads, sink: str, after: int, limit: int) -> list[Parcel]:
    """Undelivered events of a sink in commit order."""
    found = rows.read(
        "SELECT o.dedupe_key, o.attempts, o.due_at, o.parked_at, s.stream, e.seq, e.at, e.source,"
        " e.body,"
        " e.prev_hash, e.hash, e.position FROM event_outbox o"
        " JOIN events e ON e.position = o.position"
        " JOIN streams s ON s.stream_no = e.stream_no"
        " WHERE o.sink = ? AND o.position > ? ORDER BY o.position LIMIT ?",
        (sink, after, limit),
    )
    return [
        Parcel(
            sink=sink,
            dedupe_key=key,
            attempts=attempts,
            due_at=due_at,
            parked=parked_at is not None,
            event=event_of(tuple(event)),
        )
        for key, attempts, due_at, parked_at, *event in found
    ]


def delivered(tx: Writes, parcels: Sequence[Parcel]) -> None:
    """Remove what the sink accepted and remember its keys for ever."""
    for parcel in parcels:
        tx.write(
            "DELETE FROM event_outbox WHERE sink = ? AND position = ?",
            (parcel.sink, parcel.event.position),
        )
        tx.write(
            "INSERT INTO outbox_used (sink, dedupe_key, position) VALUES (?, ?, ?)"
            " ON CONFLICT (sink, dedupe_key) DO NOTHING",
            (parcel.sink, parcel.dedupe_key, parcel.event.position),
        )


def postponed(tx: Writes, parcel: Parcel, due_at: int, parked_at: int | None, error: str) -> None:
    tx.write(
        "UPDATE event_outbox SET attempts = attempts + 1, due_at = ?, parked_at = ?, last_error = ?"
        " WHERE sink = ? AND position = ?",
        (due_at, parked_at, error[:500], parcel.sink, parcel.event.position),
    )


def make_due(tx: Writes, now: int) -> None:
    """Forget every pause, parked events included."""
    tx.write("UPDATE event_outbox SET due_at = ?, parked_at = NULL, attempts = 0", (now,))


def backlogs(rows: Reads) -> list[SinkBacklog]:
    found = rows.read(
        "SELECT o.sink, count(*), count(o.parked_at), min(e.at), max(o.last_error)"
        " FROM event_outbox o JOIN events e ON e.position = o.position GROUP BY o.sink"
        " ORDER BY o.sink"
    )
    return [SinkBacklog(*row) for row in found]
