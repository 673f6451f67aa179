"""The files of a lock folder: complete, synced and locked before they have their name; leftovers
go."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from onceward.core import faults
from onceward.errors import StorageError
from onceward.locks.claims import SUFFIX

GUARDS: Final = ".guards"
_ASIDE: Final = ".new"
_ASIDE_ATTEMPTS: Final = 100
_NO_UNNAMED_FILES = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.25


def place(path: Path, data: bytes) -> int | None:
    """Put a complete, synced, locked file in place in one step.

    Its descriptor, which holds the lock; None where the place is taken."""
    descriptor, name = _open_aside(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _write_all(descriptor, data)
        # A name may reach the disk before the bytes do: without this a power cut leaves an empty
        # claim. The folder is not synced: a claim that is lost with the power has no live holder.
        os.fsync(descriptor)
        faults.point("target.written")
        # With a folder descriptor Python calls linkat, which follows /proc's link to the file.
        os.link(name, path, src_dir_fd=descriptor, follow_symlinks=True)
    except FileExistsError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    finally:
        if not name.startswith("/proc/"):
            Path(name).unlink(missing_ok=True)
    return descriptor


def _open_aside(path: Path) -> tuple[int, str]:
    """A file that nobody takes for a claim, and the name to link it from."""
    try:
        descriptor = os.open(path.parent, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except (OSError, AttributeError) as error:
        if isinstance(error, OSError) and error.errno not in _NO_UNNAMED_FILES:
            raise
        return _open_named_aside(path)
    return descriptor, f"/proc/self/fd/{descriptor}"


def _open_named_aside(path: Path) -> tuple[int, str]:
    """The same where the system knows no unnamed files: locked, so that no sweep removes it."""
    # Imported late: few systems need it, and every command would pay for it.
    import tempfile

    sweep(path.parent)
    for _ in range(_ASIDE_ATTEMPTS):
        descriptor, name = tempfile.mkstemp(_ASIDE, f"{path.name}.", path.parent)
        # A sweep may come between the making and the locking: then the name is no longer ours.
        if _try_flock(descriptor) and _is_named(descriptor, Path(name)):
            return descriptor, name
        os.close(descriptor)
        Path(name).unlink(missing_ok=True)
    raise OSError(errno.EBUSY, "other processes keep removing the file a claim is written to")


def sweep(folder: Path) -> None:
    """Remove what killed processes were writing: files aside that nobody has locked.

    A writer locks its file before it uses it, and the system frees the lock when it dies."""
    for path in folder.glob(f"*{SUFFIX}.*{_ASIDE}"):
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    continue
                # Shared: a leftover may be a second name of a dead claim, which others look at.
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                if _is_named(descriptor, path):
                    path.unlink()
            finally:
                os.close(descriptor)


@contextmanager
def guard(folder: Path, target: str, seconds: float) -> Iterator[bool]:
    """The permanent guard file of a target, locked by the system: a process that dies inside frees
    it.

    Yields whether it was got within so many seconds: whoever has it may be stopped."""
    descriptor = _open_guard(folder / GUARDS / target)
    try:
        yield _flock_within(descriptor, seconds)
    finally:
        os.close(descriptor)


def _open_guard(path: Path) -> int:
    flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        try:
            return os.open(path, flags, 0o600)
        except FileNotFoundError:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            return os.open(path, flags, 0o600)
    except OSError as error:
        raise StorageError(f"cannot open the guard file {path}: {error.strerror}") from error


def _flock_within(descriptor: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    for pause in pauses():
        if _try_flock(descriptor):
            return True
        left = deadline - time.monotonic()
        if left <= 0:
            break
        time.sleep(min(pause, left))
    return False


def pauses() -> Iterator[float]:
    """How long to wait between one try and the next, in seconds: growing, up to a limit."""
    pause = _FIRST_PAUSE
    while True:
        yield pause
        pause = min(pause * 2, _LONGEST_PAUSE)


def _try_flock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_named(descriptor: int, path: Path) -> bool:
    """Whether an open file still has this name."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
