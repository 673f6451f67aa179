"""A file tree as a change sees it: which files, what bytes, which modes; never a step outside of it (H-2, H-5)."""

from __future__ import annotations

import fnmatch
import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple

from onceward.errors import BaseDrift, InvalidConfig
from onceward.kernel.canon import canonical, sha256_hex
from onceward.kernel.changes import LINK, Unit
from onceward.kernel.limits import MAX_OUTPUT_FILES
from onceward.lifecycles.manifest import check_link, is_machinery

_CHUNK: Final = 1 << 20
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class File(NamedTuple):
    """A file by its content and permissions; a link by where it leads."""

    sha256: str
    mode: int


ODD: Final = File("", 0)
"""Something that no change can be made on: a folder, a pipe, what cannot be read."""


class Tree:
    """A folder whose files are looked at, put in place and removed by their path in it. Every folder on the way is
    opened by itself and never through a link, so that nobody can lead us out by putting one there."""

    def __init__(self, root: Path) -> None:
        try:
            self._root = os.open(root, _FOLDER)
        except OSError:
            raise InvalidConfig(f"{root} is no folder", context={"folder": str(root)}) from None
        self.root = root

    def __enter__(self) -> Tree:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._root)

    def look(self, path: str) -> File | None:
        """What is there; None where nothing is."""
        with self._above(path) as above:
            return None if above is None else _look(path.rpartition("/")[2], above)

    def put(self, staged: str, path: str) -> None:
        """Move a file that was staged in the tree into its place."""
        with self._above(staged) as source, self._above(path, make=True) as above:
            assert source is not None and above is not None
            name = path.rpartition("/")[2]
            with suppress(OSError):
                # A folder that the change has emptied gives way to the file that takes its name.
                os.rmdir(name, dir_fd=above)
            try:
                os.rename(staged.rpartition("/")[2], name, src_dir_fd=source, dst_dir_fd=above)
            except IsADirectoryError:
                raise BaseDrift(f"{path} is a folder now, with something in it", context={"paths": [path]}) from None

    def remove(self, path: str) -> None:
        """Remove a file, and the folders that are empty without it."""
        with self._above(path) as above:
            if above is not None:
                os.unlink(path.rpartition("/")[2], dir_fd=above)
        self.prune(path)

    def prune(self, path: str) -> None:
        """Remove the folders above a path that hold nothing any more."""
        folder = path.rpartition("/")[0]
        while folder:
            try:
                with self._above(folder) as above:
                    os.rmdir(folder.rpartition("/")[2], dir_fd=above)
            except OSError:
                return
            folder = folder.rpartition("/")[0]

    def folder(self, path: str) -> Path | None:
        """The folder of a path, if that is what it is."""
        place = self.root / path
        return place if place.is_dir() and not place.is_symlink() else None

    def file_above(self, path: str) -> str:
        """The path of a file where a folder on the way should be; empty if there is none."""
        parts = path.split("/")
        ways = ["/".join(parts[:end]) for end in range(1, len(parts))]
        return next((way for way in ways if (self.root / way).is_file()), "")

    @contextmanager
    def _above(self, path: str, make: bool = False) -> Iterator[int | None]:
        """The folder that a path lies in, opened; None where there is none, unless it is to be made."""
        at: int | None = os.dup(self._root)
        try:
            for part in path.split("/")[:-1]:
                assert at is not None
                below = _step(part, at, path, make)
                os.close(at)
                at = below
                if at is None:
                    break
            yield at
        finally:
            if at is not None:
                os.close(at)


def _step(part: str, at: int, path: str, make: bool) -> int | None:
    for _ in range(2):
        try:
            return os.open(part, _FOLDER, dir_fd=at)
        except FileNotFoundError:
            if not make:
                return None
            with suppress(FileExistsError):
                os.mkdir(part, 0o777, dir_fd=at)
        except OSError as error:
            found = os.stat(part, dir_fd=at, follow_symlinks=False)
            if stat.S_ISREG(found.st_mode) and not make:
                return None
            what = "a link" if stat.S_ISLNK(found.st_mode) else "no folder of its own"
            raise BaseDrift(
                f"{path} would leave the tree: {part} is {what}", context={"paths": [path], "errno": error.errno}
            ) from None
    raise BaseDrift(f"{path} cannot be reached: its folder comes and goes", context={"paths": [path]})


def _look(name: str, above: int) -> File | None:
    try:
        found = os.stat(name, dir_fd=above, follow_symlinks=False)
        if stat.S_ISLNK(found.st_mode):
            return File(sha256_hex(os.fsencode(os.readlink(name, dir_fd=above))), LINK)
        if not stat.S_ISREG(found.st_mode):
            return ODD
        return _hashed(os.open(name, _FILE, dir_fd=above))
    except FileNotFoundError:
        return None
    except OSError:
        return ODD


def _hashed(handle: int) -> File:
    """A file's content and permissions, of one and the same open file."""
    with os.fdopen(handle, "rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if not stat.S_ISREG(mode):
            return ODD
        made = hashlib.sha256()
        while piece := file.read(_CHUNK):
            made.update(piece)
    return File(made.hexdigest(), stat.S_IMODE(mode) & 0o777)


def scan(root: Path, ignore: Sequence[str] = (), links: bool = False) -> dict[str, File]:
    """Every file of a tree by its path in it. Odd things are refused, and links unless they are declared: nobody could
    say what they mean somewhere else."""
    found: dict[str, File] = {}
    with Tree(root) as tree:
        for path, entry in _walk(root, "", ignore):
            if entry.is_symlink() and not links:
                raise InvalidConfig(
                    f"{path} is a link; say so if links are meant (--links)", context={"path": path, "field": "links"}
                )
            seen = tree.look(path)
            if seen is None or seen == ODD:
                raise InvalidConfig(f"{path} is no file that can be read", context={"path": path})
            if seen.mode == LINK:
                check_link(path, str(Path(entry.path).readlink()))
            found[path] = seen
            if len(found) > MAX_OUTPUT_FILES:
                raise InvalidConfig(f"{root} has more than {MAX_OUTPUT_FILES:,} files", context={"folder": str(root)})
    return found


def listing(root: Path, ignore: Sequence[str] = ()) -> list[str]:
    """The path of everything in a tree that is no folder, without a look at its content."""
    return [path for path, _ in _walk(root, "", ignore)]


def _walk(folder: Path, above: str, ignore: Sequence[str]) -> Iterator[tuple[str, os.DirEntry[str]]]:
    with os.scandir(folder) as entries:
        inside = sorted(entries, key=lambda entry: entry.name)
    for entry in inside:
        if is_machinery(entry.name) or any(fnmatch.fnmatchcase(entry.name, name) for name in ignore):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path), f"{above}{entry.name}/", ignore)
        else:
            yield f"{above}{entry.name}", entry


def digest_of(files: dict[str, File]) -> str:
    """A whole tree in one digest."""
    return sha256_hex(canonical({path: [file.sha256, file.mode] for path, file in files.items()}))


def difference(base: dict[str, File], tree: dict[str, File]) -> list[Unit]:
    """What has to become what, for the base to become the tree."""
    return [
        unit_of(path, base.get(path), tree.get(path))
        for path in sorted({*base, *tree})
        if base.get(path) != tree.get(path)
    ]


def unit_of(path: str, before: File | None, after: File | None) -> Unit:
    was, will = before or (None, None), after or (None, None)
    return Unit(path, was[0], will[0], was[1], will[1])


def before(unit: Unit) -> File | None:
    return None if unit.before is None else File(unit.before, unit.before_mode or 0)


def after(unit: Unit) -> File | None:
    return None if unit.after is None else File(unit.after, unit.after_mode or 0)
