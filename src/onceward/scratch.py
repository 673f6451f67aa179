"""Stores and folders that last as long as a play of the gate."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from onceward.core.sources import LiveSources, ScriptedSources, Sources
from onceward.databases import postgres
from onceward.settings import check_url
from onceward.store import migrate
from onceward.store.port import Database
from onceward.store.sqlite import SqliteDatabase


class Scratch(Protocol):
    """A store and a folder for one play, gone afterwards."""

    folder: Path

    def database(self, sources: ScriptedSources) -> Database: ...


class Scratches(Protocol):
    def __call__(self) -> AbstractContextManager[Scratch]: ...


class _Scratch:
    """A store and a folder that nobody else knows."""

    def __init__(self, folder: Path, store: str) -> None:
        self.folder = folder
        self._schema = f"gate{LiveSources().secret()[:16]}"
        self._url = (
            store
            if store == "sqlite"
            else f"{store}{'&' if '?' in store else '?'}schema={self._schema}"
        )

    def database(self, sources: Sources) -> Database:
        """The rows, empty; their clock and ids are those of a script."""
        if self._url == "sqlite":
            path = self.folder / "onceward.db"
            path.write_bytes(_empty())
            return SqliteDatabase(path, sources)
        # The schema draws ids of its own: what a script draws must not depend on how many.
        migrate.migrate(postgres(self._url, ScriptedSources()), ScriptedSources())
        return postgres(self._url, sources)

    def remove(self) -> None:
        if self._url == "sqlite":
            return
        session = postgres(self._url, ScriptedSources()).connect()
        try:
            session.begin(None)
            session.write(f"DROP SCHEMA IF EXISTS {self._schema} CASCADE")
            session.commit()
        finally:
            session.close()


@lru_cache(maxsize=1)
def _empty() -> bytes:
    """The file of an empty store: made once, for the schema takes longer than most plays."""
    _sweep()
    with tempfile.TemporaryDirectory(
        prefix=f"onceward-gate-{os.getpid()}-", dir=_memory()
    ) as folder:
        database = SqliteDatabase(Path(folder) / "onceward.db", ScriptedSources())
        migrate.migrate(database, ScriptedSources())
        database.seal()
        return database.path.read_bytes()


def _sweep() -> None:
    """Take away what plays that were killed left: folders of processes that there are no more."""
    for left in (_memory() or Path(tempfile.gettempdir())).glob("onceward-gate-*-*"):
        owner = left.name.split("-")[2]
        if owner.isdecimal() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(left, ignore_errors=True)


def _memory() -> Path | None:
    """A folder in memory, where the system has one."""
    shared = Path("/dev/shm")  # noqa: S108
    return shared if shared.is_dir() and os.access(shared, os.W_OK) else None


def scratches(store: str) -> Scratches:
    """Where the gate plays: in memory where the system has a folder there, on a server in a schema of its own."""
    check_url(store)

    @contextmanager
    def one() -> Iterator[_Scratch]:
        with tempfile.TemporaryDirectory(
            prefix=f"onceward-gate-{os.getpid()}-", dir=_memory()
        ) as folder:
            scratch = _Scratch(Path(folder), store)
            try:
                yield scratch
            finally:
                scratch.remove()

    return one
