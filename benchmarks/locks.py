"""Acquire and release a target lock against filelock and bare O_EXCL files, alone and with eight
processes on one."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, SoftFileLock, Timeout

from onceward.locks import TargetLock, TargetLocked

ALONE, TOGETHER_SECONDS, PROCESSES = 500, 0.8, 8


def ours(folder: Path) -> Callable[[], bool]:
    lock = TargetLock(folder / "ours")

    def once() -> bool:
        try:
            lock.release(lock.acquire("t"))
        except TargetLocked:
            return False
        return True

    return once


def soft(folder: Path) -> Callable[[], bool]:
    return theirs(folder, SoftFileLock)


def theirs(
    folder: Path, kind: type[FileLock] | type[SoftFileLock] = FileLock
) -> Callable[[], bool]:
    def once() -> bool:
        # A new object each time, as a dispatcher that meets a target for the first time has one.
        lock = kind(folder / "filelock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return False
        lock.release()
        return True

    return once


def raw(folder: Path, *, sync: bool = False) -> Callable[[], bool]:
    path = str(folder / "raw")

    def once() -> bool:
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return False
        os.write(descriptor, b"x" * 300)
        if sync:
            os.fsync(descriptor)
        os.close(descriptor)
        os.unlink(path)  # noqa: PTH108
        return True

    return once


def raw_synced(folder: Path) -> Callable[[], bool]:
    """What a claim that survives a power cut costs at least."""
    return raw(folder, sync=True)


def alone(make: Callable[[Path], Callable[[], bool]], folder: Path) -> float:
    once = make(folder)
    begun = time.perf_counter()
    for _ in range(ALONE):
        once()
    return ALONE / (time.perf_counter() - begun)


def together(make: Callable[[Path], Callable[[], bool]], folder: Path) -> float:
    """How many acquisitions eight processes get out of one target in a while; refusals do not
    count."""
    readers = []
    for _ in range(PROCESSES):
        reader, writer = os.pipe()
        if os.fork() == 0:
            once, done, end = make(folder), 0, time.perf_counter() + TOGETHER_SECONDS
            while time.perf_counter() < end:
                done += once()
            os.write(writer, str(done).encode())
            os._exit(0)
        os.close(writer)
        readers.append(reader)
    counts = [int(os.read(reader, 100)) for reader in readers]
    for reader in readers:
        os.close(reader)
        os.wait()
    return sum(counts) / TOGETHER_SECONDS


def main() -> None:
    kinds = {
        "onceward TargetLock": ours,
        "filelock FileLock": theirs,
        "SoftFileLock": soft,
        "raw O_EXCL": raw,
        "raw O_EXCL, synced": raw_synced,
    }
    found: dict[tuple[str, str], list[float]] = {}
    for _ in range(5):
        for name, make in kinds.items():
            for way, measure in (("alone", alone), ("8 processes", together)):
                folder = Path(tempfile.mkdtemp(prefix="onceward-bench-locks-"))
                found.setdefault((name, way), []).append(measure(make, folder))
                shutil.rmtree(folder)
    print("Target lock, acquire + release per second, medians of 5 interleaved rounds\n")
    for (name, way), rates in found.items():
        print(f"  {name:22s} {way:12s} {statistics.median(rates):9,.0f}")
    print()
    goals = (
        ("alone", "filelock FileLock", "must", 1.0),
        ("8 processes", "filelock FileLock", "must", 1.5),
        ("alone", "raw O_EXCL, synced", "moonshot", 1.0),
        ("8 processes", "raw O_EXCL, synced", "moonshot", 1.0),
    )
    for way, peer, kind, goal in goals:
        pairs = zip(found["onceward TargetLock", way], found[peer, way], strict=True)
        ratio = statistics.median(a / b for a, b in pairs)
        verdict = "met" if ratio >= goal else "MISSED"
        print(f"  P-8  {way:12s} / {peer:20s} {ratio:6.2f}   {kind} {goal}   {verdict}")


if __name__ == "__main__":
    main()
