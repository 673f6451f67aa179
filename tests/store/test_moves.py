"""The one write path, on both databases."""

from __future__ import annotations

import hashlib
import itertools
import json

import pytest

from helpers import count, create, everything, get, lines, step
from onceward.builds import machine as rules
from onceward.core.machine import NEW
from onceward.core.records import Move
from onceward.core.sources import ScriptedSources
from onceward.errors import (
    IllegalTransition,
    IntegrityFault,
    InvalidConfig,
    NotFound,
    OncewardError,
    StaleVersion,
)
from onceward.evidence.verify import verify_rows


@pytest.mark.rule("K-4", "K-5", "K-6", "B-1")
def test_a_move_writes_state_event_and_outbox_together(store):
    build_id = create(store)
    step(store, build_id)
    build = get(store, build_id)
    assert (build.state, build.version) == ("ACTIVE", 2)
    born, started = (json.loads(line) for line in lines(store, f"session:{build_id}"))
    assert born["event"] == "BUILD_CREATED"
    assert born["detail"] == {"to": "PENDING", "transition_seq": 1, "columns": {"name": "demo"}}
    assert started["detail"] == {
        "from": "PENDING",
        "to": "ACTIVE",
        "reason": "build_started",
        "transition_seq": 2,
    }
    assert started["context"]["actor"] == "tester"
    assert started["context"]["fence"] == store.tenure.fence
    assert started["context"]["build_id"] == started["context"]["session_id"] == build_id
    assert started["prev_hash"] == born["hash"]
    assert count(store, "event_outbox") == 2


@pytest.mark.rule("K-6")
def test_the_dedupe_key_is_made_as_the_contract_says(store):
    build_id = create(store)
    step(store, build_id)
    with store.read() as rows:
        keys = [
            key for (key,) in rows.read("SELECT dedupe_key FROM event_outbox ORDER BY position")
        ]
    target = hashlib.sha256(b"ACTIVE:build_started").hexdigest()
    assert keys[1] == hashlib.sha256(f"BUILD_STARTED|{build_id}|2|{target}".encode()).digest()


@pytest.mark.rule("K-3", "K-4")
def test_every_arrow_that_is_not_in_the_table_writes_nothing(store):
    build_id = create(store)
    step(store, build_id)
    before = everything(store)
    states = (NEW, *rules.BUILD.states)
    for source, target in itertools.product(states, rules.BUILD.states):
        if not rules.BUILD.allows(source, target):
            illegal = Move(rules.BUILD, build_id, source, target, 2, "tester", "operator_resume")
            with pytest.raises(IllegalTransition):
                store.write(lambda tx, move=illegal: tx.move(move))
    assert everything(store) == before


@pytest.mark.rule("K-4")
@pytest.mark.parametrize(
    ("state", "version"), [("ACTIVE", 1), ("ACTIVE", 3), ("CRASHED", 2), ("PENDING", 2)]
)
def test_a_move_from_another_state_or_version_is_stale_and_writes_nothing(store, state, version):
    build_id = create(store)
    step(store, build_id)
    before = everything(store)
    target, reason = {
        "ACTIVE": ("CRASHED", "crash_detected"),
        "CRASHED": ("ACTIVE", "operator_resume"),
        "PENDING": ("ACTIVE", "build_started"),
    }[state]
    with pytest.raises(StaleVersion) as stale:
        store.write(
            lambda tx: tx.move(
                Move(rules.BUILD, build_id, state, target, version, "tester", reason)
            )
        )
    assert stale.value.exit_status == 4
    assert everything(store) == before
    assert get(store, build_id).version == 2


def test_a_build_cannot_be_born_twice(store):
    build_id = create(store)
    before = everything(store)
    with pytest.raises(IntegrityFault):
        store.write(lambda tx: tx.move(rules.create(build_id, "again", "tester")))
    assert everything(store) == before


def test_what_is_not_there_is_not_found(store):
    with pytest.raises(NotFound):
        store.write(lambda tx: tx.builds.get("bld_none"))


@pytest.mark.rule("K-11")
@pytest.mark.parametrize(
    "detail",
    [
        {"cost": 1.5},
        {"deep": [[[]]]},
        {"long": "x" * 1_100_000},
        {"n": 2**60},
        {"to": "SUCCESS"},
        {"transition_seq": 9},
        {"text": "\ud800"},
    ],
)
def test_a_payload_that_has_no_canonical_bytes_is_refused_and_nothing_is_written(store, detail):
    if "deep" in detail:
        for _ in range(100):
            detail = {"deep": detail}
    build_id = create(store)
    before = everything(store)
    move = Move(rules.BUILD, build_id, "PENDING", "ACTIVE", 1, "tester", "build_started", detail)
    with pytest.raises(InvalidConfig) as refused:
        store.write(lambda tx: tx.move(move))
    assert refused.value.exit_status == 2
    assert everything(store) == before


@pytest.mark.rule("K-4")
def test_work_that_fails_after_writing_leaves_nothing(store):
    build_id = create(store)
    before = everything(store)

    def half(tx):
        tx.move(rules.move(tx.builds.get(build_id), "ACTIVE", "build_started", "tester"))
        tx.append("workspace", "NOTED", "tester", {})
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        store.write(half)
    assert everything(store) == before
    assert step(store, build_id).version == 2


def test_facts_of_the_row_change_with_its_state(store):
    build_id = create(store)
    move = Move(
        rules.BUILD,
        build_id,
        "PENDING",
        "ACTIVE",
        1,
        "tester",
        "build_started",
        {"note": "é"},
        {"name": "renamed"},
    )
    store.write(lambda tx: tx.move(move))
    assert get(store, build_id).name == "renamed"


@pytest.mark.rule("K-5")
def test_streams_are_chained_each_on_its_own(store):
    builds = [create(store) for _ in range(3)]
    for _ in range(4):
        for build_id in builds:
            step(store, build_id)
    store.write(lambda tx: tx.append("workspace", "NOTED", "tester", {"n": 1}))
    with store.read() as rows:
        found = verify_rows(rows)
    assert found.faults == []
    assert [found.checked[what] for what in ("streams", "events", "builds")] == [4, 16, 3]


@pytest.mark.rule("K-2")
def test_updated_at_never_goes_backwards_when_the_clock_does(make_database):
    from onceward.kernel.tenure import acquire
    from onceward.store import migrate
    from onceward.store.store import Store

    sources = ScriptedSources(start=2_000_000_000_000_000)
    database = make_database(sources)
    migrate.migrate(database, sources)
    store = Store(database, sources)
    acquire(store, "tester")
    build_id = create(store)
    before = get(store, build_id).updated_at
    sources.set(1_000_000_000_000_000)
    step(store, build_id)
    after = get(store, build_id).updated_at
    store.close()
    assert after == before > 1_999_999_999_999_999


@pytest.mark.rule("K-2", "K-12")
def test_the_same_script_gives_the_same_bytes_on_either_database(tmp_path, postgres_url):
    from conftest import schema_url
    from onceward.kernel.tenure import acquire
    from onceward.store import migrate
    from onceward.store.postgres import PostgresDatabase
    from onceward.store.sqlite import SqliteDatabase
    from onceward.store.store import Store

    def play(database, sources):
        migrate.migrate(database, sources)
        store = Store(database, sources, ["log"])
        acquire(store, "tester")
        build_id = create(store)
        for _ in range(5):
            step(store, build_id)
        written = lines(store, f"session:{build_id}")
        store.close()
        return written

    one, two = ScriptedSources(seed="s"), ScriptedSources(seed="s")
    here = play(SqliteDatabase(tmp_path / "a.db", one), one)
    there = play(PostgresDatabase(schema_url(postgres_url, "same_bytes"), two), two)
    assert here == there
    assert len(here) == 6


@pytest.mark.rule("K-12")
def test_the_database_tells_the_time_on_postgresql(store, kind):
    def times(tx):
        mine = store.sources.now()
        return mine, tx.now

    mine, stored = store.write(times)
    assert abs(mine - stored) < 5_000_000
    if kind == "postgresql":
        assert stored != mine


def test_an_error_of_a_closure_is_the_callers_own(store):
    class Odd(OncewardError):
        code = "EXECUTION_FAILED"

    def fail(tx):
        raise Odd("mine")

    with pytest.raises(Odd):
        store.write(fail)


@pytest.mark.rule("K-11")
@pytest.mark.parametrize("subject", ['a"|b', "a|b", "", "../x", "a\nb", "é", "x" * 200])
def test_a_subject_that_could_break_a_line_a_key_or_a_path_is_refused(store, subject):
    with pytest.raises(InvalidConfig):
        store.write(lambda tx: tx.move(rules.create(subject, "demo", "tester")))
    assert everything(store)["events"] == 0


@pytest.mark.rule("K-11")
@pytest.mark.parametrize("actor", ["", "\ud800", "a\nb", " x"])
def test_an_actor_nobody_could_name_is_refused(store, actor):
    for attempt in (
        lambda tx: tx.move(rules.create("bld_1", "demo", actor)),
        lambda tx: tx.append("workspace", "NOTED", actor, {}),
    ):
        with pytest.raises(InvalidConfig):
            store.write(attempt)
    assert everything(store)["events"] == 0


@pytest.mark.rule("K-11")
@pytest.mark.parametrize("name", ["", "noted", "A B", 'X"', 1.5, None, "X" * 65])
def test_an_event_without_a_proper_name_is_refused(store, name):
    with pytest.raises(InvalidConfig):
        store.write(lambda tx: tx.append("workspace", name, "tester", {}))


@pytest.mark.rule("K-11")
@pytest.mark.parametrize("name", ["a\0b", "", "x" * 129])
def test_a_build_with_an_unreadable_name_is_refused_on_either_store(store, name):
    with pytest.raises(InvalidConfig):
        store.write(lambda tx: tx.move(rules.create("bld_1", name, "tester")))
