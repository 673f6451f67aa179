"""A whole tree at one moment: every file that counts, by its content. What the tree's own
`.gitignore` files ignore does not count, nor what the workspace ignores by name (H-6)."""

from __future__ import annotations

import fnmatch
import os
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Final

import msgspec
from pathspec import GitIgnoreSpec

from onceward.artifacts.file_names import recorded_path
from onceward.artifacts.trees import FOLDER, ODD, File, Tree, difference, ignored, look_in
from onceward.core.canon import canonical, sha256_hex
from onceward.core.changes import Affected, Unit
from onceward.core.limits import MAX_COMPARED_BYTES, MAX_IGNORE_BYTES
from onceward.core.tree_paths import beneath
from onceward.errors import InvalidConfig

RULE_FILE: Final = ".gitignore"
_GIT_SECONDS: Final = 60


def is_own(name: str) -> bool:
    """Whether a file or folder is git's or a workspace's own, by its exact name, or what a cut
    stages in a tree."""
    return name in (".git", ".onceward") or name.startswith(".onceward-cst_")


class IgnoreFile(msgspec.Struct, frozen=True, dict=True):
    """One `.gitignore`, and what it speaks about."""

    under: str
    """The folder of the tree that it is for, with its slash; empty for the whole tree."""
    prefix: str
    """The path of that folder as seen from the file: empty unless the file is above the tree."""
    text: str

    @cached_property
    def _spec(self) -> GitIgnoreSpec:
        return GitIgnoreSpec.from_lines(self.text.splitlines())

    def verdict(self, path: str) -> bool | None:
        """Whether it ignores a path, folders with their slash; None if it says nothing of it."""
        if not path.startswith(self.under):
            return None
        return self._spec.check_file(self.prefix + path[len(self.under) :]).include


class IgnoreRules(msgspec.Struct, frozen=True):
    """The rules for files that do not count: ignored names, and the tree's `.gitignore` files."""

    names: tuple[str, ...] = ()
    files: tuple[IgnoreFile, ...] = ()
    """The outermost first: of two that speak of a path, the inner one decides."""

    def ignore(self, path: str) -> bool:
        """Whether one path is ignored by itself; a folder has its slash."""
        name = path.rstrip("/").rpartition("/")[2]
        if is_own(name) or any(fnmatch.fnmatchcase(name, one) for one in self.names):
            return True
        for file in reversed(self.files):
            verdict = file.verdict(path)
            if verdict is not None:
                return verdict
        return False

    def digest(self) -> str:
        """The digest of the `.gitignore` files; empty where there are none."""
        listed = [[file.under, file.prefix, file.text] for file in self.files]
        return sha256_hex(msgspec.json.encode(listed)) if listed else ""

    def ignore_below(self, path: str) -> bool:
        """Whether a path is ignored, by itself or with a folder that it lies in."""
        parts = path.split("/")
        folders = ("/".join(parts[:end]) + "/" for end in range(1, len(parts)))
        return any(self.ignore(folder) for folder in folders) or self.ignore(path)

    def with_file(self, path: str, text: str | None) -> IgnoreRules:
        """The same after a `.gitignore` of the tree got another text; None for one that is gone."""
        under = path.removesuffix(RULE_FILE)
        kept = [file for file in self.files if file.prefix or file.under != under]
        if text is not None:
            kept.append(IgnoreFile(under, "", text))
        # What stands above the tree comes first, then the tree's own by depth.
        kept.sort(key=lambda file: (-file.prefix.count("/"), file.under.count("/")))
        return IgnoreRules(self.names, tuple(kept))


class TreeState(msgspec.Struct, frozen=True):
    """Every file that counts by its path, and what did not count."""

    files: Mapping[str, File] = {}
    rules: IgnoreRules = IgnoreRules()
    tracked: tuple[str, ...] = ()
    """Files that the rules ignore and that count all the same, because git tracks them."""

    def data(self) -> bytes:
        """As it is kept: the rules, then path, digest and mode of every file; a NUL ends each."""
        head = {"rules": msgspec.to_builtins(self.rules), "tracked": list(self.tracked)}
        parts = [canonical(head)]
        for path, file in sorted(self.files.items()):
            parts += [path.encode(), file.sha256.encode(), b"%o" % file.mode]
        return b"".join(part + b"\0" for part in parts)

    def digest(self) -> str:
        """The digest of the files alone."""
        listed = [[path, *file] for path, file in sorted(self.files.items())]
        return sha256_hex(msgspec.json.encode(listed))


class _Head(msgspec.Struct, frozen=True):
    rules: IgnoreRules
    tracked: tuple[str, ...]


def state_in(data: bytes) -> TreeState:
    """A state as it was kept."""
    head, *parts = data.split(b"\0")[:-1]
    files = {
        path.decode(): File(sha256.decode(), int(mode, 8))
        for path, sha256, mode in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    }
    said = msgspec.json.decode(head, type=_Head)
    return TreeState(files, said.rules, said.tracked)


def state_of(root: Path, names: Sequence[str], ignores: str | None = None) -> TreeState:
    """The state of a tree now, by its own `.gitignore` files as they are now. Where `ignores` is
    the digest of others, none of them counts: whoever changed them must hide nothing by that."""
    if ignores is not None and rules_of(root, names).digest() != ignores:
        plain = IgnoreRules(tuple(names))
        return TreeState(_Walk(plain, own_rules=False).files(root), plain)
    walk = _Walk(IgnoreRules(tuple(names), tuple(_above(root))), own_rules=True)
    files = walk.files(root)
    tracked = tuple(
        path
        for path in tracked_files(root)
        if path not in files and not ignored(path, walk.rules.names)
    )
    return TreeState({**files, **_looked_at(root, tracked)}, walk.rules, tracked)


def rules_of(root: Path, names: Sequence[str]) -> IgnoreRules:
    """The ignore rules of a tree now; only its `.gitignore` files are read."""
    walk = _Walk(IgnoreRules(tuple(names), tuple(_above(root))), own_rules=True, reading=False)
    walk.files(root)
    return walk.rules


def files_by(root: Path, state: TreeState) -> dict[str, File]:
    """The files of a tree now that count by the rules of a state, whatever its `.gitignore`
    files say now."""
    found = _Walk(state.rules, own_rules=False).files(root)
    return {**found, **_looked_at(root, state.tracked)}


def _looked_at(root: Path, paths: Sequence[str]) -> dict[str, File]:
    with Tree(root) as tree:
        found = {path: tree.look(path) for path in paths}
    return {path: file for path, file in found.items() if file is not None}


def tracked_files(root: Path) -> list[str]:
    """The files of a tree that git tracks; none where there is no git, or no repository."""
    if not any((way / ".git").exists() for way in (root, *root.parents)):
        return []
    try:
        done = subprocess.run(
            ["git", "-c", "core.fsmonitor=false", "ls-files", "-z", "--cached"],
            cwd=root,
            env={"PATH": os.environ.get("PATH", os.defpath), "GIT_OPTIONAL_LOCKS": "0"},
            capture_output=True,
            timeout=_GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    if done.returncode != 0:
        return []
    return [recorded_path(name) for name in done.stdout.split(b"\0")[:-1]]


def after_cuts(
    state: TreeState, target: str, cuts: Iterable[Affected], read: Callable[[str], bytes]
) -> TreeState:
    """The state of a tree after recorded cuts and restores, in order; `read` returns contents."""
    files, rules = dict(state.files), state.rules
    for row in cuts:
        path = beneath(target, row.place)
        if path is None:
            continue
        files.pop(path, None)
        if row.after is not None:
            files[path] = File(row.after, row.after_mode or 0)
        if path.rpartition("/")[2] == RULE_FILE:
            text = None if row.after is None else read(row.after).decode("utf-8", "replace")
            rules = rules.with_file(path, text)
    counting = {
        path: file
        for path, file in files.items()
        if path in state.tracked or not rules.ignore_below(path)
    }
    return TreeState(counting, rules, state.tracked)


def changed(before: Mapping[str, File], after: Mapping[str, File]) -> list[Unit]:
    """The units that differ between two states, by path."""
    return difference(before, after)


def kind_of(unit: Unit) -> str:
    """The kind of change to a file, in a word."""
    if unit.before is None:
        return "added"
    if unit.after is None:
        return "removed"
    return "mode changed" if unit.before == unit.after else "changed"


def named(drift: Sequence[Unit], most: int = 5) -> str:
    """The first files of a list, each with what became of it."""
    shown = ", ".join(f"{unit.path} ({kind_of(unit)})" for unit in drift[:most])
    return f"{shown} and {len(drift) - most:,} more" if len(drift) > most else shown


def drift_digest(drift: Iterable[Unit]) -> str:
    """The one digest of a list of files that became something else: what accepting it is for."""
    return sha256_hex(canonical(msgspec.to_builtins(list(drift))))


class _Walk:
    def __init__(self, rules: IgnoreRules, own_rules: bool, reading: bool = True) -> None:
        self.rules, self._own_rules, self._reading = rules, own_rules, reading

    def files(self, root: Path) -> dict[str, File]:
        try:
            at = os.open(root, FOLDER)
        except OSError:
            raise InvalidConfig(f"{root} is no folder", context={"folder": str(root)}) from None
        return dict(self._folder(at, ""))

    def _folder(self, at: int, under: str) -> Iterator[tuple[str, File]]:
        """Every file of an open folder, which is closed at the end."""
        try:
            with os.scandir(at) as entries:
                names = sorted((e.name, e.is_dir(follow_symlinks=False)) for e in entries)
            if self._own_rules and (RULE_FILE, False) in names:
                self._read_rules(at, under)
            for name, is_folder in names:
                path = under + recorded_path(name)
                if self.rules.ignore(f"{path}/" if is_folder else path):
                    continue
                if not is_folder:
                    if self._reading:
                        yield path, look_in(at, name, MAX_COMPARED_BYTES) or ODD
                    continue
                try:
                    inside = os.open(name, FOLDER, dir_fd=at)
                except OSError:
                    yield f"{path}/", ODD
                    continue
                yield from self._folder(inside, f"{path}/")
        finally:
            os.close(at)

    def _read_rules(self, at: int, under: str) -> None:
        text = _rule_text(RULE_FILE, at)
        if text:
            self.rules = self.rules.with_file(under + RULE_FILE, text)


def _above(root: Path) -> list[IgnoreFile]:
    """The `.gitignore` files above a tree that lies inside a repository, the outermost first."""
    ways = list(root.parents)
    if (root / ".git").exists() or not any((way / ".git").exists() for way in ways):
        return []
    found = []
    for way in ways:
        text = _rule_text(str(way / RULE_FILE), None)
        if text:
            prefix = recorded_path(str(root.relative_to(way).as_posix())) + "/"
            found.append(IgnoreFile("", prefix, text))
        if (way / ".git").exists():
            break
    return found[::-1]


def _rule_text(name: str, at: int | None) -> str:
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        with os.fdopen(os.open(name, flags, dir_fd=at), "rb") as file:
            return file.read(MAX_IGNORE_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
