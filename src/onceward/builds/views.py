"""Views of builds: list, status with every step, what waits for an approval, confirmation tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from onceward.artifacts.blobs import Artifacts
from onceward.artifacts.outputs import read_back, value_of
from onceward.builds import rules
from onceward.core.money import to_usd
from onceward.core.records import Build, Permit
from onceward.core.sources import Micros, iso
from onceward.core.steps import step_name
from onceward.core.views import LaneView, View
from onceward.dispatch import debits
from onceward.dispatch.cut_off import step_of
from onceward.kernel.tenure import vacant
from onceward.store.port import Reads
from onceward.store.store import Store
from onceward.store.tables.approvals import Approval, approvals_of
from onceward.store.tables.builds import Builds, last_detail, plan_body
from onceward.store.tables.checkpoints import Checkpoint, checkpoints_of, in_doubt
from onceward.store.tables.children import Tokens
from onceward.store.tables.permits import newest_confirmations

_KEPT_OF_MOVE = frozenset({"from", "to", "reason", "transition_seq"})
"""What an event says of every move; all else is why it was made."""


class BuildSummary(View, frozen=True, kw_only=True):
    """A build in a list: how it stands, why, what it cost, what to type next."""

    build_id: str
    name: str
    state: str
    cost_usd: str
    tokens: int
    created_at: str
    updated_at: str
    reason: str | None = None
    why: dict[str, Any] | None = None
    """What else the event of its last move says."""
    plan_file: str | None = None
    choices: str | None = None
    """What somebody chose of the plan, as canonical text."""
    in_doubt: Sequence[str] = ()
    """Steps about which a person has to decide before it goes on."""
    enough: str | None = None
    """Of a paused build: a budget with which it can go on."""
    parent_build_id: str | None = None
    orphaned: bool = False
    """ACTIVE on paper, but the kernel that ran it is gone."""
    next: str | None = None
    """The command that brings it on."""

    def facts(self) -> Mapping[str, Any]:
        """What else the event of its last move says; nothing where it says nothing."""
        return self.why or {}


class OutputView(View, frozen=True):
    """An artifact that a step left."""

    name: str
    kind: str
    sha256: str
    size: int


class StepView(View, frozen=True):
    """A step of a build: how it stands, what it cost, what it left."""

    stage: str
    target: str
    status: str
    context_hash: str | None = None
    cost_usd: str | None = None
    tokens: int | None = None
    attempts: int | None = None
    child_id: str | None = None
    origin: str | None = None
    """The build that its result was taken over from."""
    error: dict[str, Any] | None = None
    artifacts: list[OutputView] | None = None
    started_at: str | None = None
    seconds: float | None = None

    @property
    def name(self) -> str:
        return step_name(self.stage, self.target)

    def failure(self) -> Mapping[str, Any]:
        """What is known of its failure; nothing where it did not fail."""
        return self.error or {}

    def outputs(self) -> Sequence[OutputView]:
        return self.artifacts or ()


class WantedApproval(View, frozen=True):
    """What waits for a person's decision, which is for exactly the content of this digest."""

    step: str
    digest: str
    text: str


class BuildView(BuildSummary, frozen=True, kw_only=True):
    """A build with every step."""

    steps: list[StepView]
    needs: dict[str, list[str]]
    """By stage, the stages that come before it."""
    flows_in: dict[str, list[str]]
    """By stage, the stages whose results it gets."""
    gathers: dict[str, list[str]]
    """By stage, the stages of which it waits for every target."""
    lanes: list[LaneView]
    approvals: Sequence[WantedApproval] = ()


class PermitView(View, frozen=True):
    """A confirmation token of a pause, by its id; the token itself is nowhere."""

    permit_id: str
    build_id: str
    expires_at: str
    state: str


def build_list(store: Store, limit: int = 50) -> list[BuildSummary]:
    """The newest builds and what they cost."""
    nobody = vacant(store)
    with store.read() as rows:
        return [_summary(rows, build, nobody) for build in Builds(rows).newest(limit)]


def build_named(store: Store, prefix: str) -> Build:
    with store.read() as rows:
        return Builds(rows).named(prefix)


def build_summary(store: Store, build_id: str) -> BuildSummary:
    nobody = vacant(store)
    with store.read() as rows:
        return _summary(rows, Builds(rows).get(build_id), nobody)


def build_view(store: Store, prefix: str) -> BuildView:
    """A build with every step: how it stands, what it cost, what it left."""
    nobody = vacant(store)
    with store.read() as rows:
        build = Builds(rows).named(prefix)
        summary = _summary(rows, build, nobody)
        stages = _stages_of(rows, build)
        lanes = debits.lanes(rows, build.build_id).values()
        return BuildView(
            **{name: getattr(summary, name) for name in BuildSummary.__struct_fields__},
            # What a dead kernel left running runs no more, and nobody can say since when.
            steps=_steps(rows, build, stages, None if summary.orphaned else rows.now()),
            needs={stage["name"]: dependencies(stage) for stage in stages},
            flows_in={
                stage["name"]: [*stage["needs"], *stage.get("collect", ())] for stage in stages
            },
            gathers={stage["name"]: gathered(stage) for stage in stages},
            lanes=[LaneView(lane=lane.lane, limit=lane.limit, total=lane.total) for lane in lanes],
            approvals=tuple(
                WantedApproval(
                    step=step_name(one.stage, one.target), digest=one.digest, text=one.text
                )
                for one in _wanted(rows, build)
            ),
        )


def next_command(build: BuildSummary) -> str | None:
    """What a person would type next."""
    return rules.next_command(
        build.build_id,
        build.state,
        build.facts(),
        enough=build.enough,
        doubts=build.in_doubt,
        plan_file=build.plan_file or "",
        choices=build.choices or "{}",
    )


def dependencies(stage: Mapping[str, Any]) -> list[str]:
    """Every stage that comes before a stage of a kept plan."""
    return [*stage["needs"], *gathered(stage)]


def gathered(stage: Mapping[str, Any]) -> list[str]:
    """The stages of which a stage of a kept plan waits for every target."""
    return [*stage.get("collect", ()), *stage.get("after", ())]


def values_of_stage(
    artifacts: Artifacts, build_id: str, stage: str, target: str | None = None
) -> dict[str, Any]:
    """What the steps of a stage made, by target, for whoever ran the build from Python; files as their bytes."""
    with artifacts.store.read() as rows:
        checkpoints = [
            c
            for c in checkpoints_of(rows, build_id)
            if c.stage == stage and target in (None, c.target)
        ]
    rules.require_results(build_id, stage, target, [c.status for c in checkpoints])
    return {c.target: value_of(artifacts, read_back(c.outputs), None) for c in checkpoints}


def _summary(rows: Reads, build: Build, nobody: bool) -> BuildSummary:
    lanes = debits.lanes(rows, build.build_id)
    detail = last_detail(rows, build.build_id)
    why = {name: value for name, value in detail.items() if name not in _KEPT_OF_MOVE}
    doubts = (
        [step_name(c.stage, c.target) for c in in_doubt(rows, build.build_id)]
        if build.state in ("CRASHED", "BUDGET_PAUSE")
        else []
    )
    summary = BuildSummary(
        build_id=build.build_id,
        name=build.name,
        state=build.state,
        cost_usd=to_usd(lanes["usd_micros"].total if "usd_micros" in lanes else 0),
        tokens=lanes["tokens"].total if "tokens" in lanes else 0,
        created_at=iso(build.created_at),
        updated_at=iso(build.updated_at),
        reason=detail.get("reason"),
        why=why or None,
        plan_file=build.plan_file,
        choices=build.choices,
        in_doubt=tuple(doubts),
        enough=rules.least_budget(detail, lanes) if build.state == "BUDGET_PAUSE" else None,
        parent_build_id=build.parent_build_id,
        orphaned=build.state == "ACTIVE" and nobody,
    )
    if build.state == "ACTIVE" and not nobody:
        return summary
    return msgspec.structs.replace(summary, next=next_command(summary))


def _steps(
    rows: Reads, build: Build, stages: Sequence[Mapping[str, Any]], now: Micros | None
) -> list[StepView]:
    checkpoints = {(c.stage, c.target): c for c in checkpoints_of(rows, build.build_id)}
    running = {}
    for open_token in Tokens(rows).open_in(build.build_id):
        step = step_of(open_token)
        if step is not None:
            running[step.stage, step.target] = open_token
    times = Tokens(rows).times(build.build_id)
    blocked = _blocked(stages, checkpoints) if build.state in ("ACTIVE", "FAILED") else set()
    steps = []
    for stage in stages:
        for target in stage["targets"]:
            place = (stage["name"], target)
            checkpoint, token = checkpoints.get(place), running.get(place)
            status = _status(build, checkpoint, token, place in blocked)
            child_id = token.child_id if token is not None else None
            if child_id is None and checkpoint is not None:
                child_id = checkpoint.child_id
            steps.append(_step(place, status, checkpoint, child_id, times=times, now=now))
    return steps


def _step(
    place: tuple[str, str],
    status: str,
    checkpoint: Checkpoint | None,
    child_id: str | None,
    *,
    times: Mapping[str, tuple[Micros, Micros | None]],
    now: Micros | None,
) -> StepView:
    step = StepView(stage=place[0], target=place[1], status=status, child_id=child_id)
    if checkpoint is not None:
        step = msgspec.structs.replace(
            step,
            context_hash=checkpoint.context_hash,
            cost_usd=to_usd(checkpoint.cost),
            tokens=checkpoint.tokens,
            attempts=checkpoint.attempt,
            origin=checkpoint.origin,
            error=msgspec.json.decode(checkpoint.error) if checkpoint.error else None,
            artifacts=[
                OutputView(
                    name=output.name, kind=output.kind, sha256=output.sha256, size=output.size
                )
                for output in read_back(checkpoint.outputs)
            ],
        )
    if child_id is None or child_id not in times:
        return step
    started, ended = times[child_id]
    until = ended or now
    seconds = round((until - started) / 1e6, 3) if until else None
    return msgspec.structs.replace(step, started_at=iso(started), seconds=seconds)


def _stages_of(rows: Reads, build: Build) -> list[Mapping[str, Any]]:
    """The stages of a build's plan, as they were kept."""
    body = plan_body(rows, build.plan_hash)
    stages: list[Mapping[str, Any]] = msgspec.json.decode(body)["stages"] if body else []
    return stages


def permit_list(store: Store, limit: int = 50) -> list[PermitView]:
    """The newest confirmation tokens and how they stand; none of them itself."""
    with store.read() as rows:
        now, found = rows.now(), newest_confirmations(rows, limit)
    return [
        PermitView(
            permit_id=one.permit_id,
            build_id=one.subject,
            expires_at=iso(one.expires_at),
            state=_permit_state(one, now),
        )
        for one in found
    ]


def _permit_state(permit: Permit, now: Micros) -> str:
    if permit.consumed_at is not None:
        return "used"
    if permit.voided_at is not None:
        return "void"
    return "expired" if permit.expires_at <= now else "open"


def _status(build: Build, checkpoint: Checkpoint | None, token: Any, blocked: bool) -> str:
    if token is not None:
        return "running" if token.phase in ("started", "leased") else "queued"
    if checkpoint is None:
        return "BLOCKED" if blocked else "waiting"
    if checkpoint.status == "SUCCESS":
        if checkpoint.how == "reused":
            return "REUSED"
        return "SKIPPED" if checkpoint.updated_at < build.resumed_at else "SUCCESS"
    if checkpoint.status == "IN_DOUBT":
        return "IN_DOUBT"
    if not _failed_for_good(checkpoint):
        return "waiting"
    reason = msgspec.json.decode(checkpoint.error or "{}").get("reason", "")
    return "CANCELLED" if reason == "cancelled" else "FAILED"


def _blocked(
    stages: Sequence[Mapping[str, Any]], checkpoints: Mapping[tuple[str, str], Checkpoint]
) -> set[tuple[str, str]]:
    """Steps that cannot run because one they need has failed for good, directly or through others."""
    failed = {place for place, checkpoint in checkpoints.items() if _failed_for_good(checkpoint)}
    stuck: dict[str, set[str]] = {stage["name"]: set() for stage in stages}
    for name, target in failed:
        if name in stuck:
            stuck[name].add(target)
    blocked: set[tuple[str, str]] = set()
    for stage in stages:
        whole = any(stuck[name] for name in gathered(stage))
        for target in stage["targets"]:
            if whole or any(target in stuck[need] for need in stage["needs"]):
                blocked.add((stage["name"], target))
        stuck[stage["name"]] |= {target for name, target in blocked if name == stage["name"]}
    return blocked - failed


def _failed_for_good(checkpoint: Checkpoint) -> bool:
    """An attempt that the budget or a stop cut short, or that is tried again, is no failure of the step."""
    error = msgspec.json.decode(checkpoint.error or "{}")
    cut_short = error.get("reason") in (
        "budget_exceeded",
        "terminated_on_restart",
        "lease_orphaned",
    )
    return checkpoint.status == "FAILED" and not cut_short and not error.get("again")


def _wanted(rows: Reads, build: Build) -> list[Approval]:
    """What waits for a person: the newest content of each step, undecided."""
    if build.state not in ("ACTIVE", "CRASHED", "BUDGET_PAUSE"):
        return []
    newest = {(a.stage, a.target): a for a in approvals_of(rows, build.build_id)}
    return [a for a in newest.values() if a.decision is None]
