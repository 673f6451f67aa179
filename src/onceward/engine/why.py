"""Why a step runs, or does not have to: which of the things that flow into it changed since it was last done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from onceward.engine.outputs import read_back
from onceward.kernel.records import Build
from onceward.lifecycles.choices import choices_of, is_chosen
from onceward.lifecycles.plan import result_digest, step_name
from onceward.lifecycles.plan_changes import step_changes
from onceward.store.port import Reads
from onceward.store.tables.builds import Builds, plan_body
from onceward.store.tables.checkpoints import Checkpoint, find_checkpoint, last_success
from onceward.store.tables.events import told

Made = Callable[[str, str], str | None]
"""What a step made, as a digest; None where that is not known."""


class History:
    """Earlier builds of a plan, as far as they tell why a step runs now."""

    def __init__(self, rows: Reads, name: str, before: str = "") -> None:
        """`before` is the build that asks: only older ones count."""
        self._rows, self._name, self._before = rows, name, before
        self._bodies: dict[str, Mapping[str, Any]] = {}

    def last(self, stage: str, target: str) -> Checkpoint | None:
        """The step when it was last done."""
        return last_success(self._rows, self._name, stage, target, self._before)

    def changed(self, last: Checkpoint, now: Mapping[str, Any], made: Made) -> list[str]:
        """What is different from then; `now` is the plan's body, `made` what the steps before it left now."""
        then = self._body(Builds(self._rows).get(last.build_id).plan_hash)
        said = step_changes(then, now, last.stage, last.target)
        return said + self._upstream(last, now, made)

    def _upstream(self, last: Checkpoint, now: Mapping[str, Any], made: Made) -> list[str]:
        targets = {stage["name"]: stage["targets"] for stage in now["stages"]}
        needs = next(stage["needs"] for stage in now["stages"] if stage["name"] == last.stage)
        said = []
        for need in needs:
            for target in [last.target] if last.target in targets[need] else targets[need]:
                now_made = made(need, target)
                then = find_checkpoint(self._rows, last.build_id, need, target) if now_made is not None else None
                if now_made is not None and (then is None or digest_of(then) != now_made):
                    said.append(f"what {step_name(need, target)} made {'changed' if then else 'is new'}")
        return said

    def _body(self, plan_hash: str) -> Mapping[str, Any]:
        if plan_hash not in self._bodies:
            self._bodies[plan_hash] = msgspec.json.decode(plan_body(self._rows, plan_hash) or '{"stages": []}')
        return self._bodies[plan_hash]


def digest_of(checkpoint: Checkpoint) -> str:
    """What a step made, as its successors see it: an approval leaves nothing, but what was approved flows on."""
    if checkpoint.how == "approved":
        return checkpoint.context_hash
    return result_digest(read_back(checkpoint.outputs))


def why_it_ran(rows: Reads, build: Build, checkpoint: Checkpoint) -> tuple[list[str], str | None]:
    """Why a step of a build was executed, and the build in which it was last done before that."""
    history = History(rows, build.name, build.build_id)
    last = history.last(checkpoint.stage, checkpoint.target)
    if last is None:
        return ["no earlier build has done it"], None

    def made(stage: str, target: str) -> str | None:
        found = find_checkpoint(rows, build.build_id, stage, target)
        return None if found is None else digest_of(found)

    now = msgspec.json.decode(plan_body(rows, build.plan_hash) or '{"stages": []}')
    said = history.changed(last, now, made)
    if not said:
        said = [_not_reused(rows, build, checkpoint)]
    return said, last.build_id


def _not_reused(rows: Reads, build: Build, checkpoint: Checkpoint) -> str:
    """Nothing changed, and still it ran."""
    choices = choices_of(build.choices)
    if choices.force and is_chosen(choices, checkpoint.stage, checkpoint.target):
        return "nothing changed, but it was forced to run"
    if not build.reuse:
        return "nothing changed, but results of other builds were not to be taken over"
    name = step_name(checkpoint.stage, checkpoint.target)
    if told(rows, f"session:{build.build_id}", "CHECKPOINT_INVALID", name):
        return "nothing changed, but what it had made was damaged or gone"
    return "nothing changed that the record could tell"
