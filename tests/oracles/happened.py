"""What the scene leaves in the store, told without whatever differs from run to run: ids, hashes, times, this machine."""

from __future__ import annotations

import json
import re

from onceward.store.schema import TABLES

IDENT = re.compile(r"\b([a-z]{3})_([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})")
HASH = re.compile(r"\b[0-9a-f]{64}\b|\b[0-9a-f]{32}\b")
UUID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z?")
SIGNATURE = re.compile(r"[A-Za-z0-9+/]{80,}={0,2}")
LONG = re.compile(r"\b\d{10,}\b")
FOLDER = re.compile(
    r"/[^\s\"'\\]*/(?=(scene-template|wanted-|src/onceward|tests/))|wanted-[0-9a-f]+"
)
LINE = re.compile(r"(line |\.py\", line |\.py:)\d+")
MACHINE = {
    *("owner_host", "owner_boot", "owner_pid", "owner_start"),
    *("child_pid", "child_start", "carried", "debits"),
}
"""What depends on the machine, or on how long something took: a digest of debits has their times in it."""
ONLY_EVENTS = {
    *("events", "event_outbox", "outbox_used", "requests", "signatures"),
    *("artifacts", "singleton_lock", "kernel_beat"),
}
"""Tables whose rows are told by the events, or are of the machine and the moment."""


class Teller:
    """Gives every id and hash a name by the order in which the events tell of them."""

    def __init__(self):
        self.names = {}
        self.counts = {}
        self.naming = True

    def text(self, text):
        text = IDENT.sub(lambda found: self.name(found[0], found[1]), text)
        text = UUID.sub(lambda found: self.name(found[0], "uuid"), text)
        text = HASH.sub(lambda found: self.name(found[0], "hash"), text)
        text = LINE.sub(r"\1N", FOLDER.sub("…", TIME.sub("TIME", text)))
        return LONG.sub("BIG", SIGNATURE.sub("SIGNATURE", text))

    def name(self, word, kind):
        if word not in self.names:
            if not self.naming:
                return f"{kind}?"
            self.counts[kind] = self.counts.get(kind, 0) + 1
            self.names[word] = f"{kind}#{self.counts[kind]}"
        return self.names[word]

    def value(self, value, key=""):
        if key in MACHINE:
            return "MACHINE"
        if isinstance(value, dict):
            return {self.text(name): self.value(one, name) for name, one in sorted(value.items())}
        if isinstance(value, list):
            return [self.value(one) for one in value]
        if isinstance(value, bytes):
            return self.value(value.hex()) if len(value) == 32 else f"{len(value)} bytes"
        if isinstance(value, int) and abs(value) > 10**9:
            return "BIG"
        if isinstance(value, str) and value[:1] in "{[":
            try:
                return self.value(json.loads(value))
            except ValueError:
                pass
        return self.text(value) if isinstance(value, str) else value


def happened(database):
    """Every event in the order of all, then the rows of every table."""
    session, teller, lines = database.connect(), Teller(), []
    try:
        events = session.read(
            "SELECT s.stream, e.seq, e.body FROM events e JOIN streams s USING (stream_no) ORDER BY position"
        )
        for stream, seq, body in events:
            told = teller.value(json.loads(body))
            lines.append(f"{teller.text(stream)} {seq} {json.dumps(told, ensure_ascii=False)}")
        teller.naming = False
        for table in (table.name for table in TABLES):
            if table in ONLY_EVENTS:
                continue
            columns = database.columns(session, table)
            rows = [
                {name: teller.value(value, name) for name, value in zip(columns, row, strict=True)}
                for row in session.read(f"SELECT {', '.join(columns)} FROM {table}")
            ]
            lines += sorted(f"{table} {json.dumps(row, ensure_ascii=False)}" for row in rows)
    finally:
        session.close()
    return "\n".join(lines) + "\n"
