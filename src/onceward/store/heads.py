"""The last event of each stream, remembered between commits: only the kernel appends, so only it
can be wrong."""

from __future__ import annotations

from typing import NamedTuple

from onceward.core.canon import ZERO_HASH
from onceward.core.limits import HEAD_CACHE
from onceward.store.port import Writes


class StreamHead(NamedTuple):
    """The end of a stream."""

    stream_no: int
    seq: int
    hash: bytes


class Heads:
    """The stream heads that one unit of work sees: its own changes over those committed."""

    def __init__(self, under: Heads | None = None) -> None:
        self._under = under
        self._heads: dict[str, StreamHead] = {}
        self.position: int = under.position if under else -1
        self.last_stream_no: int = under.last_stream_no if under else -1

    def head(self, stream: str, tx: Writes) -> StreamHead:
        """The stream's end, with a number given to a new stream."""
        known = self._known(stream)
        if known is not None:
            return known
        rows = tx.read(
            "SELECT s.stream_no, coalesce(e.seq, 0), e.hash FROM streams s"
            " LEFT JOIN events e ON e.stream_no = s.stream_no WHERE s.stream = ?"
            " ORDER BY e.seq DESC LIMIT 1",
            (stream,),
        )
        if not rows:
            return self.begin(stream, tx)
        found = self._heads[stream] = StreamHead(rows[0][0], rows[0][1], rows[0][2] or ZERO_HASH)
        return found

    def begin(self, stream: str, tx: Writes) -> StreamHead:
        """The end of a stream that is known to be new: it gets its number without being looked
        for."""
        self._learn(tx)
        self.last_stream_no += 1
        tx.write(
            "INSERT INTO streams (stream_no, stream) VALUES (?, ?)", (self.last_stream_no, stream)
        )
        found = self._heads[stream] = StreamHead(self.last_stream_no, 0, ZERO_HASH)
        return found

    def next_position(self, tx: Writes) -> int:
        self._learn(tx)
        return self.position + 1

    def put(self, stream: str, head: StreamHead, position: int) -> None:
        self._heads[stream] = head
        self.position = position

    def keep(self) -> None:
        """The work holds: what it learned is true for those after it."""
        assert self._under is not None
        under = self._under._heads
        for stream, head in self._heads.items():
            under.pop(stream, None)
            under[stream] = head
        while self._under._under is None and len(under) > HEAD_CACHE:
            del under[next(iter(under))]
        self._under.position, self._under.last_stream_no = self.position, self.last_stream_no

    def _known(self, stream: str) -> StreamHead | None:
        layer: Heads | None = self
        while layer is not None:
            if stream in layer._heads:
                return layer._heads[stream]
            layer = layer._under
        return None

    def _learn(self, tx: Writes) -> None:
        if self.position < 0:
            ((self.position, self.last_stream_no),) = tx.read(
                "SELECT coalesce((SELECT max(position) FROM events), 0),"
                " coalesce((SELECT max(stream_no) FROM streams), 0)"
            )
