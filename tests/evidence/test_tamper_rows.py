"""Every column of every row that is evidence: whatever somebody who can write it makes of it, or deletes, is found
(E-1, G19). What is no evidence is declared with its table and named in docs/guarantees.md."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from onceward.evidence.files import verify_artifacts
from onceward.evidence.records import StoreRecords
from onceward.evidence.replay import replay
from onceward.evidence.verify import verify_rows
from onceward.machines import MACHINES
from onceward.store.schema import TABLES
from onceward.store.table import WHOLE_TABLE
from onceward.workspace import Workspace
from scene import Bare

SEED = int(os.environ.get("ONCEWARD_SEED", "1"))
ALL = "ONCEWARD_TAMPER" in os.environ
SCHEMA = {table.name: table for table in TABLES}
KEYS = {name: table.key for name, table in SCHEMA.items()}
MACHINE_STATES = {machine.name: machine.states for machine in MACHINES}
EVIDENCE = tuple(name for name, table in SCHEMA.items() if not table.skips(WHOLE_TABLE))
AUTHORITY = (
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
"""Tables on which authority or money depends."""


def others(value, known):
    """What somebody might write in place of a value; `known` are those that other rows have there."""
    return [*_others(value), *(one for one in known if one != value)]


def _others(value):
    if value is None:
        return [1, "x"]
    if isinstance(value, int):
        return [value + 1, value - 1 if value else value + 2, value + 1_000_003, None]
    if isinstance(value, bytes):
        return [bytes([value[0] ^ 1]) + value[1:], None]
    return [f"{value}x", None, f"{'z' if value[:1] != 'z' else 'y'}{value[1:]}"]


def few(values):
    """The values, if they are so few that they seem to be of a kind; else none."""
    found = set(values)
    return sorted(found - {None}) if len(found) <= 6 else []


def tampers(bare, table):
    """Every change of every column of every row, and every deletion: SQL and its values."""
    key, columns = KEYS[table], bare.columns(table)
    where = " AND ".join(f"{name} = ?" for name in key)
    rows = bare.read(f"SELECT {', '.join(columns)} FROM {table} ORDER BY {', '.join(key)}")
    known = {name: few(row[number] for row in rows) for number, name in enumerate(columns)}
    lifecycle = SCHEMA[table].lifecycle
    if lifecycle is not None and lifecycle.machine in MACHINE_STATES:
        known[lifecycle.state] = MACHINE_STATES[lifecycle.machine]
    for row in rows:
        record = dict(zip(columns, row, strict=True))
        place = [record[name] for name in key]
        # A total of nothing without a limit says nothing: it may go, or move to where there is none.
        empty = table == "budget_totals" and not record["total"] and record["limit_amount"] is None
        if not empty:
            yield "(row)", f"DELETE FROM {table} WHERE {where}", place
        for column in columns:
            if empty and column in key:
                continue
            for value in others(record[column], known[column]):
                yield column, f"UPDATE {table} SET {column} = ? WHERE {where}", [value, *place]


def refused(error):
    """Whether the database itself said that such a value cannot stand there."""
    said = f"{type(error).__name__} {error}".lower()
    return any(
        word in said
        for word in ("constraint", "violat", "cannot store", "invalid input", "mismatch")
    )


def missed(bare, chosen, folder):
    """How many were tried, and what was not found."""
    tried, unfound = 0, []
    for table, column, sql, values in chosen:
        try:
            with bare:
                bare.write(sql, values)
                findings = verify_rows(bare)
                if table == "artifacts":
                    verify_artifacts(bare, folder / "artifacts", findings, None)
                found = findings.faults
        except Exception as error:
            if not refused(error):
                raise
            continue
        tried += 1
        if not found and not SCHEMA[table].skips(column):
            unfound.append((sql, values))
    return tried, unfound


def tampers_of(bare, tables):
    return [
        (table, column, sql, values)
        for table in tables
        for column, sql, values in tampers(bare, table)
    ]


@pytest.mark.rule("E-1")
@pytest.mark.guarantee("G19")
@pytest.mark.parametrize(
    ("tables", "count"),
    [
        (AUTHORITY, 100),
        (EVIDENCE, 200),
        pytest.param(AUTHORITY, 1500, marks=[pytest.mark.thorough, pytest.mark.timeout(600)]),
        pytest.param(EVIDENCE, 3000, marks=[pytest.mark.thorough, pytest.mark.timeout(900)]),
    ],
)
@pytest.mark.one_in(2)
def test_no_column_of_any_row_that_is_evidence_is_changed_unnoticed(scene, bare, tables, count):
    every = tampers_of(bare, tables)
    chosen = every if ALL else random.Random(SEED).sample(every, min(count, len(every)))
    tried, unfound = missed(bare, chosen, scene.folder)
    assert unfound == []
    assert tried >= min(count, len(every)) * 0.6, "most are values that the database lets stand"


@pytest.mark.rule("E-1", "R-1")
@pytest.mark.guarantee("G19")
@pytest.mark.parametrize(
    "count", [60, pytest.param(1500, marks=[pytest.mark.thorough, pytest.mark.timeout(600)])]
)
def test_whatever_a_replay_finds_is_found(bare, count):
    every = tampers_of(
        bare,
        (
            "urm_dispatch_token",
            "sessions",
            "builds",
            "budget_debits",
            "budget_totals",
            "checkpoints",
        ),
    )
    differing = 0
    for _, _, sql, values in random.Random(SEED).sample(every, min(count, len(every))):
        try:
            with bare:
                bare.write(sql, values)
                if replay(StoreRecords(bare)).difference is None:
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
    for table in SCHEMA.values():
        for column in table.not_evidence:
            assert column == WHOLE_TABLE or column in bare.columns(table.name)
            name = table.name if column == WHOLE_TABLE else f"{table.name}.{column}"
            assert f"`{name}`" in text, name


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
