"""Names of files between the operating system and the record."""

from __future__ import annotations

import os

from onceward.core.paths import path_text, raw_path


def recorded_path(name: str | bytes) -> str:
    """A path of the operating system as it is recorded."""
    return path_text(os.fsencode(name))


def os_path(text: str) -> str:
    """A recorded path as the operating system knows it."""
    return os.fsdecode(raw_path(text))
