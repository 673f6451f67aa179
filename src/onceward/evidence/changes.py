"""The streams of changes, held against entries, histories, manifests and decisions (H-8)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from onceward.changes.machine import CHANGE, CHANGE_SET
from onceward.changes.manifest import Manifest, manifest_of
from onceward.core.canon import canonical, sha256_hex
from onceward.core.chain import Event
from onceward.core.changes import DECISIONS, Decision, Entry, HistoryRow, ManifestEnvelope
from onceward.evidence.cuts import Expect, Pairs
from onceward.evidence.findings import Findings
from onceward.evidence.records import Records
from onceward.evidence.rows import FoldedRows
from onceward.store.tables.artifacts import RefRow
from onceward.store.tables.changes import DependencyRow, SweepRow, UnitRow

if TYPE_CHECKING:
    from onceward.core.bodies import EventBody
    from onceward.evidence.walk import Stream

_MACHINES: Final = {"change": CHANGE, "change_set": CHANGE_SET}
PREFIXES: Final = ("ent_", "cst_")


class _Arrow(NamedTuple):
    """A change of state of an entry or a change set, as its event states it."""

    from_state: str | None
    to_state: str
    actor: str
    reason: str
    at: int
    detail: bytes
    signature_id: str | None

    def as_history(self) -> tuple[Any, ...]:
        """The same as a row of the history, without the signature."""
        return self[:-1]


class _Proposal(NamedTuple):
    """A proposed manifest, by its hash, its author and its time."""

    manifest: str
    author: str
    at: int


class _Decided(NamedTuple):
    """A decision, as its event states it."""

    manifest: str | None
    reviewer: str
    decision: str
    reason: str
    statement: str | None
    at: int
    entry_version: int


class _Escalation(NamedTuple):
    """An entry that a failed verification opened: of which entry, proposing what, by whom."""

    entry_id: str
    manifest: str | None
    author: str
    proposer: str | None


class ChangeStreams:
    """Entries and change sets, each by its own stream."""

    def __init__(self, records: Records, findings: Findings, expect: Expect) -> None:
        self._records, self._findings = records, findings
        self._rows = {
            name: FoldedRows(records, findings, name, counted=f"{name}s") for name in _MACHINES
        }
        self._pairs = Pairs(records, findings, expect)
        self._source = ""
        self._named: dict[str, _Escalation] = {}
        """Entries that a failed verification says it opened."""
        self._claimed: dict[str, _Escalation] = {}
        """Entries that say that a failed verification opened them."""
        self._sweeps: dict[str, SweepRow] = {}
        self._own: list[tuple[int, str, str]] = []
        """Approvals by authors that claim to be allowed by the settings: position, place,
        author."""
        self._policies: list[tuple[int, bool]] = []
        """From which position on authors may review, or not, by what was signed."""
        self._opened: dict[str, int] = {}
        """Position at which the first change set of each decision was opened. The streams of change
        sets come before those of entries."""
        self._forget()

    def _forget(self) -> None:
        self._author = ""
        self._arrows: list[_Arrow] = []
        self._decisions: dict[str, _Decided] = {}
        self._proposed: list[_Proposal] = []
        self._needs: list[str] = []
        self._pairs.clear()

    def noted(self, event: Event, policy: Any) -> None:
        """The settings for changes were recorded anew."""
        allowed = isinstance(policy, dict) and bool(policy.get("authors_may_review"))
        self._policies.append((event.position, allowed))

    def _check_own(self) -> None:
        if not self._records.whole:
            return
        for position, place, actor in self._own:
            earlier = [allowed for since, allowed in self._policies if since < position]
            if not earlier or not earlier[-1]:
                self._findings.fault(
                    "duty",
                    place,
                    f"{actor} approved what {actor} proposed, and no setting allowed it",
                )

    def note(self, stream: Stream, event: Event, body: EventBody) -> None:
        """An event of an entry's or a change set's stream."""
        facts = event.facts()
        detail = facts["detail"]
        if event.seq == 1:
            self._begin(event, detail)
        machine = _MACHINES.get(self._source)
        if event.source not in (self._source, "entry") or machine is None:
            self._findings.fault(
                "history", f"{event.stream}#{event.seq}", f"nothing here is a {event.source}"
            )
            return
        if event.source != "entry":
            stream.move(machine, event, body, self._findings)
            self._rows[self._source].take(machine, event, facts)
            arrow = _Arrow(
                from_state=detail.get("from"),
                to_state=detail["to"],
                actor=body.context.actor,
                reason=detail.get("reason", "marked"),
                at=event.at,
                detail=canonical(detail),
                signature_id=detail.get("signature_id"),
            )
            self._arrows.append(arrow)
        if self._source == "change_set":
            self._pairs.note_set(body.event, stream.subject, detail)
            return
        self._pairs.note(
            body.event, detail, actor=body.context.actor, at=event.at, state=stream.state
        )
        if detail.get("escalation"):
            self._note_escalation(stream.subject, detail)
        if body.event == "ENTRY_REVISED":
            self._proposed.append(_Proposal(detail["manifest"], detail["author"], event.at))
        if body.event == "ENTRY_REVIEWED":
            decision = detail.get("decision")
        else:
            decision = DECISIONS.get(body.event)
        if decision:
            self._note_decision(event, body, detail, decision)

    def _begin(self, event: Event, detail: dict[str, Any]) -> None:
        """The first event of a stream."""
        self._forget()
        self._source = event.source
        if event.source == "change_set":
            decision_id = detail.get("decision_id", "")
            known = self._opened.get(decision_id, event.position)
            self._opened[decision_id] = min(known, event.position)
        if event.source == "change":
            self._author = str(detail.get("author", ""))
            proposer = str(detail.get("proposed_by", self._author))
            manifest = str(detail.get("manifest", ""))
            self._proposed = [_Proposal(manifest, proposer, event.at)]
            self._needs = detail.get("depends_on", [])

    def _note_escalation(self, entry_id: str, detail: dict[str, Any]) -> None:
        manifest = detail.get("manifest")
        proposers = [
            proposal.author for proposal in self._proposed if proposal.manifest == manifest
        ]
        escalation = _Escalation(
            entry_id, manifest, self._author, proposers[-1] if proposers else None
        )
        self._named.setdefault(detail["escalation"], escalation)

    def _note_decision(
        self, event: Event, body: EventBody, detail: dict[str, Any], decision: str
    ) -> None:
        actor, place = body.context.actor, f"{event.stream}#{event.seq}"
        decision_id = detail.get("decision_id", "")
        # The version that was decided about: before the arrow of the decision itself, if it has
        # one.
        version = len(self._arrows) - (event.source == "change")
        self._decisions[decision_id] = _Decided(
            manifest=detail.get("manifest"),
            reviewer=actor,
            decision=decision,
            reason=detail.get("why", ""),
            statement=body.context.signed or None,
            at=event.at,
            entry_version=version,
        )
        opened = self._opened.get(decision_id)
        if self._records.whole and opened is not None and opened < event.position:
            self._findings.fault("backlog", place, "it was cut before it was decided")
        authors = {self._author, *(proposal.author for proposal in self._proposed)}
        if decision == "approve" and actor in authors:
            if detail.get("own"):
                self._own.append((event.position, place, actor))
            else:
                self._findings.fault("duty", place, f"{actor} approved what {actor} proposed")

    def swept(self, event: Event) -> None:
        """A pass of the workspace's backlog."""
        facts = event.facts()
        detail = facts["detail"]
        self._sweeps[detail["sweep_id"]] = SweepRow(
            sweep_id=detail["sweep_id"],
            actor=facts["context"]["actor"],
            at=event.at,
            promoted=detail["promoted"],
            waiting=detail["waiting"],
            position=event.position,
        )

    def close(self, stream: Stream) -> None:
        """The stream's events are over: hold its rows against them."""
        rows = self._rows.get(self._source)
        row = rows.close(stream.subject) if rows is not None else None
        if isinstance(row, Entry):
            self._close_entry(row)
        elif row is not None:
            self._pairs.close_set(row)

    def _close_entry(self, entry: Entry) -> None:
        """Status, history and events are one truth (A-5, A-6)."""
        entry_id = entry.entry_id
        self._check_history(entry_id)
        self._check_proposals(entry_id)
        needs = [row.depends_on for row in self._records.of(DependencyRow, entry_id=entry_id)]
        if needs != self._needs:
            self._fault(entry_id, "what it depends on is not what its first event says")
        self._check_decisions(entry_id)
        if entry.escalates is not None:
            first = self._proposed[0]
            self._claimed[entry_id] = _Escalation(
                entry.escalates, first.manifest, entry.author, first.author
            )
        self._pairs.close(entry_id)

    def _check_proposals(self, entry_id: str) -> None:
        envelopes = sorted(
            self._records.of(ManifestEnvelope, entry_id=entry_id), key=lambda row: row.revision
        )
        proposed = [_Proposal(row.content_hash, row.author, row.made_at) for row in envelopes]
        revisions = [row.revision for row in envelopes]
        if proposed != self._proposed or revisions != [*range(1, len(envelopes) + 1)]:
            self._fault(entry_id, "what was proposed is not what its events say")
        for envelope in envelopes:
            self._check_envelope(envelope)

    def _check_decisions(self, entry_id: str) -> None:
        for row in self._records.of(Decision, entry_id=entry_id):
            stored = _Decided(
                manifest=row.content_hash,
                reviewer=row.reviewer,
                decision=row.decision,
                reason=row.reason,
                statement=row.statement_hash,
                at=row.decided_at,
                entry_version=row.entry_version,
            )
            if self._decisions.pop(row.decision_id, None) != stored:
                self._fault(entry_id, f"{row.decision_id} is not what its event says")
        for decision_id in sorted(self._decisions):
            self._fault(entry_id, f"the decision {decision_id} is not there")

    def _check_history(self, entry_id: str) -> None:
        rows = sorted(self._records.of(HistoryRow, entry_id=entry_id), key=lambda row: row.seq)
        stored = [
            (row.from_state, row.to_state, row.actor, row.reason, row.at, row.detail.encode())
            for row in rows
        ]
        numbers = [row.seq for row in rows]
        if stored != [arrow.as_history() for arrow in self._arrows] or numbers != [
            *range(1, len(rows) + 1)
        ]:
            self._fault(entry_id, "its history is not what its events say")
        # An arrow into a transient state is signed for with the one that follows it.
        signed = [arrow.signature_id for arrow in self._arrows]
        for at, arrow in enumerate(self._arrows[:-1]):
            if arrow.to_state in CHANGE.transient:
                signed[at] = self._arrows[at + 1].signature_id
        if [row.signature_ref for row in rows] != signed:
            self._fault(entry_id, "who signed its history is not what its events say")

    def _check_envelope(self, envelope: ManifestEnvelope) -> None:
        subject = envelope.entry_id
        if sha256_hex(envelope.body.encode()) != envelope.content_hash:
            self._fault(subject, "what is proposed is not what its hash says")
        units = list(self._records.of(UnitRow, manifest_id=envelope.manifest_id))
        manifest: Manifest = manifest_of(envelope.body)
        wanted = [
            UnitRow(envelope.manifest_id, *msgspec.structs.astuple(unit)) for unit in manifest.unit
        ]
        if units != wanted:
            self._fault(subject, "its units are not those of what is proposed")
        kept = {
            (ref.name, ref.kind, ref.sha256)
            for ref in self._records.of(RefRow, owner=envelope.manifest_id)
        }
        needed = {
            (unit.path, side, sha256)
            for unit in manifest.unit
            for side, sha256 in (("before", unit.before), ("after", unit.after))
            if sha256 is not None
        }
        if needed - kept:
            self._findings.fault("ref", subject, "what it proposes is not kept")

    def finish(self) -> None:
        """What is left over when every event was seen."""
        for rows in self._rows.values():
            rows.finish()
        self._pairs.finish()
        self._check_own()
        if not self._records.whole:
            return
        for entry_id in sorted(self._named.keys() | self._claimed.keys()):
            if self._named.get(entry_id) != self._claimed.get(entry_id):
                self._fault(entry_id, "what failed and what was opened for it do not say the same")
        for sweep in self._records.all(SweepRow):
            if self._sweeps.pop(sweep.sweep_id, None) != sweep:
                self._fault(sweep.sweep_id, "the sweep is not what its event says")
        for sweep_id in sorted(self._sweeps):
            self._fault(sweep_id, "the sweep that an event tells of is not there")

    def _fault(self, subject: str, why: str) -> None:
        self._findings.fault("backlog", subject, why)
