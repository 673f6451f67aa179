"""Every refusal of a change, by values: no database, no files, no clock (H-1 to H-8)."""

from __future__ import annotations

import msgspec
import pytest

from onceward.changes import rules
from onceward.changes.machine import CHANGE, REVISABLE, VERIFIABLE
from onceward.changes.manifest import Manifest, Origin
from onceward.core.canon import sha256_hex
from onceward.core.changes import (
    LINK,
    ChangeSet,
    Decision,
    Entry,
    PairSignature,
    PathRule,
    Policy,
    Unit,
)
from onceward.core.limits import MAX_UNITS
from onceward.core.machine import NEW
from onceward.core.sagas import Run
from onceward.errors import GuardFailed
from refusals import refused, refused_unless

A, B, C = "aa" * 32, "bb" * 32, "cc" * 32
UNIT = Unit("a.txt", A, B, 0o644, 0o644)
MANIFEST = Manifest("tree", "repo", (UNIT,))
HASH = MANIFEST.content_hash()
DAY = 86_400_000_000
NOW = 30 * DAY
POLICY = Policy(approval_seconds=7 * 86_400)
ENTRY = Entry("ent_1", "key", "ann", "tree", "repo", "why", None, "reviewed_approved", 3)
STATUSES = [state for state in CHANGE.states if state != NEW]
"""Every state of an entry."""


def entry(status):
    return msgspec.structs.replace(ENTRY, status=status)


def manifest(*units, **but):
    return msgspec.structs.replace(MANIFEST, unit=tuple(units) or (UNIT,), **but)


def change_set(status="applied"):
    return ChangeSet("cst_1", "ent_1", "dec_1", "cut", None, "eva", status, 2)


def decision(reviewer="rob", word="approve", content_hash=HASH, at=NOW - DAY):
    return Decision(
        decision_id=f"dec_{reviewer}",
        entry_id="ent_1",
        content_hash=content_hash,
        reviewer=reviewer,
        decision=word,
        reason="",
        statement_hash=None,
        decided_at=at,
        entry_version=2,
    )


def approvals(*decisions, policy=POLICY, places=("repo/a.txt",), roles=()):
    return rules.Approvals(decisions, HASH, places, policy, dict(roles))


def signature(principal="eva", fingerprint="key-1", tool_revision=A):
    return PairSignature(
        signature_id="sig_1",
        entry_id="ent_1",
        role="executor",
        change_set_id="cst_1",
        verify_result_id=None,
        principal=principal,
        fingerprint=fingerprint,
        tool_revision=tool_revision,
        statement_hash=C,
    )


# What a manifest says.


@pytest.mark.rule("H-2")
@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (msgspec.structs.replace(MANIFEST, unit=()), f"1 to {MAX_UNITS:,} units, not 0"),
        (manifest(check=("",)), "a program and its words"),
        (manifest(check=("true", "a\0b")), "a program and its words"),
        (manifest(target="a/../b"), ""),
        (manifest(base="x"), "the base of a change"),
        (manifest(Unit("../a", A, B, 0o644, 0o644)), ""),
        (manifest(UNIT, UNIT), "a.txt stands twice in the change"),
        (manifest(Unit("a", A, A, 0o644, 0o644)), "a would stay as it is"),
        (manifest(Unit("a", None, "x", None, 0o644)), "a needs a SHA-256"),
        (manifest(Unit("a", None, A)), "a SHA-256 and a mode, or neither"),
        (manifest(Unit("a", A, None, None)), "a SHA-256 and a mode, or neither"),
        (manifest(Unit("a", None, A, None, 0o644), cutter="mine"), "no mode: it is no file"),
        (manifest(Unit("a", None, A, None, 0o4755)), "only plain permissions"),
        (manifest(Unit("a", None, A, None, 0o044)), "its owner can read it"),
        (
            manifest(Unit("a", None, A, None, 0o644), Unit("a/b/c", None, B, None, 0o644)),
            "a/b/c would lie inside the file a",
        ),
        (manifest(Unit("a", None, A), cutter="mine", ignores=B), "only a change of a tree"),
        (manifest(Unit("a", None, A), cutter="mine", origin=Origin("bld_1", B)), "has an origin"),
    ],
)
def test_a_manifest_that_says_nothing_exact_is_refused(bad, words):
    with refused("INVALID_CONFIG", words):
        rules.require_manifest(bad)


@pytest.mark.rule("H-2")
def test_a_manifest_is_brought_into_its_one_form():
    units = (
        Unit("z", A, None, 0o644),
        Unit("link", None, A, None, LINK),
        Unit("z/inside", None, B, None, 0o755),
    )
    made = rules.require_manifest(manifest(*units))
    assert made.paths() == ["link", "z", "z/inside"]
    assert rules.require_manifest(made) == made
    on_a_base = manifest(base=A, ignores=B, origin=Origin("bld_1", C))
    assert rules.require_manifest(on_a_base) == on_a_base
    plain = Manifest("mine", "bucket", (Unit("a", None, A),))
    assert rules.require_manifest(plain) == plain


@pytest.mark.rule("H-2")
def test_a_manifest_is_taken_in_its_one_form_only():
    text = MANIFEST.text().encode()
    assert rules.require_manifest_text(text) == MANIFEST
    with refused("INVALID_CONFIG", "this is no manifest"):
        rules.require_manifest_text(b"{}")
    with refused("INVALID_CONFIG", "not in canonical form"):
        rules.require_manifest_text(text + b"\n")


@pytest.mark.rule("H-5", "S-2")
@pytest.mark.parametrize(
    "plan", [("plan-1@1", "ops"), ("plan-1@2", "ops"), ("plan-1@1", "other"), None]
)
def test_a_change_of_the_registry_is_one_plan_under_its_own_name(plan):
    unit = Unit("plan-1@1", None, A)
    what = Manifest("registry", "ops", (unit,))
    with refused_unless(plan == ("plan-1@1", "ops"), "INVALID_CONFIG", "is one plan"):
        rules.require_one_plan(what, plan)
    for other in (("plan-1@1", "ops"), None):
        with refused("INVALID_CONFIG", "is one plan"):
            rules.require_one_plan(Manifest("registry", "ops", (unit, UNIT)), other)


# What a change is made to.


def test_a_change_is_for_a_cutter_that_the_settings_name():
    rules.require_known_cutter("bucket", {"bucket": "mine:Bucket"})
    assert rules.require_named_cutter("bucket", {"bucket": "mine:Bucket"}) == "mine:Bucket"
    for rule in (rules.require_known_cutter, rules.require_named_cutter):
        with refused("INVALID_CONFIG", "there is no cutter 'queue' here"):
            rule("queue", {"bucket": "mine:Bucket"})


@pytest.mark.parametrize("lacking", [None, "paths", "read", "write"])
def test_a_place_of_ones_own_has_its_three_methods(lacking):
    words = {word: staticmethod(lambda *given: None) for word in ("paths", "read", "write")}
    words.pop(lacking, None)
    with refused_unless(
        lacking is None, "INVALID_CONFIG", "must have paths(), read(path) and write"
    ):
        rules.require_place(type("Bucket", (), words)())


@pytest.mark.rule("H-2")
@pytest.mark.parametrize("good", [True, False])
def test_a_tree_is_a_folder_by_its_own_name_and_none_of_ours(good):
    with refused_unless(good, "INVALID_CONFIG", "repo is nothing that is changed"):
        rules.require_not_machinery("repo", not good)
    with refused_unless(good, "INVALID_CONFIG", "repo is not the tree's own name"):
        rules.require_own_name("repo", "/srv/repo", good)
    with refused_unless(good, "INVALID_CONFIG", "repo is no folder"):
        rules.require_folder("repo", good)


# Making a proposal.


@pytest.mark.rule("H-2")
def test_a_proposal_changes_something():
    rules.require_units([UNIT])
    with refused("INVALID_CONFIG", "there is nothing to change"):
        rules.require_units([])


@pytest.mark.rule("H-2")
@pytest.mark.parametrize(("above", "good"), [("", True), ("dir", True), ("file", False)])
def test_a_proposed_file_lies_inside_no_other_that_stays(above, good):
    with refused_unless(good, "INVALID_CONFIG", "would lie inside the file file"):
        rules.require_not_inside("x/y", above, {"dir"})


@pytest.mark.rule("H-2")
@pytest.mark.parametrize("good", [True, False])
def test_what_is_changed_is_a_file_and_what_goes_is_there(good):
    with refused_unless(good, "INVALID_CONFIG", "is to go, and is not there"):
        rules.require_removable("a", good)
    with refused_unless(good, "INVALID_CONFIG", "is there, and is no file"):
        rules.require_plain("a", not good)


@pytest.mark.rule("H-2")
def test_a_proposal_says_what_the_tree_ignores():
    rules.require_same_ignores(manifest(ignores=A), A)
    with refused("BASE_DRIFT", "a .gitignore of repo was changed"):
        rules.require_same_ignores(manifest(ignores=A), B)


@pytest.mark.rule("H-2")
@pytest.mark.parametrize(
    "base",
    [("bld_1", A, "repo"), ("bld_2", A, "repo"), ("bld_1", B, "repo"), ("bld_1", A, "x"), None],
)
def test_the_base_of_a_proposal_is_what_its_build_kept(base):
    good = base == ("bld_1", A, "repo")
    with refused_unless(good, "INVALID_CONFIG", "build bld_1 kept no such state of repo"):
        rules.require_kept_base("repo", Origin("bld_1", A), base)


@pytest.mark.rule("H-2")
@pytest.mark.parametrize("drift", [[UNIT], [], [UNIT, UNIT]])
def test_a_proposal_says_all_that_was_changed_since_its_base(drift):
    with refused_unless(drift == [UNIT], "BASE_DRIFT", "repo was changed while"):
        rules.require_same_drift("repo", Origin("bld_1", A, (UNIT,)), drift)


@pytest.mark.rule("H-2")
@pytest.mark.parametrize("tree", ["repo", "other"])
def test_a_proposal_is_made_on_a_state_of_its_own_tree(tree):
    with refused_unless(tree == "repo", "INVALID_CONFIG", "kept the state of other, not of repo"):
        rules.require_base_of_tree("bld_1", tree, "repo")


@pytest.mark.rule("H-2")
def test_work_in_place_is_not_passed_over():
    rules.require_not_in_place("bld_1", [], "")
    with refused("BASE_DRIFT", "a.txt changed in place after build bld_1 began"):
        rules.require_not_in_place("bld_1", ["a.txt"], "a.txt")


@pytest.mark.rule("H-2")
@pytest.mark.parametrize(
    ("paths", "accepted", "good"),
    [([], "", True), (["a.txt"], A, True), (["a.txt"], "", False), (["a.txt"], B, False)],
)
def test_a_proposal_hides_no_change_by_others_that_nobody_accepted(paths, accepted, good):
    with refused_unless(good, "BASE_DRIFT", "the proposal would hide that"):
        rules.require_drift_shown("bld_1", paths, "a.txt", digest=A, accepted=accepted)


@pytest.mark.rule("H-2")
@pytest.mark.parametrize("good", [True, False])
def test_a_patch_fits_as_it_stands_or_not_at_all(good):
    with refused_unless(good, "BASE_DRIFT", "not what the patch was made on, at line 7"):
        rules.require_fitting_hunk("a", 7, good)
    with refused_unless(good, "BASE_DRIFT", "is not there, and the patch changes it"):
        rules.require_patched_file("a", good)
    with refused_unless(good, "BASE_DRIFT", "is there already, and the patch makes it"):
        rules.require_new_file("a", not good)
    with refused_unless(good, "INVALID_CONFIG", "a stands twice in the patch"):
        rules.require_patched_once("a", not good)
    with refused_unless(good, "BASE_DRIFT", "has more in it than the patch removes"):
        rules.require_emptied("a", not good)


@pytest.mark.parametrize("state", ["SUCCESS", "ACTIVE", "FAILED"])
def test_only_what_a_build_finished_is_proposed(state):
    with refused_unless(state == "SUCCESS", "INVALID_CONFIG", f"build bld_1 is {state}"):
        rules.require_finished_build("bld_1", state)


def test_the_files_of_a_build_are_of_its_stages_and_one_of_each_name():
    rules.require_stages(["a"], ["a", "b"])
    rules.require_one_maker("x", True, {"a"})
    rules.require_made_files("bld_1", ["x"], {"a"})
    with refused("INVALID_CONFIG", "the build has no stage 'c'; it has a, b"):
        rules.require_stages(["a", "c"], ["a", "b"])
    with refused("INVALID_CONFIG", "two steps made a x"):
        rules.require_one_maker("x", False, {"a"})
    with refused("INVALID_CONFIG", "build bld_1 made no files in a, b"):
        rules.require_made_files("bld_1", [], {"b", "a"})


# Marking, revising and looking.


@pytest.mark.rule("H-2")
@pytest.mark.parametrize(
    ("but", "good"),
    [
        ({}, True),
        ({"author": "eva"}, False),
        ({"manifest": A}, False),
        ({"needs": ["ent_0"]}, False),
    ],
)
def test_one_key_is_one_entry(but, good):
    same = {"author": "ann", "manifest": HASH, "needs": []}
    with refused_unless(good, "URM_IDEMPOTENCY_KEY_CONFLICT", "the key key is that of ent_1"):
        rules.require_same_mark(ENTRY, "key", **{**same, **but}, proposed={HASH, B}, known_needs=[])


@pytest.mark.rule("H-4")
@pytest.mark.parametrize("status", STATUSES)
def test_what_is_proposed_is_changed_until_it_is_approved(status):
    good = status in REVISABLE
    with refused_unless(good, "ILLEGAL_TRANSITION", f"the entry is {status}; what it proposes"):
        rules.require_revisable(entry(status))


@pytest.mark.rule("H-4")
@pytest.mark.parametrize("but", [{}, {"cutter": "mine"}, {"target": "other"}])
def test_a_change_stays_one_of_the_same_place(but):
    with refused_unless(not but, "INVALID_CONFIG", "must have the same target"):
        rules.require_same_place(ENTRY, manifest(**but))


def test_only_paths_of_a_change_have_a_difference():
    rules.require_paths_of_change([])
    with refused("NOT_FOUND", "has nothing to do with b.txt"):
        rules.require_paths_of_change(["b.txt", "c.txt"])


# Reviewing and abandoning.


@pytest.mark.rule("H-4")
@pytest.mark.parametrize("word", ["approve", "defer", "reject", "approved", ""])
def test_a_review_is_one_of_three_words(word):
    good = word in ("approve", "defer", "reject")
    with refused_unless(good, "INVALID_CONFIG", "the decision must be approve, defer or reject"):
        rules.require_decision(word)


@pytest.mark.rule("H-4")
@pytest.mark.parametrize("digest", [HASH, A])
def test_a_review_is_of_exactly_what_is_proposed_now(digest):
    with refused_unless(digest == HASH, "PERMIT_INVALID", "this is not the digest"):
        rules.require_current_manifest("ent_1", HASH, digest)


@pytest.mark.rule("H-4")
@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("word", ["approve", "defer", "reject"])
@pytest.mark.parametrize("reviewer", ["ann", "rob"])
def test_nobody_approves_their_own_change_unless_they_work_alone(reviewer, word, alone):
    good = reviewer == "rob" or word != "approve" or alone
    with refused_unless(good, "PERMISSION_DENIED", "authors do not approve their own changes"):
        policy = Policy(authors_may_review=alone)
        rules.require_other_author("ent_1", reviewer, word, {"ann"}, policy)


@pytest.mark.rule("H-1", "H-4")
@pytest.mark.parametrize("word", ["approve", "defer", "reject"])
@pytest.mark.parametrize("status", STATUSES)
def test_an_entry_is_decided_where_its_table_lets_it_be(status, word):
    good = status == "review_pending" or (
        status == "reviewed_approved" and word in ("approve", "defer")
    )
    with refused_unless(good, "ILLEGAL_TRANSITION", f"the entry is {status}; it cannot be"):
        rules.require_decidable(entry(status), word, False)
    rules.require_decidable(entry(status), word, True)


@pytest.mark.rule("H-5", "H-7")
@pytest.mark.parametrize("status", [None, "open", "stuck", "applied", "undone"])
def test_what_a_cut_has_begun_is_finished_or_undone_first(status):
    good = status not in ("open", "stuck")
    with refused_unless(good, "LOCK_CONFLICT", "it must be over first"):
        rules.require_no_cut("ent_1", None if status is None else change_set(status))


@pytest.mark.rule("H-7")
@pytest.mark.parametrize("reason", ["not needed", " \n", ""])
def test_whoever_gives_a_change_up_says_why(reason):
    with refused_unless(bool(reason.strip()), "INVALID_CONFIG", "a reason is required"):
        rules.require_reason(reason)


# Approvals and cutting.

STRICT = Policy(path=(PathRule("repo/*", 2, "security"),))


@pytest.mark.rule("H-4")
@pytest.mark.parametrize(
    ("given", "lack"),
    [
        (approvals(), "* needs 1 approvals, and has 0"),
        (approvals(decision(content_hash=A)), "* needs 1 approvals"),
        (approvals(decision(), decision(word="defer")), "* needs 1 approvals"),
        (approvals(decision(), policy=STRICT), "repo/* needs 2 approvals, and has 1"),
        (approvals(decision(), decision(), policy=STRICT), "repo/* needs 2 approvals, and has 1"),
        (
            approvals(decision(), decision("eva"), policy=STRICT),
            "repo/* needs an approval by somebody with the role security",
        ),
        (approvals(decision()), ""),
        (approvals(decision(word="defer"), decision()), ""),
        (approvals(decision(), policy=STRICT, places=["other/a.txt"]), ""),
        (
            approvals(decision(), decision("eva"), policy=STRICT, roles={"eva": {"security"}}),
            "",
        ),
    ],
)
def test_approvals_are_enough_by_the_rules_of_the_paths(given, lack):
    assert given.lack().startswith(lack) and bool(given.lack()) == bool(lack)
    good = not lack
    with refused_unless(good, "G-CUT-APPROVED", f"it is not approved as it is now: {lack}"):
        assert rules.require_cuttable(ENTRY, given, [], NOW) == given.last()


@pytest.mark.rule("H-5", "H-8")
def test_what_nobody_approved_is_not_cut_even_where_no_approval_is_asked_for():
    with refused("G-CUT-APPROVED", "nobody approved these bytes"):
        rules.require_cuttable(ENTRY, approvals(policy=Policy(approvals=0)), [], NOW)


@pytest.mark.rule("H-5", "H-8")
@pytest.mark.parametrize("status", STATUSES)
def test_only_what_is_approved_is_cut(status):
    good = status == "reviewed_approved"
    with refused_unless(good, "G-CUT-APPROVED", f"the entry is {status}, not approved"):
        rules.require_cuttable(entry(status), approvals(decision()), [], NOW)


@pytest.mark.rule("H-5", "H-8")
@pytest.mark.parametrize(("age", "good"), [(1, True), (6, True), (7, False), (8, False)])
def test_an_approval_runs_out(age, good):
    with refused_unless(good, "APPROVAL_EXPIRED", "its approval is too old"):
        rules.require_cuttable(ENTRY, approvals(decision(at=NOW - age * DAY)), [], NOW)


@pytest.mark.rule("H-5", "H-8")
def test_what_an_entry_depends_on_is_verified_before_it_is_cut():
    with refused("G-CUT-DEPS", "ent_0 must be verified first"):
        rules.require_cuttable(ENTRY, approvals(decision()), ["ent_0"], NOW)


@pytest.mark.rule("H-8")
def test_an_approval_that_nobody_signed_is_named_in_the_refusal():
    with refused("G-CUT-APPROVED", "and has 0; what rob is said to have decided does not count"):
        doubt = "what rob is said to have decided does not count"
        rules.require_cuttable(ENTRY, approvals(), [], NOW, doubt)


@pytest.mark.rule("H-5", "H-8")
@pytest.mark.parametrize("set_status", ["open", "applied"])
@pytest.mark.parametrize("status", STATUSES)
def test_what_was_cut_and_failed_or_was_given_up_is_not_cut_again(status, set_status):
    over = set_status == "applied" and status in ("verify_failed_escalated", "abandoned")
    with refused_unless(not over, "G-CUT-ONCE", f"it was cut, and is {status}"):
        rules.require_not_cut_before(entry(status), change_set(set_status))


@pytest.mark.rule("H-5")
@pytest.mark.parametrize("bodies", [["{}"], ["old", "{}"], ["{}", "new"], []])
def test_what_is_cut_is_the_text_that_was_approved(bodies):
    good = bodies[-1:] == ["{}"]
    with refused_unless(good, "INTEGRITY_FAULT", "somebody edited it"):
        assert rules.require_approved_text("ent_1", bodies, sha256_hex(b"{}")) == "{}"


@pytest.mark.rule("H-5", "H-6")
@pytest.mark.parametrize("doubt", ["", "nobody signed it"])
def test_what_nobody_signed_is_neither_cut_nor_verified(doubt):
    with refused_unless(not doubt, "G-CUT-APPROVED", "does not count: nobody signed it"):
        rules.require_believed_approval("ent_1", doubt)
    with refused_unless(not doubt, "G-VERIFY-CUT", "are not valid: nobody signed it"):
        rules.require_believed_cut("ent_1", doubt)


@pytest.mark.rule("H-5")
@pytest.mark.parametrize("has_key", [True, False])
def test_whoever_cuts_or_verifies_has_a_key(has_key):
    with refused_unless(has_key, "PERMISSION_DENIED", "eva has no key here to sign with"):
        rules.require_key("eva", has_key)


@pytest.mark.rule("H-5")
@pytest.mark.parametrize(
    ("paths", "words"),
    [([], ""), (["a"], "a is not what the change"), (["a", "b"], "a, b are not what the change")],
)
def test_a_change_is_cut_where_everything_is_what_it_was_made_on(paths, words):
    with refused_unless(not paths, "BASE_DRIFT", words):
        rules.require_unchanged_base(paths)


@pytest.mark.rule("H-5")
@pytest.mark.parametrize("same", [True, False])
def test_a_cut_goes_on_where_nobody_else_changes_its_files(same):
    with refused_unless(same, "BASE_DRIFT", "something else in it has changed"):
        rules.require_unchanged_tree(same)
    with refused_unless(same, "BASE_DRIFT", "a was changed by somebody else meanwhile"):
        rules.require_not_changed_meanwhile("a", same)
    with refused_unless(same, "INVALID_CONFIG", "1 of the new contents cannot be read"):
        rules.require_readable([] if same else [A])
    with refused_unless(same, "INVALID_RESUME_STATE", "somebody else changed a meanwhile"):
        rules.require_restored([] if same else ["a"])
    with refused_unless(same, "BASE_DRIFT", "a is not what was approved: it is not committed"):
        rules.require_as_approved([] if same else ["a"], "it is not committed")


@pytest.mark.rule("H-5")
@pytest.mark.parametrize(
    ("why", "code", "words"),
    [
        ({"error": "BASE_DRIFT", "message": "a has changed"}, "BASE_DRIFT", "a has changed"),
        ({"error": "ValueError", "reason": "failed"}, "EXECUTION_FAILED", "failed"),
        ({}, "EXECUTION_FAILED", "it was given up"),
    ],
)
def test_a_cut_that_was_taken_back_says_why_by_its_code(why, code, words):
    for saga_id, ways in (("sga_1", ["onceward explain sga_1"]), (None, [])):
        with pytest.raises(GuardFailed, match=f"nothing was changed: {words}") as caught:
            rules.refuse_taken_back(change_set("undone"), why, saga_id)
        assert caught.value.code == code
        assert [one.command for one in caught.value.recovery] == ways


@pytest.mark.parametrize("cutter", ["tree", "registry"])
def test_only_a_change_of_a_tree_is_committed_to_git(cutter):
    with refused_unless(cutter == "tree", "INVALID_CONFIG", "--git-commit is for changes of a"):
        rules.require_tree(manifest(cutter=cutter))


# Cutting a change of the registry.


@pytest.mark.rule("H-5", "S-2")
def test_a_plan_is_cut_under_a_grant_where_nothing_stands_against_it():
    rules.require_unopposed([])
    assert rules.require_grant("grt_1") == "grt_1"
    with refused("BASE_DRIFT", "the collection ops has another schema; more"):
        rules.require_unopposed(["the collection ops has another schema", "more"])
    with refused("PERMIT_INVALID", "needs a grant for exactly its plan"):
        rules.require_grant(None)


@pytest.mark.rule("H-5", "S-2")
@pytest.mark.parametrize("state", ["DONE", "COMP_VALUES"])
def test_a_plan_is_cut_when_its_saga_is_done(state):
    run = Run(
        saga_id="sga_1",
        name="assembly",
        idempotency_root="registry:cst_1",
        shape="",
        input="null",
        file="",
        grant_id="grt_1",
        lease="registry:ops",
        lease_fence=1,
        digests="{}",
        last_ok_state=None,
        undone=0,
        stuck=None,
        settled=0,
        state=state,
        version=4,
    )
    with refused_unless(state == "DONE", "EXECUTION_FAILED", "plan-1@1 stopped at COMP_VALUES"):
        rules.require_carried_out("plan-1@1", run)


# Verifying.


def verifiable(status="cut_applied", executor=None, hands=(), **but):
    who = {"principal": "vic", "fingerprint": "key-2", "tool_revision": B, **but}
    return rules.require_verifiable(entry(status), executor, set(hands), **who)


@pytest.mark.rule("H-6", "H-8")
@pytest.mark.parametrize("status", STATUSES)
def test_only_what_was_cut_is_verified(status):
    signed = signature()
    with refused_unless(status in VERIFIABLE, "G-VERIFY-CUT", "there is no cut to verify"):
        assert verifiable(status, signed) is signed
    with refused("G-VERIFY-CUT", "there is no cut to verify"):
        verifiable(status, None)


@pytest.mark.rule("H-6", "H-8")
@pytest.mark.parametrize(
    ("but", "words"),
    [
        ({"principal": "eva"}, "eva carried it out"),
        ({"principal": "vic", "hands": ["vic"]}, "vic carried it out"),
        ({"fingerprint": "key-1"}, "the key that signed the cut"),
        ({"tool_revision": A}, "what carried it out must not be what verifies it"),
    ],
)
def test_who_carried_it_out_does_not_verify_it(but, words):
    verifiable(executor=signature(), hands=["eva"])
    with refused("G-VERIFY-SOD", words):
        verifiable(executor=signature(), **but)


@pytest.mark.rule("H-6")
@pytest.mark.parametrize("others", [[], ["ent_2"]])
def test_nothing_is_verified_while_something_else_is_cut_in_the_same_place(others):
    with refused_unless(not others, "LOCK_CONFLICT", "ent_2 is being cut or restored"):
        rules.require_nothing_else_cut("ent_1", others)


@pytest.mark.rule("H-6")
@pytest.mark.parametrize("status", VERIFIABLE)
@pytest.mark.parametrize(
    ("paths", "accepted", "good"),
    [([], "", True), (["b"], A, True), (["b"], "", False), (["b"], B, False)],
)
def test_drift_beside_a_cut_is_refused_unless_exactly_that_is_accepted(
    paths, accepted, good, status
):
    stays = f"not by a recorded cut; {'it is not verified' if status == 'cut_applied' else 'nothing new is said of it'}"
    with refused_unless(good, "BASE_DRIFT", stays):
        rules.require_drift_accepted(
            entry(status), paths, "b", digest=A, accepted=accepted, principal="vic"
        )


@pytest.mark.rule("H-6")
@pytest.mark.parametrize("stopped", [True, False])
def test_a_check_that_was_stopped_says_nothing(stopped):
    with refused_unless(not stopped, "LOCK_CONFLICT", "stopped before it ended"):
        rules.require_check_ended(stopped)
