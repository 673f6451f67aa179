"""An event is held against the act that was signed, field by field (X54)."""

from __future__ import annotations

import msgspec
import pytest

from onceward.evidence.asked import Claim, unlike

TOLD = {
    "step": "ok:all",
    "digest": "d",
    "note": "",
    "principal": "bob",
    "roles": ["viewer"],
    "key": "k",
}
TOLD |= {"public": "pub", "target": "t", "act": "seal", "child_id": "chd_1", "token_hash": "h"}
ACTS = [
    ("builds.approve", "APPROVAL_GIVEN", {"build": "bld_1", "step": "ok:all", "digest": "d"}),
    (
        "builds.approve",
        "APPROVAL_REFUSED",
        {"build": "bld_1", "step": "ok", "digest": "d", "refuse": True},
    ),
    ("builds.confirm", "CONFIRMATION_MINTED", {"build": "bld_1", "token_hash": "h"}),
    ("builds.abandon", "BUILD_ABANDONED", {"build": "bld_1"}),
    ("children.cancel", "WORKER_CANCEL", {"subject": "chd_1"}),
    ("principals.add", "PRINCIPAL_ADDED", {"name": "bob", "roles": ["viewer", "operator"]}),
    ("principals.take", "ROLES_TAKEN", {"name": "bob", "roles": ["viewer"]}),
    ("principals.add", "KEY_ADDED", {"name": "bob", "roles": [], "key": "ed25519:pub:proof"}),
    ("keys.revoke", "KEY_REVOKED", {"key": "k"}),
    ("locks.clear", "LOCK_CLEARED", {"target": "t"}),
]
OTHER = {"roles": ["admin"], "refuse": None, "note": "other"}


@pytest.mark.rule("E-1")
@pytest.mark.guarantee("G18")
@pytest.mark.parametrize(
    ("act", "event", "payload"), ACTS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_each_field_of_what_was_asked_counts(act, event, payload):
    claim = Claim("place", "alice", event, "bld_1", "bld_1", TOLD)
    told = {"act": act, "principal": "alice", "payload": payload}
    assert unlike(claim, told) is None
    for field in payload:
        if payload[field] != []:
            changed = {**payload, field: OTHER.get(field, "other")}
            assert unlike(claim, {**told, "payload": changed}), field
    assert unlike(claim, {**told, "principal": "mallory"})
    assert unlike(msgspec.structs.replace(claim, event="BUILD_STARTED"), told)
    assert all(
        other == act or unlike(claim, {**told, "act": other, "payload": {}})
        for other in ("outbox.flush", "x")
    )
