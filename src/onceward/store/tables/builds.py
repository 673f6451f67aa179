"""Builds as rows."""

from __future__ import annotations

from onceward.errors import NotFound
from onceward.kernel.records import Build
from onceward.store.port import Reads

_COLUMNS = "build_id, name, state, version, created_at, updated_at"


class Builds:
    def __init__(self, rows: Reads) -> None:
        self._rows = rows

    def get(self, build_id: str) -> Build:
        found = self._rows.read(f"SELECT {_COLUMNS} FROM builds WHERE build_id = ?", (build_id,))
        if not found:
            raise NotFound(f"there is no build {build_id}", context={"build_id": build_id})
        return Build(*found[0])

    def in_state(self, state: str) -> list[Build]:
        found = self._rows.read(f"SELECT {_COLUMNS} FROM builds WHERE state = ? ORDER BY build_id", (state,))
        return [Build(*row) for row in found]
