"""Several callers at once, let to the store one at a time in an order that a script has: an
interleaving that can be played again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from onceward.store.port import DatabaseSession
from onceward.store.store import Store
from onceward.store.writer import Work

T = TypeVar("T")
_PATIENCE = 20.0


class Turnstile:
    """Whose turn it is: as `turns` says, then each in turn."""

    def __init__(self, turns: Sequence[int] = ()) -> None:
        self._turns = list(turns)
        self._changed = threading.Condition()
        self._live: list[int] = []
        self._last = -1
        self._here = threading.local()

    def run(self, acts: Sequence[Callable[[], Any]]) -> list[Any]:
        """Do all of them; answers what each came to, in order."""
        found: list[Any] = [None] * len(acts)
        self._live = list(range(len(acts)))

        def one(number: int) -> None:
            self._here.number = number
            try:
                found[number] = acts[number]()
            except BaseException as error:
                found[number] = error
            finally:
                with self._changed:
                    self._live.remove(number)
                    self._changed.notify_all()

        threads = [
            threading.Thread(target=one, args=(number,), daemon=True) for number in range(len(acts))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(_PATIENCE)
        if self._live:
            raise TimeoutError("a race did not come to its end")
        for outcome in found:
            if isinstance(outcome, BaseException):
                raise outcome
        return found

    @contextmanager
    def passed(self) -> Iterator[None]:
        """One visit to the store, by whoever's turn it is; those who are in no race just pass."""
        me = getattr(self._here, "number", None)
        if me is None:
            yield
            return
        with self._changed:
            if not self._changed.wait_for(lambda: self._next() == me, _PATIENCE):
                raise TimeoutError("a race did not come to its end")
        try:
            yield
        finally:
            with self._changed:
                self._last = me
                if self._turns and self._turns[0] == me:
                    self._turns.pop(0)
                self._changed.notify_all()

    def _next(self) -> int:
        while self._turns and self._turns[0] not in self._live:
            self._turns.pop(0)
        if self._turns:
            return self._turns[0]
        return next((number for number in self._live if number > self._last), self._live[0])


class PacedStore(Store):
    """A store whose visitors go through a turnstile while there is one."""

    pace: Turnstile | None = None

    def write(self, work: Work[T]) -> T:
        with self._turn():
            return super().write(work)

    @contextmanager
    def read(self) -> Iterator[DatabaseSession]:
        with self._turn(), super().read() as rows:
            yield rows

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if self.pace is None:
            yield
            return
        with self.pace.passed():
            yield
