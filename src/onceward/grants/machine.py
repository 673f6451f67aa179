"""Grants: an authority for exactly one thing, signed, and used once or not at all (S-3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from onceward.core.canon import canonical
from onceward.core.grants import Grant, Scope
from onceward.core.machine import NEW, Machine
from onceward.core.records import Move
from onceward.core.sources import Micros

GRANT = Machine.parse(
    "grant",
    """
    new    -> draft     -           GRANT_DRAFTED
    draft  -> active    issued      GRANT_ISSUED
    draft  -> revoked   withdrawn   GRANT_REVOKED
    active -> consumed  used        GRANT_CONSUMED
    active -> expired   time_passed GRANT_EXPIRED
    active -> revoked   withdrawn   GRANT_REVOKED
    consumed -> consumed finalized  GRANT_FINALIZED  bookkeeping

    terminal consumed expired revoked
    """,
    columns="""
    plan_id           detail.plan_id          GRANT_DRAFTED
    revision          detail.revision         GRANT_DRAFTED
    manifest_digest   detail.manifest_digest  GRANT_DRAFTED
    schema_digest     detail.schema_digest    GRANT_DRAFTED
    environment       detail.environment      GRANT_DRAFTED
    executor          detail.executor         GRANT_DRAFTED
    actions           text.actions            GRANT_DRAFTED
    granter           context.actor           GRANT_ISSUED
    statement_hash    context.signed          GRANT_ISSUED
    expires_at        detail.expires_at       GRANT_ISSUED
    consumed_by_root  detail.root             GRANT_CONSUMED
    finalized_at      at                      GRANT_FINALIZED
    expires_at        = 0
    """,
)


def draft(grant_id: str, scope: Scope, actor: str, about: Any = None) -> Move:
    """What somebody would like to be allowed, and what that is for people to read; it allows nothing."""
    said = msgspec.to_builtins(scope.check())
    columns = {**said, "actions": canonical(said["actions"]).decode(), "expires_at": 0}
    told = {**said, "scope": scope.digest(), **({"about": about} if about is not None else {})}
    return Move(GRANT, grant_id, NEW, "draft", 0, actor, detail=told, columns=columns)


def issue(grant: Grant, granter: str, statement_hash: str, expires_at: Micros) -> Move:
    """Somebody with the authority allows exactly that, for a while."""
    columns = {"granter": granter, "statement_hash": statement_hash, "expires_at": expires_at}
    return _grant(
        grant,
        "active",
        "issued",
        granter,
        {"scope": grant.scope.digest(), "expires_at": expires_at},
        columns,
    )


def consume_grant(grant: Grant, root: str, actor: str) -> Move:
    """A run uses it up, before it writes anything."""
    said = {"scope": grant.scope.digest(), "root": root}
    return _grant(grant, "consumed", "used", actor, said, {"consumed_by_root": root})


def finalize(grant: Grant, now: Micros, actor: str) -> Move:
    """The run that used it came to its end."""
    return _grant(
        grant,
        "consumed",
        "finalized",
        actor,
        {"root": grant.consumed_by_root},
        {"finalized_at": now},
    )


def revoke(grant: Grant, actor: str, why: str = "") -> Move:
    return _grant(grant, "revoked", "withdrawn", actor, {"why": why} if why else {}, {})


def expire(grant: Grant, actor: str) -> Move:
    return _grant(grant, "expired", "time_passed", actor, {}, {})


def refusal(grant: Grant | None, scope: Scope, executor: str, now: Micros) -> str:
    """Why a grant does not allow this to this executor now, in words; empty if it does."""
    if grant is None:
        return "there is no such grant"
    if grant.status != "active":
        also = {
            "draft": ": nobody has issued it",
            "consumed": f": the run {grant.consumed_by_root} used it",
        }
        return f"the grant is {grant.status}{also.get(grant.status, '')}"
    if grant.expires_at <= now:
        return "the grant has expired"
    differs = difference(grant.scope, scope.check())
    if differs:
        return f"the grant {differs}"
    if executor != grant.executor:
        return f"the grant is for {grant.executor}"
    return ""


_MEANS: Final = {
    "manifest_digest": "another input, or other values",
    "schema_digest": "other actions, other code or another schema",
}


def difference(granted: Scope, wanted: Scope) -> str:
    """In what something differs from what was granted, in words; empty if in nothing."""
    for name in Scope.__struct_fields__:
        if getattr(granted, name) != getattr(wanted, name):
            if name == "executor":
                return f"is for {granted.executor}, not for {wanted.executor}"
            also = f" ({_MEANS[name]})" if name in _MEANS else ""
            return f"is for another {name}{also}"
    return ""


def _grant(
    grant: Grant,
    target: str,
    reason: str,
    actor: str,
    detail: Mapping[str, Any],
    columns: Mapping[str, Any],
) -> Move:
    GRANT.follow(grant.status, target, reason)
    return Move(
        GRANT, grant.grant_id, grant.status, target, grant.version, actor, reason, detail, columns
    )
