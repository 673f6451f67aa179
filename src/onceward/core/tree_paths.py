"""Places in a tree that a change may name: how trees and paths in them are spelled, and what is
never part of one."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from onceward.core.limits import MAX_OUTPUT_PATH
from onceward.core.paths import is_path_text, raw_path
from onceward.errors import InvalidConfig

TREE: Final = "tree"
REGISTRY: Final = "registry"
_PATH: Final = re.compile("[^\x00-\x1f\x7f\ud800-\udfff]+")


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


def check_tree_name(target: str) -> None:
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
    """Folders that are never part of a change: ours, and git's."""
    plain = name.casefold()
    return plain in (".git", ".onceward", ".onceward.new") or plain.startswith(".onceward-cst_")


def check_link(path: str, leads_to: str) -> None:
    """A link of a change stays inside its tree: it goes up first, no higher than the tree, and
    then only down. So no other link on its way can lead it out."""
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
