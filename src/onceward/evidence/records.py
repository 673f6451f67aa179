"""The records to verify and export: one interface to a store's rows and a bundle's lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeVar

from onceward.core.chain import Event
from onceward.core.records import ChildRecord
from onceward.dispatch.budget import LATE, Debited
from onceward.evidence.lives import Life
from onceward.store.copy import pages
from onceward.store.port import Reads
from onceward.store.port import Value as Cell
from onceward.store.schema import table_of
from onceward.store.table import Table
from onceward.store.tables.events import events_by_name, events_named, events_of, hash_at
from onceward.store.tables.keys import workspace_id

T = TypeVar("T")
_BATCH = 500


class Records(Protocol):
    """Everything in the order of its key, text by its bytes, as often as it is asked for."""

    whole: bool
    """Whether this is all that a workspace has, or a part that was exported."""

    def workspace(self) -> str: ...

    def events(self) -> Iterator[Event]:
        """By stream and seq."""
        ...

    def all(self, kind: type[T]) -> Iterator[T]: ...

    def of(self, kind: type[T], **fixed: Cell) -> Iterator[T]:
        """The records whose fields have these values, in the order of their key."""
        ...

    def positions(self, table: Table[Any]) -> Iterator[tuple[str, int]]:
        """Key and last event's position of each row of a lifecycle; a bundle has none."""
        ...

    def stream(self, name: str) -> Iterator[Event]:
        """One stream's events in order."""
        ...

    def lives(self, children: Sequence[str]) -> dict[str, Life]:
        """All that is recorded of some children."""
        ...

    def debits_of(self, children: Sequence[str]) -> dict[str, list[Debited]]:
        """Every debit of some children."""
        ...

    def told(self) -> int:
        """How many events there are of sessions and children."""
        ...

    def dispatched(self, session: str) -> Iterator[ChildRecord]:
        """A session's children by their dispatch, then those that were never dispatched by their
        place in the queue."""
        ...

    def hash_at(self, stream: str, seq: int) -> bytes | None: ...

    def ends_of(self, children: Sequence[str]) -> dict[str, bytes]:
        """The bodies of the last events of children."""
        ...

    def places(self, places: Sequence[tuple[str, str, str]]) -> set[tuple[str, str, str]]:
        """The places (build, stage, target), of those given, that have a checkpoint."""
        ...

    def refs_of(self, owners: Sequence[str]) -> set[tuple[str, str, str, str]]:
        """The artifact references of these owners: owner, name, kind and digest."""
        ...

    def asked(self, verb: str, request_id: str) -> str | None:
        """The hash of what was asked under an id; None where that is not known."""
        ...

    def first_key(self) -> int | None:
        """The place of the first key among all events; None where there is no key."""
        ...


class StoreRecords:
    """A store's records, as of one moment."""

    whole = True

    def __init__(self, rows: Reads) -> None:
        self.rows = rows

    def workspace(self) -> str:
        return workspace_id(self.rows)

    def events(self) -> Iterator[Event]:
        return events_by_name(self.rows)

    def all(self, kind: type[T]) -> Iterator[T]:
        return self.of(kind)

    def of(self, kind: type[T], **fixed: Cell) -> Iterator[T]:
        table = table_of(kind)
        fields = table.proven().__struct_fields__
        found = pages(self.rows, table.name, table.in_order, fields, fixed)
        return (kind(*row) for row in found)

    def positions(self, table: Table[Any]) -> Iterator[tuple[str, int]]:
        found = pages(self.rows, table.name, table.key, (*table.key, "position"))
        return ((key, position) for key, position in found)

    def stream(self, name: str) -> Iterator[Event]:
        return events_of(self.rows, name)

    def lives(self, children: Sequence[str]) -> dict[str, Life]:
        if not children:
            return {}
        these = f"({', '.join('?' * len(children))})"
        fields = ", ".join(ChildRecord.__struct_fields__)
        found = self.rows.read(
            f"SELECT {fields} FROM urm_dispatch_token WHERE child_id IN {these}", children
        )
        lives = {row[0]: Life(ChildRecord(*row), [], []) for row in found}
        for event in events_named(self.rows, [f"child:{child}" for child in children]):
            if event.stream[6:] in lives:
                lives[event.stream[6:]].events.append(event)
        for child, debits in self.debits_of(children).items():
            if child in lives:
                lives[child].debits.extend(one for one in debits if one.settled != LATE)
        return lives

    def debits_of(self, children: Sequence[str]) -> dict[str, list[Debited]]:
        found: dict[str, list[Debited]] = {}
        if children:
            these = f"({', '.join('?' * len(children))})"
            for child, *debit in self.rows.read(
                "SELECT child_id, budget_lane, debit_seq, amount, settled, at FROM budget_debits"
                f" WHERE child_id IN {these} ORDER BY budget_lane, debit_seq",
                children,
            ):
                found.setdefault(child, []).append(Debited(*debit))
        return found

    def told(self) -> int:
        ((count,),) = self.rows.read(
            "SELECT (SELECT count(*) FROM events) - (SELECT count(*) FROM streams s JOIN events e"
            " ON e.stream_no = s.stream_no"
            " WHERE s.stream NOT LIKE 'session:%' AND s.stream NOT LIKE 'child:%')"
        )
        return int(count)

    def dispatched(self, session: str) -> Iterator[ChildRecord]:
        fields = ChildRecord.__struct_fields__
        for column, also in (("dispatch_seq", ""), ("queue_seq", " AND dispatch_seq IS NULL")):
            after = -1
            while True:
                page = self.rows.read(
                    f"SELECT {', '.join(fields)}, {column} FROM urm_dispatch_token"
                    " WHERE parent_session_id = ?"
                    f" AND {column} > ?{also} ORDER BY {column} LIMIT {_BATCH}",
                    (session, after),
                )
                yield from (ChildRecord(*row[:-1]) for row in page)
                if len(page) < _BATCH:
                    break
                after = page[-1][-1]

    def hash_at(self, stream: str, seq: int) -> bytes | None:
        return hash_at(self.rows, stream, seq)

    def ends_of(self, children: Sequence[str]) -> dict[str, bytes]:
        if not children:
            return {}
        found = self.rows.read(
            "SELECT t.child_id, e.body FROM urm_dispatch_token t"
            " JOIN events e ON e.position = t.position"
            f" WHERE t.child_id IN ({', '.join('?' * len(children))})",
            children,
        )
        return {child: body.encode() for child, body in found}

    def places(self, places: Sequence[tuple[str, str, str]]) -> set[tuple[str, str, str]]:
        if not places:
            return set()
        wanted = ", ".join(["(?, ?, ?)"] * len(places))
        found = self.rows.read(
            "SELECT build_id, stage, target FROM checkpoints"
            f" WHERE (build_id, stage, target) IN (VALUES {wanted})",
            [value for place in places for value in place],
        )
        return {(build, stage, target) for build, stage, target in found}

    def refs_of(self, owners: Sequence[str]) -> set[tuple[str, str, str, str]]:
        if not owners:
            return set()
        found = self.rows.read(
            "SELECT owner, name, kind, sha256 FROM artifact_refs"
            f" WHERE owner IN ({', '.join('?' * len(owners))})",
            owners,
        )
        return {(owner, name, kind, sha256) for owner, name, kind, sha256 in found}

    def asked(self, verb: str, request_id: str) -> str | None:
        sql = "SELECT payload_hash FROM requests WHERE verb = ? AND request_id = ?"
        found = self.rows.read(sql, (verb, request_id))
        return found[0][0] if found else ""

    def first_key(self) -> int | None:
        ((found,),) = self.rows.read(
            "SELECT min(e.position) FROM events e JOIN streams s ON s.stream_no = e.stream_no"
            " WHERE s.stream = 'workspace' AND e.seq = (SELECT min(added_seq) FROM keys)"
        )
        return None if found is None else int(found)


def batches(items: Iterator[T]) -> Iterator[list[T]]:
    """Some at a time, for those who must ask about each."""
    batch: list[T] = []
    for item in items:
        batch.append(item)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch
