"""Bundles: one file, the same bytes wherever the rows are, checkable by anybody; any change is found (E-2)."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import random
import shutil
import tarfile
import uuid

import apsw
import check_bundle
import pytest
import rfc8785
from securesystemslib.dsse import Envelope as TheirEnvelope
from securesystemslib.signer import SSlibKey

from conftest import schema_url
from onceward.core.canon import canonical
from onceward.errors import IntegrityFault, InvalidConfig, OncewardError
from onceward.evidence.bundle_check import verify_bundle
from onceward.maintenance.backup import backup, restore
from onceward.people.signing import SigningKey
from onceward.workspace import Workspace
from scene import copied, files_of, others_say, packed, plan, seal
from sites import Site

SEED = int(os.environ.get("ONCEWARD_SEED", "1"))
EVERY = int(os.environ.get("ONCEWARD_TAMPER", "101"))


@pytest.fixture(scope="module")
def scene(template, tmp_path_factory):
    workspace = copied(template, tmp_path_factory.mktemp("bundles"), "sqlite")
    workspace.receipt = seal(workspace)
    return workspace


@pytest.fixture(scope="module")
def bundle(scene, tmp_path_factory):
    path = tmp_path_factory.mktemp("out") / "b.tar"
    scene.export(scene.ids["approved"], path, True)
    return path


@pytest.mark.rule("E-2")
def test_every_kind_of_build_is_exported_and_found_sound_by_us_and_by_others(scene, tmp_path):
    for name, build in scene.ids.items():
        path = tmp_path / f"{name}.tar"
        _, page = scene.export(build, path, True)
        found = verify_bundle(path)
        assert found.faults == [], name
        saga, change = name.startswith("saga "), name.startswith("change ")
        signed = found.checked["signatures"]
        assert found.checked["events"] > 5 and page.kind == (
            "saga" if saga else "entry" if change else "build"
        )
        assert signed >= (name == "saga done" if saga else 6 if change else name != "reused")
        if change:
            assert found.checked["changes"] == 1 and found.checked["change_sets"] == (
                1 if name == "change done" else 2
            )
            assert any("signed by vic" in note for note in found.notes)
        if saga:
            assert found.checked["sagas"] == 1 and found.checked.get("grants", 0) == (
                name == "saga done"
            )
        assert others_say(path)[0] == 0
        assert path.stat().st_mode & 0o077 == 0


@pytest.mark.rule("E-2")
def test_the_session_of_a_command_is_exported_too(scene, tmp_path):
    from onceward.dispatch.work import Command

    kernel = scene.kernel()
    try:
        children = kernel.open_session("ses_hand", 1)
        (child,) = children.spawn([Command(argv=("echo", "hi"), cwd=tmp_path)])
        assert children.wait(child).reason == "completed"
    finally:
        kernel.close()
    path = tmp_path / "s.tar"
    _, page = scene.export("ses_hand", path, True)
    assert (page.kind, page.workspace) == ("session", "") and verify_bundle(path).faults == []
    assert others_say(path)[0] == 0
    seal(scene)
    sealed = tmp_path / "sealed.tar"
    _, page = scene.export("ses_hand", sealed, True)
    assert page.workspace and verify_bundle(sealed).checked["seals"] == 1


@pytest.mark.rule("E-2")
def test_a_bundle_of_a_workspace_where_nothing_was_approved_or_sealed_is_signed_all_the_same(
    tmp_path,
):
    workspace = Workspace(tmp_path / ".onceward", store_url="sqlite", principal="tester")
    workspace.create()
    site = Site(workspace, tmp_path)
    assert site.run(plan())["state"] == "SUCCESS"
    path = tmp_path / "b.tar"
    workspace.export(site.build_id, path, True)
    found = verify_bundle(path)
    assert found.faults == [] and (found.checked["signatures"], found.checked["keys"]) == (1, 1)
    assert others_say(path)[0] == 0


@pytest.mark.rule("E-2", "K-12")
@pytest.mark.guarantee("G27")
def test_the_same_rows_make_the_same_bytes_in_any_folder_and_on_any_store(
    scene, bundle, tmp_path, postgres_url
):
    again = tmp_path / "again.tar"
    scene.export(scene.ids["approved"], again, True)
    assert again.read_bytes() == bundle.read_bytes()
    with scene.reading() as store:
        backup(store, tmp_path / "rows.db", scene.new_file, scene.old_file)
    for number, url in enumerate(
        ("sqlite", schema_url(postgres_url, f"moved{uuid.uuid4().hex[:12]}"))
    ):
        folder = tmp_path / f"other{number}" / ".onceward"
        folder.parent.mkdir()
        elsewhere = Workspace(folder, store_url=url, principal="somebody")
        restore(tmp_path / "rows.db", elsewhere.old_file, elsewhere.empty_store)
        shutil.copytree(scene.folder / "artifacts", folder / "artifacts", dirs_exist_ok=True)
        moved = tmp_path / f"moved{number}.tar"
        elsewhere.export(scene.ids["approved"], moved, True)
        assert moved.read_bytes() == bundle.read_bytes()


@pytest.mark.rule("E-2", "K-1")
def test_every_line_is_the_bytes_that_rfc8785_makes_and_every_envelope_is_one_for_securesystemslib(
    bundle,
):
    files = files_of(bundle)
    texts = [files["bundle.json"], files["seal.json"]]
    texts += [
        line
        for name, data in files.items()
        if name.endswith(".ndjson")
        for line in data.splitlines()
    ]
    for text in texts:
        assert rfc8785.dumps(json.loads(text)) == text
    keys = {
        key["fingerprint"]: SSlibKey(
            key["fingerprint"], "ed25519", "ed25519", {"public": key["public_key"]}
        )
        for key in map(json.loads, files["keys.ndjson"].splitlines())
    }
    envelopes = [json.loads(line)["envelope"] for line in files["signatures.ndjson"].splitlines()]
    envelopes.append(json.loads(files["seal.json"])["envelope"])
    assert len(envelopes) == 6
    for envelope in envelopes:
        keyid = envelope["signatures"][0]["keyid"]
        assert list(TheirEnvelope.from_dict(envelope).verify([keys[keyid]], 1)) == [keyid]


@pytest.mark.rule("E-2")
def test_what_is_exported_is_in_the_order_that_the_contract_says(bundle):
    files = files_of(bundle)
    events = [json.loads(line) for line in files["events.ndjson"].splitlines()]
    assert [(e["stream_id"], e["seq"]) for e in events] == sorted(
        (e["stream_id"], e["seq"]) for e in events
    )
    tokens = [json.loads(line) for line in files["tokens.ndjson"].splitlines()]
    assert [t["dispatch_seq"] for t in tokens] == sorted(t["dispatch_seq"] for t in tokens)
    assert {t["schema"] for t in tokens} == {"scheduler_dispatch_token@1"}
    with tarfile.open(bundle) as tar:
        assert all((m.mtime, m.uid, m.gid, m.mode) == (0, 0, 0, 0o644) for m in tar)
    assert b"owner" not in files["tokens.ndjson"] and b"pid" not in files["tokens.ndjson"]


@pytest.mark.rule("E-1", "E-2")
@pytest.mark.guarantee("G19")
def test_any_flipped_byte_of_a_bundle_is_found(bundle, tmp_path):
    whole = bundle.read_bytes()
    other = tmp_path / "b.tar"
    chance = random.Random(SEED)
    places = set(range(chance.randrange(EVERY), len(whole), EVERY)) | {
        0,
        len(whole) - 1,
        len(whole) - 1100,
    }
    for place in sorted(places):
        other.write_bytes(
            whole[:place] + bytes([whole[place] ^ 1 << chance.randrange(8)]) + whole[place + 1 :]
        )
        # A byte of the workspace's name on the first page is found by the signatures, which are for another one.
        assert {fault.rule for fault in verify_bundle(other).faults} & {"bundle", "signature"}, (
            place
        )


@pytest.mark.rule("E-1", "E-2")
@pytest.mark.guarantee("G19")
def test_a_bundle_cut_short_or_made_longer_is_found(bundle, tmp_path):
    whole = bundle.read_bytes()
    other = tmp_path / "b.tar"
    for data in (
        whole[:-1],
        whole[:-512],
        whole[: len(whole) // 2],
        whole[:512],
        b"",
        whole + b"\0",
        whole + bytes(512),
    ):
        other.write_bytes(data)
        assert not verify_bundle(other).ok


LINES = {
    "events.ndjson": {"gap", "chain", "copy", "signature", "key", "history"},
    "tokens.ndjson": {"phase", "checkpoint"},
    "checkpoints.ndjson": {"checkpoint", "manifest"},
    "debits.ndjson": {"totals", "gap"},
    "totals.ndjson": {"totals"},
    "plans.ndjson": {"plan"},
    "approvals.ndjson": {"approval"},
    "refs.ndjson": {"ref"},
    "artifacts.ndjson": {"ref", "artifact", "bundle"},
    "keys.ndjson": {"key", "signature", "seal"},
    "signatures.ndjson": {"signature"},
    "builds.ndjson": {"state"},
    "sessions.ndjson": {"state"},
    "manifest.ndjson": {"manifest"},
}
"""What is found when a line is gone."""


@pytest.mark.rule("E-1", "E-2")
@pytest.mark.guarantee("G19")
@pytest.mark.parametrize("name", LINES)
def test_lines_dropped_doubled_or_swapped_are_found_though_the_first_page_was_made_to_agree(
    bundle, tmp_path, name
):
    files = files_of(bundle)
    lines = files[name].splitlines(keepends=True)
    assert lines

    def found(other):
        path = packed(tmp_path / "b.tar", {**files, name: b"".join(other)})
        return {fault.rule for fault in verify_bundle(path).faults}

    for number, line in enumerate(lines):
        before, after = lines[:number], lines[number + 1 :]
        if b'"total":0}' not in line:
            assert found([*before, *after]) & LINES[name], number
        assert found([*before, line, line, *after]) & {"bundle", "gap", "manifest"}, number
        if after:
            assert found([*before, after[0], line, *after[1:]]) & {"bundle", "gap", "manifest"}, (
                number
            )


def changed_cells(files):
    """Every column of every row of a lifecycle with another value: its file, the column, and the file's lines then."""
    for name in sorted(check_bundle.ROWS.keys() & files.keys()):
        lines = files[name].splitlines()
        for number, line in enumerate(lines):
            row = json.loads(line)
            for column, value in row.items():
                other = value + 1 if isinstance(value, int) else f"{value}x"
                changed = canonical({**row, column: other})
                yield name, column, b"\n".join([*lines[:number], changed, *lines[number + 1 :]])


@pytest.mark.rule("E-1", "E-2")
@pytest.mark.guarantee("G19")
@pytest.mark.parametrize("count", [15, pytest.param(500, marks=pytest.mark.thorough)])
def test_no_column_of_a_row_in_a_bundle_is_changed_unnoticed_by_us_or_by_others(
    scene, tmp_path, count
):
    cells = []
    for name, subject in scene.ids.items():
        path = tmp_path / f"{name}.tar"
        scene.export(subject, path, True)
        files = files_of(path)
        cells += [(files, cell) for cell in changed_cells(files)]
    assert len({(cell[0], cell[1]) for _, cell in cells}) > 80
    for files, (name, column, data) in random.Random(SEED).sample(cells, min(count, len(cells))):
        path = packed(tmp_path / "b.tar", {**files, name: data + b"\n"})
        assert verify_bundle(path).faults, (name, column)
        with pytest.raises(SystemExit) as gone:
            check_bundle.main(path, ())
        assert gone.value.code == 5, (name, column)


@pytest.mark.rule("E-1", "E-2")
def test_a_file_that_is_gone_or_new_is_found_though_the_first_page_was_made_to_agree(
    bundle, tmp_path
):
    files = files_of(bundle)
    for name in files:
        if name in ("bundle.json", "README.md", "permits.ndjson", "seal.json", "manifest.ndjson"):
            continue
        rest = {n: d for n, d in files.items() if n != name}
        assert not verify_bundle(packed(tmp_path / "b.tar", rest)).ok, name
    extra = {**files, f"artifacts/{hashlib.sha256(b'x').hexdigest()}": b"x"}
    assert [f.rule for f in verify_bundle(packed(tmp_path / "b.tar", extra)).faults] == ["bundle"]
    for page in (
        {"subject": "bld_other"},
        {"kind": "session"},
        {"workspace": "wsp_other"},
        {"format": "x"},
        {"more": 1},
    ):
        assert not verify_bundle(packed(tmp_path / "b.tar", files, page)).ok, page


@pytest.mark.rule("E-2", "E-4")
@pytest.mark.guarantee("G18")
def test_a_bundle_signed_anew_with_another_key_is_found_by_whoever_knows_the_key(
    scene, bundle, tmp_path
):
    """Keys and signatures replaced, and every event that speaks of them made to agree."""
    files = files_of(bundle)
    keys = [json.loads(line) for line in files["keys.ndjson"].splitlines()]
    trusted = [key["fingerprint"] for key in keys]
    assert verify_bundle(bundle, trusted=trusted).ok
    assert verify_bundle(bundle, trusted=[key[:16] for key in trusted]).ok
    assert others_say(bundle, *trusted)[0] == 0
    found = verify_bundle(bundle, trusted=trusted[:1])
    assert {fault.rule for fault in found.faults} == {"signature"}
    assert others_say(bundle, trusted[0])[0] == 5
    with pytest.raises(InvalidConfig, match="at least 16"):
        verify_bundle(bundle, trusted=["abc"])
    forger = SigningKey.generate()
    lines = []
    for line in map(json.loads, files["signatures.ndjson"].splitlines()):
        forged = forger.sign(base64.b64decode(line["envelope"]["payload"]))
        lines.append(canonical({"envelope": forged.document(), "seq": line["seq"]}) + b"\n")
    forged_keys = b"".join(
        canonical({**key, "fingerprint": forger.fingerprint, "public_key": forger.public.hex()})
        + b"\n"
        for key in keys[:1]
    )
    path = packed(
        tmp_path / "b.tar",
        {**files, "signatures.ndjson": b"".join(lines), "keys.ndjson": forged_keys},
    )
    assert {fault.rule for fault in verify_bundle(path).faults} >= {"signature", "key"}


@pytest.mark.rule("E-2", "E-3")
def test_a_bundle_is_held_against_a_seal_that_was_kept(scene, bundle, tmp_path):
    kept = tmp_path / "kept.seal"
    kept.write_bytes(canonical(scene.receipt.document()))
    assert verify_bundle(bundle, seals=[kept]).faults == []
    other = Workspace(tmp_path / "w" / ".onceward", store_url="sqlite", principal="tester")
    other.folder.parent.mkdir()
    other.create()
    other.kernel().close()
    kept.write_bytes(canonical(seal(other).document()))
    assert [fault.rule for fault in verify_bundle(bundle, seals=[kept]).faults] == ["seal"]


@pytest.mark.rule("E-2")
def test_digests_alone_leave_the_bytes_out_and_say_so(scene, tmp_path):
    path = tmp_path / "d.tar"
    _, page = scene.export(scene.ids["approved"], path, False)
    assert page.artifacts == "digests" and not any(
        name.startswith("artifacts/") for name in files_of(path)
    )
    assert verify_bundle(path).faults == [] and others_say(path)[0] == 0


@pytest.mark.rule("E-2", "K-11")
def test_an_export_never_overwrites_and_leaves_nothing_half_done(scene, tmp_path):
    path = tmp_path / "b.tar"
    path.write_text("mine")
    with pytest.raises(InvalidConfig, match="never overwrites"):
        scene.export(scene.ids["approved"], path, True)
    assert path.read_text() == "mine"
    for subject in ("bld_nothing", "nothing", ""):
        with pytest.raises(OncewardError, match="there is no"):
            scene.export(subject, tmp_path / "c.tar", True)
    with pytest.raises(InvalidConfig, match="not a folder"):
        scene.export(scene.ids["approved"], tmp_path / "no" / "c.tar", True)
    assert [p.name for p in tmp_path.iterdir()] == ["b.tar"]


@pytest.mark.rule("E-2")
@pytest.mark.guarantee("G20")
def test_a_bundle_with_a_broken_artifact_is_not_made(scene, tmp_path):
    shutil.copytree(scene.folder.parent, tmp_path / "copy")
    copied = Workspace(tmp_path / "copy" / ".onceward", store_url="sqlite", principal="tester")
    connection = apsw.Connection(str(copied.folder / "onceward.db"))
    connection.execute("UPDATE artifacts SET data = x'00' WHERE data IS NOT NULL")
    connection.close()
    with pytest.raises(IntegrityFault):
        copied.export(scene.ids["approved"], tmp_path / "b.tar", True)
    assert not (tmp_path / "b.tar").exists() and not list(tmp_path.glob(".b.tar*"))
    copied.export(scene.ids["approved"], tmp_path / "d.tar", False)
    assert verify_bundle(tmp_path / "d.tar").ok


@pytest.mark.rule("E-2", "K-11")
@pytest.mark.parametrize("data", [b"", b"x" * 511, bytes(2048), b"not a tar" * 200])
def test_what_is_no_bundle_is_said_to_be_none(tmp_path, data):
    path = tmp_path / "x"
    path.write_bytes(data)
    assert [fault.rule for fault in verify_bundle(path).faults] == ["bundle"]
    hostile = io.BytesIO()
    with tarfile.open(fileobj=hostile, mode="w") as tar:
        told = tarfile.TarInfo("../../bundle.json")
        told.size = 1 << 40
        tar.addfile(told)
    path.write_bytes(hostile.getvalue())
    assert [fault.rule for fault in verify_bundle(path).faults] == ["bundle"]
