"""What is new in the streams since somebody last looked, each event encoded once."""

from __future__ import annotations

from itertools import islice

import msgspec

from onceward.core.chain import Event
from onceward.store.store import Store
from onceward.store.tables.events import events_after as after_position
from onceward.store.tables.events import events_of, head_of, last_position

_PAGE = 500


class Fed(msgspec.Struct, frozen=True):
    """An event on its way to whoever listens."""

    stream: str
    seq: int
    position: int
    line: bytes

    def id_in(self, stream: str | None) -> int:
        """By what somebody who listens to a stream, or to all, comes again."""
        return self.position if stream is None else self.seq

    def sent(self, stream: str | None) -> bytes:
        """As a server-sent event: its line is one line, whatever it says."""
        return b"id: %d\ndata: %s\n\n" % (self.id_in(stream), self.line)


def fed(event: Event) -> Fed:
    return Fed(event.stream, event.seq, event.position, event.line())


def events_after(store: Store, stream: str | None, after: int, limit: int = _PAGE) -> list[Fed]:
    """A page of what came after an id, of one stream or of all."""
    with store.read() as rows:
        if stream is None:
            return [fed(event) for event in after_position(rows, after, limit)]
        return [fed(event) for event in islice(events_of(rows, stream, after), limit)]


class Feeding:
    """Remembers how far it has looked."""

    def __init__(self) -> None:
        self._seen: int | None = None

    def forget(self) -> None:
        self._seen = None

    def look(self, store: Store) -> tuple[list[Fed], bool]:
        """What is new, and whether there is more; the first look only finds out where it begins."""
        with store.read() as rows:
            if self._seen is None:
                self._seen = last_position(rows)
                return [], False
            found = [fed(event) for event in after_position(rows, self._seen, _PAGE)]
        if found:
            self._seen = found[-1].position
        return found, len(found) == _PAGE


def position_now(store: Store) -> int:
    """The id of the newest event of all."""
    with store.read() as rows:
        return last_position(rows)


def newest_events(store: Store, stream: str, limit: int) -> tuple[list[Fed], int]:
    """The last events of a stream, the newest first, and how many there are."""
    with store.read() as rows:
        total, _ = head_of(rows, stream)
        return [fed(event) for event in events_of(rows, stream, max(0, total - limit))][::-1], total
