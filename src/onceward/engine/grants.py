"""Giving, withdrawing and using grants: an authority for exactly one thing, by somebody who may, once (S-3)."""

from __future__ import annotations

from typing import Any

from onceward.core.canon import digest
from onceward.core.grants import Grant, Scope
from onceward.core.limits import GRANT_SECONDS
from onceward.engine.authority import Authority
from onceward.errors import InvalidConfig, NotFound, PermissionDenied, PermitInvalid
from onceward.lifecycles import permit as rules
from onceward.lifecycles.registry import plan_of, schema_digest
from onceward.store.port import Reads, moment_of
from onceward.store.tables.events import events_of
from onceward.store.tables.grants import Grants
from onceward.store.tables.principals import Principals
from onceward.store.transaction import Transaction


def draft(tx: Transaction, actor: str, scope: Scope, about: Any = None) -> Grant:
    """Write down what somebody would like to be allowed; what people are to read of it has the digests of the scope."""
    _require_about(scope, about)
    executor = Principals(tx).find(scope.executor)
    if executor is None or not executor.may("operator"):
        raise InvalidConfig(
            f"{scope.executor} could not carry it out: "
            + ("nobody here is called so" if executor is None else "that needs the role operator"),
            context={"field": "executor"},
        )
    grant_id = tx.sources.new_id("grt")
    tx.move(rules.draft(grant_id, scope, actor, about))
    return Grants(tx).named(grant_id)


def _require_about(scope: Scope, about: Any) -> None:
    if about is None:
        return
    try:
        if about["kind"] == "assembly":
            plan = plan_of(about["plan"])
            made = (plan.manifest_digest, plan.schema_digest)
        elif about["kind"] == "rollback":
            made = (digest(about["plan"]), schema_digest(about["plan"]["collection"]))
        else:
            made = (digest(about["input"]), digest(about["work"]))
    except (KeyError, TypeError, InvalidConfig):
        made = ("", "")
    if made != (scope.manifest_digest, scope.schema_digest):
        raise InvalidConfig(
            "what the grant says it is for is not what its digests are of",
            context={"field": "about"},
        )


def about(rows: Reads, grant_id: str) -> Any:
    """What a grant is for, as people read it; None where nobody wrote it down."""
    first = next(events_of(rows, f"entry:{grant_id}"), None)
    return first.facts()["detail"].get("about") if first is not None else None


def issue(tx: Transaction, actor: str, grant_id: str, scope: Scope, seconds: int) -> Grant:
    """Allow exactly the scope that is signed with this very act; a draft that says anything else is not issued."""
    grant = Grants(tx).named(grant_id)
    if grant.status != "draft":
        raise PermitInvalid(
            f"the grant is {grant.status}; only a draft is issued", context={"grant_id": grant_id}
        )
    if grant.scope != scope.check():
        raise InvalidConfig(
            "what is to be granted is not what was drafted", context={"field": "scope"}
        )
    if not 1 <= seconds <= GRANT_SECONDS:
        raise InvalidConfig(
            f"a grant lasts between 1 and {GRANT_SECONDS} seconds", context={"field": "seconds"}
        )
    statement = tx.statement()
    if statement is None:
        raise PermissionDenied("a grant is issued by a signed request only")
    assert tx.asked_at is not None
    tx.move(rules.issue(grant, actor, statement, tx.asked_at + seconds * 1_000_000))
    return Grants(tx).named(grant_id)


def revoke(tx: Transaction, actor: str, grant_id: str, why: str) -> Grant:
    grant = Grants(tx).named(grant_id)
    if grant.status not in ("draft", "active"):
        raise PermitInvalid(
            f"the grant is {grant.status}; there is nothing to take back",
            context={"grant_id": grant_id},
        )
    tx.move(rules.revoke(grant, actor, why))
    return Grants(tx).named(grant_id)


def expire(tx: Transaction, actor: str) -> list[str]:
    """Say of what nobody may use any more that its time has passed."""
    late = [
        one for one in Grants(tx).all(1000) if one.status == "active" and one.expires_at <= tx.now
    ]
    for grant in late:
        tx.move(rules.expire(grant, actor))
    return [grant.grant_id for grant in late]


def consume(
    tx: Transaction, authority: Authority, grant_id: str, scope: Scope, executor: str, root: str
) -> bool:
    """Use a grant up for a run, in the transaction of its first write; the run that used it may come again. Whether it
    was used now."""
    known = Grants(tx).find(grant_id)
    if known is not None and known.consumed_by_root == root and known.scope == scope.check():
        _require_believed(tx, authority, known, root)
        return False
    grant = require(tx, authority, grant_id, scope, executor)
    tx.move(rules.consume_grant(grant, root, executor))
    return True


def require(rows: Reads, authority: Authority, grant_id: str, scope: Scope, executor: str) -> Grant:
    """The grant, if it allows exactly this to this executor now, by what its granter signed; asking uses nothing up."""
    grant = Grants(rows).find(grant_id)
    why = rules.refusal(grant, scope, executor, moment_of(rows))
    if why or grant is None:
        raise PermitInvalid(why, context={"grant_id": grant_id[:128]})
    _require_believed(rows, authority, grant)
    return grant


def require_again(
    rows: Reads, authority: Authority, grant_id: str, scope: Scope, root: str
) -> None:
    """Whoever goes on under a grant that a run used up does exactly what it was for, and is who it was for."""
    grant = Grants(rows).named(grant_id)
    if grant.consumed_by_root != root:
        return
    why = rules.difference(grant.scope, scope.check())
    if why:
        raise PermitInvalid(f"the grant of this run {why}", context={"grant_id": grant_id})
    _require_believed(rows, authority, grant, root)


def _require_believed(rows: Reads, authority: Authority, grant: Grant, root: str = "") -> None:
    why = doubt(rows, authority, grant, root)
    if why:
        raise PermitInvalid(why, context={"grant_id": grant.grant_id})


def doubt(rows: Reads, authority: Authority, grant: Grant, root: str = "") -> str:
    """Why what somebody is said to have granted does not count; empty where they signed it."""
    why = authority.objection_to_grant(rows, grant, root)
    return f"what {grant.granter} is said to have granted does not count: {why}" if why else ""


def finalize(tx: Transaction, grant_id: str, root: str, actor: str) -> None:
    """Stamp a grant that its run has come to the end of."""
    grant = Grants(tx).named(grant_id)
    if grant.consumed_by_root != root:
        raise NotFound(f"{grant_id} was not used by this run", context={"grant_id": grant_id[:128]})
    if grant.finalized_at is None:
        tx.move(rules.finalize(grant, tx.now, actor))
