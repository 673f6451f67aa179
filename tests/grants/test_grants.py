"""Grants: exactly one thing, by somebody who may, signed, once (S-3)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter

import msgspec
import pytest

import granted_racers as racers
from helpers import assert_sound
from onceward.core.grants import Scope
from onceward.core.records import Request
from onceward.errors import InvalidConfig, OncewardError, PermissionDenied, PermitInvalid
from onceward.grants import lifecycle as grants
from onceward.grants import machine
from onceward.grants.acts import IssueGrant, issue
from onceward.store.tables.events import events_of
from onceward.store.tables.grants import Grants
from onceward.workspace import Workspace

SCOPE = Scope("plan-1", 3, "ab" * 32, "cd" * 32, "prod", "tester", ("S2_SCHEMA", "S4_VALUES"))
WRONG = {
    "plan_id": "plan-2",
    "revision": 4,
    "manifest_digest": "ee" * 32,
    "schema_digest": "ff" * 32,
    "environment": "test",
    "executor": "eve",
    "actions": ("S2_SCHEMA",),
}


def said(scope=SCOPE):
    return msgspec.to_builtins(scope)


def asked(kernel, verb, request_id, **payload):
    return kernel.ask(Request(f"grants.{verb}", request_id, payload, kernel.principal)).value


@pytest.fixture
def granted(kernel):
    """A grant that is in force."""

    def one(scope=SCOPE, seconds=600, name="1"):
        grant = asked(kernel, "draft", f"d{name}", scope=said(scope))["grant_id"]
        assert (
            asked(kernel, "issue", f"i{name}", grant=grant, scope=said(scope), seconds=seconds)[
                "status"
            ]
            == "active"
        )
        return grant

    return one


def consume(kernel, grant, scope=SCOPE, executor="tester", root="root-1"):
    return kernel.store.write(
        lambda tx: grants.consume(tx, kernel.authority, grant, scope, executor, root)
    )


def found(kernel, grant):
    with kernel.store.read() as rows:
        return Grants(rows).named(grant)


def sound(kernel):
    with kernel.store.read() as rows:
        assert_sound(rows)


@pytest.mark.rule("S-3")
@pytest.mark.guarantee("G16")
def test_a_grant_is_drafted_issued_and_used_once(kernel, granted):
    grant = granted()
    assert consume(kernel, grant) is True
    assert consume(kernel, grant) is False, "the run that used it may come again"
    with pytest.raises(PermitInvalid, match="the grant is consumed"):
        consume(kernel, grant, root="root-2")
    row = found(kernel, grant)
    assert (row.status, row.consumed_by_root, row.granter, row.finalized_at) == (
        "consumed",
        "root-1",
        "tester",
        None,
    )
    for _ in range(2):
        kernel.store.write(lambda tx: grants.finalize(tx, grant, "root-1", "tester"))
    assert found(kernel, grant).finalized_at is not None
    with pytest.raises(OncewardError):
        kernel.store.write(lambda tx: grants.finalize(tx, grant, "root-2", "tester"))
    sound(kernel)


@pytest.mark.rule("S-3")
@pytest.mark.guarantee("G16")
@pytest.mark.parametrize("field", WRONG)
def test_a_grant_is_for_exactly_one_scope(kernel, granted, field):
    grant = granted()
    other = msgspec.structs.replace(SCOPE, **{field: WRONG[field]})
    with pytest.raises(
        PermitInvalid, match="not for eve" if field == "executor" else f"another {field}"
    ):
        consume(kernel, grant, scope=other, executor=other.executor)
    assert found(kernel, grant).status == "active", "a refusal leaves it untouched"
    upside_down = msgspec.structs.replace(SCOPE, actions=("S4_VALUES", "S2_SCHEMA", "S4_VALUES"))
    assert consume(kernel, grant, scope=upside_down), "actions are a set"


@pytest.mark.rule("S-3")
def test_it_is_used_by_nobody_else_than_it_names(kernel, granted):
    grant = granted()
    with pytest.raises(PermitInvalid, match="for tester"):
        consume(kernel, grant, executor="eve")
    with pytest.raises(PermitInvalid, match="no such grant"):
        consume(kernel, "grt_none")


@pytest.mark.rule("S-3")
@pytest.mark.guarantee("G16", "G18")
def test_one_of_many_who_want_it_at_once_gets_it(kernel, granted):
    grant = granted()
    won, lost, gate = [], [], threading.Barrier(32)

    def want(number):
        gate.wait(600)
        try:
            won.append(consume(kernel, grant, root=f"root-{number}") and number)
        except PermitInvalid:
            lost.append(number)

    threads = [threading.Thread(target=want, args=(number,)) for number in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    assert len(won) == 1 and len(lost) == 31
    assert found(kernel, grant).consumed_by_root == f"root-{won[0]}"
    sound(kernel)


@pytest.mark.rule("S-3")
@pytest.mark.guarantee("G16")
def test_what_was_withdrawn_drafted_only_or_has_expired_allows_nothing(kernel, granted):
    draft = asked(kernel, "draft", "d", scope=said())["grant_id"]
    with pytest.raises(PermitInvalid, match="the grant is draft"):
        consume(kernel, draft)
    gone = granted(name="2")
    assert asked(kernel, "revoke", "r", grant=gone, why="changed our mind")["status"] == "revoked"
    with pytest.raises(PermitInvalid, match="the grant is revoked"):
        consume(kernel, gone)
    late = granted(seconds=1, name="3")
    time.sleep(1.05)
    with pytest.raises(PermitInvalid, match="has expired"):
        consume(kernel, late)
    assert kernel.store.write(lambda tx: grants.expire(tx, "tester")) == [late]
    assert found(kernel, late).status == "expired"
    sound(kernel)


@pytest.mark.rule("S-3")
@pytest.mark.guarantee("G18")
def test_nobody_without_the_role_and_nothing_but_what_was_drafted_is_issued(
    kernel, granted, workspace
):
    kernel.ask(Request("principals.add", "p", {"name": "bob", "roles": ["operator"]}, "tester"))
    draft = asked(kernel, "draft", "d", scope=said())["grant_id"]
    other = msgspec.structs.replace(SCOPE, environment="elsewhere")
    with pytest.raises(InvalidConfig, match="scope differs from the draft"):
        asked(kernel, "issue", "i", grant=draft, scope=said(other), seconds=60)
    for seconds in (0, -1, 10**9):
        with pytest.raises(InvalidConfig):
            asked(kernel, "issue", f"i{seconds}", grant=draft, scope=said(), seconds=seconds)
    kernel.close()
    acting = Workspace(
        workspace.folder, store_url=workspace.settings.store.url, principal="bob"
    ).kernel()
    try:
        request = Request(
            "grants.issue", "x", {"grant": draft, "scope": said(), "seconds": 60}, "bob"
        )
        with pytest.raises(PermissionDenied):
            acting.ask(request)
        assert found(acting, draft).status == "draft"
    finally:
        acting.close()


@pytest.mark.rule("S-3")
@pytest.mark.guarantee("G18")
def test_a_grant_that_nobody_signed_allows_nothing(kernel):
    draft = asked(kernel, "draft", "d", scope=said())["grant_id"]
    with pytest.raises(PermissionDenied, match="signed request"):
        kernel.store.write(lambda tx: issue(tx, "tester", IssueGrant(draft, SCOPE, 60)))
    with kernel.store.read() as rows:
        ((other,),) = rows.read("SELECT statement_hash FROM signatures ORDER BY seq DESC LIMIT 1")
    # Whoever writes past the verb has only somebody's signature of something else.
    kernel.store.write(
        lambda tx: tx.move(
            machine.issue(Grants(tx).named(draft), "tester", other, tx.now + 60_000_000)
        )
    )
    with pytest.raises(PermitInvalid, match="does not count: it is not what its event says"):
        consume(kernel, draft)


@pytest.mark.rule("S-3")
@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE grants SET environment = 'test', version = version + 1",
        "UPDATE grants SET consumed_by_root = 'root-9'",
        "UPDATE grants SET status = 'active', consumed_by_root = NULL, version = version + 1",
        "UPDATE grants SET expires_at = 9000000000000000, version = version + 1",
        "DELETE FROM grants",
    ],
)
def test_the_database_itself_lets_nothing_be_used_twice_or_for_more(kernel, granted, sql):
    grant = granted()
    consume(kernel, grant)
    before = found(kernel, grant)
    with pytest.raises(OncewardError):
        kernel.store.write(lambda tx: tx.write(sql))
    assert found(kernel, grant) == before


@pytest.mark.rule("S-3", "K-11")
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("manifest_digest", "x"),
        ("revision", 0),
        ("actions", []),
        ("actions", ["a b"]),
        ("plan_id", ""),
        ("executor", " x"),
    ],
)
def test_a_scope_that_says_nothing_exact_is_refused(kernel, field, value):
    with pytest.raises(InvalidConfig):
        asked(kernel, "draft", "d", scope={**said(), field: value})


@pytest.mark.rule("S-3")
@pytest.mark.guarantee("G16")
@pytest.mark.timeout(120)
@pytest.mark.thorough
def test_of_32_processes_one_gets_the_grant_and_the_others_wrote_nothing(
    workspace, kind, store_url
):
    scope = said(racers.saga(workspace.folder.parent).scope([1], "local", "tester"))
    kernel = workspace.kernel()
    grant = asked(kernel, "draft", "d", scope=scope)["grant_id"]
    asked(kernel, "issue", "i", grant=grant, scope=scope, seconds=600)
    kernel.close()
    # A kernel of PostgreSQL takes its time to open: there it is fewer, but for the long campaign.
    many = 32 if kind == "sqlite" or os.environ.get("ONCEWARD_SAGA_DEATHS") == "0" else 8
    words = [sys.executable, racers.__file__, str(workspace.folder), store_url, grant, str(many)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert Counter(json.loads(done.stdout)) == {0: 1, 7: many - 1}, done.stderr
    assert len((workspace.folder.parent / "effects").read_text().splitlines()) == 1
    kernel = workspace.kernel()
    with kernel.store.read() as rows:
        ((runs,),) = rows.read("SELECT count(*) FROM saga_runs")
        ((leases,),) = rows.read("SELECT count(*) FROM run_leases")
        told = [event.facts()["event"] for event in events_of(rows, f"entry:{grant}")]
        assert_sound(rows)
    kernel.close()
    assert (runs, leases) == (1, 1), "who was refused left no run and no lease"
    assert told == ["GRANT_DRAFTED", "GRANT_ISSUED", "GRANT_CONSUMED", "GRANT_FINALIZED"]
