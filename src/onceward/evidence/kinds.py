"""Every kind of record that is evidence: what of a row counts, its table, and the key it is ordered by."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from onceward.core.chain import Event
from onceward.core.changes import (
    Affected,
    ChangeSet,
    Decision,
    Entry,
    Envelope,
    History,
    PairSignature,
    VerifyResult,
)
from onceward.core.grants import Grant
from onceward.core.sagas import Run, Step
from onceward.core.sources import Micros
from onceward.core.vocabulary import Audit, Collection, Value
from onceward.lifecycles.budget import Debited
from onceward.store.tables.approvals import Approval
from onceward.store.tables.checkpoints import Checkpoint
from onceward.store.tables.keys import Key, Seal, Signature
from onceward.store.tables.requests import Ledger
from onceward.store.tables.tokens import Token


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

    def debited(self) -> Debited:
        return Debited(self.budget_lane, self.debit_seq, self.amount, self.settled, self.at)


class PlanRow(msgspec.Struct, frozen=True):
    plan_hash: str
    body: str


class PermitRow(msgspec.Struct, frozen=True):
    permit_id: str
    build_id: str
    transition_seq: int
    token_hash: str
    spent: int
    minted_at: Micros
    expires_at: Micros
    consumed_at: Micros | None
    voided_at: Micros | None
    statement_hash: str | None
    """What asked for it; none where the pause of its build did."""


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
    added_at: Micros
    added_by: str


class Role(msgspec.Struct, frozen=True):
    name: str
    role: str


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


class DependencyRow(msgspec.Struct, frozen=True):
    entry_id: str
    depends_on: str


class SweepRow(msgspec.Struct, frozen=True):
    sweep_id: str
    actor: str
    at: Micros
    promoted: int
    waiting: int
    position: int


class Life(msgspec.Struct, frozen=True):
    """A child, its own stream and what was debited for it."""

    child: Child
    events: list[Event]
    debits: list[Debited]
    """Those that came before its end."""

    def spent(self) -> dict[str, int]:
        """By lane; a lane that nothing was taken from is left out."""
        sums: dict[str, int] = {}
        for one in self.debits:
            if one.amount:
                sums[one.lane] = sums.get(one.lane, 0) + one.amount
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
    DependencyRow: ("decision_backlog_dependency", ("entry_id", "depends_on")),
    SweepRow: ("decision_backlog_sweep_log", ("sweep_id",)),
    ChangeSet: ("cut_change_set", ("change_set_id",)),
    Affected: ("cut_affected_row", ("change_set_id", "path")),
    VerifyResult: ("verify_result", ("verify_result_id",)),
    PairSignature: ("dot_pair_signature", ("signature_id",)),
    Role: ("principal_roles", ("name", "role")),
    Ledger: ("requests", ("request_no",)),
    Key: ("keys", ("fingerprint",)),
    Signature: ("signatures", ("seq",)),
    Seal: ("seals", ("seal_no",)),
    Token: ("tokens", ("token_id",)),
}
"""Each kind of record with its table and the key it is ordered by."""
