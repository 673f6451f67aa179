"""Input files by content: each is read once, and again only when it is no longer the same file."""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from onceward.errors import InvalidConfig

_CHUNK = 1 << 18


class Files:
    """The files below a folder, by names relative to it: so the same tree elsewhere gives the
    same names."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._seen: dict[str, tuple[tuple[int, ...], str]] = {}

    def digest(self, name: str) -> str:
        """The SHA-256 of a file's content; INVALID_CONFIG if it cannot be read."""
        path = self.folder / name
        try:
            found = path.stat()
            mark = (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
            known = self._seen.get(name)
            if known is not None and known[0] == mark:
                return known[1]
            said = hashlib.sha256()
            with path.open("rb") as file:
                while piece := file.read(_CHUNK):
                    said.update(piece)
        except OSError as error:
            raise InvalidConfig(
                f"cannot read the input {name}: {error.strerror}",
                context={"file": name, "field": "inputs"},
            ) from None
        self._seen[name] = (mark, said.hexdigest())
        return said.hexdigest()

    def match(self, pattern: str, field: str) -> list[str]:
        """The files that a pattern means, by code point; one that means none is a mistake."""
        if not pattern or pattern.startswith("/") or ".." in pattern.split("/"):
            raise InvalidConfig(
                f"{pattern!a} does not stay in the plan's folder; write a path relative to it",
                context={"field": field},
            )
        found = sorted(self._files(pattern))
        if not found:
            what = (
                f"no file matches {pattern}"
                if glob.has_magic(pattern)
                else f"there is no file {pattern}"
            )
            raise InvalidConfig(
                f"{what} in {self.folder}", context={"field": field, "file": pattern}
            )
        return found

    def matches(self, patterns: Sequence[str], field: str) -> list[str]:
        """The files of several patterns, each once, by code point."""
        return sorted({name for pattern in patterns for name in self.match(pattern, field)})

    def _files(self, pattern: str) -> Iterator[str]:
        if not glob.has_magic(pattern):
            if (self.folder / pattern).is_file():
                yield os.path.normpath(pattern)
            return
        for name in glob.iglob(pattern, root_dir=self.folder, recursive=True):  # noqa: PTH207
            if (self.folder / name).is_file():
                yield name
