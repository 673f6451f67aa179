"""What a build need not do again: its own checkpoints, and the results of other builds (B-4, B-6)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

import msgspec

from onceward.artifacts.blobs import Artifacts
from onceward.artifacts.outputs import read_back
from onceward.builds import rules
from onceward.builds.approvals import decided
from onceward.builds.authority import objection_to_approval
from onceward.builds.flow import Flow
from onceward.builds.plan_changes import Body
from onceward.core.canon import canonical
from onceward.core.steps import Output, manifest_line, result_digest
from onceward.store.port import Reads
from onceward.store.tables.approvals import Approval, approvals_of, find_approval, want_approval
from onceward.store.tables.builds import Builds, plan_body
from onceward.store.tables.checkpoints import (
    Checkpoint,
    checkpoints_of,
    drop_checkpoint,
    made_with,
    put_checkpoint,
    reusable,
    told_of,
)
from onceward.store.transaction import Transaction

if TYPE_CHECKING:
    from onceward.builds.run import BuildRun

_CHUNK = 500


class SortedSteps(msgspec.Struct):
    """What came of looking: done already, waiting for a person, refused by one, or to be executed."""

    done: list[tuple[int, str, tuple[Output, ...]]] = []
    asked: dict[int, str] = {}
    """Steps that wait for a person, and the digest of what is to be approved."""
    refused: list[tuple[int, Mapping[str, Any]]] = []
    execute: list[int] = []
    saved: int = 0
    """What those that are done already cost when they ran."""


def whole(
    artifacts: Artifacts, checkpoints: Mapping[int, Checkpoint], *, note: bool = True
) -> dict[int, tuple[Output, ...]]:
    """The outputs of those whose artifacts are all there and what they say; what was verified is noted."""
    outputs = {step: read_back(checkpoint.outputs) for step, checkpoint in checkpoints.items()}
    digests = sorted({output.sha256 for some in outputs.values() for output in some})
    broken = artifacts.broken(digests, note=note) if digests else set()
    if not broken:
        return outputs
    return {
        step: some
        for step, some in outputs.items()
        if not any(output.sha256 in broken for output in some)
    }


def results_of_others(
    rows: Reads, flow: Flow, hashes: Mapping[int, str], but: str, parent: str | None = None
) -> dict[int, Checkpoint]:
    """What other builds than `but` have of these steps, by their record: the same context in the same environment
    (B-6). Of the build that this one was forked from, the same context is enough (B-11). What the first algorithm
    recorded is judged by it."""
    environments: dict[str, str | None] = {
        context: None if parent else flow.stage(step).environment_hash
        for step, context in hashes.items()
    }
    by_hash = reusable(rows, environments, but, parent)
    checkpoints = {step: by_hash[context] for step, context in hashes.items() if context in by_hash}
    older = {step: flow.first_hash(step) for step in hashes if step not in checkpoints}
    by_hash = reusable(rows, dict.fromkeys(filter(None, older.values()), ""), but, parent)
    return checkpoints | {
        step: by_hash[context] for step, context in older.items() if context in by_hash
    }


def begun_with(body: str | None) -> dict[str, str]:
    """The versions of functions that a plan was kept with, by stage."""
    stages = Body(body).stages
    versions = {name: stage["work"].get("function") for name, stage in stages.items()}
    return {name: version for name, version in versions.items() if version}


class FinishedSteps:
    """Checkpoints as they were when the build was begun or resumed."""

    def __init__(self, run: BuildRun, reuse: bool, rerun: Set[int]) -> None:
        self._run, self._reuse = run, reuse
        self._rerun = rerun
        """Steps that somebody said are to run: nobody else's result will do."""
        self._parent: str | None = None
        """The build this one was forked from: its results are taken over in any case (B-11)."""
        self._own: dict[int, Checkpoint] = {}
        with run.store.read() as rows:
            build = Builds(rows).get(run.build_id)
            self._parent = build.parent_build_id
            run.flow.begun_with = begun_with(plan_body(rows, build.plan_hash))
            for checkpoint in checkpoints_of(rows, run.build_id):
                step = self._step_of(checkpoint)
                if step is not None:
                    self._own[step] = checkpoint

    def _step_of(self, checkpoint: Checkpoint) -> int | None:
        steps = self._run.steps
        k = steps.number.get(checkpoint.stage)
        return None if k is None else steps.find(k, checkpoint.target)

    def must_execute(self, step: int) -> bool:
        """Whether a step has to run, as far as the record can tell now."""
        if step in self._own or self._stage(step).approve:
            return False
        others = self._others({step: self._run.flow.context_hash(step)})
        return not whole(self._run.artifacts, others)

    def look(self, steps: Sequence[int]) -> SortedSteps:
        """Sort out steps that wait for nothing more. What is reused, invalid or to be approved is recorded."""
        result = SortedSteps([], {}, [], [])
        hashes = {step: self._run.flow.context_hash(step) for step in steps}
        own = {step: self._own.pop(step) for step in steps if step in self._own}
        flow = self._run.flow
        matching = {
            step: checkpoint
            for step, checkpoint in own.items()
            if checkpoint.status == "SUCCESS"
            and checkpoint.context_hash == flow.judged_hash(step, checkpoint)
        }
        for step, checkpoint in own.items():
            if self._stage(step).approve and checkpoint.context_hash == hashes[step]:
                self.require_believed(step, hashes[step])
        skipped = whole(self._run.artifacts, matching)
        invalid = [(step, c) for step, c in matching.items() if step not in skipped]
        result.done += [(step, "SKIPPED", outputs) for step, outputs in skipped.items()]
        for step, c in own.items():
            if step not in skipped:
                self._run.before[step] = c
        rest = [step for step in steps if step not in skipped]
        others = self._others(
            {step: hashes[step] for step in rest if not self._stage(step).approve}
        )
        taken = whole(self._run.artifacts, others)
        reused = {step: others[step] for step in taken}
        invalid += [(step, c) for step, c in others.items() if step not in taken]
        result.done += [(step, "REUSED", outputs) for step, outputs in taken.items()]
        result.saved = sum(own[step].cost for step in skipped) + sum(
            c.cost for c in reused.values()
        )
        for step in rest:
            before = own.get(step)
            if step in reused:
                continue
            if not self._stage(step).approve:
                result.execute.append(step)
            elif (
                before is not None
                and before.status == "FAILED"
                and before.context_hash == hashes[step]
            ):
                result.refused.append((step, msgspec.json.decode(before.error or "{}")))
            else:
                result.asked[step] = hashes[step]
        self._record(invalid, reused, result.asked)
        return result

    def output_digest(self, rows: Reads) -> str:
        """What the whole build made, as one digest: every step's outputs by name and content (B-5)."""
        made = hashlib.sha256()
        for checkpoint in checkpoints_of(rows, self._run.build_id):
            made.update(manifest_line(checkpoint.stage, checkpoint.target, checkpoint.outputs))
        return made.hexdigest()

    def _stage(self, step: int) -> Any:
        return self._run.steps.stages[self._run.steps.place(step)[0]]

    def _others(self, hashes: Mapping[int, str]) -> dict[int, Checkpoint]:
        """What other builds have, by their record."""
        flow, build_id = self._run.flow, self._run.build_id
        free = {s: hashes[s] for s in hashes if s not in self._rerun and self._reuse}
        checkpoints: dict[int, Checkpoint] = {}
        with self._run.store.read() as rows:
            if free:
                checkpoints = results_of_others(rows, flow, free, build_id)
            # What is to run in any case has done so if the build that this one goes on with did it.
            rest = {step: hashes[step] for step in hashes if step not in checkpoints}
            if rest and self._parent:
                checkpoints |= results_of_others(rows, flow, rest, build_id, self._parent)
        return checkpoints

    def _record(
        self,
        invalid: Sequence[tuple[int, Checkpoint]],
        reused: Mapping[int, Checkpoint],
        asked: Mapping[int, str],
    ) -> None:
        acts = [lambda tx, s=s, c=c: self._note_invalid(tx, s, c) for s, c in invalid]
        acts += [lambda tx, s=s, c=c: self._take_over(tx, s, c) for s, c in reused.items()]
        acts += [lambda tx, s=s, h=h: self._ask(tx, s, h) for s, h in asked.items()]
        for start in range(0, len(acts), _CHUNK):
            batch = acts[start : start + _CHUNK]
            self._run.store.write(lambda tx, batch=batch: [act(tx) for act in batch])  # type: ignore[misc]
        for step, context in asked.items():
            self._tell(step, context)

    def ask_again(self, step: int, context: str) -> None:
        """What flows into a step that waits for a person has changed."""
        self._run.store.write(lambda tx: self._ask(tx, step, context))
        self._tell(step, context)

    def require_believed(self, step: int, context: str) -> None:
        """What stands in the rows as a person's word on a step is what that person signed (B-15)."""
        k, target = self._run.steps.place(step)
        place = (self._run.build_id, self._run.steps.stages[k].name, target)
        with self._run.store.read() as rows:
            approval = find_approval(rows, *place, context)
            self._require_believed(rows, step, approval)

    def _require_believed(self, rows: Reads, step: int, approval: Approval | None) -> None:
        authority = self._run.kernel.authority
        doubt, actor = "nobody was asked", "somebody"
        if approval is not None:
            doubt, actor = objection_to_approval(authority, rows, approval), str(approval.actor)
        rules.require_believed(self._run.steps.name(step), actor, doubt)

    def record_unrun(self, step: int, detail: Mapping[str, Any]) -> None:
        """A step that failed before a child could be made for it."""
        k, target = self._run.steps.place(step)
        error = canonical({"reason": "start_failed", **detail}).decode()
        failed = Checkpoint(
            build_id=self._run.build_id,
            stage=self._run.steps.stages[k].name,
            target=target,
            context_hash="",
            status="FAILED",
            how="executed",
            outputs="[]",
            cost=0,
            tokens=0,
            attempt=0,
            child_id=None,
            origin=None,
            error=error,
        )

        def record(tx: Transaction) -> None:
            put_checkpoint(tx, failed, tx.now)
            self._append(tx, "STEP_FAILED", step, detail)

        self._run.store.write(record)

    def _tell(self, step: int, context: str) -> None:
        name, text = self._run.steps.name(step), self._stage(step).approve
        self._run.told(
            {"step": name, "status": "APPROVAL", "digest": context, "text": text, "spent": {}}
        )

    def _append(self, tx: Transaction, event: str, step: int, detail: Mapping[str, Any]) -> None:
        name = self._run.steps.name(step)
        tx.append(
            f"session:{self._run.build_id}",
            event,
            self._run.actor.principal,
            {"step": name, **detail},
        )

    def _note_invalid(self, tx: Transaction, step: int, checkpoint: Checkpoint) -> None:
        self._append(tx, "CHECKPOINT_INVALID", step, {"context_hash": checkpoint.context_hash})

    def _take_over(self, tx: Transaction, step: int, checkpoint: Checkpoint) -> None:
        """A result of another build: its outputs, at no cost, with where they came from."""
        taken = msgspec.structs.replace(
            checkpoint,
            build_id=self._run.build_id,
            how="reused",
            cost=0,
            tokens=0,
            origin=checkpoint.build_id,
        )
        put_checkpoint(tx, taken, tx.now)
        outputs = result_digest(read_back(checkpoint.outputs))
        detail = {
            "context_hash": checkpoint.context_hash,
            "origin": checkpoint.build_id,
            "outputs": outputs,
            **told_of(taken),
            **made_with(checkpoint.code_version, checkpoint.environment_hash),
        }
        self._append(tx, "STEP_REUSED", step, {**detail, "child_id": checkpoint.child_id or ""})

    def _ask(self, tx: Transaction, step: int, context: str) -> None:
        k, target = self._run.steps.place(step)
        stage = self._run.steps.stages[k]
        place = (self._run.build_id, stage.name, target)
        earlier = find_approval(tx, *place, context)
        if earlier is not None and earlier.decision is not None:
            # It was decided about exactly this before something else flowed in; that word stands.
            self._require_believed(tx, step, earlier)
            put_checkpoint(tx, decided(earlier), tx.now)
            return
        drop_checkpoint(tx, *place)
        if earlier is None or earlier.wanted_at < _last_wanted(tx, *place):
            want_approval(tx, *place, context, stage.approve, tx.now)
            self._append(tx, "APPROVAL_WANTED", step, {"digest": context, "text": stage.approve})


def _last_wanted(rows: Reads, build_id: str, stage: str, target: str) -> int:
    """When a step last asked a person, whatever about."""
    return max(
        (
            a.wanted_at
            for a in approvals_of(rows, build_id)
            if (a.stage, a.target) == (stage, target)
        ),
        default=0,
    )
