"""Counts of rows by state."""

from __future__ import annotations

from typing import Final

from onceward.store.port import Reads

_STATE: Final = {
    "builds": "state",
    "urm_dispatch_token": "phase",
    "decision_backlog_entry": "status",
}


def counted(rows: Reads, table: str) -> dict[str, int]:
    column = _STATE[table]
    found = rows.read(f"SELECT {column}, count(*) FROM {table} GROUP BY {column} ORDER BY {column}")
    return {str(state): int(count) for state, count in found}
