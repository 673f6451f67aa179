"""Approvals: questions to a person about exactly one content (B-15)."""

from __future__ import annotations

from typing import Final

import msgspec

from onceward.core.sources import Micros
from onceward.store.port import Reads, Writes
from onceward.store.table import Table


class Approval(msgspec.Struct, frozen=True):
    """One content that was to be approved, and what was decided."""

    build_id: str
    stage: str
    target: str
    digest: str
    text: str
    wanted_at: Micros
    decision: str | None
    actor: str | None
    note: str | None
    decided_at: Micros | None
    statement_hash: str | None = None
    """What the person signed."""


APPROVALS: Final = Table(
    Approval,
    "approvals",
    key=("build_id", "stage", "target", "digest"),
    bundle="approvals.ndjson",
)


def want_approval(
    tx: Writes, build_id: str, stage: str, target: str, digest: str, text: str, now: Micros
) -> None:
    tx.write(
        "INSERT INTO approvals (build_id, stage, target, digest, text, wanted_at)"
        " VALUES (?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (build_id, stage, target, digest)"
        " DO UPDATE SET wanted_at = excluded.wanted_at",
        (build_id, stage, target, digest, text, now),
    )


def approvals_of(rows: Reads, build_id: str) -> list[Approval]:
    """All of a build, the newest content of each step last."""
    return APPROVALS.read(
        rows, "WHERE build_id = ? ORDER BY stage, target, wanted_at, digest", (build_id,)
    )


def wanted_approvals(rows: Reads, limit: int = 50) -> list[Approval]:
    """The open questions of builds that are not over: the newest content of each step."""
    found = rows.read(
        f"SELECT {APPROVALS.columns_of('a')} FROM approvals a"
        " JOIN builds b ON b.build_id = a.build_id"
        " WHERE a.decision IS NULL AND b.state IN ('ACTIVE', 'CRASHED', 'BUDGET_PAUSE')"
        " AND NOT EXISTS"
        " (SELECT 1 FROM approvals n WHERE n.build_id = a.build_id AND n.stage = a.stage"
        " AND n.target = a.target"
        " AND n.wanted_at > a.wanted_at) ORDER BY a.wanted_at DESC LIMIT ?",
        (limit,),
    )
    return [Approval(*row) for row in found]


def find_approval(
    rows: Reads, build_id: str, stage: str, target: str, digest: str
) -> Approval | None:
    return APPROVALS.first(
        rows,
        "WHERE build_id = ? AND stage = ? AND target = ? AND digest = ?",
        (build_id, stage, target, digest),
    )


def decide_approval(
    tx: Writes,
    found: Approval,
    decision: str,
    actor: str,
    note: str,
    now: Micros,
    statement: str | None,
) -> None:
    tx.write(
        "UPDATE approvals SET decision = ?, actor = ?, note = ?, decided_at = ?, statement_hash = ?"
        " WHERE build_id = ? AND stage = ? AND target = ? AND digest = ?",
        (
            decision,
            actor,
            note,
            now,
            statement,
            found.build_id,
            found.stage,
            found.target,
            found.digest,
        ),
    )
