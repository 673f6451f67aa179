"""What else happened to a tree: before a proposal, between its cut and its verification, and while that runs (H-2, H-6)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading

import msgspec
import pytest

from backlog import write
from helpers import count
from onceward.artifacts.bases import base_of
from onceward.artifacts.file_names import os_path
from onceward.artifacts.tree_state import drift_digest, files_by, state_in, state_of
from onceward.artifacts.trees import scan
from onceward.builds.lifecycle import begin
from onceward.builds.plans import Plan, Resolved
from onceward.changes import staging
from onceward.changes.proposals import from_contents, from_folder, from_patch
from onceward.changes.views import change_view
from onceward.changing import Source, propose
from onceward.core import faults
from onceward.core.views import document
from onceward.errors import BaseDrift, ChildCancelled, InvalidConfig
from typing_in import until

FILES = {"a.txt": "new\n", "sub/d.txt": "more\n"}


def cut(backlog, files=None, **words):
    entry = backlog.approved(files or FILES, **words)
    backlog.cut(entry)
    return entry


def edited(tree):
    (tree / "b.txt").write_text("backdoor\n")


def added(tree):
    write(tree, {"sub/extra/file": "x"})


def gone(tree):
    (tree / "b.txt").unlink()


def program(tree):
    (tree / "b.txt").chmod(0o755)


def linked(tree):
    (tree / "b.txt").unlink()
    (tree / "b.txt").symlink_to("a.txt")


@pytest.mark.rule("H-6")
@pytest.mark.parametrize(
    ("meddle", "path"),
    [
        (edited, "b.txt"),
        (added, "sub/extra/file"),
        (gone, "b.txt"),
        (program, "b.txt"),
        (linked, "b.txt"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_another_file_that_changed_since_the_cut_is_refused_and_undoes_nothing(
    backlog, meddle, path
):
    entry = cut(backlog)
    kept, rows = scan(backlog.tree), backlog.rows()
    meddle(backlog.tree)
    with pytest.raises(BaseDrift, match=path) as refused:
        backlog.verify(entry)
    assert refused.value.context["paths"] == [path] and refused.value.exit_status == 1
    assert backlog.rows() == rows and backlog.status(entry) == "cut_applied"
    assert (backlog.tree / "a.txt").read_text() == "new\n", "what was approved stays"
    shutil.rmtree(backlog.tree / "sub/extra", ignore_errors=True)
    (backlog.tree / "b.txt").unlink(missing_ok=True)
    write(backlog.tree, {"b.txt": "two\n"})
    assert scan(backlog.tree) == kept
    assert backlog.verify(entry).result.passed, "once the files are back it passes"
    backlog.sound()


@pytest.mark.rule("H-6")
def test_drift_is_accepted_by_the_digest_of_exactly_that_and_signed_into_the_result(backlog):
    entry = cut(backlog)
    edited(backlog.tree)
    with pytest.raises(BaseDrift) as refused:
        backlog.verify(entry)
    digest = refused.value.context["drift"]
    assert f"--accept-drift {digest}" in refused.value.recovery[1].command
    added(backlog.tree)
    with pytest.raises(BaseDrift) as other:
        backlog.verify(entry, accept_drift=digest)
    assert other.value.context["count"] == 2
    done = backlog.verify(entry, accept_drift=other.value.context["drift"])
    said = json.loads(done.result.detail)["accepted_drift"]
    assert done.result.passed and said["paths"] == ["b.txt", "sub/extra/file"]
    assert said["digest"] == other.value.context["drift"]
    backlog.sound()


@pytest.mark.rule("H-6")
def test_what_the_tree_itself_ignores_is_no_drift(backlog):
    write(
        backlog.tree,
        {
            ".gitignore": "*.log\n/dist/\n!kept.log\n",
            "sub/.gitignore": "tmp\n",
            "dist/x.js": "1",
            "old.log": "1",
        },
    )
    entry = cut(backlog, check=("sh", "-c", "echo built > dist/y.js; echo t > sub/tmp"))
    write(backlog.tree, {"dist/x.js": "2", "new.log": "2", "sub/tmp": "2", "deep/er/x.log": "3"})
    (backlog.tree / "old.log").unlink()
    assert backlog.verify(entry).result.passed
    second = cut(backlog, {"a.txt": "newer\n"})
    write(backlog.tree, {"kept.log": "counts"})
    with pytest.raises(BaseDrift, match=r"kept\.log"):
        backlog.verify(second)
    (backlog.tree / "kept.log").unlink()
    backlog.verify(second)
    backlog.sound()


@pytest.mark.rule("H-6")
def test_nobody_hides_a_file_by_a_rule_of_their_own(backlog):
    write(backlog.tree, {".gitignore": "*.log\n"})
    entry = cut(backlog)
    write(backlog.tree, {"evil/.gitignore": "*\n", "evil/backdoor.py": "x"})
    with pytest.raises(BaseDrift) as refused:
        backlog.verify(entry)
    assert refused.value.context["paths"] == ["evil/.gitignore", "evil/backdoor.py"]
    shutil.rmtree(backlog.tree / "evil")
    write(backlog.tree, {".gitignore": "*.log\nbackdoor.py\n", "backdoor.py": "x"})
    with pytest.raises(BaseDrift) as refused:
        backlog.verify(entry)
    assert refused.value.context["paths"] == [".gitignore", "backdoor.py"]


@pytest.mark.rule("H-6")
def test_rules_that_were_approved_count_from_then_on(backlog):
    entry = cut(backlog, {".gitignore": "made/\n"}, check=("sh", "-c", "mkdir made; touch made/x"))
    assert backlog.verify(entry).result.passed
    above = cut(backlog, {"a.txt": "2\n"})
    write(backlog.tree, {"made/y": "more"})
    assert backlog.verify(above).result.passed


def test_rules_above_a_tree_inside_a_repository_count(tmp_path):
    repository = write(
        tmp_path / "repo",
        {".git/HEAD": "ref", ".gitignore": "src/gen/\n*.o\n", "src/gen/x": "1", "src/y.o": "1"},
    )
    write(repository, {"src/y.c": "1", "src/.gitignore": "!keep.o\n", "src/keep.o": "1"})
    assert sorted(state_of(repository / "src", ()).files) == [".gitignore", "keep.o", "y.c"]
    alone = write(tmp_path / "alone/src", {"y.o": "1"}).parent
    write(alone, {".gitignore": "*.o\n"})
    assert sorted(state_of(alone / "src", ()).files) == ["y.o"], "no repository, no rules above"


def test_git_ignores_the_same(tmp_path):
    """Held against git itself, where it is there."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    tree = write(
        tmp_path / "tree",
        {
            ".gitignore": "*.log\n!important.log\nbuild/\n/top\ndocs/**/*.tmp\n\\#odd\n",
            "sub/.gitignore": "*.txt\n!keep.txt\n",
        },
    )
    write(tree, dict.fromkeys(("a.log", "important.log", "top", "sub/top", "#odd", "x"), "x"))
    write(tree, dict.fromkeys(("build/x", "sub/build/y", "docs/a/b.tmp", "docs/c.tmp"), "x"))
    write(tree, dict.fromkeys(("sub/a.txt", "sub/keep.txt", "sub/deep/b.txt", "b.txt"), "x"))
    subprocess.run(["git", "init", "-q", "."], cwd=tree, check=True)
    shown = subprocess.run(
        ["git", "ls-files", "-z", "--others", "--exclude-standard"],
        cwd=tree,
        check=True,
        capture_output=True,
    ).stdout
    assert sorted(state_of(tree, ()).files) == sorted(shown.decode().split("\0")[:-1])


def test_a_state_comes_back_as_it_was_kept(tmp_path):
    tree = write(tmp_path / "tree", {"a": "1", "s/b": "2", ".gitignore": "*.x\n", "c.x": "3"})
    (tree / "link").symlink_to("a")
    (tree / os.fsdecode(b"odd\n\xff")).write_text("4")
    state = state_of(tree, ("*.y",))
    assert state_in(state.data()) == state and files_by(tree, state) == state.files
    assert "odd\\x0a\\xff" in state.files and "c.x" not in state.files


@pytest.mark.rule("H-2")
@pytest.mark.parametrize("name", [b"two\nlines", b"latin\xe9.txt", b"back\\slash", b"tab\there"])
def test_a_file_of_any_name_is_changed_verified_and_removed(backlog, name):
    place = backlog.tree / "sub" / os.fsdecode(name)
    wanted = backlog.home / "wanted"
    shutil.copytree(backlog.tree, wanted)
    (wanted / "sub" / os.fsdecode(name)).write_text("odd\n")
    proposal = from_folder(backlog.wish(), wanted)
    proposal.bring(backlog.kernel.artifacts)
    entry = backlog.mark(what=proposal.manifest)
    backlog.sweep()
    backlog.review(entry, "approve")
    backlog.cut(entry)
    assert place.read_text() == "odd\n" and backlog.verify(entry).result.passed
    backlog.become("tester")
    (unit,) = proposal.manifest.unit
    gone = from_contents(backlog.wish(), {unit.path: None})
    gone.bring(backlog.kernel.artifacts)
    second = backlog.mark(what=gone.manifest)
    backlog.sweep()
    backlog.review(second, "approve")
    backlog.cut(second)
    assert not place.exists() and backlog.verify(second).result.passed
    backlog.sound()


@pytest.mark.rule("H-2")
def test_a_patch_of_git_may_name_any_file(backlog):
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    name = os.fsdecode(b"odd\n\xe9.txt")
    (backlog.tree / name).write_text("one\n")

    def git(*words):
        return subprocess.run(
            ["git", *words], cwd=backlog.tree, check=True, capture_output=True
        ).stdout

    git("init", "-q", ".")
    git("add", "-A")
    (backlog.tree / name).write_text("two\n")
    patch = git("diff")
    (backlog.tree / name).write_text("one\n")
    (unit,) = from_patch(backlog.wish(), patch).manifest.unit
    assert unit.path == "odd\\x0a\\xe9.txt" and os_path(unit.path) == name


def begun(kernel, resolved):
    return begin(kernel, kernel.actor, resolved, plan_file="plan.toml", jobs=1, limits={})


class Agent:
    """A build that leaves a file as its output, and whatever it does to the tree beside that."""

    def __init__(self, backlog):
        self.backlog, self.kernel = backlog, backlog.kernel

    def begin(self, tree="repo"):
        plan = Plan("agent", tree=tree, folder=self.backlog.home)
        plan.command("edit", ["true"])
        return begun(self.kernel, Resolved(plan))

    def propose(self, build, wanted, accept=""):
        """The tree as it is now, with a file changed, on the base that the build took."""
        with self.kernel.store.read() as rows:
            base = base_of(rows, self.kernel.artifacts, build)
        wish = self.backlog.wish(base=base, accepted=accept)
        proposal = from_contents(wish, {name: (text, 0o644) for name, text in wanted.items()})
        proposal.bring(self.kernel.artifacts)
        return proposal.manifest


@pytest.mark.rule("H-2")
def test_what_an_agent_changed_beside_its_output_is_shown_as_drift(backlog):
    agent = Agent(backlog)
    build = agent.begin()
    edited(backlog.tree)
    write(backlog.tree, {"evil.py": "x"})
    what = agent.propose(build, {"a.txt": b"new\n"})
    assert [unit.path for unit in what.origin.drift] == ["b.txt", "evil.py"]
    assert what.origin.build == build
    entry = backlog.mark(what=what)
    shown = document(change_view(backlog.store, entry, backlog.kernel.policy))
    assert [unit["path"] for unit in shown["origin"]["drift"]] == ["b.txt", "evil.py"]
    backlog.sound()


@pytest.mark.rule("H-2")
def test_an_edit_in_place_is_not_hidden_under_the_proposal(backlog):
    agent = Agent(backlog)
    build = agent.begin()
    write(backlog.tree, {"a.txt": "one\nbackdoor\n"})
    with pytest.raises(BaseDrift, match="would hide that") as refused:
        agent.propose(build, {"a.txt": b"one\nbackdoor\nfix\n"})
    accepted = agent.propose(
        build, {"a.txt": b"one\nbackdoor\nfix\n"}, refused.value.context["drift"]
    )
    assert [unit.path for unit in accepted.origin.drift] == ["a.txt"], "the reviewer is told"
    write(backlog.tree, {"a.txt": "one\n"})
    clean = agent.propose(build, {"a.txt": b"one\nfix\n"})
    assert clean.origin.drift == ()


@pytest.mark.rule("H-2")
def test_what_was_cut_while_the_agent_worked_is_no_drift(backlog):
    agent = Agent(backlog)
    build = agent.begin()
    entry = cut(backlog, {"b.txt": "by somebody else\n"})
    backlog.verify(entry)
    backlog.become("tester")
    agent.kernel = backlog.kernel
    assert agent.propose(build, {"a.txt": b"new\n"}).origin.drift == ()


@pytest.mark.rule("H-2")
def test_a_proposal_cannot_claim_another_base_or_less_drift(backlog):
    agent = Agent(backlog)
    build = agent.begin()
    edited(backlog.tree)
    what = agent.propose(build, {"a.txt": b"new\n"})
    origin = what.origin
    lies = {
        "less": msgspec.structs.replace(origin, drift=()),
        "other base": msgspec.structs.replace(origin, base="0" * 64),
    }
    entries = count(backlog.store, "decision_backlog_entry")
    for lie in lies.values():
        manifest = msgspec.structs.replace(what, origin=lie)
        text = manifest.text().encode()
        backlog.kernel.artifacts.offer({manifest.content_hash(): [text]})
        with pytest.raises((BaseDrift, InvalidConfig, Exception)) as refused:
            backlog.mark(what=manifest)
        assert refused.value.code in ("BASE_DRIFT", "INVALID_CONFIG")
    assert count(backlog.store, "decision_backlog_entry") == entries


@pytest.mark.rule("H-2")
def test_a_build_that_kept_no_state_is_no_base(backlog):
    plan = Plan("plain", folder=backlog.home)
    plan.command("edit", ["true"])
    build = begun(backlog.kernel, Resolved(plan))
    with backlog.store.read() as rows:
        assert base_of(rows, backlog.kernel.artifacts, build) is None
    with pytest.raises(InvalidConfig, match="recorded no state"):
        propose(
            backlog.workspace,
            Source(base=backlog.tree, patch=b"", since=build),
        )
    odd = Plan("odd", tree="nowhere", folder=backlog.home)
    odd.command("edit", ["true"])
    with pytest.raises(InvalidConfig, match="is no folder"):
        begun(backlog.kernel, Resolved(odd))


@pytest.mark.rule("H-5")
def test_what_a_killed_cut_had_staged_on_another_filesystem_goes_with_the_next_start(
    backlog, monkeypatch
):
    monkeypatch.setattr(staging, "_mount_of", lambda folder: str(folder))
    entry = backlog.approved(FILES)
    kernel, stop = backlog.become("max"), threading.Event()

    def leave():
        stop.set()
        until(lambda: kernel._sessions[-1]._stopping)
        raise ChildCancelled

    with faults.armed("cut.applied", 1, leave):
        assert backlog.cut(entry, stop=stop).status == "open"
    assert list(backlog.tree.glob(".onceward-cst_*")), "it had to be staged in the tree"
    backlog.become("max")
    assert not list(backlog.tree.glob(".onceward*"))
    backlog.cut(entry)
    assert (backlog.tree / "sub/d.txt").read_text() == "more\n"
    assert not list(backlog.tree.glob(".onceward*")) and backlog.verify(entry).result.passed


@pytest.mark.rule("H-5")
def test_bytes_that_were_changed_while_they_were_staged_are_not_cut(backlog):
    entry = backlog.approved(FILES)

    def meddle():
        for staged in (backlog.kernel.folder / staging.STAGING).rglob("*"):
            if staged.is_file():
                staged.write_text("evil\n")

    with faults.armed("cut.staged", 1, meddle):
        assert backlog.cut(entry).status == "applied"
    assert (backlog.tree / "a.txt").read_text() == "new\n"


@pytest.mark.rule("H-2")
def test_work_that_was_done_in_place_is_named_and_not_called_nothing(backlog):
    agent = Agent(backlog)
    build = agent.begin()
    write(backlog.tree, {"a.txt": "two\n", "evil.py": "x"})
    with pytest.raises(BaseDrift, match=r"a.txt \(changed\), evil.py \(added\)") as refused:
        agent.propose(build, {"a.txt": b"two\n"})
    assert "nobody has reviewed that" in refused.value.message


@pytest.mark.rule("H-6")
def test_a_file_that_git_tracks_counts_though_a_rule_ignores_it(backlog):
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    write(backlog.tree, {".gitignore": "vendored/\n", "vendored/lib.py": "1", "vendored/x": "2"})
    for words in (("init", "-q", "."), ("add", "-f", "vendored/lib.py")):
        subprocess.run(["git", *words], cwd=backlog.tree, check=True)
    entry = cut(backlog)
    write(backlog.tree, {"vendored/x": "3", "vendored/lib.py": "evil"})
    with pytest.raises(BaseDrift) as refused:
        backlog.verify(entry)
    assert refused.value.context["paths"] == ["vendored/lib.py"]
    assert "--as vic" in refused.value.recovery[0].command
    write(backlog.tree, {"vendored/lib.py": "1"})
    assert backlog.verify(entry).result.passed


@pytest.mark.rule("H-6")
@pytest.mark.parametrize("name", [".onceward-x/evil.py", ".oncewardrc", ".GIT/x", "sub/.Git"])
def test_only_exact_names_are_the_machinerys(backlog, name):
    entry = cut(backlog)
    write(backlog.tree, {name: "x"})
    with pytest.raises(BaseDrift) as refused:
        backlog.verify(entry)
    assert refused.value.context["paths"] == [name]


@pytest.mark.rule("H-6")
def test_a_rule_that_came_after_the_proposal_hides_nothing(backlog):
    write(backlog.tree, {"other": "1"})
    entry = backlog.approved(FILES)
    write(backlog.tree, {".gitignore": "*\n"})
    backlog.cut(entry)
    write(backlog.tree, {"other": "2", "new": "x"})
    with pytest.raises(BaseDrift) as refused:
        backlog.verify(entry)
    assert refused.value.context["paths"] == ["new", "other"]
    backlog.become("tester")
    manifest = msgspec.structs.replace(backlog.propose({"b.txt": "3"}), ignores="0" * 64)
    backlog.kernel.artifacts.offer({manifest.content_hash(): [manifest.text().encode()]})
    with pytest.raises(BaseDrift, match="gitignore"):
        backlog.mark(what=manifest)


def test_drift_has_one_digest(backlog):
    state = state_of(backlog.tree, ())
    edited(backlog.tree)
    from onceward.artifacts.tree_state import changed

    drift = changed(state.files, files_by(backlog.tree, state))
    assert drift_digest(drift) == drift_digest(tuple(drift)) != drift_digest([])
