"""Running a plan in the foreground, from the command line or from Python: one path for both."""

from __future__ import annotations

import os
import shlex
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol

import msgspec

from onceward.artifacts.redaction import check_secret
from onceward.builds import lifecycle as builds
from onceward.builds import machine as build_rules
from onceward.builds.choices import Choices, choices_of
from onceward.builds.code_changes import code_changes
from onceward.builds.lifecycle import Offer
from onceward.builds.plan_file import load
from onceward.builds.plans import Plan, Resolved
from onceward.builds.progress import Begun, begun
from onceward.builds.ready_queue import At
from onceward.builds.run import BuildRun, Told, run_build
from onceward.builds.views import build_named, build_summary, next_command
from onceward.core.limits import MAX_ACTIVE_CHILDREN
from onceward.core.money import to_usd
from onceward.core.records import Build
from onceward.dispatch import debits
from onceward.dispatch.budget import Lane
from onceward.dispatch.queue import chosen_cap
from onceward.errors import InvalidConfig, InvalidResumeState, Recovery
from onceward.kernel.foreground import cap_of
from onceward.kernel.kernel import Kernel
from onceward.kernel.signals import Signals
from onceward.kernel.views import outbox_status
from onceward.store.store import Store
from onceward.workspace import Workspace


class Display(Protocol):
    """Who is told what happens."""

    def begun(self, begun: Begun) -> None: ...

    def told(self, said: Mapping[str, Any]) -> None: ...

    def end(self) -> None: ...


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
    jobs = chosen_cap(jobs, resolved.plan.jobs or MAX_ACTIVE_CHILDREN)
    limits = {**resolved.plan.limits, **(limits or {})}
    stop = threading.Event()
    hurry = threading.Event()
    with heard(stop, leaving, hurry) as signals:
        kernel = workspace.kernel(signals.interrupted)
        try:
            may_reuse = reuse and resolved.plan.reuse
            build_id = builds.begin(
                kernel,
                resolved,
                plan_file=place_of(workspace, resolved.plan.file),
                jobs=jobs,
                limits=limits,
                reuse=may_reuse,
                foreground=True,
            )
            outcome = _run(
                kernel,
                build_id,
                "",
                resolved,
                display,
                (stop, hurry),
                leaving,
                jobs,
                limits,
                keep_going,
                reuse,
            )
        finally:
            kernel.close()
        return _told(workspace, build_id, outcome), signals.exit_status


def resume(
    workspace: Workspace,
    name: str,
    display: Display,
    offer: Offer,
    *,
    plan: Plan | None = None,
    plan_file: Path | None = None,
    jobs: int | None = None,
    keep_going: bool = False,
    reuse: bool = True,
    leaving: bool = False,
) -> tuple[dict[str, Any], int]:
    """Go on with a build that crashed or was paused."""
    with workspace.reading() as store:
        build = build_named(store, name)
    resolved = load_for(workspace, build, plan, plan_file)
    require_environment(resolved)
    stop = threading.Event()
    hurry = threading.Event()
    with heard(stop, leaving, hurry) as signals:
        kernel = workspace.kernel(signals.interrupted)
        try:
            jobs = chosen_cap(jobs, cap_of(kernel, build.build_id))
            place = place_of(workspace, resolved.plan.file)
            with kernel.store.read() as rows:
                changes = code_changes(rows, build, resolved)
            build_id = builds.resume(
                kernel,
                build.build_id,
                resolved,
                plan_file=place,
                offer=offer,
                jobs=jobs,
                foreground=True,
            )
            how = f"forked from {build.build_id}"
            if build_id == build.build_id:
                how = "; ".join(("resumed", *changes.code[:5], *changes.environment[:5]))
            outcome = _run(
                kernel,
                build_id,
                how,
                resolved,
                display,
                (stop, hurry),
                leaving,
                jobs,
                offer.limits,
                keep_going,
                reuse and bool(build.reuse),
                offer.rerun,
            )
        finally:
            kernel.close()
        return _told(workspace, build_id, outcome), signals.exit_status


def load_for(
    workspace: Workspace,
    build: Build,
    plan: Plan | None = None,
    plan_file: Path | None = None,
    load_file: Callable[[Path, Choices], Resolved] = load,
) -> Resolved:
    """The plan of a build as it is now, with what was chosen of it when the build began."""
    choices = choices_of(build.choices)
    try:
        return (
            Resolved(plan, choices)
            if plan
            else load_file(plan_file or _plan_of(workspace, build), choices)
        )
    except InvalidConfig as error:
        if error.context.get("field") not in ("--only", "--set"):
            raise
        raise InvalidResumeState(
            f"what was chosen for {build.build_id} with {error.context['field']} is not in the plan any more:"
            f" {error.message}",
            context={**error.context, "build_id": build.build_id, "changed": [error.message]},
            recovery=[
                Recovery("put the plan back as it was"),
                Recovery(
                    "or give the build up and run the plan anew",
                    f"onceward abandon {build.build_id}",
                    "low",
                ),
            ],
        ) from None


def heard(stop: threading.Event, leaving: bool, hurry: threading.Event) -> Any:
    """Signals are heard by the main thread only; a build on another goes without."""
    if threading.current_thread() is threading.main_thread():
        return Signals(stop, leaving=leaving, hurry=hurry)
    return nullcontext(SimpleNamespace(exit_status=0, interrupted=threading.Event()))


def _run(
    kernel: Kernel,
    build_id: str,
    how: str,
    resolved: Resolved,
    display: Display,
    asked: tuple[threading.Event, threading.Event],
    leaving: bool,
    jobs: int,
    limits: Mapping[str, int],
    keep_going: bool,
    reuse: bool,
    rerun: Sequence[str] = (),
) -> _Ran:
    run = prepared(kernel, build_id, resolved, jobs, limits, keep_going, reuse, rerun, display.told)
    stop, run.children.hurry = asked
    shown = begun(run, how)
    before, at = _spent(shown), time.monotonic()
    display.begun(shown)
    try:
        run_build(kernel, run, stop, leaving)
    finally:
        display.end()
    return _Ran(run, _spent(shown) - before, int(time.monotonic() - at))


def prepared(
    kernel: Kernel,
    build_id: str,
    resolved: Resolved,
    jobs: int,
    limits: Mapping[str, int],
    keep_going: bool,
    reuse: bool,
    rerun: Sequence[str] = (),
    told: Told = lambda said: None,
) -> BuildRun:
    """A build that is ACTIVE, ready to be carried to its end."""
    return BuildRun(
        *(kernel, build_id, resolved),
        jobs=jobs,
        limits=limits,
        keep_going=keep_going,
        reuse=reuse and resolved.plan.reuse,
        rerun={resolved.steps.named(name) for name in rerun} | resolved.forced(),
        told=told,
    )


class _Ran(NamedTuple):
    run: BuildRun
    paid: int
    seconds: int


def _spent(begun: Begun) -> int:
    lane = begun.lanes().get("usd_micros")
    return lane.total if lane else 0


def _told(workspace: Workspace, build_id: str, ran: _Ran) -> dict[str, Any]:
    """How the build stands after its kernel let it go: the last line of `run` and `resume`."""
    run = ran.run
    with workspace.reading() as store:
        found = build_summary(store, build_id)
        with store.read() as rows:
            lanes = debits.lanes(rows, build_id)
        undelivered = _undelivered(store, workspace.settings.sinks())
    said: dict[str, Any] = {
        "build_id": found.build_id,
        "state": found.state,
        "reason": found.reason,
        "cost_usd": found.cost_usd,
        "tokens": found.tokens,
    }
    blocked = run.board.counts[At.BLOCKED]
    said["steps"] = {
        "total": len(run.steps),
        **run.counts,
        **({"blocked": blocked} if blocked else {}),
    }
    said["saved_usd"] = to_usd(run.saved)
    said["paid_usd"] = to_usd(ran.paid)
    said["seconds"] = ran.seconds
    if run.pausing is not None and found.state == "BUDGET_PAUSE":
        said["confirmation_token"] = run.pausing[2]
        said["confirmation_seconds"] = workspace.settings.builds.confirmation_seconds
        said["why"] = build_rules.why_paused(build_rules.with_total(run.pausing[1], lanes))
        found = msgspec.structs.replace(found, enough=_enough(run, lanes) or found.enough)
        if run.doubts:
            said["why"] += f"; {_why_in_doubt(run.doubts)}"
    elif run.doubts and found.state == "CRASHED":
        said["in_doubt"] = run.doubts
        said["why"] = _why_in_doubt(run.doubts)
        if run.failures:
            said["why"] += f"; {_why_failed(run.failures, run.counts['failed'])}"
    elif run.failures:
        said["why"] = _why_failed(run.failures, run.counts["failed"])
    stopped = run.halted == "stopped" and found.state in ("CRASHED", "ACTIVE")
    said["stopped"] = True if stopped and "in_doubt" not in said else None
    said["untold"] = undelivered or None
    said["unread"] = _unread(run.unread) or None
    said["next"] = next_command(found)
    return {key: value for key, value in said.items() if value is not None}


def _unread(reports: Mapping[str, str]) -> str:
    """Steps of whose reports something could not be read: what is said of their cost may be too little."""
    if not reports:
        return ""
    step, mistake = next(iter(reports.items()))
    more = f", and {len(reports) - 1} more steps" if len(reports) > 1 else ""
    return f"{step} ({mistake}){more}"


def _undelivered(store: Store, sinks: Sequence[str]) -> str:
    """Which sinks have not accepted everything yet, and why; what waits is delivered by the next kernel."""
    lines = []
    for sink in outbox_status(store, sinks):
        if sink.configured and sink.waiting:
            error = f": {sink.last_error}" if sink.last_error is not None else ""
            plural = "s" if sink.waiting > 1 else ""
            lines.append(f"{sink.waiting} event{plural} to {sink.sink}{error}")
    return "; ".join(lines)


def _enough(run: BuildRun, lanes: Mapping[str, Lane]) -> str:
    """A budget that would last to the end, in the lane that ran out, as far as anybody can tell. It counts what was
    in flight when the build paused and has ended since: less than that would be refused."""
    assert run.pausing is not None
    detail = run.pausing[1]
    name = str(detail.get("lane", ""))
    lane = lanes.get(name)
    if lane is None or detail.get("scope"):
        return ""
    wanted = max(run.purse.to_finish(run.board.left()).get(name, 0), int(detail.get("asked") or 0))
    if name == "duration_secs":
        wanted = max(wanted, _time_to_finish(run, lane))
    enough = lane.total + wanted if wanted else 0
    if not enough:
        return ""
    return to_usd(enough) if name == "usd_micros" else str(enough)


def _time_to_finish(run: BuildRun, lane: Lane) -> int:
    """Seconds that the steps that are left will take if they take as long as those before."""
    executed, left = run.counts["executed"], sum(run.board.left().values())
    return max(1, -(-lane.total * left // executed) if executed else lane.total * left or left)


def _why_in_doubt(steps: Sequence[str]) -> str:
    more = f" and {len(steps) - 1} more" if len(steps) > 1 else ""
    return (
        f"{steps[0]}{more} ended well, but what it left cannot be recorded as its result; it is kept"
        " among the artifacts of its child (kind in_doubt), and a person decides"
    )


def _why_failed(failures: Sequence[tuple[str, Mapping[str, Any]]], count: int) -> str:
    step, error = failures[0]
    exit_ = f", exit {error['exit']}" if error.get("exit") is not None else ""
    said = f"{step}: {error.get('message') or error.get('last_line') or error.get('reason')}{exit_}"
    log = f" (onceward logs {shlex.quote(step)})" if error.get("child_id") else ""
    return f"{said}{log}{f'; {count - 1} more failed' if count > 1 else ''}"


def place_of(workspace: Workspace, file: Path | None) -> str:
    """Where a plan's file is, as seen from the workspace; so the record holds no place of this machine."""
    if file is None:
        return ""
    base = workspace.folder.parent
    return file.relative_to(base).as_posix() if file.is_relative_to(base) else str(file)


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
                    context={
                        "stage": stage.name,
                        "field": "secrets" if name in stage.secrets else "env",
                    },
                )
        for name in stage.secrets:
            check_secret(name, os.environ[name])
