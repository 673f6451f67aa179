"""Backups are one file whatever the store, and lead from one store to the other."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest

from conftest import schema_url
from helpers import count, create, everything, lines, step
from onceward.core import faults
from onceward.core.records import Request
from onceward.core.sources import LiveSources
from onceward.errors import CorruptState, IntegrityFault, InvalidConfig, NotFound, OncewardError
from onceward.kernel.outbox import deliver
from onceward.kernel.tenure import acquire
from onceward.maintenance.backup import backup, restore
from onceward.store import migrate
from onceward.store.postgres import PostgresDatabase
from onceward.store.schema import TABLES
from onceward.store.sqlite import SqliteDatabase
from onceward.store.store import Store


def new_file(path: Path) -> SqliteDatabase:
    return SqliteDatabase(path, LiveSources())


def old_file(path: Path) -> SqliteDatabase:
    return SqliteDatabase(path, LiveSources(), read_only=True)


@pytest.fixture
def filled(store):
    """A store with a bit of everything in it."""
    for _ in range(3):
        build_id = create(store)
        step(store, build_id)
    store.answer(Request("note", "r1", {"é": 1}, "tester"), lambda tx, _: {"ok": True})

    class Half:
        name = "log"
        deadline = None

        def send(self, parcel):
            if parcel.event.seq == 2:
                raise OncewardError("later")

        def settle(self):
            pass

    deliver(store, [Half()])
    return store


@pytest.mark.parametrize("onto", ["sqlite", "postgresql"])
def test_a_backup_restores_onto_either_store_with_the_same_bytes(
    filled, tmp_path, postgres_url, onto
):
    made = backup(filled, tmp_path / "b.db", new_file, old_file)
    assert made["events"] == 7
    sources = LiveSources()
    if onto == "sqlite":
        target = SqliteDatabase(tmp_path / "restored.db", sources)
    else:
        target = PostgresDatabase(
            schema_url(postgres_url, f"restored_{filled.database.kind}"), sources
        )
    there = Store(target, sources, ["log"])
    restore(tmp_path / "b.db", old_file, lambda: there)
    assert everything(there) == everything(filled)
    with filled.read() as rows:
        streams = [name for (name,) in rows.read("SELECT stream FROM streams")]
    for stream in streams:
        assert lines(there, stream) == lines(filled, stream)
    assert acquire(there, "heir").fence == 2
    assert there.answer(Request("note", "r1", {"é": 1}, "tester"), lambda tx, _: {}).replayed
    assert not there.answer(Request("note", "r2", {}, "tester"), lambda tx, _: {}).replayed
    step(there, create(there))
    there.close()


def test_a_backup_taken_while_others_write_is_of_one_moment(filled, tmp_path):
    import threading

    stop = threading.Event()
    build_id = create(filled)

    def busy():
        while not stop.is_set():
            step(filled, build_id)

    writing = threading.Thread(target=busy)
    writing.start()
    try:
        for number in range(3):
            backup(filled, tmp_path / f"b{number}.db", new_file, old_file)
    finally:
        stop.set()
        writing.join()
    assert sorted(p.name for p in tmp_path.glob("b*")) == ["b0.db", "b1.db", "b2.db"]


def test_a_backup_never_overwrites(filled, tmp_path):
    (tmp_path / "b.db").write_text("precious")
    with pytest.raises(InvalidConfig, match="never overwrites"):
        backup(filled, tmp_path / "b.db", new_file, old_file)
    assert (tmp_path / "b.db").read_text() == "precious"
    with pytest.raises(InvalidConfig, match="not a folder"):
        backup(filled, tmp_path / "none" / "b.db", new_file, old_file)


def test_a_restore_never_overwrites(filled, tmp_path):
    backup(filled, tmp_path / "b.db", new_file, old_file)
    before = everything(filled)
    with pytest.raises(InvalidConfig, match="not empty"):
        restore(tmp_path / "b.db", old_file, lambda: filled)
    assert everything(filled) == before


def test_a_damaged_backup_is_refused(filled, tmp_path, sources):
    backup(filled, tmp_path / "b.db", new_file, old_file)
    shell = sqlite3.connect(tmp_path / "b.db")
    shell.executescript("DROP TRIGGER events_update; UPDATE events SET at = at + 1 WHERE seq = 2")
    shell.close()
    target = Store(SqliteDatabase(tmp_path / "t.db", sources), sources)
    with pytest.raises(CorruptState, match="damaged"):
        restore(tmp_path / "b.db", old_file, lambda: target)
    (tmp_path / "garbage.db").write_bytes(b"not a database" * 100)
    with pytest.raises(InvalidConfig, match="not a backup"):
        restore(tmp_path / "garbage.db", old_file, lambda: target)
    with pytest.raises(NotFound):
        restore(tmp_path / "none.db", old_file, lambda: target)


@pytest.mark.parametrize("point", ["restore.table", "backup.copied"])
def test_a_crash_inside_leaves_no_backup_and_no_half_store(
    filled, tmp_path, sources, make_database, point
):
    with faults.armed(point, nth=1 if point == "backup.copied" else 4, act=faults.crash):
        with pytest.raises(faults.SimulatedCrash):
            backup(filled, tmp_path / "b.db", new_file, old_file)
    assert not (tmp_path / "b.db").exists()
    backup(filled, tmp_path / "b.db", new_file, old_file)
    target = Store(SqliteDatabase(tmp_path / "t.db", sources), sources)
    migrate.migrate(target.database, sources)
    with (
        faults.armed("restore.table", nth=4, act=faults.crash),
        pytest.raises(faults.SimulatedCrash),
    ):
        restore(tmp_path / "b.db", old_file, lambda: target)
    assert count(target, "events") == 0
    restore(tmp_path / "b.db", old_file, lambda: target)
    assert count(target, "events") == 7
    target.close()


def test_every_table_is_copied(database):
    session = database.connect()
    tables = set(database.tables(session))
    session.close()
    assert tables == {table.name for table in TABLES} | {"schema_migrations"}


def test_a_backup_is_one_private_file_and_reading_it_changes_nothing(filled, tmp_path, sources):
    backup(filled, tmp_path / "b.db", new_file, old_file)
    before = (tmp_path / "b.db").read_bytes()
    restore(
        tmp_path / "b.db",
        old_file,
        lambda: Store(SqliteDatabase(tmp_path / "t.db", sources), sources),
    )
    assert (tmp_path / "b.db").read_bytes() == before
    assert (tmp_path / "b.db").stat().st_mode & 0o777 == 0o600
    assert sorted(p.name for p in tmp_path.glob("b.db*")) == ["b.db"]


@pytest.mark.parametrize("kind", ["sqlite"])
def test_a_damaged_store_is_not_backed_up(filled, tmp_path):
    shell = sqlite3.connect(filled.database.path)
    shell.executescript("DROP TRIGGER events_update; UPDATE events SET at = at + 1 WHERE seq = 2")
    shell.close()
    with pytest.raises(IntegrityFault, match="the store itself is damaged"):
        backup(filled, tmp_path / "b.db", new_file, old_file)
    assert not (tmp_path / "b.db").exists()


@pytest.mark.parametrize("room", [30_000, 90_000, 150_000, 260_000])
def test_a_disk_that_fills_up_leaves_no_backup_rather_than_half_of_one(filled, tmp_path, room):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], capture_output=True
    ).returncode:
        pytest.skip("cannot mount a small disk here (needs root): this test did not run")
    try:
        (disk / "filler").write_bytes(b"x" * (shutil.disk_usage(disk).free - room))
        try:
            backup(filled, disk / "b.db", new_file, old_file)
        except OncewardError as error:
            assert error.code in ("STORAGE_ERROR_RETRY", "INVALID_CONFIG", "CORRUPT_STATE")
            assert [p.name for p in disk.iterdir()] == ["filler"]
        else:
            restore(
                disk / "b.db", old_file, lambda: Store(new_file(tmp_path / "t.db"), LiveSources())
            )
    finally:
        subprocess.run(["umount", str(disk)], check=True)
