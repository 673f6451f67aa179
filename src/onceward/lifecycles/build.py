"""The life of a build (B-1)."""

from __future__ import annotations

from onceward.kernel.machine import NEW, Machine
from onceward.kernel.records import Build, Move, check_name

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
)


def create(build_id: str, name: str, actor: str) -> Move:
    """A build is stored as PENDING before anything else happens to it."""
    return Move(BUILD, build_id, NEW, BUILD.initial, 0, actor, columns={"name": check_name(name, "name")})


def move(build: Build, target: str, reason: str, actor: str) -> Move:
    """The move of `build` to `target`, or ILLEGAL_TRANSITION."""
    BUILD.follow(build.state, target, reason)
    return Move(BUILD, build.build_id, build.state, target, build.version, actor, reason)


def crash(build: Build, actor: str) -> Move:
    """A build whose kernel stops before it is done: asked to, or by an error of its own (L-24)."""
    return move(build, "CRASHED", "crash_detected", actor)


def orphan(build: Build, actor: str) -> Move:
    """A build found ACTIVE by a new kernel: the one that ran it is gone (L-23)."""
    return move(build, "CRASHED", "orphaned_at_startup", actor)
