"""Names of files between the operating system and the record."""

from __future__ import annotations

import os
from pathlib import Path

from onceward.core.paths import path_text, raw_path


def recorded_path(name: str | bytes) -> str:
    """A path of the operating system as it is recorded."""
    return path_text(os.fsencode(name))


def os_path(text: str) -> str:
    """A recorded path as the operating system knows it."""
    return os.fsdecode(raw_path(text))


def recorded_place(file: Path | None, home: Path) -> str:
    """A file as seen from the folder around the workspace, so that the record holds no place of
    this machine; empty for none."""
    if file is None:
        return ""
    return file.relative_to(home).as_posix() if file.is_relative_to(home) else str(file)
