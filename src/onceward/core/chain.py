"""How an event becomes bytes and how each is linked to the one before it (K-5, C-6)."""

from __future__ import annotations

import hashlib
import re
from typing import Any, Final

import msgspec

from onceward.core.canon import ZERO_HASH, bounded_bytes
from onceward.core.sources import Micros, iso
from onceward.errors import InvalidConfig

_encoder = msgspec.json.Encoder(order="sorted")

SCHEMA: Final = "urm-events@1"
_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
STREAM: Final = re.compile(r"workspace|(session|child|saga|entry):[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class Event(msgspec.Struct, frozen=True):
    """One link of a stream. `body` holds context, detail and name; the rest is the mechanical tail."""

    stream: str
    seq: int
    at: Micros
    source: str
    body: bytes
    prev_hash: bytes
    hash: bytes
    position: int = 0

    def line(self) -> bytes:
        """The canonical line of this event, as exported and projected, without its newline."""
        tail = _tail(
            stream=self.stream,
            seq=self.seq,
            at=self.at,
            source=self.source,
            prev_hash=self.prev_hash,
        )
        return b'%b,"hash":"%b"%b' % (self.body[:-1], self.hash.hex().encode(), tail)

    def facts(self) -> dict[str, Any]:
        """Context, detail and name as values."""
        facts: dict[str, Any] = msgspec.json.decode(self.body)
        return facts


def body_of(name: str, context: dict[str, Any], detail: dict[str, Any]) -> bytes:
    """The part of an event that says what happened, as canonical bytes of values already
    checked."""
    return bounded_bytes(
        _encoder.encode({"context": context, "detail": detail, "event": name}), "an event"
    )


def link(stream: str, seq: int, at: Micros, source: str, body: bytes, prev_hash: bytes) -> bytes:
    """The hash of an event: SHA-256 of its canonical bytes without `hash`."""
    return hashlib.sha256(
        body[:-1] + _tail(stream=stream, seq=seq, at=at, source=source, prev_hash=prev_hash)
    ).digest()


def check_stream(stream: str) -> str:
    """A stream's name, refused before it can become a path or a line."""
    if not STREAM.fullmatch(stream):
        raise InvalidConfig(
            f"{ascii(stream)[:80]} is not a stream;"
            " streams are `workspace` or session:, child:, saga:, entry: and an id",
            context={"field": "stream"},
        )
    return stream


def check_event(name: str) -> str:
    """An event's name, in the one form they all have."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidConfig(
            f"{ascii(name)[:60]} is not an event's name such as BUILD_STARTED",
            context={"field": "event"},
        )
    return name


def first_break(events: list[Event], prev: tuple[int, bytes] = (0, ZERO_HASH)) -> str | None:
    """The first fault in a run of one stream's events that follows `prev`, or None."""
    seq, prev_hash = prev
    for event in events:
        if event.seq != seq + 1:
            return f"seq {event.seq} follows {seq}"
        if event.prev_hash != prev_hash:
            return f"seq {event.seq} does not name the hash of its predecessor"
        made = link(
            stream=event.stream,
            seq=event.seq,
            at=event.at,
            source=event.source,
            body=event.body,
            prev_hash=prev_hash,
        )
        if made != event.hash:
            return f"seq {event.seq} does not have the hash it claims"
        seq, prev_hash = event.seq, event.hash
    return None


def _tail(stream: str, seq: int, at: Micros, source: str, prev_hash: bytes) -> bytes:
    return (
        f',"prev_hash":"{prev_hash.hex()}","schema":"{SCHEMA}","seq":{seq},"source":"{source}",'
        f'"stream_id":"{stream}","ts":"{iso(at)}"}}'
    ).encode()
