"""A control group around one supervisor, where the system lets us: no process can leave it by
itself."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from onceward.locks.identity import Identity, start_of

_PREFIX = "onceward-"
_AGAIN_SECONDS = 0.01


class Cgroup:
    """A folder of cgroup v2. Everything started inside stays inside, and is ended by one write."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def around(cls, pid: int, kernel: Identity) -> Cgroup | None:
        """A new group with one process in it, or None where that is not permitted."""
        home = _home()
        if home is None:
            return None
        for leftover in home.glob(f"{_PREFIX}*"):
            # A kernel that was killed could not remove its own; one that still has processes
            # refuses to go.
            named = leftover.name.removeprefix(_PREFIX).split("-")
            if len(named) != 3 or not all(map(str.isdecimal, named)):
                continue
            if start_of(int(named[0])) != named[1]:
                Cgroup(leftover).remove()
        group = cls(home / _name(kernel, pid))
        try:
            group.folder.mkdir(mode=0o700)
            (group.folder / "cgroup.procs").write_text(str(pid))
        except OSError:
            group.remove()
            return None
        return group

    def kill(self, seconds: float) -> bool:
        """End everything inside; whether nothing is left."""
        deadline = time.monotonic() + seconds
        while self.populated() and time.monotonic() < deadline:
            with suppress(OSError):
                (self.folder / "cgroup.kill").write_text("1")
            time.sleep(_AGAIN_SECONDS)
        return not self.populated()

    def populated(self) -> bool:
        try:
            return "populated 1" in (self.folder / "cgroup.events").read_text()
        except OSError:
            return False

    def remove(self) -> None:
        """Empty as it is: what a kernel inside made in it goes first."""
        for inner in sorted(self.folder.glob(f"**/{_PREFIX}*"), reverse=True):
            with suppress(OSError):
                inner.rmdir()
        with suppress(OSError):
            self.folder.rmdir()


def groups_of(kernel: Identity) -> list[Cgroup]:
    """The groups that a kernel left: proof of what it started, even where every other trace was
    removed."""
    home = _home()
    return [] if home is None else [Cgroup(folder) for folder in home.glob(_name(kernel, "*"))]


def _name(kernel: Identity, supervisor: int | str) -> str:
    return f"{_PREFIX}{kernel.pid}-{kernel.process_start}-{supervisor}"


def _home() -> Path | None:
    """The folder of our own group in the unified hierarchy, if there is one."""
    try:
        mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        own = [
            line
            for line in Path("/proc/self/cgroup").read_text().splitlines()
            if line.startswith("0::")
        ]
    except OSError:
        return None
    points = [words[4] for words in mounts if words[words.index("-") + 1] == "cgroup2"]
    if not points or not own:
        return None
    home = Path(points[0] + own[0].removeprefix("0::").rstrip("/"))
    return home if home.is_dir() else None
