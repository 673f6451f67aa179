"""Which steps may run: a build's steps as it knows them, and the next one in plan order that nothing holds back."""

from __future__ import annotations

import heapq
from array import array
from collections import deque
from collections.abc import Iterator
from enum import IntEnum

from onceward.builds.plan import Steps
from onceward.core.sources import Micros


class At(IntEnum):
    """Where a step is."""

    WAITING = 0
    READY = 1
    RUNNING = 2
    LATER = 3
    """Another attempt is due in a while."""
    ASKED = 4
    """A person is to approve it."""
    DONE = 5
    FAILED = 6
    BLOCKED = 7
    DOUBT = 8
    """It ended, and a person is to decide what becomes of it."""


class ReadyQueue:
    """Counts what each step still waits for. Not safe for threads; whoever owns it holds a mutex."""

    def __init__(self, steps: Steps, rates: dict[int, list[Micros]]) -> None:
        """`rates` has the last starts of each stage that has a rate."""
        self.steps = steps
        self.at = bytearray(len(steps))
        self._needs = [
            array("I", [steps.waits_for(k)]) * len(steps.targets[k])
            for k in range(len(steps.stages))
        ]
        self._left = [len(targets) for targets in steps.targets]
        self._ready: list[int] = []
        self._held = {k: [] for k, stage in enumerate(steps.stages) if stage.jobs or stage.rate}  # type: dict[int, list[int]]
        """Ready steps of stages that do not let all of them run at once."""
        self._running = [0] * len(steps.stages)
        self._later: list[tuple[Micros, int]] = []
        self._starts = {k: deque(starts, maxlen=_rate(steps, k)) for k, starts in rates.items()}
        self.counts = [0] * len(At)
        self.counts[At.WAITING] = len(steps)

    def roots(self) -> list[int]:
        """The steps that wait for nothing."""
        return [
            step
            for k in range(len(self.steps.stages))
            if not self.steps.waits_for(k)
            for step in self.steps.of(k)
        ]

    def put(self, step: int) -> None:
        """A step may run when its turn comes."""
        self._set(step, At.READY)
        heapq.heappush(self._held.get(self.steps.place(step)[0], self._ready), step)

    def put_later(self, step: int, due: Micros) -> None:
        self._leave(step)
        self._set(step, At.LATER)
        heapq.heappush(self._later, (due, step))

    def hold(self, step: int, due: Micros) -> None:
        """It was taken, but cannot run yet: look at it again later, or when `hurry` says so."""
        self._leave(step)
        k = self.steps.place(step)[0]
        if self._starts.get(k):
            self._starts[k].pop()
        self._set(step, At.LATER)
        heapq.heappush(self._later, (due, step))

    def hurry(self, step: int) -> None:
        """A step that waits for a time may be looked at now."""
        if self.at[step] == At.LATER:
            heapq.heappush(self._later, (0, step))

    def put_back(self, step: int) -> None:
        """It was taken, but did not run after all."""
        self._leave(step)
        k = self.steps.place(step)[0]
        if self._starts.get(k):
            self._starts[k].pop()
        self.put(step)

    def wait_again(self, step: int) -> None:
        """It was begun before what it waits for was done, and that was not recorded."""
        self._leave(step)
        k = self.steps.place(step)[0]
        if self._starts.get(k):
            self._starts[k].pop()
        self._set(step, At.WAITING)

    def take_back(self, step: int) -> None:
        """Take a ready step off the queue."""
        held = self._held.get(self.steps.place(step)[0], self._ready)
        held.remove(step)
        heapq.heapify(held)

    def doubt(self, step: int) -> None:
        self._leave(step)
        self._set(step, At.DOUBT)

    def ask(self, step: int) -> None:
        self._set(step, At.ASKED)

    def take(self, now: Micros) -> int | None:
        """The first step in plan order that its stage lets run now."""
        while self._later and self._later[0][0] <= now:
            step = heapq.heappop(self._later)[1]
            # One that was hurried stands there twice.
            if self.at[step] == At.LATER:
                self.put(step)
        heads = [held for k, held in self._held.items() if held and self._free(k, now)]
        heads += [self._ready] if self._ready else []
        if not heads:
            return None
        step = heapq.heappop(min(heads, key=lambda heap: heap[0]))
        self.start(step, now)
        return step

    def start(self, step: int, now: Micros) -> None:
        k = self.steps.place(step)[0]
        self._running[k] += 1
        if k in self._starts:
            self._starts[k].append(now)
        self._set(step, At.RUNNING)

    def left(self) -> dict[int, int]:
        """How many steps of each stage are not done."""
        return {k: left for k, left in enumerate(self._left) if left}

    def next_time(self) -> Micros | None:
        """When something that is held back by time alone may run."""
        times = [self._later[0][0]] if self._later else []
        for k, held in self._held.items():
            jobs = self.steps.stages[k].jobs
            if held and k in self._starts and (jobs is None or self._running[k] < jobs):
                times.append(self._window(k))
        return min(times, default=None)

    def finish(self, step: int) -> list[int]:
        """A step is done; answers those that wait for nothing more."""
        self._leave(step)
        self._set(step, At.DONE)
        k, _ = self.steps.place(step)
        self._left[k] -= 1
        return [
            other for other in self._freed(step, k, self._left[k] == 0) if self._count(other) == 0
        ]

    def free(self, step: int, now: Micros) -> bool:
        """Whether its stage would let a step run now."""
        return self._free(self.steps.place(step)[0], now)

    def would_free(self, step: int) -> list[int]:
        """Those that would wait for nothing more if this one were done."""
        k, _ = self.steps.place(step)
        return [
            other for other in self._freed(step, k, self._left[k] == 1) if self._waits(other) == 1
        ]

    def fail(self, step: int) -> list[int]:
        """A step failed; answers those that can never run because of it."""
        self._leave(step)
        self._set(step, At.FAILED)
        blocked, frontier = [], [step]
        while frontier:
            here = frontier.pop()
            k, _ = self.steps.place(here)
            for other in self._freed(here, k, True):
                if self.at[other] == At.WAITING:
                    self._set(other, At.BLOCKED)
                    blocked.append(other)
                    frontier.append(other)
        return blocked

    def _freed(self, step: int, k: int, whole: bool) -> Iterator[int]:
        yield from self.steps.freed_by(step)
        if whole:
            yield from self.steps.freed_by_stage(k)

    def _waits(self, step: int) -> int:
        k, _ = self.steps.place(step)
        return self._needs[k][step - self.steps.first[k]]

    def _count(self, step: int) -> int:
        k, _ = self.steps.place(step)
        place = step - self.steps.first[k]
        self._needs[k][place] -= 1
        return self._needs[k][place] if self.at[step] == At.WAITING else 1

    def _free(self, k: int, now: Micros) -> bool:
        jobs = self.steps.stages[k].jobs
        return (jobs is None or self._running[k] < jobs) and (
            k not in self._starts or self._window(k) <= now
        )

    def _window(self, k: int) -> Micros:
        """When a stage's rate allows its next start."""
        starts, rate = self._starts[k], self.steps.stages[k].rate
        assert rate is not None
        return 0 if len(starts) < rate.count else starts[0] + rate.seconds * 1_000_000

    def _leave(self, step: int) -> None:
        if self.at[step] == At.RUNNING:
            self._running[self.steps.place(step)[0]] -= 1

    def _set(self, step: int, at: At) -> None:
        self.counts[self.at[step]] -= 1
        self.counts[at] += 1
        self.at[step] = at


def _rate(steps: Steps, k: int) -> int:
    rate = steps.stages[k].rate
    assert rate is not None
    return rate.count
