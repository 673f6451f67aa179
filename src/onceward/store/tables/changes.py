"""Changes as rows (H-1 to H-8): entries and everything that is only ever added to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeVar

import msgspec

from onceward.core.changes import (
    Affected,
    ChangeSet,
    Decision,
    Entry,
    HistoryRow,
    ManifestEnvelope,
    PairSignature,
    Unit,
    VerifyResult,
)
from onceward.core.sources import Micros
from onceward.errors import NotFound, Recovery
from onceward.store.port import Reads, Writes
from onceward.store.table import Lifecycle, R, Table

T = TypeVar("T")


class UnitRow(msgspec.Struct, frozen=True):
    """One thing that a manifest says becomes another."""

    manifest_id: str
    path: str
    before: str | None
    after: str | None
    before_mode: int | None
    after_mode: int | None


class DependencyRow(msgspec.Struct, frozen=True):
    """An entry that must be verified before another is cut."""

    entry_id: str
    depends_on: str


class SweepRow(msgspec.Struct, frozen=True):
    """One pass over the backlog."""

    sweep_id: str
    actor: str
    at: Micros
    promoted: int
    waiting: int
    position: int


_ALL_EVIDENCE: Final[Mapping[str, str]] = MappingProxyType({})


def _entry_table(
    record: type[R],
    name: str,
    key: tuple[str, ...],
    bundle: str,
    lifecycle: Lifecycle | None = None,
    not_evidence: Mapping[str, str] = _ALL_EVIDENCE,
) -> Table[R]:
    """A table that only the bundles of changes have."""
    return Table(
        record,
        name,
        key=key,
        bundle=bundle,
        bundled_with="entry",
        lifecycle=lifecycle,
        not_evidence=not_evidence,
    )


HISTORY: Final = _entry_table(
    HistoryRow,
    "decision_backlog_history",
    ("history_id",),
    "history.ndjson",
    not_evidence={"history_id": "its own name, to which nothing refers"},
)
ENTRIES: Final = _entry_table(
    Entry,
    "decision_backlog_entry",
    ("entry_id",),
    "entries.ndjson",
    Lifecycle(machine="change", state="status", stream="entry"),
)
DEPENDENCIES: Final = _entry_table(
    DependencyRow,
    "decision_backlog_dependency",
    ("entry_id", "depends_on"),
    "dependencies.ndjson",
)
SWEEPS: Final = Table(SweepRow, "decision_backlog_sweep_log", key=("sweep_id",))
ENVELOPES: Final = _entry_table(
    ManifestEnvelope, "manifest_envelope", ("manifest_id",), "manifests.ndjson"
)
UNITS: Final = _entry_table(UnitRow, "manifest_unit", ("manifest_id", "path"), "units.ndjson")
DECISIONS: Final = _entry_table(Decision, "review_decision", ("decision_id",), "decisions.ndjson")
CHANGE_SETS: Final = _entry_table(
    ChangeSet,
    "cut_change_set",
    ("change_set_id",),
    "change_sets.ndjson",
    Lifecycle(machine="change_set", state="status", stream="entry"),
)
AFFECTED: Final = _entry_table(
    Affected, "cut_affected_row", ("change_set_id", "path"), "affected.ndjson"
)
RESULTS: Final = _entry_table(
    VerifyResult, "verify_result", ("verify_result_id",), "results.ndjson"
)
PAIR_SIGNATURES: Final = _entry_table(
    PairSignature, "dot_pair_signature", ("signature_id",), "pairs.ndjson"
)
_TABLES: Final[Mapping[Any, Table[Any]]] = {
    table.record: table
    for table in (
        HISTORY,
        ENTRIES,
        ENVELOPES,
        DECISIONS,
        CHANGE_SETS,
        AFFECTED,
        RESULTS,
        PAIR_SIGNATURES,
    )
}


class Changes:
    def __init__(self, rows: Reads) -> None:
        self._rows = rows

    def get(self, entry_id: str) -> Entry:
        found = self._all(Entry, "entry_id = ?", (entry_id,))
        if not found:
            raise _absent(entry_id)
        return found[0]

    def by_key(self, key: str) -> Entry | None:
        found = self._all(Entry, "idempotency_key = ?", (key,))
        return found[0] if found else None

    def named(self, prefix: str) -> Entry:
        """The one entry that an id, or its beginning, means; `latest` is the newest."""
        if prefix == "latest" and (newest := self.newest(1)):
            return newest[0][0]
        found = self._all(
            Entry,
            "entry_id >= ? AND entry_id < ?",
            (prefix, prefix + "\U0010ffff"),
            "entry_id LIMIT 2",
        )
        exact = [entry for entry in found if entry.entry_id == prefix]
        if prefix and len(exact or found) == 1:
            return (exact or found)[0]
        raise _absent(prefix, many=bool(found))

    def newest(
        self, limit: int, statuses: Sequence[str] = (), author: str = "", before: str = ""
    ) -> list[tuple[Entry, Micros]]:
        """The newest first, some statuses' or one author's if asked; those older than one, for
        the next page."""
        where: list[str] = ["1 = 1"]
        params: list[Any] = []
        if before:
            where.append("entry_id < ?")
            params.append(before)
        if statuses:
            where.append(f"status IN ({', '.join('?' * len(statuses))})")
            params += list(statuses)
        if author:
            where.append("author = ?")
            params.append(author)
        found = self._rows.read(
            f"SELECT {ENTRIES.columns}, created_at FROM decision_backlog_entry"
            f" WHERE {' AND '.join(where)}"
            # Ids are sortable by time.
            " ORDER BY entry_id DESC LIMIT ?",
            (*params, limit),
        )
        return [(Entry(*row[:-1]), row[-1]) for row in found]

    def promotable(self, limit: int) -> list[Entry]:
        """The entries that a sweep promotes, the oldest first."""
        where = "status IN ('marked', 'reviewed_deferred')"
        return self._all(Entry, where, (), f"entry_id LIMIT {int(limit)}")

    def counts(self) -> dict[str, int]:
        """How many entries are in each status."""
        return dict(
            self._rows.read("SELECT status, count(*) FROM decision_backlog_entry GROUP BY status")
        )

    def envelope(self, entry_id: str) -> ManifestEnvelope:
        """The manifest that an entry proposes now."""
        return self._all(ManifestEnvelope, "entry_id = ?", (entry_id,), "revision DESC LIMIT 1")[0]

    def envelopes(self, entry_id: str) -> list[ManifestEnvelope]:
        """Every manifest that it ever proposed, in order."""
        return self._all(ManifestEnvelope, "entry_id = ?", (entry_id,), "revision")

    def depends_on(self, entry_id: str) -> list[Entry]:
        found = self._rows.read(
            "SELECT depends_on FROM decision_backlog_dependency WHERE entry_id = ?"
            " ORDER BY depends_on",
            (entry_id,),
        )
        return [self.get(row[0]) for row in found]

    def decisions(self, entry_id: str, since: int = 0) -> list[Decision]:
        """In their order; those since a version of the entry."""
        order = "entry_version, decided_at, decision_id"
        return self._all(Decision, "entry_id = ? AND entry_version >= ?", (entry_id, since), order)

    def change_sets(self, entry_id: str) -> list[ChangeSet]:
        return self._all(ChangeSet, "entry_id = ?", (entry_id,), "change_set_id")

    def set_named(self, change_set_id: str) -> ChangeSet:
        found = self._all(ChangeSet, "change_set_id = ?", (change_set_id,))
        if not found:
            raise NotFound(
                f"there is no change set {change_set_id[:80]}",
                context={"change_set_id": change_set_id},
            )
        return found[0]

    def live_set(self, entry_id: str) -> ChangeSet | None:
        """The carrying-out of its approval that counts: under way, in its place, or stuck."""
        found = self._all(
            ChangeSet,
            "entry_id = ? AND kind = 'cut' AND status <> 'undone'",
            (entry_id,),
            "position",
        )
        return found[-1] if found else None

    def undoing(self, change_set_id: str) -> ChangeSet | None:
        """The change set that undoes this one."""
        found = self._all(ChangeSet, "of_change_set = ? AND kind = 'undo'", (change_set_id,))
        return found[0] if found else None

    def since(self, change_set: ChangeSet) -> list[Affected]:
        """The files that the same cutter changed after a change set, in order."""
        ((cutter, position),) = self._rows.read(
            "SELECT e.cutter, c.position FROM cut_change_set c"
            " JOIN decision_backlog_entry e ON e.entry_id = c.entry_id WHERE c.change_set_id = ?",
            (change_set.change_set_id,),
        )
        return self.carried_out_since(cutter, position)

    def unverified(self, entry: Entry, places: Sequence[str]) -> list[str]:
        """Other entries that were cut into the same files and are not verified yet."""
        found = self._rows.read(
            "SELECT DISTINCT e.entry_id, a.place FROM decision_backlog_entry e"
            " JOIN cut_change_set c ON c.entry_id = e.entry_id"
            " JOIN cut_affected_row a ON a.change_set_id = c.change_set_id"
            " WHERE e.status = 'cut_applied' AND e.cutter = ? AND e.entry_id <> ?"
            " AND c.kind = 'cut' AND c.status = 'applied'",
            (entry.cutter, entry.entry_id),
        )
        wanted = set(places)
        return sorted({entry_id for entry_id, place in found if place in wanted})

    def unfinished(self, cutter: str) -> list[tuple[str, str]]:
        """Every entry that a cutter is at, or is stuck with, and its target."""
        found = self._rows.read(
            "SELECT DISTINCT e.entry_id, e.target FROM cut_change_set c"
            " JOIN decision_backlog_entry e ON e.entry_id = c.entry_id"
            " WHERE e.cutter = ? AND c.status IN ('open', 'stuck')",
            (cutter,),
        )
        return [(entry_id, target) for entry_id, target in found]

    def unfinished_sets(self, cutter: str) -> list[tuple[str, str]]:
        """Every change set that a cutter is at, or is stuck with, and the target of its entry."""
        found = self._rows.read(
            "SELECT c.change_set_id, e.target FROM cut_change_set c"
            " JOIN decision_backlog_entry e ON e.entry_id = c.entry_id"
            " WHERE e.cutter = ? AND c.status IN ('open', 'stuck')",
            (cutter,),
        )
        return [(change_set_id, target) for change_set_id, target in found]

    def carried_out_since(self, cutter: str, position: int) -> list[Affected]:
        """The files that a cutter changed after a position, in order."""
        found = self._rows.read(
            f"SELECT {AFFECTED.columns_of('a')} FROM cut_change_set c"
            " JOIN decision_backlog_entry e ON e.entry_id = c.entry_id"
            " JOIN cut_affected_row a ON a.change_set_id = c.change_set_id"
            " WHERE e.cutter = ? AND c.status = 'applied' AND c.position > ?"
            " ORDER BY c.position, a.path",
            (cutter, position),
        )
        return [Affected(*row) for row in found]

    def affected(self, change_set_id: str) -> list[Affected]:
        return self._all(Affected, "change_set_id = ?", (change_set_id,), "path")

    def results(self, change_set_id: str) -> list[VerifyResult]:
        """In the order in which they follow each other, whatever the clock said."""
        found = self._all(VerifyResult, "change_set_id = ?", (change_set_id,))
        by_prior = {result.prior_verify_result_id: result for result in found}
        ordered: list[VerifyResult] = []
        result = by_prior.get(None)
        while result is not None:
            ordered.append(result)
            result = by_prior.get(result.verify_result_id)
        return ordered

    def signatures(self, entry_id: str) -> list[PairSignature]:
        return self._all(PairSignature, "entry_id = ?", (entry_id,), "signature_id")

    def signature_of(self, change_set_id: str) -> PairSignature | None:
        found = self._all(PairSignature, "change_set_id = ?", (change_set_id,))
        return found[0] if found else None

    def history(self, entry_id: str) -> list[HistoryRow]:
        return self._all(HistoryRow, "entry_id = ?", (entry_id,), "seq")

    def escalations(self, entry_id: str) -> list[Entry]:
        return self._all(Entry, "escalates = ?", (entry_id,), "created_at, entry_id")

    def _all(self, kind: type[T], where: str, params: Sequence[Any], order: str = "") -> list[T]:
        table: Table[Any] = _TABLES[kind]
        ordered = f" ORDER BY {order}" if order else ""
        return table.read(self._rows, f"WHERE {where}{ordered}", params)


def _absent(name: str, many: bool = False) -> NotFound:
    return NotFound(
        f"more than one change begins with {name[:80]}"
        if many
        else f"there is no change {name[:80]}",
        context={"entry_id": name[:128]},
        recovery=[Recovery("see which there are", "onceward change list")],
    )


def add_row(tx: Writes, row: Any) -> None:
    """One more fact; nothing is ever changed."""
    _TABLES[type(row)].insert(tx, row)


def add_units(tx: Writes, manifest_id: str, units: Sequence[Unit]) -> None:
    for unit in units:
        UNITS.insert(tx, UnitRow(manifest_id, *msgspec.structs.astuple(unit)))


def add_dependency(tx: Writes, entry_id: str, depends_on: str) -> None:
    DEPENDENCIES.insert(tx, DependencyRow(entry_id, depends_on))


def add_sweep(
    tx: Writes, sweep_id: str, actor: str, now: Micros, promoted: int, waiting: int, position: int
) -> None:
    sweep = SweepRow(
        sweep_id=sweep_id,
        actor=actor,
        at=now,
        promoted=promoted,
        waiting=waiting,
        position=position,
    )
    SWEEPS.insert(tx, sweep)
