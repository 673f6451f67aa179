"""What only PostgreSQL can get wrong."""

from __future__ import annotations

import psycopg
import pytest

from helpers import count, create, get, step
from onceward.core.records import Request
from onceward.errors import InvalidConfig, StorageError
from onceward.evidence.verify import verify_rows
from onceward.store.pipeline import Pipeline, StatementRefused
from onceward.store.port import Transient
from onceward.store.postgres import PostgresDatabase, split_schema


@pytest.fixture
def kind():
    return "postgresql"


def kick_out_everybody(database):
    with psycopg.connect(database.url, autocommit=True) as admin:
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'onceward' AND pid <> pg_backend_pid()"
        )


def test_a_lost_connection_before_the_commit_is_a_failure_and_the_next_call_dials_again(
    store, database
):
    build_id = create(store)

    def unlucky(tx):
        tx.builds.get(build_id)
        kick_out_everybody(database)
        tx.append("workspace", "NOTED", "tester", {})
        tx.read("SELECT 1::bigint")

    with pytest.raises(StorageError, match="lost") as failed:
        store.write(unlucky)
    assert failed.value.context["outcome"] == "failed"
    assert failed.value.retryable
    assert step(store, build_id).version == 2
    assert count(store, "events") == 2


@pytest.mark.guarantee("G4")
def test_a_connection_lost_in_the_commit_is_looked_up(store, database):
    build_id = create(store)

    def unlucky(tx, resource_id):
        tx.builds.get(build_id)
        event = tx.append("workspace", "NOTED", "tester", {})
        kick_out_everybody(database)
        return {"seq": event.seq}

    request = Request("note", "r1", {}, "tester")
    with pytest.raises(StorageError) as failed:
        store.answer(request, unlucky)
    assert failed.value.context["outcome"] == "failed"
    with pytest.raises(StorageError, match="open it again"):
        step(store, build_id)
    with store.read() as rows:
        assert verify_rows(rows).faults == []
        assert rows.read("SELECT 1::bigint FROM requests") == []


def test_readers_that_slept_through_a_restart_are_replaced(store, database):
    create(store)
    with store.read(), store.read():
        pass
    kick_out_everybody(database)
    with pytest.raises(StorageError), store.read() as rows:
        rows.read("SELECT 1::bigint")
    assert count(store, "events") == 1


@pytest.mark.rule("K-12")
def test_a_transaction_the_server_asks_to_repeat_is_run_again(store):
    build_id = create(store)
    asked = []

    def work(tx):
        asked.append(1)
        build = tx.builds.get(build_id)
        if len(asked) < 3:
            raise Transient("40001")
        tx.append("workspace", "NOTED", "tester", {"version": build.version})

    store.write(work)
    assert len(asked) == 3
    assert count(store, "events") == 2
    asked.clear()

    def never(tx):
        asked.append(1)
        raise Transient("40P01")

    with pytest.raises(StorageError, match="kept refusing"):
        store.write(never)
    assert len(asked) == 5
    assert get(store, build_id).version == 1


def test_the_pipeline_recovers_after_a_refused_statement(postgres_url):
    pipeline = Pipeline(psycopg.connect(postgres_url, autocommit=True))
    for _ in range(3):
        pipeline.send("SELECT ?::bigint", (1,))
        pipeline.send("SELECT 1 / (?::bigint - 1)", (1,))
        pipeline.send("SELECT 'never prepared before this'::text")
        with pytest.raises(StatementRefused) as refused:
            pipeline.results()
        assert refused.value.sqlstate == "22012"
        pipeline.send("SELECT 'never prepared before this'::text")
        pipeline.send("SELECT ?::text, ?::bytea, ?::bigint, NULL::text", ("é", b"\0\xff", -5))
        assert pipeline.results() == [
            [("never prepared before this",)],
            [("é", b"\0\xff", -5, None)],
        ]
    pipeline.close()


def test_a_large_batch_does_not_choke_the_pipeline(postgres_url):
    pipeline = Pipeline(psycopg.connect(postgres_url, autocommit=True))
    for number in range(3000):
        pipeline.send("SELECT ?::text, ?::bigint", ("x" * 2000, number))
    assert [rows[0][1] for rows in pipeline.results()] == list(range(3000))
    pipeline.close()


def test_the_url_names_the_schema():
    assert split_schema("postgresql://u@h/db?schema=a_1&host=/tmp") == (
        "postgresql://u@h/db?host=%2Ftmp",
        "a_1",
    )
    assert split_schema("postgresql://u@h/db") == ("postgresql://u@h/db", "onceward")


@pytest.mark.rule("K-11")
@pytest.mark.parametrize("schema", ["A", "1a", "a-b", "a;drop", "x" * 64, "a b"])
def test_a_schema_that_could_be_sql_is_refused(schema):
    with pytest.raises(InvalidConfig):
        split_schema(f"postgresql://h/db?schema={schema}")


def test_a_server_that_is_not_there_is_a_storage_error_without_the_password(sources):
    database = PostgresDatabase("postgresql://u:s3cret@127.0.0.1:9/db", sources)
    with pytest.raises(StorageError) as failed:
        database.connect()
    assert "s3cret" not in str(failed.value.document())


@pytest.mark.rule("K-13")
def test_two_workspaces_on_one_server_do_not_see_each_other(store, postgres_url, sources):
    from conftest import schema_url
    from onceward.kernel.tenure import acquire
    from onceward.store import migrate
    from onceward.store.store import Store

    create(store)
    other = Store(PostgresDatabase(schema_url(postgres_url, "neighbour"), sources), sources)
    migrate.migrate(other.database, sources)
    assert acquire(other, "tester").fence == 1
    assert count(other, "builds") == 0
    create(other)
    create(store)
    assert (count(other, "builds"), count(store, "builds")) == (1, 2)
    other.close()
