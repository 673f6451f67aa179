"""What Python steps print is shown as ever, and kept in the log of the step that printed it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onceward.engine.task import Task

at_work: ContextVar[Task | None] = ContextVar("at_work", default=None)
"""The step on whose thread, or in whose coroutine, we are."""
_mutex = threading.Lock()
_listeners = 0


class Overheard:
    """Standard output, with an ear on it."""

    def __init__(self, out: Any) -> None:
        self._out = out

    def write(self, text: str) -> int:
        task = at_work.get()
        if task is not None:
            task.printed(text)
        return int(self._out.write(text) or 0)

    def __getattr__(self, name: str) -> Any:
        # All else is the stream's own affair: its encoding, its buffer, whether it is a terminal.
        return getattr(self._out, name)


@contextmanager
def overheard() -> Iterator[None]:
    """While builds run, in however many threads, standard output is listened to."""
    global _listeners
    with _mutex:
        _listeners += 1
        if _listeners == 1 and sys.stdout is not None:
            sys.stdout = Overheard(sys.stdout)
    try:
        yield
    finally:
        with _mutex:
            _listeners -= 1
            if _listeners == 0 and isinstance(sys.stdout, Overheard):
                sys.stdout = sys.stdout._out
