"""The cutter of a file tree: exactly the approved bytes or exactly the prior ones, wherever it is cut off (H-5)."""

from __future__ import annotations

import pytest

from helpers import assert_sound, count
from onceward.engine import changes
from onceward.engine.cutters import TreeCutter
from onceward.engine.cutting import cut as cut_entry
from onceward.engine.trees import difference, scan
from onceward.errors import BaseDrift, GuardFailed, InvalidConfig
from onceward.kernel import faults
from onceward.kernel.records import Request
from onceward.lifecycles.change import Manifest, Policy
from onceward.store.tables.changes import Changes


@pytest.fixture
def trees(kernel, tmp_path):
    """A base, a tree that differs in every way, and the cutter that makes one the other."""
    base, tree = tmp_path / "base", tmp_path / "tree"
    for folder, files in (
        (base, {"same": "1", "changed": "1", "gone": "1", "sub/deep": "1", "mode": "1"}),
        (tree, {"same": "1", "changed": "2", "new/er/file": "3", "sub/deep": "2", "mode": "1"}),
    ):
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
            (folder / name).chmod(0o644)
    (tree / "mode").chmod(0o755)
    units = difference(scan(base), scan(tree))
    kept = [kernel.artifacts.keep_file(tree / unit.path) for unit in units if unit.after]
    kept += [kernel.artifacts.keep_file(base / unit.path) for unit in units if unit.before]

    def record(tx):
        for number, blob in enumerate(kept):
            kernel.artifacts.record(tx, "ent_1", str(number), "file", blob)

    kernel.store.write(record)
    return base, tree, TreeCutter(base, kernel.artifacts, units, "cst_1")


def cut(cutter, again=False):
    cutter.check(also_after=again)
    cutter.keep()
    cutter.stage()
    cutter.apply()
    cutter.clear()


def undo(cutter):
    foreign = cutter.restore()
    cutter.clear()
    return foreign


@pytest.mark.rule("H-5")
def test_a_tree_becomes_exactly_the_other_and_back(trees):
    base, tree, cutter = trees
    was, wanted = scan(base), scan(tree)
    cut(cutter)
    assert scan(base) == wanted
    cut(cutter, again=True)
    assert scan(base) == wanted, "done again it changes nothing"
    assert undo(cutter) == [] and scan(base) == was
    assert undo(cutter) == [] and scan(base) == was
    assert not list(base.glob(".onceward*"))


@pytest.mark.rule("H-5")
@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("back", [False, True], ids=["finished", "undone"])
@pytest.mark.parametrize(("point", "nth"), [("cut.staged", 1), *(("cut.applied", n) for n in range(1, 6))])
def test_wherever_it_is_cut_off_it_is_finished_or_undone(trees, point, nth, back):
    base, tree, cutter = trees
    was, wanted = scan(base), scan(tree)
    with pytest.raises(faults.SimulatedCrash), faults.armed(point, nth, faults.crash):
        cut(cutter)
    if not back:
        cut(cutter, again=True)
        assert scan(base) == wanted
        return
    with faults.armed("cut.restored", 2, faults.crash):
        try:
            undo(cutter)
        except faults.SimulatedCrash:
            pass
    assert undo(cutter) == [] and scan(base) == was


@pytest.mark.rule("H-5")
def test_a_base_that_drifted_is_refused_and_nothing_is_changed(trees):
    base, _, cutter = trees
    (base / "changed").write_text("by somebody")
    (base / "new").write_text("a file where a folder is to be")
    before = {name: (base / name).read_text() for name in ("changed", "gone", "sub/deep", "new")}
    with pytest.raises((BaseDrift, InvalidConfig)):
        cutter.check()
    (base / "new").unlink()
    with pytest.raises(BaseDrift, match="changed is not what"):
        cutter.check()
    assert {name: (base / name).read_text() for name in ("changed", "gone", "sub/deep")} == {
        name: before[name] for name in ("changed", "gone", "sub/deep")
    }


@pytest.mark.rule("H-5", "H-6")
def test_what_somebody_else_changed_meanwhile_is_left_alone(trees):
    base, _, cutter = trees
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


@pytest.fixture
def proposed(kernel, trees, workspace):
    """The same change as an entry that somebody approved, in a tree of the workspace's own folder."""
    base, tree, _ = trees
    home = workspace.folder.parent
    if base.parent != home:
        base = base.rename(home / "base")
    units = tuple(difference(scan(base), scan(tree)))
    what = Manifest("tree", "base", units)
    kernel.ask(Request("principals.add", "p1", {"name": "rob", "roles": ["reviewer"]}, "tester"))
    entry = kernel.store.write(lambda tx: changes.mark(tx, "tester", "k1", what, "because"))
    kernel.store.write(lambda tx: changes.sweep(tx, "tester"))

    def approve():
        said = ("rob", entry.entry_id, "approve", what.content_hash(), "", Policy())
        return kernel.store.write(lambda tx: changes.review(tx, *said))

    return home, base, tree, entry, approve


@pytest.mark.rule("H-1", "H-5", "H-8")
@pytest.mark.guarantee("G18")
def test_an_approved_change_is_cut_once_and_signed(kernel, proposed):
    home, base, tree, entry, approve = proposed
    was, wanted = scan(base), scan(tree)
    with pytest.raises(GuardFailed) as refused:
        cut_entry(kernel, home, entry.entry_id, Policy())
    assert refused.value.code == "G-CUT-APPROVED" and scan(base) == was
    approve()
    with pytest.raises(GuardFailed) as refused:
        cut_entry(kernel, home, entry.entry_id, Policy(approval_seconds=0))
    assert refused.value.code == "APPROVAL_EXPIRED" and scan(base) == was
    done = cut_entry(kernel, home, entry.entry_id, Policy())
    assert done.status == "applied" and scan(base) == wanted
    rows = {table: count(kernel.store, table) for table in ("cut_change_set", "dot_pair_signature", "signatures")}
    assert cut_entry(kernel, home, entry.entry_id, Policy()) == done, "cut again it is what it is"
    assert rows == {table: count(kernel.store, table) for table in rows}
    with kernel.store.read() as found:
        history = [(h.from_state, h.to_state) for h in Changes(found).history(entry.entry_id)][-2:]
        signed = Changes(found).signature_of(done.change_set_id)
        assert_sound(found)
    assert history == [("reviewed_approved", "cut_in_progress"), ("cut_in_progress", "cut_applied")]
    assert (signed.role, signed.principal) == ("executor", "tester") and len(signed.tool_revision) == 64


@pytest.mark.rule("H-5")
def test_a_drifted_tree_is_not_cut_and_can_be_when_it_is_as_it_was(kernel, proposed):
    home, base, tree, entry, approve = proposed
    approve()
    (base / "changed").write_text("by somebody")
    assert cut_entry(kernel, home, entry.entry_id, Policy()).status == "undone"
    assert (base / "changed").read_text() == "by somebody" and (base / "gone").exists()
    with kernel.store.read() as rows:
        assert Changes(rows).get(entry.entry_id).status == "reviewed_approved"
    (base / "changed").write_text("1")
    assert cut_entry(kernel, home, entry.entry_id, Policy()).status == "applied"
    assert scan(base) == scan(tree)
    with kernel.store.read() as rows:
        assert_sound(rows)
