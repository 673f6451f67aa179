"""Streams and their events, to be read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from onceward.core.canon import ZERO_HASH
from onceward.core.chain import Event
from onceward.errors import NotFound
from onceward.store.port import Reads, Row
from onceward.store.table import Table

STREAMS: Final[Table[Any]] = Table(None, "streams", key=("stream_no",))
EVENTS: Final[Table[Any]] = Table(None, "events", key=("position",))
_PAGE = 1000
_FIELDS = "e.seq, e.at, e.source, e.body, e.prev_hash, e.hash, e.position"


def event_of(row: Row) -> Event:
    """The event of a row: the name of its stream, then its own columns in the order of
    `_FIELDS`."""
    stream, seq, at, source, body, prev_hash, hash_, position = row
    return Event(
        stream=stream,
        seq=seq,
        at=at,
        source=source,
        body=body.encode(),
        prev_hash=prev_hash,
        hash=hash_,
        position=position,
    )


def streams(rows: Reads) -> list[tuple[str, int]]:
    """Every stream and how many events it has."""
    found = rows.read(
        "SELECT s.stream, count(e.position) FROM streams s"
        " LEFT JOIN events e ON e.stream_no = s.stream_no"
        " GROUP BY s.stream ORDER BY s.stream"
    )
    return [(stream, count) for stream, count in found]


def events_of(rows: Reads, stream: str, after: int = 0) -> Iterator[Event]:
    """A stream's events in order, a page at a time, so that memory stays flat."""
    numbers = rows.read("SELECT stream_no FROM streams WHERE stream = ?", (stream,))
    if not numbers:
        raise NotFound(f"there is no stream {stream}", context={"stream": stream})
    while True:
        page = rows.read(
            "SELECT seq, at, source, body, prev_hash, hash, position FROM events"
            " WHERE stream_no = ? AND seq > ? ORDER BY seq LIMIT ?",
            (numbers[0][0], after, _PAGE),
        )
        for row in page:
            yield event_of((stream, *row))
        if len(page) < _PAGE:
            return
        after = page[-1][0]


def events_by_name(rows: Reads) -> Iterator[Event]:
    """Every event, streams in the order of their names, each in order: one pass in flat memory.
    What belongs to no stream comes first."""
    unnamed = rows.read(
        f"SELECT '', {_FIELDS}, e.stream_no FROM events e"
        " WHERE NOT EXISTS (SELECT 1 FROM streams s WHERE s.stream_no = e.stream_no)"
        " ORDER BY e.position LIMIT 100"
    )
    page = unnamed + _from(rows, "")
    while page:
        last: Row = page[-1]
        for row in page:
            yield event_of(row[:-1])
        # The page may have ended within a stream.
        rest = rows.read(
            f"SELECT {_FIELDS}, e.stream_no FROM events e WHERE e.stream_no = ? AND e.seq > ?"
            " ORDER BY e.seq LIMIT ?",
            (last[-1], last[1], _PAGE),
        )
        page = [(last[0], *row) for row in rest] or _from(rows, last[0])


def events_named(rows: Reads, names: Sequence[str]) -> Iterator[Event]:
    """The events of some streams, by name and seq."""
    found = rows.read(
        f"SELECT s.stream, {_FIELDS} FROM streams s JOIN events e ON e.stream_no = s.stream_no"
        f" WHERE s.stream IN ({', '.join('?' * len(names))}) ORDER BY s.stream, e.seq",
        names,
    )
    for row in found:
        yield event_of(row)


def _from(rows: Reads, stream: str) -> list[Row]:
    return rows.read(
        f"SELECT s.stream, {_FIELDS}, e.stream_no FROM streams s"
        " JOIN events e ON e.stream_no = s.stream_no"
        " WHERE s.stream > ? ORDER BY s.stream, e.seq LIMIT ?",
        (stream, _PAGE),
    )


def event_at(rows: Reads, position: int) -> Event | None:
    found = rows.read(
        "SELECT s.stream, e.seq, e.at, e.source, e.body, e.prev_hash, e.hash, e.position"
        " FROM events e JOIN streams s ON s.stream_no = e.stream_no WHERE e.position = ?",
        (position,),
    )
    return event_of(found[0]) if found else None


def newest_of(rows: Reads, stream: str, source: str, limit: int) -> list[Event]:
    """The last events of a stream that come from one lifecycle, in order."""
    found = rows.read(
        f"SELECT s.stream, {_FIELDS} FROM events e JOIN streams s ON s.stream_no = e.stream_no"
        " WHERE s.stream = ? AND e.source = ? ORDER BY e.seq DESC LIMIT ?",
        (stream, source, limit),
    )
    return [event_of(row) for row in reversed(found)]


def head_of(rows: Reads, stream: str) -> tuple[int, bytes]:
    """Seq and hash of a stream's last event; zeros where there is none."""
    found = rows.read(
        "SELECT e.seq, e.hash FROM events e JOIN streams s ON s.stream_no = e.stream_no"
        " WHERE s.stream = ?"
        " ORDER BY e.seq DESC LIMIT 1",
        (stream,),
    )
    return (found[0][0], found[0][1]) if found else (0, ZERO_HASH)


def hash_at(rows: Reads, stream: str, seq: int) -> bytes | None:
    """The hash of a stream's event of that seq; of seq 0, what the first one names."""
    if seq == 0:
        return ZERO_HASH
    found = rows.read(
        "SELECT e.hash FROM events e JOIN streams s ON s.stream_no = e.stream_no"
        " WHERE s.stream = ? AND e.seq = ?",
        (stream, seq),
    )
    return found[0][0] if found else None


def told(rows: Reads, stream: str, event: str, step: str) -> bool:
    """Whether a stream has an event of that name about a step."""
    found = rows.read(
        "SELECT e.body FROM events e JOIN streams s ON s.stream_no = e.stream_no"
        " WHERE s.stream = ? AND e.body LIKE ?",
        (stream, f'%"{event}"%'),
    )
    return any(msgspec.json.decode(body)["detail"].get("step") == step for (body,) in found)


def details_of(rows: Reads, stream: str, event: str) -> list[dict[str, Any]]:
    """The details of a stream's events of one name, in order."""
    found = rows.read(
        "SELECT e.body FROM events e JOIN streams s ON s.stream_no = e.stream_no"
        " WHERE s.stream = ? AND e.body LIKE ? ORDER BY e.seq",
        (stream, f'%"{event}"%'),
    )
    bodies = [msgspec.json.decode(body) for (body,) in found]
    return [body["detail"] for body in bodies if body["event"] == event]


def last_position(rows: Reads) -> int:
    """The place of the newest event among all."""
    ((position,),) = rows.read("SELECT coalesce(max(position), 0) FROM events")
    return int(position)


def events_after(rows: Reads, position: int, limit: int) -> list[Event]:
    """The events after a place, in the order they were committed."""
    found = rows.read(
        "SELECT s.stream, e.seq, e.at, e.source, e.body, e.prev_hash, e.hash, e.position"
        " FROM events e JOIN streams s ON s.stream_no = e.stream_no WHERE e.position > ?"
        " ORDER BY e.position LIMIT ?",
        (position, limit),
    )
    return [event_of(row) for row in found]
