"""The streams of sagas, held against the rows of their runs, steps and audits."""

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
        """The position at which each grant was consumed."""
        self._runs = FoldedRows(records, findings, "saga", counted="sagas")
        self._steps = Ahead(records.all(SagaStep), lambda step: step.saga_id)
        self._grant: str | None = None
        """The grant that the run works under."""
        self._shape: Shape | None = None
        self._told: dict[tuple[str, str], tuple[str, str] | None] = {}
        """What the run's events say of its steps, by step and side: the outputs and the child of
        one that was done, None for one that failed."""
        self._audits: dict[str, Audit] = {}
        """The audit rows that events tell of."""

    def note(self, stream: Stream, event: Event, body: EventBody) -> None:
        """An event of a run's stream."""
        facts = event.facts()
        detail = facts["detail"]
        place = f"{event.stream}#{event.seq}"
        if event.seq == 1:
            self._begin(detail)
        if self._shape is None:
            self._findings.fault("history", place, "it has no table to go by")
            return
        machine = machine_of(self._shape)
        self._runs.take(machine, event, facts)
        if body.event == "LEASE_TAKEN":
            used = self._consumed.get(self._grant or "")
            if self._records.whole and used is not None and event.position < used:
                self._findings.fault("state", place, "it began before its grant was used")
        elif body.event == "REGISTRY_AUDITED":
            audited = {**detail, "rollback_ref": f"evidence:{detail.get('evidence')}"}
            self.audited(audited, stream.subject, event)
        elif body.event != "LEASE_RELEASED":
            stream.move(machine, event, body, self._findings)
            self._note_step(body.event, detail)

    def _begin(self, detail: dict[str, Any]) -> None:
        self._grant = detail.get("grant_id")
        self._told = {}
        try:
            self._shape = msgspec.json.decode(str(detail.get("shape")), type=Shape)
            machine_of(self._shape)
        except (msgspec.MsgspecError, MachineError, IndexError):
            self._shape = None

    def _note_step(self, name: str, detail: dict[str, Any]) -> None:
        """What a move says of the step that it ends."""
        made = (detail.get("outputs", ""), detail.get("child_id", ""))
        if detail.get("reason") == "state_done":
            self._told[detail["from"], "action"] = made
        elif detail.get("reason") in ("compensated", "finished_forward"):
            self._told[detail.get("step", ""), "compensation"] = made
        elif name == "SAGA_STOPPED" and detail["why"].get("child_id"):
            self._told[detail.get("failed", ""), "action"] = None
        elif name == "SAGA_STUCK" and detail["why"].get("child_id"):
            self._told[detail["why"].get("step", ""), "compensation"] = None

    def close(self, stream: Stream) -> None:
        """The stream's events are over: hold its rows against them."""
        if self._runs.close(stream.subject) is not None:
            self._close_steps(stream)

    def _close_steps(self, stream: Stream) -> None:
        for passed in self._steps.before(stream.subject):
            self._findings.fault(
                "state", passed.saga_id, f"no event tells of its step {passed.step}"
            )
        steps = list(self._steps.all(stream.subject))
        children = sorted({step.child_id for step in steps})
        ends = self._records.ends_of(children)
        kept = self._records.refs_of(children)
        for step in steps:
            why = self._objection(step, ends.get(step.child_id))
            if why:
                self._findings.fault("state", stream.subject, f"its {step.side} {step.step}: {why}")
            made = {
                (step.child_id, output.name, output.kind, output.sha256)
                for output in outputs_of(step)
            }
            if made - kept:
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
        event = msgspec.json.decode(body)
        detail = event["detail"]
        made = result_digest(outputs_of(step))
        stated = self._told.pop((step.step, step.side), None)
        if (detail.get("step"), detail.get("side")) != (step.step, step.side):
            return "its child did something else"
        passed = event["event"] == _PASSED
        if step.status != ("done" if passed else "failed") or passed != (step.error is None):
            return "it did not end as its child's last event says"
        if not passed and step.error != canonical(failure(detail.get("reason"), detail)).decode():
            return "why it failed is not what its child's last event says"
        if step.status == "done" and detail.get("outputs") != made:
            return "what it left is not what its child's last event says"
        if stated is not None and stated != (made, step.child_id):
            return "the run went on from another"
        return ""

    def audited(self, detail: Mapping[str, Any], subject: str, event: Event) -> None:
        """An event names an audit row."""
        audit_id = str(detail.get("audit_id"))
        self._audits[audit_id] = Audit(
            audit_id=audit_id,
            root=str(detail.get("audit_root")),
            state=str(detail.get("audit_state")),
            subject=subject,
            rollback_ref=str(detail.get("rollback_ref")),
            position=event.position,
            created_at=event.at,
        )

    def finish(self) -> None:
        """What is left over when every event was seen."""
        self._runs.finish()
        for step in self._steps.rest():
            self._findings.fault("state", step.saga_id, f"no event tells of its step {step.step}")
        for audit in self._records.all(Audit):
            self._findings.count("audits")
            stated = self._audits.pop(audit.audit_id, None)
            if stated is not None and not self._records.whole:
                stated = msgspec.structs.replace(stated, position=audit.position)
            if stated != audit:
                self._findings.fault("audit", audit.audit_id, "it is not what its event says")
        if self._records.whole:
            for audit_id in sorted(self._audits):
                self._findings.fault("audit", audit_id, "an event names it, and it is not there")
