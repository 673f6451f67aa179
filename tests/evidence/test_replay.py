"""`replay`: from the records alone to the same bytes, on either store and from a bundle; and the first lie is named."""

from __future__ import annotations

import json

import pytest

from onceward.core.chain import link
from onceward.evidence.export import export
from onceward.evidence.records import StoreRecords
from onceward.evidence.replay import replay, replay_bundle
from onceward.workspace import Workspace
from scene import files_of, packed


def difference(rows):
    found = replay(StoreRecords(rows)).difference
    return None if found is None else (found.where, found.field)


@pytest.mark.rule("R-1")
@pytest.mark.guarantee("G2", "G6")
def test_a_history_is_made_again_to_the_same_hash_on_either_store(scene, bare, template):
    found = replay(StoreRecords(bare))
    assert found.difference is None and found.sessions == 10 and found.children == 26
    original = Workspace(template[0] / ".onceward", store_url="sqlite", principal="tester")
    with original.reading() as store, store.read() as rows:
        assert replay(StoreRecords(rows)) == found
    assert replay(StoreRecords(bare)) == found


@pytest.mark.rule("R-6", "R-1")
def test_a_bundle_is_replayed_elsewhere_to_the_hash_of_its_build(scene, bare, tmp_path):
    for name, build in scene.ids.items():
        if name.startswith("change "):
            continue
        export(StoreRecords(bare), build, tmp_path / name, lambda sha256: iter(()), False)
        there, here = replay_bundle(tmp_path / name), replay(StoreRecords(bare), [build])
        assert there == here and here.difference is None and here.sessions == 1


@pytest.mark.rule("R-1", "R-6")
def test_a_changed_bundle_is_refused_or_its_difference_named(scene, bare, tmp_path):
    export(StoreRecords(bare), scene.ids["reused"], tmp_path / "b", lambda sha256: iter(()), False)
    export(StoreRecords(bare), scene.ids["failed"], tmp_path / "c", lambda sha256: iter(()), False)
    files = files_of(tmp_path / "c")
    tokens = files["tokens.ndjson"].splitlines(keepends=True)
    said = json.loads(tokens[0])
    files["tokens.ndjson"] = b"".join(
        [tokens[0].replace(said["worker_run_id"].encode(), b"ab" * 32), *tokens[1:]],
    )
    found = replay_bundle(packed(tmp_path / "d", files))
    assert (found.difference.where, found.difference.field) == (
        f"child {said['child_id']}",
        "worker_run_id",
    )
    data = (tmp_path / "b").read_bytes()
    (tmp_path / "b").write_bytes(
        data.replace(b'"WORKER_', b'"WORKEr_', 1).replace(b"STEP_REUSED", b"STEP_REUSEd", 1)
    )
    with pytest.raises(Exception) as refused:
        replay_bundle(tmp_path / "b")
    assert refused.value.code == "INTEGRITY_FAULT" and "digest" in refused.value.message


COLUMNS = {
    "worker_run_id": "'ab'",
    "phase": "'leased'",
    "reason": "'timeout'",
    "code": "'URM_CHILD_TIMEOUT'",
    "version": "version + 1",
    "started_at": "started_at + 1",
    "cancel_request_id": "'c-9'",
    "parent_stream_id": "'session:other'",
    "updated_at": "created_at - 1",
}


@pytest.mark.rule("R-1")
@pytest.mark.guarantee("G2")
@pytest.mark.parametrize("column", COLUMNS)
def test_what_a_token_says_must_follow_from_the_record(scene, bare, column):
    ((child,),) = bare.read(
        "SELECT min(child_id) FROM urm_dispatch_token WHERE parent_session_id = ? AND reason = 'completed'",
        (scene.ids["approved"],),
    )
    with bare:
        bare.write(
            f"UPDATE urm_dispatch_token SET {column} = {COLUMNS[column]} WHERE child_id = ?",
            (child,),
        )
        where, field = difference(bare)
        assert child in where or where.startswith("session:")
        # Somebody who was asked to end would have been cancelled.
        assert field in (
            column,
            f"detail.{column}",
            *(["detail.reason"] if column == "cancel_request_id" else []),
        )
    with bare:
        bare.write(
            "UPDATE urm_dispatch_token SET work = ? WHERE child_id = ?",
            ('{"function":"other"}', child),
        )
        where, field = difference(bare)
        assert where.startswith("session:") and field == "detail.work"


def rewritten(bare, stream, number, **changes):
    """An event that says something else, and every later one of its stream linked anew: a chain that is whole."""
    ((stream_no,),) = bare.read("SELECT stream_no FROM streams WHERE stream = ?", (stream,))
    prev = None
    for seq, at, source, body, before in bare.read(
        "SELECT seq, at, source, body, prev_hash FROM events WHERE stream_no = ? AND seq >= ? ORDER BY seq",
        (stream_no, number),
    ):
        prev = before if prev is None else prev
        if seq == number:
            said = json.loads(body)
            said["detail"] |= changes
            body = json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        hash_ = link(stream, seq, at, source, body.encode(), prev)
        bare.write(
            "UPDATE events SET body = ?, prev_hash = ?, hash = ? WHERE stream_no = ? AND seq = ?",
            (body, prev, hash_, stream_no, seq),
        )
        prev = hash_


LIES = {
    "lease_id": "ab" * 32,
    "dispatch_seq": 77,
    "phase_at_event": "terminal",
    "transition_seq": 9,
    "parent_seq": 99,
    "parent_stream_id": "session:other",
    "attempt": 2,
    "work": "cd" * 32,
    "from": "queued",
    "extra": None,
}


@pytest.mark.rule("R-1")
@pytest.mark.guarantee("G6")
@pytest.mark.parametrize("field", LIES)
def test_an_event_that_does_not_follow_is_named_with_its_field_though_its_chain_is_whole(
    scene, bare, field
):
    stream = f"session:{scene.ids['approved']}"
    ((seq,),) = bare.read(
        "SELECT min(e.seq) FROM events e JOIN streams s ON s.stream_no = e.stream_no"
        " WHERE s.stream = ? AND e.body LIKE '%WORKER_START%'",
        (stream,),
    )
    with bare:
        lie = {"code": "URM_CHILD_TIMEOUT"} if field == "extra" else {field: LIES[field]}
        rewritten(bare, stream, seq, **lie)
        ((name, value),) = lie.items()
        found = replay(StoreRecords(bare)).difference
        assert (found.where, found.field, found.stored) == (
            f"{stream}#{seq}",
            f"detail.{name}",
            value,
        )


@pytest.mark.rule("R-1")
@pytest.mark.guarantee("G2", "G6", "G19")
def test_rows_that_are_gone_or_changed_are_named(scene, bare):
    build = scene.ids["approved"]
    ((child,),) = bare.read(
        "SELECT min(child_id) FROM urm_dispatch_token WHERE parent_session_id = ?", (build,)
    )
    own = "(SELECT stream_no FROM streams WHERE stream = ?)"
    cases = [
        (
            f"DELETE FROM events WHERE seq = 2 AND stream_no = {own}",
            (f"child:{child}",),
            f"child:{child}#2",
            "event",
        ),
        (
            "DELETE FROM urm_dispatch_token WHERE child_id = ?",
            (child,),
            "session:",
            "detail.child_id",
        ),
        (
            "UPDATE sessions SET dispatch_high = 99 WHERE session_id = ?",
            (build,),
            "session ",
            "dispatch_high",
        ),
        (
            "UPDATE sessions SET queue_high = 99 WHERE session_id = ?",
            (build,),
            "session ",
            "queue_high",
        ),
        (
            "UPDATE sessions SET max_active_children = 9 WHERE session_id = ?",
            (build,),
            "session ",
            "max_active",
        ),
        ("UPDATE builds SET state = 'FAILED' WHERE build_id = ?", (build,), "build ", "state"),
        ("UPDATE builds SET version = 9 WHERE build_id = ?", (build,), "build ", "version"),
        ("DELETE FROM builds WHERE build_id = ?", (build,), "build ", "state"),
        (
            "UPDATE checkpoints SET status = 'FAILED' WHERE build_id = ?",
            (build,),
            build,
            "checkpoint",
        ),
        (
            "UPDATE budget_totals SET limit_amount = 1 WHERE parent_session_id = ?",
            (build,),
            "total ",
            "limit_amount",
        ),
        (
            "UPDATE budget_totals SET total = total + 1 WHERE parent_session_id = ?",
            (build,),
            "total ",
            "total",
        ),
        (
            "UPDATE budget_debits SET amount = amount + 1 WHERE child_id = ?",
            (child,),
            "session:",
            "detail.",
        ),
        (
            "UPDATE budget_debits SET debit_seq = 50 + debit_seq WHERE child_id = ?",
            (child,),
            "session:",
            "detail.debits",
        ),
        (
            f"UPDATE events SET at = at + 1 WHERE seq = 1 AND stream_no = {own}",
            (f"child:{child}",),
            "child:",
            "ts",
        ),
        (
            f"UPDATE events SET source = 'x' WHERE seq = 1 AND stream_no = {own}",
            (f"child:{child}",),
            "child:",
            "hash",
        ),
    ]
    for sql, params, where, field in cases:
        with bare:
            bare.write(sql, params)
            found = difference(bare)
            assert found is not None, sql
            assert found[0].startswith(where) and found[1].startswith(field), (sql, found)


@pytest.mark.rule("R-1", "R-6")
def test_a_session_that_is_not_there_is_a_difference(scene, bare, tmp_path):
    build = scene.ids["failed"]
    with bare:
        bare.write("DELETE FROM sessions WHERE session_id = ?", (build,))
        found = replay(StoreRecords(bare), [build]).difference
        assert (found.where, found.field) == (f"session {build}", "session")
        assert replay(StoreRecords(bare)).difference == found
        bare.write("DELETE FROM builds WHERE build_id = ?", (build,))
        found = replay(StoreRecords(bare)).difference
        assert found.where == "events" and found.stored > found.replayed
    export(StoreRecords(bare), build, tmp_path / "b", lambda sha256: iter(()), False)
    files = files_of(tmp_path / "b")
    empty = replay_bundle(packed(tmp_path / "c", {**files, "sessions.ndjson": b""}))
    assert empty.difference.where == f"session {build}"


def queued_in_reverse(bare, build):
    """The events of children agree with rows whose places in the queue are turned round."""
    for stream, seq, body in bare.read(
        "SELECT s.stream, e.seq, e.body FROM events e JOIN streams s ON s.stream_no = e.stream_no"
        " JOIN urm_dispatch_token t ON s.stream IN ('child:' || t.child_id, t.parent_stream_id)"
        " WHERE t.parent_session_id = ? AND e.source = 'child' GROUP BY s.stream, e.seq, e.body",
        (build,),
    ):
        columns = json.loads(body)["detail"].get("columns")
        if columns and "queue_seq" in columns:
            changed = {**columns, "queue_seq": 100 - columns["queue_seq"]}
            rewritten(bare, stream, seq, columns=changed)


RULES = {
    "reordered": (
        "UPDATE urm_dispatch_token SET queue_seq = 100 - queue_seq WHERE parent_session_id = ?",
        "queue_seq",
    ),
    "asked to end, and completed": (
        "UPDATE urm_dispatch_token SET cancel_request_id = 'c-1' WHERE parent_session_id = ? AND reason = 'completed'",
        "detail.reason",
    ),
    "more at once than the cap": ("", "children that run"),
    "later attempt of nobody": (
        "UPDATE urm_dispatch_token SET attempt = 3 WHERE parent_session_id = ? AND queue_seq = 1",
        "detail.attempt",
    ),
    "queued after its start": (
        "UPDATE urm_dispatch_token SET parent_seq = parent_seq + 100 WHERE parent_session_id = ? AND queue_seq = 1",
        "parent_seq",
    ),
    "more than a second carried": (
        "UPDATE budget_totals SET carried = 2000000 WHERE parent_session_id = ?",
        "carried",
    ),
}


@pytest.mark.rule("R-1", "C-2", "C-5", "C-40")
@pytest.mark.parametrize("name", RULES)
def test_what_the_rules_do_not_allow_is_a_difference_though_records_agree(scene, bare, name):
    build = scene.ids["approved"]
    sql, field = RULES[name]
    with bare:
        if name == "reordered":
            queued_in_reverse(bare, build)
        if sql:
            bare.write(sql, (build,))
        else:
            ((seq,),) = bare.read(
                "SELECT min(e.seq) FROM events e JOIN streams s ON s.stream_no = e.stream_no"
                " WHERE s.stream = ? AND e.body LIKE '%max_active_children%'",
                (f"session:{build}",),
            )
            rewritten(bare, f"session:{build}", seq, max_active_children=0)
        found = replay(StoreRecords(bare), [build]).difference
        assert found is not None and found.field == field, found
        assert name != "reordered" or found.code == "URM_SCHEDULER_REPLAY_ORDER_INVALID"


@pytest.mark.rule("R-1")
def test_what_cannot_be_read_is_told_where_it_stands(scene, bare):
    build = scene.ids["approved"]
    with bare:
        bare.write("UPDATE checkpoints SET outputs = '[[' WHERE build_id = ?", (build,))
        assert difference(bare) == (f"the rows of {build}", "form")
    with bare:
        deep = '{"context":' + "[" * 5000 + "]" * 5000 + ',"detail":{},"event":"X"}'
        bare.write(
            "UPDATE events SET body = ? WHERE seq = 3 AND stream_no = (SELECT stream_no FROM streams WHERE stream = ?)",
            (deep, f"session:{build}"),
        )
        assert difference(bare) == (f"session:{build}#3", "body")


@pytest.mark.rule("R-1", "C-30")
def test_a_debit_that_was_asked_for_never_passes_its_limit(scene, bare):
    build = scene.ids["approved"]
    ((seq,),) = bare.read(
        "SELECT e.seq FROM events e JOIN streams s ON s.stream_no = e.stream_no"
        " WHERE s.stream = ? AND e.body LIKE '%SESSION_OPENED%'",
        (f"session:{build}",),
    )
    with bare:
        rewritten(bare, f"session:{build}", seq, limits={"usd_micros": 10_000})
        assert difference(bare) == (f"debit {build} usd_micros 2", "total")
    with bare:
        rewritten(bare, f"session:{build}", seq, limits={"usd_micros": 10_000})
        bare.write("UPDATE budget_debits SET settled = 1 WHERE parent_session_id = ?", (build,))
        # Who asked for it, or spent it before, is told by its last event.
        assert difference(bare)[1] == "detail.debits"


@pytest.mark.rule("R-1")
def test_what_no_event_could_say_is_a_difference_and_no_crash(scene, bare):
    stream = f"session:{scene.ids['failed']}"
    for body in (
        "{}",
        "not json",
        '{"context":1,"detail":{},"event":"X"}',
        '{"context":{},"detail":{},"event":"X"}',
    ):
        with bare:
            bare.write(
                "UPDATE events SET body = ? WHERE seq = 3 AND stream_no ="
                " (SELECT stream_no FROM streams WHERE stream = ?)",
                (body, stream),
            )
            where, field = difference(bare)
            assert where == f"{stream}#3" and field
            bare.write(
                "UPDATE events SET source = 'x' WHERE seq = 2 AND stream_no ="
                " (SELECT stream_no FROM streams WHERE stream = ?)",
                (stream,),
            )
            assert difference(bare) == (f"{stream}#2", "hash"), (
                "the first one is told, not the worst"
            )
