"""Random schedules over the real engine, each line held against a model that fits on two pages.

    python tools/explore.py --count 20000 --seed 1          explore; a schedule that goes wrong is
    made small and kept python tools/explore.py --again FILE                    play a kept one
    again

A schedule is a script of the gate: spawn, lease, start, finish, debit, cancel, crash, recover
and races of them, with a virtual clock and a store in memory. After its last line the records
are replayed and verified, too."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from explore_model import LANES, START, Model, agrees, distinct, orders, unlike

from onceward.core.sources import ScriptedSources
from onceward.evidence.records import StoreRecords
from onceward.gate import script
from onceward.gate.play import judge_records
from onceward.gate.script import SCHEMA, Fixture, Op, read_fixture, written
from onceward.gate.stage import ScriptStage
from onceward.scratch import scratches
from onceward.store.store import Store

POINTS = (
    "write.begun",
    "move.event",
    "move.state",
    "write.worked",
    "commit.before",
    "commit.after",
    "child.leased",
)
RECOVERY = (
    "child.recovering",
    "child.pronounced",
    "move.event",
    "commit.before",
    "commit.after",
    "lock.acquired",
)
FAILURES = ("execution_failed", "timeout", "budget_exceeded", "start_failed")


def violation(ops: Sequence[Op], seed: str) -> str:
    """Play a schedule; what is wrong with it, or nothing."""
    fixture = Fixture(SCHEMA, "explored", "", list(ops), start=START, seed=seed)
    sources = ScriptedSources(START, 0, seed)
    with scratches("sqlite")() as scratch:
        database = scratch.database(sources)
        stage = ScriptStage(database, scratch.folder, fixture, sources)
        models = [Model()]
        try:
            for number, op in enumerate(ops, 1):
                found = stage.play(op)
                told = [each for model in models for each in orders(model, op)]
                models = distinct(after for after, claimed in told if agrees(claimed, found))
                if not models:
                    claimed = told[-1][1]
                    return f"line {number}, {type(op).__name__.lower()}: {found} where {claimed} was to be expected"
        except Exception as error:
            return f"line {number}: {type(error).__name__}: {error}"
        finally:
            stage.close()
        store = Store(database, sources)
        try:
            with store.read() as rows:
                _, wrong = judge_records(rows, scratch.folder, bundles=seed.endswith("0"))
                return wrong or unlike(models, stage.names, StoreRecords(rows))
        finally:
            store.close()


def schedule(seed: str) -> list[Op]:
    """A random script: mostly what can happen, sometimes what cannot."""
    return _Author(random.Random(seed)).write()


class _Author:
    """Writes a schedule with a model beside it, so as to speak of children that there are."""

    def __init__(self, dice: random.Random) -> None:
        self.dice, self.model = dice, Model()
        self.names = 0

    def write(self) -> list[Op]:
        ops: list[Op] = []
        fresh: list[Op] = [self._opening(), *self._spawned()]
        for _ in range(self.dice.randrange(8, 30)):
            ops += fresh
            for op in fresh:
                for one in op.ops if isinstance(op, script.Race) else [op]:
                    self.model.tell(one)
            fresh = self._lines()
        return ops

    def _spawned(self) -> list[Op]:
        fresh = [f"c{self.names + n}" for n in range(1, self.dice.randrange(2, 5))]
        self.names += len(fresh)
        kind = self.dice.choice(("function", "process"))
        return [script.Spawn(fresh, kind=kind, attempts=self.dice.choice((1, 1, 2, 3)))]

    def _lines(self) -> list[Op]:
        roll = self.dice.random()
        if roll < 0.12:
            return self._spawned()
        if roll < 0.66:
            return [self._line()]
        if roll < 0.86:
            one, other = self._line(), self._line()
            running = [name for name, kid in self.model.kids.items() if kid.phase == "started"]
            if running and self.dice.random() < 0.4:
                one, other = (self._debit(self.dice.choice(running)) for _ in range(2))
            if _apart(one, other):
                return [
                    script.Race(
                        [one, other],
                        [self.dice.randrange(2) for _ in range(self.dice.randrange(6))],
                    )
                ]
            return [one, other]
        if roll < 0.92:
            return [script.Wait(self.dice.choice((5_000_000, 20_000_000)))]
        crash: Op = script.Crash()
        if self.dice.random() < 0.6:
            crash = script.Crash(self.dice.choice(POINTS), self._line())
        dying = [
            script.Recover(dies=self.dice.choice(RECOVERY))
            for _ in range(self.dice.choice((0, 0, 1, 2)))
        ]
        return [crash, *dying, script.Recover(), self._opening()]

    def _opening(self) -> Op:
        limits = {lane: self.dice.randrange(5, 30) for lane in LANES if self.dice.random() < 0.6}
        return script.Open(cap=self.dice.randrange(1, 4), limits=limits)

    def _line(self) -> Op:
        """Something for a slot that is free, or for a child by what can happen to it."""
        dice = self.dice
        # One slot more than the cap allows: it must get nothing.
        free = [slot for slot in range(1, self.model.cap + 2) if not self.model.holder(slot)]
        if free and dice.random() < 0.5:
            return script.Lease(dice.choice(free))
        phase = dice.choice(("queued", "leased", "started", "started", "terminal"))
        there = [name for name, kid in self.model.kids.items() if kid.phase == phase]
        name = dice.choice(there or list(self.model.kids))
        if dice.random() < 0.15:
            return script.Cancel(name, f"r{dice.randrange(5)}")
        if phase == "leased" and dice.random() < 0.7:
            return script.Start(name)
        if phase == "leased":
            return script.Finish(name, "start_failed", 0)
        if phase == "started" and dice.random() < 0.6:
            return self._debit(name)
        reason = "completed" if dice.random() < 0.6 else dice.choice(FAILURES)
        retryable = reason == "execution_failed" and dice.random() < 0.5
        return script.Finish(
            child=name,
            reason=reason,
            micros=dice.randrange(900_000),
            detail={},
            retryable=retryable,
        )

    def _debit(self, name: str) -> Op:
        lanes = self.dice.sample(LANES, self.dice.randrange(1, 3))
        return script.Debit(
            name, {lane: self.dice.randrange(1, 9) for lane in lanes}, self.dice.random() < 0.25
        )


def _apart(one: Op, other: Op) -> bool:
    """Whether two lines can come at once: a slot does one thing after the other, and so does its
    child."""
    if isinstance(one, script.Cancel) or isinstance(other, script.Cancel):
        return True
    if isinstance(one, script.Debit) and isinstance(other, script.Debit | script.Finish):
        # A child's own threads may spend until the very end.
        return True
    if isinstance(one, script.Lease) or isinstance(other, script.Lease):
        # Whoever ends gives its slot to the next: another's lease could be of that very slot.
        return (
            isinstance(one, script.Lease)
            and isinstance(other, script.Lease)
            and one.slot != other.slot
        )
    return one.child != other.child  # type: ignore[union-attr]


def shrunk(ops: list[Op], seed: str, until: float) -> list[Op]:
    """The same wrong with fewer lines: ever smaller parts are left out while it stays wrong in
    the same way."""
    size, kind = max(1, len(ops) // 2), _kind(violation(ops, seed))
    while size and time.monotonic() < until:
        at, smaller = 0, False
        while at < len(ops) and time.monotonic() < until:
            fewer = ops[:at] + ops[at + size :]
            if fewer and _kind(violation(fewer, seed)) == kind:
                ops, smaller = fewer, True
            else:
                at += size
        size = size if smaller and size == 1 else size // 2
    return ops


def _kind(wrong: str) -> str:
    """What goes wrong, without where and with whom."""
    return re.sub(r"\d+|c\d[\d.]*", "", wrong.partition(":")[0]).strip() if wrong else ""


def _one(seed: str) -> tuple[str, str, int]:
    ops = schedule(seed)
    return seed, violation(ops, seed), len(ops)


def explore(count: int, seed: int, out: Path) -> int:
    begun = time.monotonic()
    seeds = (f"{seed}:{number}" for number in range(count))
    done = lines = 0
    with multiprocessing.get_context("spawn").Pool(os.cpu_count() or 1) as pool:
        for found, wrong, length in pool.imap_unordered(_one, seeds, chunksize=20):
            done, lines = done + 1, lines + length
            if wrong:
                pool.terminate()
                return _tell(found, wrong, done, out)
            if not done % 500 and sys.stderr.isatty():
                rate = done / (time.monotonic() - begun)
                print(
                    f"\r{done:,} of {count:,} schedules, {rate:,.0f} a second",
                    end="",
                    file=sys.stderr,
                )
    seconds = time.monotonic() - begun
    if sys.stderr.isatty():
        print(file=sys.stderr)
    lines = (
        sum(len(schedule(f"{seed}:{number}")) for number in range(min(count, 200)))
        * count
        // max(1, min(count, 200))
    )
    print(
        f"{done:,} schedules, {lines:,} lines, no violation; {done / seconds:,.0f} schedules a second"
    )
    return 0


def _tell(seed: str, wrong: str, done: int, out: Path) -> int:
    print(f"schedule {seed} goes wrong (found among the first {done:,}): {wrong}")
    small = shrunk(schedule(seed), seed, time.monotonic() + 60)
    said = violation(small, seed)
    fixture = Fixture(
        SCHEMA, f"explored-{seed.replace(':', '-')}", said[:300], small, start=START, seed=seed
    )
    out.write_bytes(written(fixture))
    print(f"made small, {len(small)} lines: {said}")
    for op in small:
        print("   ", json.dumps(msgspec.to_builtins(op)))
    print(f"again: {Path(sys.argv[0])} --again {out}    line by line: onceward gate play {out}")
    return 1


def main() -> int:
    asked = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    asked.add_argument("--count", type=int, default=2000)
    asked.add_argument("--seed", type=int, default=1)
    asked.add_argument(
        "--out",
        type=Path,
        default=Path("explored.json"),
        help="where a schedule that goes wrong is kept",
    )
    asked.add_argument("--again", type=Path, help="play a kept schedule again")
    given = asked.parse_args()
    if given.again is None:
        return explore(given.count, given.seed, given.out)
    kept = read_fixture(given.again.read_bytes(), given.again.name)
    wrong = violation(kept.script, kept.seed)
    print(wrong or "nothing goes wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
