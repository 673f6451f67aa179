"""The life of a build (B-1): its states, and the moves between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from onceward.core.machine import NEW, Machine
from onceward.core.records import Build, Move, check_name
from onceward.core.sources import Micros

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
    return Move(
        machine=BUILD,
        subject=build_id,
        source=NEW,
        target=BUILD.initial,
        version=0,
        actor=actor,
        detail=detail,
        columns=columns,
    )


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
        machine=BUILD,
        subject=build.build_id,
        source=build.state,
        target=target,
        version=build.version,
        actor=actor,
        reason=reason,
        detail=detail,
        columns=columns,
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
