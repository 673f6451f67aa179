"""What exactly a change proposes: which paths become what, from which base. An approval is for one manifest (H-2,
H-4)."""

from __future__ import annotations

import msgspec

from onceward.core.canon import canonical, sha256_hex
from onceward.core.changes import Unit
from onceward.core.tree_paths import place_of


class Origin(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a change was made on, taken before whoever made it began to work."""

    build: str
    """The build that took it, before its first step."""
    base: str
    """The digest of the tree's state as that build keeps it."""
    drift: tuple[Unit, ...] = ()
    """What was changed since beside the proposal, or under it, and by no recorded cut."""


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What exactly is proposed."""

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
        """Its paths as seen from the workspace's own folder."""
        return [place_of(self.target, unit.path) for unit in self.unit]


def manifest_of(text: str | bytes) -> Manifest:
    return msgspec.json.decode(text, type=Manifest)
