"""Builds as rows, and the plans they carry out."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from onceward.core.records import Build
from onceward.errors import NotFound, Recovery
from onceward.store.port import Reads, Writes
from onceward.store.table import Lifecycle, Table


class PlanRow(msgspec.Struct, frozen=True):
    """A plan as stored, under the hash of what it says."""

    plan_hash: str
    body: str


PLANS: Final = Table(PlanRow, "plans", key=("plan_hash",), bundle="plans.ndjson")
BUILDS: Final = Table(
    Build,
    "builds",
    key=("build_id",),
    bundle="builds.ndjson",
    lifecycle=Lifecycle(machine="build", state="state", stream="session"),
)


class Builds:
    def __init__(self, rows: Reads) -> None:
        self._rows = rows

    def find(self, build_id: str) -> Build | None:
        return BUILDS.first(self._rows, "WHERE build_id = ?", (build_id,))

    def get(self, build_id: str) -> Build:
        found = self.find(build_id)
        if found is None:
            raise NotFound(f"there is no build {build_id}", context={"build_id": build_id})
        return found

    def in_state(self, state: str) -> list[Build]:
        return BUILDS.read(self._rows, "WHERE state = ? ORDER BY build_id", (state,))

    def newest(self, limit: int, state: str = "") -> list[Build]:
        """The newest first; of one state, if it is said."""
        where, params = ("WHERE state = ? ", (state,)) if state else ("", ())
        return BUILDS.read(
            self._rows, f"{where}ORDER BY created_at DESC, build_id DESC LIMIT ?", (*params, limit)
        )

    def named(self, prefix: str) -> Build:
        """The one build that an id, or its beginning, means; `latest` is the newest."""
        if prefix == "latest" and (newest := self.newest(1)):
            return newest[0]
        found = BUILDS.begins(self._rows, prefix)
        if prefix and len(found) == 1:
            return found[0]
        raise NotFound(
            f"more than one build begins with {prefix[:80]}"
            if found
            else f"there is no build {prefix[:80]}",
            context={"build_id": prefix[:128]},
            recovery=[Recovery("it is a saga's run", f"onceward saga show {prefix[:80]}")]
            if prefix.startswith("sga_")
            else [Recovery("see which there are", "onceward list")],
        )

    def meant(self, prefix: str | None) -> Build:
        """The build that is meant: by its id or the beginning of it, or the newest."""
        if prefix is not None:
            return self.named(prefix)
        newest = self.newest(1)
        if not newest:
            raise NotFound(
                "there is no build yet", recovery=[Recovery("run one", "onceward run PLAN")]
            )
        return newest[0]


def last_detail(rows: Reads, build_id: str) -> dict[str, Any]:
    """The detail of a build's last move."""
    found = rows.read(
        "SELECT e.body FROM builds b JOIN events e ON e.position = b.position WHERE b.build_id = ?",
        (build_id,),
    )
    return dict(msgspec.json.decode(found[0][0])["detail"]) if found else {}


def keep_plan(tx: Writes, plan_hash: str, body: str) -> None:
    tx.write(
        "INSERT INTO plans (plan_hash, body) VALUES (?, ?) ON CONFLICT (plan_hash) DO NOTHING",
        (plan_hash, body),
    )


def plan_body(rows: Reads, plan_hash: str) -> str | None:
    found = rows.read("SELECT body FROM plans WHERE plan_hash = ?", (plan_hash,))
    return found[0][0] if found else None
