"""Watch before release (L-11): a lock is given back on an observation, never blind, and at most
once."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, Protocol

from onceward.locks.claims import Claim
from onceward.locks.target import Released, TargetLock

Phase = Literal["watching", "ending", "killing", "settled"]
Seen = Literal["exited", "ready", "start_failed", "stop_asked", "time_over"]
Act = Literal["terminate", "kill", "release", "retain"]


def _parse(table: str) -> Mapping[tuple[str, str], tuple[Phase, Act | None]]:
    rows = (line.split() for line in filter(str.strip, table.splitlines()))
    arrows = {(phase, seen): (to, None if act == "-" else act) for phase, seen, to, act in rows}
    return MappingProxyType(arrows)  # type: ignore[arg-type]


# phase, what was seen of the child, next phase, what to do
WATCH: Final = _parse("""
    watching  exited        settled   release
    watching  ready         settled   release
    watching  start_failed  settled   release
    watching  stop_asked    ending    terminate
    watching  time_over     ending    terminate
    ending    exited        settled   release
    ending    ready         ending    -
    ending    start_failed  settled   release
    ending    stop_asked    ending    -
    ending    time_over     killing   kill
    killing   exited        settled   release
    killing   ready         killing   -
    killing   start_failed  settled   release
    killing   stop_asked    killing   -
    killing   time_over     settled   retain
""")


def observe(phase: Phase, seen: Seen) -> tuple[Phase, Act | None]:
    """The action for an observation; once settled, nothing more is done."""
    return WATCH.get((phase, seen), ("settled", None))


class Watched(Protocol):
    """A child that can be watched and ended."""

    def seen(self, within: float) -> Seen | None:
        """The observation made within so many seconds, if any."""
        ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Watch:
    """The end of a watch: the last observation, and how the child was made to end."""

    seen: Seen
    pressed: Phase
    retained: bool


def watch(child: Watched, timeout: float | None, grace: float) -> Watch:
    """Wait for a child to be observed; ask it to end when its time is over, then end it."""
    phase: Phase = "watching"
    before: Phase | None = None
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        # Observations that lead nowhere must not keep its time from being over.
        over = phase == before and deadline is not None and time.monotonic() >= deadline
        seen = "time_over" if over else _next(child, deadline)
        before = phase
        phase, act = observe(phase, seen)
        if act == "terminate":
            child.terminate()
        elif act == "kill":
            child.kill()
        if phase == "settled":
            return Watch(seen, before, act == "retain")
        if phase != before:
            deadline = time.monotonic() + grace


def _next(child: Watched, deadline: float | None) -> Seen:
    while True:
        left = 3600.0 if deadline is None else deadline - time.monotonic()
        seen = child.seen(max(0.0, left))
        if seen is not None:
            return seen
        if deadline is not None and time.monotonic() >= deadline:
            return "time_over"


@dataclass(frozen=True, slots=True)
class Settled:
    """The fate of the lock: released on an observation, or kept, with the evidence why."""

    outcome: Released | Literal["lock-retained"]
    watch: Watch
    evidence: str


def watch_and_release(
    locks: TargetLock,
    claim: Claim,
    child: Watched,
    *,
    timeout: float | None = None,
    grace: float = 5.0,
) -> Settled:
    """Give a target back when its child is observed to have ended, to be ready, or not to have
    started.

    A child whose end is not observed keeps the target: the claim stays, and the child holds its
    descriptor."""
    ended = watch(child, timeout, grace)
    if ended.retained:
        said = f"the child did not end within {grace:g} s of being killed; {claim.target} stays held at {claim.path}"
        return Settled("lock-retained", ended, said)
    return Settled(locks.release(claim), ended, f"the child was seen: {ended.seen}")


class Popened:
    """A plain `subprocess.Popen` to watch; `ready` is a descriptor that becomes readable when
    the child is."""

    def __init__(self, process: subprocess.Popen[bytes], ready: int | None = None) -> None:
        self._process, self._ready = process, ready

    def seen(self, within: float) -> Seen | None:
        deadline = time.monotonic() + within
        while True:
            if self._process.poll() is not None:
                return "exited"
            if self._told(0.0):
                return "ready"
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            if self._pause(min(left, 0.02)):
                return "ready"

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    def _pause(self, seconds: float) -> bool:
        """Wait a moment; whether the child said meanwhile that it is ready."""
        if self._ready is not None:
            return self._told(seconds)
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass
        return False

    def _told(self, within: float) -> bool:
        """Whether the child wrote to its descriptor, said once; one it only closed says nothing."""
        waiting = select.poll()
        if self._ready is None:
            return False
        waiting.register(self._ready, select.POLLIN)
        if not waiting.poll(within * 1000):
            return False
        descriptor, self._ready = self._ready, None
        return bool(os.read(descriptor, 1))
