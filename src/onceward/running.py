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
from onceward.builds.choices import Choices, choices_of
from onceward.builds.jobs import BuildJob, BuildOptions, Display
from onceward.builds.lifecycle import Offer
from onceward.builds.plan_file import load
from onceward.builds.plans import Plan, Resolved
from onceward.builds.views import build_named
from onceward.core.records import Build
from onceward.errors import InvalidConfig, InvalidResumeState, Recovery
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


def _plan_of(workspace: Workspace, build: Build) -> Path:
    file = workspace.folder.parent / build.plan_file
    if not build.plan_file or not file.is_file():
        raise InvalidResumeState(
            f"the plan of {build.build_id} is not at {build.plan_file or 'any file'} any more",
            context={"build_id": build.build_id, "file": build.plan_file},
            recovery=[Recovery("say where it is", f"onceward resume {build.build_id} --plan FILE")],
        )
    return file
