"""Streams and their events, to be read."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from onceward.errors import NotFound
from onceward.kernel.chain import Event
from onceward.store.port import Reads

_PAGE = 1000


def streams(rows: Reads) -> list[tuple[str, int]]:
    """Every stream and how many events it has."""
    found = rows.read(
        "SELECT s.stream, count(e.position) FROM streams s LEFT JOIN events e ON e.stream_no = s.stream_no"
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
        for seq, at, source, body, prev_hash, hash_, position in page:
            yield Event(stream, seq, at, source, body.encode(), prev_hash, hash_, position)
        if len(page) < _PAGE:
            return
        after = page[-1][0]


def all_events(rows: Reads) -> Iterator[Event]:
    """Every event, stream after stream, each in order: one pass in flat memory."""
    after = (0, 0)
    while True:
        page = rows.read(
            "SELECT e.stream_no, s.stream, e.seq, e.at, e.source, e.body, e.prev_hash, e.hash, e.position"
            " FROM events e LEFT JOIN streams s ON s.stream_no = e.stream_no"
            " WHERE (e.stream_no, e.seq) > (?, ?) ORDER BY e.stream_no, e.seq LIMIT ?",
            (*after, _PAGE),
        )
        for _, stream, seq, at, source, body, prev_hash, hash_, position in page:
            yield Event(stream or "", seq, at, source, body.encode(), prev_hash, hash_, position)
        if len(page) < _PAGE:
            return
        after = (page[-1][0], page[-1][2])


def event_at(rows: Reads, position: int) -> Event | None:
    found = rows.read(
        "SELECT s.stream, e.seq, e.at, e.source, e.body, e.prev_hash, e.hash, e.position"
        " FROM events e JOIN streams s ON s.stream_no = e.stream_no WHERE e.position = ?",
        (position,),
    )
    if not found:
        return None
    stream, seq, at, source, body, prev_hash, hash_, position = found[0]
    return Event(stream, seq, at, source, body.encode(), prev_hash, hash_, position)


def told(rows: Reads, stream: str, event: str, step: str) -> bool:
    """Whether a stream has an event of that name about a step."""
    found = rows.read(
        "SELECT e.body FROM events e JOIN streams s ON s.stream_no = e.stream_no WHERE s.stream = ? AND e.body LIKE ?",
        (stream, f'%"{event}"%'),
    )
    return any(msgspec.json.decode(body)["detail"].get("step") == step for (body,) in found)


def last_position(rows: Reads) -> int:
    """The place of the newest event among all."""
    ((position,),) = rows.read("SELECT coalesce(max(position), 0) FROM events")
    return int(position)


def events_after(rows: Reads, position: int, limit: int) -> list[Event]:
    """The events after a place, in the order they were committed."""
    found = rows.read(
        "SELECT s.stream, e.seq, e.at, e.source, e.body, e.prev_hash, e.hash, e.position"
        " FROM events e JOIN streams s ON s.stream_no = e.stream_no WHERE e.position > ? ORDER BY e.position LIMIT ?",
        (position, limit),
    )
    return [
        Event(stream, seq, at, source, body.encode(), prev_hash, hash_, place)
        for stream, seq, at, source, body, prev_hash, hash_, place in found
    ]
