"""Starts of steps whose stage has a rate: kept, so that a restart does not forget them (B-16)."""

from __future__ import annotations

from typing import Any, Final

from onceward.core.sources import Micros
from onceward.store.port import Reads, Writes
from onceward.store.table import WHOLE_TABLE, Table

RATE_STARTS: Final[Table[Any]] = Table(
    None,
    "rate_starts",
    key=("scope", "at", "child_id"),
    not_evidence={WHOLE_TABLE: "when steps of a stage with a rate began; forgotten after a while"},
)


def rate_starts(rows: Reads, scope: str, count: int) -> list[Micros]:
    """The last starts of a scope, oldest first."""
    found = rows.read(
        "SELECT at FROM rate_starts WHERE scope = ? ORDER BY at DESC LIMIT ?", (scope, count)
    )
    return [at for (at,) in reversed(found)]


def note_start(tx: Writes, scope: str, child_id: str, at: Micros, forget_before: Micros) -> None:
    tx.write("DELETE FROM rate_starts WHERE scope = ? AND at < ?", (scope, forget_before))
    tx.write(
        "INSERT INTO rate_starts (scope, child_id, at) VALUES (?, ?, ?)", (scope, child_id, at)
    )
