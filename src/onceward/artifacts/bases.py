"""The base of a proposal: a tree as it was before the build began that made the proposal, and
what was changed since by no recorded cut (H-2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Protocol

import msgspec

from onceward.artifacts.blobs import Artifacts, Blob
from onceward.artifacts.file_names import recorded_path
from onceward.artifacts.tree_state import (
    TreeState,
    after_cuts,
    changed,
    files_by,
    state_in,
    state_of,
)
from onceward.core.changes import Unit
from onceward.core.limits import MAX_UNITS
from onceward.core.tree_paths import TREE
from onceward.errors import InvalidConfig
from onceward.store.port import Reads
from onceward.store.tables.builds import Builds
from onceward.store.tables.changes import Changes
from onceward.store.tables.events import events_of
from onceward.store.transaction import Transaction

BASE: Final = "base"
TAKEN: Final = "BASE_TAKEN"


class ContentReader(Protocol):
    def read(self, digest: str) -> Iterator[bytes]: ...


class TakenBase(msgspec.Struct, frozen=True):
    """The state of a tree, ready to be recorded with a build that has not begun."""

    tree: str
    """As seen from the workspace's own folder."""
    blob: Blob
    files: int

    def record(self, tx: Transaction, artifacts: Artifacts, build_id: str, actor: str) -> None:
        artifacts.record(tx, owner=build_id, name=BASE, kind=BASE, blob=self.blob)
        detail = {"tree": self.tree, "base": self.blob.sha256, "files": self.files}
        tx.append(f"session:{build_id}", TAKEN, actor, detail)


class Base(msgspec.Struct, frozen=True):
    """The state of a tree before a build, and the state expected now: that, and the cuts since."""

    build_id: str
    tree: str
    sha256: str
    """The digest of the stored state."""
    position: int
    """The position at which it was taken."""
    expected: TreeState

    def drift(self, root: Path) -> list[Unit]:
        """The units that differ now."""
        found = changed(self.expected.files, files_by(root, self.expected))
        if len(found) > MAX_UNITS:
            raise InvalidConfig(
                f"{len(found):,} files of {self.tree} were changed since build {self.build_id} began; a"
                f" proposal names at most {MAX_UNITS:,}",
                context={"tree": self.tree, "files": len(found)},
            )
        return found


def tree_name(home: Path, own: Path, root: Path) -> str:
    """A tree as seen from the workspace's own folder, so that the record need not hold a place
    of this machine."""
    home, root = home.resolve(), root.resolve()
    if root.is_relative_to(own.resolve()):
        raise InvalidConfig(f"{root} is the workspace's own", context={"field": "tree"})
    return recorded_path(
        root.relative_to(home).as_posix() if root.is_relative_to(home) else str(root)
    )


def take_base(
    folder: Path, tree: str, home: Path, own: Path, artifacts: Artifacts, names: tuple[str, ...]
) -> TakenBase:
    """The state of the tree that a plan in a folder names; nothing is recorded yet."""
    root = folder / tree
    if not root.is_dir() or root.resolve().parent == root.resolve():
        raise InvalidConfig(f"the plan's tree {tree} is no folder", context={"field": "tree"})
    state = state_of(root.resolve(), names)
    blob = artifacts.keep(state.data(), limited=False)
    return TakenBase(tree=tree_name(home, own, root), blob=blob, files=len(state.files))


def base_of(rows: Reads, artifacts: ContentReader, build_id: str) -> Base | None:
    """The base that a build took, or the one that it was forked from; None if neither took one."""
    builds = Builds(rows)
    while True:
        for event in events_of(rows, f"session:{build_id}"):
            facts = event.facts()
            if facts["event"] == TAKEN:
                return _read(
                    rows,
                    artifacts,
                    build_id=build_id,
                    detail=facts["detail"],
                    position=event.position,
                )
            if facts["event"].startswith("WORKER_"):
                break
        parent = builds.get(build_id).parent_build_id
        if parent is None:
            return None
        build_id = parent


def _read(
    rows: Reads, artifacts: ContentReader, build_id: str, detail: Mapping[str, str], position: int
) -> Base:
    def read(digest: str) -> bytes:
        return b"".join(artifacts.read(digest))

    state = state_in(read(detail["base"]))
    cuts = Changes(rows).carried_out_since(TREE, position)
    return Base(
        build_id=build_id,
        tree=detail["tree"],
        sha256=detail["base"],
        position=position,
        expected=after_cuts(state, detail["tree"], cuts, read),
    )
