"""A build that runs, at a glance: for whoever draws it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from onceward.dispatch import debits
from onceward.dispatch.budget import Lane

if TYPE_CHECKING:
    from onceward.builds.run import BuildRun


class Busy(msgspec.Struct, frozen=True):
    """A step that runs now."""

    step: str
    seconds: float
    thousandths: int
    note: str


class Begun(msgspec.Struct, frozen=True):
    """A build that has begun, and how to look at it."""

    build_id: str
    name: str
    stages: Sequence[tuple[str, int]]
    """Each stage and how many steps it has."""
    how: str
    """Resumed, forked; nothing for a new build."""
    busy: Callable[[], list[Busy]]
    lanes: Callable[[], Mapping[str, Lane]]

    @property
    def total(self) -> int:
        return sum(count for _, count in self.stages)


def begun(run: BuildRun, how: str) -> Begun:
    counts = [(stage.name, len(run.steps.of(k))) for k, stage in enumerate(run.steps.stages)]
    return Begun(
        build_id=run.build_id,
        name=run.resolved.plan.name,
        stages=counts,
        how=how,
        busy=lambda: _busy(run),
        lanes=lambda: _lanes(run),
    )


def _busy(run: BuildRun) -> list[Busy]:
    now = time.monotonic()
    return [
        Busy(work.step.name, now - running.begun, running.thousandths, running.note)
        for work, running in run.children.at_work()
        if work.step is not None
    ]


def _lanes(run: BuildRun) -> Mapping[str, Lane]:
    with run.store.read() as rows:
        return debits.lanes(rows, run.build_id)
