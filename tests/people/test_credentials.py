"""What the credential of a child is good for, asked of the kernel itself (K-14)."""

from __future__ import annotations

import json
import uuid

import msgspec
import pytest

from onceward.core.acts import all_acts
from onceward.core.records import Request
from onceward.errors import OncewardError, PermissionDenied
from onceward.people.credentials import Credential, credential_in, own_credential

CHILD = "chd_1"


@pytest.fixture
def credential(backlog):
    kernel = backlog.kernel
    return kernel.credentials.issue(CHILD, "tester", kernel.signer, "s" * 64)


def ask(backlog, credential, verb, payload, **changed):
    request = credential.request(Request(verb, uuid.uuid4().hex, payload, "whoever"))
    return backlog.kernel.ask(msgspec.structs.replace(request, **changed)).value


def mark(backlog):
    manifest = backlog.propose({"a.txt": f"new {uuid.uuid4()}"})
    return {"manifest": manifest.content_hash(), "key": uuid.uuid4().hex}


@pytest.mark.rule("K-14")
def test_a_child_may_propose_and_the_record_says_which(backlog, credential):
    entry = ask(backlog, credential, "changes.mark", mark(backlog))["entry_id"]
    assert backlog.get(entry).author == "tester"
    with backlog.store.read() as rows:
        ((body,),) = rows.read("SELECT body FROM events WHERE body LIKE '%ENTRY_MARKED%'")
    assert json.loads(body)["detail"]["child"] == CHILD
    backlog.sound()


@pytest.mark.rule("K-14")
@pytest.mark.parametrize(
    "verb", sorted(name for name, declared in all_acts().items() if not declared.for_children)
)
def test_a_child_may_ask_for_nothing_else(backlog, credential, verb):
    before = backlog.rows()
    with pytest.raises(OncewardError) as refused:
        ask(backlog, credential, verb, {"build": "x", "grant": "x", "entry": "x"})
    assert refused.value.code in ("PERMISSION_DENIED", "NOT_FOUND", "INVALID_CONFIG")
    assert backlog.rows() == before


@pytest.mark.rule("K-14")
def test_reviews_and_grants_are_refused_for_what_they_are(backlog, credential):
    entry = backlog.mark()
    backlog.sweep()
    digest = backlog.envelope(entry).content_hash
    said = {"entry": entry, "decision": "approve", "digest": digest, "reason": ""}
    with pytest.raises(OncewardError, match="not for the child"):
        ask(backlog, credential, "changes.review", said)
    with pytest.raises(OncewardError, match="not for the child"):
        ask(backlog, credential, "principals.add", {"name": "eve", "roles": ["admin"]})
    assert backlog.status(entry) == "review_pending"


@pytest.mark.rule("K-14")
def test_a_proof_is_for_one_request_of_one_living_child(backlog, credential):
    what = mark(backlog)
    signed = credential.request(Request("changes.mark", "one", what, "tester"))
    lies = [
        msgspec.structs.replace(signed, request_id="two"),
        msgspec.structs.replace(signed, payload={**signed.payload, "reason": "other"}),
        msgspec.structs.replace(signed, payload={**signed.payload, "child": "chd_2"}),
        msgspec.structs.replace(signed, principal="rob"),
        msgspec.structs.replace(signed, expires_at=1 << 50),
        Credential(CHILD, "tester", "x" * 64).request(signed),
        Credential("chd_2", "tester", credential.secret).request(signed),
        Credential(CHILD, "rob", credential.secret).request(signed),
    ]
    before = backlog.rows()
    for lie in lies:
        with pytest.raises(OncewardError) as refused:
            backlog.kernel.ask(lie)
        assert refused.value.code in ("PERMISSION_DENIED", "URM_IDEMPOTENCY_KEY_CONFLICT")
    assert backlog.rows() == before
    other = {"subject": "chd_2"}
    with pytest.raises(OncewardError):
        ask(backlog, credential, "children.cancel", other)
    backlog.kernel.credentials.end(CHILD)
    with pytest.raises(PermissionDenied, match="no such child"):
        backlog.kernel.ask(credential.request(Request("changes.mark", "late", what, "tester")))


def test_a_credential_comes_back_from_its_text(monkeypatch):
    credential = Credential("chd_1", "ann: with a colon", "secret")
    assert credential_in(credential.text()) == credential
    assert credential_in("") is None and credential_in("chd_1") is None
    monkeypatch.setenv("ONCEWARD_CREDENTIAL", credential.text())
    assert own_credential() == credential
