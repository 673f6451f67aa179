"""Parts of the engine above the kernel: what each does when a kernel takes a workspace, and when it leaves (L-23, L-24)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from onceward.store.port import Reads
from onceward.store.transaction import Transaction


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A lifecycle whose subjects a kernel carries on."""

    name: str
    orphan: Callable[[Transaction, str], None] | None = None
    """In the commit that takes the writer lock: marks what a dead kernel left running."""
    crash: Callable[[Transaction, str], None] | None = None
    """With the lock still held, and again in the commit that gives it back: marks what was not brought to its end."""
    clear: Callable[[Reads, Path, Path], None] | None = None
    """After recovery: removes files that a dead kernel left; gets the workspace's folder and the one it is in."""


class Parts:
    """Every part there is. Asked before `onceward.catalogue` named them, it raises: nothing is left unmarked."""

    def __init__(self) -> None:
        self._parts: Sequence[Part] | None = None

    def register(self, *parts: Part) -> None:
        self._parts = parts

    def orphan(self, tx: Transaction, actor: str) -> None:
        for part in self._known():
            if part.orphan is not None:
                part.orphan(tx, actor)

    def crash(self, tx: Transaction, actor: str) -> None:
        for part in self._known():
            if part.crash is not None:
                part.crash(tx, actor)

    def clear(self, rows: Reads, folder: Path, home: Path) -> None:
        for part in self._known():
            if part.clear is not None:
                part.clear(rows, folder, home)

    def _known(self) -> Sequence[Part]:
        if self._parts is None:
            raise RuntimeError("parts are asked for before onceward.catalogue was imported")
        return self._parts


PARTS = Parts()
