"""Why a step runs, or does not have to: which of the things that flow into it changed since it was last done."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from onceward.artifacts.outputs import read_back
from onceward.builds.choices import choices_of, is_chosen
from onceward.builds.code_changes import difference, recorded_environments, resumed_code
from onceward.builds.plan_changes import CODE_CHANGED, Body, step_changes
from onceward.core.records import Build
from onceward.core.steps import result_digest, step_name
from onceward.store.port import Reads
from onceward.store.tables.builds import Builds, plan_body
from onceward.store.tables.checkpoints import (
    Checkpoint,
    checkpoints_of_stage,
    find_checkpoint,
    last_success,
)
from onceward.store.tables.events import told

Made = Callable[[str, str], str | None]
"""What a step made, as a digest; None where that is not known."""


class Code(msgspec.Struct, frozen=True):
    """What a step is done with: the version of its function, and its environment."""

    version: str | None = None
    environment_hash: str | None = None
    environment: Sequence[str] | None = None


class History:
    """Earlier builds of a plan, as far as they tell why a step runs now."""

    def __init__(self, rows: Reads, name: str, before: str = "") -> None:
        """`before` is the build that asks: only older ones count."""
        self._rows, self._name, self._before = rows, name, before
        self._bodies: dict[str, Body] = {}
        self._digests: dict[tuple[str, str], dict[str, str]] = {}
        self._flows: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
        """What is known already: of thousands of steps that need the same, it is asked once."""

    def last(self, stage: str, target: str) -> Checkpoint | None:
        """The step when it was last done."""
        return last_success(self._rows, self._name, stage, target, self._before)

    def changed(self, last: Checkpoint, now: Body, made: Made, code: Code) -> list[str]:
        """What is different from then; `now` is the plan's body, `made` what the steps before it left now, `code` what
        the step is done with now."""
        then = self._body(Builds(self._rows).get(last.build_id).plan_hash)
        reasons = step_changes(then, now, last.stage, last.target)
        if last.code_version and code.version:
            # What the step itself was done with; its build may have gone on with other code.
            reasons = [what for what in reasons if what != CODE_CHANGED]
            reasons += [] if last.code_version == code.version else [CODE_CHANGED]
        reasons += self._environment_changes(last, code)
        before, after = (body.needs(last.stage, last.target) for body in (then, now))
        if list(before) != list(after) and set(before) == set(after):
            reasons.append("the order of what it needs changed")
        reasons += [f"it no longer needs {need}" for need in before if need not in after]
        for need, targets in after.items():
            reasons += self._flowed(last.build_id, need, before.get(need, ()), targets, made)
        return reasons

    def _environment_changes(self, last: Checkpoint, code: Code) -> list[str]:
        if not last.environment_hash or last.environment_hash == code.environment_hash:
            return []
        recorded = recorded_environments(self._rows, last.build_id)
        return [difference(recorded.get(last.environment_hash), code.environment)]

    def _flowed(
        self, build_id: str, need: str, before: Sequence[str], after: Sequence[str], made: Made
    ) -> list[str]:
        """What came from one stage: the same steps, and the same from each?"""
        known = self._flows.get((build_id, need, tuple(after)))
        if known is not None and len(after) > 1:
            return known
        then = self._made_in(build_id, need)
        kept = set(after)
        gone = [target for target in before if target not in kept]
        told = [f"{step_name(need, target)} is gone" for target in gone[:3]]
        other = []
        for target in after:
            now_made = made(need, target)
            if now_made is not None and then.get(target) != now_made:
                other.append(
                    f"what {step_name(need, target)} made {'changed' if target in then else 'is new'}"
                )
        more = [f"and of {len(other) - 3:,} more of {need}"] if len(other) > 3 else []
        self._flows[build_id, need, tuple(after)] = told + other[:3] + more
        return told + other[:3] + more

    def _made_in(self, build_id: str, stage: str) -> dict[str, str]:
        if (build_id, stage) not in self._digests:
            checkpoints = checkpoints_of_stage(self._rows, build_id, stage)
            self._digests[build_id, stage] = {
                c.target: digest_of(c) for c in checkpoints if c.status == "SUCCESS"
            }
        return self._digests[build_id, stage]

    def _body(self, plan_hash: str) -> Body:
        if plan_hash not in self._bodies:
            self._bodies[plan_hash] = Body(plan_body(self._rows, plan_hash))
        return self._bodies[plan_hash]


def digest_of(checkpoint: Checkpoint) -> str:
    """What a step made, as its successors see it: an approval leaves nothing, but what was approved flows on."""
    if checkpoint.how == "approved":
        return checkpoint.context_hash
    return result_digest(read_back(checkpoint.outputs))


def why_it_ran(rows: Reads, build: Build, stage: str, target: str) -> tuple[list[str], str | None]:
    """Why a step of a build was executed, and the build in which it was last done before that."""
    history = History(rows, build.name, build.build_id)
    last = history.last(stage, target)
    if last is None:
        return ["no earlier build has done it"], None

    def made(need: str, other: str) -> str | None:
        checkpoint = find_checkpoint(rows, build.build_id, need, other)
        return None if checkpoint is None else digest_of(checkpoint)

    body = Body(plan_body(rows, build.plan_hash))
    reasons = history.changed(last, body, made, _code_of(rows, build, stage, target))
    return reasons or [_not_reused(rows, build, stage, target)], last.build_id


def _code_of(rows: Reads, build: Build, stage: str, target: str) -> Code:
    """What a step of a build was done with, as far as the record tells."""
    done = find_checkpoint(rows, build.build_id, stage, target)
    if done is None:
        return Code()
    recorded = recorded_environments(rows, build.build_id)
    environment = recorded.get(done.environment_hash or "")
    return Code(done.code_version, done.environment_hash, environment)


def about_code(rows: Reads, build: Build, checkpoint: Checkpoint | None, stage: str) -> list[str]:
    """What there is to know about the code of a step beside why it ran: that it changed since, or before the build
    went on; and what of it nobody can follow."""
    body = Body(plan_body(rows, build.plan_hash)).stages.get(stage, {})
    begun = body.get("work", {}).get("function")
    now = resumed_code(rows, build.build_id).get(stage)
    reasons = []
    if checkpoint is not None and checkpoint.status == "SUCCESS" and now is not None:
        done_with = checkpoint.code_version or begun
        if done_with != now:
            reasons.append("its code changed after it was done: its result is kept")
        elif done_with != begun:
            reasons.append("the build went on with changed code, and that ran")
    return reasons + [f"not followed: {what}" for what in body.get("unfollowed", ())]


def _not_reused(rows: Reads, build: Build, stage: str, target: str) -> str:
    """Nothing changed, and still it ran."""
    choices = choices_of(build.choices)
    if choices.force and is_chosen(choices, stage, target):
        return "nothing changed, but it was forced to run"
    if not build.reuse:
        return "nothing changed, but results of other builds were not to be taken over"
    name = step_name(stage, target)
    if told(rows, f"session:{build.build_id}", "CHECKPOINT_INVALID", name):
        return "nothing changed, but what it had made was damaged or gone"
    return "nothing changed that the record could tell"
