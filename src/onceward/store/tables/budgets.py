"""Running totals and the debits they are made of (C-30)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from onceward.core.sources import Micros
from onceward.store.port import Reads, Row, Writes
from onceward.store.table import Table


class LaneTotal(msgspec.Struct, frozen=True):
    """What a session has spent in a lane, and may spend."""

    parent_session_id: str
    budget_lane: str
    accounting_mode: str
    limit_amount: int | None
    total: int
    carried: int


class DebitRow(msgspec.Struct, frozen=True):
    """One debit of a session."""

    parent_session_id: str
    budget_lane: str
    debit_seq: int
    child_id: str
    amount: int
    settled: int
    at: Micros


TOTALS: Final = Table(
    LaneTotal,
    "budget_totals",
    key=("parent_session_id", "budget_lane"),
    bundle="totals.ndjson",
    not_evidence={"carried": "the part of a second that does not count yet; never a whole one"},
)
DEBITS: Final = Table(
    DebitRow,
    "budget_debits",
    key=("parent_session_id", "budget_lane", "debit_seq"),
    bundle="debits.ndjson",
)
WORKSPACE_BUDGET: Final[Table[Any]] = Table(None, "workspace_budget", key=("budget_lane",))


def lanes_of(rows: Reads, session_id: str) -> list[Row]:
    """Lane, limit, total, carried microseconds and accounting mode of a session's lanes."""
    return rows.read(
        "SELECT budget_lane, limit_amount, total, carried, accounting_mode FROM budget_totals"
        " WHERE parent_session_id = ?"
        " ORDER BY budget_lane",
        (session_id,),
    )


def set_limit(tx: Writes, session_id: str, lane: str, limit: int | None, mode: str) -> None:
    tx.write(
        "INSERT INTO budget_totals (parent_session_id, budget_lane, accounting_mode, limit_amount,"
        " total, carried)"
        " VALUES (?, ?, ?, ?, 0, 0) ON CONFLICT (parent_session_id, budget_lane) DO UPDATE SET"
        " limit_amount = excluded.limit_amount",
        (session_id, lane, mode, limit),
    )


def add_debit(
    tx: Writes,
    session_id: str,
    lane: str,
    child_id: str,
    amount: int,
    carried: int,
    settled: int,
    at: Micros,
) -> None:
    """One debit and the total it makes: the two are one write, or none."""
    tx.write(
        "UPDATE budget_totals SET total = total + ?, carried = ?"
        " WHERE parent_session_id = ? AND budget_lane = ?",
        (amount, carried, session_id, lane),
    )
    tx.write(
        "INSERT INTO budget_debits (parent_session_id, budget_lane, debit_seq, child_id, amount,"
        " settled, at)"
        " SELECT ?, ?, coalesce(max(debit_seq), 0) + 1, ?, ?, ?, ? FROM budget_debits"
        " WHERE parent_session_id = ? AND budget_lane = ?",
        (session_id, lane, child_id, amount, settled, at, session_id, lane),
    )


def carry(tx: Writes, session_id: str, lane: str, carried: int) -> None:
    """Remember what does not make a whole unit yet."""
    tx.write(
        "UPDATE budget_totals SET carried = ? WHERE parent_session_id = ? AND budget_lane = ?",
        (carried, session_id, lane),
    )


def spent_by(rows: Reads, child_id: str) -> Mapping[str, int]:
    """What a child spent, by lane."""
    found = rows.read(
        "SELECT budget_lane, CAST(sum(amount) AS BIGINT) FROM budget_debits WHERE child_id = ?"
        " GROUP BY budget_lane"
        " ORDER BY budget_lane",
        (child_id,),
    )
    return {lane: int(amount) for lane, amount in found}


def debits_of_child(rows: Reads, child_id: str) -> list[Row]:
    """Every debit of a child: lane, number, amount, kind and time."""
    return rows.read(
        "SELECT budget_lane, debit_seq, amount, settled, at FROM budget_debits WHERE child_id = ?"
        " ORDER BY budget_lane, debit_seq",
        (child_id,),
    )


def workspace_lanes(rows: Reads) -> list[Row]:
    """Lane, limit and total of what the whole workspace may spend."""
    return rows.read(
        "SELECT budget_lane, limit_amount, total FROM workspace_budget ORDER BY budget_lane"
    )


def set_workspace_limits(tx: Writes, limits: Mapping[str, int]) -> None:
    """The workspace's limits as the settings have them; its totals are the sums of its
    sessions'."""
    tx.write("DELETE FROM workspace_budget")
    for lane, limit in sorted(limits.items()):
        tx.write(
            "INSERT INTO workspace_budget (budget_lane, limit_amount, total) SELECT ?, ?,"
            " CAST(coalesce(sum(total), 0) AS BIGINT) FROM budget_totals WHERE budget_lane = ?",
            (lane, limit, lane),
        )


def add_to_workspace(tx: Writes, lane: str, amount: int) -> None:
    tx.write("UPDATE workspace_budget SET total = total + ? WHERE budget_lane = ?", (amount, lane))


def debits_by_session(rows: Reads) -> list[Row]:
    """Session, its build's name, lane and total, the newest session first."""
    return rows.read(
        "SELECT t.parent_session_id, b.name, t.budget_lane, t.total FROM budget_totals t"
        " JOIN sessions s ON s.session_id = t.parent_session_id"
        " LEFT JOIN builds b ON b.build_id = t.parent_session_id WHERE t.total > 0"
        " ORDER BY s.created_at DESC, t.parent_session_id DESC"
    )


def debits_by_child(rows: Reads) -> list[Row]:
    """Child, its build's name, its work, lane and sum."""
    return rows.read(
        "SELECT t.child_id, b.name, t.work, d.budget_lane, CAST(sum(d.amount) AS BIGINT)"
        " FROM budget_debits d"
        " JOIN urm_dispatch_token t ON t.child_id = d.child_id"
        " LEFT JOIN builds b ON b.build_id = t.parent_session_id"
        " GROUP BY t.child_id, b.name, t.work, d.budget_lane"
    )


def lane_totals(rows: Reads) -> list[tuple[str, int]]:
    """What was ever spent in each lane."""
    found = rows.read(
        "SELECT budget_lane, CAST(sum(total) AS BIGINT) FROM budget_totals GROUP BY 1 ORDER BY 1"
    )
    return [(lane, int(total)) for lane, total in found]


def debits_since(rows: Reads, moment: int) -> Mapping[str, int]:
    """What was spent since, by lane."""
    found = rows.read(
        "SELECT budget_lane, CAST(sum(amount) AS BIGINT) FROM budget_debits WHERE at >= ?"
        " GROUP BY budget_lane"
        " ORDER BY budget_lane",
        (moment,),
    )
    return {lane: int(amount) for lane, amount in found}


def debits_of(rows: Reads, session_id: str) -> list[Row]:
    """Every debit of a session in its order: when, in which lane, how much."""
    return rows.read(
        "SELECT at, budget_lane, amount FROM budget_debits WHERE parent_session_id = ?"
        " ORDER BY budget_lane, debit_seq",
        (session_id,),
    )


def debits_by_day(rows: Reads, micros: int) -> list[Row]:
    """Day since 1970 in UTC, lane and sum, the newest day first."""
    return rows.read(
        "SELECT at / ?, budget_lane, CAST(sum(amount) AS BIGINT) FROM budget_debits GROUP BY 1, 2"
        " ORDER BY 1 DESC",
        (micros,),
    )
