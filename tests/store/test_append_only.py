"""The database itself refuses to rewrite history, whoever asks it."""

from __future__ import annotations

import re
from itertools import product

import pytest

from helpers import count, create, everything, step
from onceward.builds.machine import BUILD
from onceward.changes.machine import CHANGE, CHANGE_SET
from onceward.core.canon import ZERO_HASH, canonical
from onceward.core.chain import link
from onceward.core.machine import NEW
from onceward.errors import IntegrityFault, OncewardError
from onceward.evidence.verify import verify_rows
from onceward.grants.machine import GRANT
from onceward.registry.machine import COLLECTION, VALUE
from onceward.store.schema import LIFECYCLES, TABLES


def raw(store, sql, params=()):
    """A write past `move`, as a hand with a database shell would do it."""
    session = store.database.connect()
    try:
        session.begin(None)
        session.write(sql, params)
        session.commit()
    finally:
        session.rollback()
        session.close()


@pytest.fixture
def build_id(store):
    made = create(store)
    step(store, made)
    return made


@pytest.mark.rule("K-5")
@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE events SET at = at + 1",
        "UPDATE events SET body = '{}' WHERE position = 1",
        "UPDATE events SET hash = prev_hash WHERE seq = 2",
        "DELETE FROM events",
        "DELETE FROM events WHERE seq = 2",
    ],
)
def test_events_are_never_changed_or_deleted(store, build_id, sql):
    before = everything(store)
    with pytest.raises(IntegrityFault) as refused:
        raw(store, sql)
    assert refused.value.context["constraint"] == "events_append_only"
    assert everything(store) == before


@pytest.mark.rule("K-5")
def test_insert_or_replace_does_not_get_past_the_guard(store, build_id, kind):
    columns = "position, stream_no, seq, at, source, body, prev_hash, hash"
    for change in (
        "position, stream_no, seq",
        "position + 100, stream_no, seq",
        "position, stream_no, seq + 100",
    ):
        if kind == "sqlite":
            sql = (
                f"INSERT OR REPLACE INTO events ({columns})"
                f" SELECT {change}, 0, source, body, prev_hash, hash FROM events"
            )
        else:
            sql = (
                f"INSERT INTO events ({columns}) SELECT {change}, 0, source, body, prev_hash, hash FROM events"
                " ON CONFLICT (position) DO UPDATE SET at = 0"
            )
        with pytest.raises(IntegrityFault):
            raw(store, sql)
    with store.read() as rows:
        assert verify_rows(rows).faults == []


@pytest.mark.rule("K-5")
def test_no_table_is_emptied_at_once(store, build_id, kind):
    if kind == "postgresql":
        for table in (table.name for table in TABLES):
            with pytest.raises(IntegrityFault):
                raw(store, f"TRUNCATE {table} CASCADE")
    assert count(store, "events") == 2


def arrows(machine):
    """What a write may make of a state: the machine's own arrows, those through a state that nobody finds as one."""
    own = {(one.source, one.target) for one in machine.arrows if one.source != NEW}
    through = {(a, d) for (a, b), (c, d) in product(own, own) if b == c and b in machine.transient}
    seen = {pair for pair in own if not set(pair) & set(machine.transient)}
    return {f"{source}>{target}" for source, target in seen | through if source != target}


@pytest.mark.rule("K-3", "K-4")
@pytest.mark.guarantee("G6")
@pytest.mark.parametrize(
    "machine", [BUILD, CHANGE, CHANGE_SET, COLLECTION, GRANT, VALUE], ids=lambda one: one.name
)
def test_the_database_knows_exactly_the_arrows_of_the_machine(store, kind, machine):
    table = LIFECYCLES[machine.name].name
    with store.read() as rows:
        if kind == "sqlite":
            sql = "SELECT sql FROM sqlite_master WHERE type = 'trigger' AND name = ?"
        else:
            sql = (
                "SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgname = ?"
                f" AND tgrelid = '{table}'::regclass"
            )
        ((said,),) = rows.read(sql, (f"{table}_arrow",))
    assert set(re.findall(r"'(\w+>\w+)'", said)) == arrows(machine)


@pytest.mark.rule("K-3", "K-4")
@pytest.mark.guarantee("G6")
def test_an_arrow_that_no_machine_has_is_refused_whatever_its_event_says(store, build_id):
    """Somebody appends a well-chained event by which a build that succeeded is PENDING again."""
    with store.read() as rows:
        ((state, version),) = rows.read("SELECT state, version FROM builds")
    detail = {"from": state, "to": "PENDING", "transition_seq": version + 1}
    event = store.write(
        lambda tx: tx.append(f"session:{build_id}", "BUILD_CREATED", "tester", {"x": detail})
    )
    body = {"context": {"actor": "tester", "build_id": build_id}, "detail": detail, "event": "X"}
    with store.read() as rows:
        ((number,),) = rows.read("SELECT stream_no FROM streams WHERE stream = ?", (event.stream,))
    data = canonical(body)
    raw(
        store,
        "INSERT INTO events (position, stream_no, seq, at, source, body, prev_hash, hash)"
        " VALUES (?, ?, ?, 0, 'build', ?, ?, ?)",
        (
            event.position + 1,
            number,
            event.seq + 1,
            data.decode(),
            event.hash,
            link(event.stream, event.seq + 1, 0, "build", data, event.hash),
        ),
    )
    with pytest.raises(IntegrityFault):
        raw(
            store,
            "UPDATE builds SET state = 'PENDING', version = version + 1, position = ?",
            (event.position + 1,),
        )


@pytest.mark.rule("K-5")
@pytest.mark.guarantee("G12")
@pytest.mark.parametrize(
    ("seq", "prev"),
    [(1, "zero"), (2, "first"), (3, "zero"), (3, "first"), (4, "second"), (0, "zero")],
)
def test_a_gap_a_fork_or_a_reused_place_in_a_stream_is_refused(store, build_id, seq, prev):
    with store.read() as rows:
        hashes = [h for (h,) in rows.read("SELECT hash FROM events ORDER BY position")]
        ((stream_no,),) = rows.read("SELECT max(stream_no) FROM streams")
    prev_hash = {"zero": ZERO_HASH, "first": hashes[0], "second": hashes[1]}[prev]
    with pytest.raises(IntegrityFault):
        raw(
            store,
            "INSERT INTO events (position, stream_no, seq, at, source, body, prev_hash, hash)"
            " VALUES (99, ?, ?, 0, 'x', '{}', ?, ?)",
            (stream_no, seq, prev_hash, b"h" * 32),
        )
    assert count(store, "events") == 2


@pytest.mark.rule("K-4")
@pytest.mark.guarantee("G2")
@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE builds SET state = 'SUCCESS'",
        "UPDATE builds SET state = 'SUCCESS', version = version + 1",
        "UPDATE builds SET version = version + 1",
        "UPDATE builds SET position = 1",
        "UPDATE builds SET build_id = 'bld_other'",
        "DELETE FROM builds",
        "INSERT INTO builds (build_id, name, state, version, position, created_at, updated_at)"
        " VALUES ('bld_x', 'x', 'SUCCESS', 1, 1, 0, 0)",
    ],
)
def test_a_state_written_without_its_event_is_refused(store, build_id, sql):
    with pytest.raises(IntegrityFault):
        raw(store, sql)
    with store.read() as rows:
        assert verify_rows(rows).faults == []


@pytest.mark.rule("K-4")
@pytest.mark.guarantee("G2")
@pytest.mark.parametrize(
    "said",
    [
        {"from": "ACTIVE", "to": "CRASHED", "transition_seq": 3},
        {"from": "PENDING", "to": "SUCCESS", "transition_seq": 3},
        {"from": "ACTIVE", "to": "SUCCESS", "transition_seq": 2},
    ],
)
def test_a_state_written_with_an_event_that_says_something_else_is_refused(store, build_id, said):
    def lie(tx):
        context = {"actor": "x", "build_id": build_id, "fence": 1, "session_id": build_id}
        event, linked = tx._link(f"session:{build_id}", "build", "BUILD_SUCCEEDED", context, said)
        state = "UPDATE builds SET state = 'SUCCESS', version = 3, position = ? WHERE build_id = ?"
        tx.write_together([linked])
        tx.write(state, (event.position, build_id))

    before = everything(store)
    with pytest.raises(IntegrityFault) as refused:
        store.write(lie)
    assert refused.value.context["constraint"] == "builds_moved"
    assert everything(store) == before


@pytest.mark.rule("K-3")
def test_a_state_outside_the_table_is_refused_by_the_schema(store, build_id):
    with pytest.raises(IntegrityFault):
        raw(store, "UPDATE builds SET state = 'DONE'")


@pytest.mark.rule("K-9")
@pytest.mark.parametrize(
    "sql", ["UPDATE singleton_lock SET fence = fence - 1", "DELETE FROM singleton_lock"]
)
def test_the_fence_only_grows(store, sql):
    with pytest.raises(OncewardError):
        raw(store, sql)
