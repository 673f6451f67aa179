"""Numbered, checked, each in its own transaction, never past what this code knows."""

from __future__ import annotations

import threading

import pytest

from onceward.core import faults
from onceward.errors import CorruptState, InvalidConfig, NotFound, SchemaTooNew
from onceward.store import migrate
from onceward.store.store import Store


def raw(database, sql):
    session = database.connect()
    session.begin(None)
    session.write(sql)
    session.commit()
    session.close()


def test_migrating_again_does_nothing(database, sources):
    assert migrate.migrate(database, sources) == []
    assert migrate.pending(database) == []


def test_an_empty_place_has_everything_pending(make_database, sources):
    database = make_database(sources)
    if database.kind == "sqlite":
        assert len(migrate.pending(database)) == len(migrate.known())
        with pytest.raises(NotFound, match="no store here"):
            Store(database, sources).require_schema()


@pytest.mark.rule("K-7")
def test_a_newer_store_is_refused_by_everything(database, sources):
    raw(database, "INSERT INTO schema_migrations VALUES (9999, 'future', 'x', 0)")
    for look in (
        lambda: migrate.migrate(database, sources),
        lambda: migrate.pending(database),
        lambda: Store(database, sources).require_schema(),
    ):
        with pytest.raises(SchemaTooNew) as refused:
            look()
        assert refused.value.context["found"] == 9999
        assert refused.value.exit_status == 2


def test_an_older_store_asks_to_be_migrated(database, sources, monkeypatch):
    future = migrate.Migration(9998, "more", "CREATE TABLE more (n INTEGER PRIMARY KEY) STRICT;\n")
    known = [*migrate.known(), future]
    monkeypatch.setattr(migrate, "known", lambda: known)
    with pytest.raises(InvalidConfig, match="older schema") as refused:
        Store(database, sources).require_schema()
    assert refused.value.recovery[0].command == "onceward migrate"
    assert migrate.migrate(database, sources) == [future]
    Store(database, sources).require_schema()


def test_an_altered_migration_is_found(database, sources):
    raw(database, "UPDATE schema_migrations SET checksum = 'other'")
    with pytest.raises(CorruptState, match="other statements"):
        migrate.pending(database)


def test_a_crash_inside_a_migration_leaves_nothing_of_it(make_database, sources):
    database = make_database(sources)
    with faults.armed("migrate.applied", act=faults.crash), pytest.raises(faults.SimulatedCrash):
        migrate.migrate(database, sources)
    session = database.connect()
    assert database.tables(session) == []
    session.close()
    assert len(migrate.migrate(database, sources)) == len(migrate.known())


def test_many_processes_migrating_at_once_apply_each_once(make_database, sources):
    gate = threading.Barrier(6)
    applied = []

    def run():
        gate.wait()
        applied.append(len(migrate.migrate(make_database(sources), sources)))

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(applied) == len(migrate.known())


@pytest.mark.rule("K-12")
def test_both_databases_have_the_same_tables_columns_and_triggers(tmp_path, postgres_url, sources):
    from conftest import schema_url
    from onceward.store.postgres import PostgresDatabase
    from onceward.store.sqlite import SqliteDatabase

    shapes = []
    for database in (
        SqliteDatabase(tmp_path / "a.db", sources),
        PostgresDatabase(schema_url(postgres_url, "shape"), sources),
    ):
        migrate.migrate(database, sources)
        session = database.connect()
        shapes.append(
            {table: database.columns(session, table) for table in database.tables(session)}
        )
        session.close()
    assert shapes[0] == shapes[1]
