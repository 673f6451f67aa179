"""Where new files wait until they are moved into a tree: outside the tree wherever a rename can reach it, so that a
killed cut leaves nothing in the tree."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from onceward.artifacts.file_names import os_path
from onceward.artifacts.trees import FOLDER, Tree
from onceward.core.tree_paths import TREE
from onceward.errors import InvalidConfig, Recovery
from onceward.kernel.parts import Part
from onceward.store.port import Reads
from onceward.store.tables.changes import Changes

STAGING: Final = "staging"
"""The folder of a workspace that staged files are in."""


class Staging:
    """The folder of one change set: in the workspace, or, where that lies on another filesystem, in the tree."""

    def __init__(self, root: Path, folder: Path, name: str) -> None:
        self._outside, self._inside = folder / name, in_tree(root, name)
        self._root = root

    @contextmanager
    def opened(self) -> Iterator[Tree]:
        """The folder, made if it is not there."""
        try:
            self._outside.parent.mkdir(mode=0o700, exist_ok=True)
            os.close(os.open(self._outside.parent, FOLDER))
        except OSError as error:
            raise InvalidConfig(
                f"{self._outside.parent} is no folder of this workspace: {error.strerror}",
                context={"folder": str(self._outside.parent)},
                recovery=[Recovery("remove it, then cut again")],
            ) from None
        near = _mount_of(self._outside.parent) == _mount_of(self._root)
        folder = self._outside if near else self._inside
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        with Tree(folder) as tree:
            yield tree

    def remove(self) -> None:
        for folder in (self._outside, self._inside):
            remove_folder(folder)


def clear_leftovers(rows: Reads, folder: Path, home: Path) -> None:
    """Remove what killed cuts had staged; a cut that is resumed stages it again."""
    shutil.rmtree(folder / STAGING, ignore_errors=True)
    for change_set_id, target in Changes(rows).unfinished_sets(TREE):
        remove_folder(in_tree(home / os_path(target), change_set_id))


PART = Part(name="change", clear=clear_leftovers)


def in_tree(root: Path, change_set_id: str) -> Path:
    return root / f".onceward-{change_set_id}"


def remove_folder(folder: Path) -> None:
    """Remove a staging folder, if it is one: never through a link."""
    if not folder.is_symlink():
        shutil.rmtree(folder, ignore_errors=True)


def _mount_of(folder: Path) -> tuple[int, str]:
    """Where a folder is mounted: files are renamed within one mount only, be it the same device."""
    descriptor = os.open(folder, FOLDER)
    try:
        device, mount = os.fstat(descriptor).st_dev, ""
        with suppress(OSError):
            for line in Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines():
                mount = line if line.startswith("mnt_id:") else mount
        return device, mount
    finally:
        os.close(descriptor)
