"""Named crash points: one attribute test in production, armed in tests
(`ONCEWARD_FAULT=name[:count]`)."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from onceward.errors import InvalidConfig

POINTS: Final = (
    "write.begun",
    "move.event",
    "move.state",
    "move.outbox",
    "write.worked",
    "commit.before",
    "commit.after",
    "write.answered",
    "request.filed",
    "request.worked",
    "outbox.delivered",
    "outbox.settled",
    "create.staged",
    "create.folder",
    "create.settings",
    "migrate.applied",
    "key.written",
    "lock.acquired",
    "lock.recovered",
    "target.written",
    "target.marked",
    "target.unlinked",
    "target.released",
    "artifact.written",
    "artifact.placed",
    "artifact.spilled",
    "artifact.forgotten",
    "child.queued",
    "child.leased",
    "child.launched",
    "child.ended",
    "child.debited",
    "child.recovering",
    "child.pronounced",
    "late.filed",
    "stream.appended",
    "process.ordered",
    "process.ready",
    "process.committed",
    "process.going",
    "output.staged",
    "output.moved",
    "output.pointed",
    "cut.staged",
    "cut.applied",
    "cut.record",
    "cut.restored",
    "restore.table",
    "backup.copied",
)
"""Every place where a test may end the process."""


class SimulatedCrash(BaseException):
    """An in-process stand-in for kill -9: nothing may catch it and go on."""


_armed: Callable[[str], None] | None = None


def point(name: str) -> None:
    """Reached a crash point."""
    if _armed is not None:
        _armed(name)


def arm(name: str, nth: int = 1, act: Callable[[], None] | None = None) -> None:
    """Let the `nth` arrival at `name` run `act` (by default: kill -9 of this process)."""
    if name not in POINTS:
        raise ValueError(f"no fault point {name!r}")
    left = nth

    def arrive(arrived: str) -> None:
        nonlocal left
        if arrived == name:
            left -= 1
            if left == 0:
                (act or _kill)()

    global _armed
    _armed = arrive


def disarm() -> None:
    global _armed
    _armed = None


@contextmanager
def armed(name: str, nth: int = 1, act: Callable[[], None] | None = None) -> Iterator[None]:
    arm(name, nth, act)
    try:
        yield
    finally:
        disarm()


def crash() -> None:
    raise SimulatedCrash


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm_from_environment() -> None:
    """Arm what a test put into the environment of a child process; called by the CLI's entry."""
    asked = os.environ.get("ONCEWARD_FAULT")
    if asked:
        name, _, nth = asked.partition(":")
        if name not in POINTS or not (nth or "1").isdecimal() or int(nth or 1) < 1:
            raise InvalidConfig(
                f"ONCEWARD_FAULT={asked!a} is not NAME or NAME:COUNT; the names are {', '.join(POINTS)}",
                context={"field": "ONCEWARD_FAULT"},
            )
        arm(name, int(nth or 1))
