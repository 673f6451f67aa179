"""Subprocess children per second, handshake and all, against a bare spawn of the same program
(P-7)."""

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

from onceward.locks.watch import watch
from onceward.processes.launcher import Processes, ProcessOrder, environment

CHILDREN, ROUNDS = 240, 5
PROGRAM = "/bin/true"


def ours(processes: Processes, names: itertools.count[int]) -> Callable[[], None]:
    env = environment((), {})

    def once() -> None:
        order = ProcessOrder(f"chd_{os.getpid()}_{next(names)}", [PROGRAM], Path("/"), env)
        watch(processes.start(order, lambda who: None), None, 5.0)

    return once


def bare() -> None:
    os.waitpid(os.posix_spawn(PROGRAM, [PROGRAM], os.environ), 0)


def captured() -> None:
    subprocess.run([PROGRAM], capture_output=True, stdin=subprocess.DEVNULL, check=True)


def rate(once: Callable[[], None], jobs: int) -> float:
    def work() -> None:
        for _ in range(CHILDREN // jobs):
            once()

    threads = [threading.Thread(target=work) for _ in range(jobs)]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return CHILDREN / (time.perf_counter() - begun)


def main() -> None:
    processes = Processes()
    kinds = {
        "onceward child": ours(processes, itertools.count()),
        "posix_spawn": bare,
        "subprocess.run": captured,
    }
    found: dict[tuple[str, int], list[float]] = {}
    for _ in range(ROUNDS):
        for jobs in (1, 8):
            for name, once in kinds.items():
                found.setdefault((name, jobs), []).append(rate(once, jobs))
    processes.close()
    print(f"Children per second running {PROGRAM}, medians of {ROUNDS} interleaved rounds\n")
    for (name, jobs), rates in found.items():
        print(f"  {name:16s} {jobs} at a time {statistics.median(rates):8,.0f}")
    print()
    for jobs, peer in itertools.product((1, 8), ("posix_spawn", "subprocess.run")):
        pairs = zip(found["onceward child", jobs], found[peer, jobs], strict=True)
        ratio = statistics.median(a / b for a, b in pairs)
        print(
            f"  P-7  {jobs} at a time / {peer:15s} {ratio:5.2f}   must 0.4   {'met' if ratio >= 0.4 else 'MISSED'}"
        )


if __name__ == "__main__":
    main()
