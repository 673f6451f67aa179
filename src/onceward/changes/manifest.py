"""Exactly what a change proposes: which paths become what, from which base. What an approval is for (H-2, H-4)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from onceward.core.canon import canonical, sha256_hex
from onceward.core.changes import LINK, Unit
from onceward.core.limits import MAX_UNITS
from onceward.core.tree_paths import (
    TREE,
    check_path,
    check_tree_name,
    place_of,
)
from onceward.errors import InvalidConfig

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


class Origin(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a change was made on, taken before whoever made it began to work."""

    build: str
    """The build that took it, before its first step."""
    base: str
    """The digest of the tree's state as that build keeps it."""
    drift: tuple[Unit, ...] = ()
    """What was changed since beside the proposal, or under it, and by no recorded cut."""


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
    ignores: str = ""
    """The digest of the `.gitignore` files that it was proposed under; empty where there are none."""
    origin: Origin | None = None
    """Where the base was taken before the work; without it, it was taken when the change was marked."""

    def text(self) -> str:
        return canonical(msgspec.to_builtins(self)).decode()

    def content_hash(self) -> str:
        return sha256_hex(self.text().encode())

    def paths(self) -> list[str]:
        return [unit.path for unit in self.unit]

    def places(self) -> list[str]:
        """Its paths as seen from the workspace's own folder, whatever tree it is a change of."""
        return [place_of(self.target, unit.path) for unit in self.unit]


def manifest_of(text: str | bytes) -> Manifest:
    return msgspec.json.decode(text, type=Manifest)


def checked(manifest: Manifest) -> Manifest:
    """The manifest in its one form: units by path, each inside the tree and a real change; refused otherwise."""
    if not 1 <= len(manifest.unit) <= MAX_UNITS:
        raise InvalidConfig(
            f"a change has 1 to {MAX_UNITS:,} units, not {len(manifest.unit):,}",
            context={"field": "unit"},
        )
    if any("\x00" in word for word in manifest.check) or (manifest.check and not manifest.check[0]):
        raise InvalidConfig(
            "the check of a change is a program and its words", context={"field": "check"}
        )
    if manifest.cutter == TREE:
        check_tree_name(manifest.target)
    if manifest.base and not _DIGEST.fullmatch(manifest.base):
        raise InvalidConfig("the base of a change is a SHA-256", context={"field": "base"})
    units = sorted(manifest.unit, key=lambda unit: unit.path)
    paths: set[str] = set()
    for unit in units:
        check_path(unit.path, in_tree=manifest.cutter == TREE)
        if unit.path in paths:
            raise InvalidConfig(
                f"{unit.path[:80]} stands twice in the change", context={"path": unit.path}
            )
        if (unit.before, unit.before_mode) == (unit.after, unit.after_mode):
            raise InvalidConfig(
                f"{unit.path[:80]} would stay as it is", context={"path": unit.path}
            )
        for digest, mode in ((unit.before, unit.before_mode), (unit.after, unit.after_mode)):
            _check_side(unit.path, digest, mode, manifest.cutter == TREE)
        paths.add(unit.path)
    _check_nesting(units)
    if manifest.cutter != TREE and (manifest.origin is not None or manifest.ignores):
        raise InvalidConfig(
            "only a change of a tree has an origin, or rules for what it ignores",
            context={"field": "origin"},
        )
    return msgspec.structs.replace(manifest, unit=tuple(units))


def _check_side(path: str, digest: str | None, mode: int | None, in_tree: bool) -> None:
    if digest is not None and not _DIGEST.fullmatch(digest):
        raise InvalidConfig(f"{path[:80]} needs a SHA-256", context={"path": path})
    if (mode is not None) != (digest is not None and in_tree):
        what = "a SHA-256 and a mode, or neither" if in_tree else "no mode: it is no file of a tree"
        raise InvalidConfig(f"{path[:80]} needs {what}", context={"path": path})
    if mode is not None and mode != LINK and not (mode <= 0o777 and mode & 0o400):
        raise InvalidConfig(
            f"{path[:80]} has the mode {mode:o}: only plain permissions are changed, and its owner can read it",
            context={"path": path},
        )


def _check_nesting(units: Sequence[Unit]) -> None:
    """After the change no file may lie inside another."""
    there = {unit.path for unit in units if unit.after is not None}
    for path in there:
        above = path.rpartition("/")[0]
        while above:
            if above in there:
                raise InvalidConfig(
                    f"{path[:80]} would lie inside the file {above[:80]}", context={"path": path}
                )
            above = above.rpartition("/")[0]
