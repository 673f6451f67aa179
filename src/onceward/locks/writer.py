"""When a writer lock may be taken over: a pure judgement of what is known about its holder
(L-21)."""

from __future__ import annotations

from dataclasses import dataclass

from onceward.locks.identity import ProcessVerdict


@dataclass(frozen=True, slots=True)
class TenureStatus:
    """Whether the holder's tenure stands, and how we know."""

    stands: bool
    why: str


def judge_tenure(verdict: ProcessVerdict, silent_micros: int, ttl_micros: int) -> TenureStatus:
    """A holder stands if its process may live and it has been heard of within the time to live."""
    if verdict.liveness == "dead":
        return TenureStatus(False, verdict.why)
    if silent_micros > ttl_micros:
        return TenureStatus(
            False, f"it has been silent for {silent_micros // 1_000_000} s ({verdict.why})"
        )
    return TenureStatus(True, verdict.why)
