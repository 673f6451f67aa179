"""An event is held against the act that was signed, field by field (X54)."""

from __future__ import annotations

import msgspec
import pytest

from onceward import catalogue as _catalogue  # noqa: F401
from onceward.core.acts import SignedEvent, all_acts, disagreement, misfit, signed_events

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
    claim = SignedEvent("place", "alice", event, "bld_1", "bld_1", TOLD)
    told = {"act": act, "principal": "alice", "payload": payload}
    assert disagreement(claim, told) is None
    for field in payload:
        if payload[field] != []:
            changed = {**payload, field: OTHER.get(field, "other")}
            assert disagreement(claim, {**told, "payload": changed}), field
    assert disagreement(claim, {**told, "principal": "mallory"})
    assert disagreement(msgspec.structs.replace(claim, event="BUILD_STARTED"), told)
    assert all(
        other == act or disagreement(claim, {**told, "act": other, "payload": {}})
        for other in ("outbox.flush", "x")
    )


@pytest.mark.rule("E-1")
@pytest.mark.guarantee("G18")
def test_exactly_these_events_carry_a_signature():
    """Written out here once more: an event that is left out of a declaration would go unsigned and unnoticed."""
    people = {"PRINCIPAL_ADDED", "ROLES_TAKEN", "KEY_REVOKED", "TOKEN_MADE", "TOKEN_REVOKED"}
    kernel = {"LOCK_CLEARED", "SETTINGS_NOTED", "WORK_TAKEN"}
    grants = {"GRANT_DRAFTED", "GRANT_ISSUED", "GRANT_REVOKED"}
    builds = {"APPROVAL_GIVEN", "APPROVAL_REFUSED", "CONFIRMATION_MINTED", "BUILD_PAUSED"}
    changes = {"MARKED", "REVISED", "SWEPT", "APPROVED", "DEFERRED", "REJECTED", "REVIEWED"}
    assert signed_events() == people | kernel | grants | builds | {
        *(f"ENTRY_{event}" for event in changes),
        *("ENTRY_ABANDONED", "BACKLOG_SWEPT", "BUILD_ABANDONED"),
    }


@pytest.mark.rule("E-1")
@pytest.mark.guarantee("G18")
def test_nothing_unknown_is_signed_along_with_what_is_asked():
    assert misfit({"act": "keys.add", "payload": {"key": "k"}}) is None
    assert misfit({"act": "keys.add", "payload": {"key": "k", "name": "rob"}})


@pytest.mark.rule("K-13")
def test_every_kind_of_work_is_begun_in_one_way():
    from onceward import hosting as _hosting  # noqa: F401
    from onceward.kernel.jobs import BEGINS

    assert set(BEGINS) == {declared.payload for declared in all_acts().values() if declared.work}
