"""What an adversary, a crash or a careless hand could do to a change, each tried once (found by hostile reviews)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading

import apsw
import pytest

from backlog import write
from onceward.artifacts.trees import File, scan, unit_of
from onceward.changes import acts as change_acts
from onceward.changes import git, staging
from onceward.changes import verify as verifying
from onceward.changes.cutters import TreeCutter
from onceward.changes.diffs import compared
from onceward.changes.manifest import Manifest
from onceward.changes.proposals import Proposal, Wish, from_contents, from_folder, given
from onceward.changes.rules import require_manifest
from onceward.core import faults
from onceward.core.canon import sha256_hex
from onceward.core.chain import link
from onceward.core.changes import PathRule, Policy
from onceward.core.tree_paths import check_link
from onceward.errors import (
    BaseDrift,
    ChildCancelled,
    ExecutionFailed,
    GuardFailed,
    InvalidConfig,
    LockConflict,
    OncewardError,
    PermissionDenied,
)
from onceward.evidence.verify import verify_rows
from onceward.store.tables.changes import Changes
from typing_in import on_its_own, until


def sets(backlog, entry):
    with backlog.store.read() as rows:
        return [(one.kind, one.status) for one in Changes(rows).change_sets(entry)]


def elsewhere(backlog, base, files):
    """A proposal of a tree that lies in another."""
    root, wanted = backlog.home / base, backlog.home / f"wanted-{os.urandom(4).hex()}"
    shutil.copytree(root, wanted, symlinks=True)
    write(wanted, files)
    proposal = from_folder(Wish(root, base, policy=backlog.kernel.policy), wanted)
    proposal.bring(backlog.kernel.artifacts)
    shutil.rmtree(wanted)
    return proposal.manifest


def contents(backlog, made):
    proposal = from_contents(backlog.wish(), made)
    proposal.bring(backlog.kernel.artifacts)
    return proposal.manifest


def cut_off(backlog, entry, point="cut.applied", nth=1, who="max"):
    """A cut whose kernel is stopped in the middle."""
    kernel, stop = backlog.become(who), threading.Event()

    def leave():
        stop.set()
        until(lambda: kernel._sessions[-1]._stopping)
        raise ChildCancelled

    with faults.armed(point, nth, leave):
        assert backlog.cut(entry, who=who, stop=stop).status == "open"


def stuck(backlog, monkeypatch, entry):
    """A cut that meets somebody's edit half-way."""
    apply = TreeCutter.apply

    def meddled(self):
        write(backlog.tree, {"b.txt": "precious"})
        apply(self)

    backlog.become("max")
    with monkeypatch.context() as patched:
        patched.setattr(TreeCutter, "apply", meddled)
        assert backlog.cut(entry).status == "stuck"


@pytest.mark.rule("H-5", "S-1")
@pytest.mark.guarantee("G2")
def test_a_defer_that_comes_just_before_a_cut_is_refused_and_nothing_is_half_there(
    backlog, monkeypatch
):
    entry = backlog.approved({"a.txt": "new\n"})
    backlog.become("max")
    looked, staged, done = threading.Event(), threading.Event(), threading.Event()
    real = change_acts._close_cut
    said = []

    def slow(kernel, entry_id):
        found = real(kernel, entry_id)
        looked.set()
        staged.wait(600)
        return found

    def defer():
        try:
            said.append(backlog.review(entry, "defer"))
        except OncewardError as error:
            said.append(error)
        done.set()

    monkeypatch.setattr(change_acts, "_close_cut", slow)
    thread = threading.Thread(target=defer)
    thread.start()
    looked.wait(600)
    with faults.armed("cut.staged", 1, lambda: (staged.set(), done.wait(600))):
        assert backlog.cut(entry).status == "applied"
    thread.join()
    assert isinstance(said[0], LockConflict) and backlog.status(entry) == "cut_applied"
    backlog.sound()


@pytest.mark.rule("S-1", "S-8")
@pytest.mark.guarantee("G2")
@pytest.mark.parametrize("what", ["key", "role"])
def test_who_may_no_longer_sign_leaves_a_cut_that_somebody_who_may_records(backlog, what):
    entry = backlog.approved({"a.txt": "new\n"})
    kernel = backlog.become("max")

    def taken():
        if what == "key":
            backlog.ask("tester", "keys.revoke", key=kernel.signer.key.fingerprint)
        else:
            backlog.ask("tester", "principals.take", name="max", roles=["executor"])

    with faults.armed("cut.staged", 1, lambda: on_its_own(taken)):
        assert backlog.cut(entry).status == "stuck"
    assert (
        backlog.status(entry) == "reviewed_approved"
        and (backlog.tree / "a.txt").read_text() == "new\n"
    )
    backlog.sound()
    backlog.become("tester")
    assert (
        backlog.cut(entry, who="tester").status == "applied"
        and backlog.status(entry) == "cut_applied"
    )
    with backlog.store.read() as rows:
        assert [signed.principal for signed in Changes(rows).signatures(entry)] == ["tester"]
    backlog.sound()


@pytest.mark.rule("H-6")
@pytest.mark.guarantee("G18")
@pytest.mark.parametrize("what", ["key", "role"])
def test_who_may_no_longer_sign_verifies_nothing(backlog, monkeypatch, what):
    entry = backlog.approved({"a.txt": "new\n"}, check=("true",))
    backlog.cut(entry)
    kernel = backlog.become("vic")
    real = verifying._run_check

    def taken(*arguments, **words):
        if what == "key":
            backlog.ask("tester", "keys.revoke", key=kernel.signer.key.fingerprint)
        else:
            backlog.ask("tester", "principals.take", name="vic", roles=["verifier"])
        return real(*arguments, **words)

    monkeypatch.setattr(verifying, "_run_check", taken)
    with pytest.raises(PermissionDenied):
        backlog.verify(entry)
    assert backlog.status(entry) == "cut_applied"
    backlog.sound()


@pytest.mark.rule("H-5")
@pytest.mark.guarantee("G20")
def test_nothing_is_written_through_a_link_in_the_place_of_our_staging(
    backlog, tmp_path, monkeypatch
):
    victim = write(tmp_path / "victim", {"back": "precious"})
    entry = backlog.approved({"a.txt": "new\n"})
    made = backlog.cut(entry)
    trap = backlog.tree / f".onceward-{made.change_set_id}"
    trap.symlink_to(victim)
    (backlog.tree / "a.txt").chmod(0o755)
    monkeypatch.setattr(staging, "_mount_of", str)
    assert backlog.verify(entry).undo.status == "stuck"
    (backlog.tree / "a.txt").chmod(0o644)
    assert backlog.verify(entry).undo.status == "stuck"
    assert {path.name: path.read_text() for path in victim.iterdir()} == {"back": "precious"}
    trap.unlink()
    assert (
        backlog.verify(entry).undo.status == "applied"
        and (backlog.tree / "a.txt").read_text() == "one\n"
    )


@pytest.mark.rule("H-4")
@pytest.mark.guarantee("G18")
def test_a_rule_for_paths_holds_whatever_tree_is_chosen(backlog):
    backlog.kernel.policy = Policy(path=(PathRule("sub/*", 2),))
    plain = backlog.mark({"sub/c.txt": "new\n"})
    nested = backlog.mark(what=elsewhere(backlog, "repo/sub", {"c.txt": "evil\n"}))
    backlog.sweep()
    for entry in (plain, nested):
        assert backlog.review(entry, "approve")["lacks"] == "sub/* needs 2 approvals, and has 1"


@pytest.mark.rule("H-5", "H-6")
def test_trees_that_lie_in_each_other_are_one_place(backlog):
    outer = backlog.approved({"a.txt": "new\n", "sub/c.txt": "outer\n"})
    backlog.cut(outer)
    backlog.become("tester")
    same = backlog.approved(what=elsewhere(backlog, "repo/sub", {"c.txt": "inner\n"}))
    with pytest.raises(GuardFailed) as refused:
        backlog.cut(same)
    assert refused.value.code == "G-CUT-DEPS"
    backlog.become("tester")
    beside = backlog.approved(what=elsewhere(backlog, "repo/sub", {"n.txt": "new\n"}))
    backlog.cut(beside)
    assert backlog.verify(outer).result.passed and backlog.verify(beside).result.passed
    backlog.sound()


@pytest.mark.rule("H-2")
@pytest.mark.parametrize(
    "target",
    ["./repo", "repo/", "repo//sub", "../x", "", "repo/.git", ".onceward", "nowhere", "alias"],
)
def test_a_tree_has_one_name_and_is_not_the_machinery(backlog, target):
    (backlog.tree / ".git").mkdir()
    (backlog.home / "alias").symlink_to(backlog.tree)
    unit = backlog.propose({"a.txt": "2\n"}).unit
    manifest = Manifest("tree", target, unit)
    backlog.kernel.artifacts.offer({manifest.content_hash(): [manifest.text().encode()]})
    with pytest.raises(InvalidConfig):
        backlog.mark(what=manifest)
    absolute = Manifest("tree", str(backlog.tree), unit)
    backlog.kernel.artifacts.offer({absolute.content_hash(): [absolute.text().encode()]})
    with pytest.raises(InvalidConfig, match="own name"):
        backlog.mark(what=absolute)


@pytest.mark.rule("H-6")
def test_a_file_that_becomes_a_folder_is_verified_and_given_back(backlog):
    entry = backlog.mark(what=_folder(backlog))
    backlog.sweep()
    backlog.review(entry, "approve")
    was = scan(backlog.tree)
    backlog.cut(entry)
    assert backlog.verify(entry).result.passed
    write(backlog.tree, {"a.txt/y": "x"})
    assert not backlog.verify(entry, again=True).result.passed and was != scan(backlog.tree)
    backlog.sound()


def _folder(backlog):
    wanted = backlog.home / "wanted"
    shutil.copytree(backlog.tree, wanted)
    (wanted / "a.txt").unlink()
    write(wanted, {"a.txt/x": "1\n"})
    proposal = from_folder(backlog.wish(), wanted)
    proposal.bring(backlog.kernel.artifacts)
    return proposal.manifest


@pytest.mark.rule("H-6")
@pytest.mark.parametrize("check", ["rm a.txt", "echo worse > a.txt", "chmod 755 a.txt"])
def test_a_check_that_spoils_what_it_checks_fails(backlog, check):
    entry = backlog.approved({"a.txt": "new\n"}, check=("sh", "-c", check))
    backlog.cut(entry)
    assert not backlog.verify(entry).result.passed
    backlog.sound()


@pytest.mark.rule("H-6")
@pytest.mark.guarantee("G18")
def test_who_had_a_hand_in_a_cut_does_not_verify_it_though_another_signed(backlog):
    backlog.ask("tester", "principals.add", name="max", roles=["verifier"])
    entry = backlog.approved({"a.txt": "new\n"})
    cut_off(backlog, entry, "cut.record")
    backlog.become("tester")
    assert backlog.cut(entry, who="tester").status == "applied"
    with pytest.raises(GuardFailed, match="max carried it out") as refused:
        backlog.verify(entry, who="max")
    assert refused.value.code == "G-VERIFY-SOD"
    assert backlog.verify(entry).result.passed
    backlog.sound()


@pytest.mark.rule("H-4", "H-6")
@pytest.mark.guarantee("G18")
def test_whoever_had_a_hand_in_a_proposal_never_approves_it(backlog):
    backlog.ask("tester", "principals.add", name="eva", roles=["operator"])
    entry = backlog.mark({"a.txt": "ann\n"})
    evas, anns = backlog.propose({"a.txt": "evas\n"}), backlog.propose({"a.txt": "ann2\n"})
    for who, what in (("eva", evas), ("ann", anns), ("ann", evas)):
        backlog.ask(who, "changes.mark", manifest=what.content_hash(), revises=entry)
    backlog.sweep()
    with pytest.raises(PermissionDenied, match="eva proposed it"):
        backlog.review(entry, "approve", who="eva")
    backlog.review(entry, "approve")
    backlog.cut(entry)
    (backlog.tree / "a.txt").unlink()
    escalation = backlog.verify(entry).escalation
    write(backlog.tree, {"a.txt": "one\n"})
    other = backlog.mark({"b.txt": "x\n"}, who="tester")
    backlog.become("tester")
    backlog.ask(
        "eva",
        "changes.mark",
        manifest=backlog.propose({"b.txt": "evas\n"}).content_hash(),
        revises=other,
    )
    backlog.sweep()
    for one in (escalation, other):
        with pytest.raises(PermissionDenied):
            backlog.review(one, "approve", who="eva" if one == other else "ann")
    assert backlog.envelope(escalation).author == "ann"
    backlog.sound()


@pytest.mark.rule("H-6")
@pytest.mark.guarantee("G18")
def test_an_escalation_is_by_who_proposed_the_bytes(backlog):
    backlog.ask("tester", "principals.add", name="eva", roles=["operator"])
    entry = backlog.mark({"a.txt": "ann\n"})
    revised = backlog.propose({"a.txt": "evas\n"})
    backlog.ask("eva", "changes.mark", manifest=revised.content_hash(), revises=entry)
    backlog.sweep()
    backlog.review(entry, "approve")
    backlog.cut(entry)
    (backlog.tree / "a.txt").unlink()
    escalation = backlog.verify(entry).escalation
    assert (backlog.get(escalation).author, backlog.envelope(escalation).author) == ("ann", "eva")
    backlog.become("tester")
    backlog.sweep()
    with pytest.raises(PermissionDenied, match="eva proposed it"):
        backlog.review(escalation, "approve", who="eva")
    backlog.sound()


@pytest.mark.rule("H-5")
@pytest.mark.guarantee("G18")
def test_a_reviewer_does_not_finish_somebody_elses_cut(backlog):
    entry = backlog.approved({"a.txt": "new\n"})
    cut_off(backlog, entry, "cut.record")
    backlog.become("rob")
    with pytest.raises(PermissionDenied, match="executor"):
        backlog.review(entry, "defer")
    assert sets(backlog, entry) == [("cut", "open")]
    assert backlog.cut(entry).status == "applied"
    backlog.sound()


@pytest.mark.rule("H-5", "H-7")
def test_a_stuck_cut_is_not_deferred_and_can_be_given_up(backlog, monkeypatch):
    entry = backlog.approved({"a.txt": "new\n", "b.txt": "new\n"})
    stuck(backlog, monkeypatch, entry)
    backlog.become("tester")
    with pytest.raises(LockConflict, match="stuck"):
        backlog.review(entry, "defer")
    assert backlog.status(entry) == "reviewed_approved"
    assert backlog.abandon(entry)["status"] == "abandoned" and sets(backlog, entry) == [
        ("cut", "undone")
    ]
    assert (backlog.tree / "b.txt").read_text() == "precious"
    with pytest.raises(GuardFailed):
        backlog.cut(entry)
    backlog.sound()


@pytest.mark.rule("H-5")
def test_a_refused_defer_undoes_nothing(backlog):
    entry = backlog.approved({"a.txt": "new\n", "b.txt": "new\n"})
    cut_off(backlog, entry)
    backlog.become("tester")
    with pytest.raises(OncewardError):
        backlog.review(entry, "defer", digest="0" * 64)
    assert sets(backlog, entry) == [("cut", "open")]
    assert backlog.cut(entry, who="tester").status == "applied"


@pytest.mark.rule("H-5", "H-6")
def test_while_one_is_being_cut_there_others_wait(backlog):
    first = backlog.approved({"b.txt": "A\n"})
    backlog.cut(first)
    backlog.become("tester")
    second = backlog.approved({"a.txt": "B\n", "bnew.txt": "B\n", "cnew": "x"})
    third = backlog.approved({"sub/c.txt": "C\n"})
    cut_off(backlog, second, nth=2)
    with pytest.raises(LockConflict, match="being cut"):
        backlog.verify(first)
    with pytest.raises(GuardFailed) as refused:
        backlog.cut(third)
    assert refused.value.code == "G-CUT-DEPS" and second in refused.value.message
    assert backlog.cut(second).status == "applied"
    assert backlog.verify(first).result.passed
    backlog.sound()


@pytest.mark.rule("H-6")
def test_what_is_not_there_any_more_is_a_finding_and_no_error(backlog):
    entry = backlog.approved({"sub/c.txt": "new\n", "b.txt": "new\n"})
    backlog.cut(entry)
    (backlog.tree / "sub").rename(backlog.home / "moved")
    (backlog.tree / "sub").symlink_to(backlog.home / "moved")
    done = backlog.verify(entry)
    assert (
        "sub/c.txt" in json.loads(done.result.detail)["different"]["paths"]
        and done.undo.status == "stuck"
    )
    assert (backlog.tree / "b.txt").read_text() == "two\n" and (
        backlog.home / "moved/c.txt"
    ).read_text() == "new\n"
    backlog.sound()


@pytest.mark.rule("H-6")
def test_a_tree_that_is_gone_has_nothing_of_it(backlog):
    entry = backlog.approved({"a.txt": "new\n"})
    backlog.cut(entry)
    backlog.tree.rename(backlog.home / "moved")
    done = backlog.verify(entry)
    assert not done.result.passed and "a.txt" in json.loads(done.result.detail)["missing"]["paths"]
    assert backlog.status(entry) == "verify_failed_escalated" and done.undo.status == "stuck"


@pytest.mark.rule("H-6")
def test_odd_names_in_a_tree_do_not_matter_and_can_be_told(backlog):
    (backlog.tree / "we\nird").write_text("x")
    write(backlog.tree, {"node_modules/x.js": "1\n"})
    made = {"a.txt": (b"2\n", 0o644), "node_modules/x.js": (b"2\n", 0o644)}
    entry = backlog.approved(what=contents(backlog, made))
    backlog.cut(entry)
    assert backlog.verify(entry).result.passed, "a unit counts, under whatever name"
    (backlog.tree / os.fsdecode(b"\xff.txt")).touch()
    with pytest.raises(BaseDrift) as refused:
        backlog.verify(entry, again=True)
    assert refused.value.context["paths"] == ["\\xff.txt"]
    backlog.sound()


@pytest.mark.rule("H-6")
def test_what_counts_is_what_counted_when_it_was_cut(backlog):
    write(backlog.tree, {"dist/x": "1"})
    entry = backlog.approved({"a.txt": "new\n"})
    backlog.cut(entry)
    backlog.become("vic").policy = Policy(ignore=("dist",))
    assert backlog.verify(entry).result.passed


@pytest.mark.rule("H-4")
def test_an_approval_that_is_too_old_can_be_given_again(backlog):
    entry = backlog.approved({"a.txt": "new\n"})
    backlog.kernel.policy = short = Policy(approval_seconds=1)
    until(lambda: _expired(backlog, entry, short))
    assert backlog.review(entry, "approve")["status"] == "reviewed_approved"
    assert backlog.rows()["review_decision"] == 2
    assert backlog.cut(entry).status == "applied"
    backlog.sound()


def _expired(backlog, entry, policy):
    with backlog.store.read() as rows:
        (decision,) = Changes(rows).decisions(entry)
        return decision.decided_at + policy.approval_seconds * 1_000_000 <= rows.now()


@pytest.mark.rule("H-4", "H-5")
@pytest.mark.guarantee("G18")
@pytest.mark.parametrize("what", ["role", "key", "own"])
def test_a_word_that_counts_no_more_lets_nothing_be_cut(backlog, what):
    if what == "own":
        backlog.kernel.policy = Policy(authors_may_review=True)
        backlog.kernel.note_policy()
        entry = backlog.mark({"a.txt": "new\n"}, who="tester")
        backlog.sweep()
        assert backlog.review(entry, "approve", who="tester")["status"] == "reviewed_approved"
    else:
        entry = backlog.approved({"a.txt": "new\n"})
    if what == "role":
        backlog.ask("tester", "principals.take", name="rob", roles=["reviewer"])
    elif what == "key":
        with backlog.store.read() as rows:
            key = backlog.workspace.keyring.signer(rows, "rob").key.fingerprint
        backlog.ask("tester", "keys.revoke", key=key)
    with pytest.raises(GuardFailed) as refused:
        backlog.cut(entry)
    assert refused.value.code == "G-CUT-APPROVED"


@pytest.mark.rule("H-6")
def test_what_cannot_be_given_back_keeps_nothing_else_from_being(backlog):
    entry = backlog.approved({"a.txt": None, "b.txt": "new\n", "sub/c.txt": "new\n"})
    backlog.cut(entry)
    write(backlog.tree, {"a.txt/y": "somebody's"})
    done = backlog.verify(entry)
    assert done.undo.status == "stuck"
    assert {(backlog.tree / name).read_text() for name in ("b.txt", "sub/c.txt")} == {
        "two\n",
        "three\n",
    }
    with backlog.store.read() as rows:
        ((body,),) = rows.read("SELECT body FROM events WHERE body LIKE '%CUT_STUCK%'")
    assert "a.txt" in json.loads(body)["detail"]["why"]
    shutil.rmtree(backlog.tree / "a.txt")
    assert (
        backlog.verify(entry).undo.status == "applied"
        and (backlog.tree / "a.txt").read_text() == "one\n"
    )
    backlog.sound()


@pytest.mark.rule("H-6")
def test_folders_come_back_as_they_were(backlog):
    write(backlog.tree, {"secret/key": "k\n"})
    (backlog.tree / "secret").chmod(0o700)
    (backlog.tree / "logs").mkdir()
    (backlog.tree / "spool").mkdir(mode=0o750)
    made = contents(backlog, {"secret/key": None, "logs/x": (b"2\n", 0o644)})
    digest = sha256_hex(b"L")
    units = (*made.unit, unit_of("spool", None, File(digest, 0o644)))
    proposal = Proposal(require_manifest(Manifest("tree", "repo", units)), {digest: given(b"L")})
    proposal.bring(backlog.kernel.artifacts)
    entry = backlog.approved(what=proposal.manifest)
    backlog.cut(entry)
    assert (backlog.tree / "spool").is_file() and not (backlog.tree / "secret").exists()
    (backlog.tree / "logs/x").unlink()
    assert backlog.verify(entry).undo.status == "applied"
    modes = {
        name: (backlog.tree / name).stat().st_mode & 0o7777 for name in ("secret", "logs", "spool")
    }
    assert modes == {"secret": 0o700, "logs": 0o755, "spool": 0o750}
    assert (backlog.tree / "secret/key").read_text() == "k\n" and not list(
        (backlog.tree / "logs").iterdir()
    )


@pytest.mark.rule("H-2")
@pytest.mark.parametrize("mode", [0o4755, 0o000, 0o200, 0o1777])
def test_only_plain_permissions_are_changed(backlog, mode):
    with pytest.raises(InvalidConfig, match="plain permissions"):
        from_contents(backlog.wish(), {"a.txt": (b"2", mode)})
    (backlog.tree / "b.txt").chmod(0o4755)
    with pytest.raises(InvalidConfig, match="plain permissions"):
        from_contents(backlog.wish(), {"b.txt": (b"2", 0o755)})


@pytest.mark.rule("H-2")
@pytest.mark.parametrize(
    "leads_to", ["a/b/up/../outside.txt", "x/../../y", "./x", "x//y", "x/", "..", "../x"]
)
def test_no_chain_of_links_leads_out(leads_to):
    with pytest.raises(InvalidConfig):
        check_link("out", leads_to)
    check_link("a/b/up", "../..")


@pytest.mark.rule("H-6")
def test_results_follow_each_other_whatever_the_clock_says(backlog, monkeypatch):
    entry = backlog.approved({"a.txt": "new\n"})
    backlog.cut(entry)
    first = backlog.verify(entry).result
    source = type(backlog.kernel.store.sources)
    real = source.now
    monkeypatch.setattr(source, "now", lambda self: real(self) - 3_600_000_000)
    second = backlog.verify(entry, again=True).result
    third = backlog.verify(entry, again=True).result
    assert [r.prior_verify_result_id for r in (second, third)] == [
        first.verify_result_id,
        second.verify_result_id,
    ]
    backlog.sound()


@pytest.mark.rule("H-5")
def test_the_whole_tree_is_looked_at_again_after_a_crash_before_the_cut(backlog, monkeypatch):
    backlog.kernel.policy = strict = Policy(drift="tree")
    entry = backlog.approved({"a.txt": "new\n"})
    backlog.become("max").policy = strict
    with monkeypatch.context() as patched:
        patched.setattr(
            "onceward.changes.cut.carry",
            lambda *a, **k: (_ for _ in ()).throw(KeyboardInterrupt),
        )
        with pytest.raises(KeyboardInterrupt):
            backlog.cut(entry)
    write(backlog.tree, {"b.txt": "changed by the way"})
    assert backlog.cut(entry).status == "undone" and (backlog.tree / "a.txt").read_text() == "one\n"


@pytest.mark.rule("H-5")
def test_what_failed_is_not_cut_again(backlog):
    entry = backlog.approved({"a.txt": "new\n"})
    backlog.cut(entry)
    (backlog.tree / "a.txt").unlink()
    backlog.verify(entry)
    with pytest.raises(GuardFailed) as refused:
        backlog.cut(entry)
    assert refused.value.code == "G-CUT-ONCE"


@pytest.mark.rule("E-1")
@pytest.mark.guarantee("G18", "G19")
@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
def test_a_forged_escalation_is_found_though_its_chain_is_whole(backlog):
    """Proposal and author of an escalation replaced by somebody who can write to the database."""
    entry = backlog.approved({"a.txt": "good\n"})
    backlog.cut(entry)
    (backlog.tree / "a.txt").unlink()
    escalation = backlog.verify(entry).escalation
    write(backlog.tree, {"a.txt": "one\n"})
    backlog.become("tester")
    other = backlog.mark({"a.txt": "evil\n"})
    good, evil = backlog.envelope(escalation), backlog.envelope(other)
    backlog.kernel.close()
    bare = apsw.Connection(str(backlog.workspace.folder / "onceward.db"))
    for (name,) in list(bare.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")):
        bare.execute(f"DROP TRIGGER {name}")
    stream = f"entry:{escalation}"
    ((number, position, seq, at, source, body, prev),) = bare.execute(
        "SELECT s.stream_no, e.position, e.seq, e.at, e.source, e.body, e.prev_hash FROM events e"
        " JOIN streams s ON s.stream_no = e.stream_no WHERE s.stream = ?",
        (stream,),
    )
    forged = body.replace(good.content_hash, evil.content_hash)
    hash_ = link(stream, seq, at, source, forged.encode(), prev)
    bare.execute(
        "UPDATE events SET body = ?, hash = ? WHERE position = ?", (forged, hash_, position)
    )
    bare.execute(
        "UPDATE decision_backlog_history SET detail = replace(detail, ?, ?) WHERE entry_id = ?",
        (good.content_hash, evil.content_hash, escalation),
    )
    bare.execute(
        "UPDATE manifest_envelope SET content_hash = ?, body = ? WHERE entry_id = ?",
        (evil.content_hash, evil.body, escalation),
    )
    bare.execute("DELETE FROM manifest_unit WHERE manifest_id = ?", (good.manifest_id,))
    columns = "path, before, after, before_mode, after_mode"
    bare.execute(
        f"INSERT INTO manifest_unit SELECT ?, {columns} FROM manifest_unit WHERE manifest_id = ?",
        (good.manifest_id, evil.manifest_id),
    )
    bare.execute("DELETE FROM artifact_refs WHERE owner = ?", (good.manifest_id,))
    rest = ", ".join(
        row[1] for row in bare.execute("PRAGMA table_info(artifact_refs)") if row[1] != "owner"
    )
    bare.execute(
        f"INSERT INTO artifact_refs (owner, {rest}) SELECT ?, {rest} FROM artifact_refs WHERE owner = ?",
        (good.manifest_id, evil.manifest_id),
    )
    bare.close()
    assert number
    backlog.become("tester")
    with backlog.store.read() as rows:
        assert [fault.rule for fault in verify_rows(rows).faults] == ["backlog"]


def test_lines_that_stand_there_thousands_of_times_are_compared_in_time():
    many = ["x"] * 60_000
    found = compared([*many, "a", ""], [*many, "b", ""])
    assert [line.text for line in found if line.sign in "+-"] == ["a", "b"]


GIT = ("git", "-c", "user.name=x", "-c", "user.email=x@example.org")


@pytest.fixture
def repository(backlog, monkeypatch):
    for name, value in (("NAME", "x"), ("EMAIL", "x@example.org")):
        monkeypatch.setenv(f"GIT_AUTHOR_{name}", value)
        monkeypatch.setenv(f"GIT_COMMITTER_{name}", value)

    def run(*words):
        return subprocess.run(
            ["git", *words], cwd=backlog.tree, check=True, capture_output=True, text=True
        ).stdout

    run("init", "-q")
    run("add", "-A")
    run("commit", "-qm", "first")
    return run


def committed(backlog, units):
    return git.commit(
        backlog.tree, units, "title", {"Onceward-Change-Set": "cst_1"}, "Onceward-Change-Set"
    )


@pytest.mark.rule("H-5")
@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
def test_only_what_was_approved_is_committed(backlog, repository, monkeypatch):
    manifest = backlog.propose({"a.txt": None, "renamed.txt": "one\n", "b.txt": "new\n"})
    write(backlog.tree, {"a.txt": None, "renamed.txt": "one\n", "b.txt": "EVIL\n"})
    with pytest.raises(BaseDrift, match="not committed"):
        committed(backlog, manifest.unit)
    assert repository("log", "--oneline").count("\n") == 1
    write(backlog.tree, {"b.txt": "new\n"})
    monkeypatch.setenv("GIT_DIR", str(backlog.home / "elsewhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(backlog.home / "index"))
    made = committed(backlog, manifest.unit)
    monkeypatch.delenv("GIT_DIR")
    monkeypatch.delenv("GIT_INDEX_FILE")
    assert (
        repository("rev-parse", "HEAD").strip() == made
        and repository("status", "--porcelain") == ""
    )
    shown = repository("show", "--name-status", "--no-renames", "--format=").split()
    assert shown == ["D", "a.txt", "M", "b.txt", "A", "renamed.txt"]
    assert committed(backlog, manifest.unit) == made


@pytest.mark.rule("H-5")
@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
def test_a_hook_that_makes_something_else_of_a_commit_is_told(backlog, repository):
    manifest = backlog.propose({"b.txt": "new\n"})
    write(backlog.tree, {"b.txt": "new\n"})
    hook = backlog.tree / ".git/hooks/pre-commit"
    hook.write_text("#!/bin/sh\necho EVIL > b.txt; git add b.txt\n")
    hook.chmod(0o755)
    with pytest.raises((BaseDrift, ExecutionFailed)):
        committed(backlog, manifest.unit)
