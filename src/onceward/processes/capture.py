"""A child's output, bounded: its beginning and its end are kept, the middle of a flood is
counted and dropped."""

from __future__ import annotations

from collections import deque

from onceward.artifacts.redaction import Redactor


class Capture:
    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self.size = 0
        """How much the child wrote, kept or not."""

    def take(self, data: bytes) -> None:
        self.size += len(data)
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data:
            self._tail.append(data)
            self._tail_size += len(data)
            while self._tail_size - len(self._tail[0]) >= self._half:
                self._tail_size -= len(self._tail.popleft())

    @property
    def dropped(self) -> int:
        return self.size - len(self._head) - min(self._tail_size, self._half)

    def kept(self, redactor: Redactor | None = None) -> bytes:
        """The kept output without secrets, with a line that says how much is missing in its
        place."""
        redactor = redactor or Redactor({})
        head, tail = bytes(self._head), b"".join(self._tail)[-self._half :]
        if not self.dropped:
            return redactor.clean(head + tail)
        head, tail = redactor.ends(head, tail)
        return head + f"\n[... {self.dropped} bytes were dropped here ...]\n".encode() + tail
