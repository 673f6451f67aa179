"""A file tree as a change sees it: which files, what bytes, which modes; never a step outside of
it (H-2, H-5)."""

from __future__ import annotations

import fnmatch
import hashlib
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Final, NamedTuple

from onceward.artifacts.file_names import os_path, recorded_path
from onceward.core.canon import sha256_hex
from onceward.core.changes import LINK, Unit
from onceward.core.limits import MAX_OUTPUT_FILES
from onceward.core.tree_paths import check_link, is_machinery
from onceward.errors import BaseDrift, InvalidConfig

_CHUNK: Final = 1 << 20
FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NOTHING: Final[Mapping[str, int]] = MappingProxyType({})


class File(NamedTuple):
    """A file by its content and permissions; a link by where it leads."""

    sha256: str
    mode: int


ODD: Final = File("", 0)
"""Something that no change can be made on: a pipe, what cannot be read, what a link stands
before."""


class Tree:
    """A folder whose files are looked at, put in place and removed by their path in it. Every
    folder on the way is opened by itself and never through a link, so that nobody can lead us
    out by putting one there."""

    def __init__(self, root: Path, modes: Mapping[str, int] = _NOTHING) -> None:
        """`modes` are those of folders that may have to be made again."""
        try:
            self._root = os.open(root, FOLDER)
        except OSError:
            raise InvalidConfig(f"{root} is no folder", context={"folder": str(root)}) from None
        self.root, self._modes = root, modes

    def __enter__(self) -> Tree:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        os.close(self._root)

    def look(self, path: str) -> File | None:
        """The file at a path; None where there is none, or a folder."""
        try:
            with self._above(path) as above:
                return None if above is None else look_in(above, _name(path))
        except BaseDrift:
            return ODD

    def put(self, staging: Tree, staged: str, path: str) -> None:
        """Move a file that was staged elsewhere on the same filesystem into its place."""
        with self._above(path, make=True) as above:
            assert above is not None
            name = _name(path)
            with suppress(OSError):
                # A folder that the change has emptied gives way to the file that takes its name.
                os.rmdir(name, dir_fd=above)
            try:
                os.rename(staged, name, src_dir_fd=staging._root, dst_dir_fd=above)
            except IsADirectoryError:
                raise BaseDrift(
                    f"{path} is a folder now, with something in it", context={"paths": [path]}
                ) from None

    def remove(self, path: str, but: Iterable[str] = ()) -> None:
        """Remove a file, and the folders that are empty without it, but for some."""
        with self._above(path) as above:
            if above is not None:
                os.unlink(_name(path), dir_fd=above)
        folder = path.rpartition("/")[0]
        while folder and folder not in but:
            try:
                with self._above(folder) as above:
                    os.rmdir(folder.rpartition("/")[2], dir_fd=above)
            except OSError:
                return
            folder = folder.rpartition("/")[0]

    def make(self, path: str) -> None:
        """A folder, with the mode it is known by."""
        with self._above(f"{path}/.", make=True):
            pass

    def write(self, path: str, pieces: Iterable[bytes], mode: int) -> None:
        """A new file, or a new link to where its bytes say."""
        name = _name(path)
        with self._above(path) as above:
            assert above is not None
            if mode == LINK:
                os.symlink(b"".join(pieces), os.fsencode(name), dir_fd=above)
                return
            with os.fdopen(os.open(name, _NEW, 0o600, dir_fd=above), "wb") as file:
                for piece in pieces:
                    file.write(piece)
                file.flush()
                os.fchmod(file.fileno(), mode)

    def clear(self) -> None:
        """Remove every file of a folder that has no folders in it."""
        for name in os.listdir(self._root):  # noqa: PTH208
            os.unlink(name, dir_fd=self._root)

    def is_folder(self, path: str) -> bool:
        try:
            with self._above(f"{path}/.") as found:
                return found is not None
        except BaseDrift:
            return False

    def mode_of(self, folder: str) -> int:
        with self._above(f"{folder}/.") as found:
            assert found is not None
            return stat.S_IMODE(os.fstat(found).st_mode)

    def file_above(self, path: str) -> str:
        """The path of a file where a folder on the way should be; empty if there is none."""
        return next((way for way in folders_of(path) if (self.root / os_path(way)).is_file()), "")

    @contextmanager
    def _above(self, path: str, make: bool = False) -> Iterator[int | None]:
        """The folder that a path lies in, opened; None where there is none, unless it is to be
        made."""
        at: int | None = os.dup(self._root)
        try:
            way = ""
            for part in path.split("/")[:-1]:
                assert at is not None
                way = f"{way}/{part}" if way else part
                below = self._step(os_path(part), at, way, make)
                os.close(at)
                at = below
                if at is None:
                    break
            yield at
        finally:
            if at is not None:
                os.close(at)

    def _step(self, part: str, at: int, way: str, make: bool) -> int | None:
        made = False
        for _ in range(3):
            try:
                found = os.open(part, FOLDER, dir_fd=at)
                if made and way in self._modes:
                    os.fchmod(found, self._modes[way])
                return found
            except FileNotFoundError:
                if not make:
                    return None
                with suppress(FileExistsError):
                    os.mkdir(part, 0o777, dir_fd=at)
                    made = True
            except OSError as error:
                kind = os.stat(part, dir_fd=at, follow_symlinks=False).st_mode
                if stat.S_ISREG(kind) and not make:
                    return None
                what = "a link" if stat.S_ISLNK(kind) else "no folder of its own"
                raise BaseDrift(
                    f"{way} leads out of the tree: {part} is {what}",
                    context={"paths": [way], "errno": error.errno},
                ) from None
        raise BaseDrift(f"{way} cannot be reached: it comes and goes", context={"paths": [way]})


def _name(path: str) -> str:
    """The last part of a path, as the system spells it."""
    return os_path(path.rpartition("/")[2])


def folders_of(path: str) -> list[str]:
    """The folders that a path lies in, the outermost first."""
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts))]


def look_in(above: int, name: str, largest: int = sys.maxsize) -> File | None:
    """The file of a name in an open folder; one above `largest` bytes is known by its metadata
    only."""
    try:
        found = os.stat(name, dir_fd=above, follow_symlinks=False)
        if stat.S_ISLNK(found.st_mode):
            return File(sha256_hex(os.fsencode(os.readlink(name, dir_fd=above))), LINK)
        if stat.S_ISDIR(found.st_mode):
            return None
        if not stat.S_ISREG(found.st_mode):
            return ODD
        if found.st_size > largest:
            unread = f"{found.st_size} {found.st_ino} {found.st_mtime_ns} {found.st_ctime_ns}"
            return File(f"unread:{sha256_hex(unread.encode())}", stat.S_IMODE(found.st_mode))
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
    return File(made.hexdigest(), stat.S_IMODE(mode))


def scan(root: Path, ignore: Sequence[str] = (), links: bool = False) -> dict[str, File]:
    """Every file of a tree by its path in it. Odd things are refused, and links unless they are
    declared: nobody could say what they mean somewhere else."""
    found: dict[str, File] = {}
    with Tree(root) as tree:
        for path, entry in _walk(root, "", ignore):
            if entry.is_symlink() and not links:
                raise InvalidConfig(
                    f"{path} is a link; say so if links are meant (--links)",
                    context={"path": path, "field": "links"},
                )
            seen = tree.look(path)
            if seen is None or seen == ODD:
                raise InvalidConfig(f"{path} is no file that can be read", context={"path": path})
            if seen.mode == LINK:
                check_link(path, recorded_path(os.readlink(entry.path)))  # noqa: PTH115
            found[path] = seen
            if len(found) > MAX_OUTPUT_FILES:
                raise InvalidConfig(
                    f"{root} has more than {MAX_OUTPUT_FILES:,} files",
                    context={"folder": str(root)},
                )
    return found


def listing(root: Path, ignore: Sequence[str] = ()) -> list[str]:
    """The path of everything in a tree that is no folder, or cannot be looked into; without a
    look at its content."""
    return [path for path, _ in _walk(root, "", ignore)]


def ignored(path: str, ignore: Sequence[str]) -> bool:
    """Whether a path is no part of a tree."""
    return any(
        is_machinery(part) or any(fnmatch.fnmatchcase(part, n) for n in ignore)
        for part in path.split("/")
    )


def _walk(
    folder: Path, above: str, ignore: Sequence[str]
) -> Iterator[tuple[str, os.DirEntry[str]]]:
    with os.scandir(folder) as entries:
        inside = sorted(entries, key=lambda entry: entry.name)
    for entry in inside:
        name = recorded_path(entry.name)
        if ignored(name, ignore):
            continue
        if not entry.is_dir(follow_symlinks=False):
            yield f"{above}{name}", entry
        elif os.access(entry.path, os.R_OK | os.X_OK, follow_symlinks=False):
            yield from _walk(Path(entry.path), f"{above}{name}/", ignore)
        else:
            yield f"{above}{name}/", entry


def difference(base: Mapping[str, File], tree: Mapping[str, File]) -> list[Unit]:
    """The units that turn the base into the tree."""
    return [
        unit_of(path, base.get(path), tree.get(path))
        for path in sorted({*base, *tree})
        if base.get(path) != tree.get(path)
    ]


def unit_of(path: str, before: File | None, after: File | None) -> Unit:
    return Unit(
        path=path,
        before=before.sha256 if before else None,
        after=after.sha256 if after else None,
        before_mode=before.mode if before else None,
        after_mode=after.mode if after else None,
    )


def before(unit: Unit) -> File | None:
    return None if unit.before is None else File(unit.before, unit.before_mode or 0)


def after(unit: Unit) -> File | None:
    return None if unit.after is None else File(unit.after, unit.after_mode or 0)
