"""A file tree as a change sees it: which files, what bytes, which modes; never a step outside of it (H-2, H-5)."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from onceward.errors import InvalidConfig
from onceward.kernel.changes import Unit
from onceward.kernel.limits import MAX_OUTPUT_FILES
from onceward.lifecycles.change import is_machinery

_CHUNK: Final = 1 << 20


class File(NamedTuple):
    """A regular file by its content and permissions."""

    sha256: str
    mode: int


def scan(root: Path) -> dict[str, File]:
    """Every file of a tree by its path in it. Links and other odd things are refused: nobody could say what they mean
    somewhere else."""
    if root.is_symlink() or not root.is_dir():
        raise InvalidConfig(f"{root} is no folder", context={"folder": str(root)})
    found: dict[str, File] = {}
    for path, entry in _walk(root, ""):
        if not entry.is_file(follow_symlinks=False):
            kind = "a link" if entry.is_symlink() else "neither file nor folder"
            raise InvalidConfig(f"{path} is {kind}, and a change is made of files", context={"path": path})
        found[path] = look(Path(entry.path))
        if len(found) > MAX_OUTPUT_FILES:
            raise InvalidConfig(f"{root} has more than {MAX_OUTPUT_FILES:,} files", context={"folder": str(root)})
    return found


def _walk(folder: Path, above: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if is_machinery(entry.name):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path), f"{above}{entry.name}/")
        else:
            yield f"{above}{entry.name}", entry


def look(path: Path) -> File:
    """A file's content and permissions, of one and the same open file."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise InvalidConfig(f"cannot read {path}: {error.strerror}", context={"path": str(path)}) from None
    with os.fdopen(handle, "rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if not stat.S_ISREG(mode):
            raise InvalidConfig(f"{path} is no file", context={"path": str(path)})
        made = hashlib.sha256()
        while piece := file.read(_CHUNK):
            made.update(piece)
    return File(made.hexdigest(), stat.S_IMODE(mode) & 0o777)


def difference(base: dict[str, File], tree: dict[str, File]) -> list[Unit]:
    """What has to become what, for the base to become the tree."""
    units = []
    for path in sorted({*base, *tree}):
        before, after = base.get(path), tree.get(path)
        if before != after:
            units.append(
                Unit(
                    path,
                    before.sha256 if before else None,
                    after.sha256 if after else None,
                    before.mode if before else None,
                    after.mode if after else None,
                )
            )
    return units


def inside(root: Path, path: str) -> Path:
    """The place of a path in a tree, if no folder on the way to it leads out of the tree."""
    place = root
    for part in path.split("/")[:-1]:
        place = place / part
        if place.is_symlink() or (place.exists() and not place.is_dir()):
            raise InvalidConfig(f"{path} would leave the tree: {place} is no folder of its own", context={"path": path})
    return root / path
