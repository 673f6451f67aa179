"""Every refusal of a grant, by values: no database, no clock (S-3)."""

from __future__ import annotations

import msgspec
import pytest

from onceward.core.grants import Grant, Scope
from onceward.core.limits import GRANT_SECONDS
from onceward.core.records import Principal
from onceward.grants import rules
from refusals import refused, refused_unless

SCOPE = Scope("plan-1", 3, "ab" * 32, "cd" * 32, "prod", "tester", ("S2_SCHEMA", "S4_VALUES"))
NOW = 1_000_000
GRANT = Grant(
    grant_id="grt_1",
    plan_id=SCOPE.plan_id,
    revision=SCOPE.revision,
    manifest_digest=SCOPE.manifest_digest,
    schema_digest=SCOPE.schema_digest,
    environment=SCOPE.environment,
    executor=SCOPE.executor,
    actions='["S2_SCHEMA","S4_VALUES"]',
    expires_at=NOW + 1,
    granter="granter",
    statement_hash="ee" * 32,
    consumed_by_root=None,
    finalized_at=None,
    status="active",
    version=2,
)
STATUSES = ("draft", "active", "consumed", "expired", "revoked")
WRONG = {
    "plan_id": "plan-2",
    "revision": 4,
    "manifest_digest": "ee" * 32,
    "schema_digest": "ff" * 32,
    "environment": "test",
    "executor": "eve",
    "actions": ("S2_SCHEMA",),
}


def grant(**but):
    return msgspec.structs.replace(GRANT, **but)


def scope(**but):
    return msgspec.structs.replace(SCOPE, **but)


@pytest.mark.parametrize("role", ["operator", "admin"])
def test_a_grant_is_drafted_for_somebody_who_can_carry_it_out(role):
    rules.require_executor("eve", Principal("eve", frozenset([role])))


@pytest.mark.parametrize(
    ("executor", "why"),
    [(None, "nobody here"), (Principal("eve", frozenset(["granter"])), "needs the role operator")],
)
def test_a_grant_is_not_drafted_for_somebody_who_cannot_carry_it_out(executor, why):
    with refused("INVALID_CONFIG", why):
        rules.require_executor("eve", executor)


def test_what_a_grant_says_it_is_for_has_the_digests_of_its_scope():
    rules.require_digests(SCOPE, (SCOPE.manifest_digest, SCOPE.schema_digest))
    for other in ((SCOPE.manifest_digest, ""), ("", SCOPE.schema_digest), ("", "")):
        with refused("INVALID_CONFIG", "does not match its digests"):
            rules.require_digests(SCOPE, other)


@pytest.mark.rule("S-3")
@pytest.mark.parametrize("status", STATUSES)
def test_only_a_draft_is_issued(status):
    with refused_unless(
        status == "draft", "PERMIT_INVALID", f"the grant is {status}; only a draft"
    ):
        rules.require_draft(grant(status=status), "grt_1")


@pytest.mark.rule("S-3")
@pytest.mark.parametrize("name", WRONG)
def test_only_the_drafted_scope_is_issued(name):
    rules.require_drafted_scope(GRANT, scope(actions=("S4_VALUES", "S2_SCHEMA", "S2_SCHEMA")))
    with refused("INVALID_CONFIG", "differs from the draft"):
        rules.require_drafted_scope(GRANT, scope(**{name: WRONG[name]}))


@pytest.mark.parametrize("seconds", [-1, 0, 1, GRANT_SECONDS, GRANT_SECONDS + 1])
def test_a_grant_lasts_a_second_at_least_and_the_limit_at_most(seconds):
    with refused_unless(1 <= seconds <= GRANT_SECONDS, "INVALID_CONFIG", "a grant lasts between"):
        rules.require_duration(seconds)


@pytest.mark.rule("S-3")
def test_a_grant_is_issued_by_a_signed_request_only():
    assert rules.require_statement("ee" * 32) == "ee" * 32
    with refused("PERMISSION_DENIED", "signed request"):
        rules.require_statement(None)


@pytest.mark.parametrize("status", STATUSES)
def test_a_grant_is_revoked_while_nobody_has_used_it(status):
    with refused_unless(status in ("draft", "active"), "PERMIT_INVALID", "cannot be revoked"):
        rules.require_revocable(grant(status=status), "grt_1")


@pytest.mark.rule("S-3")
@pytest.mark.parametrize(
    ("found", "why"),
    [
        (None, "there is no such grant"),
        (grant(status="draft"), "the grant is draft: nobody has issued it"),
        (
            grant(status="consumed", consumed_by_root="r1"),
            "the grant is consumed: the run r1 used it",
        ),
        (grant(status="expired"), "the grant is expired"),
        (grant(status="revoked"), "the grant is revoked"),
        (grant(expires_at=NOW), "the grant has expired"),
    ],
)
def test_a_grant_that_is_not_in_force_allows_nothing(found, why):
    assert rules.require_usable(GRANT, "grt_1", SCOPE, "tester", NOW) is GRANT
    with refused("PERMIT_INVALID", why):
        rules.require_usable(found, "grt_1", SCOPE, "tester", NOW)


@pytest.mark.rule("S-3")
@pytest.mark.parametrize("name", WRONG)
def test_a_grant_allows_its_own_scope_and_no_other(name):
    other = scope(**{name: WRONG[name]})
    with refused("PERMIT_INVALID", "the grant is for"):
        rules.require_usable(GRANT, "grt_1", other, "tester", NOW)
    with refused("PERMIT_INVALID", "the grant of this run is for"):
        rules.require_same_scope(GRANT, other, "grt_1")
    rules.require_same_scope(GRANT, SCOPE, "grt_1")
    assert rules.difference(SCOPE, SCOPE) == ""
    assert rules.difference(SCOPE, scope(executor="eve")) == "is for tester, not for eve"


@pytest.mark.rule("S-3")
def test_a_grant_allows_its_executor_and_nobody_else():
    with refused("PERMIT_INVALID", "the grant is for tester"):
        rules.require_usable(GRANT, "grt_1", SCOPE, "eve", NOW)


@pytest.mark.rule("S-3")
def test_a_grant_that_is_in_doubt_is_refused():
    rules.require_believed(GRANT, "")
    with refused("PERMIT_INVALID", "nobody signed it"):
        rules.require_believed(GRANT, "nobody signed it")


@pytest.mark.rule("S-3")
@pytest.mark.parametrize("root", [None, "run-2"])
def test_only_the_run_that_used_a_grant_finalizes_it(root):
    rules.require_used_by(grant(consumed_by_root="run-1"), "grt_1", "run-1")
    with refused("NOT_FOUND", "was not used by this run"):
        rules.require_used_by(grant(consumed_by_root=root), "grt_1", "run-1")
