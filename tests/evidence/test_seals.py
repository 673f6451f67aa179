"""Seals: made by whoever asks, checked by the kernel, kept elsewhere, and what they find (E-3, X60)."""

from __future__ import annotations

import json
import shutil

import pytest

from helpers import create
from onceward.core.canon import canonical, parse
from onceward.errors import (
    IntegrityFault,
    InvalidConfig,
    OncewardError,
    PermissionDenied,
    StaleVersion,
)
from onceward.evidence.seal import follows, read_receipt
from onceward.evidence.workspace import verify_workspace
from onceward.maintenance.doctor import examine_store
from onceward.people.signing import SigningKey
from onceward.workspace import Workspace
from scene import ask, seal


def something_happens(workspace):
    kernel = workspace.kernel()
    try:
        create(kernel.store)
    finally:
        kernel.close()


def faults(workspace, *receipts):
    with workspace.reading() as store:
        found = verify_workspace(
            store, workspace.folder, [("kept", receipt) for receipt in receipts]
        )
    return [(fault.rule, fault.detail) for fault in found.faults]


@pytest.mark.rule("E-3")
def test_a_seal_holds_for_all_that_comes_after_it(workspace):
    something_happens(workspace)
    first = seal(workspace)
    something_happens(workspace)
    second = seal(workspace)
    something_happens(workspace)
    assert faults(workspace, first, second) == []
    assert second.said["log"]["size"] == 1 and first.said["log"]["size"] == 0


@pytest.mark.rule("E-3")
@pytest.mark.guarantee("G19")
def test_an_older_copy_of_the_workspace_does_not_match_a_newer_seal(tmp_path):
    workspace = Workspace(tmp_path / "w" / ".onceward", store_url="sqlite", principal="tester")
    workspace.folder.parent.mkdir()
    workspace.create()
    something_happens(workspace)
    shutil.copytree(tmp_path / "w", tmp_path / "older")
    something_happens(workspace)
    receipt = seal(workspace)
    older = Workspace(tmp_path / "older" / ".onceward", store_url="sqlite", principal="tester")
    found = faults(older, receipt)
    assert {rule for rule, _ in found} == {"seal"} and any("older copy" in why for _, why in found)
    # It goes on from there as if nothing had happened: as many events again, and still not the same.
    for _ in range(4):
        something_happens(older)
    found = faults(older, receipt)
    assert {rule for rule, _ in found} == {"seal"} and not any(
        "older copy" in why for _, why in found
    )
    assert not faults(workspace, receipt)


@pytest.mark.rule("E-3")
def test_a_seal_of_another_workspace_or_with_another_key_is_said_to_be_one(workspace, tmp_path):
    something_happens(workspace)
    other = Workspace(tmp_path / "o" / ".onceward", store_url="sqlite", principal="tester")
    other.folder.parent.mkdir()
    other.create()
    something_happens(other)
    assert ("seal", "it is the seal of another workspace") in faults(workspace, seal(other))
    receipt = seal(workspace)
    stranger = SigningKey.generate()
    forged = type(receipt)(
        stranger.sign(receipt.envelope.statement), stranger.public, receipt.heads
    )
    assert any("is not known here any more" in why for _, why in faults(workspace, forged))


@pytest.mark.rule("E-3")
def test_the_kernel_believes_no_seal_that_is_not_true_and_signed_by_who_asks(workspace):
    something_happens(workspace)
    ask(workspace, "principals.add", name="bob", roles=["operator"])
    receipt = workspace.prepare_seal(None)
    document = receipt.envelope.document()
    with pytest.raises(PermissionDenied, match="not signed by bob"):
        ask(workspace, "seals.add", "bob", envelope=document)
    with pytest.raises(PermissionDenied, match="not signed by tester"):
        ask(
            workspace,
            "seals.add",
            envelope=SigningKey.generate().sign(receipt.envelope.statement).document(),
        )
    key = workspace_key(workspace)
    for change, why in (
        ({"root": "ab" * 32}, "not of this history"),
        ({"streams": 99}, "not of this history"),
        ({"position": 1}, "not of this history"),
        ({"position": 10_000}, "not here"),
        ({"position": "x"}, "not a seal"),
        ({"log": {"root": "ab" * 32, "size": 3}}, "another seal came first"),
    ):
        said = parse(receipt.envelope.statement)
        said["predicate"] |= change
        with pytest.raises(OncewardError, match=why):
            ask(workspace, "seals.add", envelope=key.sign(canonical(said)).document())
    ask(workspace, "seals.add", envelope=document)
    with pytest.raises(StaleVersion, match="another seal came first"):
        ask(workspace, "seals.add", envelope=document)
    assert faults(workspace, receipt) == []


def workspace_key(workspace):
    with workspace.reading() as store, store.read() as rows:
        return workspace.keyring.signer(rows, "tester").key


@pytest.mark.rule("E-3")
def test_a_seal_that_takes_the_place_of_another_shows_that_it_follows_it(workspace, tmp_path):
    from onceward.evidence.sealing import write

    kept, older = tmp_path / "kept.seal", []
    for _ in range(6):
        something_happens(workspace)
        receipt = workspace.prepare_seal(kept)
        ask(workspace, "seals.add", envelope=receipt.envelope.document())
        if kept.exists():
            older.append(read_receipt(kept.read_bytes(), "older"))
            assert follows(older[-1], receipt) and not follows(receipt, older[-1])
            assert len(older) < 2 or not follows(older[-2], receipt)
        write(kept, receipt)
        assert faults(workspace, read_receipt(kept.read_bytes(), "kept")) == []
    shutil.copy(kept, tmp_path / "copy.seal")
    forged = json.loads(kept.read_bytes())
    forged["since"]["consistency"][0] = "ab" * 32
    assert not follows(older[-1], read_receipt(canonical(forged), "forged"))


@pytest.mark.rule("E-3")
def test_a_store_that_was_set_back_is_not_sealed_over_the_seal_that_knows_better(tmp_path):
    workspace = Workspace(tmp_path / "w" / ".onceward", store_url="sqlite", principal="tester")
    workspace.folder.parent.mkdir()
    workspace.create()
    something_happens(workspace)
    shutil.copytree(tmp_path / "w", tmp_path / "older")
    kept = tmp_path / "kept.seal"
    kept.write_bytes(canonical(seal(workspace).document()))
    older = Workspace(tmp_path / "older" / ".onceward", store_url="sqlite", principal="tester")
    something_happens(older)
    with pytest.raises(IntegrityFault, match="not what is here"):
        older.prepare_seal(kept)


@pytest.mark.rule("E-3", "K-11")
def test_a_seal_file_that_was_changed_is_refused(workspace, tmp_path):
    something_happens(workspace)
    document = seal(workspace).document()
    whole = canonical(document)
    for place in range(0, len(whole), 7):
        turned = whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]
        with pytest.raises((IntegrityFault, InvalidConfig)):
            read_receipt(turned, "turned")
    for change in (
        {"heads": document["heads"][1:]},
        {"format": "x"},
        {"more": 1},
        {"public": "ab" * 32},
    ):
        with pytest.raises((IntegrityFault, InvalidConfig)):
            read_receipt(canonical({**document, **change}), "changed")


@pytest.mark.rule("E-3")
@pytest.mark.guarantee("G19")
def test_the_settings_have_it_sealed_elsewhere_whenever_something_happened(store_url, tmp_path):
    (tmp_path / "onceward.toml").write_text('[seal]\nfile = "kept.seal"\n')
    workspace = Workspace(tmp_path / ".onceward", store_url=store_url, principal="tester")
    workspace.create()
    something_happens(workspace)
    kept = tmp_path / "kept.seal"
    first = kept.read_bytes()
    assert workspace.verify([], None).faults == []
    workspace.kernel().close()
    assert kept.read_bytes() == first
    something_happens(workspace)
    second = read_receipt(kept.read_bytes(), "kept")
    assert follows(read_receipt(first, "first"), second)
    assert workspace.verify([], None).checked["seals"] == 2
    with workspace.reading() as store:
        assert [
            c.status
            for c in examine_store(
                store, [], lambda: workspace.verify([], None), workspace.seal_file
            )
            if c.name == "seal"
        ] == ["ok"]
    # What cannot be sealed there stays as it was: nothing is lost, and doctor tells.
    kept.write_bytes(b"nonsense")
    something_happens(workspace)
    assert kept.read_bytes() == b"nonsense"
    with workspace.reading() as store:
        assert [
            c.status
            for c in examine_store(
                store, [], lambda: workspace.verify([], None), workspace.seal_file
            )
            if c.name == "seal"
        ] == ["warn"]
