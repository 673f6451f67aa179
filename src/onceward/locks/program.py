"""Whether a living process provably runs another program than the one that was recorded for it
(L-21).

A process that executes another program keeps its pid and its start time, and yet whatever it
held is held by nobody. Our `exe_sha256` is a digest of the package and of the interpreter's
version, and nobody can read it off another process. What can be read are the files that a
process has mapped as code. An interpreter of some version has that version in one of them; a
process none of whose files has it is no such interpreter. Anything that cannot be read, or that
is code without a file, is no proof."""

from __future__ import annotations

import mmap
import os
import platform
from pathlib import Path
from typing import Final

from onceward.locks.identity import start_of

_PROC: Final = Path("/proc")
_KERNEL_CODE: Final = ("[vdso]", "[vsyscall]")
_interpreters: dict[tuple[int, str], tuple[int, int]] = {}
"""Processes that were found to run our interpreter, with the file they ran then: waiting for a
lock asks often."""


def runs_another_program(pid: int, proc: Path = _PROC) -> bool:
    """Whether a process provably runs no Python of this version. False where nobody can tell."""
    who = (pid, start_of(pid))
    try:
        ran = (proc / str(pid) / "exe").stat()
        file = (ran.st_dev, ran.st_ino)
        if _interpreters.get(who) == file:
            return False
        before = _code_of(proc, pid)
        proved = bool(before) and not any(_has_version(path) for path in before)
        if proved:
            # What was read must be what it still runs, and the method must find an interpreter
            # where there is one.
            return _code_of(proc, pid) == before and any(map(_has_version, _own_code()))
    except (OSError, ValueError):
        return False
    if len(_interpreters) > 100:
        _interpreters.clear()
    _interpreters[who] = file
    return False


def _own_code() -> list[Path]:
    return _code_of(_PROC, os.getpid())


def _code_of(proc: Path, pid: int) -> list[Path]:
    """The files that a process has mapped as code, as it sees them; ValueError if some code has
    no file to read."""
    found: dict[Path, None] = {}
    for line in (proc / str(pid) / "maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if "x" not in fields[1]:
            continue
        name = fields[5] if len(fields) > 5 else ""
        if name in _KERNEL_CODE:
            continue
        if not name.startswith("/") or name.endswith(" (deleted)"):
            raise ValueError("code that nobody can read")
        found[proc / str(pid) / "root" / name.lstrip("/")] = None
    return list(found)


def _has_version(path: Path) -> bool:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(platform.python_version().encode()) >= 0
