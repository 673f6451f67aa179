"""Backups: one SQLite file whatever the store, so that a backup is also the way from one store to the other."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onceward.errors import CorruptState, InvalidConfig, NotFound, Recovery
from onceward.kernel import faults
from onceward.store import migrate
from onceward.store.check import Findings, check
from onceward.store.copy import copy_rows
from onceward.store.port import Database
from onceward.store.store import Store

OpenFile = Callable[[Path], Database]


def backup(store: Store, path: Path, open_file: OpenFile) -> dict[str, Any]:
    """Write the rows of one moment into a new file, check it, and only then give it its name."""
    if path.exists():
        raise InvalidConfig(
            f"{path} is already there; a backup never overwrites", recovery=[Recovery("choose another name")]
        )
    if not path.parent.is_dir():
        raise InvalidConfig(f"{path.parent} is not a folder", context={"field": "file"})
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        database = open_file(partial)
        with store.read() as rows:
            counts = _fill(store.database, rows, database, store)
            expected = check(rows)
        faults.point("backup.copied")
        _require_same(expected, database)
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        partial.chmod(0o600)
        partial.rename(path)
        _sync_folder(path.parent)
    finally:
        for leftover in (partial, *(partial.with_name(partial.name + end) for end in ("-wal", "-shm"))):
            leftover.unlink(missing_ok=True)
    return {
        "file": str(path),
        "events": expected.events,
        "streams": expected.streams,
        "rows": sum(counts.values()),
    }


def restore(store: Store, path: Path, open_file: OpenFile) -> dict[str, Any]:
    """Fill an empty store from a backup, in one transaction, and check the result."""
    if not path.is_file():
        raise NotFound(f"there is no backup {path}")
    source = open_file(path)
    waiting = migrate.pending(source)
    if waiting:
        raise InvalidConfig(f"{path} is not a backup that this Onceward can read", context={"file": str(path)})
    session = source.connect()
    try:
        session.snapshot()
        expected = check(session)
        if expected.faults:
            raise CorruptState(f"{path} is damaged: {expected.faults[0]}", context={"faults": expected.faults})
        migrate.migrate(store.database, store.sources)
        counts = _fill(source, session, store.database, store)
    finally:
        session.close()
    _require_same(expected, store.database)
    return {
        "file": str(path),
        "events": expected.events,
        "streams": expected.streams,
        "rows": sum(counts.values()),
    }


def _fill(source: Database, rows: Any, target: Database, store: Store) -> dict[str, int]:
    migrate.migrate(target, store.sources)
    session = target.connect(kernel=True)
    try:
        target.exclusive(session)
        ((used,),) = session.read("SELECT (SELECT count(*) FROM events) + (SELECT count(*) FROM principals)")
        if used:
            raise InvalidConfig(
                "the store is not empty; a restore never overwrites",
                recovery=[Recovery("move the workspace away, or restore into another with --workspace")],
            )
        counts = copy_rows(source, rows, target, session)
        session.commit()
    finally:
        session.rollback()
        session.close()
    return counts


def _require_same(expected: Findings, database: Database) -> None:
    session = database.connect(kernel=True)
    try:
        session.snapshot()
        found = check(session)
        session.rollback()
    finally:
        session.close()
    if found != expected or found.faults:
        raise CorruptState(
            "the copy does not agree with the original",
            context={"expected": repr(expected), "found": repr(found)},
        )


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
