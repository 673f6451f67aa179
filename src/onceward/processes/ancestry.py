"""Whether a process stands inside a running child of a workspace (K-14): by the supervisor it
descends from, the mark in its or its ancestors' environment, its control group, and a witness that
it inherited.

A process that wants to hide from this can, with the help of another service of the same user
(cron, a container). It keeps honest programs from signing for people by accident; against a
hostile one only another user, a sandbox, or a key that needs a passphrase helps."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec

from onceward.locks.identity import start_of, stat_of
from onceward.processes.tree import KERNEL, MARK
from onceward.store.port import Reads
from onceward.store.store import Store
from onceward.store.tables.children import function_runs, live_child
from onceward.store.tables.singleton import holder_mark

_DEEPEST: Final = 1000
_GROUP: Final = re.compile(r"/onceward-(\d+)-(\d+)-\d+(?:/|$)")


class Ancestry(msgspec.Struct, frozen=True):
    """What the system tells about a process and its ancestors."""

    process: str = ""
    """The process itself, as `pid-start`."""
    ancestors: frozenset[str] = frozenset()
    """Its ancestors, each as `pid-start`."""
    kernels: frozenset[str] = frozenset()
    """The kernels whose supervisors it descends from, as `pid-start`."""
    children: frozenset[str] = frozenset()
    """The children whose mark it or an ancestor has."""
    witnesses: frozenset[str] = frozenset()
    """Witness files of children that it has open."""
    unseen: bool = False
    """Whether the system tells nothing, not even of the process itself: its /proc was taken
    away."""

    def child_of(self, rows: Reads, folder: Path) -> str:
        """The running child of a workspace that the process is in, by id or in words; empty if
        it is in none. The kernel is in none: it has a child's witness open for the moment in
        which it hands that over."""
        mark = holder_mark(rows)
        if mark and mark == self.process:
            return ""
        if mark and self.unseen:
            return "that it may be in (it sees no /proc, so nobody can tell)"
        for child_id in sorted(self.children):
            if live_child(rows, child_id):
                return child_id
        running = f"{folder.resolve() / 'running'}/"
        for path in sorted(self.witnesses):
            if path.startswith(running) and live_child(rows, Path(path).stem):
                return Path(path).stem
        if mark and mark in self.kernels:
            return "of the kernel that runs"
        # A kernel starts nothing of the kind itself: a function that runs in it did.
        started = mark in self.ancestors and function_runs(rows)
        return "of a function that runs in the kernel" if started else ""


def ancestry_of(pid: int) -> Ancestry:
    """Look a process up, with everything that it descends from."""
    kernels: set[str] = set()
    children: set[str] = set()
    ancestors: set[str] = set()
    for number, ancestor in enumerate(_line(pid)):
        if number > 0:
            ancestors.add(f"{ancestor}-{start_of(ancestor)}")
        marks = _environment(ancestor)
        if MARK in marks:
            children.add(marks[MARK])
        # A supervisor has its kernel's mark. Whoever descends from it was started by that kernel.
        if number > 0 and KERNEL in marks:
            kernels.add(marks[KERNEL])
    kernels |= {f"{found[1]}-{found[2]}" for found in _GROUP.finditer(_text(f"/proc/{pid}/cgroup"))}
    return Ancestry(
        process=f"{pid}-{start_of(pid)}",
        ancestors=frozenset(ancestors),
        kernels=frozenset(kernels),
        children=frozenset(children),
        witnesses=frozenset(_witnesses(pid)),
        unseen=sys.platform == "linux" and not stat_of(pid),
    )


def child_of_process(store: Store, folder: Path) -> Callable[[int], str]:
    """Answers of a process which running child of a workspace it is in; an empty text for none."""

    def child_of(pid: int) -> str:
        found = ancestry_of(pid)
        with store.read() as rows:
            return found.child_of(rows, folder)

    return child_of


def own_ancestry() -> Ancestry:
    """Of this process. What it did to its own environment counts for nothing; what it was
    started with does. Looked up once, and again when it gets another parent: nobody comes into a
    child later."""
    return _own(os.getpid(), os.getppid())


@lru_cache(maxsize=4)
def _own(pid: int, parent: int) -> Ancestry:
    return ancestry_of(pid)


def _line(pid: int) -> Iterator[int]:
    for _ in range(_DEEPEST):
        yield pid
        fields = stat_of(pid)
        if not fields or int(fields[1]) <= 1:
            return
        pid = int(fields[1])


def _environment(pid: int) -> dict[str, str]:
    words = _text(f"/proc/{pid}/environ").split("\0")
    return {
        name: value
        for name, _, value in (word.partition("=") for word in words)
        if name in (MARK, KERNEL)
    }


def _witnesses(pid: int) -> Iterator[str]:
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                place = os.readlink(entry)  # noqa: PTH115
                if place.endswith(".witness"):
                    yield place


def _text(file: str) -> str:
    try:
        return Path(file).read_bytes().decode("utf-8", "surrogateescape")
    except OSError:
        return ""
