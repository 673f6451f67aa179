"""The steps in a build's stream, held against its checkpoints and approvals."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from onceward.core.canon import digest
from onceward.core.chain import Event
from onceward.core.sagas import SagaStep
from onceward.core.steps import Output, manifest_line, result_digest, step_name
from onceward.evidence.findings import Findings
from onceward.evidence.records import Records, batches
from onceward.store.tables.approvals import Approval
from onceward.store.tables.checkpoints import Checkpoint

if TYPE_CHECKING:
    from onceward.core.bodies import Detail, EventBody

TOLD: Final = frozenset(
    {
        "STEP_REUSED",
        "STEP_DECIDED",
        "STEP_IN_DOUBT",
        "STEP_FAILED",
        "LATE_RESULT",
        "APPROVAL_WANTED",
        "APPROVAL_GIVEN",
        "APPROVAL_REFUSED",
    }
)
"""The events of a session that speak of steps which no child of it made, or that a person
decided about."""


class StepHistory:
    """The facts that one build's events state about its steps."""

    def __init__(self, build_id: str) -> None:
        self._build = build_id
        self._reused: dict[str, tuple[Any, ...]] = {}
        self._accepted: dict[str, Any] = {}
        self._doubted: set[str] = set()
        self._unrun: set[str] = set()
        self._late: set[tuple[Any, ...]] = set()
        """Step, child, context, outputs, code and environment of results that came after their
        child's end."""
        self._wanted: dict[tuple[str, str], tuple[str, int]] = {}
        self._decided: dict[tuple[str, str], tuple[Any, ...]] = {}
        self.made: str | None = None
        """The digest of everything the build made, by its last event."""

    def note(self, event: Event, body: EventBody) -> None:
        """An event of the build's session that speaks of a step."""
        name, detail = body.event, body.detail
        if name == "STEP_REUSED":
            self._reused[detail.step] = (
                detail.context_hash,
                detail.outputs,
                detail.child_id,
                detail.code_version,
                detail.environment_hash,
                detail.origin,
                *_cost(detail),
            )
        elif name == "STEP_DECIDED" and detail.decision == "accept":
            self._accepted[detail.step] = (detail.outputs, *_cost(detail))
        elif name == "LATE_RESULT":
            self._late.add(
                (
                    detail.step,
                    detail.child_id,
                    detail.context_hash,
                    detail.outputs,
                    detail.code_version,
                    detail.environment_hash,
                    *_cost(detail),
                )
            )
        elif name == "STEP_IN_DOUBT":
            self._doubted.add(detail.step)
        elif name == "STEP_FAILED":
            self._unrun.add(detail.step)
        elif name == "APPROVAL_WANTED":
            self._wanted[detail.step, detail.digest] = (detail.text, event.at)
        elif name in ("APPROVAL_GIVEN", "APPROVAL_REFUSED"):
            self._decided[detail.step, detail.digest] = (
                detail.decision,
                body.context.actor,
                detail.note,
                event.at,
                body.context.signed or None,
            )

    def check_approvals(self, rows: Iterable[Approval], findings: Findings) -> None:
        left = dict(self._decided)
        wanted = dict(self._wanted)
        for row in rows:
            findings.count("approvals")
            step = step_name(row.stage, row.target)
            key = (step, row.digest)
            decision = (row.decision, row.actor, row.note or "", row.decided_at, row.statement_hash)
            undecided = (None, None, "", None, None)
            question = (row.text, row.wanted_at)
            if left.pop(key, undecided) != decision or wanted.pop(key, None) != question:
                findings.fault(
                    "approval",
                    f"{self._build} {step}",
                    "who was asked what, and decided what, is not what the events say",
                )
        for step, _ in left.keys() | wanted.keys():
            findings.fault(
                "approval",
                f"{self._build} {step}",
                "the events tell of a question that is not there",
            )

    def check_checkpoints(
        self, rows: Iterator[Checkpoint], records: Records, findings: Findings
    ) -> None:
        made = hashlib.sha256()
        missing = set(self._reused)
        for batch in batches(rows):
            ends = records.ends_of(sorted({row.child_id for row in batch if row.child_id}))
            owners = {row.child_id or row.build_id for row in batch if row.outputs != "[]"}
            kept = records.refs_of(sorted(owners))
            for row in batch:
                findings.count("checkpoints")
                made.update(manifest_line(row.stage, row.target, row.outputs))
                step = step_name(row.stage, row.target)
                missing.discard(step)
                why = self._objection(step, row, ends)
                if why:
                    findings.fault("checkpoint", f"{self._build} {step}", why)
                owner = row.child_id or row.build_id
                for output in outputs_of(row):
                    if (owner, output.name, output.kind, output.sha256) not in kept:
                        findings.fault(
                            "ref",
                            f"{self._build} {step}",
                            f"nothing keeps its output {output.name}",
                        )
        for step in sorted(missing):
            findings.fault(
                "checkpoint", f"{self._build} {step}", "it was taken over, and is not there"
            )
        if self.made is not None and self.made != made.hexdigest():
            findings.fault(
                "manifest", self._build, "its steps did not make what its last event says"
            )

    def _objection(self, step: str, row: Checkpoint, ends: Mapping[str, bytes]) -> str | None:
        """How a checkpoint differs from the events that speak of it."""
        cost = (row.cost, row.tokens, row.attempt)
        if row.status not in ("SUCCESS", "FAILED", "IN_DOUBT"):
            return "it has no status that a checkpoint can have"
        if row.how != "reused" and row.origin is not None:
            return "it was not taken over from anywhere"
        if row.how == "reused":
            reused = (
                row.context_hash,
                result_digest(outputs_of(row)),
                row.child_id or "",
                row.code_version,
                row.environment_hash,
                row.origin,
                *cost,
            )
            same = row.status == "SUCCESS" and self._reused.get(step) == reused
            return None if same else "it is not what was taken over"
        if row.how == "approved":
            decision = self._decided.get((step, row.context_hash), ("",))[0]
            wanted = {"approved": "SUCCESS", "refused": "FAILED"}.get(decision)
            bare = (row.outputs, row.child_id, row.code_version, row.environment_hash)
            same = row.status == wanted and bare == ("[]", None, None, None) and cost == (0, 0, 1)
            return None if same else "nobody decided so"
        if row.how == "accepted":
            listed = [[output.name, output.sha256] for output in outputs_of(row)]
            same = row.status == "SUCCESS" and self._accepted.get(step) == (listed, *cost)
            return None if same else "nobody accepted this"
        if row.how != "executed":
            return "no event says that it came about so"
        if row.status == "IN_DOUBT" and step not in self._doubted:
            return "nothing left it in doubt"
        if row.child_id is None:
            same = row.status == "FAILED" and step in self._unrun and cost == (0, 0, 0)
            return None if same else "no child made it"
        if row.child_id not in ends:
            return "the child that made it is not there"
        made = result_digest(outputs_of(row))
        code = (row.code_version, row.environment_hash)
        late = (step, row.child_id, row.context_hash, made, *code, *cost)
        if row.status == "SUCCESS" and late in self._late:
            return None
        return self._unlike_child(row, body_of(ends[row.child_id]))

    def _unlike_child(self, row: Checkpoint, event: Mapping[str, Any]) -> str | None:
        detail = event.get("detail", {})
        if event.get("context", {}).get("session_id") != self._build:
            return "the child that made it is another build's"
        context = detail.get("context_hash", row.context_hash)
        # Of a step whose inputs changed while it ran, nobody else may take the result over.
        if row.context_hash != context and row.context_hash != digest([context, row.child_id]):
            return "its context is not that of the child that made it"
        if (row.cost, row.tokens, row.attempt) != _cost_of(detail):
            return "its cost or attempt is not that of the child that made it"
        if row.status == "SUCCESS":
            made_with = (detail.get("code_version"), detail.get("environment_hash"))
            if (row.code_version, row.environment_hash) != made_with:
                return "its code or environment is not that of the child that made it"
            if detail.get("reason") != "completed":
                return f"it says SUCCESS, but its child ended with {detail.get('reason')}"
            if detail.get("outputs") != result_digest(outputs_of(row)):
                return "its outputs are not what its child's last event says"
        elif row.status == "IN_DOUBT" and "in_doubt" in detail:
            return None
        elif detail.get("reason") == "completed":
            return f"it says {row.status}, but its child completed"
        return None


def _cost(detail: Detail) -> tuple[int, int, int]:
    """Cost, tokens and attempt of a checkpoint, as an event tells of them."""
    spent = detail.spent or {}
    return (spent.get("usd_micros", 0), spent.get("tokens", 0), detail.attempt)


def _cost_of(detail: Mapping[str, Any]) -> tuple[int, int, int]:
    """The same by a child's last event: what it and the attempts before it spent."""
    own, earlier = detail.get("spent", {}), detail.get("earlier", {})
    sums = (own.get(lane, 0) + earlier.get(lane, 0) for lane in ("usd_micros", "tokens"))
    return (*sums, detail.get("attempt", 1))


def outputs_of(row: Checkpoint | SagaStep) -> list[Output]:
    """What a step made, by its row."""
    if row.outputs == "[]":
        return []
    listed = msgspec.json.decode(row.outputs)
    return msgspec.convert(
        [dict(zip(_FIELDS, output, strict=True)) for output in listed], list[Output]
    )


_FIELDS = ("name", "kind", "sha256", "size")


def body_of(body: bytes) -> dict[str, Any]:
    """An event as values; nothing where it cannot be read, which the pass over the events tells
    of."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
    return found if isinstance(found, dict) else {}
