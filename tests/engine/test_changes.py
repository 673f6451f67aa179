"""Changes before they touch anything: marked, swept, reviewed for exactly these bytes, abandoned (H-1 to H-4, H-7)."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from helpers import assert_sound, count
from onceward.engine import changes
from onceward.errors import (
    IllegalTransition,
    InvalidConfig,
    NotFound,
    OncewardError,
    PermissionDenied,
    PermitInvalid,
    RequestConflict,
)
from onceward.kernel.changes import Unit
from onceward.kernel.machine import NEW
from onceward.kernel.records import Request
from onceward.lifecycles import change as rules
from onceward.lifecycles.change import CHANGE, Manifest, PathRule, Policy
from onceward.store.tables.changes import Changes

A, B = "aa" * 32, "bb" * 32
TABLES = ("decision_backlog_entry", "decision_backlog_history", "manifest_envelope", "manifest_unit", "review_decision")


def manifest(*units, check=()):
    return Manifest("tree", "repo", units or (Unit("a.txt", None, A, None, 0o644),), check)


@pytest.fixture
def backlog(kernel):
    """Three people beside the tester, and one act a line."""
    for name, roles in (("ann", ["operator"]), ("rob", ["reviewer"]), ("eva", ["reviewer", "granter"])):
        kernel.ask(Request("principals.add", name, {"name": name, "roles": roles}, "tester"))
    return Backlog(kernel.store)


class Backlog:
    def __init__(self, store):
        self.store = store

    def mark(self, key="k1", what=None, author="ann", **words):
        return self.store.write(lambda tx: changes.mark(tx, author, key, what or manifest(), "why not", **words))

    def sweep(self):
        return self.store.write(lambda tx: changes.sweep(tx, "ann"))

    def review(self, entry, word, who="rob", digest=None, policy=None, reason=""):
        digest = digest or self.envelope(entry).content_hash
        act = (who, entry.entry_id, word, digest, reason, policy or Policy())
        return self.store.write(lambda tx: changes.review(tx, *act))

    def abandon(self, entry, why="enough"):
        return self.store.write(lambda tx: changes.abandon(tx, "tester", entry.entry_id, why))

    def get(self, entry):
        with self.store.read() as rows:
            return Changes(rows).get(entry.entry_id)

    def envelope(self, entry):
        with self.store.read() as rows:
            return Changes(rows).envelope(entry.entry_id)

    def history(self, entry):
        with self.store.read() as rows:
            return [(row.from_state, row.to_state, row.actor) for row in Changes(rows).history(entry.entry_id)]

    def rows(self):
        return {table: count(self.store, table) for table in TABLES}

    def sound(self):
        with self.store.read() as rows:
            assert_sound(rows)


@pytest.mark.rule("H-1", "H-2", "H-3", "H-4", "H-8")
def test_an_approval_and_every_phase_repeated_adds_nothing(backlog):
    entry = backlog.mark()
    assert entry.status == "marked" and backlog.mark() == entry
    swept = backlog.sweep()
    assert swept["entries"] == [entry.entry_id] and backlog.sweep()["promoted"] == 0
    done = backlog.review(entry, "approve")
    rows = backlog.rows()
    assert backlog.review(entry, "approve") == done and backlog.mark().entry_id == entry.entry_id
    assert backlog.rows() == rows
    assert rows == {
        **{"decision_backlog_entry": 1, "decision_backlog_history": 3, "manifest_envelope": 1, "manifest_unit": 1},
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
    entry = backlog.mark()
    with pytest.raises(RequestConflict):
        backlog.mark(what=manifest(Unit("b.txt", None, A, None, 0o644)))
    with pytest.raises(RequestConflict):
        backlog.mark(author="rob")
    with pytest.raises(RequestConflict):
        backlog.mark(depends_on=[backlog.mark("k2").entry_id])
    second = backlog.mark("k3", depends_on=[entry.entry_id[:20], entry.entry_id])
    with backlog.store.read() as rows:
        assert [one.entry_id for one in Changes(rows).depends_on(second.entry_id)] == [entry.entry_id]
    with pytest.raises(NotFound):
        backlog.mark("k4", depends_on=["ent_none"])
    backlog.sound()


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
        [Unit(".git/config", None, A, None, 0o644)],
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
)
def test_what_is_no_change_inside_a_tree_is_refused(units):
    with pytest.raises(InvalidConfig):
        rules.checked(Manifest("tree", "repo", tuple(units)))


def test_a_manifest_has_one_form_and_one_hash():
    one, two = Unit("a", None, A, None, 0o644), Unit("b", A, B, 0o644, 0o755)
    first, second = (rules.checked(manifest(*units)) for units in ((one, two), (two, one)))
    assert first == second and first.content_hash() == second.content_hash()
    assert rules.manifest_of(first.text()) == first
    others = [
        manifest(one),
        manifest(one, msgspec.structs.replace(two, after_mode=0o644)),
        manifest(one, two, check=("true",)),
        msgspec.structs.replace(first, target="other"),
        msgspec.structs.replace(first, cutter="mine"),
    ]
    assert len({first.content_hash(), *(rules.checked(other).content_hash() for other in others)}) == 6


@pytest.mark.rule("H-4")
@pytest.mark.guarantee("G18")
def test_an_approval_is_for_these_bytes_by_somebody_else(backlog):
    entry = backlog.mark()
    backlog.sweep()
    with pytest.raises(PermitInvalid, match="not the digest"):
        backlog.review(entry, "approve", digest="cc" * 32)
    with pytest.raises(PermissionDenied, match="authors do not approve"):
        backlog.review(entry, "approve", who="ann")
    assert backlog.rows()["review_decision"] == 0
    allowed = backlog.review(entry, "approve", who="ann", policy=Policy(authors_may_review=True))
    assert allowed["status"] == "reviewed_approved"
    backlog.sound()


@pytest.mark.rule("H-4")
def test_below_a_quorum_a_word_is_a_row_and_no_arrow(backlog):
    policy = Policy(approvals=2, path=(PathRule("src/*", 2, "granter"),))
    entry = backlog.mark(what=manifest(Unit("src/pay.py", A, B, 0o644, 0o644)))
    backlog.sweep()
    first = backlog.review(entry, "approve", policy=policy)
    assert first["status"] == "review_pending" and first["lacks"] == "* needs 2 approvals, and has 1"
    again = backlog.review(entry, "approve", policy=policy)
    assert again["decision_id"] == first["decision_id"], "the same word twice is one word"
    second = backlog.review(entry, "approve", who="tester", policy=policy)
    assert second["lacks"] == "src/* needs an approval by somebody with the role granter"
    assert backlog.review(entry, "approve", who="eva", policy=policy)["status"] == "reviewed_approved"
    assert backlog.rows()["review_decision"] == 3 and len(backlog.history(entry)) == 3
    backlog.sound()


@pytest.mark.rule("H-3", "H-4")
def test_deferred_comes_up_again_and_rejected_never(backlog):
    entry, other = backlog.mark(), backlog.mark("k2")
    backlog.sweep()
    assert backlog.review(entry, "defer", reason="later")["status"] == "reviewed_deferred"
    assert backlog.review(other, "reject")["status"] == "reviewed_rejected"
    assert backlog.sweep()["entries"] == [entry.entry_id]
    assert backlog.review(entry, "approve")["status"] == "reviewed_approved"
    assert backlog.review(entry, "defer", who="eva")["status"] == "reviewed_deferred", (
        "before the cut it may be taken back"
    )
    assert backlog.sweep()["entries"] == [entry.entry_id]
    assert backlog.review(entry, "approve")["status"] == "reviewed_approved", "the same word, on what came up again"
    with pytest.raises(IllegalTransition):
        backlog.review(other, "approve")
    assert backlog.abandon(other)["status"] == "abandoned"
    rows = backlog.rows()
    assert backlog.abandon(other)["status"] == "abandoned" and backlog.rows() == rows
    with pytest.raises(InvalidConfig):
        backlog.abandon(entry, why=" ")
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
    for source, target in itertools.product(ALLOWED, CHANGE.states):
        assert CHANGE.allows(source, target) == (target in ALLOWED[source]), (source, target)


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
