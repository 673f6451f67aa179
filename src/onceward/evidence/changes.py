"""What the streams of changes say, and whether entries, histories, manifests and decisions say the same (H-8)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

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


class ChangeStreams:
    """Entries and change sets, each by its own stream."""

    def __init__(self, records: Records, findings: Findings, expect: Expect) -> None:
        self._records, self._findings = records, findings
        self._rows = {
            name: FoldedRows(records, findings, name, counted=f"{name}s") for name in _MACHINES
        }
        self._pairs = Pairs(records, findings, expect)
        self._source = ""
        self._named: dict[str, tuple[Any, ...]] = {}
        """Entries that a failed verification opened, as it says: of which entry, proposing what, by whom."""
        self._claimed: dict[str, tuple[Any, ...]] = {}
        """Entries that say that one opened them: the same."""
        self._sweeps: dict[str, SweepRow] = {}
        self._own: list[tuple[int, str, str]] = []
        """Approvals by authors, where the settings of their time are said to have allowed it."""
        self._policies: list[tuple[int, bool]] = []
        """From which place on authors may review, or not, by what was signed."""
        self._opened: dict[str, int] = {}
        """Where the first change set of each decision was opened; their streams come before those of entries."""
        self._forget()

    def _forget(self) -> None:
        self._author = ""
        self._arrows: list[tuple[Any, ...]] = []
        self._decisions: dict[str, tuple[Any, ...]] = {}
        self._proposed: list[tuple[str, str, int]] = []
        """What was proposed, by hash, by whom and when; in order."""
        self._needs: list[str] = []
        self._pairs.clear()

    def noted(self, event: Event, policy: Any) -> None:
        """What changes need here changed."""
        allowed = isinstance(policy, dict) and bool(policy.get("authors_may_review"))
        self._policies.append((event.position, allowed))

    def _check_own(self) -> None:
        for position, place, actor in self._own if self._records.whole else ():
            before = [allowed for since, allowed in self._policies if since < position]
            if not before or not before[-1]:
                self._findings.fault(
                    "duty",
                    place,
                    f"{actor} approved what {actor} proposed, and no setting allowed it",
                )

    def note(self, stream: Stream, event: Event, body: EventBody) -> None:
        facts = event.facts()
        said = facts["detail"]
        if event.seq == 1:
            self._forget()
            self._source = event.source
            if event.source == "change_set":
                known = self._opened.get(said.get("decision_id", ""), event.position)
                self._opened[said.get("decision_id", "")] = min(known, event.position)
            if event.source == "change":
                self._author = str(said.get("author", ""))
                first = str(said.get("proposed_by", self._author))
                self._proposed = [(str(said.get("manifest", "")), first, event.at)]
                self._needs = said.get("depends_on", [])
        machine = _MACHINES.get(self._source)
        if event.source not in (self._source, "entry") or machine is None:
            self._findings.fault(
                "history", f"{event.stream}#{event.seq}", f"nothing here is a {event.source}"
            )
            return
        if event.source != "entry":
            stream.move(machine, event, body, self._findings)
            self._rows[self._source].take(machine, event, facts)
            reason = said.get("reason", "marked")
            told = (
                said.get("from"),
                said["to"],
                body.context.actor,
                reason,
                event.at,
                canonical(said),
            )
            self._arrows.append((*told, said.get("signature_id")))
        if self._source == "change_set":
            self._pairs.note_set(body.event, stream.subject, said)
            return
        self._pairs.note(body.event, said, body.context.actor, event.at, stream.state)
        if said.get("escalation"):
            proposer = [
                author for hash_, author, _ in self._proposed if hash_ == said.get("manifest")
            ][-1:]
            told = (stream.subject, said.get("manifest"), self._author, *proposer)
            self._named.setdefault(said["escalation"], told)
        if body.event == "ENTRY_REVISED":
            self._proposed.append((said["manifest"], said["author"], event.at))
        decision = (
            said.get("decision") if body.event == "ENTRY_REVIEWED" else DECISIONS.get(body.event)
        )
        if decision:
            self._decide(event, body, said, decision)

    def _decide(self, event: Event, body: EventBody, said: dict[str, Any], decision: str) -> None:
        actor, manifest = body.context.actor, said.get("manifest")
        told = (
            manifest,
            actor,
            decision,
            said.get("why", ""),
            body.context.signed or None,
            event.at,
        )
        before = sum(arrow[1] is not None for arrow in self._arrows) - (event.source == "change")
        self._decisions[said.get("decision_id", "")] = (*told, before)
        opened = self._opened.get(said.get("decision_id", ""))
        if self._records.whole and opened is not None and opened < event.position:
            self._findings.fault(
                "backlog", f"{event.stream}#{event.seq}", "it was cut before it was decided"
            )
        authors = {self._author, *(author for _, author, _ in self._proposed)}
        if decision == "approve" and actor in authors:
            place = f"{event.stream}#{event.seq}"
            if said.get("own"):
                self._own.append((event.position, place, actor))
            else:
                self._findings.fault("duty", place, f"{actor} approved what {actor} proposed")

    def swept(self, event: Event) -> None:
        """A pass of the workspace's backlog."""
        told = event.facts()
        said = told["detail"]
        self._sweeps[said["sweep_id"]] = SweepRow(
            sweep_id=said["sweep_id"],
            actor=told["context"]["actor"],
            at=event.at,
            promoted=said["promoted"],
            waiting=said["waiting"],
            position=event.position,
        )

    def close(self, stream: Stream) -> None:
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
        envelopes = sorted(
            self._records.of(ManifestEnvelope, entry_id=entry_id), key=lambda one: one.revision
        )
        proposed = [(one.content_hash, one.author, one.made_at) for one in envelopes]
        revisions = [one.revision for one in envelopes]
        if proposed != self._proposed or revisions != [*range(1, len(envelopes) + 1)]:
            self._fault(entry_id, "what was proposed is not what its events say")
        for envelope in envelopes:
            self._check_envelope(envelope)
        if [
            row.depends_on for row in self._records.of(DependencyRow, entry_id=entry_id)
        ] != self._needs:
            self._fault(entry_id, "what it depends on is not what its first event says")
        for decision in self._records.of(Decision, entry_id=entry_id):
            told = self._decisions.pop(decision.decision_id, None)
            said = (decision.content_hash, decision.reviewer, decision.decision, decision.reason)
            if told != (
                *said,
                decision.statement_hash,
                decision.decided_at,
                decision.entry_version,
            ):
                self._fault(entry_id, f"{decision.decision_id} is not what its event says")
        for decision_id in sorted(self._decisions):
            self._fault(entry_id, f"the decision {decision_id} is not there")
        if entry.escalates is not None:
            self._claimed[entry_id] = (
                entry.escalates,
                self._proposed[0][0],
                entry.author,
                self._proposed[0][1],
            )
        self._pairs.close(entry_id)

    def _check_history(self, entry_id: str) -> None:
        rows = sorted(self._records.of(HistoryRow, entry_id=entry_id), key=lambda row: row.seq)
        found = [
            (row.from_state, row.to_state, row.actor, row.reason, row.at, row.detail.encode())
            for row in rows
        ]
        if found != [arrow[:-1] for arrow in self._arrows] or [row.seq for row in rows] != [
            *range(1, len(rows) + 1)
        ]:
            self._fault(entry_id, "its history is not what its events say")
        # An arrow that is only passed through is signed for with the one that follows it.
        signed = [arrow[-1] for arrow in self._arrows]
        for at, arrow in enumerate(self._arrows[:-1]):
            if arrow[1] in CHANGE.transient:
                signed[at] = self._arrows[at + 1][-1]
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
        sides = {
            (u.path, side, sha)
            for u in manifest.unit
            for side, sha in (("before", u.before), ("after", u.after))
        }
        if {side for side in sides if side[2] is not None} - kept:
            self._findings.fault("ref", subject, "what it proposes is not kept")

    def finish(self) -> None:
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
