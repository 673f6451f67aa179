"""What the streams of sagas say, and whether the rows of their runs, steps and audits say the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from onceward.core.canon import canonical
from onceward.core.chain import Event
from onceward.core.machine import MachineError
from onceward.core.sagas import SagaStep
from onceward.core.steps import result_digest
from onceward.core.vocabulary import Audit
from onceward.evidence.ahead import Ahead
from onceward.evidence.findings import Findings
from onceward.evidence.records import Records
from onceward.evidence.rows import FoldedRows
from onceward.evidence.steps import outputs_of
from onceward.sagas.machine import Shape, failure, machine_of

if TYPE_CHECKING:
    from onceward.core.bodies import EventBody
    from onceward.evidence.walk import Stream

_PASSED: Final = "WORKER_PASS"


class Sagas:
    """Runs, each by its own stream."""

    def __init__(self, records: Records, findings: Findings, consumed: Mapping[str, int]) -> None:
        self._records, self._findings = records, findings
        self._consumed = consumed
        """Where in the order of all events each grant was used up."""
        self._runs = FoldedRows(records, findings, "saga", counted="sagas")
        self._steps = Ahead(records.all(SagaStep), lambda step: step.saga_id)
        self._grant: str | None = None
        """The grant that the run works under."""
        self._shape: Shape | None = None
        self._told: dict[tuple[str, str], tuple[str, str] | None] = {}
        """What the run's events say of its steps: what one that was done left, and by whom."""
        self._audits: dict[str, Audit] = {}
        """The audit rows that events tell of."""

    def note(self, stream: Stream, event: Event, body: EventBody) -> None:
        facts = event.facts()
        said = facts["detail"]
        if event.seq == 1:
            self._begin(said)
        if self._shape is not None:
            self._runs.take(machine_of(self._shape), event, facts)
        if self._shape is None:
            self._findings.fault(
                "history", f"{event.stream}#{event.seq}", "it has no table to go by"
            )
        elif body.event == "LEASE_TAKEN":
            used = self._consumed.get(self._grant or "")
            if self._records.whole and used is not None and event.position < used:
                self._findings.fault(
                    "state", f"{event.stream}#{event.seq}", "it began before its grant was used"
                )
        elif body.event == "REGISTRY_AUDITED":
            self.audited(
                {**said, "rollback_ref": f"evidence:{said.get('evidence')}"},
                stream.subject,
                event,
            )
        elif body.event != "LEASE_RELEASED":
            stream.move(machine_of(self._shape), event, body, self._findings)
            self._moved(body.event, said)

    def _begin(self, said: dict[str, Any]) -> None:
        self._grant = said.get("grant_id")
        self._told = {}
        try:
            self._shape = msgspec.json.decode(str(said.get("shape")), type=Shape)
            machine_of(self._shape)
        except (msgspec.MsgspecError, MachineError, IndexError):
            self._shape = None

    def _moved(self, name: str, said: dict[str, Any]) -> None:
        if said.get("reason") == "state_done":
            self._told[said["from"], "action"] = (said.get("outputs", ""), said.get("child_id", ""))
        elif said.get("reason") in ("compensated", "finished_forward"):
            self._told[said.get("step", ""), "compensation"] = (
                said.get("outputs", ""),
                said.get("child_id", ""),
            )
        elif name == "SAGA_STOPPED" and said["why"].get("child_id"):
            self._told[said.get("failed", ""), "action"] = None
        elif name == "SAGA_STUCK" and said["why"].get("child_id"):
            self._told[said["why"].get("step", ""), "compensation"] = None

    def close(self, stream: Stream) -> None:
        if self._runs.close(stream.subject) is None:
            return
        self._close_steps(stream)

    def _close_steps(self, stream: Stream) -> None:
        for passed in self._steps.before(stream.subject):
            self._findings.fault(
                "state", passed.saga_id, f"no event tells of its step {passed.step}"
            )
        steps = list(self._steps.all(stream.subject))
        ends = self._records.ends_of(sorted({step.child_id for step in steps}))
        kept = self._records.refs_of(sorted({step.child_id for step in steps}))
        for step in steps:
            why = self._objection(step, ends.get(step.child_id))
            if why:
                self._findings.fault("state", stream.subject, f"its {step.side} {step.step}: {why}")
            if {(step.child_id, o.name, o.kind, o.sha256) for o in outputs_of(step)} - kept:
                self._findings.fault(
                    "ref", stream.subject, f"what its {step.side} {step.step} left is not kept"
                )
        for step, side in sorted(self._told):
            self._findings.fault(
                "state", stream.subject, f"its {side} {step} was tried, and is not recorded"
            )

    def _objection(self, step: SagaStep, body: bytes | None) -> str:
        """Why a step is not what the events of its child and its run say."""
        if body is None:
            self._told.pop((step.step, step.side), None)
            return "its child is not there"
        said = msgspec.json.decode(body)
        detail = said["detail"]
        made = result_digest(outputs_of(step))
        wanted = self._told.pop((step.step, step.side), None)
        if (detail.get("step"), detail.get("side")) != (step.step, step.side):
            return "its child did something else"
        passed = said["event"] == _PASSED
        if step.status != ("done" if passed else "failed") or passed != (step.error is None):
            return "it did not end as its child's last event says"
        if (
            step.error is not None
            and step.error != canonical(failure(detail.get("reason"), detail)).decode()
        ):
            return "why it failed is not what its child's last event says"
        if step.status == "done" and detail.get("outputs") != made:
            return "what it left is not what its child's last event says"
        if wanted is not None and wanted != (made, step.child_id):
            return "the run went on from another"
        return ""

    def audited(self, said: Mapping[str, Any], subject: str, event: Event) -> None:
        """An event names an audit row."""
        audit_id = str(said.get("audit_id"))
        self._audits[audit_id] = Audit(
            audit_id=audit_id,
            root=str(said.get("audit_root")),
            state=str(said.get("audit_state")),
            subject=subject,
            rollback_ref=str(said.get("rollback_ref")),
            position=event.position,
            created_at=event.at,
        )

    def finish(self) -> None:
        self._runs.finish()
        for step in self._steps.rest():
            self._findings.fault("state", step.saga_id, f"no event tells of its step {step.step}")
        for audit in self._records.all(Audit):
            self._findings.count("audits")
            told = self._audits.pop(audit.audit_id, None)
            if told is not None and not self._records.whole:
                told = msgspec.structs.replace(told, position=audit.position)
            if told != audit:
                self._findings.fault("audit", audit.audit_id, "it is not what its event says")
        if self._records.whole:
            for audit_id in sorted(self._audits):
                self._findings.fault("audit", audit_id, "an event names it, and it is not there")
