"""TERM, INT and HUP ask a kernel to stop its work well; asking twice is asking once (L-24)."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any


class Signals:
    """While open, the first signal sets `stop` and is remembered; further ones only set `hurry`.

    A handler runs between any two steps of the main thread, which may hold the event's own lock: so it only writes a
    byte, and a thread of its own does the rest."""

    def __init__(
        self, stop: threading.Event, *, leaving: bool = False, hurry: threading.Event | None = None
    ) -> None:
        self._hurry = hurry
        """Set when somebody asks again."""
        self._leaving = leaving
        """The program ends after this: a signal that comes late, when all is done, must not change how it ended."""
        self.interrupted = threading.Event()
        """Set by the first signal, and by nothing else; `stop` is also set when the work has come to its end."""
        self.heard = 0
        """The signal that asked us to stop, or 0."""
        self._stop = stop
        self._before: dict[int, Any] = {}
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._thread = threading.Thread(target=self._listen, name="signals", daemon=True)

    @property
    def exit_status(self) -> int:
        """How a program ends that was asked to: 130 for INT, 143 for TERM, 129 for HUP."""
        return 128 + self.heard if self.heard else 0

    def __enter__(self) -> Signals:
        self._thread.start()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            self._before[number] = signal.signal(number, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_IGN if self._leaving and self.heard else handler)
        os.close(self._writer)
        self._thread.join()
        os.close(self._reader)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.heard = self.heard or number
        try:
            os.write(self._writer, b"s")
        except BlockingIOError:
            pass

    def _listen(self) -> None:
        while data := os.read(self._reader, 64):
            if self._hurry is not None and (self._stop.is_set() or len(data) > 1):
                self._hurry.set()
            self._stop.set()
            self.interrupted.set()
