"""The first difference between stored and replayed records: which record, which field."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import msgspec

from onceward.core.chain import Event


class Difference(msgspec.Struct, frozen=True, omit_defaults=True):
    """The first thing that does not come out as it is stored."""

    where: str
    """An event, as in `session:ID#12`, or a record, as in `child chd_…`."""
    field: str
    stored: Any
    replayed: Any
    code: str = ""


class Differs(Exception):
    """Replaying stops at the first difference."""

    def __init__(self, where: str, field: str, stored: Any, replayed: Any, code: str = "") -> None:
        super().__init__(where, field)
        self.difference = Difference(
            where=where, field=field, stored=stored, replayed=replayed, code=code
        )


def place(event: Event) -> str:
    return f"{event.stream}#{event.seq}"


def decoded(event: Event) -> dict[str, Any]:
    """An event as values, in the form that every event has."""
    try:
        said = msgspec.json.decode(event.body)
        if (
            isinstance(said["context"], dict)
            and isinstance(said["detail"], dict)
            and isinstance(said["event"], str)
        ):
            return said  # type: ignore[no-any-return]
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError, RecursionError):
        pass
    raise Differs(place(event), "body", event.body[:200].decode("utf-8", "replace"), "an event")


def explain(event: Event, seq: int, prev: bytes, body: bytes, hash_: bytes) -> NoReturn:
    """Which field of an event it is that differs."""
    where = place(event)
    if seq != event.seq:
        raise Differs(where, "seq", event.seq, seq)
    for path, stored, replayed in _unlike(decoded(event), msgspec.json.decode(body), ""):
        raise Differs(where, path, stored, replayed)
    if body != event.body:
        raise Differs(where, "body", event.body.decode("utf-8", "replace"), body.decode())
    if prev != event.prev_hash:
        raise Differs(where, "prev_hash", event.prev_hash.hex(), prev.hex())
    raise Differs(where, "hash", event.hash.hex(), hash_.hex())


def _unlike(stored: Any, replayed: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """Each place at which two values differ, by name."""
    if isinstance(stored, dict) and isinstance(replayed, dict):
        for key in sorted(stored.keys() | replayed.keys()):
            yield from _unlike(stored.get(key), replayed.get(key), f"{path}.{key}" if path else key)
    elif stored != replayed or type(stored) is not type(replayed):
        yield path, stored, replayed
