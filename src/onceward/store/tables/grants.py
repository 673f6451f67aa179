"""Grants as rows (S-3)."""

from __future__ import annotations

from onceward.core.grants import Grant
from onceward.errors import NotFound, Recovery
from onceward.store.port import Reads

_COLUMNS = ", ".join(Grant.__struct_fields__)


class Grants:
    def __init__(self, rows: Reads) -> None:
        self._rows = rows

    def find(self, grant_id: str) -> Grant | None:
        found = self._rows.read(f"SELECT {_COLUMNS} FROM grants WHERE grant_id = ?", (grant_id,))
        return Grant(*found[0]) if found else None

    def named(self, prefix: str) -> Grant:
        """The one grant that an id, or its beginning, means."""
        found = self._rows.read(
            f"SELECT {_COLUMNS} FROM grants WHERE grant_id >= ? AND grant_id < ? ORDER BY grant_id LIMIT 2",
            (prefix, prefix + "\U0010ffff"),
        )
        exact = [row for row in found if row[0] == prefix]
        if prefix and len(exact or found) == 1:
            return Grant(*(exact or found)[0])
        raise NotFound(
            f"more than one grant begins with {prefix[:80]}"
            if found
            else f"there is no grant {prefix[:80]}",
            context={"grant_id": prefix[:128]},
            recovery=[Recovery("see which there are", "onceward grant list")],
        )

    def all(self, limit: int = 100) -> list[Grant]:
        """The newest first."""
        found = self._rows.read(
            f"SELECT {_COLUMNS} FROM grants ORDER BY created_at DESC, grant_id DESC LIMIT ?",
            (limit,),
        )
        return [Grant(*row) for row in found]
