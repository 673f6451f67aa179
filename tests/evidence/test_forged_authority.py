"""What somebody who can write any row, and has no key, tries to have honoured (H-5): refused where it is used, and found by
`verify`."""

from __future__ import annotations

import pytest

from backlog import backlog
from forger import Forger
from onceward.changes import cut as cutting
from onceward.errors import GuardFailed, IntegrityFault
from onceward.evidence.verify import verify_rows
from onceward.people.signing import SigningKey
from sites import workspace

__all__ = ["backlog", "workspace"]


def forging(backlog):
    return Forger(backlog.workspace.database)


def pending(backlog):
    entry = backlog.mark({"a.txt": "forged\n"})
    backlog.sweep()
    return entry


def refused(backlog, entry, why):
    """Nothing is cut, and the record is called what it is."""
    with pytest.raises((GuardFailed, IntegrityFault), match=why):
        backlog.cut(entry)
    assert (backlog.tree / "a.txt").read_text() == "one\n"
    with backlog.store.read() as rows:
        assert verify_rows(rows).faults


@pytest.mark.rule("H-5", "E-1")
@pytest.mark.guarantee("G18")
def test_an_approval_that_only_rows_and_events_tell_of_is_not_cut(backlog):
    backlog.review(pending(backlog), "defer")
    entry = pending(backlog)
    with forging(backlog) as forger:
        forger.approve(entry, "rob", forger.word_of("rob"))
    refused(backlog, entry, "what rob is said to have decided does not count")


@pytest.mark.rule("H-5", "E-1")
@pytest.mark.guarantee("G18")
@pytest.mark.parametrize("statement", ["ab" * 32, None])
def test_an_approval_without_a_signature_is_not_cut(backlog, statement):
    backlog.review(pending(backlog), "defer")
    entry = pending(backlog)
    with forging(backlog) as forger:
        forger.approve(entry, "rob", statement)
    refused(backlog, entry, "it is not approved as it is now")


@pytest.mark.rule("H-5", "H-9", "E-1")
@pytest.mark.guarantee("G18")
@pytest.mark.parametrize("told", [False, True], ids=["row", "row and event"])
def test_a_role_that_nobody_gave_lets_nobody_act(backlog, told):
    """Ann is no reviewer; the rows, and an event, say that she is, and she signs with her own key."""
    entry = backlog.mark({"a.txt": "forged\n"}, who="tester")
    backlog.sweep()
    backlog.kernel.close()
    with forging(backlog) as forger:
        forger.write("INSERT INTO principal_roles (name, role) VALUES ('ann', 'reviewer')")
        if told:
            said = {"principal": "ann", "roles": ["reviewer"]}
            forger.append("workspace", "PRINCIPAL_ADDED", said, "tester")
    backlog.become("tester")
    with pytest.raises(IntegrityFault, match="the roles of ann in the database are not those"):
        backlog.review(entry, "approve", who="ann")
    refused(backlog, entry, "it is not approved|G-CUT-APPROVED|the entry is review_pending")


@pytest.mark.rule("H-5", "E-1")
@pytest.mark.guarantee("G18")
@pytest.mark.parametrize("how", ["a new key", "a key of ann's", "a key that was revoked"])
def test_a_key_that_nobody_took_signs_for_nobody(backlog, how):
    entry = pending(backlog)
    if how == "a key that was revoked":
        own = backlog.workspace.keyring.make("rob", "", another=False).key.fingerprint
        backlog.ask("tester", "keys.revoke", key=own)
    backlog.kernel.close()
    with forging(backlog) as forger:
        if how == "a new key":
            made = SigningKey.generate()
            forger.write(
                "INSERT INTO keys (fingerprint, public_key, principal, proof, added_seq, revoked_seq)"
                " VALUES (?, ?, 'rob', ?, 2, NULL)",
                *(made.fingerprint, made.public, made.proof(workspace_of(forger), "rob")),
            )
            backlog.workspace.keyring._write(made, "rob")
        elif how == "a key of ann's":
            forger.write("UPDATE keys SET principal = 'rob' WHERE principal = 'ann'")
        else:
            forger.write("UPDATE keys SET revoked_seq = NULL")
    backlog.become("tester")
    with pytest.raises(IntegrityFault, match="the keys of rob in the database are not those"):
        backlog.review(entry, "approve")
    refused(backlog, entry, "it is not approved|the entry is review_pending")


def workspace_of(forger):
    return forger.value("SELECT workspace_id FROM workspace")


@pytest.mark.rule("H-5")
@pytest.mark.guarantee("G18")
def test_an_approval_whose_row_names_other_bytes_is_not_cut(backlog):
    harmless = backlog.mark({"b.txt": "harmless\n"})
    backlog.sweep()
    backlog.review(harmless, "approve")
    entry = pending(backlog)
    with forging(backlog) as forger:
        ((signed,),) = forger.read(
            "SELECT statement_hash FROM review_decision WHERE entry_id = ?", harmless
        )
        forger.approve(entry, "rob", signed)
    refused(backlog, entry, "is not what was signed")


@pytest.mark.rule("H-5")
def test_an_approval_does_not_outlive_the_role_or_the_key_of_who_gave_it(backlog):
    entry = backlog.approved({"a.txt": "new\n"})
    backlog.ask("tester", "principals.take", name="rob", roles=["reviewer"])
    with forging(backlog) as forger:
        forger.write("INSERT INTO principal_roles (name, role) VALUES ('rob', 'reviewer')")
    refused(backlog, entry, "rob has no role that allows it")


@pytest.mark.rule("H-5")
def test_what_was_really_approved_is_cut(backlog):
    entry = backlog.approved({"a.txt": "new\n"})
    assert backlog.cut(entry).status == "applied"
    assert (backlog.tree / "a.txt").read_text() == "new\n"


@pytest.mark.rule("H-5", "E-1")
def test_a_word_that_was_taken_back_does_not_come_back(backlog):
    """Rob approved, then rejected; the rejection is taken out of the rows and of the entry's own history."""
    entry = backlog.approved({"a.txt": "new\n"})
    backlog.review(entry, "defer")
    backlog.kernel.close()
    with forging(backlog) as forger:
        forger.rewrite(
            f"entry:{entry}", lambda body: None if body["event"] == "ENTRY_DEFERRED" else body
        )
        forger.write("DELETE FROM review_decision WHERE entry_id = ? AND decision = 'defer'", entry)
        forger.write(
            "DELETE FROM decision_backlog_history WHERE entry_id = ? AND to_state = 'reviewed_deferred'",
            entry,
        )
        forger.write(
            "UPDATE decision_backlog_entry SET status = 'reviewed_approved', version = version - 1"
            " WHERE entry_id = ?",
            entry,
        )
    backlog.become("tester")
    refused(backlog, entry, "what was signed about it since is not in its history")


@pytest.mark.rule("H-5", "H-6", "E-1")
def test_a_cut_that_only_rows_tell_of_is_not_verified(backlog):
    """Somebody who can write rows says of a proposal that it was approved and cut, and puts the bytes there."""
    other = backlog.approved({"b.txt": "other\n"})
    backlog.cut(other)
    entry = pending(backlog.become("tester") and backlog)
    backlog.kernel.close()
    with forging(backlog) as forger:
        forger.approve(entry, "rob", forger.word_of("rob"))
        version = forger.value(
            "SELECT version FROM decision_backlog_entry WHERE entry_id = ?", entry
        )
        detail = {
            "change_set_id": "cst_forged",
            "decision_id": "dec_forged",
            "from": "cut_in_progress",
            "reason": "applied",
            "to": "cut_applied",
            "transition_seq": version + 2,
        }
        forger.append(f"entry:{entry}", "ENTRY_CUT", detail, "max", None, "change")
        forger.write(
            "UPDATE decision_backlog_entry SET status = 'cut_applied', version = version + 2"
            " WHERE entry_id = ?",
            entry,
        )
        forger.write(
            "INSERT INTO cut_change_set (change_set_id, entry_id, decision_id, kind, executor, status, version,"
            " position, created_at, updated_at)"
            " VALUES ('cst_forged', ?, 'dec_forged', 'cut', 'max', 'applied', 2, 1, 1, 1)",
            entry,
        )
        forger.write(
            "INSERT INTO dot_pair_signature (signature_id, entry_id, role, change_set_id, principal, fingerprint,"
            " tool_revision, statement_hash) SELECT 'sig_forged', ?, role, 'cst_forged', principal, fingerprint,"
            " tool_revision, ? FROM dot_pair_signature",
            *(entry, "ab" * 32),
        )
    (backlog.tree / "a.txt").write_text("forged\n")
    with pytest.raises(GuardFailed, match="the recorded approval and cut are not valid"):
        backlog.verify(entry)
    with backlog.store.read() as rows:
        assert verify_rows(rows).faults


@pytest.mark.rule("H-5")
def test_a_history_that_was_edited_under_a_running_kernel_is_not_believed(backlog):
    """What the kernel read before does not hide what stands there now."""
    backlog.review(pending(backlog), "defer")
    with backlog.store.read() as rows:
        backlog.kernel.authority.require(rows, "rob", "reviewer")
    with forging(backlog) as forger:
        forger.rewrite("workspace", lambda body: body | {"context": body["context"] | {"fence": 9}})
    with backlog.store.read() as rows, pytest.raises(IntegrityFault, match="are not those"):
        backlog.kernel.authority.require(rows, "rob", "reviewer")


@pytest.mark.rule("H-5", "E-4")
@pytest.mark.guarantee("G18")
def test_a_history_that_begins_with_another_key_is_not_ours(backlog, tmp_path):
    """Whoever owns the database puts another workspace's whole history in place of this one."""
    backlog.kernel.close()
    known = (backlog.workspace.folder / "trust.json").read_bytes()
    backlog.become("tester").close()
    assert (backlog.workspace.folder / "trust.json").read_bytes() == known
    made = SigningKey.generate()

    def change(body):
        if body["event"] == "KEY_ADDED" and body["detail"]["principal"] == "tester":
            body["detail"] |= {
                "key": made.fingerprint,
                "public": made.public.hex(),
                "proof": made.proof(workspace_of(forger), "tester").hex(),
            }
        return body

    with forging(backlog) as forger:
        forger.rewrite("workspace", change)
    with pytest.raises(IntegrityFault, match="it was replaced"):
        backlog.become("tester")


def opened(backlog, files=None):
    """An entry that is approved, and whose cut was begun by a kernel that is gone."""
    entry = backlog.approved(files or {"a.txt": "new\n"})
    backlog.become("max")
    backlog.store.write(lambda tx: cutting._open(tx, backlog.kernel, backlog.kernel.actor, entry))
    other = backlog.propose({"a.txt": "forged\n"})
    backlog.kernel.close()
    return entry, other


def propose_row(forger, entry, manifest):
    forger.write(
        "INSERT INTO manifest_envelope (manifest_id, entry_id, revision, content_hash, body, author, made_at)"
        " VALUES ('man_forged', ?, 99, ?, ?, 'ann', 1)",
        *(entry, manifest.content_hash(), manifest.text()),
    )


@pytest.mark.rule("H-5")
@pytest.mark.guarantee("G18")
def test_a_cut_takes_what_was_approved_and_not_what_was_proposed_last(backlog):
    entry, other = opened(backlog)
    with forging(backlog) as forger:
        propose_row(forger, entry, other)
    backlog.become("max")
    assert backlog.cut(entry).status == "applied"
    assert (backlog.tree / "a.txt").read_text() == "new\n"
    with backlog.store.read() as rows:
        assert verify_rows(rows).faults


@pytest.mark.rule("H-5", "E-1")
@pytest.mark.guarantee("G18")
@pytest.mark.parametrize("how", ["body", "decision", "set"])
def test_a_cut_that_was_begun_goes_on_only_by_what_was_signed(backlog, how):
    """The proposal is edited under its hash; the decision is made to be for another one; a cut is begun for an entry that
    nobody approved."""
    entry, other = opened(backlog)
    if how == "set":
        backlog.become("tester")
        entry = pending(backlog)
        backlog.kernel.close()
    with forging(backlog) as forger:
        if how == "body":
            forger.write(
                "UPDATE manifest_envelope SET body = ? WHERE entry_id = ?", other.text(), entry
            )
        elif how == "decision":
            propose_row(forger, entry, other)
            forger.write(
                "UPDATE review_decision SET content_hash = ? WHERE entry_id = ?",
                *(other.content_hash(), entry),
            )
        else:
            forger.approve(entry, "rob", forger.word_of("rob"))
            forger.write(
                "INSERT INTO cut_change_set (change_set_id, entry_id, decision_id, kind, executor, status, version,"
                " position, created_at, updated_at) VALUES ('cst_f', ?, 'dec_forged', 'cut', 'max', 'open', 1, 1, 1, 1)",
                entry,
            )
    refused(backlog, entry, "does not count|is not what was approved")
