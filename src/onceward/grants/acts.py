"""What may be asked of grants: drafted, issued, revoked, marked as expired (S-3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from onceward.core.acts import Payload, SignedEvent, act, all_of, anything, on
from onceward.core.canon import digest
from onceward.core.grants import Grant, Scope
from onceward.core.limits import MAX_NOTE_CHARS
from onceward.errors import InvalidConfig
from onceward.grants import lifecycle as grants
from onceward.grants import machine, rules
from onceward.store.port import Reads
from onceward.store.tables.grants import Grants
from onceward.store.tables.principals import Principals
from onceward.store.transaction import Transaction


def _whole_id(rows: Reads, name: str) -> str:
    return Grants(rows).named(name).grant_id


def _scope_agrees(claim: SignedEvent, payload: Payload) -> bool:
    scope = msgspec.convert(payload["scope"], Scope)
    return bool(scope.digest() == claim.detail["scope"])


class DraftGrant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    scope: Scope
    about: Any = None
    """What it is for, for people to read."""


@act(
    "grants.draft",
    role="operator|granter",
    once=True,
    makes={"GRANT_DRAFTED": _scope_agrees},
    path="/grants",
    operation="draftGrant",
    summary="draft a grant",
)
def draft(tx: Transaction, actor: str, asked: DraftGrant) -> dict[str, Any]:
    """Write down what somebody would like to be allowed; what people are to read of it has the digests of the scope."""
    scope = asked.scope
    _require_about(scope, asked.about)
    rules.require_executor(scope.executor, Principals(tx).find(scope.executor))
    grant_id = tx.sources.new_id("grt")
    tx.move(machine.draft(grant_id, scope, actor, asked.about))
    return _answer(tx, grant_id)


DIGESTS: dict[str, Callable[[Any], tuple[str, str]]] = {}
"""How the digests of a scope are made from what the grant is for, by its kind; the registry names its own."""


def _digests_of_saga(about: Any) -> tuple[str, str]:
    return digest(about["input"]), digest(about["work"])


def _require_about(scope: Scope, about: Any) -> None:
    if about is None:
        return
    try:
        digests = DIGESTS.get(about["kind"], _digests_of_saga)
        made = digests(about)
    except (KeyError, TypeError, InvalidConfig):
        made = ("", "")
    rules.require_digests(scope, made)


class IssueGrant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    grant: str
    scope: Scope
    """All of it, so that it is what is signed."""
    seconds: int


@act(
    "grants.issue",
    role="granter",
    once=True,
    ids={"grant": _whole_id},
    makes={"GRANT_ISSUED": all_of(on("grant"), _scope_agrees)},
    path="/grants/{grant}/issue",
    operation="issueGrant",
    summary="issue a grant",
)
def issue(tx: Transaction, actor: str, asked: IssueGrant) -> dict[str, Any]:
    """Allow exactly the scope that is signed with this very act; a draft that says anything else is not issued."""
    grant = Grants(tx).named(asked.grant)
    rules.require_draft(grant, asked.grant)
    rules.require_drafted_scope(grant, asked.scope)
    rules.require_duration(asked.seconds)
    statement = rules.require_statement(tx.statement())
    assert tx.asked_at is not None
    expires_at = tx.asked_at + asked.seconds * 1_000_000
    tx.move(machine.issue(grant, actor, statement, expires_at))
    return _answer(tx, grant.grant_id)


class RevokeGrant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    grant: str
    why: str = ""


@act(
    "grants.revoke",
    role="granter",
    once=True,
    ids={"grant": _whole_id},
    makes={"GRANT_REVOKED": on("grant")},
    path="/grants/{grant}/revoke",
    operation="revokeGrant",
    summary="revoke a grant",
)
def revoke(tx: Transaction, actor: str, asked: RevokeGrant) -> dict[str, Any]:
    """Take back a draft or what was granted and not used."""
    grant = Grants(tx).named(asked.grant)
    rules.require_revocable(grant, asked.grant)
    tx.move(machine.revoke(grant, actor, asked.why[:MAX_NOTE_CHARS]))
    return _answer(tx, grant.grant_id)


class ExpireGrants(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


@act(
    "grants.expire",
    role="operator|granter",
    may_make={"GRANT_EXPIRED": anything},
    path="/expire-grants",
    operation="expireGrants",
    summary="mark expired grants",
)
def expire(tx: Transaction, actor: str, asked: ExpireGrants) -> dict[str, Any]:
    return {"expired": grants.expire(tx, actor)}


def _answer(tx: Transaction, grant_id: str) -> dict[str, Any]:
    grant: Grant = Grants(tx).named(grant_id)
    return {"grant_id": grant.grant_id, "status": grant.status, "scope": grant.scope.digest()}
