"""What there is to verify and to export, whatever holds it: one shape for a store's rows and a bundle's lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol, TypeVar

import msgspec

from onceward.kernel.chain import Event
from onceward.kernel.changes import ChangeSet, Decision, Entry, Envelope, History
from onceward.kernel.grants import Grant
from onceward.kernel.sagas import Run, Step
from onceward.kernel.sources import Micros
from onceward.kernel.vocabulary import Audit, Collection, Value
from onceward.store.copy import pages
from onceward.store.port import Reads
from onceward.store.port import Value as Cell
from onceward.store.tables.approvals import Approval
from onceward.store.tables.checkpoints import Checkpoint
from onceward.store.tables.events import events_by_name, events_named, events_of, hash_at
from onceward.store.tables.keys import Key, Seal, Signature, workspace_id

T = TypeVar("T")
_BATCH = 500


class Child(msgspec.Struct, frozen=True):
    """What of a dispatch token is evidence; which process and which machine it was is not."""

    child_id: str
    parent_session_id: str
    parent_stream_id: str
    parent_seq: int
    queue_seq: int
    dispatch_seq: int | None
    worker_run_id: str | None
    phase: str
    kind: str
    work: str
    target: str | None
    attempt: int
    predecessor: str | None
    started_at: Micros | None
    cancel_request_id: str | None
    reason: str | None
    code: str | None
    version: int
    created_at: Micros
    updated_at: Micros


class BuildRow(msgspec.Struct, frozen=True):
    build_id: str
    name: str
    state: str
    version: int
    plan_hash: str
    plan_file: str
    parent_build_id: str | None
    resumed_at: Micros
    reuse: int
    choices: str
    created_at: Micros
    updated_at: Micros


class SessionRow(msgspec.Struct, frozen=True):
    session_id: str
    max_active_children: int
    queue_high: int
    dispatch_high: int
    created_at: Micros


class Total(msgspec.Struct, frozen=True):
    parent_session_id: str
    budget_lane: str
    accounting_mode: str
    limit_amount: int | None
    total: int
    carried: int


class Debit(msgspec.Struct, frozen=True):
    parent_session_id: str
    budget_lane: str
    debit_seq: int
    child_id: str
    amount: int
    settled: int
    at: Micros


class PlanRow(msgspec.Struct, frozen=True):
    plan_hash: str
    body: str


class PermitRow(msgspec.Struct, frozen=True):
    permit_id: str
    build_id: str
    transition_seq: int
    spent: int
    minted_at: Micros
    expires_at: Micros
    consumed_at: Micros | None
    voided_at: Micros | None


class RefRow(msgspec.Struct, frozen=True):
    owner: str
    name: str
    kind: str
    sha256: str


class ArtifactRow(msgspec.Struct, frozen=True):
    sha256: str
    size: int


class PrincipalRow(msgspec.Struct, frozen=True):
    name: str


class Role(msgspec.Struct, frozen=True):
    name: str
    role: str


class RequestRow(msgspec.Struct, frozen=True):
    request_no: int
    verb: str
    request_id: str
    payload: str
    payload_hash: str


class MetaRow(msgspec.Struct, frozen=True):
    name: str
    schema_digest: str
    root: str


class UnitRow(msgspec.Struct, frozen=True):
    manifest_id: str
    path: str
    before: str | None
    after: str | None
    before_mode: int | None
    after_mode: int | None


class Life(msgspec.Struct, frozen=True):
    """A child, its own stream and what was debited for it."""

    child: Child
    events: list[Event]
    debits: list[tuple[str, int]]

    def spent(self) -> dict[str, int]:
        """By lane; a lane that nothing was taken from is left out."""
        sums: dict[str, int] = {}
        for lane, amount in self.debits:
            if amount:
                sums[lane] = sums.get(lane, 0) + amount
        return sums


KINDS: Final[dict[Any, tuple[str, tuple[str, ...]]]] = {
    Child: ("urm_dispatch_token", ("child_id",)),
    BuildRow: ("builds", ("build_id",)),
    SessionRow: ("sessions", ("session_id",)),
    Total: ("budget_totals", ("parent_session_id", "budget_lane")),
    Debit: ("budget_debits", ("parent_session_id", "budget_lane", "debit_seq")),
    PlanRow: ("plans", ("plan_hash",)),
    Checkpoint: ("checkpoints", ("build_id", "stage", "target")),
    Approval: ("approvals", ("build_id", "stage", "target", "digest")),
    PermitRow: ("confirmation_tokens", ("permit_id",)),
    RefRow: ("artifact_refs", ("owner", "name", "kind")),
    ArtifactRow: ("artifacts", ("sha256",)),
    PrincipalRow: ("principals", ("name",)),
    Collection: ("registry_collections", ("collection_id",)),
    Value: ("registry_values", ("vocab_id",)),
    MetaRow: ("registry_meta", ("name",)),
    Audit: ("registry_audit", ("audit_id",)),
    Grant: ("grants", ("grant_id",)),
    Run: ("saga_runs", ("saga_id",)),
    Step: ("saga_steps", ("saga_id", "step", "side")),
    Entry: ("decision_backlog_entry", ("entry_id",)),
    History: ("decision_backlog_history", ("history_id",)),
    Envelope: ("manifest_envelope", ("manifest_id",)),
    UnitRow: ("manifest_unit", ("manifest_id", "path")),
    Decision: ("review_decision", ("decision_id",)),
    ChangeSet: ("cut_change_set", ("change_set_id",)),
    Role: ("principal_roles", ("name", "role")),
    RequestRow: ("requests", ("request_no",)),
    Key: ("keys", ("fingerprint",)),
    Signature: ("signatures", ("seq",)),
    Seal: ("seals", ("seal_no",)),
}
"""Each kind of record with its table and the key it is ordered by."""


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
        """Those whose fields have these values, in the order of their key."""
        ...

    def stream(self, name: str) -> Iterator[Event]:
        """One stream's events in order."""
        ...

    def lives(self, children: Sequence[str]) -> dict[str, Life]:
        """All that is recorded of some children."""
        ...

    def told(self) -> int:
        """How many events there are of sessions and children."""
        ...

    def dispatched(self, session: str) -> Iterator[Child]:
        """A session's children by their dispatch, then those that were never dispatched by their place in the queue."""
        ...

    def hash_at(self, stream: str, seq: int) -> bytes | None: ...

    def ends_of(self, children: Sequence[str]) -> dict[str, bytes]:
        """The bodies of the last events of children."""
        ...

    def places(self, places: Sequence[tuple[str, str, str]]) -> set[tuple[str, str, str]]:
        """Those of them (build, stage, target) that have a checkpoint."""
        ...

    def refs_of(self, owners: Sequence[str]) -> set[tuple[str, str, str, str]]:
        """What owners refer to: owner, name, kind and digest."""
        ...

    def asked(self, verb: str, request_id: str) -> str | None:
        """The hash of what was asked under an id; None where that is not known."""
        ...

    def first_key(self) -> int | None:
        """The place of the first key among all events; None where there is no key."""
        ...


class Rows:
    """A store's records, as of one moment."""

    whole = True

    def __init__(self, rows: Reads) -> None:
        self.rows = rows

    def workspace(self) -> str:
        return workspace_id(self.rows)

    def events(self) -> Iterator[Event]:
        return events_by_name(self.rows)

    def all(self, kind: type[T]) -> Iterator[T]:
        table, key = KINDS[kind]
        return (kind(*row) for row in pages(self.rows, table, key, kind.__struct_fields__))  # type: ignore[attr-defined]

    def of(self, kind: type[T], **fixed: Cell) -> Iterator[T]:
        table, key = KINDS[kind]
        return (kind(*row) for row in pages(self.rows, table, key, kind.__struct_fields__, fixed))  # type: ignore[attr-defined]

    def stream(self, name: str) -> Iterator[Event]:
        return events_of(self.rows, name)

    def lives(self, children: Sequence[str]) -> dict[str, Life]:
        if not children:
            return {}
        these = f"({', '.join('?' * len(children))})"
        fields = ", ".join(Child.__struct_fields__)
        found = self.rows.read(f"SELECT {fields} FROM urm_dispatch_token WHERE child_id IN {these}", children)
        lives = {row[0]: Life(Child(*row), [], []) for row in found}
        for event in events_named(self.rows, [f"child:{child}" for child in children]):
            if event.stream[6:] in lives:
                lives[event.stream[6:]].events.append(event)
        spent = self.rows.read(
            f"SELECT child_id, budget_lane, amount FROM budget_debits WHERE child_id IN {these}", children
        )
        for child, lane, amount in spent:
            if child in lives:
                lives[child].debits.append((lane, amount))
        return lives

    def told(self) -> int:
        ((count,),) = self.rows.read(
            "SELECT (SELECT count(*) FROM events) - (SELECT count(*) FROM streams s JOIN events e"
            " ON e.stream_no = s.stream_no WHERE s.stream NOT LIKE 'session:%' AND s.stream NOT LIKE 'child:%')"
        )
        return int(count)

    def dispatched(self, session: str) -> Iterator[Child]:
        fields = Child.__struct_fields__
        for column, also in (("dispatch_seq", ""), ("queue_seq", " AND dispatch_seq IS NULL")):
            after = -1
            while True:
                page = self.rows.read(
                    f"SELECT {', '.join(fields)}, {column} FROM urm_dispatch_token WHERE parent_session_id = ?"
                    f" AND {column} > ?{also} ORDER BY {column} LIMIT {_BATCH}",
                    (session, after),
                )
                yield from (Child(*row[:-1]) for row in page)
                if len(page) < _BATCH:
                    break
                after = page[-1][-1]

    def hash_at(self, stream: str, seq: int) -> bytes | None:
        return hash_at(self.rows, stream, seq)

    def ends_of(self, children: Sequence[str]) -> dict[str, bytes]:
        if not children:
            return {}
        found = self.rows.read(
            "SELECT t.child_id, e.body FROM urm_dispatch_token t JOIN events e ON e.position = t.position"
            f" WHERE t.child_id IN ({', '.join('?' * len(children))})",
            children,
        )
        return {child: body.encode() for child, body in found}

    def places(self, places: Sequence[tuple[str, str, str]]) -> set[tuple[str, str, str]]:
        if not places:
            return set()
        wanted = ", ".join(["(?, ?, ?)"] * len(places))
        found = self.rows.read(
            f"SELECT build_id, stage, target FROM checkpoints WHERE (build_id, stage, target) IN (VALUES {wanted})",
            [value for place in places for value in place],
        )
        return {(build, stage, target) for build, stage, target in found}

    def refs_of(self, owners: Sequence[str]) -> set[tuple[str, str, str, str]]:
        if not owners:
            return set()
        found = self.rows.read(
            f"SELECT owner, name, kind, sha256 FROM artifact_refs WHERE owner IN ({', '.join('?' * len(owners))})",
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
