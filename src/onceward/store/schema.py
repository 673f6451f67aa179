"""Every table of the store, in an order in which the schema's own rules accept their rows
(backups, restores, moves)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from onceward.store.table import Table
from onceward.store.tables import (
    approvals,
    artifacts,
    budgets,
    builds,
    changes,
    checkpoints,
    children,
    events,
    grants,
    keys,
    outbox,
    permits,
    principals,
    rates,
    registry,
    requests,
    sagas,
    singleton,
    tokens,
)

TABLES: Final[tuple[Table[Any], ...]] = (
    keys.WORKSPACE,
    events.STREAMS,
    events.EVENTS,
    principals.PRINCIPALS,
    principals.PRINCIPAL_ROLES,
    keys.KEYS,
    keys.SIGNATURES,
    keys.SEALS,
    tokens.BEARER_TOKENS,
    builds.PLANS,
    builds.BUILDS,
    checkpoints.CHECKPOINTS,
    permits.CONFIRMATIONS,
    approvals.APPROVALS,
    rates.RATE_STARTS,
    children.SESSIONS,
    children.DISPATCH_TOKENS,
    budgets.TOTALS,
    budgets.DEBITS,
    budgets.WORKSPACE_BUDGET,
    artifacts.ARTIFACTS,
    artifacts.REFS,
    children.RECOVERIES,
    registry.METAS,
    registry.COLLECTIONS,
    registry.VALUES,
    registry.AUDITS,
    grants.GRANTS,
    sagas.RUNS,
    sagas.STEPS,
    sagas.RUN_LEASES,
    changes.HISTORY,
    changes.ENTRIES,
    changes.DEPENDENCIES,
    changes.SWEEPS,
    changes.ENVELOPES,
    changes.UNITS,
    changes.DECISIONS,
    changes.CHANGE_SETS,
    changes.AFFECTED,
    changes.RESULTS,
    changes.PAIR_SIGNATURES,
    requests.REQUESTS,
    outbox.OUTBOX,
    outbox.OUTBOX_USED,
    singleton.WRITER_LOCK,
    singleton.KERNEL_BEAT,
)
LIFECYCLES: Final[Mapping[str, Table[Any]]] = {
    table.lifecycle.machine: table for table in TABLES if table.lifecycle is not None
}
"""By the name of its machine, where each lifecycle's state lives."""
_BY_RECORD: Final[Mapping[Any, Table[Any]]] = {
    table.proven(): table for table in TABLES if table.record is not None
}


def table_of(record: type[Any]) -> Table[Any]:
    """The table that a record of evidence is a row of."""
    return _BY_RECORD[record]


def bundled(kind: str) -> tuple[Table[Any], ...]:
    """The tables whose rows the bundle of a kind of subject has."""
    return tuple(table for table in TABLES if table.bundle and table.bundled_with in ("", kind))


def context_of(session: str) -> dict[str, str]:
    """How an event names its session; every build has one, with the build's id."""
    return {"session_id": session, **({"build_id": session} if session.startswith("bld_") else {})}
