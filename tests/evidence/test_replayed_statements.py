"""Statements that were really signed, made to count again or for more: by events that name them a second time, or that say
something else than was signed. None is honoured, all are found (H-5, X54)."""

from __future__ import annotations

import json
import uuid

import msgspec
import pytest

from backlog import backlog
from forger import Forger
from onceward import Plan
from onceward.builds.lifecycle import Offer
from onceward.core.grants import Scope
from onceward.core.records import Request
from onceward.errors import (
    GuardFailed,
    IntegrityFault,
    InvalidResumeState,
    OncewardError,
    PermitInvalid,
)
from onceward.evidence.verify import verify_rows
from onceward.grants import lifecycle as grants
from onceward.kernel.asker import sign_for
from onceward.people.permits import hash_of
from onceward.people.signing import ACT, SigningKey, fingerprint, statement
from onceward.people.tokens import bearer_of
from sites import site, workspace

__all__ = ["backlog", "site", "workspace"]

SCOPE = Scope("plan-1", 3, "ab" * 32, "cd" * 32, "prod", "tester", ("S2_SCHEMA", "S4_VALUES"))
FAR = 9_000_000_000_000_000


def ask(workspace, verb, who="tester", **payload):
    kernel = workspace.kernel()
    try:
        request = Request(verb, uuid.uuid4().hex, payload, who)
        return kernel.ask(sign_for(kernel.store, workspace.keyring, request)).value
    finally:
        kernel.close()


def faults(workspace):
    with workspace.reading() as store, store.read() as rows:
        return {fault.rule for fault in verify_rows(rows).faults}


def events(forger, stream, name):
    """The bodies and sources of a stream's events of one name."""
    found = forger.read(
        "SELECT e.body, e.source FROM events e JOIN streams s ON s.stream_no = e.stream_no"
        " WHERE s.stream = ? ORDER BY e.seq",
        stream,
    )
    bodies = [(json.loads(body), source) for body, source in found]
    return [(body, source) for body, source in bodies if body["event"] == name]


def repeat(forger, stream, name, **changed):
    """The first event of a name once more, at the end of its stream, under the statement it had."""
    body, source = events(forger, stream, name)[0]
    context = dict(body["context"])
    actor, signed = context.pop("actor"), context.pop("signed")
    context.pop("fence")
    detail = {**body["detail"], **changed}
    return forger.append(stream, name, detail, actor, signed, source, **context)


def sign_as(forger, key, who, act, payload, nonce):
    """A genuine statement of somebody with a key, put into the store past the kernel; answers its hash."""
    ((seq, hash_),) = forger.read(
        "SELECT e.seq, e.hash FROM events e JOIN streams s ON s.stream_no = e.stream_no"
        " WHERE s.stream = 'workspace' ORDER BY e.seq DESC LIMIT 1"
    )
    workspace_id = forger.value("SELECT workspace_id FROM workspace")
    request = Request(act, nonce, payload, who)
    predicate = {
        "act": act,
        "asked_at": forger.value("SELECT max(at) FROM events"),
        "head": {"hash": bytes(hash_).hex(), "seq": seq, "stream": "workspace"},
        "key": key.fingerprint,
        "nonce": nonce,
        "payload": payload,
        "principal": who,
        "workspace": workspace_id,
    }
    envelope = key.sign(statement(ACT, [(act, request.payload_hash())], predicate))
    detail = {
        "act": act,
        "key": key.fingerprint,
        "nonce": nonce,
        "principal": who,
        "statement": envelope.statement_hash,
    }
    place, _ = forger.append("workspace", "ACT_SIGNED", detail, who)
    forger.write(
        "INSERT INTO signatures (statement_hash, statement, fingerprint, signature, seq) VALUES (?, ?, ?, ?, ?)",
        envelope.statement_hash,
        envelope.statement.decode(),
        key.fingerprint,
        envelope.signature,
        place,
    )
    return envelope.statement_hash


def key_of(workspace, who):
    with workspace.reading() as store, store.read() as rows:
        return workspace.keyring.signer(rows, who).key


def refused(backlog, entry):
    with pytest.raises((GuardFailed, IntegrityFault)):
        backlog.cut(entry)
    assert (backlog.tree / "a.txt").read_text() == "one\n"
    assert faults(backlog.workspace)


@pytest.mark.rule("H-5", "E-1")
@pytest.mark.guarantee("G18")
@pytest.mark.parametrize("how", ["given again", "taken from nobody"])
def test_a_role_that_was_taken_does_not_come_back(backlog, how):
    entry = backlog.mark({"a.txt": "forged\n"})
    backlog.sweep()
    backlog.ask("tester", "principals.take", name="rob", roles=["reviewer"])
    backlog.kernel.close()
    with Forger(backlog.workspace.database) as forger:
        if how == "given again":
            added = events(forger, "workspace", "PRINCIPAL_ADDED")
            body = next(body for body, _ in added if body["detail"]["principal"] == "rob")
            context = body["context"]
            forger.append(
                "workspace", "PRINCIPAL_ADDED", body["detail"], context["actor"], context["signed"]
            )
        else:
            forger.rewrite("workspace", _without_roles)
        forger.write("INSERT INTO principal_roles (name, role) VALUES ('rob', 'reviewer')")
    backlog.become("tester")
    with pytest.raises(IntegrityFault, match="the roles of rob"):
        backlog.review(entry, "approve", who="rob")
    refused(backlog, entry)
    assert "role" in faults(backlog.workspace) or "signature" in faults(backlog.workspace)


def _without_roles(body):
    if body["event"] == "ROLES_TAKEN":
        body["detail"]["roles"] = []
    return body


@pytest.mark.rule("H-5", "E-1")
@pytest.mark.guarantee("G18")
@pytest.mark.parametrize("came_from", ["reviewed_deferred", "review_pending"])
def test_an_approval_that_was_deferred_does_not_count_again(backlog, came_from):
    entry = backlog.approved({"a.txt": "forged\n"})
    backlog.review(entry, "defer", reason="oh")
    backlog.kernel.close()
    with Forger(backlog.workspace.database) as forger:
        version = forger.value(
            "SELECT version FROM decision_backlog_entry WHERE entry_id = ?", entry
        )
        changed = {
            "decision_id": "dec_forged",
            "from": came_from,
            "transition_seq": version + 1,
        }
        _, at = repeat(forger, f"entry:{entry}", "ENTRY_APPROVED", **changed)
        forger.write(
            "INSERT INTO review_decision (decision_id, entry_id, content_hash, reviewer, decision, reason,"
            " statement_hash, decided_at, entry_version) SELECT 'dec_forged', entry_id, content_hash, reviewer,"
            " 'approve', '', statement_hash, ?, ? FROM review_decision WHERE entry_id = ? AND decision = 'approve'",
            *(at, version, entry),
        )
        forger.write(
            "UPDATE decision_backlog_entry SET status = 'reviewed_approved', version = version + 1"
            " WHERE entry_id = ?",
            entry,
        )
    backlog.become("max")
    refused(backlog, entry)


@pytest.mark.rule("S-3", "E-1")
@pytest.mark.guarantee("G16")
@pytest.mark.parametrize("how", ["used", "revoked"])
def test_a_grant_that_is_used_up_or_revoked_is_not_issued_again(workspace, how):
    scope = msgspec.to_builtins(SCOPE)
    ask(workspace, "principals.add", name="eva", roles=["granter"])
    grant = ask(workspace, "grants.draft", scope=scope)["grant_id"]
    ask(workspace, "grants.issue", "eva", grant=grant, scope=scope, seconds=600)
    if how == "used":
        use(workspace, grant, "root-1")
    else:
        ask(workspace, "grants.revoke", "eva", grant=grant, why="no")
    with Forger(workspace.database) as forger:
        version = forger.value("SELECT version FROM grants WHERE grant_id = ?", grant)
        repeat(forger, f"entry:{grant}", "GRANT_ISSUED", transition_seq=version + 1)
        forger.write(
            "UPDATE grants SET status = 'active', consumed_by_root = NULL, finalized_at = NULL, version = ?",
            version + 1,
        )
    with pytest.raises(PermitInvalid, match="does not count"):
        use(workspace, grant, "root-2")
    assert faults(workspace)


def use(workspace, grant, root):
    kernel = workspace.kernel()
    try:
        return kernel.store.write(
            lambda tx: grants.consume(tx, kernel.authority, grant, SCOPE, "tester", root)
        )
    finally:
        kernel.close()


@pytest.mark.rule("I-3", "E-1")
@pytest.mark.guarantee("G16")
@pytest.mark.parametrize("how", ["revoked", "of another", "for longer"])
def test_a_bearer_token_is_what_its_owner_made(workspace, how):
    ask(workspace, "principals.add", name="ann", roles=["viewer"])
    made = ask(workspace, "tokens.new", "ann", token_hash=hash_of("s"), seconds=3600, note="n")
    if how == "revoked":
        ask(workspace, "tokens.revoke", "ann", token=made["token_id"])
    with Forger(workspace.database) as forger:
        if how == "revoked":
            repeat(forger, "workspace", "TOKEN_MADE")
            forger.write("UPDATE tokens SET revoked_seq = NULL")
        else:
            change = {"principal": "tester"} if how == "of another" else {"expires_at": FAR}
            forger.rewrite("workspace", lambda body: _with(body, "TOKEN_MADE", change))
            ((column, value),) = change.items()
            forger.write(f"UPDATE tokens SET {column} = ?", value)
    kernel = workspace.kernel()
    try:
        assert bearer_of(kernel.store, kernel.authority, "s") is None
    finally:
        kernel.close()
    assert faults(workspace)


def _with(body, event, change):
    if body["event"] == event:
        body["detail"] |= change
    return body


@pytest.fixture
def paused(site):
    """A build that waits for a confirmation, its plan, and the token it was paused with."""

    def pay(task):
        task.spend(usd="0.10")

    plan = Plan("paid", budget={"usd": "0.15"}, folder=site.folder)
    targets = ["a", "b", "c"]
    plan.stage(name="pay", targets=targets, version="1", estimate={"usd": "0.01"})(pay)
    outcome = site.run(plan, jobs=1)
    return plan, outcome["build_id"], outcome["confirmation_token"]


@pytest.mark.rule("B-10", "E-1")
@pytest.mark.guarantee("G16")
def test_a_used_confirmation_is_not_made_good_by_its_pause_told_again(site, paused):
    plan, build_id, token = paused
    again = site.resume(plan, build_id, Offer(token=token, limits={"usd_micros": 250_000}))
    assert again["state"] == "BUDGET_PAUSE"
    with Forger(site.workspace.database) as forger:
        repeat(forger, f"session:{build_id}", "BUILD_PAUSED")
        version = forger.value("SELECT version FROM builds WHERE build_id = ?", build_id)
        forger.write(
            "UPDATE confirmation_tokens SET consumed_at = NULL, voided_at = NULL, transition_seq = ?"
            " WHERE token_hash = ?",
            *(version, hash_of(token)),
        )
    with pytest.raises(InvalidResumeState, match="does not count"):
        site.resume(plan, build_id, Offer(token=token, limits={"usd_micros": 1_000_000}))
    assert faults(site.workspace)


@pytest.mark.rule("B-10", "E-1")
@pytest.mark.guarantee("G16")
def test_a_confirmation_that_was_made_void_stays_void(site, paused):
    plan, build_id, token = paused
    ask(site.workspace, "builds.confirm", build=build_id, token_hash=hash_of("two"))
    with Forger(site.workspace.database) as forger:
        forger.write("UPDATE confirmation_tokens SET voided_at = NULL")
    with pytest.raises(InvalidResumeState, match="is void: a newer one was asked for"):
        site.resume(plan, build_id, Offer(token=token, limits={"usd_micros": 1_000_000}))
    assert "permit" in faults(site.workspace)


@pytest.mark.rule("B-10", "E-1")
def test_a_prolonged_confirmation_is_found_also_where_its_event_says_the_same(site, paused):
    plan, build_id, _ = paused
    ask(site.workspace, "builds.confirm", build=build_id, token_hash=hash_of("two"))
    with Forger(site.workspace.database) as forger:
        forger.write(
            "UPDATE confirmation_tokens SET expires_at = ? WHERE token_hash = ?",
            *(FAR, hash_of("two")),
        )
        change = {"expires_at": FAR}
        forger.rewrite(
            f"session:{build_id}", lambda body: _with(body, "CONFIRMATION_MINTED", change)
        )
    with pytest.raises(InvalidResumeState, match="longer than was signed"):
        site.resume(plan, build_id, Offer(token="two", limits={"usd_micros": 1_000_000}))
    assert "permit" in faults(site.workspace)


@pytest.mark.rule("H-5", "E-1")
@pytest.mark.guarantee("G18")
@pytest.mark.parametrize("said", [{}, {"name": "rob"}], ids=["plain", "with a name"])
def test_nobody_adds_a_key_for_somebody_else(backlog, said):
    """Ro may only look, and signs for a key of rob's that is ro's own."""
    entry = backlog.mark({"a.txt": "forged\n"})
    backlog.sweep()
    signer = key_of(backlog.workspace, "ro")
    with backlog.store.read() as rows:
        ((workspace_id,),) = rows.read("SELECT workspace_id FROM workspace")
    backlog.kernel.close()
    offer = backlog.workspace.keyring.make("rob", workspace_id, another=True)
    fresh = offer.key
    with Forger(backlog.workspace.database) as forger:
        payload = {"key": offer.offer(), **said}
        signed = sign_as(forger, signer, "ro", "keys.add", payload, "n1")
        proof = offer.proof()
        detail = {
            "key": fresh.fingerprint,
            "principal": "rob",
            "proof": proof.hex(),
            "public": fresh.public.hex(),
        }
        seq, _ = forger.append("workspace", "KEY_ADDED", detail, "ro", signed)
        forger.write(
            "INSERT INTO keys (fingerprint, public_key, principal, proof, added_seq) VALUES (?, ?, ?, ?, ?)",
            *(fingerprint(fresh.public), fresh.public, "rob", proof, seq),
        )
    backlog.become("tester")
    with pytest.raises(IntegrityFault, match="the keys of rob"):
        backlog.review(entry, "approve", who="rob")
    refused(backlog, entry)


@pytest.mark.rule("H-5", "E-1")
@pytest.mark.guarantee("G18")
def test_settings_that_a_viewer_signs_for_are_not_in_force(backlog):
    signer = key_of(backlog.workspace, "ro")
    with backlog.store.read() as rows:
        before = backlog.kernel.authority.policy(rows)
    with Forger(backlog.workspace.database) as forger:
        policy = {**before, "authors_may_review": True}
        signed = sign_as(forger, signer, "ro", "settings.note", {"policy": policy}, "n2")
        forger.append("workspace", "SETTINGS_NOTED", {"policy": policy}, "ro", signed)
    with backlog.store.read() as rows:
        assert backlog.kernel.authority.policy(rows) == before
    assert "signature" in faults(backlog.workspace)


@pytest.mark.rule("H-5")
@pytest.mark.guarantee("G18")
def test_a_history_that_is_replaced_under_a_running_kernel_is_refused(backlog):
    entry = backlog.mark({"a.txt": "forged\n"})
    backlog.sweep()
    fresh = SigningKey.generate()
    with Forger(backlog.workspace.database) as forger:
        ours = next(
            body["detail"]
            for body, _ in events(forger, "workspace", "KEY_ADDED")
            if body["detail"]["principal"] == "tester"
        )
        change = {"key": fresh.fingerprint, "public": fresh.public.hex()}
        forger.rewrite(
            "workspace",
            lambda body: (
                _with(body, "KEY_ADDED", change)
                if body["detail"].get("key") == ours["key"]
                else body
            ),
        )
        forger.write(
            "UPDATE keys SET fingerprint = ?, public_key = ? WHERE fingerprint = ?",
            *(fresh.fingerprint, fresh.public, ours["key"]),
        )
    # A database that is asked to note the refusal finds that the stream is another one.
    with pytest.raises(OncewardError, match=r"it was replaced|does not follow the last one"):
        backlog.review(entry, "approve", who="rob")
    assert backlog.status(entry) == "review_pending"
    backlog.kernel.lost.set()


@pytest.mark.rule("E-1")
@pytest.mark.guarantee("G19")
@pytest.mark.one_in(3)
def test_no_two_answers_are_swapped_unnoticed(backlog):
    """A hundred pairs: a sum that only adds up is not the sum of the same answers."""
    for number in range(15):
        backlog.mark(key=f"k{number}")
    backlog.kernel.close()
    with Forger(backlog.workspace.database) as forger:
        found = forger.read(
            "SELECT request_no, answer FROM requests WHERE verb = 'changes.mark' ORDER BY request_no"
        )
    missed = []
    for at, (first, one) in enumerate(found):
        for second, other in found[at + 1 :]:
            swap(backlog, (first, other), (second, one))
            if "request" not in faults(backlog.workspace):
                missed.append((first, second))
            swap(backlog, (first, one), (second, other))
    assert missed == []
    assert "request" not in faults(backlog.workspace)


def swap(backlog, *answers):
    with Forger(backlog.workspace.database) as forger:
        for number, answer in answers:
            forger.write("UPDATE requests SET answer = ? WHERE request_no = ?", answer, number)


@pytest.mark.rule("K-6", "E-1")
def test_a_delivery_under_a_made_up_key_is_found(workspace):
    (workspace.folder.parent / "onceward.toml").write_text(
        '[[sink]]\nname = "log"\nkind = "ndjson"\npath = "log.ndjson"\n'
    )
    from onceward.workspace import Workspace

    told = Workspace(workspace.folder, store_url=workspace.settings.store.url, principal="tester")
    ask(told, "principals.add", name="ann", roles=["viewer"])
    kernel = told.kernel()
    kernel.deliver()
    kernel.close()
    assert not faults(told)
    with Forger(told.database) as forger:
        place = forger.value("SELECT max(position) FROM outbox_used")
        forger.write("UPDATE outbox_used SET dedupe_key = ? WHERE position = ?", b"x" * 32, place)
    assert "outbox" in faults(told)
