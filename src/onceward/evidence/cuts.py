"""Change sets, results and the pairs of signatures on them, held against events and statements
(H-5, H-6, G18)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from onceward.changes.machine import units_of
from onceward.changes.manifest import Manifest, manifest_of
from onceward.core.changes import (
    Affected,
    ChangeSet,
    Decision,
    ManifestEnvelope,
    PairSignature,
    VerifyResult,
    result_digest,
    said_of_pair,
)
from onceward.core.tree_paths import REGISTRY
from onceward.evidence.findings import Findings
from onceward.evidence.records import Records
from onceward.store.tables.artifacts import RefRow

Expect = Callable[[str, Mapping[str, Any]], None]
"""Called with the hash of a statement that must have been signed, and the fields it must have."""
_ENDS: Final = {"ENTRY_VERIFIED": True, "ENTRY_ESCALATED": False}


class _Result(NamedTuple):
    """A verification's result, as its event states it."""

    digest: str
    passed: bool
    at: int
    verifier: str


class _Signed(NamedTuple):
    """What a signature is for: the act, and the entry's state before and after it."""

    act: str
    before: str
    after: str


class Pairs:
    """The cuts, results and signatures that the events of one entry and its change sets state."""

    def __init__(self, records: Records, findings: Findings, expect: Expect) -> None:
        self._records, self._findings, self._expect = records, findings, expect
        self._undone: dict[str, tuple[str, str]] = {}
        """By change set that was undone: the signature for that, and the state of its entry. The
        streams of change sets come before those of entries."""
        self._listing = ""
        """The digest of the listing that the current change set says it kept."""
        self.clear()

    def clear(self) -> None:
        """Forget one entry: the next one begins."""
        self._results: dict[str, _Result] = {}
        self._signed: dict[str, _Signed] = {}
        """By signature."""
        self._cut: set[str] = set()
        """Change sets that the entry's own events say were cut."""

    def note_set(self, name: str, subject: str, detail: Mapping[str, Any]) -> None:
        """An event of a change set."""
        if name == "CUT_KEPT":
            self._listing = detail["listing"]
        elif name == "CUT_OPENED":
            self._listing = ""
        if name == "CUT_APPLIED" and "signature_id" in detail:
            self._undone[subject] = (detail["signature_id"], detail["entry_state"])

    def note(self, name: str, detail: Mapping[str, Any], actor: str, at: int, state: str) -> None:
        """An event of an entry, which is in this state."""
        if name == "ENTRY_CUT":
            self._cut.add(detail["change_set_id"])
            self._signed[detail["signature_id"]] = _Signed(
                "change.cut", before="reviewed_approved", after="cut_applied"
            )
        elif name in _ENDS or name == "ENTRY_REVERIFIED":
            passed = _ENDS.get(name, bool(detail.get("passed")))
            self._results[detail["verify_result_id"]] = _Result(
                detail["result"], passed=passed, at=at, verifier=actor
            )
            before = "cut_applied" if name in _ENDS else state
            self._signed[detail["signature_id"]] = _Signed(
                "change.verify", before=before, after=detail.get("to", state)
            )

    def close_set(self, change_set: ChangeSet) -> None:
        """The files that a change set touched are those approved, or their reverse."""
        set_id = change_set.change_set_id
        manifest = self._approved(change_set)
        if manifest is None:
            self._fault(set_id, "nobody approved it")
            return
        affected = list(self._records.of(Affected, change_set_id=set_id))
        approved = units_of(manifest, set_id, change_set.kind == "undo")
        if sorted(affected, key=lambda row: row.path) != approved:
            self._fault(set_id, "what it touched is not what was approved")
        if (change_set.kind, change_set.status) == ("cut", "applied"):
            self._check_kept(set_id, manifest)

    def _approved(self, change_set: ChangeSet) -> Manifest | None:
        """The manifest that was approved for a change set; None if none was."""
        decision = next(iter(self._records.of(Decision, decision_id=change_set.decision_id)), None)
        if (
            decision is None
            or decision.decision != "approve"
            or decision.entry_id != change_set.entry_id
        ):
            return None
        bodies = [
            envelope.body
            for envelope in self._records.of(ManifestEnvelope, entry_id=change_set.entry_id)
            if envelope.content_hash == decision.content_hash
        ]
        return manifest_of(bodies[-1]) if bodies else None

    def _check_kept(self, set_id: str, manifest: Manifest) -> None:
        """The contents that a cut replaced, and its listing, are kept as artifacts."""
        refs = {(ref.name, ref.kind): ref.sha256 for ref in self._records.of(RefRow, owner=set_id)}
        replaced = {}
        if manifest.cutter != REGISTRY:
            replaced = {(unit.path, "prior"): unit.before for unit in manifest.unit if unit.before}
        kept = {name: refs.get(name) for name in replaced}
        if kept != replaced or refs.get(("listing", "listing")) != self._listing:
            self._findings.fault("ref", set_id, "what it replaced is not kept")

    def close(self, entry_id: str) -> None:
        """All of one entry: its results, and whoever signed for it."""
        sets = {row.change_set_id: row for row in self._records.of(ChangeSet, entry_id=entry_id)}
        results = {
            row.verify_result_id: row
            for set_id in sets
            for row in self._records.of(VerifyResult, change_set_id=set_id)
        }
        for set_id in sorted(sets.keys() & self._undone.keys()):
            signature_id, state = self._undone.pop(set_id)
            self._signed[signature_id] = _Signed("change.undo", before=state, after=state)
        for set_id, change_set in sets.items():
            applied = (change_set.kind, change_set.status) == ("cut", "applied")
            if applied and set_id not in self._cut:
                self._fault(
                    entry_id, f"{set_id} was carried out, and the entry does not know of it"
                )
        self._check_results(entry_id, results)
        signatures = list(self._records.of(PairSignature, entry_id=entry_id))
        for row in signatures:
            self._check_signature(row, sets, results)
        for signature_id in sorted(self._signed):
            self._fault(entry_id, f"the signature {signature_id} is not there")
        self._check_apart(entry_id, signatures, sets, results)

    def _check_results(self, entry_id: str, results: Mapping[str, VerifyResult]) -> None:
        # By change set, the result that was read last.
        newest: dict[str, str] = {}
        for name, stated in self._results.items():
            row = results.get(name)
            if row is None:
                self._fault(entry_id, f"the result {name} is not there")
                continue
            stored = _Result(
                result_digest(row),
                passed=bool(row.passed),
                at=row.verified_at,
                verifier=row.verifier,
            )
            prior = newest.get(row.change_set_id)
            if stored != stated or row.prior_verify_result_id != prior:
                self._fault(entry_id, f"{name} is not what its event says")
            newest[row.change_set_id] = name
        for name in sorted(results.keys() - self._results.keys()):
            self._fault(entry_id, f"no event tells of the result {name}")

    def _check_signature(
        self, row: PairSignature, sets: Mapping[str, ChangeSet], results: Mapping[str, VerifyResult]
    ) -> None:
        result = results.get(row.verify_result_id or "")
        set_id = result.change_set_id if result is not None else row.change_set_id or ""
        change_set = sets.get(set_id)
        signed = self._signed.pop(row.signature_id, None)
        # An executor signs for a change set, a verifier for a result.
        names_set, names_result = row.change_set_id is not None, row.verify_result_id is not None
        of_role = {"executor": (True, False), "verifier": (False, True)}
        fits = (names_set, names_result) == of_role.get(row.role)
        if signed is None or change_set is None or not fits:
            self._fault(row.entry_id, f"no event tells of the signature {row.signature_id}")
            return
        decisions = list(self._records.of(Decision, decision_id=change_set.decision_id))
        statement = {
            **said_of_pair(row, change_set, result),
            "act": signed.act,
            "from": signed.before,
            "to": signed.after,
            "manifest": decisions[0].content_hash if decisions else "",
        }
        self._expect(row.statement_hash, statement)

    def _check_apart(
        self,
        entry_id: str,
        signatures: list[PairSignature],
        sets: Mapping[str, ChangeSet],
        results: Mapping[str, VerifyResult],
    ) -> None:
        """Nobody verified what they carried out: by no name, key or tool."""
        executors = {row.change_set_id: row for row in signatures if row.role == "executor"}
        for row in signatures:
            result = results.get(row.verify_result_id or "")
            if result is None:
                continue
            hands = set()
            if result.change_set_id in sets:
                hands.add(sets[result.change_set_id].executor)
            executor = executors.get(result.change_set_id)
            if executor is not None:
                hands |= {executor.principal, executor.fingerprint, executor.tool_revision}
            if {row.principal, row.fingerprint, row.tool_revision} & hands:
                self._findings.fault("duty", entry_id, "who carried it out verified it")

    def finish(self) -> None:
        """What is left over when every event was seen."""
        for name in sorted(self._undone):
            self._fault(name, "it took back a change that is not there")

    def _fault(self, subject: str, why: str) -> None:
        self._findings.fault("backlog", subject, why)
