"""The life of a grant: an authority for exactly one thing, signed, and used at most once (S-3)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
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

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


def draft(grant_id: str, scope: Scope, actor: str, about: Any = None) -> Move:
    """A grant is drafted; it allows nothing yet. `about` is what it is for, for people to read."""
    said = msgspec.to_builtins(scope.check())
    columns = {**said, "actions": canonical(said["actions"]).decode(), "expires_at": 0}
    told = {**said, "scope": scope.digest(), **({"about": about} if about is not None else {})}
    return Move(
        machine=GRANT,
        subject=grant_id,
        source=NEW,
        target="draft",
        version=0,
        actor=actor,
        detail=told,
        columns=columns,
    )


def issue(grant: Grant, granter: str, statement_hash: str, expires_at: Micros) -> Move:
    """A granter allows exactly the drafted scope until a time."""
    return _grant(
        grant,
        "active",
        "issued",
        granter,
        detail={"scope": grant.scope.digest(), "expires_at": expires_at},
        columns={"granter": granter, "statement_hash": statement_hash, "expires_at": expires_at},
    )


def consume_grant(grant: Grant, root: str, actor: str) -> Move:
    """A run uses the grant, before it writes anything."""
    return _grant(
        grant,
        "consumed",
        "used",
        actor,
        detail={"scope": grant.scope.digest(), "root": root},
        columns={"consumed_by_root": root},
    )


def finalize(grant: Grant, now: Micros, actor: str) -> Move:
    """The run that used the grant has ended."""
    return _grant(
        grant,
        "consumed",
        "finalized",
        actor,
        detail={"root": grant.consumed_by_root},
        columns={"finalized_at": now},
    )


def revoke(grant: Grant, actor: str, why: str = "") -> Move:
    return _grant(grant, "revoked", "withdrawn", actor, detail={"why": why} if why else {})


def expire(grant: Grant, actor: str) -> Move:
    return _grant(grant, "expired", "time_passed", actor)


def _grant(
    grant: Grant,
    target: str,
    reason: str,
    actor: str,
    *,
    detail: Mapping[str, Any] = _NOTHING,
    columns: Mapping[str, Any] = _NOTHING,
) -> Move:
    GRANT.follow(grant.status, target, reason)
    return Move(
        machine=GRANT,
        subject=grant.grant_id,
        source=grant.status,
        target=target,
        version=grant.version,
        actor=actor,
        reason=reason,
        detail=detail,
        columns=columns,
    )
