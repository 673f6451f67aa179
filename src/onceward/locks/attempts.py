"""Acquire in a thread for a coroutine that may be cancelled: a claim nobody waits for is given
back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from onceward.locks.claims import Claim


async def acquire_in_thread(
    acquire: Callable[[], Claim], release: Callable[[Claim], object]
) -> Claim:
    """Run `acquire` in a thread, because it syncs a file; release its claim if the wait is
    cancelled."""
    attempt = _Attempt(acquire, release)
    try:
        return await asyncio.to_thread(attempt.run)
    except asyncio.CancelledError:
        attempt.abandon()
        raise


class _Attempt:
    """One try. The thread and the event loop's thread meet here: whoever comes second gives it
    back."""

    def __init__(self, acquire: Callable[[], Claim], release: Callable[[Claim], object]) -> None:
        self._acquire, self._release = acquire, release
        self._mutex = threading.Lock()
        self._claim: Claim | None = None
        self._abandoned = False

    def run(self) -> Claim:
        claim = self._acquire()
        with self._mutex:
            self._claim = claim
            abandoned = self._abandoned
        if abandoned:
            self._release(claim)
        return claim

    def abandon(self) -> None:
        with self._mutex:
            self._abandoned = True
            claim = self._claim
        if claim is not None:
            self._release(claim)
