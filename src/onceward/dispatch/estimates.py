"""What the steps in flight are expected to spend still: kept in memory, one ledger per kernel (B-9)."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import msgspec


class _Entry(msgspec.Struct):
    build_id: str
    number: int
    """Which came first: a later one never holds back an earlier one."""
    left: dict[str, int]


class EstimatesInFlight:
    """Estimates of steps that were chosen to run and have not ended, less what they spent already.

    Slots of several builds add, reduce and drop entries from their own threads."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        self._last = 0

    def add(self, child_id: str, build_id: str, estimate: Mapping[str, int]) -> None:
        with self._mutex:
            self._last += 1
            self._entries[child_id] = _Entry(build_id, self._last, dict(estimate))

    def reduce(self, child_id: str, amounts: Mapping[str, int]) -> None:
        """A child spent part of what it was expected to."""
        with self._mutex:
            entry = self._entries.get(child_id)
            if entry is not None:
                for lane, amount in amounts.items():
                    entry.left[lane] = max(0, entry.left.get(lane, 0) - amount)

    def drop(self, child_id: str) -> None:
        with self._mutex:
            self._entries.pop(child_id, None)

    def before(
        self, child_id: str, *, ended: str = "", build_id: str | None = None
    ) -> dict[str, int]:
        """What those chosen before a child are still expected to spend, by lane: of one build, or of all.
        `ended` is a child whose spending is in the totals by now."""
        totals: dict[str, int] = {}
        with self._mutex:
            own = self._entries.get(child_id)
            for other_id, entry in self._entries.items():
                earlier = own is None or entry.number < own.number
                counts = build_id is None or entry.build_id == build_id
                if other_id not in (child_id, ended) and earlier and counts:
                    for lane, amount in entry.left.items():
                        totals[lane] = totals.get(lane, 0) + amount
        return {lane: amount for lane, amount in totals.items() if amount}
