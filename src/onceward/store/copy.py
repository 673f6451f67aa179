"""Every row of one store into another: backups, restores and moving between databases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from onceward.core import faults
from onceward.store.port import Database, Reads, Row, Value, Writes

TABLES: Final = (
    ("workspace", ("one",)),
    ("streams", ("stream_no",)),
    ("events", ("position",)),
    ("principals", ("name",)),
    ("principal_roles", ("name", "role")),
    ("keys", ("fingerprint",)),
    ("signatures", ("statement_hash",)),
    ("seals", ("seal_no",)),
    ("tokens", ("token_id",)),
    ("plans", ("plan_hash",)),
    ("builds", ("build_id",)),
    ("checkpoints", ("build_id", "stage", "target")),
    ("confirmation_tokens", ("permit_id",)),
    ("approvals", ("build_id", "stage", "target", "digest")),
    ("rate_starts", ("scope", "at", "child_id")),
    ("sessions", ("session_id",)),
    ("urm_dispatch_token", ("child_id",)),
    ("budget_totals", ("parent_session_id", "budget_lane")),
    ("budget_debits", ("parent_session_id", "budget_lane", "debit_seq")),
    ("workspace_budget", ("budget_lane",)),
    ("artifacts", ("sha256",)),
    ("artifact_refs", ("owner", "name", "kind")),
    ("recoveries", ("fence",)),
    ("registry_meta", ("name",)),
    ("registry_collections", ("collection_id",)),
    ("registry_values", ("vocab_id",)),
    ("registry_audit", ("audit_id",)),
    ("grants", ("grant_id",)),
    ("saga_runs", ("saga_id",)),
    ("saga_steps", ("saga_id", "step", "side")),
    ("run_leases", ("name",)),
    ("decision_backlog_history", ("history_id",)),
    ("decision_backlog_entry", ("entry_id",)),
    ("decision_backlog_dependency", ("entry_id", "depends_on")),
    ("decision_backlog_sweep_log", ("sweep_id",)),
    ("manifest_envelope", ("manifest_id",)),
    ("manifest_unit", ("manifest_id", "path")),
    ("review_decision", ("decision_id",)),
    ("cut_change_set", ("change_set_id",)),
    ("cut_affected_row", ("change_set_id", "path")),
    ("verify_result", ("verify_result_id",)),
    ("dot_pair_signature", ("signature_id",)),
    ("requests", ("request_no",)),
    ("event_outbox", ("sink", "position")),
    ("outbox_used", ("sink", "dedupe_key")),
    ("singleton_lock", ("lock_id",)),
    ("kernel_beat", ("one",)),
)
"""Each table with its key, in an order that the schema's own rules accept."""

_PAGE = 500


def copy_rows(source: Database, rows: Reads, target: Database, tx: Writes) -> dict[str, int]:
    """Copy all tables; answers how many rows of each. The copied writer lock is free, its fence kept."""
    counts: dict[str, int] = {}
    tx.write("DELETE FROM workspace")
    for table, key in TABLES:
        columns = source.columns(rows, table)
        insert = (
            f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
        )
        counts[table] = 0
        for row in pages(rows, table, key, columns):
            tx.write(insert, row)
            counts[table] += 1
        faults.point("restore.table")
    tx.write("UPDATE singleton_lock SET token = '', build_id = NULL")
    # Where the rows came from, these children may be alive: whoever opens the copy must leave them alone.
    tx.write(
        "UPDATE urm_dispatch_token SET death = ? WHERE phase <> 'terminal' AND death IS NULL",
        ('{"death_unconfirmed":"restored from a backup"}',),
    )
    target.filled(tx)
    return counts


def pages(
    rows: Reads,
    table: str,
    key: Sequence[str],
    columns: Sequence[str],
    fixed: Mapping[str, Value] | None = None,
) -> Iterator[Row]:
    """Every row of a table, or those whose columns have these values, in the order of its key, in flat memory."""
    keys = ", ".join(key)
    select = f"SELECT {', '.join(columns)} FROM {table}"
    order = f" ORDER BY {keys} LIMIT {_PAGE}"
    those = [f"{name} = ?" for name in fixed or {}]
    known = tuple((fixed or {}).values())
    after: tuple[Value, ...] = ()
    while True:
        wanted = [*those, *([f"({keys}) > ({', '.join('?' * len(key))})"] if after else [])]
        where = f" WHERE {' AND '.join(wanted)}" if wanted else ""
        page = rows.read(select + where + order, (*known, *after))
        yield from page
        if len(page) < _PAGE:
            return
        after = tuple(page[-1][columns.index(name)] for name in key)
