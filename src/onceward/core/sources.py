"""Time and ids come in here and nowhere else: live ones, or scripted ones for deterministic runs
(K-2)."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from datetime import UTC, datetime
from functools import lru_cache
from typing import Protocol

Micros = int
"""Microseconds since 1970 in UTC."""


class Sources(Protocol):
    """The injected object that hides the clock and the dice."""

    live: bool

    def now(self) -> Micros: ...

    def new_id(self, prefix: str) -> str: ...

    def secret(self) -> str: ...

    def fraction(self) -> float:
        """A number in [0, 1) for jitter."""
        ...


class LiveSources:
    """The wall clock and the operating system's randomness."""

    live = True

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0

    def now(self) -> Micros:
        return time.time_ns() // 1000

    def new_id(self, prefix: str) -> str:
        """A UUIDv7 behind its kind: ids of one process sort in the order they were made."""
        with self._lock:
            # 60 bits of time: milliseconds and twelve bits of their fraction (RFC 9562, method 3).
            nanos = time.time_ns()
            tick = (nanos // 1_000_000) << 12 | (nanos % 1_000_000) * 4096 // 1_000_000
            self._last = tick = max(tick, self._last + 1)
        return f"{prefix}_{_uuid7(tick, int.from_bytes(os.urandom(8), 'big'))}"

    def secret(self) -> str:
        return os.urandom(32).hex()

    def fraction(self) -> float:
        return int.from_bytes(os.urandom(4), "big") / 2**32


class ScriptedSources:
    """A clock that is told the time and ids derived by hash: the same script gives the same bytes."""

    live = False

    def __init__(
        self, start: Micros = 1_700_000_000_000_000, tick: Micros = 1, seed: str = ""
    ) -> None:
        self._now, self._tick, self._seed, self._drawn = start, tick, seed, 0
        self._lock = threading.Lock()

    def now(self) -> Micros:
        with self._lock:
            self._now += self._tick
            return self._now

    def set(self, now: Micros) -> None:
        """Move the clock, also backwards."""
        self._now = now

    def advance(self, micros: Micros) -> None:
        self._now += micros

    def new_id(self, prefix: str) -> str:
        drawn = self._draw(f"id:{prefix}")
        # The count stands where a live id has its time, so scripted ids sort in order too.
        return f"{prefix}_{_uuid7(self._drawn, int.from_bytes(drawn[:8], 'big'))}"

    def secret(self) -> str:
        return self._draw("secret").hex()

    def fraction(self) -> float:
        return int.from_bytes(self._draw("fraction")[:4], "big") / 2**32

    def _draw(self, purpose: str) -> bytes:
        with self._lock:
            self._drawn += 1
            return hashlib.sha256(f"{self._seed}|{purpose}|{self._drawn}".encode()).digest()


def _uuid7(tick: int, random: int) -> str:
    value = (
        (tick >> 12) << 80 | 0x7 << 76 | (tick & 0xFFF) << 64 | 0b10 << 62 | random & (2**62 - 1)
    )
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def steady_micros() -> Micros:
    """Microseconds since this machine started, sleep included: the same for all its processes,
    moved by nobody."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)) // 1000


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def iso(at: Micros) -> str:
    """A stored time for people and exports: ISO 8601, UTC, six digits."""
    seconds, micros = divmod(at, 1_000_000)
    return f"{_to_the_second(seconds)}.{micros:06d}Z"


@lru_cache(maxsize=64)
def _to_the_second(seconds: int) -> str:
    moment = time.gmtime(seconds)
    return (
        f"{moment.tm_year:04d}-{moment.tm_mon:02d}-{moment.tm_mday:02d}"
        f"T{moment.tm_hour:02d}:{moment.tm_min:02d}:{moment.tm_sec:02d}"
    )


def from_iso(text: str) -> Micros:
    """The stored time of an ISO 8601 text; the exact inverse of `iso`."""
    elapsed = datetime.fromisoformat(text) - _EPOCH
    return (elapsed.days * 86_400 + elapsed.seconds) * 1_000_000 + elapsed.microseconds
