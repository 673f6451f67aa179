"""Backups: one SQLite file whatever the store, so that a backup is also the way from one store
to the other."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from onceward.core import faults
from onceward.core.durable import publish
from onceward.errors import (
    CorruptState,
    IntegrityFault,
    InvalidConfig,
    NotFound,
    OncewardError,
    Recovery,
)
from onceward.evidence.findings import Findings
from onceward.evidence.verify import verify_rows
from onceward.store import migrate
from onceward.store.copy import copy_rows
from onceward.store.port import Database
from onceward.store.store import Store
from onceward.store.writer import commit_plainly


class FileDatabase(Database, Protocol):
    """A database in one file."""

    def seal(self) -> None: ...


def backup(
    store: Store,
    path: Path,
    new_file: Callable[[Path], FileDatabase],
    old_file: Callable[[Path], Database],
) -> dict[str, Any]:
    """Write the rows of one moment into a new file, check it, and only then give it its name."""
    if path.exists():
        raise InvalidConfig(
            f"{path} is already there; a backup never overwrites",
            recovery=[Recovery("choose another name")],
        )
    if not path.parent.is_dir():
        raise InvalidConfig(f"{path.parent} is not a folder", context={"field": "file"})
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        database = new_file(partial)
        with store.read() as rows:
            expected = verify_rows(rows)
            if expected.faults:
                raise IntegrityFault(
                    f"the store itself is damaged, so no backup was made: {expected.first()}",
                    context=_listed(expected),
                    recovery=[Recovery("see what is wrong", "onceward verify")],
                )
            counts = _fill(store.database, rows, database, store)
        faults.point("backup.copied")
        database.seal()
        _require_same(expected, old_file(partial))
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        publish(partial, path)
    finally:
        for leftover in (
            partial,
            *(partial.with_name(partial.name + end) for end in ("-wal", "-shm", "-journal")),
        ):
            leftover.unlink(missing_ok=True)
    return _told(path, expected, counts)


def restore(
    path: Path, old_file: Callable[[Path], Database], empty: Callable[[], Store]
) -> dict[str, Any]:
    """Fill an empty store from a backup, in one transaction, and check the result."""
    if not path.is_file():
        raise NotFound(
            f"there is no backup {path}" if not path.exists() else f"{path} is not a file"
        )
    source = old_file(path)
    _require_backup(source, path)
    session = source.connect()
    try:
        session.snapshot()
        expected = verify_rows(session)
        if expected.faults:
            raise CorruptState(f"{path} is damaged: {expected.first()}", context=_listed(expected))
        store = empty()
        try:
            counts = _fill(source, session, store.database, store)
            _require_same(expected, store.database)
        finally:
            store.close()
    finally:
        session.close()
    return _told(path, expected, counts)


def _told(path: Path, found: Findings, counts: dict[str, int]) -> dict[str, Any]:
    seen = {what: found.checked.get(what, 0) for what in ("events", "streams")}
    return {"file": str(path), **seen, "rows": sum(counts.values())}


def _listed(found: Findings) -> dict[str, Any]:
    return {
        "faults": [f"{fault.rule}: {fault.subject}: {fault.detail}" for fault in found.faults[:20]]
    }


def _require_backup(source: Database, path: Path) -> None:
    try:
        if not migrate.pending(source):
            return
    except OncewardError as error:
        if error.code == "SCHEMA_TOO_NEW":
            raise
    raise InvalidConfig(
        f"{path} is not a backup that this Onceward can read", context={"file": str(path)}
    )


def _fill(source: Database, rows: Any, target: Database, store: Store) -> dict[str, int]:
    migrate.migrate(target, store.sources)
    session = target.connect(kernel=True)
    try:
        target.exclusive(session)
        ((used,),) = session.read(
            "SELECT (SELECT count(*) FROM events) + (SELECT count(*) FROM principals)"
        )
        if used:
            raise InvalidConfig(
                "the store is not empty; a restore never overwrites",
                recovery=[
                    Recovery("move the workspace away, or restore into another with --workspace")
                ],
            )
        counts = copy_rows(source, rows, target, session)
        commit_plainly(session, "the copy")
    finally:
        session.rollback()
        session.close()
    return counts


def _require_same(expected: Findings, database: Database) -> None:
    session = database.connect(kernel=True)
    try:
        session.snapshot()
        found = verify_rows(session)
        session.rollback()
    finally:
        session.close()
    if found != expected:
        raise CorruptState(
            "the copy does not agree with the original",
            context={"expected": repr(expected), "found": repr(found)},
        )
