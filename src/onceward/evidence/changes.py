"""What the streams of changes say, and whether entries, histories, manifests and decisions say the same (H-8)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from onceward.evidence.ahead import Ahead
from onceward.evidence.findings import Findings
from onceward.evidence.records import Records, UnitRow
from onceward.kernel.canon import canonical, sha256_hex
from onceward.kernel.chain import Event
from onceward.kernel.changes import ChangeSet, Decision, Entry, Envelope, History
from onceward.lifecycles.change import CHANGE, CHANGE_SET, manifest_of

if TYPE_CHECKING:
    from onceward.evidence.walk import Body, Stream

_GIVEN: Final = {
    "change": ("idempotency_key", "author", "cutter", "target", "escalates"),
    "change_set": ("entry_id", "decision_id", "kind", "of_change_set", "executor"),
}
"""What the first event of each says of it, once and for all."""
_DECIDED: Final = {"ENTRY_APPROVED": "approve", "ENTRY_DEFERRED": "defer", "ENTRY_REJECTED": "reject"}
PREFIXES: Final = ("ent_", "cst_")


class Backlog:
    """Entries and change sets, each by its own stream."""

    def __init__(self, records: Records, findings: Findings) -> None:
        self._records, self._findings = records, findings
        self._entries = Ahead(records.all(Entry), lambda row: row.entry_id)
        self._sets = Ahead(records.all(ChangeSet), lambda row: row.change_set_id)
        self._source = ""
        self._facts: dict[str, Any] = {}
        self._arrows: list[tuple[Any, ...]] = []
        self._decisions: dict[str, tuple[Any, ...]] = {}
        self._manifest = ""

    def note(self, stream: Stream, event: Event, body: Body) -> None:
        said = event.facts()["detail"]
        if event.seq == 1:
            self._source = event.source
            self._facts = {name: said.get(name) for name in _GIVEN.get(event.source, ())}
            self._arrows, self._decisions, self._manifest = [], {}, str(said.get("manifest", ""))
        if event.source not in (self._source, "entry") or self._source not in _GIVEN:
            self._findings.fault("history", f"{event.stream}#{event.seq}", f"nothing here is a {event.source}")
            return
        if event.source != "entry":
            stream.move(CHANGE if event.source == "change" else CHANGE_SET, event, body, self._findings)
            reason = said.get("reason", "marked")
            self._arrows.append((said.get("from"), said["to"], body.context.actor, reason, event.at, canonical(said)))
        decision = said.get("decision") if body.event == "ENTRY_REVIEWED" else _DECIDED.get(body.event)
        if decision:
            told = (
                said.get("manifest"),
                body.context.actor,
                decision,
                said.get("why", ""),
                body.context.signed or None,
            )
            self._decisions[said.get("decision_id", "")] = (*told, event.at)

    def close(self, stream: Stream) -> None:
        rows = self._entries if self._source == "change" else self._sets
        for passed in rows.before(stream.subject):
            self._alone(passed)
        row = rows.at(stream.subject)
        self._findings.count("changes" if self._source == "change" else "change_sets")
        if row is None:
            self._findings.fault("state", stream.subject, "its stream tells of what is not there")
            return
        if (stream.state, stream.version) != (row.status, row.version):
            said = f"it is {row.status} at version {row.version}, but its last event says"
            self._findings.fault("state", stream.subject, f"{said} {stream.state} at {stream.version}")
        for name, value in self._facts.items():
            if getattr(row, name) != value:
                self._findings.fault("state", stream.subject, f"{name} is not what its events say")
        if self._source == "change":
            self._close_entry(stream.subject)

    def _close_entry(self, entry_id: str) -> None:
        """Status, history and events are one truth (A-5, A-6)."""
        rows = sorted(self._records.of(History, entry_id=entry_id), key=lambda row: row.seq)
        found = [(row.from_state, row.to_state, row.actor, row.reason, row.at, row.detail.encode()) for row in rows]
        if found != self._arrows or [row.seq for row in rows] != list(range(1, len(rows) + 1)):
            self._findings.fault("backlog", entry_id, "its history is not what its events say")
        for envelope in self._records.of(Envelope, entry_id=entry_id):
            self._check_envelope(envelope)
        for decision in self._records.of(Decision, entry_id=entry_id):
            told = self._decisions.pop(decision.decision_id, None)
            said = (decision.content_hash, decision.reviewer, decision.decision, decision.reason)
            if told != (*said, decision.statement_hash, decision.decided_at):
                self._findings.fault("backlog", entry_id, f"{decision.decision_id} is not what its event says")
        for decision_id in sorted(self._decisions):
            self._findings.fault("backlog", entry_id, f"the decision {decision_id} is not there")

    def _check_envelope(self, envelope: Envelope) -> None:
        subject = envelope.entry_id
        if sha256_hex(envelope.body.encode()) != envelope.content_hash:
            self._findings.fault("backlog", subject, "what is proposed is not what its hash says")
        if envelope.revision == 1 and envelope.content_hash != self._manifest:
            self._findings.fault("backlog", subject, "what was proposed is not what its first event says")
        units = [msgspec.structs.asdict(unit) for unit in self._records.of(UnitRow, manifest_id=envelope.manifest_id)]
        wanted = [
            {"manifest_id": envelope.manifest_id, **msgspec.structs.asdict(unit)}
            for unit in manifest_of(envelope.body).unit
        ]
        if units != wanted:
            self._findings.fault("backlog", subject, "its units are not those of what is proposed")

    def finish(self) -> None:
        for rows in (self._entries, self._sets):
            for row in rows.rest():
                self._alone(row)

    def _alone(self, row: Any) -> None:
        subject = row.entry_id if isinstance(row, Entry) else row.change_set_id
        self._findings.fault("state", subject, f"it is {row.status}, and no event says so")
