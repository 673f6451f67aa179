"""Which file of a bundle holds which kind of record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

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
from onceward.core.vocabulary import Audit, Collection, Value
from onceward.evidence.kinds import (
    ArtifactRow,
    BuildRow,
    Child,
    Debit,
    DependencyRow,
    PermitRow,
    PlanRow,
    RefRow,
    SessionRow,
    Total,
    UnitRow,
)
from onceward.store.tables.approvals import Approval
from onceward.store.tables.checkpoints import Checkpoint
from onceward.store.tables.keys import Key, Signature

KINDS: Final = ("build", "session", "saga", "entry")
FILES: Final[Mapping[Any, str]] = {
    BuildRow: "builds.ndjson",
    SessionRow: "sessions.ndjson",
    Child: "tokens.ndjson",
    Total: "totals.ndjson",
    Debit: "debits.ndjson",
    PlanRow: "plans.ndjson",
    Checkpoint: "checkpoints.ndjson",
    Approval: "approvals.ndjson",
    PermitRow: "permits.ndjson",
    RefRow: "refs.ndjson",
    ArtifactRow: "artifacts.ndjson",
    Key: "keys.ndjson",
    Signature: "signatures.ndjson",
}
"""Where each kind of record stands in a bundle."""
SAGA_FILES: Final[Mapping[Any, str]] = {
    Run: "sagas.ndjson",
    Step: "saga_steps.ndjson",
    Grant: "grants.ndjson",
    Collection: "collections.ndjson",
    Value: "values.ndjson",
    Audit: "audits.ndjson",
}
"""The same, of what only the bundle of a saga's run has."""
ENTRY_FILES: Final[Mapping[Any, str]] = {
    Entry: "entries.ndjson",
    History: "history.ndjson",
    DependencyRow: "dependencies.ndjson",
    Envelope: "manifests.ndjson",
    UnitRow: "units.ndjson",
    Decision: "decisions.ndjson",
    ChangeSet: "change_sets.ndjson",
    Affected: "affected.ndjson",
    VerifyResult: "results.ndjson",
    PairSignature: "pairs.ndjson",
}
"""The same, of what only the bundle of a change has."""
ALSO: Final[Mapping[str, Mapping[Any, str]]] = {"saga": SAGA_FILES, "entry": ENTRY_FILES}
ALL_FILES: Final[Mapping[Any, str]] = {**FILES, **SAGA_FILES, **ENTRY_FILES}


def stream_of(kind: str, subject: str) -> str:
    """The one stream of a subject whose head stands for all of it."""
    return f"{'entry' if kind == 'entry' else 'session'}:{subject}"
