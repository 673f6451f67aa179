"""The differences of a change as people read them: file by file, line by line."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

import msgspec

from onceward.changes.manifest import Manifest
from onceward.core.changes import LINK, Unit
from onceward.core.limits import DIFF_BYTES
from onceward.core.tree_paths import TREE

_CONTEXT: Final = 3
_LARGER: Final = "larger than"
_WORK: Final = 2_000_000
"""How many pairs of equal lines are still looked at one by one."""


class BlobReader(Protocol):
    """Whatever reads contents by their digest."""

    def read(self, digest: str) -> Iterator[bytes]: ...


class Line(msgspec.Struct, frozen=True):
    """A line of a difference: its sign, where it stood and stands, and what it says."""

    sign: str
    old: int | None
    new: int | None
    text: str


class FileDiff(msgspec.Struct, frozen=True, omit_defaults=True):
    """One file of a change."""

    path: str
    what: str
    """`added`, `removed`, `changed`, `renamed` or `mode`."""
    before: str | None = None
    after: str | None = None
    before_mode: str | None = None
    after_mode: str | None = None
    old_path: str = ""
    """Where it was, if it was renamed."""
    note: str = ""
    """Why there are no lines: binary, too large, a link, or nothing but a mode."""
    cut_off: bool = False
    """Whether there are lines that are not shown."""
    lines: Sequence[Line] = ()
    added: int = 0
    removed: int = 0


def diffs_of(
    artifacts: BlobReader, manifest: Manifest, paths: Sequence[str] = (), limit: int = DIFF_BYTES
) -> list[FileDiff]:
    """Every file of a manifest, or some of them; renames together. Those above `limit` bytes are only named."""
    units = {unit.path: unit for unit in manifest.unit}
    moved = _renames(manifest) if manifest.cutter == TREE else {}
    gone = set(moved.values())
    found = []
    for path, unit in units.items():
        if path in gone or (paths and path not in paths):
            continue
        found.append(_diff(artifacts, unit, moved.get(path, ""), limit))
    return found


def _renames(manifest: Manifest) -> dict[str, str]:
    """Files that come with the bytes of one that goes: new path to old."""
    gone: dict[tuple[str, int | None], list[str]] = {}
    for unit in manifest.unit:
        if unit.after is None and unit.before is not None:
            gone.setdefault((unit.before, unit.before_mode), []).append(unit.path)
    found = {}
    for unit in manifest.unit:
        if (
            unit.before is None
            and unit.after is not None
            and gone.get((unit.after, unit.after_mode))
        ):
            found[unit.path] = gone[unit.after, unit.after_mode].pop(0)
    return found


def _diff(artifacts: BlobReader, unit: Unit, old_path: str, limit: int) -> FileDiff:
    what = _kind(unit, old_path)
    modes = [None if mode is None else f"{mode:o}" for mode in (unit.before_mode, unit.after_mode)]
    said: dict[str, Any] = {"before": unit.before, "after": unit.after, "old_path": old_path}
    said |= {"before_mode": modes[0], "after_mode": modes[1]} if modes[0] != modes[1] else {}
    unseen = what in ("renamed", "mode")
    note, lines = ("", []) if unseen else _lines(artifacts, unit, limit)
    return FileDiff(
        path=unit.path,
        what=what,
        **said,
        note=note,
        cut_off=note.startswith(_LARGER),
        lines=lines,
        added=sum(line.sign == "+" for line in lines),
        removed=sum(line.sign == "-" for line in lines),
    )


def _kind(unit: Unit, old_path: str) -> str:
    if old_path:
        return "renamed"
    if unit.before is None:
        return "added"
    if unit.after is None:
        return "removed"
    return "mode" if unit.before == unit.after else "changed"


def _lines(artifacts: BlobReader, unit: Unit, limit: int) -> tuple[str, list[Line]]:
    sides = []
    for digest, mode in ((unit.before, unit.before_mode), (unit.after, unit.after_mode)):
        data = b"" if digest is None else _bounded(artifacts, digest, limit)
        if data is None:
            return f"{_LARGER} {limit:,} bytes: not shown line by line", []
        if mode == LINK:
            data = b"-> " + data + b"\n"
        try:
            if b"\0" in data:
                raise ValueError
            sides.append(data.decode("utf-8"))
        except ValueError:
            return "not text", []
    return "", compared(*(side.split("\n") for side in sides))


def _bounded(artifacts: BlobReader, digest: str, limit: int) -> bytes | None:
    found = b""
    for piece in artifacts.read(digest):
        found += piece
        if len(found) > limit:
            return None
    return found


def compared(before: Sequence[str], after: Sequence[str]) -> list[Line]:
    """Lines that were removed, added, or stand beside those; what lies between distant ones is left out."""
    # What `split` leaves behind the last newline is no line; where there is something, the file has no end of line.
    old, new = _ended(before), _ended(after)
    found: list[Line] = []
    for group in _matched(old, new).get_grouped_opcodes(_CONTEXT):
        if found:
            found.append(Line("@", None, None, ""))
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                found += [Line(" ", i + 1, j1 + i - i1 + 1, old[i]) for i in range(i1, i2)]
                continue
            found += [Line("-", i + 1, None, old[i]) for i in range(i1, i2)]
            found += [Line("+", None, j + 1, new[j]) for j in range(j1, j2)]
    return found


def _matched(old: Sequence[str], new: Sequence[str]) -> difflib.SequenceMatcher[str]:
    """What two texts have in common. Lines that stand there hundreds of times match anything, and comparing them
    takes very long: where there are many, they are not compared."""
    counts = Counter(new)
    work = sum(counts[line] for line in old)
    return difflib.SequenceMatcher(None, old, new, autojunk=work > _WORK)


def _ended(lines: Sequence[str]) -> list[str]:
    if not lines or list(lines) == [""]:
        return []
    return (
        list(lines[:-1])
        if lines[-1] == ""
        else [*lines[:-1], f"{lines[-1]}\n\\ no newline at the end"]
    )
