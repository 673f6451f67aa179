"""Running a plan in the foreground, from the command line or from Python: one path for both."""

from __future__ import annotations

import os
import shlex
import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

from onceward.engine import builds
from onceward.engine.build_reading import build_named, build_summary, next_command
from onceward.engine.build_run import BuildRun
from onceward.engine.builds import Offer
from onceward.engine.foreground import cap_of, run_build
from onceward.engine.kernel import Kernel
from onceward.engine.plan_file import load
from onceward.engine.plans import Resolved
from onceward.engine.redaction import check_secret
from onceward.engine.signals import Signals
from onceward.errors import InvalidConfig, InvalidResumeState, Recovery
from onceward.kernel.limits import MAX_ACTIVE_CHILDREN
from onceward.kernel.money import to_usd
from onceward.kernel.records import Build
from onceward.wiring import Workspace


class Display(Protocol):
    """Who is told what happens."""

    def begun(self, build_id: str, name: str, total: int, how: str) -> None: ...

    def told(self, said: Mapping[str, Any]) -> None: ...


def run(
    workspace: Workspace,
    resolved: Resolved,
    display: Display,
    *,
    jobs: int | None = None,
    limits: Mapping[str, int] | None = None,
    keep_going: bool = False,
    reuse: bool = True,
    leaving: bool = False,
) -> tuple[dict[str, Any], int]:
    """Carry a plan out as a new build; answers what came of it and the signal's exit status, if one came. `leaving`
    says that the program ends after this."""
    require_environment(resolved)
    jobs = jobs or resolved.plan.jobs or MAX_ACTIVE_CHILDREN
    limits = {**resolved.plan.limits, **(limits or {})}
    stop = threading.Event()
    hurry = threading.Event()
    with _signals(stop, leaving, hurry) as signals:
        kernel = workspace.kernel()
        try:
            build_id = builds.begin(kernel, resolved, _place(workspace, resolved), jobs, limits, reuse)
            display.begun(build_id, resolved.plan.name, len(resolved.steps), "")
            outcome = _run(kernel, build_id, resolved, display, (stop, hurry), jobs, limits, keep_going, reuse)
        finally:
            kernel.close()
        return _told(workspace, build_id, outcome), signals.exit_status


def resume(
    workspace: Workspace,
    name: str,
    display: Display,
    offer: Offer,
    *,
    resolved: Resolved | None = None,
    plan_file: Path | None = None,
    jobs: int | None = None,
    keep_going: bool = False,
    reuse: bool = True,
    leaving: bool = False,
) -> tuple[dict[str, Any], int]:
    """Go on with a build that crashed or was paused."""
    store = workspace.store()
    try:
        build = build_named(store, name)
    finally:
        store.close()
    resolved = resolved or load(plan_file or _plan_of(workspace, build))
    require_environment(resolved)
    stop = threading.Event()
    hurry = threading.Event()
    with _signals(stop, leaving, hurry) as signals:
        kernel = workspace.kernel()
        try:
            jobs = jobs or cap_of(kernel, build.build_id)
            place = _place(workspace, resolved)
            build_id = builds.resume(kernel, build.build_id, resolved, place, offer, jobs)
            how = " resumed" if build_id == build.build_id else f" forked from {build.build_id}"
            display.begun(build_id, resolved.plan.name, len(resolved.steps), f",{how}")
            outcome = _run(
                kernel,
                build_id,
                resolved,
                display,
                (stop, hurry),
                jobs,
                offer.limits,
                keep_going,
                reuse and bool(build.reuse),
                offer.rerun,
            )
        finally:
            kernel.close()
        return _told(workspace, build_id, outcome), signals.exit_status


def _signals(stop: threading.Event, leaving: bool, hurry: threading.Event) -> Any:
    """Signals are heard by the main thread only; a build on another goes without."""
    if threading.current_thread() is threading.main_thread():
        return Signals(stop, leaving=leaving, hurry=hurry)
    return nullcontext(SimpleNamespace(exit_status=0))


def _run(
    kernel: Kernel,
    build_id: str,
    resolved: Resolved,
    display: Display,
    asked: tuple[threading.Event, threading.Event],
    jobs: int,
    limits: Mapping[str, int],
    keep_going: bool,
    reuse: bool,
    rerun: Sequence[str] = (),
) -> BuildRun:
    run = BuildRun(
        *(kernel, build_id, resolved),
        jobs=jobs,
        limits=limits,
        keep_going=keep_going,
        reuse=reuse and resolved.plan.reuse,
        rerun=rerun,
        told=display.told,
    )
    stop, run.children.hurry = asked
    run_build(kernel, run, stop)
    return run


def _told(workspace: Workspace, build_id: str, run: BuildRun) -> dict[str, Any]:
    """How the build stands after its kernel let it go: the last line of `run` and `resume`."""
    store = workspace.store()
    try:
        found = build_summary(store, build_id)
    finally:
        store.close()
    said: dict[str, Any] = {name: found.get(name) for name in ("build_id", "state", "reason", "cost_usd", "tokens")}
    said["steps"] = {"total": len(run.steps), **run.counts}
    if run.pausing is not None and found["state"] == "BUDGET_PAUSE":
        said["confirmation_token"] = run.pausing[2]
        said["why"] = _why_paused(run.pausing[1])
    elif run.failures:
        said["why"] = _why_failed(run.failures, run.counts["failed"])
    said["next"] = next_command(found)
    return {key: value for key, value in said.items() if value is not None}


def _why_failed(failures: Sequence[tuple[str, Mapping[str, Any]]], count: int) -> str:
    step, error = failures[0]
    exit_ = f", exit {error['exit']}" if error.get("exit") is not None else ""
    said = f"{step}: {error.get('message') or error.get('last_line') or error.get('reason')}{exit_}"
    log = f" (onceward logs {shlex.quote(step)})" if error.get("child_id") else ""
    return f"{said}{log}{f'; {count - 1} more failed' if count > 1 else ''}"


def _why_paused(detail: Mapping[str, Any]) -> str:
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
    return f"{said}, and {amount('asked')} more was asked by {detail.get('step')}" if detail.get("asked") else said


def _place(workspace: Workspace, resolved: Resolved) -> str:
    """Where a plan's file is, as seen from the workspace; so the record holds no place of this machine."""
    if resolved.plan.file is None:
        return ""
    base = workspace.folder.parent
    try:
        return resolved.plan.file.relative_to(base).as_posix()
    except ValueError:
        return str(resolved.plan.file)


def _plan_of(workspace: Workspace, build: Build) -> Path:
    file = workspace.folder.parent / build.plan_file
    if not build.plan_file or not file.is_file():
        raise InvalidResumeState(
            f"the plan of {build.build_id} is not at {build.plan_file or 'any file'} any more",
            context={"build_id": build.build_id, "file": build.plan_file},
            recovery=[Recovery("say where it is", f"onceward resume {build.build_id} --plan FILE")],
        )
    return file


def require_environment(resolved: Resolved) -> None:
    """What stages ask of the environment must be there before anything is begun."""
    for stage in resolved.steps.stages:
        for name in (*stage.env, *stage.secrets):
            if name not in os.environ:
                raise InvalidConfig(
                    f"stage {stage.name} asks for the variable {name}, and it is not set",
                    context={"stage": stage.name, "field": "secrets" if name in stage.secrets else "env"},
                )
        for name in stage.secrets:
            check_secret(name, os.environ[name])
