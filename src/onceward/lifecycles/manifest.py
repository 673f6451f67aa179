"""Exactly what a change proposes: which paths become what, from which base. What an approval is for (H-2, H-4)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Final

import msgspec

from onceward.core.canon import canonical, sha256_hex
from onceward.core.changes import LINK, Unit
from onceward.core.limits import MAX_OUTPUT_PATH, MAX_UNITS
from onceward.core.paths import is_path_text, raw_path
from onceward.errors import InvalidConfig

TREE: Final = "tree"
REGISTRY: Final = "registry"
_PATH: Final = re.compile("[^\x00-\x1f\x7f\ud800-\udfff]+")
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


def place_of(target: str, path: str) -> str:
    return path if target == "." else f"{target}/{path}"


def beneath(target: str, place: str) -> str | None:
    """The path of a place in a tree; None if it lies elsewhere."""
    if target == ".":
        return None if place.startswith("/") else place
    return place.removeprefix(f"{target}/") if place.startswith(f"{target}/") else None


def overlap(one: str, other: str) -> bool:
    """Whether two trees have files in common."""
    return one == other or beneath(one, other) is not None or beneath(other, one) is not None


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
        _check_target(manifest.target)
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


def _check_target(target: str) -> None:
    """A tree is spelled the one way it can be, so that two changes of it are seen to be that."""
    if target == ".":
        return
    parts = target.removeprefix("/").split("/")
    plain = _PATH.fullmatch(target) and all(part not in ("", ".", "..") for part in parts)
    if not plain or not is_path_text(target) or len(target.encode()) > MAX_OUTPUT_PATH:
        raise InvalidConfig(
            f"{target[:80]!a} is not how a tree is named", context={"field": "target"}
        )
    if any(is_machinery(part) for part in parts):
        raise InvalidConfig(
            f"{target[:80]} belongs to the machinery: never changed", context={"field": "target"}
        )


def check_path(path: str, in_tree: bool = True) -> None:
    """A path inside a tree, or at a place of the user's own, spelled the one way it can be."""
    parts = path.split("/")
    spelled = is_path_text(path) if in_tree else unicodedata.is_normalized("NFC", path)
    if (
        not _PATH.fullmatch(path)
        or not spelled
        or any(part in ("", ".", "..") or len(_raw(part, in_tree)) > 255 for part in parts)
        or len(path.encode()) > MAX_OUTPUT_PATH
    ):
        raise InvalidConfig(f"{path[:80]!a} is no path inside a tree", context={"path": path[:200]})
    if any(is_machinery(part) for part in parts):
        raise InvalidConfig(
            f"{path[:80]} belongs to the machinery, and is never part of a change",
            context={"path": path},
        )


def _raw(part: str, in_tree: bool) -> bytes:
    return raw_path(part) if in_tree else part.encode()


def is_machinery(name: str) -> bool:
    """What is never part of a change: ours, and git's."""
    plain = name.casefold()
    return plain in (".git", ".onceward", ".onceward.new") or plain.startswith(".onceward-cst_")


def check_link(path: str, leads_to: str) -> None:
    """A link of a change stays inside its tree: it goes up first, no higher than the tree, and then only down. So no
    other link on its way can lead it out."""
    parts = leads_to.split("/")
    up = next((number for number, part in enumerate(parts) if part != ".."), len(parts))
    down = parts[up:]
    odd = any(part in ("", ".", "..") or is_machinery(part) for part in down)
    if (
        leads_to.startswith("/")
        or not leads_to
        or odd
        or up > path.count("/")
        or not _PATH.fullmatch(leads_to)
    ):
        raise _leaving(path, leads_to)


def _leaving(path: str, leads_to: str) -> InvalidConfig:
    return InvalidConfig(
        f"the link {path[:80]} leads out of the tree: {leads_to[:80]!a}", context={"path": path}
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
