"""Targets that a kernel holds: a table in memory decides between its own children, the target lock between processes."""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec

from onceward.core.limits import TARGET_RETRY_FIRST_SECONDS, TARGET_RETRY_MAX_SECONDS
from onceward.locks import Claim, TargetLock, TargetLocked


class _Holding(msgspec.Struct, frozen=True):
    child_id: str
    claim: Claim | None
    """None where it is held inside this kernel only."""


class HeldTargets:
    """Which child of this kernel has which target. A target is claimed before its child is leased a slot, so that
    whoever has to wait for it waits in the queue. Called from the threads of every session."""

    def __init__(self, locks: TargetLock) -> None:
        self._locks = locks
        self._mutex = threading.Lock()
        self._holdings: dict[str, _Holding] = {}
        self._targets: dict[str, str] = {}
        """By child, the target it has."""
        self._waiting: dict[str, set[Callable[[], None]]] = {}

    def claim(self, target: str, child_id: str) -> Claim:
        """Claim a target for a child, or raise TargetLocked with the holder's evidence. A child that has it already
        gets the claim that it has."""
        with self._mutex:
            held = self._own_holding(target, child_id)
            if held is not None and held.claim is not None:
                return held.claim
            # Nobody else of this kernel may come between: the claim's file is made while we hold the table.
            claim = self._locks.acquire(target)
            self._holdings[target] = _Holding(child_id, claim)
            self._targets[child_id] = target
            return claim

    def hold(self, target: str, child_id: str) -> None:
        """Hold a target inside this kernel only, for a function: it is gone with its process. TargetLocked where
        somebody else has the target, here or in another process."""
        with self._mutex:
            if self._own_holding(target, child_id) is not None:
                return
            if self._locks.path_of(target).exists():
                self._locks.release(self._locks.acquire(target))
            self._holdings[target] = _Holding(child_id, None)
            self._targets[child_id] = target

    def _own_holding(self, target: str, child_id: str) -> _Holding | None:
        """What a child itself has of a target already; TargetLocked where another child has it."""
        held = self._holdings.get(target)
        if held is None or held.child_id == child_id:
            return held
        path = self._locks.path_of(target)
        raise TargetLocked(path, held.claim, f"held by child {held.child_id} of this kernel")

    def holds(self, child_id: str) -> bool:
        """Whether a child has its target."""
        with self._mutex:
            return child_id in self._targets

    def retain(self, child_id: str) -> None:
        """The end of a child was not observed: its target stays held until a person clears it."""
        with self._mutex:
            self._targets.pop(child_id, None)

    def release(self, child_id: str) -> None:
        """Give back the target of a child, if it has one, and wake who waits for it."""
        with self._mutex:
            target = self._targets.pop(child_id, None)
            if target is None:
                return
            held = self._holdings.pop(target)
            woken = self._waiting.pop(target, set())
        if held.claim is not None:
            self._locks.release(held.claim)
        for wake in woken:
            wake()

    def wake_when_free(self, target: str, wake: Callable[[], None]) -> None:
        """Call `wake` once when a target that this kernel holds is given back. One that is free by now, or that another
        process holds, wakes nobody: whoever waits looks again in a while."""
        with self._mutex:
            if target in self._holdings:
                self._waiting.setdefault(target, set()).add(wake)


def retry_delay(tries: int) -> float:
    """Seconds before a target that somebody else holds is tried again."""
    delay: float = TARGET_RETRY_FIRST_SECONDS * 2 ** min(tries, 10)
    return min(TARGET_RETRY_MAX_SECONDS, delay)
