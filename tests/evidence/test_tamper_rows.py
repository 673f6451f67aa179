"""Rows that authority or money depends on: whatever somebody who can write them makes of any column of any of them, or
deletes, is found (E-1, G19)."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from onceward.evidence.records import Rows
from onceward.evidence.replay import replay
from onceward.evidence.verify import verify_rows
from onceward.store.schema import TABLES
from onceward.wiring import Workspace
from scene import Bare

SEED = int(os.environ.get("ONCEWARD_SEED", "1"))
ALL = "ONCEWARD_TAMPER" in os.environ
KEYS = {table.name: table.key for table in TABLES}
TAMPERED = (
    "confirmation_tokens",
    "requests",
    "grants",
    "approvals",
    "review_decision",
    "principals",
    "principal_roles",
    "keys",
    "signatures",
    "tokens",
    "budget_debits",
    "budget_totals",
    "checkpoints",
)
NO_EVIDENCE = {
    ("requests", "request_no"): "in which order unanswered requests are looked at",
    ("requests", "takes"): "how often a kernel died while it began it",
    ("grants", "position"): "where its last event is found",
    ("grants", "created_at"): "bookkeeping; its events have their own times",
    ("grants", "updated_at"): "bookkeeping; its events have their own times",
    ("budget_totals", "carried"): "the part of a second that does not count yet; never a whole one",
    ("checkpoints", "error"): "what a person reads of a failure; its reason is in the events",
    ("checkpoints", "updated_at"): "bookkeeping; its events have their own times",
    ("checkpoints", "code_version"): "of a failure: nothing is reused by it",
    ("checkpoints", "environment_hash"): "of a failure: nothing is reused by it",
}
"""What `verify` may pass over, and why; docs/guarantees.md says the same."""


def others(value):
    """What somebody might write in place of a value."""
    if value is None:
        return [1, "x"]
    if isinstance(value, int):
        return [value + 1, value - 1 if value else value + 2, None]
    if isinstance(value, bytes):
        return [bytes([value[0] ^ 1]) + value[1:], None]
    return [f"{value}x", None, f"{'z' if value[:1] != 'z' else 'y'}{value[1:]}"]


def tampers(bare, table):
    """Every change of every column of every row, and every deletion: SQL and its values."""
    key, columns = KEYS[table], bare.columns(table)
    where = " AND ".join(f"{name} = ?" for name in key)
    for row in bare.read(f"SELECT {', '.join(columns)} FROM {table} ORDER BY {', '.join(key)}"):
        record = dict(zip(columns, row, strict=True))
        place = [record[name] for name in key]
        if table != "budget_totals" or record["total"] or record["limit_amount"] is not None:
            # A total of nothing without a limit says nothing.
            yield "(row)", f"DELETE FROM {table} WHERE {where}", place
        for column in columns:
            for value in others(record[column]):
                yield column, f"UPDATE {table} SET {column} = ? WHERE {where}", [value, *place]


def refused(error):
    """Whether the database itself said that such a value cannot stand there."""
    said = f"{type(error).__name__} {error}".lower()
    return any(
        word in said
        for word in ("constraint", "violat", "cannot store", "invalid input", "mismatch")
    )


def missed(bare, chosen):
    """How many were tried, and what was not found."""
    tried, unfound = 0, []
    for table, column, sql, values in chosen:
        try:
            with bare:
                bare.write(sql, values)
                found = verify_rows(bare).faults
        except Exception as error:
            if not refused(error):
                raise
            continue
        tried += 1
        says_nothing = table == "budget_totals" and column == "parent_session_id"
        if not found and (table, column) not in NO_EVIDENCE and not says_nothing:
            unfound.append((sql, values))
    return tried, unfound


@pytest.mark.rule("E-1")
@pytest.mark.guarantee("G19")
@pytest.mark.parametrize(
    "count", [100, pytest.param(1500, marks=[pytest.mark.thorough, pytest.mark.timeout(600)])]
)
def test_nothing_that_authority_or_money_depends_on_is_changed_unnoticed(bare, count):
    every = [
        (table, column, sql, values)
        for table in TAMPERED
        for column, sql, values in tampers(bare, table)
    ]
    chosen = every if ALL else random.Random(SEED).sample(every, min(count, len(every)))
    tried, unfound = missed(bare, chosen)
    assert unfound == []
    assert tried >= min(count, len(every)) * 0.6, "most are values that the database lets stand"


@pytest.mark.rule("E-1", "R-1")
@pytest.mark.guarantee("G19")
@pytest.mark.parametrize(
    "count", [60, pytest.param(1500, marks=[pytest.mark.thorough, pytest.mark.timeout(600)])]
)
def test_whatever_a_replay_finds_is_found(bare, count):
    every = [
        (sql, values)
        for table in ("urm_dispatch_token", "sessions", "builds", *TAMPERED[-3:])
        for _, sql, values in tampers(bare, table)
    ]
    differing = 0
    for sql, values in random.Random(SEED).sample(every, min(count, len(every))):
        try:
            with bare:
                bare.write(sql, values)
                if replay(Rows(bare)).difference is None:
                    continue
                differing += 1
                assert verify_rows(bare).faults, (sql, values)
        except Exception as error:
            if not refused(error):
                raise
    assert differing > count // 10


@pytest.mark.rule("E-1")
def test_every_column_that_is_no_evidence_is_named_in_the_guarantees(bare):
    text = (Path(__file__).parents[2] / "docs" / "guarantees.md").read_text()
    for table, column in NO_EVIDENCE:
        assert column in bare.columns(table)
        assert f"`{table}.{column}`" in text, (table, column)


@pytest.mark.rule("E-1")
@pytest.mark.guarantee("G19")
def test_events_stand_in_the_order_in_which_one_allows_the_other(bare):
    """An act and what it asked for change places in the order of all events, and each stream stays in order."""
    pairs = bare.read(
        "SELECT a.position, e.position FROM events a JOIN events e ON e.position = a.position + 1"
        " JOIN streams s ON s.stream_no = e.stream_no JOIN streams w ON w.stream_no = a.stream_no"
        " WHERE w.stream = 'workspace' AND a.body LIKE '%ACT_SIGNED%' AND s.stream <> 'workspace'"
        " AND e.body LIKE '%\"signed\"%'"
    )
    assert len(pairs) >= 5
    for act, event in pairs:
        with bare:
            for old, new in ((act, -1), (event, act), (-1, event)):
                bare.write("UPDATE events SET position = ? WHERE position = ?", (new, old))
            said = [fault.detail for fault in verify_rows(bare).faults]
            assert any("stands before it in the order of all events" in one for one in said)


@pytest.mark.rule("E-1", "K-6")
@pytest.mark.guarantee("G14", "G19")
@pytest.mark.parametrize(
    ("sink", "table"),
    [
        ('kind = "ndjson"\npath = "out.ndjson"\n', "outbox_used"),
        ('kind = "webhook"\nurl = "http://127.0.0.1:9/"\n', "event_outbox"),
    ],
    ids=["delivered", "waiting"],
)
def test_an_event_that_is_not_to_be_delivered_any_more_is_missed(store_url, tmp_path, sink, table):
    Workspace(tmp_path / ".onceward", store_url=store_url, principal="tester").create()
    (tmp_path / "onceward.toml").write_text(f'[[sink]]\nname = "log"\n{sink}')
    workspace = Workspace(tmp_path / ".onceward", store_url=store_url, principal="tester")
    kernel = workspace.kernel()
    try:
        kernel.store.write(lambda tx: tx.append("session:s1", "NOTED", "tester", {}))
        kernel.deliver()
    finally:
        kernel.close()
    bare = Bare(workspace)
    try:
        assert verify_rows(bare).faults == []
        rows = bare.keys(table, KEYS[table])
        assert len(rows) >= 2
        for row in rows:
            with bare:
                bare.write(f"DELETE FROM {table} WHERE sink = ? AND {KEYS[table][1]} = ?", row)
                assert {fault.rule for fault in verify_rows(bare).faults} == {"outbox"}
    finally:
        bare.close()


@pytest.mark.rule("E-1", "K-6")
@pytest.mark.parametrize("on", ["[]", '["pause"]', '["failure", "approval"]'])
def test_who_is_told_of_some_events_or_of_none_misses_nothing(store_url, tmp_path, on):
    Workspace(tmp_path / ".onceward", store_url=store_url, principal="tester").create()
    (tmp_path / "onceward.toml").write_text(f'[notify]\ncommand = ["true"]\non = {on}\n')
    workspace = Workspace(tmp_path / ".onceward", store_url=store_url, principal="tester")
    kernel = workspace.kernel()
    try:
        for name in ("NOTED", "APPROVAL_WANTED", "BUILD_PAUSE_NOTED"):
            kernel.store.write(lambda tx, name=name: tx.append("session:s1", name, "tester", {}))
    finally:
        kernel.close()
    with workspace.reading() as store, store.read() as rows:
        assert verify_rows(rows).faults == []
