"""Keys, roles and signed acts: who may do what, and how it is shown that they did (E-4, H-9, K-13)."""

from __future__ import annotations

import stat
import uuid

import msgspec
import pytest

from onceward.core.canon import canonical, parse
from onceward.core.records import Request
from onceward.core.views import document
from onceward.errors import InvalidConfig, OncewardError, PermissionDenied
from onceward.evidence.verify import verify_rows
from onceward.people import statements
from onceward.people.duties import unseparated
from onceward.people.keyring import Keyring
from onceward.people.signing import SigningKey, read_envelope
from onceward.people.views import duties_left, key_list, principal_list
from onceward.store.tables.requests import Requests
from onceward.workspace import Workspace
from scene import ask


def acting(workspace, principal, folder=None):
    return Workspace(
        folder or workspace.folder, store_url=workspace.settings.store.url, principal=principal
    )


def add(name="eve", role="viewer", by="tester", request_id=None):
    return Request(
        "principals.add", request_id or uuid.uuid4().hex, {"name": name, "roles": [role]}, by
    )


def sound(workspace):
    with workspace.reading() as store, store.read() as rows:
        return verify_rows(rows).faults == []


@pytest.mark.rule("E-4")
def test_whoever_opens_a_workspace_first_has_a_key_without_asking(workspace):
    workspace.kernel().close()
    with workspace.reading() as store:
        (key,) = document(key_list(store, workspace.keyring))
        (who,) = document(principal_list(store))
        assert (key["principal"], key["here"], who["key"]) == ("tester", True, key["key"])
        assert duties_left(store).startswith(
            "Not separated yet: only tester may act as operator, reviewer"
        )
    path = workspace.keyring.path_of(key["key"])
    assert (
        stat.S_IMODE(path.stat().st_mode) == 0o600
        and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    )
    assert sound(workspace)


@pytest.mark.rule("E-4")
def test_a_private_key_is_in_its_file_and_nowhere_else(workspace, tmp_path):
    ask(workspace, "principals.add", name="bob", roles=["reviewer"])
    ask(
        workspace,
        "keys.add",
        "bob",
        key=workspace.keyring.make("bob", workspace_id(workspace)).offer(),
    )
    secrets = []
    for path in workspace.keyring.folder.glob("*.pem"):
        key = SigningKey.read(path.read_bytes().partition(b"\n")[2])
        secrets += [
            key._private.private_bytes_raw(),
            key._private.private_bytes_raw().hex().encode(),
        ]
    assert len(secrets) == 4
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.suffix != ".pem":
            assert not any(secret in path.read_bytes() for secret in secrets)


def workspace_id(workspace):
    with workspace.reading() as store, store.read() as rows:
        return rows.read("SELECT workspace_id FROM workspace")[0][0]


@pytest.mark.rule("E-4", "K-13")
def test_nobody_acts_as_somebody_whose_key_is_elsewhere(workspace, tmp_path):
    workspace.kernel().close()
    workspace.keyring.folder.rename(tmp_path / "elsewhere")
    with pytest.raises(PermissionDenied, match=r"acts with the key .* which is not in"):
        workspace.kernel()
    (tmp_path / "elsewhere").rename(workspace.keyring.folder)
    kernel = workspace.kernel()
    asker = acting(workspace, "tester").engine()
    workspace.keyring.folder.rename(tmp_path / "elsewhere")
    try:
        with pytest.raises(PermissionDenied, match="not in"):
            asker.ask(add(), 0)
    finally:
        asker.close()
        kernel.close()


@pytest.mark.rule("E-4")
def test_a_key_file_that_others_may_read_or_that_lies_is_not_used(workspace, tmp_path):
    workspace.kernel().close()
    (path,) = workspace.keyring.folder.glob("*.pem")
    for mode in (0o640, 0o604, 0o660):
        path.chmod(mode)
        with pytest.raises(InvalidConfig, match="others may read"):
            workspace.kernel()
    path.chmod(0o600)
    whole = path.read_bytes()
    for data, why in (
        (b"nonsense", "Ed25519"),
        (
            b"Onceward key of tester\n" + SigningKey.generate().pem(),
            "another key than its name says",
        ),
    ):
        path.write_bytes(data)
        with pytest.raises(InvalidConfig, match=why):
            workspace.kernel()
    path.write_bytes(whole)
    target = tmp_path / "moved.pem"
    path.rename(target)
    path.symlink_to(target)
    with pytest.raises(InvalidConfig, match="cannot read the key file"):
        workspace.kernel()


@pytest.mark.rule("K-13", "H-9")
@pytest.mark.guarantee("G18")
def test_a_request_counts_only_as_it_was_signed(workspace):
    kernel = workspace.kernel()
    changed = msgspec.structs.replace

    def signed(request_id, signer=None):
        with kernel.store.read() as rows:
            return statements.sign(rows, signer or kernel.signer, add(request_id=request_id))

    def turned(request):
        envelope = parse(request.signature)
        (one,) = envelope["signatures"]
        other = ("B" if one["sig"][0] == "A" else "A") + one["sig"][1:]
        return changed(
            request, signature=canonical({**envelope, "signatures": [{**one, "sig": other}]})
        )

    stranger = SimpleSigner(kernel.signer, SigningKey.generate())
    take = {"name": "tester", "roles": ["viewer"]}
    try:
        for request, why in (
            (add(), "not signed"),
            (changed(signed("r1"), signature=b"{}"), "not an envelope"),
            (turned(signed("r2")), "not genuine"),
            (signed("r3", stranger), "not one of tester"),
            (
                signed("r4", SimpleSigner(kernel.signer, workspace="wsp_other")),
                "not what was signed",
            ),
            (changed(signed("r5"), request_id="r6"), "not what was signed"),
            (
                changed(signed("r7"), payload={"name": "mallory", "roles": ["admin"]}),
                "not what was signed",
            ),
            (changed(signed("r8"), verb="principals.take", payload=take), "not what was signed"),
        ):
            kernel.store.file(request)
            kernel.carry_out()
            with kernel.store.read() as rows:
                refusal = Requests(rows).find(request).value()["error"]
            assert refusal["code"] == "PERMISSION_DENIED" and why in refusal["message"], (
                why,
                refusal,
            )
        assert [p["name"] for p in document(principal_list(kernel.store))] == ["tester"]
    finally:
        kernel.close()
    assert sound(workspace)


class SimpleSigner:
    """A signer with another key, or for another workspace."""

    def __init__(self, signer, key=None, workspace=None):
        self.key, self.workspace = key or signer.key, workspace or signer.workspace
        self.principal = signer.principal


def replace_id(request, ids):
    return msgspec.structs.replace(request, request_id=f"r{next(ids)}")


@pytest.mark.rule("K-13")
@pytest.mark.guarantee("G19")
def test_what_was_signed_for_one_history_is_refused_in_another(workspace):
    kernel = workspace.kernel()
    try:
        with kernel.store.read() as rows:
            good = statements.sign(rows, kernel.signer, add(request_id="r1"))
        said = parse(read_envelope(parse(good.signature)).statement)
        said["predicate"]["head"]["hash"] = "ab" * 32
        forged = kernel.signer.key.sign(canonical(said))
        kernel.store.file(msgspec.structs.replace(good, signature=canonical(forged.document())))
        kernel.carry_out()
        with kernel.store.read() as rows:
            assert "another history" in Requests(rows).find(good).value()["error"]["message"]
    finally:
        kernel.close()


@pytest.mark.rule("E-4")
@pytest.mark.guarantee("G18")
def test_a_key_belongs_to_one_principal_for_all_time(workspace):
    workspace.kernel().close()
    ring, where = workspace.keyring, workspace_id(workspace)
    signer = ring.make("bob", where)
    ask(workspace, "principals.add", name="bob", roles=["reviewer"], key=signer.offer())
    stolen = signer.key.proof(where, "tester")
    offer = f"ed25519:{signer.key.public.hex()}:{stolen.hex()}"
    for verb, payload in (
        ("keys.add", {"key": offer}),
        (
            "principals.add",
            {
                "name": "carol",
                "roles": ["verifier"],
                "key": offer.replace(stolen.hex(), signer.key.proof(where, "carol").hex()),
            },
        ),
    ):
        with pytest.raises(PermissionDenied, match="one key never to two"):
            ask(workspace, verb, **payload)
    ask(workspace, "keys.revoke", key=signer.key.fingerprint)
    with pytest.raises(PermissionDenied, match="one key never to two"):
        ask(workspace, "principals.add", name="bob", roles=["reviewer"], key=signer.offer())
    assert sound(workspace)


@pytest.mark.rule("E-4")
def test_a_key_that_its_owner_never_showed_to_have_is_refused(workspace):
    workspace.kernel().close()
    key, where = SigningKey.generate(), workspace_id(workspace)
    public = key.public.hex()
    weak = (1).to_bytes(32, "little").hex()
    for offer, why in (
        (f"ed25519:{public}:{'00' * 64}", "nothing shows"),
        (f"ed25519:{public}:{key.proof('wsp_other', 'bob').hex()}", "nothing shows"),
        (f"ed25519:{public}:{key.proof(where, 'tester').hex()}", "nothing shows"),
        (f"ed25519:{weak}:{'00' * 64}", "small order"),
        (f"ed25519:{public}", "no key that was offered"),
        (f"rsa:{public}:{'00' * 64}", "no key that was offered"),
        ("ed25519:zz:zz", "no key that was offered"),
    ):
        with pytest.raises(OncewardError, match=why):
            ask(workspace, "principals.add", name="bob", roles=["reviewer"], key=offer)
    with workspace.reading() as store:
        assert [p["name"] for p in document(principal_list(store))] == ["tester"]


@pytest.mark.rule("E-4")
def test_a_revoked_key_signs_no_more_and_what_it_signed_stays_signed(workspace):
    ask(workspace, "principals.add", name="bob", roles=["admin"])
    ask(workspace, "principals.add", "bob", name="carol", roles=["viewer"])
    with workspace.reading() as store:
        bobs = next(
            key["key"]
            for key in document(key_list(store, workspace.keyring))
            if key["principal"] == "bob"
        )
    ask(workspace, "keys.revoke", key=bobs[:12], reason="lost")
    with pytest.raises(PermissionDenied, match="every key of bob was revoked"):
        ask(workspace, "principals.add", "bob", name="dave", roles=["viewer"])
    with pytest.raises(InvalidConfig, match="revoked before"):
        ask(workspace, "keys.revoke", key=bobs)
    assert sound(workspace)
    # A new one of his counts once an admin takes it.
    fresh = workspace.keyring.make("bob", workspace_id(workspace), another=True)
    ask(workspace, "principals.add", name="bob", roles=[], key=fresh.offer())
    ask(workspace, "principals.add", "bob", name="dave", roles=["viewer"])
    assert sound(workspace)


@pytest.mark.rule("E-4", "H-9")
def test_only_its_owner_or_an_admin_revokes_a_key_and_somebody_can_always_act(workspace):
    ask(workspace, "principals.add", name="bob", roles=["reviewer"])
    with workspace.reading() as store:
        key = document(key_list(store, workspace.keyring))[0]
    with pytest.raises(PermissionDenied, match="needs the role admin"):
        ask(workspace, "keys.revoke", "bob", key=key["key"])
    with pytest.raises(PermissionDenied, match="nobody could act any more"):
        ask(workspace, "keys.revoke", key=key["key"])
    with pytest.raises(PermissionDenied, match="last admin"):
        ask(workspace, "principals.take", name="tester", roles=["admin"])
    with pytest.raises(OncewardError, match="there is no key"):
        ask(workspace, "keys.revoke", key="ffffffffffff")
    ask(workspace, "principals.add", name="carol", roles=["admin"])
    ask(workspace, "principals.take", name="tester", roles=["admin"])
    with pytest.raises(PermissionDenied, match="needs the role admin"):
        ask(workspace, "principals.add", name="dave", roles=["viewer"])
    assert sound(workspace)


@pytest.mark.rule("H-9")
@pytest.mark.parametrize(
    "verb", ["builds.abandon", "builds.confirm", "builds.approve", "children.cancel", "seals.add"]
)
def test_a_viewer_changes_nothing(workspace, verb):
    ask(workspace, "principals.add", name="viewer", roles=["viewer"])
    with pytest.raises(PermissionDenied, match="has only viewer"):
        ask(
            workspace,
            verb,
            "viewer",
            build="latest",
            step="x",
            digest="y",
            token_hash="z",
            subject="s",
            envelope={},
        )
    kernel = acting(workspace, "viewer").kernel()
    try:
        with pytest.raises(PermissionDenied, match="has only viewer"):
            kernel.open_session("ses_1", 1)
        with pytest.raises(PermissionDenied, match="has only viewer"):
            kernel.gc()
    finally:
        kernel.close()


@pytest.mark.rule("E-4")
def test_a_key_that_was_made_before_something_went_wrong_is_used_the_next_time(workspace):
    workspace.kernel().close()
    ask(workspace, "principals.add", name="bob", roles=["operator"])
    made = workspace.keyring.make("bob", workspace_id(workspace))
    kernel = acting(workspace, "bob").kernel()
    try:
        assert kernel.signer.key.fingerprint == made.key.fingerprint
    finally:
        kernel.close()
    assert len(list(workspace.keyring.folder.glob("*.pem"))) == 2


def test_a_folder_that_cannot_be_written_is_said_so(tmp_path):
    (tmp_path / "keys").write_text("in the way")
    with pytest.raises(InvalidConfig, match="cannot write a key file"):
        Keyring(tmp_path / "keys").make("bob", "wsp_1")


ALL = ("operator", "reviewer", "executor", "verifier")


@pytest.mark.guarantee("G18")
@pytest.mark.parametrize(
    ("people", "left", "who"),
    [
        ({"a": {"admin"}}, ALL, "a"),
        ({}, ALL, ""),
        ({"a": {"admin"}, "b": {"reviewer"}, "c": {"executor"}, "d": {"verifier"}}, (), ""),
        ({"a": {"operator"}, "b": {"reviewer"}, "c": {"executor", "verifier"}}, ALL, "abc"),
        ({n: {"admin"} for n in "abcd"}, (), ""),
        ({**{n: {"operator"} for n in "abc"}, "d": set(ALL[1:])}, ALL[1:], "d"),
    ],
)
def test_duties_are_separated_when_each_can_be_somebody_elses(people, left, who):
    assert unseparated(people) == (left, tuple(who))
