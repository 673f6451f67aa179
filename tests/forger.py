"""Somebody who can write any row of a workspace, and has no key that it trusts."""

from __future__ import annotations

import json

from onceward.core.canon import canonical
from onceward.core.chain import link
from onceward.store.tables.changes import Changes


class Forger:
    """A connection with every right and no key. It chains what it writes as a kernel would."""

    def __init__(self, database):
        self.sqlite = database.kind == "sqlite"
        self.session = database.connect()

    def __enter__(self):
        """Whoever owns a database can tell it to check nothing."""
        if self.sqlite:
            self.session.read("PRAGMA foreign_keys = 0")
        self.session.begin(None)
        if not self.sqlite:
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

    def value(self, sql, *values):
        ((found,),) = self.read(sql, *values)
        return found

    def append(self, stream, name, detail, actor, signed=None, source=None, **context):
        """An event at the end of a stream."""
        number = self.value("SELECT stream_no FROM streams WHERE stream = ?", stream)
        ((seq, prev),) = self.read(
            "SELECT seq, hash FROM events WHERE stream_no = ? ORDER BY seq DESC LIMIT 1", number
        )
        ((position, at),) = self.read("SELECT max(position), max(at) FROM events")
        context |= {"actor": actor, "fence": 1, **({"signed": signed} if signed else {})}
        body = canonical({"context": context, "detail": detail, "event": name})
        source = source or stream.partition(":")[0]
        self.write(
            "INSERT INTO events (position, stream_no, seq, at, source, body, prev_hash, hash)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            *(position + 1, number, seq + 1, at, source, body.decode(), bytes(prev)),
            link(stream, seq + 1, at, source, body, bytes(prev)),
        )
        return seq + 1, at

    def rewrite(self, stream, change):
        """Every event of a stream as `change` leaves it (None: without it), and the chain made whole again."""
        number = self.value("SELECT stream_no FROM streams WHERE stream = ?", stream)
        events = self.read(
            "SELECT position, at, source, body FROM events WHERE stream_no = ? ORDER BY seq", number
        )
        self.write("DELETE FROM events WHERE stream_no = ?", number)
        seq, prev = 0, bytes(32)
        for position, at, source, body in events:
            changed = change(json.loads(body))
            if changed is None:
                continue
            seq += 1
            data = canonical(changed)
            hash_ = link(stream, seq, at, source, data, prev)
            self.write(
                "INSERT INTO events (position, stream_no, seq, at, source, body, prev_hash, hash)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                *(position, number, seq, at, source, data.decode(), prev, hash_),
            )
            prev = hash_

    def word_of(self, who):
        """The last statement that somebody signed, whatever it says."""
        found = self.read(
            "SELECT s.statement_hash FROM signatures s JOIN keys k ON k.fingerprint = s.fingerprint"
            " WHERE k.principal = ? ORDER BY s.seq DESC LIMIT 1",
            who,
        )
        return found[0][0]

    def approve(self, entry, who, signed):
        """The rows and the event of an approval, as if somebody had given it."""
        found = Changes(self.session)
        row, manifest = found.get(entry), found.envelope(entry).content_hash
        detail = {
            "decision_id": "dec_forged",
            "from": row.status,
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
