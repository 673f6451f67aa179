"""Cuts of file trees: exactly the approved bytes or exactly the prior ones, wherever it is cut off (H-5)."""

from __future__ import annotations

import threading

import pytest

from backlog import write
from helpers import count
from onceward.artifacts.trees import difference, scan
from onceward.changes.cut import cut as cut_entry
from onceward.changes.cut import open_set
from onceward.changes.cutters import TreeCutter
from onceward.changes.manifest import Manifest
from onceward.changes.rules import require_manifest
from onceward.changes.staging import STAGING, Staging
from onceward.core import faults
from onceward.core.changes import LINK, Policy
from onceward.errors import BaseDrift, ChildCancelled, GuardFailed, LockConflict, OncewardError
from onceward.store.tables.changes import Changes
from typing_in import until

BASE = {
    "same": "1",
    "changed": "1",
    "gone": "1",
    "sub/deep": "1",
    "mode": "1",
    "was/folder": "1",
    "was-file": "1",
}
TREE = {
    "same": "1",
    "changed": "2",
    "new/er/file": "3",
    "sub/deep": "2",
    "mode": "1",
    "was": "2",
    "was-file/x": "1",
}


@pytest.fixture
def trees(kernel, tmp_path):
    """A base, a tree that differs in every way, and the cutter that makes one the other."""
    base, tree = write(tmp_path / "base", BASE), write(tmp_path / "tree", TREE)
    (tree / "mode").chmod(0o755)
    (base / "link").symlink_to("same")
    (tree / "link").symlink_to("changed")
    units = difference(scan(base, links=True), scan(tree, links=True))
    for folder, side, mode in ((tree, "after", "after_mode"), (base, "before", "before_mode")):
        kept = [
            kernel.artifacts.keep(str((folder / unit.path).readlink()).encode())
            if getattr(unit, mode) == LINK
            else kernel.artifacts.keep_file(folder / unit.path)
            for unit in units
            if getattr(unit, side) is not None
        ]

        def record(tx, kept=kept, side=side):
            for number, blob in enumerate(kept):
                kernel.artifacts.record(tx, "ent_1", f"{side} {number}", "file", blob)

        kernel.store.write(record)
    manifest = require_manifest(Manifest("tree", "base", tuple(units)))
    known = []
    staging = Staging(base, kernel.folder / STAGING, "cst_1")
    cutter = TreeCutter(base, kernel.artifacts, manifest, staging, kept=lambda: known[0])
    cutter.known = known
    return base, tree, cutter


def cut(cutter, again=False):
    """As its saga does it; what was kept is known from then on, and nothing is checked when it goes on."""
    if not again:
        cutter.check()
        cutter.known[:] = [cutter.keep().listing]
    cutter.stage()
    cutter.apply()
    cutter.clear()


def undo(cutter):
    foreign = cutter.restore()
    cutter.clear()
    return foreign


def found(folder):
    return scan(folder, links=True)


@pytest.mark.rule("H-5")
def test_a_tree_becomes_exactly_the_other_and_back(trees):
    base, tree, cutter = trees
    was, wanted = found(base), found(tree)
    cut(cutter)
    assert found(base) == wanted
    cut(cutter, again=True)
    assert found(base) == wanted, "done again it changes nothing"
    assert undo(cutter) == [] and found(base) == was
    assert undo(cutter) == [] and found(base) == was
    assert not list(base.glob(".onceward*"))


MOMENTS = [("cut.staged", 1), *(("cut.applied", n) for n in range(1, 11))]


@pytest.mark.rule("H-5")
@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("back", [False, True], ids=["finished", "undone"])
def test_wherever_it_is_cut_off_it_is_finished_or_undone(trees, back):
    base, tree, cutter = trees
    was, wanted = found(base), found(tree)
    for point, nth in MOMENTS:
        with pytest.raises(faults.SimulatedCrash), faults.armed(point, nth, faults.crash):
            cut(cutter)
        if not back:
            cut(cutter, again=True)
            assert found(base) == wanted, (point, nth)
        else:
            with faults.armed("cut.restored", 2, faults.crash):
                try:
                    undo(cutter)
                except faults.SimulatedCrash:
                    pass
        assert undo(cutter) == [] and found(base) == was, (point, nth)


@pytest.mark.rule("H-5")
def test_a_base_that_drifted_is_refused_and_nothing_is_changed(trees):
    base, _, cutter = trees
    for name, text in (
        ("changed", "by somebody"),
        ("new", "in the way"),
        ("was/other", "a file in a folder that goes"),
    ):
        write(base, {name: text})
        before = found(base)
        with pytest.raises(BaseDrift):
            cut(cutter)
        assert found(base) == before and not list(base.glob(".onceward*"))
        if name in BASE:
            write(base, {name: BASE[name]})
        else:
            (base / name).unlink()
    (base / "link").unlink()
    (base / "link").symlink_to("mode")
    with pytest.raises(BaseDrift, match="link is not what"):
        cut(cutter)


@pytest.mark.rule("H-5", "H-6")
def test_what_somebody_else_changed_meanwhile_is_left_alone(trees):
    base, _, cutter = trees
    cutter.known[:] = [cutter.keep().listing]
    cutter.stage()
    (base / "gone").write_text("precious")
    with pytest.raises(BaseDrift, match="by somebody else"):
        cutter.apply()
    assert undo(cutter) == ["gone"] and (base / "gone").read_text() == "precious"
    cutter.stage()
    (base / "sub/deep").unlink()
    (base / "sub/deep").symlink_to("/etc/passwd")
    with pytest.raises(BaseDrift):
        cutter.apply()
    assert str((base / "sub/deep").readlink()) == "/etc/passwd"


@pytest.mark.rule("H-1", "H-5", "H-8")
@pytest.mark.guarantee("G18")
def test_an_approved_change_is_cut_once_and_signed(backlog):
    entry = backlog.mark({"a.txt": "new\n", "sub/c.txt": None, "sub/d/e.txt": "more\n"})
    was = scan(backlog.tree)
    backlog.sweep()
    digest = backlog.envelope(entry).content_hash
    for expected, policy in (
        ("G-CUT-APPROVED", Policy()),
        ("APPROVAL_EXPIRED", Policy(approval_seconds=0)),
    ):
        backlog.become("max").policy = policy
        with pytest.raises(GuardFailed) as refused:
            backlog.cut(entry)
        assert refused.value.code == expected and scan(backlog.tree) == was
        backlog.review(entry, "approve")
    backlog.kernel.policy = Policy(approvals=2)
    with pytest.raises(GuardFailed, match="needs 2 approvals") as refused:
        backlog.cut(entry)
    assert refused.value.code == "G-CUT-APPROVED"
    backlog.kernel.policy = Policy()
    done = backlog.cut(entry)
    assert done.status == "applied" and backlog.status(entry) == "cut_applied"
    assert (backlog.tree / "a.txt").read_text() == "new\n" and (
        backlog.tree / "sub/d/e.txt"
    ).exists()
    rows = {**backlog.rows(), "signatures": count(backlog.store, "signatures")}
    assert backlog.cut(entry) == done, "cut again it is what it is"
    assert rows == {**backlog.rows(), "signatures": count(backlog.store, "signatures")}
    assert backlog.history(entry)[-2:] == [
        ("reviewed_approved", "cut_in_progress", "max"),
        ("cut_in_progress", "cut_applied", "max"),
    ]
    with backlog.store.read() as found:
        signed = Changes(found).signature_of(done.change_set_id)
        assert {a.path for a in Changes(found).affected(done.change_set_id)} == {
            "a.txt",
            "sub/c.txt",
            "sub/d/e.txt",
        }
    assert (signed.role, signed.principal) == ("executor", "max") and len(
        signed.tool_revision
    ) == 64
    with pytest.raises(OncewardError):
        backlog.review(entry, "defer", digest=digest)
    backlog.sound()


@pytest.mark.rule("H-5")
def test_a_drifted_tree_is_not_cut_and_can_be_when_it_is_as_it_was(backlog):
    entry = backlog.approved({"a.txt": "new\n"})
    (backlog.tree / "a.txt").write_text("by somebody")
    rows = backlog.rows()
    with pytest.raises(BaseDrift, match=r"a\.txt is not what"):
        backlog.cut(entry)
    assert backlog.rows() == rows and (backlog.tree / "a.txt").read_text() == "by somebody"
    (backlog.tree / "a.txt").write_text("one\n")
    assert backlog.cut(entry).status == "applied"
    backlog.sound()


@pytest.mark.rule("H-5")
def test_a_workspace_may_want_the_whole_tree_unchanged(backlog):
    backlog.kernel.policy = strict = Policy(drift="tree")
    entry = backlog.approved({"a.txt": "new\n"})
    write(backlog.tree, {"b.txt": "changed by the way"})
    backlog.become("max").policy = strict
    with pytest.raises(BaseDrift, match="something else in it has changed"):
        backlog.cut(entry)
    write(backlog.tree, {"b.txt": "two\n"})
    assert backlog.cut(entry).status == "applied"
    backlog.sound()


@pytest.mark.rule("H-5")
def test_dependencies_and_what_touches_the_same_files_come_first(backlog):
    first = backlog.approved({"a.txt": "1"})
    second = backlog.approved({"b.txt": "2"}, depends_on=[first])
    with pytest.raises(GuardFailed) as refused:
        backlog.cut(second)
    assert refused.value.code == "G-CUT-DEPS" and first in refused.value.message
    backlog.cut(first)
    third = backlog.approved({"a.txt": "3"})
    for entry in (second, third):
        with pytest.raises(GuardFailed) as refused:
            backlog.cut(entry)
        assert refused.value.code == "G-CUT-DEPS" and first in refused.value.message
    backlog.verify(first)
    for entry in (second, third):
        assert backlog.cut(entry).status == "applied"
    assert (backlog.tree / "a.txt").read_text() == "3"
    backlog.sound()


@pytest.mark.rule("H-5", "H-7")
@pytest.mark.parametrize("word", ["abandon", "defer"])
@pytest.mark.parametrize("moment", ["before", "staged", "applied", "recording"])
def test_a_cut_that_was_cut_off_is_closed_before_it_is_taken_back(backlog, word, moment):
    entry = backlog.approved({"a.txt": "new\n", "b.txt": "new\n"})
    was, finished = scan(backlog.tree), moment == "recording"
    kernel, stop = backlog.become("max"), threading.Event()

    def leave():
        stop.set()
        until(lambda: kernel._sessions[-1]._stopping)
        raise ChildCancelled

    if moment == "before":
        with backlog.store.read() as rows:
            (decision,) = Changes(rows).decisions(entry)
        backlog.store.write(lambda tx: open_set(tx, entry, decision.decision_id, "max"))
    else:
        with faults.armed(f"cut.{moment.removesuffix('ing')}", 1, leave):
            assert backlog.cut(entry, stop=stop).status == "open"
    backlog.become("tester")
    if word == "abandon":
        assert backlog.abandon(entry)["status"] == "abandoned"
    elif finished:
        with pytest.raises(OncewardError):
            backlog.review(entry, "defer")
    else:
        assert backlog.review(entry, "defer")["status"] == "reviewed_deferred"
    with backlog.store.read() as rows:
        (change_set,) = Changes(rows).change_sets(entry)
    assert change_set.status == ("applied" if finished else "undone")
    assert (scan(backlog.tree) == was) != finished
    backlog.sound()


@pytest.mark.rule("H-5")
def test_a_cut_that_meets_somebody_elses_edit_is_stuck_and_can_be_mended(backlog, monkeypatch):
    entry = backlog.approved({"a.txt": "new\n", "b.txt": "new\n"})
    apply = TreeCutter.apply

    def meddled(self):
        write(backlog.tree, {"b.txt": "precious"})
        apply(self)

    backlog.become("max")
    monkeypatch.setattr(TreeCutter, "apply", meddled)
    stuck = backlog.cut(entry)
    assert stuck.status == "stuck" and (backlog.tree / "b.txt").read_text() == "precious"
    assert backlog.status(entry) == "reviewed_approved"
    assert backlog.cut(entry).status == "stuck", "it stays so while they are there"
    write(backlog.tree, {"b.txt": "two\n"})
    assert backlog.cut(entry).status == "undone" and (backlog.tree / "a.txt").read_text() == "one\n"
    monkeypatch.undo()
    assert backlog.cut(entry).status == "applied"
    backlog.sound()


@pytest.mark.rule("H-5")
@pytest.mark.guarantee("G8")
def test_two_workers_cut_one_entry_once(backlog):
    entry = backlog.approved({"a.txt": "new\n", "b.txt": "new\n"})
    kernel = backlog.become("max")
    ended = []

    def work():
        try:
            ended.append(cut_entry(kernel, kernel.actor, entry).change_set_id)
        except LockConflict as error:
            ended.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({one for one in ended if isinstance(one, str)}) == 1 and len(ended) == 2
    assert backlog.rows()["cut_change_set"] == 1 and backlog.rows()["dot_pair_signature"] == 1
    with backlog.store.read() as rows:
        (decision,) = Changes(rows).decisions(entry)
    with pytest.raises(OncewardError) as refused:
        backlog.store.write(lambda tx: open_set(tx, entry, decision.decision_id, "max"))
    assert refused.value.code == "G-CUT-ONCE"
    backlog.sound()
