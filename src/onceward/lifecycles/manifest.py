"""Exactly what a change proposes: which paths become what, from which base. What an approval is for (H-2, H-4)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Final

import msgspec

from onceward.errors import InvalidConfig
from onceward.kernel.canon import canonical, sha256_hex
from onceward.kernel.changes import LINK, Unit
from onceward.kernel.limits import MAX_OUTPUT_PATH, MAX_UNITS

TREE: Final = "tree"
REGISTRY: Final = "registry"
_PATH: Final = re.compile("[^\x00-\x1f\x7f\ud800-\udfff]+")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Exactly what is proposed."""

    cutter: str
    """What carries it out: `tree`, `registry`, or one of the user's own."""
    target: str
    """What it is done to: a folder as seen from the workspace's own, a collection, or whatever the cutter knows."""
    unit: tuple[Unit, ...]
    check: tuple[str, ...] = ()
    """The entry's own verification command, no shell."""
    base: str = ""
    """The digest of the whole tree it was made on, where the workspace wants all of it unchanged."""

    def text(self) -> str:
        return canonical(msgspec.to_builtins(self)).decode()

    def content_hash(self) -> str:
        return sha256_hex(self.text().encode())

    def paths(self) -> list[str]:
        return [unit.path for unit in self.unit]


def manifest_of(text: str | bytes) -> Manifest:
    return msgspec.json.decode(text, type=Manifest)


def checked(manifest: Manifest) -> Manifest:
    """The manifest in its one form: units by path, each inside the tree and a real change; refused otherwise."""
    if not 1 <= len(manifest.unit) <= MAX_UNITS:
        raise InvalidConfig(
            f"a change has 1 to {MAX_UNITS:,} units, not {len(manifest.unit):,}", context={"field": "unit"}
        )
    if any("\x00" in word for word in manifest.check) or (manifest.check and not manifest.check[0]):
        raise InvalidConfig("the check of a change is a program and its words", context={"field": "check"})
    if manifest.base and not _DIGEST.fullmatch(manifest.base):
        raise InvalidConfig("the base of a change is a SHA-256", context={"field": "base"})
    units = sorted(manifest.unit, key=lambda unit: unit.path)
    paths: set[str] = set()
    for unit in units:
        check_path(unit.path)
        if unit.path in paths:
            raise InvalidConfig(f"{unit.path[:80]} stands twice in the change", context={"path": unit.path})
        if (unit.before, unit.before_mode) == (unit.after, unit.after_mode):
            raise InvalidConfig(f"{unit.path[:80]} would stay as it is", context={"path": unit.path})
        for digest, mode in ((unit.before, unit.before_mode), (unit.after, unit.after_mode)):
            _check_side(unit.path, digest, mode, manifest.cutter == TREE)
        paths.add(unit.path)
    _check_nesting(units)
    return msgspec.structs.replace(manifest, unit=tuple(units))


def _check_side(path: str, digest: str | None, mode: int | None, in_tree: bool) -> None:
    if digest is not None and not _DIGEST.fullmatch(digest):
        raise InvalidConfig(f"{path[:80]} needs a SHA-256", context={"path": path})
    if (mode is not None) != (digest is not None and in_tree):
        what = "a SHA-256 and a mode, or neither" if in_tree else "no mode: it is no file of a tree"
        raise InvalidConfig(f"{path[:80]} needs {what}", context={"path": path})
    if mode is not None and mode != LINK and not 0 <= mode <= 0o777:
        raise InvalidConfig(f"{path[:80]} has no mode {mode:o}", context={"path": path})


def check_path(path: str) -> None:
    """A path inside a tree, spelled the one way it can be."""
    parts = path.split("/")
    safe = _PATH.fullmatch(path) and all(part not in ("", ".", "..") for part in parts)
    if not safe or not unicodedata.is_normalized("NFC", path) or len(path.encode()) > MAX_OUTPUT_PATH:
        raise InvalidConfig(f"{path[:80]!a} is no path inside a tree", context={"path": path[:200]})
    if any(is_machinery(part) for part in parts):
        raise InvalidConfig(
            f"{path[:80]} belongs to the machinery, and is never part of a change", context={"path": path}
        )


def is_machinery(name: str) -> bool:
    """What is never part of a change: ours, and git's."""
    return name.casefold() == ".git" or name.casefold().startswith(".onceward")


def check_link(path: str, leads_to: str) -> None:
    """A link of a change stays inside its tree."""
    place = path.split("/")[:-1]
    for part in leads_to.split("/"):
        if part == "..":
            if not place:
                raise _leaving(path, leads_to)
            place.pop()
        elif part not in ("", "."):
            place.append(part)
    if leads_to.startswith("/") or not leads_to or any(is_machinery(part) for part in place):
        raise _leaving(path, leads_to)


def _leaving(path: str, leads_to: str) -> InvalidConfig:
    return InvalidConfig(f"the link {path[:80]} leads out of the tree: {leads_to[:80]!a}", context={"path": path})


def _check_nesting(units: Sequence[Unit]) -> None:
    """After the change no file may lie inside another."""
    there = {unit.path for unit in units if unit.after is not None}
    for path in there:
        above = path.rpartition("/")[0]
        while above:
            if above in there:
                raise InvalidConfig(f"{path[:80]} would lie inside the file {above[:80]}", context={"path": path})
            above = above.rpartition("/")[0]
