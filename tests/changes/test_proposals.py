"""What somebody proposes, from whatever they have: a folder, a patch, a build's outputs (H-2)."""

from __future__ import annotations

import random
import shutil
import subprocess

import pytest

from backlog import write
from onceward.changes.patches import read_patch
from onceward.changes.proposals import Wish, from_build, from_contents, from_folder, from_patch
from onceward.core.changes import LINK, Policy, Unit
from onceward.errors import BaseDrift, InvalidConfig

GIT = ("git", "-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "core.fileMode=true")


def git(folder, *words):
    return subprocess.run([*GIT, *words], cwd=folder, check=True, capture_output=True).stdout


def wish(folder, **words):
    return Wish(folder, "repo", **words)


def made(proposal):
    """What the tree becomes, by the proposal's own contents: text by path, None for what goes."""
    return {
        unit.path: None
        if unit.after is None
        else b"".join(proposal.contents[unit.after]()).decode()
        for unit in proposal.manifest.unit
    }


@pytest.mark.rule("H-2")
def test_a_folder_says_all_of_it(tmp_path):
    tree = write(tmp_path / "repo", {"a": "1", "b": "2", "sub/c": "3"})
    wanted = write(tmp_path / "wanted", {"a": "1", "b": "changed", "new": "4"})
    (wanted / "a").chmod(0o755)
    (wanted / "l").symlink_to("a")
    with pytest.raises(InvalidConfig, match="--links"):
        from_folder(wish(tree), wanted)
    proposal = from_folder(wish(tree, links=True, check=("true",)), wanted)
    assert made(proposal) == {"a": "1", "b": "changed", "l": "a", "new": "4", "sub/c": None}
    assert [unit.after_mode for unit in proposal.manifest.unit] == [0o755, 0o644, LINK, 0o644, None]
    assert proposal.manifest.check == ("true",) and proposal.manifest.base == ""
    assert (
        len(from_folder(wish(tree, links=True, policy=Policy(drift="tree")), wanted).manifest.base)
        == 64
    )
    with pytest.raises(InvalidConfig, match="nothing to change"):
        from_folder(wish(tree), tree)


PATCHES = {
    "changed": ({"a.txt": "1\n2\n3\n"}, {"a.txt": "1\ntwo\n3\n"}),
    "made": ({"a.txt": "1\n"}, {"a.txt": "1\n", "new/b.txt": "x\ny\n"}),
    "removed": ({"a.txt": "1\n", "b.txt": "2\n"}, {"a.txt": "1\n"}),
    "renamed": ({"a.txt": "1\n2\n3\n4\n5\n"}, {"sub/z.txt": "1\n2\n3\n4\nfive\n"}),
    "no newline": ({"a.txt": "1\n2"}, {"a.txt": "1\n2\n3"}),
    "newline gained": ({"a.txt": "1\n2"}, {"a.txt": "1\n2\n"}),
    "carriage returns": ({"a.txt": "1\r\n2\r\n"}, {"a.txt": "1\r\n3\r\n"}),
    "emptied": ({"a.txt": "1\n"}, {"a.txt": ""}),
    "empty made": ({"a.txt": "1\n"}, {"a.txt": "1\n", "e": ""}),
    "far apart": (
        {"a.txt": "".join(f"{n}\n" for n in range(100))},
        {"a.txt": "x\n" + "".join(f"{n}\n" for n in range(99))},
    ),
    "odd name": ({"a b.txt": "1\n", 'ü"x.txt': "1\n"}, {"a b.txt": "2\n", 'ü"x.txt': "2\n"}),
    "blank lines": ({"a.txt": "1\n\n\n2\n"}, {"a.txt": "1\n\n2\n"}),
    "looks like a patch": (
        {"a.txt": "--- a\n+++ b\n@@ -1 +1 @@\n"},
        {"a.txt": "--- a\n+++ c\n@@ -1 +1 @@\n"},
    ),
}


@pytest.mark.rule("H-2")
@pytest.mark.parametrize("name", PATCHES)
def test_what_git_writes_is_taken_exactly(tmp_path, name):
    before, after = PATCHES[name]
    tree = write(tmp_path / "repo", before)
    git(tree, "init", "-q")
    git(tree, "add", "-A")
    git(tree, "commit", "-qm", "x")
    for path in before.keys() - after.keys():
        (tree / path).unlink()
    write(tree, after)
    git(tree, "add", "-A")
    patch = git(tree, "diff", "--cached", "-M")
    git(tree, "reset", "-q", "--hard")
    found = made(from_patch(wish(tree), patch))
    assert {**before, **found} == {**dict.fromkeys(before), **after} | {
        k: None for k in before if k not in after
    }


@pytest.mark.rule("H-2")
def test_modes_and_plain_diffs_are_taken_too(tmp_path):
    tree = write(tmp_path / "repo", {"a.txt": "1\n", "run.sh": "x\n"})
    patch = b"diff --git a/run.sh b/run.sh\nold mode 100644\nnew mode 100755\n"
    (unit,) = from_patch(wish(tree), patch).manifest.unit
    assert (unit.before_mode, unit.after_mode, unit.before) == (0o644, 0o755, unit.after)
    for old, new in (
        ("old/a.txt\t2020-01-01", "new/a.txt"),
        ("a.txt.orig", "a.txt"),
        ("a/a.txt", "b/a.txt"),
    ):
        patch = f"--- {old}\n+++ {new}\n@@ -1 +1,2 @@\n-1\n+2\n+3\n".encode()
        assert made(from_patch(wish(tree), patch)) == {"a.txt": "2\n3\n"}


@pytest.mark.rule("H-2", "K-11")
@pytest.mark.parametrize(
    ("patch", "error", "why"),
    [
        (b"", InvalidConfig, "no patch"),
        (b"hello\n", InvalidConfig, "no patch"),
        (b"@@ -1 +1 @@\n-1\n+2\n", InvalidConfig, "hunk has no file header"),
        (b"--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-other\n+2\n", BaseDrift, "at line 1"),
        (b"--- a/a.txt\n+++ b/a.txt\n@@ -7 +7 @@\n-1\n+2\n", BaseDrift, "at line 7"),
        (b"--- a/a.txt\n+++ b/a.txt\n@@ -1,2 +1 @@\n-1\n+2\n", InvalidConfig, "ends"),
        (
            b"--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-1\nx\n",
            InvalidConfig,
            "fewer lines than its header",
        ),
        (b"--- a/none\n+++ b/none\n@@ -1 +1 @@\n-1\n+2\n", BaseDrift, "is not there"),
        (b"--- /dev/null\n+++ b/a.txt\n@@ -0,0 +1 @@\n+2\n", BaseDrift, "is there already"),
        (b"--- a/a.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-other\n", BaseDrift, "at line 1"),
        (b"--- a/../x\n+++ b/../x\n@@ -1 +1 @@\n-1\n+2\n", InvalidConfig, "no path inside"),
        (
            b"--- a/.git/config\n+++ b/.git/config\n@@ -1 +1 @@\n-1\n+2\n",
            InvalidConfig,
            "machinery",
        ),
        (
            b"diff --git a/x b/x\nindex 1..2 100644\nGIT binary patch\nliteral 0\n",
            InvalidConfig,
            "binary",
        ),
        (b"diff --git a/x b/x\nnew file mode 120000\n", InvalidConfig, "not mode 120000"),
        (b"--- a/\xff\n+++ b/\xff\n@@ -1 +1 @@\n-1\n+2\n", BaseDrift, "is not there"),
        (2 * b"--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-1\n+2\n", InvalidConfig, "twice"),
        (
            b"--- a/m\n+++ b/m\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n\\ No newline at end of file\n",
            BaseDrift,
            "at line 1",
        ),
        (b"--- a/m\n+++ b/m\n@@ -100,0 +101 @@\n+new\n", BaseDrift, "at line 100"),
        (
            b"--- a/m\n+++ b/m\n@@ -1,1 +1,2 @@\n a\n+x\n+lost\n-b\n",
            InvalidConfig,
            "lines of a hunk do not match its header",
        ),
        (
            b"diff --git a/a.txt b/m\nsimilarity index 100%\nrename from a.txt\nrename to m\n",
            BaseDrift,
            "there already",
        ),
        (
            b"diff --git a/a.txt b/a.txt\n--- a/m\n+++ b/m\n@@ -1 +1 @@\n-a\n+x\n",
            InvalidConfig,
            "both a.txt and m",
        ),
        (b'--- /dev/null\n+++ "b/\\777"\n@@ -0,0 +1 @@\n+x\n', InvalidConfig, "cannot be read"),
        (b'--- /dev/null\n+++ "b/../x"\n@@ -0,0 +1 @@\n+x\n', InvalidConfig, "no path inside"),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_a_patch_that_does_not_fit_is_refused(tmp_path, patch, error, why):
    tree = write(tmp_path / "repo", {"a.txt": "1\n", "m": "a\nb\nd\n"})
    with pytest.raises(error, match=why):
        from_patch(wish(tree), patch)


@pytest.mark.rule("H-2")
@pytest.mark.parametrize(
    ("patch", "expected"),
    [
        (
            b"diff --git c/n i/n\nnew file mode 100644\nindex 0..1\n--- /dev/null\n+++ i/n\n@@ -0,0 +1 @@\n+x\n",
            {"n": "x\n"},
        ),
        (
            b"diff --git n n\nnew file mode 100644\n--- /dev/null\n+++ n\n@@ -0,0 +1 @@\n+x\n",
            {"n": "x\n"},
        ),
        (
            b'diff --git "a/\\303\\251" "b/\\303\\251"\nnew file mode 100644\nindex 0..e69de29\n',
            {"é": ""},
        ),
        (
            b"diff --git a/a.txt b/a.txt\n--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-1\n+2\n"
            b"diff --git a/a.txt b/z\nsimilarity index 100%\ncopy from a.txt\ncopy to z\n",
            {"a.txt": "2\n", "z": "1\n"},
        ),
        (b"diff --git a/a.txt b/m\nrename from a.txt\nrename to z\n", {"a.txt": None, "z": "1\n"}),
        (b"--- /dev/null\n+++ b/src/x\n@@ -0,0 +1 @@\n+x\n-- \n2.39.5\n", {"src/x": "x\n"}),
        (
            b"--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-1\n+one\n--- a/m\n+++ b/m\n@@ -2 +2 @@\n-b\n+c\n",
            {"a.txt": "one\n", "m": "a\nc\nd\n"},
        ),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_whatever_git_can_be_told_to_write_is_taken(tmp_path, patch, expected):
    tree = write(tmp_path / "repo", {"a.txt": "1\n", "m": "a\nb\nd\n"})
    assert made(from_patch(wish(tree), patch)) == expected


def test_patches_at_random_do_what_git_does(tmp_path):
    """The oracle is git: the same diff, applied by both."""
    dice = random.Random(5)
    tree = tmp_path / "repo"
    tree.mkdir()
    git(tree, "init", "-q")
    for number in range(40):
        lines = [
            dice.choice(["", "a", "b", "--- x", "+y", " z", "@@"])
            for _ in range(dice.randrange(20))
        ]
        changed = [line for line in lines if dice.random() > 0.3]
        for _ in range(dice.randrange(4)):
            changed.insert(dice.randrange(len(changed) + 1), dice.choice(["new", "", "-w"]))
        end, other = dice.choice(["", "\n"]), dice.choice(["", "\n"])
        before = "\n".join(lines) + (end if lines else "")
        after = "\n".join(changed) + (other if changed else "")
        if before == after:
            continue
        write(tree, {"f": before})
        git(tree, "add", "-A")
        git(tree, "commit", "-qm", str(number), "--allow-empty")
        write(tree, {"f": after})
        patch = git(tree, "diff", f"-U{dice.randrange(4)}")
        (file,) = read_patch(patch)
        assert file.applied(before.encode()).decode() == after, (before, after, patch)
        git(tree, "checkout", "-q", "f")


@pytest.mark.rule("H-2")
def test_contents_by_path(tmp_path):
    tree = write(tmp_path / "repo", {"a": "1", "b": "2"})
    wanted = {"a": (b"new", 0o644), "b": None, "c/d": (b"3", 0o755)}
    proposal = from_contents(wish(tree), wanted)
    assert made(proposal) == {"a": "new", "b": None, "c/d": "3"}
    with pytest.raises(InvalidConfig):
        from_contents(wish(tree), {"../x": (b"", 0o644)})
    assert isinstance(proposal.manifest.unit[0], Unit)


PLAN = '''
name = "gen"
[[stage]]
name = "draft"
targets = ["a", "b"]
run = ["sh", "-c", "echo $ONCEWARD_TARGET > $ONCEWARD_OUT/draft.txt"]
[[stage]]
name = "code"
collect = ["draft"]
targets = ["all"]
run = ["sh", "-c", """mkdir $ONCEWARD_OUT/src; echo new > $ONCEWARD_OUT/src/main.py; echo same > $ONCEWARD_OUT/same.txt;
  printf '#!/bin/sh\\n' > $ONCEWARD_OUT/run; chmod 755 $ONCEWARD_OUT/run"""]
'''


@pytest.mark.rule("H-2")
def test_a_builds_outputs_become_a_change(site, workspace):
    outcome = site.run(PLAN, jobs=1)
    assert outcome["state"] == "SUCCESS"
    tree = write(
        workspace.folder.parent / "repo",
        {"src/main.py": "old\n", "same.txt": "same\n", "other": "1"},
    )
    (tree / "src/main.py").chmod(0o755)
    with workspace.artifacts() as artifacts:
        proposal = from_build(wish(tree), artifacts, site.build_id, ())
        assert {unit.path: unit.after_mode for unit in proposal.manifest.unit} == {
            "run": 0o755,
            "src/main.py": 0o755,
        }
        with pytest.raises(InvalidConfig, match=r"two steps made a draft\.txt"):
            from_build(wish(tree), artifacts, site.build_id, ["draft"])
        with pytest.raises(InvalidConfig, match="no stage 'other'"):
            from_build(wish(tree), artifacts, site.build_id, ["other"])
        assert made(proposal)["src/main.py"] == "new\n"
        shutil.rmtree(tree / "src")
        write(tree, {"src": "a file"})
        with pytest.raises(InvalidConfig, match="inside the file src"):
            from_build(wish(tree), artifacts, site.build_id, ())
