"""Tells a person how far recovery has come, where it takes longer than a moment (P-14)."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Self, TextIO

FIRST_SECONDS = 1.0
NEXT_SECONDS = 5.0


class RecoveryProgress:
    """Writes a line after about a second and then every few seconds, for as long as the block lasts.

    On a thread of its own: what takes long may be one wait for a process or a disk."""

    def __init__(self, notes: TextIO | None) -> None:
        self._notes = notes
        self._done = self._total = 0
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def note(self, done: int, total: int) -> None:
        """How many children have been brought to their end, of how many."""
        self._done, self._total = done, total
        if total and self._thread is None and self._notes is not None:
            self._thread = threading.Thread(
                target=self._tell, name="recovery-progress", daemon=True
            )
            self._thread.start()

    def _tell(self) -> None:
        assert self._notes is not None
        pause = FIRST_SECONDS
        while not self._over.wait(pause):
            pause = NEXT_SECONDS
            line = f"recovering after a crash: {self._done} of {self._total} children\n"
            # Nobody may listen any more; recovery goes on all the same.
            with suppress(OSError, ValueError):
                self._notes.write(line)
                self._notes.flush()
