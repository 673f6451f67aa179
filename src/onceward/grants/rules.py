"""Rules of grants: every refusal of a grant, from values alone (S-3). A rule returns nothing where it holds."""

from __future__ import annotations

from typing import Final

from onceward.core.grants import Grant, Scope
from onceward.core.limits import GRANT_SECONDS
from onceward.core.records import Principal
from onceward.core.sources import Micros
from onceward.errors import InvalidConfig, NotFound, PermissionDenied, PermitInvalid

_MEANS: Final = {
    "manifest_digest": "another input, or other values",
    "schema_digest": "other actions, other code or another schema",
}


# Drafting, issuing and revoking.


def require_executor(name: str, executor: Principal | None) -> None:
    """A grant is drafted for a known principal with the role operator."""
    if executor is None:
        why = "nobody here is called so"
    elif not executor.may("operator"):
        why = "that needs the role operator"
    else:
        return
    raise InvalidConfig(f"{name} could not carry it out: {why}", context={"field": "executor"})


def require_digests(scope: Scope, made: tuple[str, str]) -> None:
    """What a grant says it is for has the digests of its scope; `made` are those of what it says."""
    if made != (scope.manifest_digest, scope.schema_digest):
        raise InvalidConfig(
            "the grant's description does not match its digests",
            context={"field": "about"},
        )


def require_draft(grant: Grant, name: str) -> None:
    """Only a draft is issued."""
    if grant.status != "draft":
        raise PermitInvalid(
            f"the grant is {grant.status}; only a draft is issued", context={"grant_id": name}
        )


def require_drafted_scope(grant: Grant, scope: Scope) -> None:
    """The scope that is issued is exactly the one that was drafted."""
    if grant.scope != scope.check():
        raise InvalidConfig("the scope differs from the draft", context={"field": "scope"})


def require_duration(seconds: int) -> None:
    """A grant lasts at least a second and not longer than the limit."""
    if not 1 <= seconds <= GRANT_SECONDS:
        raise InvalidConfig(
            f"a grant lasts between 1 and {GRANT_SECONDS} seconds", context={"field": "seconds"}
        )


def require_statement(statement_hash: str | None) -> str:
    """The hash of the signed request that issues a grant."""
    if statement_hash is None:
        raise PermissionDenied("a grant is issued by a signed request only")
    return statement_hash


def require_revocable(grant: Grant, name: str) -> None:
    """A draft or an unused grant can be revoked."""
    if grant.status not in ("draft", "active"):
        raise PermitInvalid(
            f"the grant is {grant.status}; it cannot be revoked",
            context={"grant_id": name},
        )


# Using a grant.


def require_usable(
    grant: Grant | None, grant_id: str, scope: Scope, executor: str, now: Micros
) -> Grant:
    """The grant, if it allows exactly this scope to this executor now."""
    why = refusal(grant, scope, executor, now)
    if why or grant is None:
        raise PermitInvalid(why, context={"grant_id": grant_id[:128]})
    return grant


def require_same_scope(grant: Grant, scope: Scope, grant_id: str) -> None:
    """A run that goes on under its grant does exactly what the grant is for."""
    why = difference(grant.scope, scope.check())
    if why:
        raise PermitInvalid(f"the grant of this run {why}", context={"grant_id": grant_id})


def require_believed(grant: Grant, doubt: str) -> None:
    """Nothing raises a doubt about what the granter signed."""
    if doubt:
        raise PermitInvalid(doubt, context={"grant_id": grant.grant_id})


def require_used_by(grant: Grant, grant_id: str, root: str) -> None:
    """Only the run that used a grant up can finalize it."""
    if grant.consumed_by_root != root:
        raise NotFound(f"{grant_id} was not used by this run", context={"grant_id": grant_id[:128]})


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


def difference(granted: Scope, wanted: Scope) -> str:
    """How a wanted scope differs from a granted one, in words; empty if it does not."""
    for name in Scope.__struct_fields__:
        if getattr(granted, name) != getattr(wanted, name):
            if name == "executor":
                return f"is for {granted.executor}, not for {wanted.executor}"
            also = f" ({_MEANS[name]})" if name in _MEANS else ""
            return f"is for another {name}{also}"
    return ""
