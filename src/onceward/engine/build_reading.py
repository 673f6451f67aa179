"""Builds as people and programs look at them: from the record alone, whoever runs them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from onceward.artifacts.blobs import Artifacts
from onceward.core.money import to_usd
from onceward.core.records import Build
from onceward.core.sources import Micros, iso
from onceward.engine import child_budget
from onceward.engine.cut_off import step_of
from onceward.engine.outputs import read_back, value_of
from onceward.engine.tenure import vacant
from onceward.errors import NotFound, Recovery
from onceward.lifecycles.budget import Lane
from onceward.lifecycles.choices import run_again
from onceward.lifecycles.plan import step_name
from onceward.store.port import Reads
from onceward.store.store import Store
from onceward.store.tables.approvals import Approval, approvals_of
from onceward.store.tables.builds import Builds, last_detail, plan_body
from onceward.store.tables.checkpoints import Checkpoint, checkpoints_of, in_doubt
from onceward.store.tables.children import Tokens
from onceward.store.tables.permits import newest_confirmations


def build_list(store: Store, limit: int = 50) -> list[dict[str, Any]]:
    """The newest builds and what they cost."""
    nobody = vacant(store)
    with store.read() as rows:
        return [_with_hint(_summary(rows, build), nobody) for build in Builds(rows).newest(limit)]


def _with_hint(said: dict[str, Any], nobody: bool) -> dict[str, Any]:
    """A build that is ACTIVE on paper, but whose kernel is gone, says how to go on with it."""
    if said["state"] == "ACTIVE" and nobody:
        said["orphaned"] = True
    if said["state"] not in ("ACTIVE", "SUCCESS", "ABANDONED") or said.get("orphaned"):
        said["next"] = next_command(said)
    return said


def build_named(store: Store, prefix: str) -> Build:
    with store.read() as rows:
        return Builds(rows).named(prefix)


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
        found = [
            c
            for c in checkpoints_of(rows, build_id)
            if c.stage == stage and target in (None, c.target)
        ]
    if not found or any(c.status != "SUCCESS" for c in found):
        raise NotFound(
            f"build {build_id} has no result of {step_name(stage, target or '*')}",
            context={"stage": stage},
            recovery=[Recovery(f"name a target, or ask for all: result.values({stage!r})")],
        )
    return {c.target: value_of(artifacts, read_back(c.outputs), None) for c in found}


def build_summary(store: Store, build_id: str) -> dict[str, Any]:
    with store.read() as rows:
        return _summary(rows, Builds(rows).get(build_id))


def build_status(store: Store, prefix: str) -> dict[str, Any]:
    """A build with every step: how it stands, what it cost, what it left."""
    nobody = vacant(store)
    with store.read() as rows:
        build = Builds(rows).named(prefix)
        said = _with_hint(_summary(rows, build), nobody)
        # What a dead kernel left running runs no more, and nobody can say since when.
        said["steps"] = _steps(rows, build, None if said.get("orphaned") else rows.now())
        stages = _stages_of(rows, build)
        said["needs"] = {stage["name"]: dependencies(stage) for stage in stages}
        said["flows_in"] = {
            stage["name"]: [*stage["needs"], *stage.get("collect", ())] for stage in stages
        }
        said["gathers"] = {stage["name"]: gathered(stage) for stage in stages}
        wanted = _wanted(rows, build)
        if wanted:
            said["approvals"] = [
                {"step": step_name(a.stage, a.target), "digest": a.digest, "text": a.text}
                for a in wanted
            ]
        lanes = child_budget.lanes(rows, build.build_id).values()
        said["lanes"] = [
            {"lane": lane.lane, "limit": lane.limit, "total": lane.total} for lane in lanes
        ]
        return said


def _summary(rows: Reads, build: Build) -> dict[str, Any]:
    lanes = child_budget.lanes(rows, build.build_id)
    detail = last_detail(rows, build.build_id)
    doubts = (
        [step_name(c.stage, c.target) for c in in_doubt(rows, build.build_id)]
        if build.state in ("CRASHED", "BUDGET_PAUSE")
        else []
    )
    said = {
        "build_id": build.build_id,
        "name": build.name,
        "state": build.state,
        "reason": detail.get("reason"),
        "why": {
            k: v for k, v in detail.items() if k not in ("from", "to", "reason", "transition_seq")
        },
        "cost_usd": to_usd(lanes["usd_micros"].total if "usd_micros" in lanes else 0),
        "tokens": lanes["tokens"].total if "tokens" in lanes else 0,
        "plan_file": build.plan_file,
        "choices": build.choices,
        "in_doubt": doubts,
        "enough": _least_budget(detail, lanes) if build.state == "BUDGET_PAUSE" else None,
        "parent_build_id": build.parent_build_id,
        "created_at": iso(build.created_at),
        "updated_at": iso(build.updated_at),
    }
    return {key: value for key, value in said.items() if value not in (None, {}, [])}


def _steps(rows: Reads, build: Build, now: Micros | None) -> list[dict[str, Any]]:
    body = plan_body(rows, build.plan_hash)
    if body is None:
        return []
    stages = msgspec.json.decode(body)["stages"]
    checkpoints = {(c.stage, c.target): c for c in checkpoints_of(rows, build.build_id)}
    running = {}
    for token in Tokens(rows).open_in(build.build_id):
        step = step_of(token)
        if step is not None:
            running[step.stage, step.target] = token
    times = Tokens(rows).times(build.build_id)
    blocked = _blocked(stages, checkpoints) if build.state in ("ACTIVE", "FAILED") else set()
    steps = []
    for stage in stages:
        for target in stage["targets"]:
            place = (stage["name"], target)
            status = _status(build, checkpoints.get(place), running.get(place), place in blocked)
            steps.append(
                {
                    "stage": place[0],
                    "target": target,
                    "status": status,
                    **_of(checkpoints.get(place)),
                }
            )
            if place in running:
                steps[-1]["child_id"] = running[place].child_id
            started, ended = times.get(steps[-1].get("child_id", ""), (None, None))
            if started is not None:
                steps[-1]["started_at"] = iso(started)
                if ended is not None or now is not None:
                    steps[-1]["seconds"] = round(((ended or now or 0) - started) / 1e6, 3)
    return steps


def _stages_of(rows: Reads, build: Build) -> list[Mapping[str, Any]]:
    """The stages of a build's plan, as they were kept."""
    body = plan_body(rows, build.plan_hash)
    stages: list[Mapping[str, Any]] = msgspec.json.decode(body)["stages"] if body else []
    return stages


def permit_list(store: Store, limit: int = 50) -> list[dict[str, Any]]:
    """The newest confirmation tokens and how they stand; none of them itself."""
    with store.read() as rows:
        now, found = rows.now(), newest_confirmations(rows, limit)
    return [
        {
            **{
                "permit_id": one.permit_id,
                "build_id": one.subject,
                "expires_at": iso(one.expires_at),
            },
            "state": "used"
            if one.consumed_at is not None
            else "void"
            if one.voided_at is not None
            else "expired"
            if one.expires_at <= now
            else "open",
        }
        for one in found
    ]


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


def _of(checkpoint: Checkpoint | None) -> dict[str, Any]:
    if checkpoint is None:
        return {}
    said: dict[str, Any] = {
        "context_hash": checkpoint.context_hash,
        "cost_usd": to_usd(checkpoint.cost),
        "tokens": checkpoint.tokens,
        "attempts": checkpoint.attempt,
        "child_id": checkpoint.child_id,
        "origin": checkpoint.origin,
        "error": msgspec.json.decode(checkpoint.error) if checkpoint.error else None,
        "artifacts": [
            {"name": o.name, "kind": o.kind, "sha256": o.sha256, "size": o.size}
            for o in read_back(checkpoint.outputs)
        ],
    }
    return {key: value for key, value in said.items() if value is not None}


def _blocked(
    stages: list[dict[str, Any]], checkpoints: Mapping[tuple[str, str], Checkpoint]
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


def next_command(found: Mapping[str, Any]) -> str | None:
    """What a person would type next."""
    build_id = found["build_id"]
    why = found.get("why", {})
    raised = {"usd_micros": "usd"}.get(why.get("lane"), why.get("lane", "usd"))
    more = "" if why.get("scope") else f" --budget {raised}={found.get('enough') or 'MORE'}"
    first = f"raise {raised} under [budget] in onceward.toml, then " if why.get("scope") else ""
    decide = deciding(found.get("in_doubt", ()))
    return {
        "CRASHED": f"onceward resume {build_id}{decide}",
        "ACTIVE": f"onceward resume {build_id}",
        "BUDGET_PAUSE": f"{first}onceward resume {build_id} --token TOKEN{more}{decide}",
        "FAILED": run_again(found.get("plan_file", ""), found["choices"]),
        "SUCCESS": f"onceward output {build_id}",
    }.get(found["state"])


def deciding(steps: Sequence[str]) -> str:
    """The words of a resume that decide about steps in doubt."""
    if not steps:
        return ""
    accept = " ".join(f"--accept {shlex.quote(f'{step}=FILE')}" for step in steps)
    return f" {accept}   (or --rerun STEP)"


def with_total(detail: Mapping[str, Any], lanes: Mapping[str, Lane]) -> Mapping[str, Any]:
    """A pause, with what was spent since by steps that were in flight."""
    lane = lanes.get(str(detail.get("lane")))
    if lane is None or detail.get("scope"):
        return detail
    return {**detail, "observed": max(int(detail["observed"]), lane.total)}


def _least_budget(detail: Mapping[str, Any], lanes: Mapping[str, Lane]) -> str | None:
    """A budget with which a paused build can go on: room for what it wanted, or a little where that is not known."""
    lane = lanes.get(str(detail.get("lane")))
    if lane is None or detail.get("scope"):
        return None
    wanted = int(detail.get("estimate") or detail.get("asked") or 0)
    if lane.lane != "usd_micros":
        return str(lane.total + (wanted or 1))
    cent = 10_000
    return to_usd(lane.total + wanted if wanted else (lane.total // cent + 1) * cent)


def why_paused(detail: Mapping[str, Any]) -> str:
    """A pause in words."""
    if "lane" not in detail:
        return "the budget has no room"
    lane = str(detail["lane"])
    name, money = ("usd", True) if lane == "usd_micros" else (lane, False)

    def amount(key: str) -> str:
        return to_usd(int(detail[key])) if money else str(detail[key])

    whose = "the workspace's " if detail.get("scope") else ""
    said = f"{whose}{name} is at {amount('observed')} of {amount('limit')}"
    if "estimate" in detail:
        return f"{said}, and {detail.get('step')} is estimated at {amount('estimate')}"
    return (
        f"{said}, and {amount('asked')} more was asked by {detail.get('step')}"
        if detail.get("asked")
        else said
    )
