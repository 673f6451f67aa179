"""The interface that a database adapter offers, and the types that its callers see."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from onceward.core.records import Tenure
from onceward.core.sources import Micros
from onceward.errors import (
    AccountingModeInvalid,
    AtomicityViolation,
    CutOnce,
    IntegrityFault,
    InvalidConfig,
    LeaseConflict,
    OncewardError,
    PermissionDenied,
    ReplayOrderInvalid,
    StorageError,
)

Value = str | int | bytes | None
Row = tuple[Any, ...]
Otherwise = Callable[[], OncewardError]


class Reads(Protocol):
    """Anything rows can be read from: a snapshot or a transaction."""

    def read(self, sql: str, params: Sequence[Value] = ()) -> list[Row]: ...


def moment_of(rows: Reads) -> Micros:
    """The time that rows are read at: a transaction's own, or a snapshot's."""
    now = rows.now  # type: ignore[attr-defined]
    return int(now() if callable(now) else now)


class Write(NamedTuple):
    """One write of several that do not see each other."""

    fault: str
    sql: str
    params: Sequence[Value]
    otherwise: Otherwise | None = None


class Writes(Reads, Protocol):
    """Anything rows can be written to: a transaction, or a session inside one."""

    def write(
        self, sql: str, params: Sequence[Value] = (), otherwise: Otherwise | None = None
    ) -> None:
        """Write; with `otherwise`, exactly one row or the error it makes."""
        ...

    def write_together(self, writes: Sequence[Write]) -> None:
        """Writes to different rows that need not see each other: one statement where the
        database can."""
        ...


class DatabaseSession(Writes, Protocol):
    """One connection. Writes may be held back until a read, a savepoint's end or the commit
    needs them."""

    lost: bool
    """The server hung up; only a new connection can go on."""

    def begin(self, tenure: Tenure | None) -> None:
        """Begin a write; with a tenure, LOCK_LOST unless the lock row still carries it."""
        ...

    def hold(self) -> None:
        """Wait for the word that the fence of `begin` holds; without it the commit finds out."""
        ...

    def snapshot(self) -> None:
        """Begin a read of one moment."""
        ...

    def now(self) -> Micros: ...

    def savepoint(self) -> None: ...

    def release(self) -> None: ...

    def undo(self) -> None:
        """Back to the savepoint."""
        ...

    def keep_promises(self) -> None:
        """Refuse now what the database would refuse at the commit: rows that refer to what did
        not come."""
        ...

    def commit(self) -> None:
        """Make it durable. CommitUnknown when nobody can tell whether it is."""
        ...

    def rollback(self) -> None: ...

    @property
    def open(self) -> bool:
        """Whether a transaction is under way."""
        ...

    def close(self) -> None: ...


class Database(Protocol):
    """A place for one workspace's rows."""

    kind: str

    def connect(self, *, kernel: bool = False) -> DatabaseSession:
        """A connection; the kernel's is the only one that checkpoints."""
        ...

    def script(self, session: DatabaseSession, sql: str) -> None:
        """Run a migration's statements inside the session's transaction."""
        ...

    def exclusive(self, session: DatabaseSession) -> None:
        """Begin a write that excludes every other writer, before there is a lock row to ask."""
        ...

    def tables(self, session: Reads) -> list[str]: ...

    def columns(self, session: Reads, table: str) -> list[str]: ...

    def filled(self, session: Reads) -> None:
        """Rows were put in with their own numbers: let the next numbers follow them."""
        ...

    def health(self) -> list[tuple[str, str, str, str]]:
        """What `doctor` shows: (name, ok | warn | fail, detail, what to do)."""
        ...


class Transient(Exception):
    """The database asked for the transaction to be run again; nothing was committed."""


class CommitFailed(Exception):
    """COMMIT raised: the transaction is there or it is not, and only looking can tell."""


def require_own(pid: int) -> None:
    """A connection belongs to the process that made it: a forked copy of it would speak out of
    turn."""
    if os.getpid() != pid:
        raise StorageError("a store cannot be used across fork; open it in the new process")


_REFUSALS = {
    "builds_state": "a build has no such state",
    "builds_moved": "a build's state may only be written together with its event",
    "builds_kept": "builds are never deleted",
    "confirmation_tokens_kept": "a confirmation token is used once and never changed",
    "events_append_only": "events are never changed or deleted",
    "events_chain": "the event does not follow the last one of its stream",
    "events_stream_seq": "two events claim one place in a stream",
    "events_stream_prev": "two events claim one predecessor",
    "keys_kept": "keys are never changed or deleted, and revoked once",
    "seals_kept": "seals are never changed or deleted",
    "signatures_kept": "signatures are never changed or deleted",
    "singleton_lock_fence": "the fence only grows",
    "streams_name": "a stream has two numbers",
    "tokens_hash": "there is such a token already",
    "tokens_kept": "a token is made once and revoked once",
    "tokens_pkey": "a token is made once and revoked once",
    "budget_debits_kept": "debits are never changed or deleted",
    "budget_debits_duration_once": "a run's time is charged once",
    "grants_moved": "a grant is for one thing and used once; its status is written with its event",
    "references": "what a row refers to did not come with it",
    "registry_meta_kept": "a collection's name is given once",
    "registry_meta_pkey": "a collection's name is given once",
    "registry_collections_moved": "a collection's status may only be written together with its event",
    "registry_collections_name": "there is an active collection of that name",
    "registry_values_kept": "values are never deleted",
    "registry_values_meaning": "what a value means is written once",
    "registry_values_moved": "a value's status may only be written together with its event",
    "registry_values_numbers": "a version has three numbers, as in 1.10.0",
    "registry_values_key": "there is a value of that operation and version already",
    "registry_values_active": "there is an active value of that operation and kind of act already",
    "registry_values_successor": "a superseded value names its successor, and only such a value does",
    "registry_values_itself": "no value follows itself",
    "registry_values_follows": "there is no such successor",
    "registry_values_forward": "a successor is active, of the same kind of act, and newer",
    "registry_audit_kept": "an audit row is written once, with the event that names it",
    "registry_audit_once": "an audit row of that run and state is there already",
    "registry_audit_pkey": "an audit row is written once, with the event that names it",
    "registry_audit_said": "an audit row says what it was done for",
    "registry_values_audit": "an audit row is of one value",
    "registry_values_audit_row": "a value is superseded only together with its audit row",
    "registry_values_audited": "a value is superseded only together with its audit row",
    "decision_backlog_history_kept": "history is never changed or deleted",
    "decision_backlog_history_pkey": "history is never changed or deleted",
    "decision_backlog_dependency_kept": "what a change depends on is said once",
    "decision_backlog_dependency_pkey": "what a change depends on is said once",
    "decision_backlog_sweep_log_kept": "sweeps are never changed or deleted",
    "decision_backlog_sweep_log_pkey": "sweeps are never changed or deleted",
    "manifest_envelope_kept": "what was proposed stays as it was proposed",
    "manifest_envelope_pkey": "what was proposed stays as it was proposed",
    "manifest_unit_kept": "what was proposed stays as it was proposed",
    "manifest_unit_pkey": "what was proposed stays as it was proposed",
    "review_decision_kept": "a decision is never changed; another one follows it",
    "review_decision_pkey": "a decision is never changed; another one follows it",
    "cut_affected_row_kept": "what a cut touched stays on the record",
    "cut_affected_row_pkey": "what a cut touched stays on the record",
    "verify_result_kept": "a result is never changed; another one follows it",
    "verify_result_pkey": "a result is never changed; another one follows it",
    "dot_pair_signature_kept": "signatures are never changed or deleted",
    "dot_pair_signature_pkey": "signatures are never changed or deleted",
    "decision_backlog_dependency_itself": "a change does not depend on itself",
    "decision_backlog_entry_escalates": "a failed change has one escalation at a time",
    "decision_backlog_entry_key": "there is a change of that key already",
    "decision_backlog_entry_kept": "changes are never deleted",
    "decision_backlog_entry_moved": "a change's status may only be written together with its event",
    "decision_backlog_entry_told": "a change's status may only be written together with its history",
    "decision_backlog_history_seq": "two arrows claim one place in a change's history",
    "cut_change_set_kept": "change sets are never deleted",
    "cut_change_set_moved": "a change set's status may only be written together with its event",
    "cut_change_set_undo": "the change set is being undone already",
    "dot_pair_signature_apart": "who carried it out must not verify it, by no name, key or tool",
    "dot_pair_signature_one": "a signature is of one change set or of one result",
    "dot_pair_signature_cut": "a change set is signed once",
    "dot_pair_signature_result": "a result is signed once",
    "manifest_envelope_revision": "there is a proposal of that number already",
    "verify_result_chain": "a result is followed by one other",
    "verify_result_first": "a change set has one first result",
    "run_leases_fence": "the fence of a lease only grows",
    "saga_runs_done": "a run that is done has nothing to undo",
    "saga_runs_kept": "runs are never deleted",
    "saga_runs_moved": "a run's state may only be written together with its event",
    "saga_runs_root": "there is a run of that root already",
    "urm_dispatch_token_slot": "a slot of a session has one running child",
}
_ONE_KEY = "this key belongs to a principal already, and one key never to two"
_CODED: dict[str, tuple[type[OncewardError], str]] = {
    "urm_dispatch_token_dispatch_seq": (
        ReplayOrderInvalid,
        "two dispatches of a session claim one place in its order",
    ),
    "urm_dispatch_token_queue_seq": (
        LeaseConflict,
        "two children of a session claim one place in its queue",
    ),
    "urm_dispatch_token_worker_run_id": (
        LeaseConflict,
        "two children of a session claim one lease",
    ),
    "urm_dispatch_token_moved": (
        AtomicityViolation,
        "a child's phase may only be written forward, with its event",
    ),
    "budget_totals_mode": (AccountingModeInvalid, "only running_total_v1 is known"),
    "budget_totals_lane": (InvalidConfig, "there is no such budget lane"),
    "principal_roles_role": (InvalidConfig, "there is no such role"),
    "cut_change_set_live": (CutOnce, "the approval was cut already"),
    "keys_public": (PermissionDenied, _ONE_KEY),
    "keys_pkey": (PermissionDenied, _ONE_KEY),
}


_ROLLBACK = {
    "registry_values_kept": "ROLLBACK_DELETES_REFERENCED_IDENTITY",
    "registry_values_meaning": "ROLLBACK_CHANGES_HISTORICAL_SEMANTICS",
    "registry_values_successor": "ROLLBACK_SUCCESSOR_RULE_ABSENT",
    "registry_values_follows": "ROLLBACK_FORWARD_FAIL_CLOSED_VIOLATED",
    "registry_values_forward": "ROLLBACK_FORWARD_FAIL_CLOSED_VIOLATED",
    "registry_values_itself": "ROLLBACK_FORWARD_FAIL_CLOSED_VIOLATED",
    "registry_values_audit_row": "ROLLBACK_AUDIT_TRAIL_ABSENT",
    "registry_values_audited": "ROLLBACK_AUDIT_TRAIL_ABSENT",
    "events_append_only": "ROLLBACK_ERASES_HISTORY",
}
"""The error code of a rollback that a constraint refuses (S-6)."""


def refused(constraint: str) -> OncewardError:
    """The coded error of a constraint that the schema enforces, by the constraint's name."""
    if constraint in _CODED:
        kind, meaning = _CODED[constraint]
        return kind(meaning, context={"constraint": constraint})
    rollback = _ROLLBACK.get(constraint)
    return IntegrityFault(
        f"the database refused the write: {_REFUSALS.get(constraint, constraint)}",
        context={"constraint": constraint, **({"rollback": rollback} if rollback else {})},
    )
