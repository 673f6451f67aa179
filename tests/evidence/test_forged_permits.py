"""Grants, confirmation tokens, approvals of steps and bearer tokens that somebody who can write any row made up, or made
more of than was signed (H-5, S-3, B-10, B-15): none is honoured, all are found."""

from __future__ import annotations

import threading
import uuid

import msgspec
import pytest

from forger import Forger
from onceward import Plan
from onceward.builds import lifecycle as builds
from onceward.builds.lifecycle import Offer
from onceward.builds.run import run_build
from onceward.core.grants import Scope
from onceward.core.records import Request
from onceward.core.views import document
from onceward.errors import (
    IntegrityFault,
    InvalidResumeState,
    LockConflict,
    PermissionDenied,
    PermitInvalid,
    StorageError,
)
from onceward.evidence.verify import verify_rows
from onceward.grants import lifecycle as grants
from onceward.grants.authority import objection_to_grant
from onceward.kernel.asker import sign_for
from onceward.people.authority import Authority
from onceward.people.permits import hash_of
from onceward.people.tokens import bearer_of
from onceward.people.views import principal_list
from onceward.store.tables.grants import Grants
from onceward.workspace import Workspace
from sites import prepared, site, workspace
from typing_in import until

__all__ = ["site", "workspace"]

SCOPE = Scope("plan-1", 3, "ab" * 32, "cd" * 32, "prod", "tester", ("S2_SCHEMA", "S4_VALUES"))
OTHER = msgspec.structs.replace(SCOPE, environment="live")
FAR = 9_000_000_000_000_000


def ask(workspace, verb, who="tester", **payload):
    """Something that somebody signs and asks of whoever holds the workspace."""
    kernel = workspace.kernel()
    try:
        request = Request(verb, uuid.uuid4().hex, payload, who)
        return kernel.ask(sign_for(kernel.store, workspace.keyring, request)).value
    finally:
        kernel.close()


def found_by_verify(workspace):
    with workspace.reading() as store, store.read() as rows:
        return verify_rows(rows).faults


# Grants.


@pytest.fixture
def granted(workspace):
    """A grant that eva gave, who is granter and may be no more."""
    ask(workspace, "principals.add", name="eva", roles=["granter"])
    scope = msgspec.to_builtins(SCOPE)
    grant = ask(workspace, "grants.draft", scope=scope)["grant_id"]
    ask(workspace, "grants.issue", "eva", grant=grant, scope=scope, seconds=600)
    return grant


def consume(workspace, grant, scope=SCOPE, root="root-1"):
    kernel = workspace.kernel()
    try:
        return kernel.store.write(
            lambda tx: grants.consume(tx, kernel.authority, grant, scope, "tester", root)
        )
    finally:
        kernel.close()


def _longer(forger, grant, workspace):
    forger.write("UPDATE grants SET expires_at = ?", FAR)


def _longer_by_its_event(forger, grant, workspace):
    def change(body):
        if body["event"] == "GRANT_ISSUED":
            body["detail"]["expires_at"] = FAR
        return body

    _longer(forger, grant, workspace)
    forger.rewrite(f"entry:{grant}", change)


def _for_more(forger, grant, workspace):
    forger.write("UPDATE grants SET environment = 'live'")


def _for_more_by_its_events(forger, grant, workspace):
    def change(body):
        if "scope" in body["detail"]:
            body["detail"]["scope"] = OTHER.digest()
        if "environment" in body["detail"]:
            body["detail"]["environment"] = "live"
        return body

    _for_more(forger, grant, workspace)
    forger.rewrite(f"entry:{grant}", change)


def _by_somebody_else(forger, grant, workspace):
    forger.write("UPDATE grants SET granter = 'tester'")


def _by_another_statement(forger, grant, workspace):
    signed = forger.word_of("tester")
    forger.write("UPDATE grants SET granter = 'tester', statement_hash = ?", signed)

    def change(body):
        if body["event"] == "GRANT_ISSUED":
            body["context"] |= {"actor": "tester", "signed": signed}
        return body

    forger.rewrite(f"entry:{grant}", change)


def _without_its_history(forger, grant, workspace):
    forger.rewrite(f"entry:{grant}", lambda body: None if body["event"] == "GRANT_ISSUED" else body)


def _with_an_edited_statement(forger, grant, workspace):
    hash_ = forger.value("SELECT statement_hash FROM grants")
    text = forger.value("SELECT statement FROM signatures WHERE statement_hash = ?", hash_)
    forger.write(
        "UPDATE signatures SET statement = ? WHERE statement_hash = ?",
        *(text.replace('"seconds":600', '"seconds":999'), hash_),
    )
    _longer_by_its_event(forger, grant, workspace)


@pytest.mark.rule("S-3", "H-5", "E-1")
@pytest.mark.guarantee("G16", "G18", "G19")
@pytest.mark.parametrize(
    ("forge", "scope"),
    [
        (_longer, SCOPE),
        (_longer_by_its_event, SCOPE),
        (_for_more, OTHER),
        (_for_more_by_its_events, OTHER),
        (_by_somebody_else, SCOPE),
        (_by_another_statement, SCOPE),
        (_without_its_history, SCOPE),
        (_with_an_edited_statement, SCOPE),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_grant_is_worth_what_was_signed(workspace, granted, forge, scope):
    with Forger(workspace.database) as forger:
        forge(forger, granted, workspace)
    with pytest.raises(PermitInvalid, match=r"what .* is said to have granted does not count"):
        consume(workspace, granted, scope)
    assert found_by_verify(workspace)


@pytest.mark.rule("S-3", "H-5", "E-1")
@pytest.mark.guarantee("G16")
@pytest.mark.parametrize("told", [False, True], ids=["rows", "rows and events"])
@pytest.mark.parametrize("how", ["used", "revoked"])
def test_a_grant_that_is_gone_does_not_come_back(workspace, granted, how, told):
    if how == "used":
        consume(workspace, granted)
    else:
        ask(workspace, "grants.revoke", "eva", grant=granted, why="no more")
    ask(workspace, "principals.add", name="later", roles=["viewer"])
    with Forger(workspace.database) as forger:
        forger.write(
            "UPDATE grants SET status = 'active', consumed_by_root = NULL, version = version - 1"
        )
        if told:
            gone = ("GRANT_CONSUMED", "GRANT_REVOKED")
            forger.rewrite(f"entry:{granted}", lambda body: None if body["event"] in gone else body)
    if (how, told) == ("used", True):
        # Nobody signs the use itself: a history whose end is cut off is found by the number of events, and by a seal.
        assert found_by_verify(workspace)
        return
    with pytest.raises(PermitInvalid, match="does not count"):
        consume(workspace, granted, root="root-2")
    assert found_by_verify(workspace)


@pytest.mark.rule("S-3", "H-5")
def test_a_run_does_not_go_on_under_a_grant_that_it_did_not_use(workspace, granted):
    with Forger(workspace.database) as forger:
        forger.write("UPDATE grants SET status = 'consumed', consumed_by_root = 'root-9'")
    with pytest.raises(PermitInvalid, match="its history says"):
        consume(workspace, granted, root="root-9")
    assert found_by_verify(workspace)


@pytest.mark.rule("S-3", "H-5")
@pytest.mark.parametrize("how", ["role", "key"])
def test_a_grant_does_not_outlive_the_role_or_the_key_of_its_granter(workspace, granted, how):
    with workspace.reading() as store, store.read() as rows:
        key = workspace.keyring.signer(rows, "eva").key.fingerprint
    if how == "role":
        ask(workspace, "principals.take", name="eva", roles=["granter"])
        why = "eva has no role that allows it"
    else:
        ask(workspace, "keys.revoke", key=key)
        why = "the key that signed it was revoked"
    with pytest.raises(PermitInvalid, match=why):
        consume(workspace, granted)
    with Forger(workspace.database) as forger:
        if how == "role":
            forger.write("INSERT INTO principal_roles (name, role) VALUES ('eva', 'granter')")
        else:
            forger.write("UPDATE keys SET revoked_seq = NULL")
    with pytest.raises(PermitInvalid, match=why):
        consume(workspace, granted)
    assert found_by_verify(workspace)
    with workspace.reading() as store, store.read() as rows:
        assert Grants(rows).named(granted).status == "active", "a refusal leaves it untouched"


class Lost:
    """Rows whose connection is gone after the first few reads."""

    def __init__(self, rows, reads):
        self._rows, self._left = rows, reads

    def read(self, sql, params=()):
        self._left -= 1
        if self._left < 0:
            raise StorageError("the connection is gone")
        return self._rows.read(sql, params)


@pytest.mark.rule("S-3")
@pytest.mark.guarantee("G4")
def test_a_store_that_fails_is_no_reason_to_call_a_grant_forged(workspace, granted):
    """Whoever asks again once the store is back is not told that it was refused for good."""
    with workspace.reading() as store, store.read() as rows:
        grant, failed = Grants(rows).named(granted), 0
        for reads in range(100):
            try:
                assert objection_to_grant(Authority(), Lost(rows, reads), grant) == ""
                break
            except StorageError:
                failed += 1
    assert failed > 3


# Confirmation tokens.


def pay(task):
    task.spend(usd="0.10")


@pytest.fixture
def paused(site):
    plan = Plan("paid", budget={"usd": "0.15"}, folder=site.folder)
    plan.stage(name="pay", targets=["a", "b", "c"], version="1", estimate={"usd": "0.01"})(pay)
    outcome = site.run(plan, jobs=1)
    assert outcome["state"] == "BUDGET_PAUSE"
    return plan, outcome


def resume(site, paused, token, budget=200_000):
    plan, outcome = paused
    offer = Offer(token=token, limits={"usd_micros": budget})
    return site.resume(plan, outcome["build_id"], offer)


def _token_put_in_its_place(forger, build):
    forger.write("UPDATE confirmation_tokens SET token_hash = ?", hash_of("forged"))


def _token_put_in_its_place_and_told(forger, build):
    _token_put_in_its_place(forger, build)

    def change(body):
        if body["event"] == "BUILD_PAUSED":
            body["detail"]["token_hash"] = hash_of("forged")
        return body

    forger.rewrite(f"session:{build}", change)


def _token_minted(forger, build):
    forger.write("UPDATE confirmation_tokens SET voided_at = 1")
    forger.write(
        "INSERT INTO confirmation_tokens (permit_id, build_id, transition_seq, token_hash, spent, minted_at,"
        " expires_at) SELECT 'prm_forged', build_id, transition_seq, ?, spent, minted_at, expires_at"
        " FROM confirmation_tokens",
        hash_of("forged"),
    )


def _token_minted_and_told(forger, build):
    _token_minted(forger, build)
    signed = forger.word_of("tester")
    forger.write(
        "UPDATE confirmation_tokens SET statement_hash = ? WHERE permit_id = 'prm_forged'", signed
    )
    detail = {"permit_id": "prm_forged", "token_hash": hash_of("forged"), "expires_at": FAR}
    forger.append(f"session:{build}", "CONFIRMATION_MINTED", detail, "tester", signed)


@pytest.mark.rule("B-10", "H-5", "E-1")
@pytest.mark.guarantee("G16", "G19")
@pytest.mark.parametrize(
    "forge",
    [
        _token_put_in_its_place,
        _token_put_in_its_place_and_told,
        _token_minted,
        _token_minted_and_told,
    ],
)
def test_a_confirmation_token_that_nobody_signed_for_resumes_nothing(
    site, workspace, paused, forge
):
    with Forger(workspace.database) as forger:
        forge(forger, paused[1]["build_id"])
    with pytest.raises(InvalidResumeState, match="its confirmation token, which"):
        resume(site, paused, "forged")
    assert site.status(paused[1]["build_id"])["state"] == "BUDGET_PAUSE"
    assert found_by_verify(workspace)


@pytest.mark.rule("B-10", "H-5", "E-1")
@pytest.mark.guarantee("G16")
@pytest.mark.parametrize("told", [False, True], ids=["row", "row and event"])
def test_a_confirmation_token_lasts_as_long_as_was_signed(site, workspace, paused, told):
    build = paused[1]["build_id"]

    def change(body):
        if body["event"] == "BUILD_PAUSED":
            body["detail"]["expires_at"] = FAR
        return body

    with Forger(workspace.database) as forger:
        forger.write("UPDATE confirmation_tokens SET expires_at = ?", FAR)
        if told:
            forger.rewrite(f"session:{build}", change)
    with pytest.raises(InvalidResumeState, match=r"is not the one|does not count|is not what"):
        resume(site, paused, paused[1]["confirmation_token"])
    assert found_by_verify(workspace)


@pytest.mark.rule("B-10", "H-5", "E-1")
@pytest.mark.guarantee("G16")
def test_a_token_that_was_used_is_not_good_for_the_next_pause(site, workspace, paused):
    build, token = paused[1]["build_id"], paused[1]["confirmation_token"]
    again = resume(site, paused, token, 250_000)
    assert again["state"] == "BUDGET_PAUSE"
    with Forger(workspace.database) as forger:
        version = forger.value("SELECT version FROM builds WHERE build_id = ?", build)
        forger.write(
            "UPDATE confirmation_tokens SET consumed_at = NULL, voided_at = NULL, transition_seq = ?"
            " WHERE token_hash = ?",
            *(version, hash_of(token)),
        )
    with pytest.raises(InvalidResumeState, match="its confirmation token, which"):
        resume(site, paused, token, 1_000_000)
    assert found_by_verify(workspace)
    with Forger(workspace.database) as forger:
        forger.write(
            "UPDATE confirmation_tokens SET consumed_at = 1 WHERE token_hash = ?", hash_of(token)
        )
    assert resume(site, paused, again["confirmation_token"], 1_000_000)["state"] == "SUCCESS"


@pytest.mark.rule("B-10")
def test_a_token_that_was_asked_for_resumes_its_build(site, workspace, paused):
    secret = "shown only to whoever asked"
    ask(workspace, "builds.confirm", build=paused[1]["build_id"], token_hash=hash_of(secret))
    assert resume(site, paused, secret, 1_000_000)["state"] == "SUCCESS"
    assert found_by_verify(workspace) == []


# A person's word on a step.


def ship(task):
    return "shipped"


@pytest.fixture
def waiting(site, workspace):
    """A build that waits for a person's word, and whose kernel is gone; its plan, its id and what is to be approved."""
    plan = Plan("asks", folder=site.folder)
    plan.stage(name="draft", targets=["a"], version="1")(ship)
    plan.approval("look", "Is it good?", needs="draft")
    plan.stage(name="ship", targets=["a"], needs=["look"], version="1")(ship)
    ask(workspace, "principals.add", name="ann", roles=["viewer"])
    kernel, stop, said, resolved = workspace.kernel(), threading.Event(), [], site.load(plan)
    try:
        build = builds.begin(kernel, kernel.actor, resolved, plan_file="", jobs=1, limits={})
        running = prepared(kernel, build, resolved, 1, True, True, told=said.append)
        thread = threading.Thread(target=run_build, args=(kernel, running, stop))
        thread.start()
        until(lambda: any(one["status"] == "APPROVAL" for one in said))
        stop.set()
        thread.join()
    finally:
        kernel.close()
    return plan, build, next(one["digest"] for one in said if one["status"] == "APPROVAL")


def _said_yes(forger, build, digest, signed=None):
    forger.write(
        "UPDATE approvals SET decision = 'approved', actor = 'tester', decided_at = wanted_at, statement_hash = ?",
        signed,
    )
    forger.write(
        "INSERT INTO checkpoints (build_id, stage, target, context_hash, status, how, outputs, cost, tokens, attempt,"
        " child_id, origin, error, updated_at) VALUES (?, 'look', 'a', ?, 'SUCCESS', 'approved', '[]', 0, 0, 1, NULL,"
        " NULL, NULL, 1)",
        *(build, digest),
    )


def _said_yes_and_told(forger, build, digest):
    signed = forger.word_of("tester")
    _said_yes(forger, build, digest, signed)
    detail = {"build_id": build, "step": "look:a", "decision": "approved", "digest": digest}
    forger.append(f"session:{build}", "APPROVAL_GIVEN", detail, "tester", signed)


@pytest.mark.rule("B-15", "H-5", "E-1")
@pytest.mark.guarantee("G18", "G19")
@pytest.mark.parametrize("forge", [_said_yes, _said_yes_and_told])
def test_a_step_that_nobody_approved_does_not_go_on(site, workspace, waiting, forge):
    plan, build, digest = waiting
    with Forger(workspace.database) as forger:
        forge(forger, build, digest)
    with pytest.raises(IntegrityFault, match="decided about look:a does not count"):
        site.resume(plan, build)
    assert site.steps(build)["ship:a"] != "SUCCESS"
    assert found_by_verify(workspace)


@pytest.mark.rule("B-15", "H-5", "E-1")
@pytest.mark.parametrize("told", [False, True], ids=["rows", "rows and event"])
def test_a_refusal_is_not_turned_into_an_approval(site, workspace, waiting, told):
    plan, build, digest = waiting
    ask(workspace, "builds.approve", build=build, step="look:a", digest=digest, refuse=True)

    def change(body):
        if body["event"] == "APPROVAL_REFUSED":
            body["event"], body["detail"]["decision"] = "APPROVAL_GIVEN", "approved"
        return body

    with Forger(workspace.database) as forger:
        forger.write("UPDATE approvals SET decision = 'approved'")
        forger.write("UPDATE checkpoints SET status = 'SUCCESS', error = NULL WHERE stage = 'look'")
        if told:
            forger.rewrite(f"session:{build}", change)
    with pytest.raises(IntegrityFault, match="look:a does not count: it is not what was signed"):
        site.resume(plan, build)
    assert site.steps(build)["ship:a"] != "SUCCESS"
    assert found_by_verify(workspace)


@pytest.mark.rule("B-15")
def test_what_was_really_approved_goes_on(site, workspace, waiting):
    plan, build, digest = waiting
    ask(workspace, "builds.approve", build=build, step="look:a", digest=digest)
    assert site.resume(plan, build)["state"] == "SUCCESS"
    assert found_by_verify(workspace) == []


# Bearer tokens.


def _bearer_made(forger):
    forger.write(
        "INSERT INTO tokens (token_id, principal, token_hash, note, made_seq, revoked_seq, expires_at)"
        " VALUES ('tok_forged', 'tester', ?, '', 3, NULL, ?)",
        *(hash_of("forged"), FAR),
    )


def _bearer_made_and_told(forger):
    _bearer_made(forger)
    detail = {
        "token_id": "tok_forged",
        "principal": "tester",
        "token_hash": hash_of("forged"),
        "note": "",
        "expires_at": FAR,
    }
    forger.append("workspace", "TOKEN_MADE", detail, "tester", forger.word_of("tester"))


def _bearer_of_somebody_else(forger):
    forger.write("UPDATE tokens SET principal = 'tester', token_hash = ?", hash_of("forged"))


def _bearer_longer(forger):
    forger.write("UPDATE tokens SET expires_at = ?, token_hash = ?", FAR, hash_of("forged"))


@pytest.mark.rule("H-5", "I-3", "E-1")
@pytest.mark.guarantee("G18", "G19")
@pytest.mark.parametrize(
    "forge", [_bearer_made, _bearer_made_and_told, _bearer_of_somebody_else, _bearer_longer]
)
def test_a_bearer_token_that_nobody_signed_for_lets_nobody_in(workspace, forge):
    ask(workspace, "principals.add", name="ann", roles=["viewer"])
    ask(workspace, "tokens.new", "ann", token_hash=hash_of("anns own"), seconds=60)
    with workspace.reading() as store:
        assert bearer_of(store, Authority(), "anns own") == "ann"
    with Forger(workspace.database) as forger:
        forge(forger)
    with workspace.reading() as store:
        assert bearer_of(store, Authority(), "forged") is None
    assert found_by_verify(workspace)


@pytest.mark.rule("H-5", "I-3", "E-1")
def test_a_bearer_token_that_was_revoked_does_not_come_back(workspace):
    made = ask(workspace, "tokens.new", token_hash=hash_of("own"), seconds=60)
    ask(workspace, "tokens.revoke", token=made["token_id"])
    with Forger(workspace.database) as forger:
        forger.write("UPDATE tokens SET revoked_seq = NULL")
    with workspace.reading() as store:
        assert bearer_of(store, Authority(), "own") is None
    assert found_by_verify(workspace)


# A step.


@pytest.mark.rule("K-14")
@pytest.mark.guarantee("G18")
@pytest.mark.parametrize("how", ["asker", "kernel", "async"])
def test_a_step_on_our_own_thread_signs_for_nobody(site, workspace, how):
    """It asks the kernel that runs it to make it an admin's friend, with the admin's own key file beside it."""
    ask(workspace, "principals.add", name="ann", roles=["viewer"])
    other = Workspace(workspace.folder, store_url=workspace.settings.store.url, principal="tester")

    def act():
        engine = other.asker() if how != "kernel" else other.kernel()
        try:
            wanted = {"name": "ann", "roles": ["admin"]}
            engine.ask(Request("principals.add", "r-step", wanted, "tester"), 5)
        finally:
            engine.close()

    def step(task):
        try:
            act()
        except (PermissionDenied, LockConflict) as error:
            return error.message
        return "done"

    async def later(task):
        return step(task)

    plan = Plan("climbs", folder=site.folder)
    plan.stage(name="climb", targets=["a"], version="1")(later if how == "async" else step)
    assert site.run(plan)["state"] == "SUCCESS"
    with workspace.reading() as store:
        people = {one["name"]: one["roles"] for one in document(principal_list(store))}
    assert people["ann"] == ["viewer"]
    assert found_by_verify(workspace) == []
