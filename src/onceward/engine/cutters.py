"""What carries a change out: exactly the approved bytes into a file tree, or nothing (H-5)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from onceward.engine.artifacts import Artifacts, Blob
from onceward.engine.trees import File, inside, look
from onceward.errors import BaseDrift, OncewardError
from onceward.evidence.export import sync_folder
from onceward.kernel import faults
from onceward.kernel.changes import Unit


class TreeCutter:
    """A change of a file tree. Each part can be done again: what is there already is left as it is."""

    def __init__(self, root: Path, artifacts: Artifacts, units: Sequence[Unit], change_set_id: str) -> None:
        self._root, self._artifacts, self._units = root, artifacts, units
        self._staging = root / f".onceward-{change_set_id}"

    def check(self, also_after: bool = False) -> None:
        """BASE_DRIFT unless every file is what the change was made on; or, when going on, what it is to become."""
        drifted = []
        for unit in self._units:
            found = self._found(unit)
            if found != before(unit) and not (also_after and found == after(unit)):
                drifted.append(unit.path)
        if drifted:
            raise BaseDrift(
                f"{', '.join(drifted[:5])} {'is' if len(drifted) == 1 else 'are'} not what the change was made on",
                context={"paths": drifted[:100]},
            )

    def keep(self) -> dict[str, Blob]:
        """The bytes that will be replaced, made durable first."""
        return {
            unit.path: self._artifacts.keep_file(inside(self._root, unit.path))
            for unit in self._units
            if unit.before is not None and self._found(unit) == before(unit)
        }

    def stage(self) -> None:
        """The new bytes beside the tree's own files, verified as they are written."""
        shutil.rmtree(self._staging, ignore_errors=True)
        self._staging.mkdir(mode=0o700)
        for number, unit in enumerate(self._units):
            if unit.after is not None:
                self._write(unit.after, unit.after_mode or 0o644, self._staging / str(number))
        sync_folder(self._staging)
        faults.point("cut.staged")

    def apply(self) -> None:
        """Put everything in its place; what is in its place already stays."""
        touched: set[Path] = set()
        for number, unit in enumerate(self._units):
            found, place = self._found(unit), inside(self._root, unit.path)
            if found == after(unit):
                continue
            if found != before(unit):
                raise BaseDrift(f"{unit.path} was changed by somebody else meanwhile", context={"paths": [unit.path]})
            if unit.after is None:
                place.unlink()
            else:
                place.parent.mkdir(parents=True, exist_ok=True)
                (self._staging / str(number)).replace(place)
            touched.add(place.parent)
            faults.point("cut.applied")
        for folder in sorted(touched):
            if folder.is_dir():
                sync_folder(folder)

    def restore(self) -> list[str]:
        """Give back what was there before, wherever our bytes still are; answers what somebody else has changed."""
        foreign: list[str] = []
        for unit in self._units:
            found, place = self._found(unit), inside(self._root, unit.path)
            if found == before(unit):
                continue
            if found != after(unit):
                foreign.append(unit.path)
            elif unit.before is None:
                place.unlink()
                sync_folder(place.parent)
            else:
                self._staging.mkdir(mode=0o700, exist_ok=True)
                back = self._staging / "back"
                back.unlink(missing_ok=True)
                self._write(unit.before, unit.before_mode or 0o644, back)
                place.parent.mkdir(parents=True, exist_ok=True)
                back.replace(place)
                sync_folder(place.parent)
            faults.point("cut.restored")
        return foreign

    def clear(self) -> None:
        """Leave nothing of the work beside the tree's own files."""
        shutil.rmtree(self._staging, ignore_errors=True)
        sync_folder(self._root)

    def _found(self, unit: Unit) -> File | None:
        place = inside(self._root, unit.path)
        try:
            return look(place) if os.path.lexists(place) else None
        except OncewardError:
            return File("", 0)

    def _write(self, sha256: str, mode: int, place: Path) -> None:
        with open(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:  # noqa: PTH123
            for piece in self._artifacts.read(sha256):
                file.write(piece)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())


def before(unit: Unit) -> File | None:
    return None if unit.before is None else File(unit.before, unit.before_mode or 0)


def after(unit: Unit) -> File | None:
    return None if unit.after is None else File(unit.after, unit.after_mode or 0)
