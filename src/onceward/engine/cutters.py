"""What carries a change out: exactly the approved bytes in their places, or nothing (H-5).

A cutter's parts can each be done again: what is in its place already stays as it is."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from onceward.engine.artifacts import Artifacts, Blob, sync_all
from onceward.engine.trees import ODD, File, Tree, after, before, digest_of, listing, scan
from onceward.errors import BaseDrift, InvalidConfig
from onceward.kernel import faults
from onceward.kernel.canon import sha256_hex
from onceward.kernel.changes import LINK, Unit
from onceward.lifecycles.change import Policy
from onceward.lifecycles.manifest import Manifest

Kept = dict[str, Blob]
"""What will be replaced, by path."""


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
    """What the saga of a cut is made of."""

    module: str
    """The file of the code that acts: its digest is the revision of the tool."""

    def check(self, going_on: bool = False) -> None:
        """BASE_DRIFT unless everything is what the change was made on; or, when going on, what it is to become."""
        ...

    def keep(self) -> tuple[Kept, Sequence[str]]:
        """The bytes that will be replaced, made durable first; and everything that is there, by path."""
        ...

    def stage(self) -> None: ...

    def apply(self) -> None: ...

    def restore(self) -> list[str]:
        """Give back what was there before, wherever our bytes still are; answers what somebody else has changed."""
        ...

    def clear(self) -> None: ...


class TreeCutter:
    """A change of a file tree."""

    module = __file__

    def __init__(
        self, root: Path, artifacts: Artifacts, manifest: Manifest, change_set_id: str, policy: Policy | None = None
    ) -> None:
        self._root, self._artifacts, self._units = root, artifacts, manifest.unit
        self._base, self._policy = manifest.base, policy or Policy()
        self._staging = f".onceward-{change_set_id}"

    def check(self, going_on: bool = False) -> None:
        with Tree(self._root) as tree:
            drifted = [u.path for u in self._units if not self._fits(tree, u, going_on)]
            if drifted:
                raise _drifted(drifted)
        # What our own bytes have begun to change cannot be held against the whole any more.
        if self._base and not going_on and digest_of(scan(self._root, self._policy.ignore, True)) != self._base:
            raise BaseDrift("the tree is not what the change was made on: something else in it has changed")

    def _fits(self, tree: Tree, unit: Unit, going_on: bool) -> bool:
        found = _found(tree, unit)
        if unit.after is not None:
            # What is in the way must be what the change takes away: files in a folder that becomes a file, and the
            # other way round.
            gone = {u.path for u in self._units if u.after is None}
            folder, above = tree.folder(unit.path), tree.file_above(unit.path)
            if folder is not None and not all(f"{unit.path}/{path}" in gone for path in listing(folder)):
                return False
            if above and above not in gone:
                return False
        return found == before(unit) or (going_on and found == after(unit))

    def keep(self) -> tuple[Kept, Sequence[str]]:
        kept: Kept = {}
        with Tree(self._root) as tree:
            for unit in self._units:
                if unit.before is not None and tree.look(unit.path) == before(unit):
                    kept[unit.path] = self._kept(unit)
        return kept, listing(self._root, self._policy.ignore)

    def _kept(self, unit: Unit) -> Blob:
        place = self._root / unit.path
        if unit.before_mode == LINK:
            return self._artifacts.keep(os.fsencode(os.readlink(place)))  # noqa: PTH115
        return self._artifacts.keep_file(place)

    def stage(self) -> None:
        """The new bytes beside the tree's own files, verified as they are written."""
        shutil.rmtree(self._root / self._staging, ignore_errors=True)
        (self._root / self._staging).mkdir(mode=0o700)
        for number, unit in enumerate(self._units):
            if unit.after is not None:
                self._write(unit.after, unit.after_mode or 0, str(number))
        sync_all(self._root)
        faults.point("cut.staged")

    def apply(self) -> None:
        """What goes goes first: its folders may be in the way of what comes."""
        with Tree(self._root) as tree:
            for number, unit in self._ordered(lambda unit: unit.after is not None):
                found = _found(tree, unit)
                if found == after(unit):
                    continue
                if found != before(unit):
                    raise BaseDrift(
                        f"{unit.path} was changed by somebody else meanwhile", context={"paths": [unit.path]}
                    )
                if unit.after is None:
                    tree.remove(unit.path)
                else:
                    tree.put(f"{self._staging}/{number}", unit.path)
                faults.point("cut.applied")
        sync_all(self._root)

    def _ordered(self, comes: Callable[[Unit], bool]) -> list[tuple[int, Unit]]:
        return sorted(enumerate(self._units), key=lambda one: (comes(one[1]), one[0]))

    def restore(self) -> list[str]:
        foreign: list[str] = []
        with Tree(self._root) as tree:
            for _, unit in self._ordered(lambda unit: unit.before is not None):
                found = _found(tree, unit)
                if found == before(unit):
                    continue
                if found != after(unit):
                    foreign.append(unit.path)
                elif unit.before is None:
                    tree.remove(unit.path)
                else:
                    self._give_back(tree, unit)
                faults.point("cut.restored")
        sync_all(self._root)
        return foreign

    def _give_back(self, tree: Tree, unit: Unit) -> None:
        assert unit.before is not None
        (self._root / self._staging).mkdir(mode=0o700, exist_ok=True)
        (self._root / self._staging / "back").unlink(missing_ok=True)
        self._write(unit.before, unit.before_mode or 0, "back")
        tree.put(f"{self._staging}/back", unit.path)

    def clear(self) -> None:
        """Leave nothing of the work beside the tree's own files."""
        shutil.rmtree(self._root / self._staging, ignore_errors=True)
        sync_all(self._root)

    def _write(self, sha256: str, mode: int, name: str) -> None:
        place = self._root / self._staging / name
        if mode == LINK:
            place.symlink_to(os.fsdecode(b"".join(self._artifacts.read(sha256))))
            return
        with open(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:  # noqa: PTH123
            for piece in self._artifacts.read(sha256):
                file.write(piece)
            file.flush()
            os.fchmod(file.fileno(), mode)


def _found(tree: Tree, unit: Unit) -> File | None:
    """What is at the place of a file: a folder is no file."""
    found = tree.look(unit.path)
    return None if found == ODD and tree.folder(unit.path) is not None else found


class PlaceCutter:
    """A change of a place of the user's own: the same steps, by its three words."""

    def __init__(self, place: Place, module: str, artifacts: Artifacts, manifest: Manifest) -> None:
        self._place, self.module, self._artifacts, self._units = place, module, artifacts, manifest.unit

    def check(self, going_on: bool = False) -> None:
        drifted = [
            unit.path
            for unit in self._units
            if (found := self._digest(unit.path)) != unit.before and not (going_on and found == unit.after)
        ]
        if drifted:
            raise _drifted(drifted)

    def keep(self) -> tuple[Kept, Sequence[str]]:
        kept: Kept = {}
        for unit in self._units:
            data = self._place.read(unit.path)
            if data is not None and sha256_hex(data) == unit.before:
                kept[unit.path] = self._artifacts.keep(data)
        return kept, sorted(self._place.paths())

    def stage(self) -> None:
        """All of it is at hand before any of it is put in place."""
        broken = self._artifacts.broken([unit.after for unit in self._units if unit.after is not None], note=False)
        if broken:
            raise InvalidConfig(f"{len(broken)} of the new contents cannot be read")
        faults.point("cut.staged")

    def apply(self) -> None:
        for unit in self._units:
            found = self._digest(unit.path)
            if found == unit.after:
                continue
            if found != unit.before:
                raise BaseDrift(f"{unit.path} was changed by somebody else meanwhile", context={"paths": [unit.path]})
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
    """A user's own place, from what the settings name: an object, or what makes one for a target."""
    found = made(target) if isinstance(made, type) or not hasattr(made, "read") else made
    if not all(callable(getattr(found, word, None)) for word in ("paths", "read", "write")):
        raise InvalidConfig("a cutter of one's own has paths(), read(path) and write(path, data)")
    return found  # type: ignore[no-any-return]


def _drifted(paths: Sequence[str]) -> BaseDrift:
    return BaseDrift(
        f"{', '.join(paths[:5])} {'is' if len(paths) == 1 else 'are'} not what the change was made on",
        context={"paths": list(paths[:100])},
    )


def pieces(paths: Sequence[str]) -> Iterator[bytes]:
    """A listing as it is kept: a path a line, in the system's own bytes."""
    for path in sorted(paths):
        yield os.fsencode(path) + b"\n"


def paths_in(data: bytes) -> list[str]:
    return [os.fsdecode(line) for line in data.split(b"\n")[:-1]]


__all__ = ["Cutter", "File", "Kept", "Place", "PlaceCutter", "TreeCutter", "paths_in", "pieces", "place_of"]
