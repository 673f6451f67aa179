"""Files that are there after a power cut: written aside, synced, then given their name."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from onceward.errors import InvalidConfig


def publish(partial: Path, path: Path) -> None:
    """Give a finished file its name, unless something took the name meanwhile."""
    try:
        os.link(partial, path)
    except FileExistsError:
        raise InvalidConfig(f"{path} appeared meanwhile; nothing is overwritten") from None
    sync_folder(path.parent)


def write_aside(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Write a new file and sync it. It has no name that anybody reads until it is renamed or
    linked into place."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)


def replace(path: Path, data: bytes, *, aside: Path, mode: int = 0o600) -> None:
    """Put a file in place whole or not at all; `aside` is where it is written first, in the same
    folder."""
    aside.unlink(missing_ok=True)
    try:
        write_aside(aside, data, mode=mode)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_all(folder: Path) -> None:
    """Make everything written below a folder durable, in one call for its whole filesystem."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
        if syncfs is None:
            os.sync()
        elif syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(descriptor)
