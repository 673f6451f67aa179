"""Changes before they touch anything: marked, swept, reviewed for exactly these bytes, abandoned (H-1 to H-4, H-7)."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from backlog import PEOPLE
from helpers import count
from onceward.changes.machine import CHANGE
from onceward.changes.manifest import Manifest, manifest_of
from onceward.changes.rules import require_manifest
from onceward.core.changes import LINK, PathRule, Policy, Unit
from onceward.core.machine import NEW
from onceward.core.tree_paths import check_link
from onceward.errors import (
    IllegalTransition,
    InvalidConfig,
    NotFound,
    OncewardError,
    PermissionDenied,
    PermitInvalid,
    RequestConflict,
)
from onceward.evidence.verify import verify_rows
from onceward.store.tables.changes import Changes
from onceward.store.tables.events import events_of

A, B = "aa" * 32, "bb" * 32


def manifest(*units, check=()):
    return Manifest("tree", "repo", units or (Unit("a.txt", None, A, None, 0o644),), check)


@pytest.mark.rule("H-1", "H-2", "H-3", "H-4", "H-8")
def test_an_approval_and_every_phase_repeated_adds_nothing(backlog):
    what = backlog.propose({"a.txt": "2\n"})
    entry = backlog.mark(what=what, key="k1")
    assert backlog.status(entry) == "marked" and backlog.mark(what=what, key="k1") == entry
    assert backlog.sweep()["entries"] == [entry] and backlog.sweep()["promoted"] == 0
    done = backlog.review(entry, "approve")
    rows = backlog.rows()
    assert backlog.review(entry, "approve") == done and backlog.mark(what=what, key="k1") == entry
    assert backlog.rows() == rows
    assert {table: number for table, number in rows.items() if number} == {
        **{
            "decision_backlog_entry": 1,
            "decision_backlog_history": 3,
            "manifest_envelope": 1,
            "manifest_unit": 1,
        },
        "review_decision": 1,
    }
    assert backlog.history(entry) == [
        (None, "marked", "ann"),
        ("marked", "review_pending", "ann"),
        ("review_pending", "reviewed_approved", "rob"),
    ]
    assert count(backlog.store, "decision_backlog_sweep_log") == 2, "every pass is on the record"
    backlog.sound()


@pytest.mark.rule("H-2")
def test_a_key_is_one_proposal(backlog):
    what = backlog.propose({"a.txt": "2"})
    entry = backlog.mark(what=what, key="k1")
    with pytest.raises(RequestConflict):
        backlog.mark({"b.txt": "2"}, key="k1")
    with pytest.raises(RequestConflict):
        backlog.mark(what=what, key="k1", who="tester")
    with pytest.raises(RequestConflict):
        backlog.mark(what=what, key="k1", depends_on=[backlog.mark()])
    second = backlog.mark({"b.txt": "x"}, depends_on=[entry[:22], entry])
    with backlog.store.read() as rows:
        assert [one.entry_id for one in Changes(rows).depends_on(second)] == [entry]
    with pytest.raises(NotFound):
        backlog.mark(depends_on=["ent_none"])
    backlog.sound()


@pytest.mark.rule("H-2")
def test_what_was_not_brought_cannot_be_marked(backlog):
    what = backlog.propose({"a.txt": "2"})
    rows = backlog.rows()
    for digest in ("ab" * 32, what.unit[0].after):
        with pytest.raises((NotFound, InvalidConfig)):
            backlog.ask("ann", "changes.mark", manifest=digest, key="k")
    (backlog.kernel.artifacts.path_of(what.unit[0].after)).unlink()
    with pytest.raises(NotFound, match="nobody has brought"):
        backlog.mark(what=what)
    odd = Manifest("nobody", "repo", (Unit("a.txt", None, what.unit[0].after),))
    backlog.kernel.artifacts.offer(
        {odd.content_hash(): [odd.text().encode()], what.unit[0].after: [b"2"]}
    )
    with pytest.raises(InvalidConfig, match="no cutter"):
        backlog.mark(what=odd)
    assert backlog.rows() == rows


@pytest.mark.rule("H-2")
@pytest.mark.parametrize(
    "units",
    [
        [],
        [Unit("../x", None, A, None, 0o644)],
        [Unit("/x", None, A, None, 0o644)],
        [Unit("a//b", None, A, None, 0o644)],
        [Unit("a/./b", None, A, None, 0o644)],
        [Unit("", None, A, None, 0o644)],
        [Unit("a\x00b", None, A, None, 0o644)],
        [Unit("a\udc80b", None, A, None, 0o644)],
        [Unit("x" * 1025, None, A, None, 0o644)],
        [Unit(".git/config", None, A, None, 0o644)],
        [Unit(".GIT/config", None, A, None, 0o644)],
        [Unit("x/.onceward/db", None, A, None, 0o644)],
        [Unit("e\u0301", None, A, None, 0o644)],
        [Unit("a", A, A, 0o644, 0o644)],
        [Unit("a", None, None)],
        [Unit("a", None, "short", None, 0o644)],
        [Unit("a", None, A)],
        [Unit("a", None, A, None, 0o4755)],
        [Unit("a", None, A, None, 0o644), Unit("a", A, None, 0o644)],
        [Unit("a", None, A, None, 0o644), Unit("a/b", None, A, None, 0o644)],
    ],
    ids=repr,
)
def test_what_is_no_change_inside_a_tree_is_refused(units):
    with pytest.raises(InvalidConfig):
        require_manifest(Manifest("tree", "repo", tuple(units)))


@pytest.mark.rule("H-2")
@pytest.mark.parametrize(
    "leads_to",
    ["", "/etc/passwd", "..", "../x", "a/../../../x", "a/../../x/.git/config", "../.onceward"],
)
def test_no_link_leads_out_of_the_tree(leads_to):
    with pytest.raises(InvalidConfig):
        check_link("sub/link" if leads_to.startswith("a/") else "link", leads_to)
    check_link("sub/deep/link", "../../x")
    assert require_manifest(manifest(Unit("link", None, A, None, LINK)))


def test_a_manifest_has_one_form_and_one_hash():
    one, two = Unit("a", None, A, None, 0o644), Unit("b", A, B, 0o644, 0o755)
    first, second = (require_manifest(manifest(*units)) for units in ((one, two), (two, one)))
    assert first == second and first.content_hash() == second.content_hash()
    assert manifest_of(first.text()) == first
    others = [
        manifest(one),
        manifest(one, msgspec.structs.replace(two, after_mode=0o644)),
        manifest(one, two, check=("true",)),
        msgspec.structs.replace(first, target="other"),
        msgspec.structs.replace(first, base=A),
    ]
    assert (
        len({first.content_hash(), *(require_manifest(other).content_hash() for other in others)})
        == 6
    )


@pytest.mark.rule("H-4")
@pytest.mark.guarantee("G18")
def test_an_approval_is_for_these_bytes_by_somebody_else(backlog):
    entry = backlog.mark(who="tester")
    backlog.sweep()
    with pytest.raises(PermitInvalid, match="not the digest"):
        backlog.review(entry, "approve", digest="cc" * 32)
    with pytest.raises(PermissionDenied, match="authors do not approve"):
        backlog.review(entry, "approve", who="tester")
    assert backlog.rows()["review_decision"] == 0
    backlog.kernel.policy = Policy(authors_may_review=True)
    backlog.kernel.note_policy()
    assert backlog.review(entry, "approve", who="tester")["status"] == "reviewed_approved"
    backlog.sound()


@pytest.mark.rule("H-9")
@pytest.mark.guarantee("G18")
def test_everybody_does_only_what_they_may(backlog):
    entry = backlog.mark()
    backlog.sweep()
    digest = backlog.envelope(entry).content_hash
    acts = {
        "changes.mark": ("operator", {"manifest": digest, "key": "again"}),
        "changes.sweep": ("operator", {}),
        "changes.review": ("reviewer", {"entry": entry, "decision": "defer", "digest": digest}),
        "changes.abandon": ("admin", {"entry": entry, "reason": "enough"}),
    }
    rows = backlog.rows()
    for (verb, (role, payload)), (who, roles) in itertools.product(acts.items(), PEOPLE.items()):
        if role not in roles:
            with pytest.raises(PermissionDenied, match=f"needs the role {role}"):
                backlog.ask(who, verb, **payload)
    for who in PEOPLE:
        if who != "max":
            with pytest.raises(PermissionDenied, match="executor"):
                backlog.cut(entry, who=who)
        if who != "vic":
            with pytest.raises(PermissionDenied, match="verifier"):
                backlog.verify(entry, who=who)
    assert backlog.rows() == rows


@pytest.mark.rule("H-4")
def test_below_a_quorum_a_word_is_a_row_and_no_arrow(backlog):
    backlog.kernel.policy = Policy(approvals=2, path=(PathRule("sub/*", 2, "granter"),))
    entry = backlog.mark({"sub/pay.py": "1"})
    backlog.sweep()
    first = backlog.review(entry, "approve")
    assert (
        first["status"] == "review_pending" and first["lacks"] == "* needs 2 approvals, and has 1"
    )
    again = backlog.review(entry, "approve")
    assert again == first, "the same word twice is one word"
    second = backlog.review(entry, "approve", who="tester")
    assert second["lacks"] == "sub/* needs an approval by somebody with the role granter"
    assert backlog.review(entry, "approve", who="eva")["status"] == "reviewed_approved"
    assert backlog.rows()["review_decision"] == 3 and len(backlog.history(entry)) == 3
    backlog.sound()


@pytest.mark.rule("H-3", "H-4", "H-7")
def test_deferred_comes_up_again_and_rejected_never(backlog):
    entry, other = backlog.mark(), backlog.mark()
    backlog.sweep()
    assert backlog.review(entry, "defer", reason="later")["status"] == "reviewed_deferred"
    assert backlog.review(other, "reject")["status"] == "reviewed_rejected"
    assert backlog.sweep()["entries"] == [entry]
    assert backlog.review(entry, "approve")["status"] == "reviewed_approved"
    assert backlog.review(entry, "defer", who="eva")["status"] == "reviewed_deferred", (
        "before the cut it is taken back"
    )
    assert backlog.sweep()["entries"] == [entry]
    assert backlog.review(entry, "approve")["status"] == "reviewed_approved", (
        "the same word, on what came up again"
    )
    with pytest.raises(IllegalTransition):
        backlog.review(other, "approve")
    assert backlog.abandon(other)["status"] == "abandoned"
    rows = backlog.rows()
    assert backlog.abandon(other)["status"] == "abandoned" and backlog.rows() == rows
    with pytest.raises(InvalidConfig):
        backlog.abandon(entry, why=" ")
    backlog.sound()


@pytest.mark.rule("H-4")
def test_another_proposal_needs_another_approval(backlog):
    entry = backlog.mark({"a.txt": "2"})
    backlog.sweep()
    backlog.kernel.policy = Policy(approvals=2)
    backlog.review(entry, "approve")
    second = backlog.propose({"a.txt": "3"})
    revise = {"manifest": second.content_hash(), "revises": entry, "reason": "better"}
    assert backlog.ask("ann", "changes.mark", **revise)["entry_id"] == entry
    rows = backlog.rows()
    assert rows["manifest_envelope"] == 2 and backlog.envelope(entry).revision == 2
    assert (
        backlog.ask("ann", "changes.mark", **revise)["entry_id"] == entry and backlog.rows() == rows
    )
    with pytest.raises(PermitInvalid, match="not the digest"):
        backlog.review(entry, "approve", digest="ab" * 32)
    assert (
        backlog.review(entry, "approve", who="eva")["lacks"] == "* needs 2 approvals, and has 1"
    ), "the old is past"
    assert backlog.review(entry, "approve")["status"] == "reviewed_approved"
    with pytest.raises(IllegalTransition, match="cannot be changed now"):
        backlog.ask(
            "ann",
            "changes.mark",
            **{**revise, "manifest": backlog.propose({"a.txt": "4"}).content_hash()},
        )
    (backlog.home / "other").mkdir()
    elsewhere = msgspec.structs.replace(second, target="other")
    backlog.kernel.artifacts.offer({elsewhere.content_hash(): [elsewhere.text().encode()]})
    waiting = backlog.mark({"b.txt": "2"})
    with pytest.raises(InvalidConfig, match="same target"):
        backlog.ask("ann", "changes.mark", manifest=elsewhere.content_hash(), revises=waiting)
    backlog.sound()


ALLOWED = {
    NEW: {"marked"},
    "marked": {"review_pending", "abandoned"},
    "review_pending": {"reviewed_approved", "reviewed_deferred", "reviewed_rejected", "abandoned"},
    "reviewed_approved": {"cut_in_progress", "reviewed_deferred", "abandoned"},
    "reviewed_deferred": {"review_pending", "abandoned"},
    "reviewed_rejected": {"abandoned"},
    "cut_in_progress": {"cut_applied"},
    "cut_applied": {"verify_in_progress", "abandoned"},
    "verify_in_progress": {"verified_complete", "verify_failed_escalated"},
    "verified_complete": {"abandoned"},
    "verify_failed_escalated": {"abandoned"},
    "abandoned": set(),
}


@pytest.mark.rule("H-1")
def test_every_pair_of_states_is_allowed_exactly_where_the_seed_says():
    assert len(CHANGE.states) == 11
    for source, target in itertools.product(ALLOWED, CHANGE.states):
        assert CHANGE.allows(source, target) == (target in ALLOWED[source]), (source, target)
    assert set(CHANGE.persistent) == set(CHANGE.states) - {"cut_in_progress", "verify_in_progress"}


@pytest.mark.rule("H-8")
@pytest.mark.guarantee("G18")
@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE decision_backlog_entry SET status = 'verified_complete'",
        "UPDATE decision_backlog_entry SET status = 'verified_complete', version = version + 1",
        "UPDATE decision_backlog_entry SET author = 'rob', version = version + 1",
        "DELETE FROM decision_backlog_entry",
        "UPDATE decision_backlog_history SET actor = 'rob'",
        "DELETE FROM decision_backlog_history",
        "UPDATE manifest_envelope SET body = '{}'",
        "DELETE FROM manifest_unit",
        "UPDATE review_decision SET decision = 'approve'",
        "DELETE FROM review_decision",
        "UPDATE decision_backlog_sweep_log SET promoted = 0",
        "INSERT INTO decision_backlog_dependency (entry_id, depends_on) SELECT entry_id, entry_id"
        " FROM decision_backlog_entry",
    ],
)
def test_nothing_is_written_past_the_rules(backlog, sql):
    entry = backlog.mark()
    backlog.sweep()
    backlog.review(entry, "reject")
    with pytest.raises(OncewardError) as refused:
        backlog.store.write(lambda tx: tx.write(sql))
    assert refused.value.code == "INTEGRITY_FAULT"
    backlog.sound()


@pytest.mark.rule("H-4", "E-1")
@pytest.mark.guarantee("G18")
def test_a_setting_that_lets_authors_approve_is_part_of_the_signed_record(backlog):
    """Whoever runs the kernel signs for it; an approval of one's own without it is found."""
    entry = backlog.mark({"a.txt": "new\n"}, who="tester")
    backlog.sweep()
    backlog.kernel.policy = Policy(authors_may_review=True)
    backlog.review(entry, "approve", who="tester")
    with backlog.store.read() as rows:
        assert [fault.rule for fault in verify_rows(rows).faults] == ["duty"]
        before = len(list(events_of(rows, "workspace")))
    for _ in range(2):
        backlog.kernel.note_policy()
    other = backlog.mark({"b.txt": "new\n"}, who="tester")
    backlog.sweep()
    backlog.review(other, "approve", who="tester")
    with backlog.store.read() as rows:
        (noted,) = [
            event.facts()
            for event in events_of(rows, "workspace", before)
            if event.facts()["event"] == "SETTINGS_NOTED"
        ]
        assert noted["detail"]["policy"]["authors_may_review"] is True
        assert noted["context"]["actor"] == "tester" and noted["context"]["signed"]
        (fault,) = verify_rows(rows).faults
        assert entry in fault.subject, "only what came before the setting"
