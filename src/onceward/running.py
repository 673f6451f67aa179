"""Running a plan in the foreground, from the command line or from Python: one path for both."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from onceward.builds import jobs
from onceward.builds.choices import Choices
from onceward.builds.jobs import BuildJob, BuildOptions, Display
from onceward.builds.lifecycle import Offer
from onceward.builds.plan_file import load
from onceward.builds.plans import Plan, Resolved
from onceward.builds.views import build_named
from onceward.core.records import Build
from onceward.kernel.kernel import Kernel
from onceward.kernel.signals import Signals
from onceward.workspace import Workspace


def run(
    workspace: Workspace, resolved: Resolved, display: Display, options: BuildOptions
) -> tuple[dict[str, Any], int]:
    """Carry a plan out as a new build; answers what came of it and the signal's exit status, if one came."""
    jobs.require_environment(resolved)
    options = msgspec.structs.replace(options, foreground=True)
    return _carry(
        workspace,
        lambda kernel: jobs.begin(kernel, kernel.actor, resolved, options),
        display,
        options.leaving,
    )


def resume(
    workspace: Workspace,
    name: str,
    display: Display,
    offer: Offer,
    options: BuildOptions,
    *,
    plan: Plan | None = None,
    plan_file: Path | None = None,
) -> tuple[dict[str, Any], int]:
    """Go on with a build that crashed or was paused."""
    with workspace.reading() as store:
        build = build_named(store, name)
    resolved = load_for(workspace, build, plan, plan_file)
    jobs.require_environment(resolved)
    options = msgspec.structs.replace(options, foreground=True)
    return _carry(
        workspace,
        lambda kernel: jobs.resume(kernel, kernel.actor, build, resolved, offer, options),
        display,
        options.leaving,
    )


def _carry(
    workspace: Workspace,
    begin: Callable[[Kernel], BuildJob],
    display: Display,
    leaving: bool,
) -> tuple[dict[str, Any], int]:
    stop, hurry = threading.Event(), threading.Event()
    with heard(stop, leaving, hurry) as signals:
        kernel = workspace.kernel(signals.interrupted)
        try:
            job = begin(kernel)
            job.display, job.hurry = display, hurry
            job.run(stop)
        finally:
            kernel.close()
        assert job.carried is not None
        with workspace.reading() as store:
            outcome = job.carried.outcome(
                store,
                sinks=workspace.settings.sinks(),
                confirmation_seconds=workspace.settings.builds.confirmation_seconds,
            )
        return outcome, signals.exit_status


def load_for(
    workspace: Workspace, build: Build, plan: Plan | None = None, plan_file: Path | None = None
) -> Resolved:
    """The plan of a build as it is now, with what was chosen of it when the build began."""

    def read(choices: Choices) -> Resolved:
        if plan is not None:
            return Resolved(plan, choices)
        return load(plan_file or jobs.plan_file_of(build, workspace.folder.parent), choices)

    return jobs.chosen_plan(build, read)


def heard(stop: threading.Event, leaving: bool, hurry: threading.Event) -> Any:
    """Signals are heard by the main thread only; a build on another goes without."""
    if threading.current_thread() is threading.main_thread():
        return Signals(stop, leaving=leaving, hurry=hurry)
    return nullcontext(SimpleNamespace(exit_status=0, interrupted=threading.Event()))
