"""Output printed by Python steps is shown as usual, and kept in the step's log."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol


class StepHere(Protocol):
    """What is asked of a step by whoever finds itself inside it."""

    build_id: str
    stage: str
    target: str
    running: Any
    shown: Callable[[str], str]

    def printed(self, text: str) -> None: ...


at_work: ContextVar[StepHere | None] = ContextVar("at_work", default=None)
"""The step on whose thread, or in whose coroutine, we are."""
step_threads: dict[int, StepHere] = {}
"""The steps whose functions run on threads, by thread: for whoever left its context."""
_mutex = threading.Lock()
_listeners = 0


class Overheard:
    """Standard output or error, with an ear on it: secrets of the step that prints are not
    shown."""

    def __init__(self, out: Any, *, kept: bool) -> None:
        self._out, self._kept = out, kept

    def write(self, text: str) -> int:
        task = at_work.get()
        if task is None:
            return int(self._out.write(text) or 0)
        if self._kept:
            task.printed(text)
        self._out.write(task.shown(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        # All else is the stream's own affair: its encoding, its buffer, whether it is a terminal.
        return getattr(self._out, name)


_start_thread = threading.Thread.start


def step_here() -> StepHere | None:
    """The step that we are in, by the context or by the thread."""
    return at_work.get() or step_threads.get(threading.get_ident())


def _start_of_step(thread: threading.Thread) -> None:
    """A thread that a step begins is the step's: what it prints, and that it signs for nobody."""
    task = step_here()
    if task is not None:
        run = thread.run

        def run_in_step() -> None:
            at_work.set(task)
            step_threads[threading.get_ident()] = task
            try:
                run()
            finally:
                step_threads.pop(threading.get_ident(), None)

        thread.run = run_in_step  # type: ignore[method-assign]
    _start_thread(thread)


@contextmanager
def overheard() -> Iterator[None]:
    """While builds run, in however many threads, what they print is listened to, and threads
    that steps begin are known as theirs."""
    global _listeners
    with _mutex:
        _listeners += 1
        if _listeners == 1:
            threading.Thread.start = _start_of_step  # type: ignore[assignment, method-assign]
            sys.stdout = sys.stdout and Overheard(sys.stdout, kept=True)
            sys.stderr = sys.stderr and Overheard(sys.stderr, kept=False)
    try:
        yield
    finally:
        with _mutex:
            _listeners -= 1
            if _listeners == 0:
                threading.Thread.start = _start_thread  # type: ignore[method-assign]
            for name in ("stdout", "stderr") if _listeners == 0 else ():
                if isinstance(getattr(sys, name), Overheard):
                    setattr(sys, name, getattr(sys, name)._out)
