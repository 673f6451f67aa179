"""Outputs: everything a build made, whole or not at all, the same bytes each time (B-13)."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from onceward import Plan
from onceward.builds.output import write_output
from onceward.core import faults
from onceward.errors import IntegrityFault, InvalidConfig, NotFound

pytestmark = pytest.mark.rule("B-13")


def plan(site):
    made = Plan("made", folder=site.folder)
    made.stage(name="text", targets=["a", "b c/ü"], version="1")(
        lambda task: f"text of {task.target}"
    )
    made.stage(name="bytes", needs="text", version="1")(
        lambda task: {"x.bin": b"\0\xff\r\n", "text": task.target}
    )
    return made


def write(site, build, project="p", to=None):
    with site.workspace.artifacts() as kept:
        return write_output(kept, build, site.workspace.folder / "output", project, to)


def tree(folder, but=("HANDOFF.md", "handoff.html")):
    found = (
        path for path in sorted(Path(folder).rglob("*")) if path.is_file() and path.name not in but
    )
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def test_an_output_has_every_file_a_manifest_checksums_and_a_page(site):
    site.run(plan(site))
    written = write(site, site.build_id)
    folder = Path(written.folder)
    assert (folder.parent / "current").resolve() == folder
    manifest = json.loads((folder / "manifest.json").read_text())
    paths = [entry["path"] for entry in manifest["files"]]
    assert paths == sorted(paths) and "bytes/b c/ü/x.bin" in paths and written.files == 6
    assert set(manifest["files"][0]) == {
        "path",
        "mode",
        "bytes",
        "sha256",
        "kind",
        "stage",
        "target",
    }
    assert (folder / "files" / "bytes/a/x.bin").read_bytes() == b"\0\xff\r\n"
    checked = subprocess.run(
        ["sha256sum", "--check", "SHA256SUMS"], cwd=folder, capture_output=True, text=True
    )
    assert checked.returncode == 0 and checked.stdout.count(": OK") == 6
    page = (folder / "HANDOFF.md").read_text()
    assert "made" in page and "cost 0.00 usd" in page and written.manifest_sha256 in page
    assert "<script" not in (folder / "handoff.html").read_text()


@pytest.mark.rule("B-5")
def test_interrupted_and_uninterrupted_builds_give_the_same_bytes(site):
    site.run(plan(site), reuse=False)
    whole = write(site, site.build_id)
    build = site.crash(plan(site), nth=8, reuse=False)
    site.resume(plan(site), build, reuse=False)
    again = write(site, build)
    assert again.manifest_sha256 == whole.manifest_sha256 and tree(again.folder) == tree(
        whole.folder
    )
    assert write(site, build) == again


@pytest.mark.parametrize("project", ["../up", "a/b", "", ".", "..", "-x", "x" * 65, "a..b", "a\0b"])
def test_a_bad_project_name_is_refused_and_leaves_nothing(site, project):
    site.run(plan(site))
    with pytest.raises(InvalidConfig, match="no name for a project"):
        write(site, site.build_id, project)
    assert not (site.workspace.folder / "output").exists()


def test_links_on_the_way_are_refused(site, tmp_path):
    site.run(plan(site))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (site.workspace.folder / "output").symlink_to(elsewhere)
    with pytest.raises(InvalidConfig, match="a link or a file"):
        write(site, site.build_id)
    (site.workspace.folder / "output").unlink()
    (site.workspace.folder / "output").mkdir()
    (site.workspace.folder / "output" / "p").symlink_to(elsewhere)
    with pytest.raises(InvalidConfig, match="a link or a file"):
        write(site, site.build_id)
    assert list(elsewhere.iterdir()) == []


def test_a_folder_that_is_there_is_not_written_over(site, tmp_path):
    site.run(plan(site))
    with pytest.raises(InvalidConfig, match="is there already"):
        write(site, site.build_id, to=tmp_path)
    with pytest.raises(InvalidConfig, match="no folder to be in"):
        write(site, site.build_id, to=tmp_path / "no" / "where")
    assert tree(write(site, site.build_id, to=tmp_path / "new").folder)
    with pytest.raises(NotFound):
        write(site, "bld_nothing")


@pytest.mark.parametrize("point", ["output.staged", "output.moved", "output.pointed"])
def test_a_crash_leaves_the_old_or_the_new_never_a_mix(site, point):
    site.run(plan(site))
    old = write(site, site.build_id)
    other = Plan("made", folder=site.folder)
    other.stage(name="text", targets=["z"], version="1")(lambda task: "new")
    site.run(other)
    with faults.armed(point, 1, faults.crash), pytest.raises(faults.SimulatedCrash):
        write(site, site.build_id)
    current = Path(old.folder).parent / "current"
    listed = [
        entry["path"] for entry in json.loads((current / "manifest.json").read_text())["files"]
    ]
    there = sorted(
        path.removeprefix("files/") for path in tree(current) if path.startswith("files/")
    )
    assert there == listed and (len(listed) == 1) is (point == "output.pointed")
    new = write(site, site.build_id)
    assert current.resolve() == Path(new.folder) and set(tree(new.folder)) >= {
        "files/text/z/value.txt"
    }


def test_a_damaged_artifact_or_output_is_found(site):
    site.run(plan(site))
    written = write(site, site.build_id)
    victim = Path(written.folder) / "files" / "bytes/a/x.bin"
    victim.write_bytes(b"other")
    with pytest.raises(IntegrityFault):
        write(site, site.build_id)
    kernel = site.workspace.kernel()
    kernel.artifacts.spill()
    kernel.close()
    digest = next(s for s in site.status()["steps"])["artifacts"][0]["sha256"]
    path = site.workspace.folder / "artifacts" / digest[:2] / digest
    path.chmod(0o600)
    path.write_bytes(b"rotten")
    with pytest.raises(IntegrityFault):
        write(site, site.build_id, "other")
    assert list((site.workspace.folder / "output" / "other").iterdir()) == []
