"""Grants as rows (S-3)."""

from __future__ import annotations

from typing import Final

from onceward.core.grants import Grant
from onceward.errors import NotFound, Recovery
from onceward.store.port import Reads
from onceward.store.table import Lifecycle, Table

GRANTS: Final = Table(
    Grant,
    "grants",
    key=("grant_id",),
    bundle="grants.ndjson",
    bundled_with="saga",
    lifecycle=Lifecycle(machine="grant", state="status", stream="entry"),
)


class Grants:
    def __init__(self, rows: Reads) -> None:
        self._rows = rows

    def find(self, grant_id: str) -> Grant | None:
        return GRANTS.first(self._rows, "WHERE grant_id = ?", (grant_id,))

    def named(self, prefix: str) -> Grant:
        """The one grant that an id, or its beginning, means."""
        found = GRANTS.begins(self._rows, prefix)
        if prefix and len(found) == 1:
            return found[0]
        raise NotFound(
            f"more than one grant begins with {prefix[:80]}"
            if found
            else f"there is no grant {prefix[:80]}",
            context={"grant_id": prefix[:128]},
            recovery=[Recovery("see which there are", "onceward grant list")],
        )

    def all(self, limit: int = 100) -> list[Grant]:
        """The newest first."""
        return GRANTS.read(self._rows, "ORDER BY created_at DESC, grant_id DESC LIMIT ?", (limit,))
