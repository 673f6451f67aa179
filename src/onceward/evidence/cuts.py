"""Change sets, results and the pairs of signatures on them, held against events and statements (H-5, H-6, G18)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from onceward.changes.machine import units_of
from onceward.changes.manifest import manifest_of
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
"""Told of a statement that must have been signed, and what it must say."""
_ENDS: Final = {"ENTRY_VERIFIED": True, "ENTRY_ESCALATED": False}


class Pairs:
    """What the events of one entry, and of its change sets, say was carried out, found and signed."""

    def __init__(self, records: Records, findings: Findings, expect: Expect) -> None:
        self._records, self._findings, self._expect = records, findings, expect
        self._undone: dict[str, tuple[str, str]] = {}
        """By change set that took one back: who signed that, and how its entry stood. They come before the entries in
        the order of streams."""
        self._listing = ""
        """What the change set that is read now says that it kept."""
        self.clear()

    def clear(self) -> None:
        self._results: dict[str, tuple[str, bool, int, str]] = {}
        self._signed: dict[str, tuple[str, str, str]] = {}
        """By signature: the act, and what the entry was and became."""
        self._cut: set[str] = set()
        """Change sets that the entry's own events say were cut."""

    def note_set(self, name: str, subject: str, said: Mapping[str, Any]) -> None:
        """An event of a change set."""
        if name == "CUT_KEPT":
            self._listing = said["listing"]
        elif name == "CUT_OPENED":
            self._listing = ""
        if name == "CUT_APPLIED" and "signature_id" in said:
            self._undone[subject] = (said["signature_id"], said["entry_state"])

    def note(self, name: str, said: Mapping[str, Any], actor: str, at: int, state: str) -> None:
        """An event of an entry."""
        if name == "ENTRY_CUT":
            self._cut.add(said["change_set_id"])
            self._signed[said["signature_id"]] = ("change.cut", "reviewed_approved", "cut_applied")
        elif name in _ENDS or name == "ENTRY_REVERIFIED":
            passed = _ENDS.get(name, bool(said.get("passed")))
            self._results[said["verify_result_id"]] = (said["result"], passed, at, actor)
            was = "cut_applied" if name in _ENDS else state
            self._signed[said["signature_id"]] = ("change.verify", was, said.get("to", state))

    def close_set(self, change_set: ChangeSet) -> None:
        """What a change set touched is what was approved, or the other way round."""
        decision = next(iter(self._records.of(Decision, decision_id=change_set.decision_id)), None)
        proposed = (
            []
            if decision is None
            else list(self._records.of(ManifestEnvelope, entry_id=change_set.entry_id))
        )
        bodies = [
            one.body
            for one in proposed
            if decision is not None and one.content_hash == decision.content_hash
        ]
        found = list(self._records.of(Affected, change_set_id=change_set.change_set_id))
        if (
            not bodies
            or decision is None
            or decision.decision != "approve"
            or decision.entry_id != change_set.entry_id
        ):
            self._fault(change_set.change_set_id, "nobody approved it")
            return
        manifest = manifest_of(bodies[-1])
        wanted = units_of(manifest, change_set.change_set_id, change_set.kind == "undo")
        if sorted(found, key=lambda row: row.path) != wanted:
            self._fault(change_set.change_set_id, "what it touched is not what was approved")
        if (change_set.kind, change_set.status) == ("cut", "applied"):
            refs = {
                (ref.name, ref.kind): ref.sha256
                for ref in self._records.of(RefRow, owner=change_set.change_set_id)
            }
            kept = (
                {}
                if manifest.cutter == REGISTRY
                else {(u.path, "prior"): u.before for u in manifest.unit if u.before}
            )
            if {name: refs.get(name) for name in kept} != kept or refs.get(
                ("listing", "listing")
            ) != self._listing:
                self._findings.fault(
                    "ref", change_set.change_set_id, "what it replaced is not kept"
                )

    def close(self, entry_id: str) -> None:
        """All of one entry: its results, and whoever signed for it."""
        sets = {one.change_set_id: one for one in self._records.of(ChangeSet, entry_id=entry_id)}
        results = {
            r.verify_result_id: r
            for name in sets
            for r in self._records.of(VerifyResult, change_set_id=name)
        }
        for taken in sorted(sets.keys() & self._undone.keys()):
            signature_id, state = self._undone.pop(taken)
            self._signed[signature_id] = ("change.undo", state, state)
        for one in sets.values():
            if (one.kind, one.status) == ("cut", "applied") and one.change_set_id not in self._cut:
                self._fault(
                    entry_id,
                    f"{one.change_set_id} was carried out, and the entry does not know of it",
                )
        self._check_results(entry_id, results)
        signatures = list(self._records.of(PairSignature, entry_id=entry_id))
        for row in signatures:
            self._check_signature(row, sets, results)
        for signature_id in sorted(self._signed):
            self._fault(entry_id, f"the signature {signature_id} is not there")
        self._check_apart(entry_id, signatures, sets, results)

    def _check_results(self, entry_id: str, results: Mapping[str, VerifyResult]) -> None:
        last: dict[str, str] = {}
        for name, (said, passed, at, actor) in self._results.items():
            row = results.get(name)
            if row is None:
                self._fault(entry_id, f"the result {name} is not there")
                continue
            told = (result_digest(row), bool(row.passed), row.verified_at, row.verifier)
            if told != (said, passed, at, actor) or row.prior_verify_result_id != last.get(
                row.change_set_id
            ):
                self._fault(entry_id, f"{name} is not what its event says")
            last[row.change_set_id] = name
        for name in sorted(results.keys() - self._results.keys()):
            self._fault(entry_id, f"no event tells of the result {name}")

    def _check_signature(
        self, row: PairSignature, sets: Mapping[str, ChangeSet], results: Mapping[str, VerifyResult]
    ) -> None:
        result = results.get(row.verify_result_id or "")
        change_set = sets.get(
            result.change_set_id if result is not None else row.change_set_id or ""
        )
        told = self._signed.pop(row.signature_id, None)
        named = (row.change_set_id is not None, row.verify_result_id is not None)
        of_role = {"executor": (True, False), "verifier": (False, True)}
        if told is None or change_set is None or named != of_role.get(row.role):
            self._fault(row.entry_id, f"no event tells of the signature {row.signature_id}")
            return
        act, was, became = told
        decisions = list(self._records.of(Decision, decision_id=change_set.decision_id))
        said = {**said_of_pair(row, change_set, result), "act": act, "from": was, "to": became}
        said["manifest"] = decisions[0].content_hash if decisions else ""
        self._expect(row.statement_hash, said)

    def _check_apart(
        self,
        entry_id: str,
        signatures: list[PairSignature],
        sets: Mapping[str, ChangeSet],
        results: Mapping[str, VerifyResult],
    ) -> None:
        """Who verified is nobody who carried out: by no name, key or tool."""
        executors = {row.change_set_id: row for row in signatures if row.role == "executor"}
        for row in signatures:
            result = results.get(row.verify_result_id or "")
            if result is None:
                continue
            other = executors.get(result.change_set_id)
            hands = {sets[result.change_set_id].executor} if result.change_set_id in sets else set()
            hands |= (
                set()
                if other is None
                else {other.principal, other.fingerprint, other.tool_revision}
            )
            if {row.principal, row.fingerprint, row.tool_revision} & hands:
                self._findings.fault("duty", entry_id, "who carried it out verified it")

    def finish(self) -> None:
        for name in sorted(self._undone):
            self._fault(name, "it took back a change that is not there")

    def _fault(self, subject: str, why: str) -> None:
        self._findings.fault("backlog", subject, why)
