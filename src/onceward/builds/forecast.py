"""What a run would do, told without doing it: what would be executed and why, what would be reused, at what cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from onceward.artifacts.blobs import Artifacts
from onceward.builds.admission import recorded, usual
from onceward.builds.finished_steps import begun_with, results_of_others, whole
from onceward.builds.flow import Flow
from onceward.builds.plan_changes import Body
from onceward.builds.plans import Resolved
from onceward.builds.why import Code, History
from onceward.core.steps import Output, result_digest
from onceward.dispatch import debits
from onceward.store.port import Reads
from onceward.store.store import Store
from onceward.store.tables.builds import Builds, plan_body
from onceward.store.tables.checkpoints import Checkpoint, checkpoints_of


class Expected(msgspec.Struct, frozen=True):
    """What would become of one step."""

    step: str
    what: str
    """`run`, `reuse`, `skip`, or `ask` where a person is to approve."""
    because: Sequence[str]
    estimate: Mapping[str, int] = {}
    build_id: str | None = None
    """Whose result it would take over; or, of one that would run, the build in which it was last done."""


def room_left(store: Store, build_id: str, limits: Mapping[str, int]) -> dict[str, int]:
    """What a build with these limits may still spend by lane, and the workspace with it."""
    with store.read() as rows:
        own = debits.lanes(rows, build_id) if build_id else {}
        whole = debits.workspace(rows)
    left = {lane.lane: lane.limit - lane.total for lane in own.values() if lane.limit is not None}
    for name, limit in limits.items():
        left[name] = limit - (own[name].total if name in own else 0)
    for lane in whole.values():
        if lane.limit is not None:
            left[lane.lane] = min(left.get(lane.lane, lane.limit), lane.limit - lane.total)
    return {name: max(0, amount) for name, amount in left.items()}


class Forecast:
    """Looks at every step of a plan in its order; steps whose needs would run can only be guessed to run as well."""

    def __init__(
        self, resolved: Resolved, artifacts: Artifacts | None, *, reuse: bool, build_id: str = ""
    ) -> None:
        """`artifacts` is None where there is no workspace yet; `build_id` names the build that would be resumed."""
        self._resolved, self._steps, self._artifacts = resolved, resolved.steps, artifacts
        self._reuse, self._build_id = reuse and resolved.plan.reuse, build_id
        self._flow = Flow(resolved)
        self._made: dict[tuple[str, str], str] = {}
        self._anew: list[dict[str, None]] = [{} for _ in resolved.steps.stages]
        """Of each stage, the steps whose results are not known yet."""
        self._forced = resolved.forced()
        self._body = Body(resolved.body)

    def steps(self) -> list[Expected]:
        if self._artifacts is None:
            return [self._first(step) for step in range(len(self._steps))]
        with self._artifacts.store.read() as rows:
            own = (
                {(c.stage, c.target): c for c in checkpoints_of(rows, self._build_id)}
                if self._build_id
                else {}
            )
            if self._build_id:
                plan_hash = Builds(rows).get(self._build_id).plan_hash
                self._flow.begun_with = begun_with(plan_body(rows, plan_hash))
            return [
                expected
                for k in range(len(self._steps.stages))
                for expected in self._stage(rows, k, own)
            ]

    def _first(self, step: int) -> Expected:
        k, _ = self._steps.place(step)
        stage = self._steps.stages[k]
        what = "ask" if stage.approve else "run"
        return Expected(
            self._steps.name(step), what, ["no earlier build has done it"], stage.estimate
        )

    def _stage(
        self, rows: Reads, k: int, own: Mapping[tuple[str, str], Checkpoint]
    ) -> list[Expected]:
        """The steps of one stage, whose needs have been looked at."""
        stage = self._steps.stages[k]
        known = {
            step: self._flow.context_hash(step)
            for step in self._steps.of(k)
            if not self._missing(step)
        }
        fitting: dict[int, Checkpoint] = {}
        for step in known:
            mine = own.get((stage.name, self._steps.place(step)[1]))
            if (
                mine is not None
                and mine.status == "SUCCESS"
                and mine.context_hash == self._flow.judged_hash(step, mine)
            ):
                fitting[step] = mine
        if self._reuse and not stage.approve:
            wanted = {s: known[s] for s in known if s not in fitting and s not in self._forced}
            fitting |= results_of_others(rows, self._flow, wanted, self._build_id)
        assert self._artifacts is not None
        taken = whole(self._artifacts, fitting, note=False)
        estimate = usual(stage, recorded(rows, self._resolved.plan.name, stage.name))
        history = History(rows, self._resolved.plan.name)
        found = []
        for step in self._steps.of(k):
            if step in taken:
                self._note(step, taken[step])
                found.append(self._done(step, fitting[step]))
                continue
            if stage.approve and step in known:
                self._note(step, ())
            else:
                self._anew[k][self._steps.name(step)] = None
            if stage.approve:
                found.append(Expected(self._steps.name(step), "ask", [stage.approve]))
            else:
                because, since = self._because(history, step, step in fitting)
                found.append(Expected(self._steps.name(step), "run", because, estimate, since))
        return found

    def _done(self, step: int, checkpoint: Checkpoint) -> Expected:
        mine = checkpoint.build_id == self._build_id
        because = ["done in this build"] if mine else ["nothing that flows into it changed"]
        stage = self._flow.stage(step)
        done_with = checkpoint.code_version or self._flow.begun_with.get(stage.name)
        known = (stage.version, self._resolved.first_version(self._steps.place(step)[0]))
        if mine and stage.call is not None and done_with not in known:
            because.append("its code changed since, its result is kept")
        return Expected(
            self._steps.name(step), "skip" if mine else "reuse", because, {}, checkpoint.build_id
        )

    def _note(self, step: int, outputs: tuple[Output, ...]) -> None:
        self._flow.keep(step, outputs)
        k, target = self._steps.place(step)
        stage = self._steps.stages[k]
        made = self._flow.context_hash(step) if stage.approve else result_digest(outputs)
        self._made[stage.name, target] = made

    def _missing(self, step: int) -> list[str]:
        """What it needs that would be made anew."""
        found: list[str] = []
        for m, single in self._steps.needs(step):
            found += (
                self._anew[m]
                if single is None
                else [n for n in [self._steps.name(single)] if n in self._anew[m]]
            )
        return found

    def _because(self, history: History, step: int, broken: bool) -> tuple[list[str], str | None]:
        k, target = self._steps.place(step)
        last = history.last(self._steps.stages[k].name, target)
        if last is None:
            return ["no earlier build has done it"], None
        if broken:
            return ["what it had made is damaged or gone"], last.build_id
        stage = self._steps.stages[k]
        code = Code(stage.code_version, stage.environment_hash, stage.environment)
        said = history.changed(last, self._body, lambda *place: self._made.get(place), code)
        missing = self._missing(step)
        if missing:
            stages = dict.fromkeys(name.partition(":")[0] for name in missing)
            said.append(f"{', '.join(stages)} would run first")
        if not said and step in self._forced:
            said = ["nothing changed, but it is forced to run"]
        unknown = "nothing changed that the record could tell"
        return said or [
            unknown if self._reuse else "nothing changed, but reuse is off"
        ], last.build_id
