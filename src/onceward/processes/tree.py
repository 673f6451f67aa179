"""The processes of children when no supervisor answers for them: found by evidence, ended, and
proven gone.

Four things say that a process belongs to a child: the mark in its environment, the session of
the child's first process, a parent that belongs to it, and an open descriptor that only the
child was given (its witness, or the claim on its target). The first three are looked up for all
children in one look at the process table. The last is asked by the system's file locks: while
the file is locked, something of the tree lives, wherever it hides."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

import msgspec

from onceward.locks.claims import is_locked
from onceward.locks.identity import Identity, boot_id, start_of, stat_of

MARK = "ONCEWARD_CHILD"
"""In the environment of everything a child starts: whose it is."""
KERNEL = "ONCEWARD_KERNEL"
"""In the environment of a supervisor: whose it is."""
_AGAIN_SECONDS = 0.01
_LOOKS = 3


class ProcessTree(msgspec.Struct, frozen=True):
    """The evidence by which the processes of one child, or of one kernel's supervisors, are
    found."""

    name: str
    """The child's id, or the kernel's mark."""
    leader: Identity | None = None
    """The child's first process; its session is the child's."""
    witnesses: tuple[Path, ...] = ()
    """Files that are locked for as long as a process has the descriptor that the child
    inherited."""
    spared: int = 0
    """A process that may have the same descriptors and is not to be ended: a kernel not proven
    gone."""
    kind: str = MARK

    @property
    def mark(self) -> bytes:
        return f"{self.kind}={self.name}".encode()


class Remains(msgspec.Struct, frozen=True):
    """The processes of a tree that could not be ended; false where it is proven gone."""

    pids: Sequence[int] = ()
    held: Sequence[Path] = ()
    """Witnesses still locked by processes that could not be found or ended."""

    def __bool__(self) -> bool:
        return bool(self.pids or self.held)

    def described(self) -> str:
        if self.pids:
            return f"processes {list(self.pids)} could not be ended"
        names = ", ".join(path.name for path in self.held)
        return f"a process that could not be found or ended still has {names} open"


class ProcessRow(msgspec.Struct, frozen=True):
    """One line of the process table."""

    pid: int
    parent: int
    session: int
    start: str


def supervisors_of(kernel: Identity) -> ProcessTree:
    """The supervisors that a dead kernel left, stuck or stopped, and everything they started or
    adopted."""
    return ProcessTree(kernel_mark(kernel), kind=KERNEL)


def kernel_mark(kernel: Identity) -> str:
    return f"{kernel.pid}-{kernel.process_start}"


def living(trees: Sequence[ProcessTree]) -> dict[str, list[ProcessRow]]:
    """The living processes of each tree by its name, in one look at the process table; zombies
    do not live."""
    marks = {tree.mark: tree.name for tree in trees}
    sessions = {session: tree.name for tree in trees if (session := _session_of(tree.leader))}
    table = {process.pid: process for process in _process_table()}
    # We may be a descendant of a child ourselves; what we started is ours.
    table.pop(os.getpid(), None)
    owners: dict[int, str | None] = {}
    for process in table.values():
        owners[process.pid] = sessions.get(process.session) or _marked(process.pid, marks)
    for pid in table:
        _inherit(pid, table, owners)
    found: dict[str, list[ProcessRow]] = {tree.name: [] for tree in trees}
    for pid, owner in owners.items():
        if owner is not None:
            found[owner].append(table[pid])
    return found


def end(tree: ProcessTree, seconds: float) -> Remains:
    """Kill what is left of one tree; answers what could not be ended in time."""
    return end_all([tree], seconds)[tree.name]


def end_all(trees: Sequence[ProcessTree], seconds: float) -> dict[str, Remains]:
    """Kill what is left of trees until nothing is found and no witness is held.

    One look is no proof: a process can start after the list was made, or be between two programs
    and show no mark."""
    if not trees:
        return {}
    deadline = time.monotonic() + seconds
    supervisors = {tree.name for tree in trees if tree.kind == KERNEL}
    empty = 0
    while True:
        found = living(trees)
        held = {} if any(found.values()) else _held_witnesses(trees)
        empty = 0 if held or any(found.values()) else empty + 1
        late = not empty and time.monotonic() > deadline
        children = {name: some for name, some in found.items() if name not in supervisors}
        # While a supervisor lives, what hides from everything else is still its child: it goes
        # last.
        first = children if any(children.values()) and not late else found
        for process in chain.from_iterable(first.values()):
            _kill(process)
        for process in _holders(trees, held):
            _kill(process)
        if late or empty == _LOOKS:
            return {
                tree.name: Remains(
                    [process.pid for process in found[tree.name]], held.get(tree.name, ())
                )
                for tree in trees
            }
        time.sleep(_AGAIN_SECONDS)


def _held_witnesses(trees: Sequence[ProcessTree]) -> dict[str, list[Path]]:
    """The witnesses that are still locked, by the name of their tree."""
    held = {tree.name: [path for path in tree.witnesses if is_locked(path)] for tree in trees}
    return {name: paths for name, paths in held.items() if paths}


def _holders(trees: Sequence[ProcessTree], held: Mapping[str, Sequence[Path]]) -> list[ProcessRow]:
    """The processes that have a held witness open, as far as the system shows us their
    descriptors."""
    files = set()
    for path in chain.from_iterable(held.values()):
        with suppress(OSError):
            found = path.stat()
            files.add((found.st_dev, found.st_ino))
    if not files:
        return []
    spared = {os.getpid(), *(tree.spared for tree in trees)}
    return [
        process
        for process in _process_table()
        if process.pid not in spared and not files.isdisjoint(_open_files(process.pid))
    ]


def _open_files(pid: int) -> Iterator[tuple[int, int]]:
    with suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                found = descriptor.stat()
                yield found.st_dev, found.st_ino


def _process_table() -> list[ProcessRow]:
    """Every process of the system but zombies."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            fields = stat_of(int(entry.name))
            # One whose first thread has ended and whose others run shows as a zombie too.
            if fields and not (fields[0] == "Z" and int(fields[17]) <= 1):
                found.append(
                    ProcessRow(
                        pid=int(entry.name),
                        parent=int(fields[1]),
                        session=int(fields[3]),
                        start=fields[19],
                    )
                )
    return found


def _inherit(
    pid: int, table: Mapping[int, ProcessRow], owners: dict[int, str | None]
) -> str | None:
    """Whose a process is: by itself, else as its parent is."""
    line = []
    while owners.get(pid) is None and pid in table and pid not in line:
        line.append(pid)
        pid = table[pid].parent
    owner = owners.get(pid)
    for descendant in line:
        owners[descendant] = owner
    return owner


def _kill(process: ProcessRow) -> None:
    """Through a descriptor of the process, so that a pid reused meanwhile is not struck."""
    with suppress(OSError):
        handle = os.pidfd_open(process.pid)
        try:
            if start_of(process.pid) == process.start:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)


def _session_of(leader: Identity | None) -> int:
    """The session of a child, 0 where it has none any more.

    Its number is not given again while it has members: another process of that pid means it has
    none."""
    if leader is None or leader.pid <= 0 or leader.boot_id != boot_id():
        return 0
    return leader.pid if start_of(leader.pid) in ("", leader.process_start) else 0


def _marked(pid: int, marks: Mapping[bytes, str]) -> str | None:
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    return next((marks[word] for word in words if word in marks), None)
