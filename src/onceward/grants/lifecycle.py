"""The transactions of a grant: used by a run, finalized, expired (S-3)."""

from __future__ import annotations

from typing import Any

from onceward.core.grants import Grant, Scope
from onceward.grants import machine, rules
from onceward.grants.authority import objection_to_grant
from onceward.people.authority import Authority
from onceward.store.port import Reads, moment_of
from onceward.store.tables.events import events_of
from onceward.store.tables.grants import Grants
from onceward.store.transaction import Transaction


def about(rows: Reads, grant_id: str) -> Any:
    """What a grant is for, as people read it; None where nothing was written down."""
    first = next(events_of(rows, f"entry:{grant_id}"), None)
    return first.facts()["detail"].get("about") if first is not None else None


def expire(tx: Transaction, actor: str) -> list[str]:
    """Mark the grants that have expired; answers their ids."""
    late = [
        one for one in Grants(tx).all(1000) if one.status == "active" and one.expires_at <= tx.now
    ]
    for grant in late:
        tx.move(machine.expire(grant, actor))
    return [grant.grant_id for grant in late]


def consume(
    tx: Transaction, authority: Authority, grant_id: str, scope: Scope, executor: str, root: str
) -> bool:
    """Use a grant for a run, in the transaction of the run's first write; answers whether it was used now. A run
    that resumes under its own grant uses nothing."""
    known = Grants(tx).find(grant_id)
    if known is not None and known.consumed_by_root == root and known.scope == scope.check():
        _require_believed(tx, authority, known, root)
        return False
    grant = require(tx, authority, grant_id, scope, executor)
    tx.move(machine.consume_grant(grant, root, executor))
    return True


def require(rows: Reads, authority: Authority, grant_id: str, scope: Scope, executor: str) -> Grant:
    """The grant, if it allows exactly this scope to this executor now, and its granter signed it. Asking does not
    use it."""
    found = Grants(rows).find(grant_id)
    grant = rules.require_usable(found, grant_id, scope, executor, moment_of(rows))
    _require_believed(rows, authority, grant)
    return grant


def require_again(
    rows: Reads, authority: Authority, grant_id: str, scope: Scope, root: str
) -> None:
    """Check that a run that resumes under the grant it used does what the grant is for."""
    grant = Grants(rows).named(grant_id)
    if grant.consumed_by_root != root:
        return
    rules.require_same_scope(grant, scope, grant_id)
    _require_believed(rows, authority, grant, root)


def _require_believed(rows: Reads, authority: Authority, grant: Grant, root: str = "") -> None:
    rules.require_believed(grant, doubt(rows, authority, grant, root))


def doubt(rows: Reads, authority: Authority, grant: Grant, root: str = "") -> str:
    """Why a grant's signature does not count; empty where its granter signed exactly that."""
    why = objection_to_grant(authority, rows, grant, root)
    return f"what {grant.granter} is said to have granted does not count: {why}" if why else ""


def finalize(tx: Transaction, grant_id: str, root: str, actor: str) -> None:
    """Note on a grant that the run which used it has ended."""
    grant = Grants(tx).named(grant_id)
    rules.require_used_by(grant, grant_id, root)
    if grant.finalized_at is None:
        tx.move(machine.finalize(grant, tx.now, actor))
