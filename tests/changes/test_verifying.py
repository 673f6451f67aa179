"""Somebody else looks at what was cut: passes it, or takes it back and says so (H-6, H-8)."""

from __future__ import annotations

import json

import pytest

from backlog import Backlog, write
from helpers import count
from onceward.artifacts.trees import scan
from onceward.changes import verify as verifying
from onceward.changes.machine import CHANGE
from onceward.changes.views import change_view
from onceward.core.views import document
from onceward.errors import GuardFailed, OncewardError, PermissionDenied
from onceward.evidence.verify import verify_rows
from onceward.store.tables.changes import Changes
from onceward.subjects import explain
from onceward.workspace import Workspace

GOOD = {
    **{
        "decision_backlog_entry": 1,
        "decision_backlog_history": 7,
        "decision_backlog_dependency": 0,
    },
    **{
        "manifest_envelope": 1,
        "manifest_unit": 2,
        "review_decision": 1,
        "cut_change_set": 1,
        "cut_affected_row": 2,
    },
    **{"verify_result": 1, "dot_pair_signature": 2},
}
"""What one good run adds; docs/adr/0023-changes.md says the same."""


def cut(backlog, files=None, **words):
    entry = backlog.approved(files or {"a.txt": "new\n", "sub/d.txt": "more\n"}, **words)
    backlog.cut(entry)
    return entry


@pytest.mark.rule("H-1", "H-6", "H-8")
@pytest.mark.guarantee("G18")
def test_one_good_run_adds_exactly_these_rows_and_a_repeat_of_any_phase_none(backlog):
    what = backlog.propose({"a.txt": "new\n", "sub/d.txt": "more\n"})
    entry = backlog.mark(what=what, key="k")
    backlog.sweep()
    backlog.review(entry, "approve")
    change_set = backlog.cut(entry)
    done = backlog.verify(entry)
    assert (
        done.result.passed
        and done.fresh
        and done.entry.status == "verified_complete"
        and done.undo is None
    )
    assert backlog.rows() == GOOD
    again = backlog.verify(entry)
    assert again.result == done.result and not again.fresh
    assert backlog.cut(entry) == change_set
    backlog.become("tester")
    assert (
        backlog.mark(what=what, key="k") == entry
        and backlog.review(entry, "approve")["status"] == done.entry.status
    )
    assert backlog.rows() == GOOD
    assert [to for _, to, _ in backlog.history(entry)] == [
        *(
            "marked",
            "review_pending",
            "reviewed_approved",
            "cut_in_progress",
            "cut_applied",
            "verify_in_progress",
        ),
        "verified_complete",
    ]
    backlog.sound()


@pytest.mark.rule("H-6")
@pytest.mark.guarantee("G18")
def test_who_carried_it_out_verifies_nothing_by_no_name_key_or_tool(backlog, monkeypatch):
    backlog.ask("tester", "principals.add", name="max", roles=["verifier"])
    backlog.ask("tester", "principals.add", name="vic", roles=["executor"])
    entry = cut(backlog)
    rows = backlog.rows()
    with pytest.raises(GuardFailed, match="max carried it out") as refused:
        backlog.verify(entry, who="max")
    assert refused.value.code == "G-VERIFY-SOD"
    with monkeypatch.context() as patched:
        with backlog.store.read() as found:
            signed = Changes(found).signatures(entry)[0]
        patched.setattr(verifying, "tool_revision", lambda module: signed.tool_revision)
        with pytest.raises(GuardFailed, match="what carried it out") as refused:
            backlog.verify(entry)
        assert refused.value.code == "G-VERIFY-SOD"
    assert backlog.rows() == rows
    # One key is never two people's.
    backlog.become("tester")
    with backlog.store.read() as found:
        offer = backlog.workspace.keyring.signer(found, "max").offer()
    with pytest.raises(PermissionDenied):
        backlog.ask("vic", "keys.add", key=offer)
    assert backlog.verify(entry).result.passed
    backlog.sound()


@pytest.mark.rule("H-1", "H-6")
def test_what_was_not_cut_cannot_be_verified(backlog):
    entry = backlog.approved()
    with pytest.raises(GuardFailed) as refused:
        backlog.verify(entry)
    assert refused.value.code == "G-VERIFY-CUT"
    backlog.become("tester")
    backlog.abandon(entry)
    with pytest.raises(GuardFailed) as refused:
        backlog.verify(entry)
    assert refused.value.code == "G-VERIFY-CUT"


def edited(tree):
    (tree / "a.txt").write_text("edited\n")


def removed(tree):
    (tree / "sub" / "d.txt").unlink()


def mode(tree):
    (tree / "a.txt").chmod(0o755)


def linked(tree):
    (tree / "a.txt").unlink()
    (tree / "a.txt").symlink_to("b.txt")


@pytest.mark.rule("H-6")
@pytest.mark.parametrize(
    ("meddle", "word", "path"),
    [
        (edited, "different", "a.txt"),
        (removed, "missing", "sub/d.txt"),
        (mode, "different", "a.txt"),
        (linked, "different", "a.txt"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_whatever_is_not_as_approved_is_found_and_escalated(backlog, meddle, word, path):
    entry = cut(backlog)
    meddle(backlog.tree)
    done = backlog.verify(entry)
    assert not done.result.passed and done.entry.status == "verify_failed_escalated"
    assert json.loads(done.result.detail)[word] == {"count": 1, "paths": [path]}
    escalation = backlog.get(done.escalation)
    assert (escalation.status, escalation.escalates, escalation.author) == ("marked", entry, "ann")
    assert (
        backlog.envelope(escalation.entry_id).content_hash == backlog.envelope(entry).content_hash
    )
    assert f"{entry} failed its verification: 1 {word} ({path})" == escalation.reason
    rows = backlog.rows()
    again = backlog.verify(entry)
    assert again.result == done.result and backlog.rows() == rows, "it is escalated once"
    backlog.sound()


@pytest.mark.rule("H-6")
def test_what_failed_is_taken_back_and_what_others_edited_is_left_alone(backlog):
    was = scan(backlog.tree)
    entry = cut(backlog)
    removed(backlog.tree)
    done = backlog.verify(entry)
    assert done.undo.status == "applied" and done.undo.kind == "undo"
    assert scan(backlog.tree) == was and not list(backlog.tree.glob(".onceward*"))
    with backlog.store.read() as rows:
        assert {s.role for s in Changes(rows).signatures(entry)} == {"executor", "verifier"}
        assert Changes(rows).signature_of(done.undo.change_set_id).principal == "vic"
    second = cut(backlog)
    edited(backlog.tree)
    stuck = backlog.verify(second).undo
    assert stuck.status == "stuck" and (backlog.tree / "a.txt").read_text() == "edited\n"
    assert not (backlog.tree / "sub/d.txt").exists(), "the rest is back"
    assert backlog.verify(second).undo.status == "stuck"
    write(backlog.tree, {"a.txt": "one\n"})
    assert backlog.verify(second).undo.status == "applied" and scan(backlog.tree) == was
    rows = backlog.rows()
    assert backlog.verify(second).undo.status == "applied" and backlog.rows() == rows
    backlog.sound()


@pytest.mark.rule("H-6")
def test_the_escalation_leads_to_the_end_by_its_own_life(backlog):
    entry = cut(backlog)
    removed(backlog.tree)
    escalation = backlog.verify(entry).escalation
    backlog.become("tester")
    assert backlog.sweep()["entries"] == [escalation]
    backlog.review(escalation, "approve")
    backlog.cut(escalation)
    assert backlog.verify(escalation).entry.status == "verified_complete"
    assert backlog.status(entry) == "verify_failed_escalated", "what failed stays so (F-7)"
    backlog.sound()


@pytest.mark.rule("H-6")
@pytest.mark.parametrize(
    ("check", "passed"),
    [
        (("sh", "-c", "test new = $(cat a.txt)"), True),
        (("sh", "-c", "echo no good >&2; exit 3"), False),
        (("no-such-program",), False),
        (("sh", "-c", "echo worse > a.txt"), False),
        (("sh", "-c", "echo x > left-by-the-check"), False),
        (("sh", "-c", "rm b.txt"), False),
        (("sh", "-c", "mkdir __pycache__ && echo x > __pycache__/left"), True),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else str(value),
)
def test_an_entrys_own_check_counts(backlog, check, passed):
    entry = cut(backlog, {"a.txt": "new\n"}, check=check)
    done = backlog.verify(entry)
    assert bool(done.result.passed) == passed
    said = json.loads(done.result.detail)
    if check[-1] == "echo no good >&2; exit 3":
        assert said["check"]["exit"] == 3 and said["check"]["last_line"] == "no good"
        assert "its check failed: no good" in backlog.get(done.escalation).reason
    if check[-1] == "echo worse > a.txt":
        assert said["different"]["paths"] == ["a.txt"] and said["check"]["passed"]
    if check[-1] == "echo x > left-by-the-check":
        assert said["extra"]["paths"] == ["left-by-the-check"]
    if check[-1] == "rm b.txt":
        assert said["missing"]["paths"] == ["b.txt"]
    assert said["check"]["child_id"].startswith("chd_")
    backlog.sound()


@pytest.mark.rule("H-6")
def test_looking_again_adds_a_result_and_changes_no_status(backlog):
    entry = cut(backlog)
    first = backlog.verify(entry).result
    second = backlog.verify(entry, again=True)
    assert second.result.prior_verify_result_id == first.verify_result_id and second.result.passed
    edited(backlog.tree)
    third = backlog.verify(entry, again=True)
    assert (
        not third.result.passed and third.entry.status == "verified_complete" and third.undo is None
    )
    assert backlog.get(third.escalation).escalates == entry
    fourth = backlog.verify(entry, again=True)
    assert fourth.escalation == third.escalation, "one escalation at a time"
    backlog.become("tester")
    backlog.abandon(third.escalation)
    assert backlog.verify(entry, again=True).escalation != third.escalation
    assert (
        count(backlog.store, "verify_result") == 5
        and count(backlog.store, "dot_pair_signature") == 6
    )
    backlog.sound()


@pytest.mark.rule("H-6")
def test_what_was_cut_since_is_not_extra(backlog):
    first, second = cut(backlog, {"x.txt": "1"}), cut(backlog, {"y.txt": "2", "b.txt": None})
    assert backlog.verify(first).result.passed and backlog.verify(second).result.passed
    third = cut(backlog, {"y.txt": None, "x.txt": "3"})
    assert backlog.verify(third).result.passed
    assert backlog.verify(first, again=True).result.passed, "it is what a later change made of it"
    write(backlog.tree, {"x.txt": "4"})
    again = backlog.verify(first, again=True)
    assert json.loads(again.result.detail)["different"]["paths"] == ["x.txt"]
    backlog.sound()


@pytest.mark.rule("H-1")
@pytest.mark.guarantee("G6")
def test_what_is_forbidden_is_refused_at_every_door(backlog):
    """F-1 to F-8, each tried."""
    backlog.kernel.store.write(lambda tx: None)
    rejected, done, failed, marked = (backlog.mark({"a.txt": f"{n}"}) for n in range(4))
    pending, deferred = backlog.mark({"b.txt": "5"}), backlog.mark({"b.txt": "6"})
    with backlog.store.read() as rows:
        assert Changes(rows).counts() == {"marked": 6}
    backlog.sweep()
    backlog.review(rejected, "reject")
    backlog.review(deferred, "defer")
    backlog.review(done, "approve")
    backlog.cut(done)
    backlog.verify(done)
    write(backlog.tree, {"a.txt": "one\n"})
    backlog.become("tester")
    backlog.review(failed, "approve")
    backlog.cut(failed)
    edited(backlog.tree)
    backlog.verify(failed)
    backlog.become("tester")
    states = {
        **{
            rejected: "reviewed_rejected",
            done: "verified_complete",
            failed: "verify_failed_escalated",
        },
        **{marked: "review_pending", pending: "review_pending", deferred: "reviewed_deferred"},
    }
    assert {entry: backlog.status(entry) for entry in states} == states
    rows = backlog.rows()
    for entry, state in states.items():
        for word, lead in (("approve", "approved"), ("defer", "deferred"), ("reject", "rejected")):
            if not CHANGE.allows(state, f"reviewed_{lead}") and state != f"reviewed_{lead}":
                try:
                    told = backlog.review(entry, word, who="eva")
                except OncewardError as refused:
                    assert refused.code == "ILLEGAL_TRANSITION"
                else:
                    raise AssertionError(told)
    for entry in (rejected, marked, pending, deferred):
        with pytest.raises(GuardFailed) as refused:
            backlog.cut(entry)
        assert refused.value.code == "G-CUT-APPROVED"
        with pytest.raises(GuardFailed) as refused:
            backlog.verify(entry)
        assert refused.value.code == "G-VERIFY-CUT"
    assert backlog.verify(failed).entry.status == "verify_failed_escalated"
    assert backlog.rows() == rows
    backlog.become("ro")
    with pytest.raises(PermissionDenied):
        backlog.mark(what=backlog.propose({"b.txt": "7"}), who="ro")
    assert backlog.rows() == rows
    backlog.sound()


@pytest.mark.rule("H-8")
@pytest.mark.guarantee("G2")
def test_history_and_signatures_alone_tell_every_status(backlog):
    entries = [backlog.mark(), cut(backlog), backlog.approved(), cut(backlog, {"b.txt": "9"})]
    backlog.verify(entries[1])
    (backlog.tree / "b.txt").unlink()
    backlog.verify(entries[3])
    with backlog.store.read() as rows:
        found = Changes(rows)
        for entry, _ in found.newest(100):
            history = found.history(entry.entry_id)
            state = "new"
            for row in history:
                assert (row.from_state or "new") == state and CHANGE.allows(state, row.to_state)
                state = row.to_state
            assert state == entry.status and len(history) == entry.version
            signed = {s.signature_id: s.role for s in found.signatures(entry.entry_id)}
            for row in history:
                role = {"cut_applied": "executor", "verified_complete": "verifier"}.get(
                    row.to_state
                )
                if role:
                    assert signed[row.signature_ref] == role
        assert verify_rows(rows).faults == []


@pytest.mark.rule("E-5")
def test_every_status_is_explained_with_who_may_act_and_what_to_type(backlog):
    entry = backlog.mark(reason="prices are wrong")

    def told(*expected):
        with backlog.workspace.reading() as store:
            found = explain(store, [entry])
            shown = document(change_view(store, entry, backlog.kernel.policy))
        said = " ".join([*found.what, *found.why, *found.waits_for, *found.who, *found.next])
        assert found.state == shown["status"] and all(word in said for word in expected), (
            expected,
            said,
        )

    told("prices are wrong", "nobody has brought it up", "ann (operator)", "onceward change sweep")
    backlog.sweep()
    told("it is up for review", "rob (reviewer)", f"onceward change review {entry}")
    backlog.review(entry, "defer", reason="later")
    told("rob said defer: later", "onceward change sweep")
    backlog.sweep()
    backlog.review(entry, "approve")
    told("rob said approve", "max (executor)", f"onceward change cut {entry}")
    backlog.cut(entry)
    told("nobody else has checked", "vic (verifier)", f"onceward change verify {entry}")
    (backlog.tree / "a.txt").unlink()
    escalation = backlog.verify(entry).escalation
    told("vic found it otherwise: 1 missing", f"onceward change show {escalation}")


@pytest.mark.rule("H-5")
def test_what_a_change_does_not_touch_is_not_read(backlog):
    """A file of a terabyte: whoever read it would be at it for hours."""
    entry = backlog.approved({"a.txt": "new\n"})
    with (backlog.tree / "huge").open("wb") as file:
        file.truncate(1 << 40)
    assert backlog.cut(entry).status == "applied" and backlog.verify(entry).result.passed


def test_people_are_told_that_changes_wait_and_that_one_failed(store_url, tmp_path):
    log = tmp_path / "log"
    command = ["sh", "-c", f'echo "$ONCEWARD_NOTICE" >> {log}']
    (tmp_path / "onceward.toml").write_text(f"[notify]\ncommand = {json.dumps(command)}\n")
    workspace = Workspace(tmp_path / ".onceward", store_url=store_url, principal="tester")
    workspace.create()
    backlog = Backlog(workspace)
    write(backlog.tree, {"a.txt": "one\n"})
    try:
        entry = cut(backlog, {"a.txt": "two\n"})
        backlog.become("tester")
        backlog.sweep()
        (backlog.tree / "a.txt").unlink()
        done = backlog.verify(entry)
    finally:
        backlog.kernel.close()
    said = log.read_text()
    assert (
        said.count(
            "1 change(s) wait for a review. Next: onceward change list --status review_pending"
        )
        == 1
    )
    assert f"the change {entry} failed its verification; {done.escalation} asks what to do" in said
