"""A tree as a change sees it: files by content and mode, and nothing that leads out of it (H-2, H-5)."""

from __future__ import annotations

import hashlib
import os

import pytest

from backlog import write
from onceward.artifacts.trees import ODD, File, Tree, difference, listing, scan
from onceward.changes.manifest import Manifest
from onceward.changes.rules import require_manifest
from onceward.core.changes import LINK, Unit
from onceward.errors import BaseDrift, InvalidConfig


def sha(text):
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.rule("H-2")
def test_a_difference_is_exactly_what_has_to_become_what(tmp_path):
    base = write(
        tmp_path / "base",
        {"same": "1", "changed": "1", "gone": "1", "sub/deep/x": "1", "mode": "1"},
    )
    tree = write(
        tmp_path / "tree", {"same": "1", "changed": "2", "new": "3", "sub/deep/x": "1", "mode": "1"}
    )
    (tree / "mode").chmod(0o755)
    write(tree, {".git/config": "x", "sub/.onceward/db": "y", "sub/__pycache__/z.pyc": "z"})
    ignore = ("__pycache__",)
    units = difference(scan(base), scan(tree, ignore))
    assert units == [
        Unit("changed", sha("1"), sha("2"), 0o644, 0o644),
        Unit("gone", sha("1"), None, 0o644, None),
        Unit("mode", sha("1"), sha("1"), 0o644, 0o755),
        Unit("new", None, sha("3"), None, 0o644),
    ]
    assert require_manifest(Manifest("tree", "repo", tuple(units))).unit == tuple(units)
    assert difference(scan(base), scan(base)) == []
    assert listing(tree, ignore) == ["changed", "mode", "new", "same", "sub/deep/x"]


@pytest.mark.rule("H-5")
def test_what_is_no_file_is_refused_and_links_unless_they_are_meant(tmp_path):
    tree = write(tmp_path / "tree", {"a": "1", "sub/b": "2"})
    (tree / "sub" / "link").symlink_to("../a")
    with pytest.raises(InvalidConfig, match="sub/link is a link"):
        scan(tree)
    assert scan(tree, links=True)["sub/link"] == File(sha("../a"), LINK)
    for outside in ("/etc/passwd", "../../x", ".."):
        (tree / "odd").symlink_to(outside)
        with pytest.raises(InvalidConfig, match="leads out of the tree"):
            scan(tree, links=True)
        (tree / "odd").unlink()
    (tree / "sub" / "link").unlink()
    os.mkfifo(tree / "pipe")
    with pytest.raises(InvalidConfig, match="no file that can be read"):
        scan(tree)
    with Tree(tree) as found:
        assert found.look("pipe") == ODD and found.look("sub") is None
    (tmp_path / "alias").symlink_to(tree)
    for odd in (tmp_path / "alias", tmp_path / "absent", tree / "a"):
        with pytest.raises(InvalidConfig, match="no folder"):
            scan(odd)


@pytest.mark.rule("H-5")
@pytest.mark.guarantee("G20")
def test_no_step_leads_out_of_the_tree(tmp_path):
    tree = write(tmp_path / "tree", {"sub/a": "1", "staged": "mine"})
    outside = write(tmp_path / "outside", {"x": "theirs"})
    (tree / "way").symlink_to(outside)
    with Tree(tree) as found:
        assert found.look("sub/new/file") is None and found.look("sub/a/x") is None
        for path in ("way/x", "way/deeper/x"):
            assert found.look(path) == ODD
            for act in (
                found.remove,
                lambda path: found.put(found, "staged", path),
                lambda path: found.write(path, [b"mine"], 0o644),
                found.make,
            ):
                with pytest.raises(BaseDrift, match="leads out of the tree"):
                    act(path)
        with pytest.raises(BaseDrift, match="leads out of the tree"):
            found.put(found, "staged", "sub/a/x")
    assert (outside / "x").read_text() == "theirs" and (tree / "staged").read_text() == "mine"
    assert sorted(path.name for path in outside.iterdir()) == ["x"]


@pytest.mark.rule("H-5")
def test_folders_come_and_go_with_their_files(tmp_path):
    tree = write(
        tmp_path / "tree", {"one": "1", "deep/er/two": "2", "kept/three": "3", "kept/four": "4"}
    )
    with Tree(tree) as found:
        found.put(found, "one", "fresh/folder/one")
        assert (tree / "fresh/folder/one").read_text() == "1"
        found.remove("deep/er/two")
        found.remove("kept/three")
        assert not (tree / "deep").exists() and (tree / "kept/four").exists()
        with Tree(tree / "fresh/folder") as staging:
            with pytest.raises(BaseDrift, match="is a folder now"):
                found.put(staging, "one", "kept")
            found.remove("kept/four")
            (tree / "kept").mkdir()
            found.put(staging, "one", "kept")
    assert (tree / "kept").read_text() == "1"
