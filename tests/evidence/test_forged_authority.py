"""What somebody who can write any row, and has no key, tries to have honoured (H-5): refused where it is used, and found by
`verify`."""

from __future__ import annotations

import pytest

from backlog import backlog
from onceward.errors import GuardFailed, IntegrityFault
from onceward.evidence.verify import verify_rows
from onceward.kernel.canon import canonical
from onceward.kernel.chain import link
from onceward.store.tables.changes import Changes
from sites import workspace

__all__ = ["backlog", "workspace"]


class Forger:
    """A connection with every right and no key. It chains what it writes as a kernel would."""

    def __init__(self, backlog):
        self.backlog = backlog
        self.session = backlog.workspace.database.connect()

    def __enter__(self):
        """Whoever owns a database can tell it to check nothing."""
        sqlite = self.backlog.workspace.database.kind == "sqlite"
        if sqlite:
            self.session.read("PRAGMA foreign_keys = 0")
        self.session.begin(None)
        if not sqlite:
            self.session.write("SET LOCAL session_replication_role = replica")
        else:
            for (name,) in self.read("SELECT name FROM sqlite_master WHERE type = 'trigger'"):
                self.session.write(f"DROP TRIGGER {name}")
        return self

    def __exit__(self, *error):
        try:
            if error == (None, None, None):
                self.session.commit()
            else:
                self.session.rollback()
        finally:
            self.session.close()

    def write(self, sql, *values):
        self.session.write(sql, values)

    def read(self, sql, *values):
        return self.session.read(sql, values)

    def append(self, stream, name, detail, actor, signed=None, source=None):
        ((number,),) = self.read("SELECT stream_no FROM streams WHERE stream = ?", stream)
        ((seq, prev),) = self.read(
            "SELECT seq, hash FROM events WHERE stream_no = ? ORDER BY seq DESC LIMIT 1", number
        )
        ((position, at),) = self.read("SELECT max(position), max(at) FROM events")
        context = {"actor": actor, "fence": 1, **({"signed": signed} if signed else {})}
        body = canonical({"context": context, "detail": detail, "event": name})
        source = source or stream.partition(":")[0]
        self.write(
            "INSERT INTO events (position, stream_no, seq, at, source, body, prev_hash, hash)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            *(position + 1, number, seq + 1, at, source, body.decode(), bytes(prev)),
            link(stream, seq + 1, at, source, body, bytes(prev)),
        )
        return seq + 1, at

    def approve(self, entry, who, signed):
        """The rows and the event of an approval, as if somebody had given it."""
        found = Changes(self.session)
        row, manifest = found.get(entry), found.envelope(entry).content_hash
        detail = {
            "decision_id": "dec_forged",
            "from": "review_pending",
            "manifest": manifest,
            "reason": "approved",
            "to": "reviewed_approved",
            "transition_seq": row.version + 1,
            "why": "",
        }
        _, at = self.append(f"entry:{entry}", "ENTRY_APPROVED", detail, who, signed, "change")
        self.write(
            "INSERT INTO review_decision (decision_id, entry_id, content_hash, reviewer, decision, reason,"
            " statement_hash, decided_at, entry_version) VALUES (?, ?, ?, ?, 'approve', '', ?, ?, ?)",
            *("dec_forged", entry, manifest, who, signed, at, row.version),
        )
        self.write(
            "UPDATE decision_backlog_entry SET status = 'reviewed_approved', version = version + 1"
            " WHERE entry_id = ?",
            entry,
        )


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


def word_of(forger, who):
    """Any statement that somebody once signed."""
    found = forger.read(
        "SELECT s.statement_hash FROM signatures s JOIN keys k ON k.fingerprint = s.fingerprint"
        " WHERE k.principal = ? ORDER BY s.seq DESC LIMIT 1",
        who,
    )
    return found[0][0]


@pytest.mark.rule("H-5", "E-1")
@pytest.mark.guarantee("G18")
def test_an_approval_that_only_rows_and_events_tell_of_is_not_cut(backlog):
    backlog.review(pending(backlog), "defer")
    entry = pending(backlog)
    with Forger(backlog) as forger:
        forger.approve(entry, "rob", word_of(forger, "rob"))
    refused(backlog, entry, "what rob is said to have decided does not count")


@pytest.mark.rule("H-5", "E-1")
@pytest.mark.guarantee("G18")
@pytest.mark.parametrize("statement", ["ab" * 32, None])
def test_an_approval_without_a_signature_is_not_cut(backlog, statement):
    backlog.review(pending(backlog), "defer")
    entry = pending(backlog)
    with Forger(backlog) as forger:
        forger.approve(entry, "rob", statement)
    refused(backlog, entry, "it is not approved as it is now")


@pytest.mark.rule("H-5", "E-1")
@pytest.mark.guarantee("G18")
def test_a_role_that_nobody_gave_approves_nothing(backlog):
    """Ann is no reviewer; the rows and an event say that she is, and she approves with her own key."""
    entry = backlog.mark({"a.txt": "forged\n"}, who="tester")
    backlog.sweep()
    backlog.kernel.close()
    with Forger(backlog) as forger:
        forger.write("INSERT INTO principal_roles (name, role) VALUES ('ann', 'reviewer')")
        said = {"principal": "ann", "roles": ["reviewer"]}
        forger.append("workspace", "PRINCIPAL_ADDED", said, "tester")
    backlog.become("tester")
    backlog.review(entry, "approve", who="ann")
    refused(backlog, entry, "ann had no role that allows it")


@pytest.mark.rule("H-5")
@pytest.mark.guarantee("G18")
def test_an_approval_whose_row_names_other_bytes_is_not_cut(backlog):
    harmless = backlog.mark({"b.txt": "harmless\n"})
    backlog.sweep()
    backlog.review(harmless, "approve")
    entry = pending(backlog)
    with Forger(backlog) as forger:
        ((signed,),) = forger.read(
            "SELECT statement_hash FROM review_decision WHERE entry_id = ?", harmless
        )
        forger.approve(entry, "rob", signed)
    refused(backlog, entry, "is not what was signed")


@pytest.mark.rule("H-5")
def test_an_approval_does_not_outlive_the_role_or_the_key_of_who_gave_it(backlog):
    entry = backlog.approved({"a.txt": "new\n"})
    backlog.ask("tester", "principals.take", name="rob", roles=["reviewer"])
    with Forger(backlog) as forger:
        forger.write("INSERT INTO principal_roles (name, role) VALUES ('rob', 'reviewer')")
    refused(backlog, entry, "rob has no role that allows it")


@pytest.mark.rule("H-5")
def test_what_was_really_approved_is_cut(backlog):
    entry = backlog.approved({"a.txt": "new\n"})
    assert backlog.cut(entry).status == "applied"
    assert (backlog.tree / "a.txt").read_text() == "new\n"
