"""Whoever can write to the database can change anything but what is provable: every change is found, by its rule."""

from __future__ import annotations

import os
import random
import shutil
from itertools import pairwise

import pytest

from onceward.core.chain import link
from onceward.evidence.verify import verify_rows
from onceward.evidence.workspace import verify_workspace
from onceward.store.schema import TABLES
from onceward.workspace import Workspace
from scene import Bare, copied, seal

SEED = int(os.environ.get("ONCEWARD_SEED", "1"))
EVERY = int(os.environ.get("ONCEWARD_TAMPER", "251"))
"""Of how many bytes one is flipped; `make tamper` flips every one."""
KEYS = {table.name: table.key for table in TABLES}

# What is found when a row of a table is gone. Tables that hold no evidence are named below.
DROPPED = {
    "events": {"gap", "chain"},
    "streams": {"stream", "gap", "state", "phase"},
    "builds": {"state"},
    "sessions": {"state"},
    "urm_dispatch_token": {"phase"},
    "budget_debits": {"totals", "gap"},
    "checkpoints": {"checkpoint", "manifest"},
    "plans": {"plan"},
    "approvals": {"approval"},
    "confirmation_tokens": {"permit"},
    "registry_collections": {"state"},
    "registry_values": {"state"},
    "registry_audit": {"audit"},
    "registry_meta": {"state"},
    "grants": {"state"},
    "decision_backlog_entry": {"state"},
    "decision_backlog_history": {"backlog"},
    "decision_backlog_dependency": {"backlog"},
    "decision_backlog_sweep_log": {"backlog"},
    "manifest_envelope": {"backlog"},
    "manifest_unit": {"backlog"},
    "cut_change_set": {"state"},
    "cut_affected_row": {"backlog"},
    "verify_result": {"backlog"},
    "dot_pair_signature": {"backlog"},
    "review_decision": {"backlog"},
    "saga_runs": {"state"},
    "saga_steps": {"state"},
    "artifacts": {"ref"},
    "artifact_refs": {"ref"},
    "principals": {"role"},
    "principal_roles": {"role"},
    "keys": {"key"},
    "signatures": {"signature"},
    "seals": {"seal"},
    "tokens": {"token"},
}
NOT_EVIDENCE = {
    "workspace": "one row, never deleted: its id is in every signature",
    "budget_totals": "a total of zero without a limit says nothing; others are looked at below",
    "requests": "asked and answered: what came of it is evidence, and what was signed of it is looked at below",
    "rate_starts": "how fast a stage may start",
    "workspace_budget": "made anew from the settings and the debits",
    "recoveries": "which kernel looked after its predecessors",
    "event_outbox": "what still has to be delivered",
    "outbox_used": "what was delivered",
    "singleton_lock": "who holds the workspace",
    "run_leases": "who may write now; under which epoch a run wrote is in its events",
    "kernel_beat": "when it last showed that it lives",
}


def some(rows):
    """All in the long campaign; by default a few, the first and the last among them."""
    return rows if EVERY == 1 or len(rows) < 4 else [rows[0], rows[len(rows) // 2], rows[-1]]


def few(rows):
    """All in the long campaign; by default a handful, by the seed."""
    return rows if EVERY == 1 or len(rows) < 12 else random.Random(SEED).sample(rows, 12)


def rules(bare):
    return {fault.rule for fault in verify_rows(bare).faults}


@pytest.mark.rule("E-1")
@pytest.mark.guarantee("G19")
def test_what_nobody_touched_is_sound(scene, bare):
    found = verify_rows(bare)
    assert found.faults == []
    assert set(found.checked) >= {
        "events",
        "signatures",
        "keys",
        "approvals",
        "permits",
        "debits",
        "checkpoints",
    }
    with scene.reading() as store:
        assert verify_workspace(store, scene.folder).faults == []


@pytest.mark.rule("E-1")
def test_every_table_is_evidence_or_said_not_to_be():
    assert DROPPED.keys() | NOT_EVIDENCE.keys() == {table.name for table in TABLES}
    assert DROPPED.keys().isdisjoint(NOT_EVIDENCE)


@pytest.mark.rule("E-1")
@pytest.mark.guarantee("G19", "G2", "G6")
@pytest.mark.one_in(2)
@pytest.mark.parametrize("table", DROPPED)
def test_a_row_that_is_gone_is_found(bare, table):
    key = KEYS[table]
    rows = bare.keys(table, key)
    assert rows
    if table == "artifacts":
        rows = [
            row for row in rows if bare.read("SELECT 1 FROM artifact_refs WHERE sha256 = ?", row)
        ]
    newest = bare.read("SELECT max(position) FROM events")[0][0]
    for row in few(rows):
        if table == "events" and row[0] == newest:
            continue  # The very last event: only a seal knows of it, which is another test.
        with bare:
            bare.write(
                f"DELETE FROM {table} WHERE " + " AND ".join(f"{name} = ?" for name in key), row
            )
            found = rules(bare)
        assert found & DROPPED[table], (row, found)


@pytest.mark.rule("E-1")
def test_a_total_that_is_gone_is_found_if_it_said_something(bare):
    for session, lane, limit, total in bare.read(
        "SELECT parent_session_id, budget_lane, limit_amount, total FROM budget_totals"
    ):
        with bare:
            bare.write(
                "DELETE FROM budget_totals WHERE parent_session_id = ? AND budget_lane = ?",
                (session, lane),
            )
            assert "totals" in rules(bare) or (not total and limit is None)


@pytest.mark.rule("E-1")
@pytest.mark.guarantee("G15", "G19")
def test_spending_made_smaller_everywhere_is_found_by_what_was_signed_at_the_end(bare):
    """Debits and totals agree, and the last event of the child was told without them."""
    ((build,),) = bare.read("SELECT min(build_id) FROM builds WHERE state = 'SUCCESS'")
    with bare:
        bare.write("UPDATE budget_debits SET amount = 0 WHERE parent_session_id = ?", (build,))
        bare.write("UPDATE budget_totals SET total = 0 WHERE parent_session_id = ?", (build,))
        found = [fault.detail for fault in verify_rows(bare).faults if fault.rule == "totals"]
    assert "usd_micros is not what was signed when the build ended" in found


@pytest.mark.rule("E-1")
def test_a_signed_request_that_is_gone_or_says_something_else_is_found(bare):
    signed = bare.read("SELECT request_no FROM requests WHERE signature IS NOT NULL")
    assert len(signed) >= 7
    for row in few(signed):
        with bare:
            bare.write("DELETE FROM requests WHERE request_no = ?", row)
            assert "signature" in rules(bare)
        with bare:
            bare.write(
                "UPDATE requests SET payload = replace(payload, '}', ' }') WHERE request_no = ?",
                row,
            )
            assert "request" in rules(bare)


def flipped(value, place, bit):
    data = bytearray(value if isinstance(value, bytes) else value.encode())
    data[place] ^= 1 << bit
    if isinstance(value, bytes):
        return bytes(data)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


BYTES = [
    ("events", "position", "body", ("chain",)),
    ("events", "position", "hash", ("chain",)),
    ("events", "position", "prev_hash", ("chain",)),
    ("events", "position", "source", ("chain",)),
    ("streams", "stream_no", "stream", ("chain", "stream")),
    ("signatures", "statement_hash", "statement", ("signature",)),
    ("signatures", "statement_hash", "signature", ("signature",)),
    ("signatures", "statement_hash", "fingerprint", ("signature",)),
    ("keys", "fingerprint", "public_key", ("key",)),
    ("keys", "fingerprint", "proof", ("key",)),
    ("keys", "fingerprint", "principal", ("key",)),
    ("plans", "plan_hash", "body", ("plan",)),
    ("workspace", "one", "workspace_id", ("signature", "key")),
]


@pytest.mark.rule("E-1")
@pytest.mark.guarantee("G19", "G18")
@pytest.mark.one_in(3)
@pytest.mark.parametrize(("table", "key", "column", "expected"), BYTES, ids=str)
def test_a_flipped_byte_is_found(bare, table, key, column, expected):
    chance = random.Random(SEED)
    tried = 0
    rows = bare.read(f"SELECT {key}, {column} FROM {table} ORDER BY {key}")
    for name, value in few(rows):
        size = len(value if isinstance(value, bytes) else value.encode())
        some = (
            range(chance.randrange(EVERY), size, EVERY)
            if column in ("body", "statement") or EVERY == 1
            else ()
        )
        for place in {size - 1, chance.randrange(size), *some}:
            other = flipped(value, place, chance.randrange(8))
            if other is None:
                continue
            tried += 1
            with bare:
                bare.write(f"UPDATE {table} SET {column} = ? WHERE {key} = ?", (other, name))
                found = rules(bare)
            assert found & set(expected), (name, place, found)
    assert tried


@pytest.mark.rule("E-1")
@pytest.mark.guarantee("G19")
def test_every_bit_of_every_event_is_part_of_its_hash(bare):
    """What the pass above does to some bytes, done to all of them, by the one function that makes hashes."""
    for position, stream, seq, at, source, body, prev_hash, hash_ in bare.read(
        "SELECT e.position, s.stream, e.seq, e.at, e.source, e.body, e.prev_hash, e.hash FROM events e"
        " JOIN streams s ON s.stream_no = e.stream_no ORDER BY e.position"
    ):
        data = body.encode()
        assert link(stream, seq, at, source, data, prev_hash) == hash_, position
        # The brace at its end is not: in a line the hash and the rest follow there. That it is one is looked at apart.
        for place in range(len(data) - 1):
            turned = data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :]
            assert link(stream, seq, at, source, turned, prev_hash) != hash_
        for place in range(32):
            turned = prev_hash[:place] + bytes([prev_hash[place] ^ 1]) + prev_hash[place + 1 :]
            assert link(stream, seq, at, source, data, turned) != hash_
        assert link(stream, seq + 1, at, source, data, prev_hash) != hash_
        assert link(stream, seq, at + 1, source, data, prev_hash) != hash_


RUN_CHANGED = {
    "state": ("'COMP_FIRST'", "1 = 1"),
    "version": ("version + 1", "1 = 1"),
    "name": ("'other'", "1 = 1"),
    "idempotency_root": ("'x' || idempotency_root", "1 = 1"),
    "shape": ("replace(shape, 'COMP_', 'STOP_')", "1 = 1"),
    "input": ("'null'", "1 = 1"),
    "file": ("'other.py'", "1 = 1"),
    "grant_id": ("NULL", "grant_id IS NOT NULL"),
    "lease": ("'other'", "1 = 1"),
    "lease_fence": ("lease_fence + 1", "1 = 1"),
    "digests": ("'{}'", "1 = 1"),
    "last_ok_state": ("'first'", "last_ok_state = 'second'"),
    "undone": ("undone + 1", "1 = 1"),
    "stuck": ("NULL", "stuck IS NOT NULL"),
    "settled": ("0", "settled = 1"),
}
TOKEN_CHANGED = {
    "principal": ("'bob'", "1 = 1"),
    "token_hash": ("'ab' || token_hash", "1 = 1"),
    "note": ("'x'", "1 = 1"),
    "expires_at": ("expires_at + 1", "1 = 1"),
    "revoked_seq": ("NULL", "revoked_seq IS NOT NULL"),
    "made_seq": ("made_seq + 1", "1 = 1"),
}
NEWEST = "SELECT max(sha256) FROM artifacts"
CHANGED = [
    ("builds", "state", "'SUCCESS'", "state <> 'SUCCESS'", ("state",)),
    ("builds", "version", "version + 1", "1 = 1", ("state",)),
    ("builds", "plan_hash", "'ab'", "1 = 1", ("plan",)),
    ("urm_dispatch_token", "phase", "'started'", "phase = 'terminal'", ("phase",)),
    ("urm_dispatch_token", "reason", "'completed'", "reason <> 'completed'", ("phase",)),
    (
        "urm_dispatch_token",
        "dispatch_seq",
        "dispatch_seq + 1000",
        "dispatch_seq IS NOT NULL",
        ("phase",),
    ),
    (
        "urm_dispatch_token",
        "worker_run_id",
        "'x' || worker_run_id",
        "worker_run_id IS NOT NULL",
        ("phase",),
    ),
    ("grants", "expires_at", "expires_at + 1", "1 = 1", ("state",)),
    ("grants", "granter", "'bob'", "1 = 1", ("state",)),
    ("grants", "executor", "'bob'", "1 = 1", ("state",)),
    ("grants", "actions", "'[\"S2_SCHEMA\"]'", "1 = 1", ("state",)),
    ("grants", "statement_hash", "'ab'", "1 = 1", ("state",)),
    ("registry_values", "act_type", "'READ'", "1 = 1", ("state",)),
    ("registry_values", "governing_authority_ref", "'mallory'", "1 = 1", ("state",)),
    ("registry_values", "successor_version", "'1.11.0'", "status = 'superseded'", ("state",)),
    ("registry_values", "audit_id", "'aud_other'", "status = 'superseded'", ("state",)),
    ("registry_audit", "rollback_ref", "'other'", "1 = 1", ("audit",)),
    ("registry_audit", "root", "'other'", "1 = 1", ("audit",)),
    ("registry_audit", "state", "'S6_EVIDENCE'", "1 = 1", ("audit",)),
    ("registry_meta", "root", "'other'", "1 = 1", ("state",)),
    ("saga_steps", "error", "replace(error, 'fails', 'works')", "error IS NOT NULL", ("state",)),
    ("registry_audit", "subject", "'voc_2'", "1 = 1", ("audit",)),
    *(("saga_runs", column, *how, ("state",)) for column, how in RUN_CHANGED.items()),
    (
        "decision_backlog_entry",
        "status",
        "'verified_complete'",
        "status <> 'verified_complete'",
        ("state",),
    ),
    ("decision_backlog_entry", "reason", "'other'", "1 = 1", ("state",)),
    ("decision_backlog_entry", "escalates", "NULL", "escalates IS NOT NULL", ("state",)),
    (
        "decision_backlog_history",
        "signature_ref",
        "NULL",
        "signature_ref IS NOT NULL",
        ("backlog",),
    ),
    ("decision_backlog_history", "signature_ref", "'sig_x'", "signature_ref IS NULL", ("backlog",)),
    ("decision_backlog_sweep_log", "promoted", "promoted + 1", "1 = 1", ("backlog",)),
    ("review_decision", "entry_version", "entry_version + 1", "1 = 1", ("backlog",)),
    ("cut_change_set", "status", "'undone'", "1 = 1", ("state",)),
    ("cut_change_set", "executor", "'vic'", "kind = 'cut'", ("state",)),
    ("cut_affected_row", "after", "'ef'", "after IS NOT NULL", ("backlog",)),
    ("cut_affected_row", "before_mode", "493", "before_mode IS NOT NULL", ("backlog",)),
    ("verify_result", "passed", "1 - passed", "1 = 1", ("backlog",)),
    ("verify_result", "detail", "'{}'", "1 = 1", ("backlog",)),
    ("verify_result", "verifier", "'max'", "1 = 1", ("backlog",)),
    (
        "verify_result",
        "prior_verify_result_id",
        "'vrf_x'",
        "prior_verify_result_id IS NOT NULL",
        ("backlog",),
    ),
    ("dot_pair_signature", "principal", "'eva'", "1 = 1", ("signature",)),
    ("dot_pair_signature", "tool_revision", "'ab'", "1 = 1", ("signature",)),
    ("dot_pair_signature", "fingerprint", "'ab' || fingerprint", "1 = 1", ("signature", "duty")),
    ("dot_pair_signature", "statement_hash", "'ab' || statement_hash", "1 = 1", ("signature",)),
    ("decision_backlog_entry", "author", "'bob'", "author <> 'bob'", ("state",)),
    ("decision_backlog_entry", "target", "'other'", "1 = 1", ("state",)),
    ("decision_backlog_history", "actor", "'eve'", "1 = 1", ("backlog",)),
    ("decision_backlog_history", "to_state", "'cut_applied'", "1 = 1", ("backlog",)),
    ("decision_backlog_history", "at", "at + 1", "1 = 1", ("backlog",)),
    ("manifest_envelope", "body", "replace(body, '.txt', '.py')", "1 = 1", ("backlog",)),
    ("manifest_envelope", "author", "'bob'", "1 = 1", ("backlog",)),
    ("manifest_envelope", "content_hash", "'ab'", "1 = 1", ("backlog",)),
    ("manifest_unit", "after", "'ef'", "after IS NOT NULL", ("backlog",)),
    ("review_decision", "decision", "'approve'", "decision = 'defer'", ("backlog",)),
    ("review_decision", "reviewer", "'tester'", "1 = 1", ("backlog",)),
    ("review_decision", "content_hash", "'ab'", "1 = 1", ("backlog",)),
    ("saga_steps", "status", "'done'", "status = 'failed'", ("state",)),
    ("saga_steps", "status", "'failed'", "status = 'done'", ("state",)),
    ("saga_steps", "outputs", "'[]'", "outputs <> '[]'", ("state",)),
    ("saga_steps", "child_id", "'chd_other'", "1 = 1", ("state",)),
    (
        "saga_steps",
        "side",
        "'compensation'",
        "step = 'first' AND saga_id = (SELECT min(saga_id) FROM saga_runs)",
        ("state",),
    ),
    ("registry_collections", "root", "'other'", "1 = 1", ("state",)),
    ("budget_debits", "amount", "amount + 1", "1 = 1", ("totals",)),
    ("budget_debits", "child_id", "'chd_other'", "1 = 1", ("totals",)),
    ("budget_totals", "total", "total + 1", "1 = 1", ("totals",)),
    ("budget_totals", "limit_amount", "limit_amount + 1", "limit_amount IS NOT NULL", ("totals",)),
    ("checkpoints", "status", "'SUCCESS'", "status = 'FAILED'", ("checkpoint",)),
    (
        "checkpoints",
        "context_hash",
        "'ab' || context_hash",
        "child_id IS NOT NULL",
        ("checkpoint",),
    ),
    (
        "checkpoints",
        "outputs",
        "replace(outputs, 'x.txt', 'y.txt')",
        "outputs <> '[]'",
        ("checkpoint", "manifest"),
    ),
    ("approvals", "actor", "'tester'", "1 = 1", ("approval",)),
    ("approvals", "decision", "'refused'", "1 = 1", ("approval",)),
    ("approvals", "digest", "'ab' || digest", "1 = 1", ("approval",)),
    ("confirmation_tokens", "build_id", "'bld_other'", "1 = 1", ("permit",)),
    (
        "artifact_refs",
        "sha256",
        "(SELECT max(sha256) FROM artifacts)",
        "sha256 < (SELECT max(sha256) FROM artifacts)",
        {"ref"},
    ),
    ("principal_roles", "role", "'admin'", "role <> 'admin'", ("role",)),
    ("keys", "added_seq", "added_seq + 1", "1 = 1", ("key",)),
    ("keys", "revoked_seq", "NULL", "revoked_seq IS NOT NULL", ("key",)),
    ("signatures", "seq", "seq + 1000", "1 = 1", ("signature",)),
    *(("tokens", column, *how, ("token",)) for column, how in TOKEN_CHANGED.items()),
    ("events", "seq", "seq + 1000", "1 = 1", ("gap", "chain")),
    ("events", "at", "at + 1", "1 = 1", ("chain",)),
    ("events", "position", "position + 1000", "1 = 1", ("gap",)),
]


@pytest.mark.rule("E-1")
@pytest.mark.guarantee("G19", "G15")
@pytest.mark.one_in(3)
@pytest.mark.parametrize(("table", "column", "value", "where", "expected"), CHANGED, ids=str)
def test_a_changed_fact_is_found(bare, table, column, value, where, expected):
    key = KEYS[table]
    rows = bare.read(f"SELECT {', '.join(key)} FROM {table} WHERE {where}")
    assert rows
    for row in some(rows):
        with bare:
            clause = " AND ".join(f"{name} = ?" for name in key)
            bare.write(f"UPDATE {table} SET {column} = {value} WHERE {clause}", row)
            found = rules(bare)
        assert found & set(expected), (row, found)


@pytest.mark.rule("E-1")
@pytest.mark.guarantee("G19")
@pytest.mark.parametrize(
    ("table", "key", "column", "expected"),
    [
        ("events", "position", "body", ("chain",)),
        ("events", "position", "hash", ("chain",)),
        ("signatures", "statement_hash", "signature", ("signature",)),
        ("signatures", "statement_hash", "statement", ("signature",)),
        ("keys", "fingerprint", "principal", ("key",)),
        ("keys", "fingerprint", "proof", ("key",)),
    ],
)
def test_two_rows_that_changed_places_are_found(bare, table, key, column, expected):
    rows = bare.read(f"SELECT {key}, {column} FROM {table} ORDER BY {key}")
    for (one, first), (two, second) in few([*pairwise(rows)]):
        if first == second:
            continue
        with bare:
            bare.write(f"UPDATE {table} SET {column} = ? WHERE {key} = ?", (second, one))
            bare.write(f"UPDATE {table} SET {column} = ? WHERE {key} = ?", (first, two))
            found = rules(bare)
        assert found & set(expected), (one, two, found)


def append(bare, stream_no, stream, seq, body, prev_hash, source="child"):
    """An event as its own kernel would have written it: chained, and the newest of all."""
    ((newest, at),) = bare.read("SELECT max(position), max(at) FROM events")
    hash_ = link(stream, seq, at, source, body.encode(), prev_hash)
    bare.write(
        "INSERT INTO events (position, stream_no, seq, at, source, body, prev_hash, hash)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (newest + 1, stream_no, seq, at, source, body, prev_hash, hash_),
    )


@pytest.mark.rule("E-1")
@pytest.mark.guarantee("G10", "G19")
def test_an_event_told_twice_is_found_though_its_chain_is_whole(bare):
    heads = bare.read(
        "SELECT s.stream_no, s.stream, e.seq, e.body, e.hash, e.source FROM streams s JOIN events e"
        " ON e.stream_no = s.stream_no WHERE e.seq = (SELECT max(seq) FROM events x WHERE x.stream_no = s.stream_no)"
    )
    for stream_no, stream, seq, body, hash_, source in few(heads):
        with bare:
            append(bare, stream_no, stream, seq + 1, body, hash_, source)
            found = rules(bare)
        assert found & {"history", "terminal", "copy", "signature", "permit", "backlog"}, (
            stream,
            found,
        )


@pytest.mark.rule("E-1")
@pytest.mark.guarantee("G18")
def test_an_approval_that_nobody_gave_is_found_though_its_chain_is_whole(bare):
    ((build, stream_no, seq, hash_),) = bare.read(
        "SELECT b.build_id, s.stream_no, e.seq, e.hash FROM builds b JOIN streams s"
        " ON s.stream = 'session:' || b.build_id JOIN events e ON e.stream_no = s.stream_no"
        " WHERE b.state = 'BUDGET_PAUSE' ORDER BY e.seq DESC LIMIT 1"
    )
    for signed in ("", f',"signed":"{"ab" * 32}"'):
        body = (
            f'{{"context":{{"actor":"bob","build_id":"{build}","fence":99,"session_id":"{build}"{signed}}},"detail":'
            f'{{"decision":"approved","digest":"{"0" * 64}","step":"join:all"}},"event":"APPROVAL_GIVEN"}}'
        )
        with bare:
            append(bare, stream_no, f"session:{build}", seq + 1, body, hash_, "session")
            assert rules(bare) >= ({"approval", "signature"} if signed else {"approval"})


@pytest.mark.rule("E-1", "E-4")
@pytest.mark.guarantee("G18")
def test_a_signature_made_anew_with_another_key_is_found(scene, bare):
    from onceward.people.signing import SigningKey

    stranger = SigningKey.generate()
    for hash_, statement in few(bare.read("SELECT statement_hash, statement FROM signatures")):
        forged = stranger.sign(statement.encode())
        with bare:
            bare.write(
                "UPDATE signatures SET signature = ?, fingerprint = ? WHERE statement_hash = ?",
                (forged.signature, forged.fingerprint, hash_),
            )
            assert "signature" in rules(bare)
        # The key itself put in the place of the old one: its owner never had it.
        ((old,),) = bare.read(
            "SELECT fingerprint FROM signatures WHERE statement_hash = ?", (hash_,)
        )
        with bare:
            bare.write(
                "UPDATE keys SET public_key = ?, proof = ? WHERE fingerprint = ?",
                (stranger.public, stranger.proof("wsp", "tester"), old),
            )
            assert rules(bare) >= {"key", "signature"}


@pytest.mark.rule("E-1")
def test_an_act_after_its_key_was_revoked_is_found(bare):
    ((fingerprint, revoked),) = bare.read(
        "SELECT fingerprint, revoked_seq FROM keys WHERE revoked_seq IS NOT NULL"
    )
    rows = bare.read(
        "SELECT statement_hash, seq FROM signatures WHERE fingerprint = ? ORDER BY seq",
        (fingerprint,),
    )
    assert rows and all(seq < revoked for _, seq in rows)
    newest = bare.read("SELECT statement_hash FROM signatures ORDER BY seq DESC LIMIT 1")[0]
    with bare:
        bare.write(
            "UPDATE signatures SET fingerprint = ? WHERE statement_hash = ?", (fingerprint, *newest)
        )
        assert "signature" in rules(bare)


@pytest.mark.rule("E-3")
@pytest.mark.guarantee("G19")
def test_a_cut_tail_an_older_copy_and_a_rewritten_history_are_found_by_a_seal(template, tmp_path):
    elsewhere = copied(template, tmp_path, "sqlite")
    receipt = seal(elsewhere)
    fresh = Bare(elsewhere)
    try:
        _held_against(fresh, receipt)
    finally:
        fresh.close()


def _held_against(bare, receipt):
    from onceward.evidence.findings import Findings
    from onceward.evidence.records import StoreRecords
    from onceward.evidence.seal import Against
    from onceward.evidence.verify import verify

    def held(heads=True):
        against = Against("kept", receipt.said, receipt.heads if heads else ())
        findings = verify(StoreRecords(bare), anchors=[against.anchor()])
        ((newest,),) = bare.read("SELECT coalesce(max(position), 0) FROM events")
        judged = Findings()
        against.judge(judged, newest)
        return findings, [fault.detail for fault in judged.faults]

    assert held() == held() and held()[1] == []
    position = receipt.said["position"]
    # The newest event of any stream, or all that came after some moment, is cut off.
    with bare:
        bare.write("DELETE FROM events WHERE position >= ?", (position,))
        assert any("older copy" in why for why in held()[1]) and any(
            "had" in why for why in held()[1]
        )
        assert any("older copy" in why for why in held(heads=False)[1])
    # A stream is gone as if it had never been, and all numbers were closed up.
    with bare:
        ((gone,),) = bare.read(
            "SELECT stream_no FROM streams WHERE stream LIKE 'child:%' ORDER BY stream LIMIT 1"
        )
        bare.write("DELETE FROM events WHERE stream_no = ?", (gone,))
        bare.write("DELETE FROM streams WHERE stream_no = ?", (gone,))
        assert any("gone" in why for why in held()[1]) and held(heads=False)[1]
    # A word is changed and the rest of its chain made anew: the chain is whole, the seal is not of it.
    with bare:
        stream_no, stream = bare.read(
            "SELECT stream_no, stream FROM streams WHERE stream = 'workspace'"
        )[0]
        prev = bytes(32)
        for place, seq, at, source, body in bare.read(
            "SELECT position, seq, at, source, body FROM events WHERE stream_no = ? ORDER BY seq",
            (stream_no,),
        ):
            other = body.replace('"fence":1,', '"fence":1,', 1).replace(
                '"actor":"tester"', '"actor":"nobody"', 1
            )
            hash_ = link(stream, seq, at, source, other.encode(), prev)
            bare.write(
                "UPDATE events SET body = ?, prev_hash = ?, hash = ? WHERE position = ?",
                (other, prev, hash_, place),
            )
            prev = hash_
        findings, judged = held()
        assert not [fault for fault in findings.faults if fault.rule in ("chain", "gap")]
        assert any("workspace is not what it was" in why for why in judged)
        assert any("written anew" in why for why in held(heads=False)[1])


@pytest.mark.rule("E-1")
@pytest.mark.guarantee("G13", "G20")
def test_a_changed_file_is_found_and_what_a_crash_may_leave_is_not(scene, tmp_path):
    folder = tmp_path / ".onceward"
    shutil.copytree(scene.folder, folder)
    copied = Workspace(folder, store_url=scene.settings.store.url, principal="tester")

    def found():
        with copied.reading() as store:
            return {fault.rule for fault in verify_workspace(store, folder).faults}

    chance = random.Random(SEED)
    assert found() == set()
    for path in some(sorted((folder / "streams").glob("*.ndjson"))):
        whole = path.read_bytes()
        for place in {0, len(whole) - 1, chance.randrange(len(whole))}:
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 2]) + whole[place + 1 :])
            assert found() == {"file"}, (path, place)
        lines = whole.splitlines(keepends=True)
        for other in (
            lines[:-1],
            [*lines, lines[-1]],
            [*lines[1:], lines[0]],
            lines[1:],
            [*lines, b"x"],
            [],
        ):
            if other != lines:
                path.write_bytes(b"".join(other))
                assert found() == {"file"}, (path, other)
        path.write_bytes(whole)
    (folder / "streams" / "child:other.ndjson").write_bytes(b"{}\n")
    assert found() == {"file"}
    (folder / "streams" / "child:other.ndjson").unlink()
    assert found() == set()


@pytest.mark.rule("E-1")
@pytest.mark.guarantee("G20")
def test_a_changed_artifact_is_found(scene, bare):
    rows = bare.read("SELECT sha256, data, size FROM artifacts")
    from onceward.evidence.files import verify_artifacts
    from onceward.evidence.findings import Findings

    def found():
        findings = Findings()
        verify_artifacts(bare, scene.folder / "artifacts", findings, None)
        return [fault.rule for fault in findings.faults]

    assert found() == [] and rows
    for sha256, data, _ in rows:
        if data is None:
            continue
        for place in range(len(data)):
            turned = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
            with bare:
                bare.write("UPDATE artifacts SET data = ? WHERE sha256 = ?", (turned, sha256))
                assert found() == ["artifact"]
        for column, value in (("data", data + b"x"), ("data", None), ("size", len(data) + 1)):
            with bare:
                bare.write(f"UPDATE artifacts SET {column} = ? WHERE sha256 = ?", (value, sha256))
                assert found() == ["artifact"]
