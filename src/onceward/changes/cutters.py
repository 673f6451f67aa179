"""What cuts a change: exactly the approved bytes in their places, or nothing (H-5).

Every step of a cutter can be repeated: what is done already stays as it is."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import msgspec

from onceward.artifacts.blobs import Artifacts, Blob
from onceward.artifacts.file_names import os_path
from onceward.artifacts.tree_state import TreeState, state_in, state_of
from onceward.artifacts.trees import ODD, Tree, after, before, folders_of, listing
from onceward.changes import rules
from onceward.changes.manifest import Manifest
from onceward.changes.staging import Staging
from onceward.core import faults
from onceward.core.canon import canonical, sha256_hex
from onceward.core.changes import LINK, Policy, Unit
from onceward.core.durable import sync_all
from onceward.errors import BaseDrift


class Listing(msgspec.Struct, frozen=True):
    """What a place was like before a change: every file that counts, and the folders above the change with their
    modes."""

    state: TreeState = TreeState()
    folders: dict[str, int] = {}

    def data(self) -> bytes:
        """As stored: the folders, then the state; a NUL ends each part."""
        return canonical({"folders": dict(self.folders)}) + b"\0" + self.state.data()


def listing_in(data: bytes) -> Listing:
    head, _, rest = data.partition(b"\0")
    return Listing(state_in(rest), msgspec.json.decode(head)["folders"])


class PriorState(msgspec.Struct, frozen=True):
    """What a cut will replace, by path, stored durably; and what the place was like."""

    prior: dict[str, Blob]
    listing: Listing


class Place(Protocol):
    """Somewhere of a user's own that changes can be put: a service, a bucket, a table. Give it a name under
    `[[changes.cutter]]`. Each call may come again after a crash, and must then do the same."""

    def paths(self) -> Iterable[str]:
        """Everything that is there."""
        ...

    def read(self, path: str) -> bytes | None:
        """What is at a path; None where nothing is."""
        ...

    def write(self, path: str, data: bytes | None) -> None:
        """Put this there, durably; None takes away what is there."""
        ...


class Cutter(Protocol):
    """The steps of a cut."""

    module: str
    """The file of the code that acts: its digest is the revision of the tool."""

    def check(self) -> None:
        """BASE_DRIFT unless everything is what the change was made on."""
        ...

    def keep(self) -> PriorState: ...

    def stage(self) -> None: ...

    def apply(self) -> None: ...

    def restore(self) -> list[str]:
        """Give back what was there before, wherever our bytes still are; answers what somebody else has changed."""
        ...

    def clear(self) -> None: ...


class TreeCutter:
    """Cuts a change of a file tree. `kept` answers what the tree was like before the cut, once that is known."""

    module = __file__

    def __init__(
        self,
        root: Path,
        artifacts: Artifacts,
        manifest: Manifest,
        staging: Staging,
        policy: Policy | None = None,
        kept: Callable[[], Listing] = Listing,
    ) -> None:
        self._root, self._artifacts, self._units = root, artifacts, manifest.unit
        self._staging, self._ignores = staging, manifest.ignores
        self._base, self._policy, self._kept = manifest.base, policy or Policy(), kept
        self._gone = {unit.path for unit in manifest.unit if unit.after is None}

    def check(self) -> None:
        with Tree(self._root) as tree:
            drifted = [unit.path for unit in self._units if not self._fits(tree, unit)]
            rules.require_unchanged_base(drifted)
        if self._base:
            state = state_of(self._root, self._policy.ignore)
            rules.require_unchanged_tree(state.digest() == self._base)

    def _fits(self, tree: Tree, unit: Unit) -> bool:
        if unit.after is not None:
            # What is in the way must be what the change takes away: files in a folder that becomes a file, and the
            # other way round.
            above = tree.file_above(unit.path)
            if tree.is_folder(unit.path) and not all(
                f"{unit.path}/{path}" in self._gone
                for path in listing(self._root / os_path(unit.path))
            ):
                return False
            if above and above not in self._gone:
                return False
        return tree.look(unit.path) == before(unit)

    def keep(self) -> PriorState:
        prior: dict[str, Blob] = {}
        with Tree(self._root) as tree:
            for unit in self._units:
                if unit.before is not None and tree.look(unit.path) == before(unit):
                    prior[unit.path] = self._prior(unit)
            ways = {way for unit in self._units for way in (*folders_of(unit.path), unit.path)}
            folders = {way: tree.mode_of(way) for way in sorted(ways) if tree.is_folder(way)}
        state = state_of(self._root, self._policy.ignore, self._ignores)
        return PriorState(prior, Listing(state, folders))

    def _prior(self, unit: Unit) -> Blob:
        place = self._root / os_path(unit.path)
        if unit.before_mode == LINK:
            blob = self._artifacts.keep(os.fsencode(os.readlink(place)))  # noqa: PTH115
        else:
            blob = self._artifacts.keep_file(place)
        rules.require_unchanged_base([unit.path] if blob.sha256 != unit.before else [])
        return blob

    def stage(self) -> None:
        """The new bytes at hand, verified as they are written, before any of them is put in its place."""
        with self._staging.opened() as staging:
            staging.clear()
            for number, unit in enumerate(self._units):
                if unit.after is not None:
                    self._stage_unit(staging, number, unit)
        sync_all(self._root)
        faults.point("cut.staged")

    def _stage_unit(self, staging: Tree, number: int, unit: Unit) -> None:
        assert unit.after is not None
        staging.write(str(number), self._artifacts.read(unit.after), unit.after_mode or 0)

    def apply(self) -> None:
        """What goes goes first: its folders may be in the way of what comes."""
        with Tree(self._root) as tree, self._staging.opened() as staging:
            self._stage_missing(tree, staging)
            for number, unit in self._ordered(lambda unit: unit.after is not None):
                found = tree.look(unit.path)
                if found == after(unit):
                    continue
                rules.require_not_changed_meanwhile(unit.path, found == before(unit))
                if unit.after is None:
                    tree.remove(unit.path)
                else:
                    tree.put(staging, str(number), unit.path)
                faults.point("cut.applied")
        sync_all(self._root)

    def _stage_missing(self, tree: Tree, staging: Tree) -> None:
        """Stage again what a killed kernel left unstaged."""
        missing = [
            (number, unit)
            for number, unit in enumerate(self._units)
            if unit.after is not None
            and staging.look(str(number)) != after(unit)
            and tree.look(unit.path) != after(unit)
        ]
        if not missing:
            return
        staging.clear()
        for number, unit in enumerate(self._units):
            if unit.after is not None and tree.look(unit.path) != after(unit):
                self._stage_unit(staging, number, unit)
        sync_all(self._root)

    def _ordered(self, comes: Callable[[Unit], bool]) -> list[tuple[int, Unit]]:
        return sorted(enumerate(self._units), key=lambda one: (comes(one[1]), one[0]))

    def restore(self) -> list[str]:
        """What came goes first, then the folders that were there come back, then the files."""
        folders = self._kept().folders
        foreign: list[str] = []
        with Tree(self._root, folders) as tree:
            came = [unit for unit in self._units if unit.before is None]
            for unit in came:
                self._one(tree, unit, foreign, lambda tree, unit: tree.remove(unit.path, folders))
            for folder in sorted(folders):
                try:
                    tree.make(folder)
                except (BaseDrift, OSError):
                    # Something of somebody else's stands there: the files in it will say so.
                    continue
            for unit in self._units:
                if unit.before is not None:
                    self._one(tree, unit, foreign, self._give_back)
        sync_all(self._root)
        return sorted(foreign)

    def _one(
        self, tree: Tree, unit: Unit, foreign: list[str], act: Callable[[Tree, Unit], None]
    ) -> None:
        """Restore one file; a failure concerns no other file."""
        found = tree.look(unit.path)
        if found == before(unit):
            return
        if found != after(unit):
            foreign.append(unit.path)
            return
        try:
            act(tree, unit)
        except (BaseDrift, OSError):
            foreign.append(unit.path)
        faults.point("cut.restored")

    def _give_back(self, tree: Tree, unit: Unit) -> None:
        assert unit.before is not None
        with self._staging.opened() as staging:
            staging.clear()
            staging.write("back", self._artifacts.read(unit.before), unit.before_mode or 0)
            tree.put(staging, "back", unit.path)

    def clear(self) -> None:
        """Leave nothing of the work behind."""
        self._staging.remove()
        sync_all(self._root)


class PlaceCutter:
    """Cuts a change of a user's own place, by its three methods."""

    def __init__(self, place: Place, module: str, artifacts: Artifacts, manifest: Manifest) -> None:
        self._place, self.module, self._artifacts, self._units = (
            place,
            module,
            artifacts,
            manifest.unit,
        )

    def check(self) -> None:
        drifted = [unit.path for unit in self._units if self._digest(unit.path) != unit.before]
        rules.require_unchanged_base(drifted)

    def keep(self) -> PriorState:
        prior: dict[str, Blob] = {}
        for unit in self._units:
            data = self._place.read(unit.path)
            if data is not None and sha256_hex(data) == unit.before:
                prior[unit.path] = self._artifacts.keep(data)
        # A place of one's own is looked at by name: what else is there may be anything, and of any size.
        return PriorState(
            prior, Listing(TreeState(dict.fromkeys(sorted(self._place.paths()), ODD)))
        )

    def stage(self) -> None:
        """All of it is at hand before any of it is put in place."""
        broken = self._artifacts.broken(
            [unit.after for unit in self._units if unit.after is not None], note=False
        )
        rules.require_readable(broken)
        faults.point("cut.staged")

    def apply(self) -> None:
        for unit in self._units:
            found = self._digest(unit.path)
            if found == unit.after:
                continue
            rules.require_not_changed_meanwhile(unit.path, found == unit.before)
            self._place.write(unit.path, self._bytes(unit.after))
            faults.point("cut.applied")

    def restore(self) -> list[str]:
        foreign = []
        for unit in self._units:
            found = self._digest(unit.path)
            if found == unit.before:
                continue
            if found != unit.after:
                foreign.append(unit.path)
                continue
            self._place.write(unit.path, self._bytes(unit.before))
            faults.point("cut.restored")
        return foreign

    def clear(self) -> None:
        """There is nothing beside it."""

    def _digest(self, path: str) -> str | None:
        data = self._place.read(path)
        return None if data is None else sha256_hex(data)

    def _bytes(self, sha256: str | None) -> bytes | None:
        return None if sha256 is None else b"".join(self._artifacts.read(sha256))


def place_of(made: Any, target: str) -> Place:
    """A user's own place, from what the settings name: an object, or a class that is called with the target."""
    found = made(target) if isinstance(made, type) or not hasattr(made, "read") else made
    rules.require_place(found)
    return found  # type: ignore[no-any-return]
