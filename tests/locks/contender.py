"""Many processes fight for a few targets and are killed at random; an independent witness counts double holders.

The witness is an flock on a file of its own per target, taken only while the target lock is held; it knows nothing of
claims.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import random
import signal
import struct
import sys
from pathlib import Path

from onceward.core import faults
from onceward.locks import TargetLock, TargetLocked

POINTS = [name for name in faults.POINTS if name.startswith("target.")]


class Board:
    """Counters that survive the death of who counts: acquired, double, conflicts, per process."""

    def __init__(self, slots: int) -> None:
        self.memory = mmap.mmap(-1, slots * 24)

    def add(self, slot: int, column: int) -> None:
        at = slot * 24 + column * 8
        (value,) = struct.unpack_from("q", self.memory, at)
        struct.pack_into("q", self.memory, at, value + 1)

    def total(self, column: int) -> int:
        return sum(
            struct.unpack_from("q", self.memory, at)[0]
            for at in range(column * 8, len(self.memory), 24)
        )


def fight(
    folder: Path, witnesses: Path, slot: int, board: Board, targets: int, dice: random.Random
) -> None:
    lock = TargetLock(folder)
    if dice.random() < 0.5:
        faults.arm(dice.choice(POINTS), dice.randint(1, 300))
    for _ in range(dice.randint(50, 1500)):
        target = f"t{dice.randrange(targets)}"
        try:
            claim = lock.acquire(target)
        except TargetLocked:
            board.add(slot, 2)
            continue
        witness = os.open(witnesses / target, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(witness, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            board.add(slot, 1)
        if dice.random() < 0.002:
            os.kill(os.getpid(), signal.SIGKILL)
        board.add(slot, 0)
        os.close(witness)
        lock.release(claim)


def campaign(folder: Path, processes: int, targets: int, wanted: int, seed: int) -> dict[str, int]:
    witnesses = folder.parent / "witnesses"
    witnesses.mkdir()
    board = Board(processes)
    living: dict[int, int] = {}
    born = killed = 0
    while board.total(0) < wanted:
        for slot in set(range(processes)) - set(living.values()):
            born += 1
            child = os.fork()
            if child == 0:
                fight(
                    folder, witnesses, slot, board, targets, random.Random(seed * 1_000_003 + born)
                )
                os._exit(0)
            living[child] = slot
        child, status = os.waitpid(-1, 0)
        killed += os.waitstatus_to_exitcode(status) == -signal.SIGKILL
        del living[child]
    for child in living:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        killed += 1
    stuck = 0
    lock = TargetLock(folder)
    for number in range(targets):
        try:
            lock.release(lock.acquire(f"t{number}"))
        except TargetLocked as locked:
            print(locked, file=sys.stderr)
            stuck += 1
    return {
        "acquired": board.total(0),
        "double": board.total(1),
        "conflicts": board.total(2),
        "killed": killed,
        "stuck": stuck,
        # The mark of one who died between taking a dead claim away and putting theirs there is in nobody's way: the
        # next who takes over from the dead clears it.
        "left": len(
            [p for p in folder.iterdir() if p.name != ".guards" and p.suffix != ".reclaim"]
        ),
    }


if __name__ == "__main__":
    if sys.argv[6:] == ["named"]:
        # As on a system without unnamed files: what the killed were writing must go as well.
        del os.O_TMPFILE
    print(json.dumps(campaign(Path(sys.argv[1]), *map(int, sys.argv[2:6]))))
