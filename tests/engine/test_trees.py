"""A tree as a change sees it: files by content and mode, and nothing that leads out of it (H-2, H-5)."""

from __future__ import annotations

import hashlib
import os

import pytest

from onceward.engine.trees import difference, inside, look, scan
from onceward.errors import InvalidConfig
from onceward.kernel.changes import Unit
from onceward.lifecycles.change import Manifest, checked


def sha(text):
    return hashlib.sha256(text.encode()).hexdigest()


def fill(folder, **files):
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o644)
    return folder


@pytest.mark.rule("H-2")
def test_a_difference_is_exactly_what_has_to_become_what(tmp_path):
    base = fill(tmp_path / "base", same="1", changed="1", gone="1", sub__deep__x="1", mode="1")
    tree = fill(tmp_path / "tree", same="1", changed="2", new="3", sub__deep__x="1", mode="1")
    (tree / "mode").chmod(0o755)
    fill(tree, **{".git__config": "x", "sub__.onceward__db": "y"})
    units = difference(scan(base), scan(tree))
    assert units == [
        Unit("changed", sha("1"), sha("2"), 0o644, 0o644),
        Unit("gone", sha("1"), None, 0o644, None),
        Unit("mode", sha("1"), sha("1"), 0o644, 0o755),
        Unit("new", None, sha("3"), None, 0o644),
    ]
    assert checked(Manifest("tree", "repo", tuple(units))).unit == tuple(units)
    assert difference(scan(base), scan(base)) == []


@pytest.mark.rule("H-5")
def test_what_is_no_file_is_refused(tmp_path):
    tree = fill(tmp_path / "tree", a="1")
    (tree / "link").symlink_to("a")
    with pytest.raises(InvalidConfig, match="link is a link"):
        scan(tree)
    (tree / "link").unlink()
    os.mkfifo(tree / "pipe")
    with pytest.raises(InvalidConfig, match="neither file nor folder"):
        scan(tree)
    (tree / "pipe").unlink()
    (tmp_path / "alias").symlink_to(tree)
    for odd in (tmp_path / "alias", tmp_path / "absent", tree / "a"):
        with pytest.raises(InvalidConfig, match="no folder"):
            scan(odd)
    (tree / "swapped").symlink_to("/etc/passwd")
    with pytest.raises(InvalidConfig):
        look(tree / "swapped")


@pytest.mark.rule("H-5")
def test_no_path_leads_out_of_the_tree(tmp_path):
    tree = fill(tmp_path / "tree", sub__a="1")
    (tmp_path / "outside").mkdir()
    (tree / "way").symlink_to(tmp_path / "outside")
    assert inside(tree, "sub/new/file") == tree / "sub/new/file"
    for path in ("way/x", "sub/a/x", "way/deeper/x"):
        with pytest.raises(InvalidConfig, match="would leave the tree"):
            inside(tree, path)
