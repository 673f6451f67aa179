"""Which events only a signed act makes, and whether an event is what was asked for (G18, X54)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from onceward.core.grants import Scope
from onceward.core.limits import MAX_NOTE_CHARS
from onceward.lifecycles.duties import OWN_ACTS, WORKS

NEEDED: Final = frozenset(
    {
        *("PRINCIPAL_ADDED", "ROLES_TAKEN", "KEY_REVOKED", "LOCK_CLEARED"),
        *(
            "GRANT_DRAFTED",
            "GRANT_ISSUED",
            "GRANT_REVOKED",
            "APPROVAL_GIVEN",
            "APPROVAL_REFUSED",
            "CONFIRMATION_MINTED",
            "BUILD_PAUSED",
            "SETTINGS_NOTED",
            "BUILD_ABANDONED",
        ),
        *(
            "ENTRY_MARKED",
            "ENTRY_REVISED",
            "ENTRY_SWEPT",
            "ENTRY_APPROVED",
            "ENTRY_DEFERRED",
            "ENTRY_REJECTED",
        ),
        *(
            "ENTRY_REVIEWED",
            "ENTRY_ABANDONED",
            "BACKLOG_SWEPT",
            "WORK_TAKEN",
            "TOKEN_MADE",
            "TOKEN_REVOKED",
        ),
    }
)
"""Events that somebody asked for; from the workspace's first key on, with a signature."""

ONCE: Final = frozenset(
    {
        "grants.draft",
        "grants.issue",
        "grants.revoke",
        "builds.approve",
        "builds.confirm",
        "builds.pause",
        "keys.add",
        "keys.revoke",
        "principals.take",
        "locks.clear",
        "changes.mark",
        "changes.review",
        "changes.abandon",
        "tokens.new",
        "tokens.revoke",
        *WORKS,
    }
)
"""Acts that one event is the whole of."""


class Claim(msgspec.Struct, frozen=True):
    """An event that says a statement asked for it."""

    place: str
    actor: str
    event: str
    subject: str
    """What its stream is about."""
    session: str
    detail: Mapping[str, Any]
    position: int = 0
    """Where it stands in the order of all events."""


def _approve(claim: Claim, payload: Mapping[str, Any]) -> bool:
    step = claim.detail["step"]
    return (
        (payload["build"], payload["digest"]) == (claim.subject, claim.detail["digest"])
        and payload["step"] in (step, step.partition(":")[0])
        and bool(payload.get("refuse")) == (claim.event == "APPROVAL_REFUSED")
        and payload.get("note", "")[:1000] == claim.detail["note"]
    )


def _paused(claim: Claim, payload: Mapping[str, Any]) -> bool:
    told = (claim.subject, claim.detail["transition_seq"])
    names = ("permit_id", "token_hash", "expires_at", "spent_micros")
    return told == (payload["build"], payload["bound"]) and all(
        payload[name] == claim.detail[name] for name in names
    )


def _ended(claim: Claim, named: str) -> bool:
    return named in (claim.subject, claim.session, claim.detail["child_id"])


def _roles(claim: Claim, payload: Mapping[str, Any]) -> bool:
    given = set(claim.detail["roles"] or ())
    return payload["name"] == claim.detail["principal"] and given <= set(payload["roles"])


def _key(claim: Claim, payload: Mapping[str, Any]) -> bool:
    whose = payload.get("name", claim.actor)
    return bool(whose == claim.detail["principal"] and claim.detail["public"] in payload["key"])


def _reason(payload: Mapping[str, Any], claim: Claim) -> bool:
    return bool(payload.get("reason", "")[:MAX_NOTE_CHARS] == (claim.detail["why"] or ""))


def _marked(claim: Claim, payload: Mapping[str, Any]) -> bool:
    needs = sorted(set(payload.get("depends_on", ())))
    same = (payload["manifest"], payload["key"]) == (
        claim.detail["manifest"],
        claim.detail["idempotency_key"],
    )
    by_child = payload.get("child", "") == (claim.detail["child"] or "")
    same = same and by_child and needs == (claim.detail["depends_on"] or [])
    return same and _reason(payload, claim)


def _revised(claim: Claim, payload: Mapping[str, Any]) -> bool:
    same = (payload["revises"], payload["manifest"]) == (claim.subject, claim.detail["manifest"])
    return same and _reason(payload, claim)


DECISIONS: Final = {
    "ENTRY_APPROVED": "approve",
    "ENTRY_DEFERRED": "defer",
    "ENTRY_REJECTED": "reject",
}


def _reviewed(claim: Claim, payload: Mapping[str, Any]) -> bool:
    decision = DECISIONS.get(claim.event, claim.detail["decision"])
    said = (payload["entry"], payload["digest"], payload["decision"])
    return said == (claim.subject, claim.detail["manifest"], decision) and _reason(payload, claim)


def _scope(payload: Mapping[str, Any]) -> str:
    return msgspec.convert(payload["scope"], Scope).digest()


_ENDS = ("BUILD_ABANDONED", "BUILD_FAILED", "WORKER_CANCEL", "STEP_IN_DOUBT")
_FITS: Final[Mapping[tuple[str, str], Callable[[Claim, Mapping[str, Any]], bool]]] = {
    ("builds.approve", "APPROVAL_GIVEN"): _approve,
    ("builds.approve", "APPROVAL_REFUSED"): _approve,
    ("builds.confirm", "CONFIRMATION_MINTED"): lambda claim, payload: (
        (payload["build"], payload["token_hash"]) == (claim.subject, claim.detail["token_hash"])
    ),
    ("builds.pause", "BUILD_PAUSED"): _paused,
    ("settings.note", "SETTINGS_NOTED"): lambda claim, payload: (
        payload["policy"] == claim.detail["policy"]
    ),
    **{
        ("builds.abandon", event): lambda claim, payload: _ended(claim, payload["build"])
        for event in _ENDS
    },
    **{
        ("children.cancel", event): lambda claim, payload: _ended(claim, payload["subject"])
        for event in _ENDS
    },
    ("principals.add", "PRINCIPAL_ADDED"): _roles,
    ("principals.take", "ROLES_TAKEN"): _roles,
    ("principals.add", "KEY_ADDED"): _key,
    ("keys.add", "KEY_ADDED"): _key,
    ("keys.revoke", "KEY_REVOKED"): lambda claim, payload: payload["key"] == claim.detail["key"],
    ("locks.clear", "LOCK_CLEARED"): lambda claim, payload: (
        payload["target"] == claim.detail["target"]
    ),
    ("grants.draft", "GRANT_DRAFTED"): lambda claim, payload: (
        _scope(payload) == claim.detail["scope"]
    ),
    ("grants.issue", "GRANT_ISSUED"): lambda claim, payload: (
        payload["grant"] == claim.subject and _scope(payload) == claim.detail["scope"]
    ),
    ("grants.revoke", "GRANT_REVOKED"): lambda claim, payload: payload["grant"] == claim.subject,
    ("grants.expire", "GRANT_EXPIRED"): lambda claim, payload: True,
    **{
        ("sagas.abandon", event): lambda claim, payload: _ended(claim, payload["saga"])
        for event in ("SAGA_STOPPED", "SAGA_SETTLED", "LEASE_RELEASED", "WORKER_CANCEL")
    },
    ("changes.mark", "ENTRY_MARKED"): _marked,
    ("changes.mark", "ENTRY_REVISED"): _revised,
    ("changes.sweep", "ENTRY_SWEPT"): lambda claim, payload: True,
    ("changes.sweep", "BACKLOG_SWEPT"): lambda claim, payload: True,
    ("changes.sweep", "REVIEW_WANTED"): lambda claim, payload: True,
    **{("changes.review", event): _reviewed for event in (*DECISIONS, "ENTRY_REVIEWED")},
    ("changes.abandon", "ENTRY_ABANDONED"): lambda claim, payload: (
        payload["entry"] == claim.subject and _reason(payload, claim)
    ),
    **{(verb, "WORK_TAKEN"): lambda claim, payload: True for verb in WORKS},
    ("tokens.new", "TOKEN_MADE"): lambda claim, payload: (
        payload["token_hash"] == claim.detail["token_hash"]
    ),
    ("tokens.revoke", "TOKEN_REVOKED"): lambda claim, payload: (
        payload["token"] == claim.detail["token_id"]
    ),
    ("seals.add", "ACT_SIGNED"): lambda claim, payload: claim.detail["act"] == "seal",
}


def unlike(claim: Claim, told: Mapping[str, Any]) -> str | None:
    """How an event differs from the signed act that it says it follows."""
    if claim.actor != told["principal"] and told["act"] not in OWN_ACTS:
        return f"{claim.place} was done by {claim.actor}, and signed by {told['principal']}"
    seconds = told["payload"].get("seconds") if isinstance(told["payload"], dict) else None
    until = claim.detail.get("expires_at") or 0
    if seconds is not None and until > told["asked_at"] + seconds * 1_000_000:
        return f"{claim.place} lasts longer than was signed"
    fits = _FITS.get((told["act"], claim.event))
    if fits is None or not fits(claim, told["payload"]):
        return f"{claim.place} is not what was signed"
    return None
