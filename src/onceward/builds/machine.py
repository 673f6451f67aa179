"""The life of a build (B-1), and what may be asked of one in which state."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from onceward.builds.choices import run_again
from onceward.core.machine import NEW, Machine
from onceward.core.money import to_usd
from onceward.core.records import Build, Move, check_name
from onceward.core.sources import Micros
from onceward.dispatch.budget import Lane
from onceward.errors import InvalidResumeState, Recovery

BUILD = Machine.parse(
    "build",
    """
    new          -> PENDING       -                                          BUILD_CREATED
    PENDING      -> ACTIVE        build_started                              BUILD_STARTED
    PENDING      -> ABANDONED     operator_abort                             BUILD_ABANDONED
    ACTIVE       -> SUCCESS       normal_completion                          BUILD_SUCCEEDED
    ACTIVE       -> FAILED        unhandled_error                            BUILD_FAILED
    ACTIVE       -> CRASHED       crash_detected | orphaned_at_startup       BUILD_CRASHED
    ACTIVE       -> CRASHED       corrupt_state_detected | lock_stolen       BUILD_CRASHED
    ACTIVE       -> BUDGET_PAUSE  budget_exceeded | budget_precheck_block    BUILD_PAUSED
    ACTIVE       -> ABANDONED     operator_abort                             BUILD_ABANDONED
    CRASHED      -> ACTIVE        operator_resume                            BUILD_RESUMED
    CRASHED      -> ABANDONED     operator_abort                             BUILD_ABANDONED
    BUDGET_PAUSE -> ACTIVE        operator_resume                            BUILD_RESUMED
    BUDGET_PAUSE -> FAILED        budget_exceeded                            BUILD_FAILED
    BUDGET_PAUSE -> ABANDONED     operator_abort                             BUILD_ABANDONED

    terminal SUCCESS FAILED ABANDONED
    """,
    columns="""
    plan_hash        detail.plan_hash        BUILD_CREATED
    parent_build_id  detail.parent_build_id  BUILD_CREATED
    plan_hash        = ""
    plan_file        = ""
    resumed_at       = 0
    reuse            = 1
    choices          = "{}"
    """,
)

_NOTHING: Mapping[str, Any] = {}


def create(
    build_id: str,
    name: str,
    actor: str,
    plan_hash: str = "",
    plan_file: str = "",
    parent: str | None = None,
    reuse: bool = True,
    choices: str = "{}",
) -> Move:
    """A build is stored as PENDING before anything else happens to it."""
    columns: dict[str, Any] = {
        "name": check_name(name, "name"),
        "plan_hash": plan_hash,
        "plan_file": plan_file,
    }
    columns |= {"reuse": int(reuse), "choices": choices}
    detail: dict[str, Any] = {"plan_hash": plan_hash} if plan_hash else {}
    if parent is not None:
        columns["parent_build_id"], detail["parent_build_id"] = parent, parent
    return Move(BUILD, build_id, NEW, BUILD.initial, 0, actor, detail=detail, columns=columns)


def move(
    build: Build,
    target: str,
    reason: str,
    actor: str,
    detail: Mapping[str, Any] = _NOTHING,
    about: str = "",
    columns: Mapping[str, Any] = _NOTHING,
) -> Move:
    """The move of `build` to `target`, or ILLEGAL_TRANSITION."""
    BUILD.follow(build.state, target, reason)
    return Move(
        BUILD,
        build.build_id,
        build.state,
        target,
        build.version,
        actor,
        reason,
        detail,
        columns,
        about=about,
    )


def moved(build: Build, move: Move) -> Build:
    """The build after a move."""
    return msgspec.structs.replace(
        build, state=move.target, version=move.version + 1, **move.columns
    )


def crash(build: Build, actor: str, detail: Mapping[str, Any] = _NOTHING) -> Move:
    """A build whose kernel stops before it is done: asked to, by an error of its own (L-24), or because a person has
    to decide about steps first (B-8)."""
    return move(build, "CRASHED", "crash_detected", actor, detail)


def orphan(build: Build, actor: str) -> Move:
    """A build found ACTIVE by a new kernel: the one that ran it is gone (L-23)."""
    return move(build, "CRASHED", "orphaned_at_startup", actor)


def pause(build: Build, reason: str, detail: Mapping[str, Any], actor: str) -> Move:
    """The budget stops a build; its permit to go on is minted with the pause, and `detail` tells of it (B-9, B-10)."""
    return move(build, "BUDGET_PAUSE", reason, actor, detail, about=detail["permit_id"])


def abandon(build: Build, failed: bool, actor: str) -> Move:
    """A person gives a build up; one that waits for money may also be declared failed."""
    if failed:
        return move(build, "FAILED", "budget_exceeded", actor)
    return move(build, "ABANDONED", "operator_abort", actor)


def resume(build: Build, now: Micros, actor: str, detail: Mapping[str, Any] = _NOTHING) -> Move:
    """`detail` names what changed meanwhile and is kept or used all the same (B-11)."""
    return move(build, "ACTIVE", "operator_resume", actor, detail, columns={"resumed_at": now})


def require_resumable(build: Build) -> None:
    """Only a crashed or paused build goes on (B-11); the refusal says what to do with any other."""
    if build.state in ("CRASHED", "BUDGET_PAUSE"):
        return
    again = [
        Recovery(
            "run it again; what succeeded is reused", run_again(build.plan_file, build.choices)
        )
    ]
    made = [Recovery("look at what it made", f"onceward status {build.build_id}")]
    give_up = [Recovery("give it up", f"onceward abandon {build.build_id}", "medium")]
    ways = {"FAILED": again, "SUCCESS": made, "ABANDONED": again, "PENDING": [*give_up, *again]}
    raise InvalidResumeState(
        f"build {build.build_id} is {build.state}; only a CRASHED or BUDGET_PAUSE build is resumed",
        context={"build_id": build.build_id, "state": build.state},
        recovery=ways.get(build.state, []),
    )


def next_command(
    build_id: str,
    state: str,
    why: Mapping[str, Any],
    *,
    enough: str | None,
    doubts: Sequence[str],
    plan_file: str,
    choices: str,
) -> str | None:
    """What a person would type next; `why` is what its last move says, `enough` a budget that would do."""
    decide = deciding(doubts)
    if state == "BUDGET_PAUSE":
        lane = why.get("lane", "usd")
        raised = "usd" if lane == "usd_micros" else lane
        if why.get("scope"):
            first = f"raise {raised} under [budget] in onceward.toml, then "
            return f"{first}onceward resume {build_id} --token TOKEN{decide}"
        more = f"--budget {raised}={enough or 'MORE'}"
        return f"onceward resume {build_id} --token TOKEN {more}{decide}"
    return {
        "CRASHED": f"onceward resume {build_id}{decide}",
        "ACTIVE": f"onceward resume {build_id}",
        "FAILED": run_again(plan_file, choices),
        "SUCCESS": f"onceward output {build_id}",
    }.get(state)


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


def least_budget(detail: Mapping[str, Any], lanes: Mapping[str, Lane]) -> str | None:
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
    where = f"{whose}{name} is at {amount('observed')} of {amount('limit')}"
    if "estimate" in detail:
        return f"{where}, and {detail.get('step')} is estimated at {amount('estimate')}"
    if detail.get("asked"):
        return f"{where}, and {amount('asked')} more was asked by {detail.get('step')}"
    return where
