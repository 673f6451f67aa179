"""What somebody with the database's password, or a bundle and an editor, would try; and odd but honest histories."""

from __future__ import annotations

import base64
import json

import apsw
import msgspec
import pytest

from backlog import backlog
from onceward.builds.lifecycle import Offer
from onceward.core import faults
from onceward.core.canon import canonical, sha256_hex
from onceward.core.chain import link
from onceward.core.records import Request
from onceward.core.views import document
from onceward.errors import IntegrityFault, InvalidConfig, PermissionDenied
from onceward.evidence.bundle_check import verify_bundle
from onceward.evidence.seal import read_receipt
from onceward.evidence.verify import verify_rows
from onceward.evidence.workspace import verify_workspace
from onceward.people import statements
from onceward.people.signing import SEAL, SigningKey, statement
from onceward.people.views import key_list, principal_list
from onceward.store.tables.requests import Requests
from onceward.workspace import Workspace
from scene import ask, files_of, others_say, packed, plan, seal
from sites import Site

__all__ = ["backlog"]


def rules(bare):
    return {fault.rule for fault in verify_rows(bare).faults}


def append(bare, stream, name, detail, actor="tester", signed=None, source=None):
    """An event as a kernel would have written it, chained and the newest of all; answers its seq."""
    ((number,),) = bare.read("SELECT stream_no FROM streams WHERE stream = ?", (stream,))
    ((seq, prev),) = bare.read(
        "SELECT seq, hash FROM events WHERE stream_no = ? ORDER BY seq DESC LIMIT 1", (number,)
    )
    ((position, at),) = bare.read("SELECT max(position), max(at) FROM events")
    kind, _, subject = stream.partition(":")
    whose = {"build_id": subject, "session_id": subject} if kind == "session" else {}
    context = {**whose, "actor": actor, "fence": 99, **({"signed": signed} if signed else {})}
    body = canonical({"context": context, "detail": detail, "event": name})
    source = source or kind
    hash_ = link(stream, seq + 1, at, source, body, prev)
    bare.write(
        "INSERT INTO events (position, stream_no, seq, at, source, body, prev_hash, hash)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (position + 1, number, seq + 1, at, source, body.decode(), prev, hash_),
    )
    return seq + 1


@pytest.mark.rule("E-1")
@pytest.mark.guarantee("G18", "G19")
def test_acts_that_nobody_signed_are_found_though_rows_and_chains_agree(scene, bare):
    key = SigningKey.generate()
    proof = key.proof(_workspace_id(bare), "bob")
    said = {
        "principal": "bob",
        "key": key.fingerprint,
        "public": key.public.hex(),
        "proof": proof.hex(),
    }
    with bare:
        append(bare, "workspace", "PRINCIPAL_ADDED", {"principal": "mallory", "roles": ["admin"]})
        bare.write(
            "INSERT INTO principals (name, added_at, added_by)"
            " SELECT 'mallory', max(at), 'tester' FROM events"
        )
        bare.write("INSERT INTO principal_roles (name, role) VALUES ('mallory', 'admin')")
        assert rules(bare) == {"signature"}
    with bare:
        seq = append(bare, "workspace", "KEY_ADDED", said, "bob")
        _put_key(bare, key, "bob", proof, seq)
        assert rules(bare) == {"signature"}
    with bare:
        ((bobs,),) = bare.read("SELECT fingerprint FROM keys WHERE principal = 'bob'")
        seq = append(bare, "workspace", "KEY_REVOKED", {"principal": "bob", "key": bobs})
        bare.write("UPDATE keys SET revoked_seq = ? WHERE fingerprint = ?", (seq, bobs))
        assert rules(bare) == {"signature"}
    build = scene.ids["paused"]
    with bare:
        asked = {"step": "ok:all", "digest": "ab" * 32, "text": "well"}
        append(bare, f"session:{build}", "APPROVAL_WANTED", asked)
        append(bare, f"session:{build}", "APPROVAL_GIVEN", {**asked, "decision": "approved"}, "bob")
        _approve_row(bare, build, "ab" * 32)
        assert rules(bare) == {"signature"}


def _workspace_id(bare):
    return bare.read("SELECT workspace_id FROM workspace")[0][0]


def _put_key(bare, key, principal, proof, seq):
    row = (key.fingerprint, key.public, principal, proof, seq)
    bare.write(
        "INSERT INTO keys (fingerprint, public_key, principal, proof, added_seq) VALUES (?, ?, ?, ?, ?)",
        row,
    )


def _approve_row(bare, build, digest, signed=None):
    bare.write(
        "INSERT INTO approvals (build_id, stage, target, digest, text, wanted_at, decision, actor, note, decided_at,"
        " statement_hash) SELECT ?, 'ok', 'all', ?, 'well', max(at), 'approved', 'bob', '', max(at), ? FROM events",
        (build, digest, signed),
    )


@pytest.mark.rule("E-1")
@pytest.mark.guarantee("G18")
def test_a_signature_does_not_fit_another_act(scene, bare):
    """Bob's word on one build is shown for another, for the same content, and for a thing of another kind."""
    ((signed, text),) = bare.read(
        "SELECT statement_hash, statement FROM signatures WHERE statement LIKE '%builds.approve%'"
    )
    digest = json.loads(text)["predicate"]["payload"]["digest"]
    build = scene.ids["paused"]
    with bare:
        asked = {"step": "ok:all", "digest": digest, "text": "well"}
        append(bare, f"session:{build}", "APPROVAL_WANTED", asked)
        append(
            bare,
            f"session:{build}",
            "APPROVAL_GIVEN",
            {**asked, "decision": "approved", "note": "fine"},
            "bob",
            signed,
        )
        _approve_row(bare, build, digest, signed)
        bare.write("UPDATE approvals SET note = 'fine' WHERE text = 'well'")
        assert rules(bare) == {"signature"}
    with bare:
        told = {"permit_id": "prm_x", "bound": 1, "token_hash": "x", "expires_at": 1}
        append(bare, f"session:{build}", "CONFIRMATION_MINTED", told, "bob", signed)
        bare.write(
            "UPDATE confirmation_tokens SET voided_at = (SELECT max(at) FROM events)"
            " WHERE build_id = ? AND consumed_at IS NULL AND voided_at IS NULL",
            (build,),
        )
        bare.write(
            "INSERT INTO confirmation_tokens (permit_id, build_id, transition_seq, token_hash, spent, minted_at,"
            " expires_at, statement_hash) SELECT 'prm_x', ?, 1, 'x', 0, max(at), 1, ? FROM events",
            (build, signed),
        )
        assert rules(bare) == {"signature"}


@pytest.mark.rule("E-1", "H-9")
@pytest.mark.guarantee("G18")
def test_an_act_that_was_signed_by_somebody_without_the_role_is_found(scene, bare):
    """Bob, a reviewer, makes himself an admin with his own genuine signature, written past the kernel."""
    with scene.reading() as store, store.read() as rows:
        signer = scene.keyring.signer(rows, "bob")
        request = Request("principals.add", "r-forged", {"name": "bob", "roles": ["admin"]}, "bob")
        request = statements.sign(rows, signer, request)
    envelope = json.loads(request.signature)
    text = base64.b64decode(envelope["payload"])
    with bare:
        hash_ = sha256_hex(text)
        detail = {"act": "principals.add", "principal": "bob", "nonce": "r-forged"}
        detail |= {"key": signer.key.fingerprint, "statement": hash_}
        seq = append(bare, "workspace", "ACT_SIGNED", detail, "bob")
        signature = base64.b64decode(envelope["signatures"][0]["sig"])
        row = (hash_, text.decode(), signer.key.fingerprint, signature, seq)
        bare.write("INSERT INTO signatures VALUES (?, ?, ?, ?, ?)", row)
        bare.write(
            "INSERT INTO requests (verb, request_id, payload, payload_hash, principal, resource_id, asked_at)"
            " VALUES ('principals.add', 'r-forged', ?, ?, 'bob', 'x', 1)",
            (canonical(request.payload).decode(), request.payload_hash()),
        )
        append(
            bare,
            "workspace",
            "PRINCIPAL_ADDED",
            {"principal": "bob", "roles": ["admin"]},
            "bob",
            hash_,
        )
        bare.write("INSERT INTO principal_roles (name, role) VALUES ('bob', 'admin')")
        found = verify_rows(bare).faults
    assert {fault.rule for fault in found} == {"signature"} and any(
        "had no role" in fault.detail for fault in found
    )


@pytest.mark.rule("E-1")
@pytest.mark.guarantee("G7", "G19")
@pytest.mark.parametrize(
    ("change", "where"),
    [
        ("child_id = NULL", "how = 'executed'"),
        ("how = 'accepted', status = 'SUCCESS'", "status = 'FAILED'"),
        ("how = 'approved', status = 'SUCCESS'", "status = 'FAILED'"),
        ("how = 'executed'", "how = 'reused'"),
        ("status = 'FAILED'", "how = 'reused'"),
        ("status = 'FAILED'", "how = 'approved'"),
        ("status = 'IN_DOUBT'", "how = 'executed'"),
        ('outputs = \'[["x","file","ab",1]]\'', "status = 'FAILED'"),
        ("stage = 'other'", "how = 'executed'"),
        ("code_version = '2:ab'", "how = 'executed' AND status = 'SUCCESS'"),
        ("environment_hash = '2:ab'", "how = 'executed' AND status = 'SUCCESS'"),
        ("code_version = '2:ab'", "how = 'reused'"),
        ("environment_hash = '2:ab'", "how = 'reused'"),
    ],
)
def test_a_forged_checkpoint_is_found(bare, change, where):
    rows = bare.read(f"SELECT build_id, stage, target FROM checkpoints WHERE {where}")
    assert rows
    for row in rows:
        with bare:
            bare.write(
                f"UPDATE checkpoints SET {change} WHERE build_id = ? AND stage = ? AND target = ?",
                row,
            )
            assert rules(bare) & {"checkpoint", "manifest", "form", "ref"}, row


@pytest.mark.rule("E-1")
@pytest.mark.guarantee("G19")
@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("UPDATE urm_dispatch_token SET work = replace(work, 'hello', 'howdy') WHERE work LIKE '%hello%'", "phase"),
        ("UPDATE urm_dispatch_token SET attempt = attempt + 1", "phase"),
        ("UPDATE approvals SET text = 'is it bad'", "approval"),
        ("UPDATE approvals SET note = 'not fine'", "approval"),
        ("UPDATE sessions SET max_active_children = max_active_children + 1", "state"),
        ("UPDATE builds SET parent_build_id = 'bld_other'", "state"),
        ("UPDATE seals SET root = 'ab'", "seal"),
        ("UPDATE seals SET position = position + 1", "seal"),
        ("DELETE FROM seals", "seal"),
        ("INSERT INTO checkpoints (build_id, stage, target, context_hash, status, how, outputs, cost, tokens, attempt,"
         " child_id, origin, error, updated_at) SELECT build_id, stage, target || 'x', context_hash, status, how, outputs,"
         " cost, tokens, attempt, child_id, origin, error, updated_at FROM checkpoints WHERE how = 'reused'", "checkpoint"),
    ],
)  # fmt: skip
def test_what_the_events_say_cannot_be_rewritten_in_the_rows(bare, sql, expected):
    with bare:
        bare.write(sql)
        assert expected in rules(bare)


@pytest.mark.rule("E-1", "K-11")
@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE checkpoints SET outputs = '{}'",
        "UPDATE checkpoints SET outputs = 'nonsense'",
        "UPDATE urm_dispatch_token SET work = 'nonsense'",
        "UPDATE urm_dispatch_token SET work = '[1]'",
        "DELETE FROM workspace",
        "UPDATE signatures SET statement = 'nonsense'",
        "UPDATE signatures SET statement = '[]'",
        "UPDATE plans SET body = 'nonsense \"inputs_of\":'",
        'UPDATE plans SET body = \'{"stages":1,"inputs_of":1}\'',
        "UPDATE events SET body = '[]'",
        'UPDATE events SET body = \'{"context":{},"detail":[],"event":"X"}\'',
        'UPDATE events SET body = replace(body, \'"logs":{\', \'"logs":{"x":1,\')',
        "UPDATE keys SET public_key = proof",
        "UPDATE keys SET principal = ''",
        "UPDATE artifacts SET sha256 = '../dev/zero' WHERE sha256 = (SELECT min(sha256) FROM artifact_refs)",
        "UPDATE requests SET payload = 'nonsense'",
        "UPDATE seals SET statement_hash = (SELECT statement_hash FROM signatures ORDER BY seq LIMIT 1)",
    ],
)
def test_what_cannot_be_read_is_a_fault_and_not_a_crash(bare, sql):
    with bare:
        bare.write(sql)
        assert rules(bare)


@pytest.mark.rule("E-1")
def test_bytes_that_are_no_text_are_a_fault(tmp_path):
    workspace = Workspace(tmp_path / ".onceward", store_url="sqlite", principal="tester")
    workspace.create()
    site = Site(workspace, tmp_path)
    site.run(plan())
    whole = (workspace.folder / "onceward.db").read_bytes()
    for table, column in (("events", "body"), ("plans", "body"), ("signatures", "statement")):
        connection = apsw.Connection(str(workspace.folder / "onceward.db"))
        for (name,) in list(
            connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")
        ):
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute(f"UPDATE {table} SET {column} = CAST(x'7bff7d' AS TEXT)")
        connection.close()
        with workspace.reading() as store:
            assert not verify_workspace(store, workspace.folder).ok
        for path in workspace.folder.glob("onceward.db*"):
            path.unlink()
        (workspace.folder / "onceward.db").write_bytes(whole)


@pytest.mark.rule("E-2")
@pytest.mark.guarantee("G19")
def test_a_bundle_whose_end_nobody_trusted_signed_does_not_pass_with_a_key(scene, tmp_path):
    """Everything made to agree, and the signature of the end left out."""
    path = tmp_path / "b.tar"
    scene.export(scene.ids["failed"], path, True)
    files = files_of(path)
    keys = [json.loads(line)["fingerprint"] for line in files["keys.ndjson"].splitlines()]
    assert verify_bundle(path, trusted=keys).ok and others_say(path, *keys)[0] == 0
    signatures = [json.loads(line) for line in files["signatures.ndjson"].splitlines()]
    kept = [
        line
        for line in files["signatures.ndjson"].splitlines(keepends=True)
        if b"build_id" not in _payload(line)
    ]
    gone = {s["seq"] for s in signatures} - {json.loads(line)["seq"] for line in kept}
    assert len(gone) == 1
    events = [
        line
        for line in files["events.ndjson"].splitlines(keepends=True)
        if not (b'"stream_id":"workspace"' in line and json.loads(line)["seq"] in gone)
    ]
    files["signatures.ndjson"], files["events.ndjson"] = b"".join(kept), b"".join(events)
    files.pop("seal.json")
    forged = packed(tmp_path / "forged.tar", files)
    assert "nobody signed its end" in verify_bundle(forged).notes
    found = verify_bundle(forged, trusted=keys)
    assert [fault.rule for fault in found.faults] == ["signature"]
    assert others_say(forged, *keys)[0] == 5


def _edited(files, name, change):
    """The lines of a file as `change` leaves them."""
    lines = [change(json.loads(line)) for line in files[name].splitlines()]
    return {**files, name: b"".join(canonical(line) + b"\n" for line in lines)}


def _rechained(files, stream, change):
    """One stream of a bundle as `change` leaves its events, with its chain made whole again."""
    lines, prev = [], "0" * 64
    for line in files["events.ndjson"].splitlines():
        event = json.loads(line)
        if event["stream_id"] == stream:
            event = change(event)
            event.pop("hash")
            event["prev_hash"] = prev
            prev = sha256_hex(canonical(event))
            event["hash"] = prev
        lines.append(canonical(event) + b"\n")
    return {**files, "events.ndjson": b"".join(lines)}


@pytest.mark.rule("E-1", "E-2")
@pytest.mark.guarantee("G18", "G19")
@pytest.mark.parametrize("told", [False, True], ids=["rows", "rows and events"])
def test_a_decision_that_nobody_signed_is_found_in_a_bundle_by_us_and_by_others(
    backlog, tmp_path, told
):
    """Rob deferred it; the bundle says that he approved it."""
    entry = backlog.mark({"a.txt": "new\n"})
    backlog.sweep()
    backlog.review(entry, "defer")
    backlog.kernel.close()
    path = tmp_path / "b.tar"
    backlog.workspace.export(entry, path, True)
    assert verify_bundle(path).ok and others_say(path)[0] == 0
    files = files_of(path)
    files = _edited(files, "decisions.ndjson", lambda row: {**row, "decision": "approve"})

    def approved(event):
        if event["event"] == "ENTRY_DEFERRED":
            event["event"] = "ENTRY_APPROVED"
            event["detail"] |= {"reason": "approved", "to": "reviewed_approved"}
        return event

    def history(row):
        late = row["to_state"] == "reviewed_deferred"
        return {**row, **({"to_state": "reviewed_approved"} if late else {})}

    if told:
        files = _rechained(files, f"entry:{entry}", approved)
        files = _edited(files, "history.ndjson", history)
        files = _edited(files, "entries.ndjson", lambda row: {**row, "status": "reviewed_approved"})
        files.pop("seal.json", None)
    forged = packed(tmp_path / "forged.tar", files)
    assert not verify_bundle(forged).ok
    status, said = others_say(forged)
    assert status == 5
    assert "decision" in said or "is not what was signed" in said


def _repeated(files, entry, event_name):
    """A bundle in which the first event of a name stands once more at the end of an entry's stream, with its rows."""
    events = [json.loads(line) for line in files["events.ndjson"].splitlines()]
    own = [event for event in events if event["stream_id"] == f"entry:{entry}"]
    first = next(event for event in own if event["event"] == event_name)
    last = own[-1]
    again = json.loads(json.dumps(first))
    again |= {"seq": last["seq"] + 1, "ts": last["ts"]}
    (row,) = [json.loads(line) for line in files["entries.ndjson"].splitlines()]
    moved = {"from": row["status"], "transition_seq": row["version"] + 1}
    again["detail"] |= {**moved, "decision_id": "dec_again"}
    events.insert(events.index(last) + 1, again)
    files = {**files, "events.ndjson": b"".join(canonical(one) + b"\n" for one in events)}
    files = _rechained(files, f"entry:{entry}", lambda event: event)
    status = first["detail"]["to"]
    changed = {"status": status, "version": row["version"] + 1}
    files = _edited(files, "entries.ndjson", lambda row: {**row, **changed})
    decisions = files["decisions.ndjson"].splitlines()
    copied = json.loads(decisions[0]) | {"decision_id": "dec_again"}
    history = [json.loads(line) for line in files["history.ndjson"].splitlines()]
    arrow = history[-1] | {
        "history_id": "hst_again",
        "from_state": row["status"],
        "to_state": status,
        "actor": first["context"]["actor"],
    }
    files["decisions.ndjson"] += canonical(copied) + b"\n"
    files["history.ndjson"] += canonical(arrow) + b"\n"
    files.pop("seal.json", None)
    return files


@pytest.mark.rule("E-1", "E-2")
@pytest.mark.guarantee("G18", "G19")
def test_a_statement_that_counts_twice_is_found_in_a_bundle_by_us_and_by_others(backlog, tmp_path):
    """Rob approved it, and then deferred it; the bundle tells of the approval once more."""
    entry = backlog.approved({"a.txt": "new\n"})
    backlog.review(entry, "defer")
    backlog.kernel.close()
    path = tmp_path / "b.tar"
    backlog.workspace.export(entry, path, True)
    forged = packed(tmp_path / "forged.tar", _repeated(files_of(path), entry, "ENTRY_APPROVED"))
    assert not verify_bundle(forged).ok
    status, said = others_say(forged)
    assert status == 5 and "a second time" in said, said


@pytest.mark.rule("E-1", "E-2")
@pytest.mark.parametrize(
    ("subject", "name", "change"),
    [
        ("approved", "approvals.ndjson", {"actor": "tester"}),
        ("approved", "approvals.ndjson", {"statement_hash": "ab" * 32}),
        ("paused", "permits.ndjson", {"token_hash": "ab" * 32}),
        ("paused", "permits.ndjson", {"expires_at": 9_000_000_000_000_000}),
    ],
)
def test_what_people_allowed_is_checked_in_a_bundle_by_us_and_by_others(
    scene, tmp_path, subject, name, change
):
    path = tmp_path / "b.tar"
    scene.export(scene.ids[subject], path, True)
    files = _edited(files_of(path), name, lambda row: {**row, **change})
    assert files[name] != b""
    forged = packed(tmp_path / "forged.tar", files)
    assert not verify_bundle(forged).ok
    assert others_say(forged)[0] == 5


def _payload(line):
    return base64.b64decode(json.loads(line)["envelope"]["payload"])


@pytest.mark.rule("E-2", "K-11")
def test_a_hostile_bundle_is_a_fault_and_not_a_crash(scene, tmp_path):
    path = tmp_path / "b.tar"
    scene.export(scene.ids["approved"], path, True)
    files = files_of(path)
    signed = json.loads(files["signatures.ndjson"].splitlines()[0])
    one = signed["envelope"]["signatures"][0]
    seal_ = json.loads(files["seal.json"])

    def line(document):
        return canonical(document) + b"\n"

    hostile = [
        {"seal.json": data}
        for data in (b"[]", b"{}", canonical({**seal_, "head": []}), b"[" * 50_000)
    ]
    for keyid in ([], {}, 7, None):
        odd = {
            **signed,
            "envelope": {**signed["envelope"], "signatures": [{**one, "keyid": keyid}]},
        }
        hostile += [
            {"signatures.ndjson": line(odd)},
            {"seal.json": canonical({**seal_, "envelope": odd["envelope"]})},
        ]
    hostile += [
        {"signatures.ndjson": line({**signed, "seq": seq})} for seq in ("1", [1], None, 1 << 52)
    ]
    hostile += [{"tokens.ndjson": files["tokens.ndjson"].replace(b'"work":"{', b'"work":"[')}]
    hostile += [
        {
            "checkpoints.ndjson": files["checkpoints.ndjson"].replace(
                b'"outputs":"[', b'"outputs":"{'
            )
        }
    ]
    hostile += [{"events.ndjson": files["events.ndjson"].replace(b'"logs":{', b'"logs":{"x":{},')}]
    hostile += [
        {"events.ndjson": b"x" * 5_000_000},
        {"keys.ndjson": b"\xff\n"},
        {"debits.ndjson": b"{}\n"},
    ]
    hostile += [
        {"EVIL.md": b"x"},
        {"../../evil.sh": b"x"},
        {"artifacts/../x": b"x"},
        {"artifacts/short": b"x"},
    ]
    for change in hostile:
        assert not verify_bundle(packed(tmp_path / "h.tar", {**files, **change})).ok, list(change)


@pytest.mark.rule("E-3", "K-11")
def test_a_seal_that_lacks_something_is_refused_whoever_signed_it():
    key = SigningKey.generate()
    good = {
        "key": key.fingerprint,
        "log": {"root": "ab" * 32, "size": 0},
        "position": 1,
        "principal": "x",
    }
    good |= {"root": "ab" * 32, "streams": 1, "workspace": "wsp_1"}
    odd = [{k: v for k, v in good.items() if k != gone} for gone in good]
    odd += [
        {**good, "position": "1"},
        {**good, "log": {}},
        {**good, "root": "x"},
        {},
        {**good, "log": {"size": -1}},
    ]
    for predicate in odd:
        envelope = key.sign(statement(SEAL, [("w", "ab" * 32)], predicate))
        document = {
            "envelope": envelope.document(),
            "format": "onceward-seal@1",
            "public": key.public.hex(),
        }
        with pytest.raises((InvalidConfig, IntegrityFault)):
            read_receipt(canonical(document), "odd")


@pytest.mark.rule("K-13", "E-4")
@pytest.mark.guarantee("G18")
def test_whoever_may_only_file_requests_does_not_become_an_admin(workspace):
    workspace.kernel().close()
    ask(workspace, "principals.add", name="dave", roles=["admin"])
    thief = workspace.keyring.make("dave", _id(workspace), another=True)
    kernel = workspace.kernel()
    try:
        first = Request("keys.add", "r1", {"key": thief.offer()}, "dave")
        kernel.store.file(first)
        with kernel.store.read() as rows:
            act = statements.sign(
                rows,
                thief,
                Request("principals.add", "r2", {"name": "mallory", "roles": ["admin"]}, "dave"),
            )
        kernel.store.file(act)
        kernel.carry_out()
        with kernel.store.read() as rows:
            for request in (first, act):
                assert Requests(rows).find(request).value()["error"]["code"] == "PERMISSION_DENIED"
        assert [p["name"] for p in document(principal_list(kernel.store))] == ["dave", "tester"]
    finally:
        kernel.close()


def _id(workspace):
    with workspace.reading() as store, store.read() as rows:
        return rows.read("SELECT workspace_id FROM workspace")[0][0]


@pytest.mark.rule("E-4", "H-9")
def test_a_key_comes_with_the_principal_and_with_nothing_else(workspace):
    """Whoever acts first under a name gets nothing by it; what is refused leaves no key file."""
    workspace.kernel().close()
    ask(workspace, "principals.add", name="viewer", roles=["viewer"])
    with pytest.raises(PermissionDenied, match="only viewer"):
        ask(workspace, "principals.add", "viewer", name="eve", roles=["admin"])
    with pytest.raises(PermissionDenied, match="eve is not known here"):
        ask(workspace, "builds.abandon", "eve", build="latest")
    files = list(workspace.keyring.folder.glob("*.pem"))
    with workspace.reading() as store:
        known = document(key_list(store, workspace.keyring))
    assert [key["principal"] for key in known] == ["tester", "viewer"]
    assert {file.stem for file in files} == {key["key"] for key in known}


@pytest.mark.rule("E-4", "K-8")
def test_a_principal_is_not_added_without_a_key(workspace):
    """Whoever signs for themselves brings the key; asked again under the same id it is the same one."""
    kernel = workspace.kernel()
    try:
        bare = Request("principals.add", "r1", {"name": "bob", "roles": ["viewer"]}, "tester")
        with kernel.store.read() as rows:
            signed = statements.sign(rows, kernel.signer, bare)
        with pytest.raises(InvalidConfig, match="bob has no key yet, and comes with one"):
            kernel.ask(signed)
        for _ in range(2):
            kernel.ask(msgspec.structs.replace(bare, request_id="r2"))
        assert [p["name"] for p in document(principal_list(kernel.store))] == ["bob", "tester"]
        assert len(document(key_list(kernel.store, workspace.keyring))) == 2
    finally:
        kernel.close()


@pytest.mark.rule("H-9", "E-4")
def test_nothing_is_written_under_a_name_whose_key_is_not_here(workspace, tmp_path):
    site = Site(workspace, tmp_path)
    with pytest.raises(faults.SimulatedCrash):
        with faults.armed("child.ended", 1, faults.crash):
            site.run(plan(), jobs=1)
    workspace.keyring.folder.rename(tmp_path / "elsewhere")

    def events():
        with workspace.reading() as store, store.read() as rows:
            return rows.read("SELECT count(*) FROM events")[0][0]

    before = events()
    with pytest.raises(PermissionDenied):
        workspace.kernel()
    assert events() == before
    stranger = Workspace(
        workspace.folder, store_url=workspace.settings.store.url, principal="stranger"
    )
    stranger.kernel().close()
    with workspace.reading() as store, store.read() as rows:
        assert not rows.read('SELECT 1 FROM events WHERE body LIKE \'%"actor":"stranger"%\'')
        assert rows.read('SELECT 1 FROM events WHERE body LIKE \'%"actor":"kernel"%\'')


@pytest.mark.rule("K-13", "K-11")
def test_a_request_that_cannot_be_read_is_answered_and_blocks_nobody(workspace):
    kernel = workspace.kernel()
    try:
        kernel.store.file(Request("principals.add", "r1", {"name": "x"}, "tester"))
        raw = kernel.store.database.connect()
        raw.begin(None)
        raw.write("UPDATE requests SET payload = '{not json' WHERE request_id = 'r1'")
        raw.commit()
        raw.close()
        assert kernel.carry_out() == 1 and kernel.carry_out() == 0
    finally:
        kernel.close()


@pytest.mark.rule("K-13")
def test_what_is_signed_names_the_whole_build(workspace, tmp_path):
    site = Site(workspace, tmp_path)
    assert site.run(plan(budget="0.01"), jobs=1)["state"] == "BUDGET_PAUSE"
    ask(workspace, "builds.abandon", build=site.build_id[:30])
    with workspace.reading() as store, store.read() as rows:
        ((text,),) = rows.read(
            "SELECT statement FROM signatures WHERE statement LIKE '%builds.abandon%'"
        )
        assert verify_rows(rows).faults == []
    assert json.loads(text)["predicate"]["payload"]["build"] == site.build_id


@pytest.mark.rule("E-1")
def test_a_result_that_was_accepted_in_doubt_and_then_reused_is_sound(workspace, tmp_path):
    site = Site(workspace, tmp_path)
    text = 'name = "p"\n[[stage]]\nname = "s"\ntargets = ["x"]\non_crash = "ask"\n'
    text += 'run = ["sh", "-c", "echo hi > $ONCEWARD_OUT/z.txt"]\n'
    build = site.crash(text, point="child.ended", nth=1)
    (tmp_path / "z.txt").write_text("by hand")
    assert site.steps(build) == {"s:x": "IN_DOUBT"}
    site.resume(text, build, Offer(accept={"s:x": tmp_path / "z.txt"}))
    assert site.run(text)["steps"]["reused"] == 1
    for name in (build, site.build_id):
        path = tmp_path / f"{name}.tar"
        workspace.export(name, path, True)
        assert verify_bundle(path).faults == []
    with workspace.reading() as store, store.read() as rows:
        assert verify_rows(rows).faults == []


@pytest.mark.rule("E-2", "E-4")
def test_neither_a_repository_nor_a_bundle_gets_what_is_the_machines_own(workspace, tmp_path):
    assert (workspace.folder / ".gitignore").read_text() == "*\n"
    site = Site(workspace, tmp_path)
    site.run(plan())
    path = tmp_path / "b.tar"
    workspace.export(site.build_id, path, True)
    data = path.read_bytes()
    assert str(tmp_path).encode() not in data
    assert (
        msgspec.json.decode(files_of(path)["tokens.ndjson"].splitlines()[0])["work"].count(
            '"cwd":"."'
        )
        == 1
    )


@pytest.mark.rule("E-3")
def test_a_seal_that_was_to_be_kept_and_is_gone_is_missed(store_url, tmp_path):
    (tmp_path / "onceward.toml").write_text('[seal]\nfile = "kept.seal"\n')
    workspace = Workspace(tmp_path / ".onceward", store_url=store_url, principal="tester")
    workspace.create()
    workspace.kernel().close()
    assert workspace.verify([], None).ok
    (tmp_path / "kept.seal").unlink()
    assert [fault.rule for fault in workspace.verify([], None).faults] == ["seal"]
    assert seal(workspace)
