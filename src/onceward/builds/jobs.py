"""Builds as jobs: begun or resumed by whoever asks, and carried out on the thread of whoever runs the job."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import msgspec

from onceward.artifacts.redaction import check_secret
from onceward.builds import lifecycle, rules
from onceward.builds.acts import ResumeBuild, RunBuild
from onceward.builds.choices import Choices, choices_of
from onceward.builds.code_changes import code_changes
from onceward.builds.lifecycle import Offer
from onceward.builds.machine import crash
from onceward.builds.outcome import Carried
from onceward.builds.plans import Resolved
from onceward.builds.progress import Begun, begun
from onceward.builds.run import BuildRun, run_build
from onceward.core.limits import MAX_ACTIVE_CHILDREN
from onceward.core.records import Build
from onceward.dispatch.budget import limits_of_budget
from onceward.dispatch.queue import chosen_cap
from onceward.dispatch.recovery import end_session
from onceward.errors import InvalidConfig, OncewardError
from onceward.kernel.answers import Subject
from onceward.kernel.foreground import cap_of
from onceward.kernel.jobs import FinishedJob, Job, Taking, begins
from onceward.kernel.kernel import Kernel
from onceward.people.actor import Actor
from onceward.store.tables.builds import Builds
from onceward.store.transaction import Transaction

Accept = Callable[[Transaction, str], None]
"""Told the build's id, in the commit that begins it or goes on with it."""


class Display(Protocol):
    """Who is told what happens."""

    def begun(self, begun: Begun) -> None: ...

    def told(self, said: Mapping[str, Any]) -> None: ...

    def end(self) -> None: ...


class Silent:
    """Shows nothing."""

    def begun(self, begun: Begun) -> None: ...

    def told(self, said: Mapping[str, Any]) -> None: ...

    def end(self) -> None: ...


class BuildOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a build is to be run, as far as somebody says so."""

    jobs: int | None = None
    limits: Mapping[str, int] = {}
    keep_going: bool = False
    reuse: bool = True
    foreground: bool = False
    """Whether it is the one build that its kernel carries: the writer lock names it."""
    leaving: bool = False
    """Whether the program ends after this: threads of steps that were given up are waited for."""


class BuildJob:
    """A build that is ACTIVE, and that nobody carries out yet."""

    over = False

    def __init__(
        self,
        kernel: Kernel,
        actor: Actor,
        build_id: str,
        resolved: Resolved,
        *,
        options: BuildOptions,
        rerun: Sequence[str] = (),
        how: str = "",
    ) -> None:
        self.kernel, self.actor, self.build_id, self.resolved = kernel, actor, build_id, resolved
        self.options, self._rerun, self._how = options, rerun, how
        self.display: Display = Silent()
        self.hurry = threading.Event()
        """Set when somebody does not want to wait for what is still running."""
        self.carried: Carried | None = None
        """What came of it here, once it was carried out."""

    @property
    def subject(self) -> Subject:
        return {"build_id": self.build_id}

    def run(self, stop: threading.Event) -> None:
        """Until it ends, pauses, or is stopped. Where it cannot be carried out it must not look as if somebody did."""
        try:
            run = self.prepared()
        except Exception:
            self.resolved.release()
            self._mark_crashed()
            raise
        try:
            self._carry(run, stop)
        except Exception:
            run.children.close()
            with suppress(OncewardError):
                end_session(self.kernel.store, self.build_id, self.actor.principal)
            self._mark_crashed()
            raise
        finally:
            run.children.close()
            self.resolved.release()

    def prepared(self) -> BuildRun:
        """The build, ready to be carried to its end."""
        steps, options = self.resolved.steps, self.options
        assert options.jobs is not None
        run = BuildRun(
            self.kernel,
            self.actor,
            self.build_id,
            self.resolved,
            jobs=options.jobs,
            limits=options.limits,
            keep_going=options.keep_going,
            reuse=options.reuse and self.resolved.plan.reuse,
            rerun={steps.named(name) for name in self._rerun} | self.resolved.forced(),
            told=self.display.told,
        )
        run.children.hurry = self.hurry
        return run

    def _carry(self, run: BuildRun, stop: threading.Event) -> None:
        shown = begun(run, self._how)
        before, at = _spent(shown), time.monotonic()
        self.display.begun(shown)
        try:
            run_build(self.kernel, run, stop, self.options.leaving)
        finally:
            self.display.end()
        self.carried = Carried(run, _spent(shown) - before, int(time.monotonic() - at))

    def _mark_crashed(self) -> None:
        """A kernel that can write no more has an heir, who finds the build as it is."""

        def mark(tx: Transaction) -> None:
            build = tx.builds.get(self.build_id)
            if build.state == "ACTIVE":
                tx.move(crash(build, self.actor.principal))

        with suppress(OncewardError):
            self.kernel.store.write(mark)


def begin(
    kernel: Kernel,
    actor: Actor,
    resolved: Resolved,
    options: BuildOptions,
    *,
    build_id: str = "",
    accept: Accept = lambda tx, build_id: None,
) -> BuildJob:
    """A new build of a plan."""
    require_environment(resolved)
    options = msgspec.structs.replace(
        options,
        jobs=chosen_cap(options.jobs, resolved.plan.jobs or MAX_ACTIVE_CHILDREN),
        limits={**resolved.plan.limits, **options.limits},
    )
    assert options.jobs is not None
    build_id = lifecycle.begin(
        kernel,
        actor,
        resolved,
        plan_file=kernel.recorded_place(resolved.plan.file),
        jobs=options.jobs,
        limits=options.limits,
        reuse=options.reuse and resolved.plan.reuse,
        build_id=build_id,
        accept=accept,
        foreground=options.foreground,
    )
    return BuildJob(kernel, actor, build_id, resolved, options=options)


def resume(
    kernel: Kernel,
    actor: Actor,
    build: Build,
    resolved: Resolved,
    offer: Offer,
    options: BuildOptions,
    *,
    accept: Accept = lambda tx, build_id: None,
) -> BuildJob:
    """A build that crashed or was paused, or its fork, to go on with."""
    require_environment(resolved)
    options = msgspec.structs.replace(
        options,
        jobs=chosen_cap(options.jobs, cap_of(kernel, build.build_id)),
        limits=offer.limits,
        reuse=options.reuse and bool(build.reuse),
    )
    assert options.jobs is not None
    with kernel.store.read() as rows:
        changes = code_changes(rows, build, resolved)
    build_id = lifecycle.resume(
        kernel,
        actor,
        build.build_id,
        resolved,
        plan_file=kernel.recorded_place(resolved.plan.file),
        offer=offer,
        jobs=options.jobs,
        accept=accept,
        foreground=options.foreground,
    )
    how = f"forked from {build.build_id}"
    if build_id == build.build_id:
        how = "; ".join(("resumed", *changes.code[:5], *changes.environment[:5]))
    return BuildJob(kernel, actor, build_id, resolved, options=options, rerun=offer.rerun, how=how)


@begins(RunBuild)
def run_for(taking: Taking, order: RunBuild) -> Job:
    """A new build of the plan in a file, for whoever asked."""
    kernel, build_id = taking.kernel, f"bld_{taking.ident}"
    with kernel.store.read() as rows:
        known = Builds(rows).find(build_id)
    if known is not None and known.state == "CRASHED":
        # It was begun by an older Onceward, and whoever was to answer died.
        offer = ResumeBuild(
            build=build_id, jobs=order.jobs, keep_going=order.keep_going, reuse=order.reuse
        )
        return resume_for(taking, offer)
    if known is not None:
        return FinishedJob(taking.accept_now({"build_id": build_id}))
    choices = Choices(order.only, order.force, order.config)
    resolved = taking.host.loader.plan(taking.host.inside(order.plan), choices)
    options = BuildOptions(
        jobs=order.jobs,
        limits=limits_of_budget(order.budget),
        keep_going=order.keep_going,
        reuse=order.reuse,
    )
    with _released_if_refused(resolved):
        return begin(
            kernel, taking.actor, resolved, options, build_id=build_id, accept=_accepting(taking)
        )


@begins(ResumeBuild)
def resume_for(taking: Taking, order: ResumeBuild) -> Job:
    """A build to go on with, for whoever asked."""
    kernel, host = taking.kernel, taking.host
    with kernel.store.read() as rows:
        build = Builds(rows).named(order.build)
    file = host.inside(order.plan) if order.plan else plan_file_of(build, kernel.home)
    resolved = chosen_plan(build, lambda choices: host.loader.plan(file, choices))
    offer = Offer(
        proof=order.proof,
        limits=limits_of_budget(order.budget),
        fork=order.fork,
        strict_code=order.strict_code,
        rerun=order.rerun,
        accept={
            step: _brought(kernel, taking.ident, kept.name, kept.sha256)
            for step, kept in order.accept.items()
        },
    )
    options = BuildOptions(jobs=order.jobs, keep_going=order.keep_going, reuse=order.reuse)
    with _released_if_refused(resolved):
        return resume(
            kernel,
            taking.actor,
            build,
            resolved,
            offer=offer,
            options=options,
            accept=_accepting(taking),
        )


@contextmanager
def _released_if_refused(resolved: Resolved) -> Iterator[None]:
    """What was loaded for a build that is not begun is not needed."""
    try:
        yield
    except BaseException:
        resolved.release()
        raise


def _accepting(taking: Taking) -> Accept:
    return lambda tx, build_id: taking.accept(tx, {"build_id": build_id})


def _brought(kernel: Kernel, ident: str, name: str, sha256: str) -> Path:
    """A file that somebody brought, under its own name."""
    rules.require_file_name(name)
    place = kernel.work / f"accept-{ident}" / name
    place.parent.mkdir(parents=True, exist_ok=True)
    blob = kernel.artifacts.adopt(sha256)
    place.write_bytes(
        blob.data if blob.data is not None else kernel.artifacts.path_of(sha256).read_bytes()
    )
    return place


def chosen_plan(build: Build, load: Callable[[Choices], Resolved]) -> Resolved:
    """The plan of a build as it is now, with what was chosen of it when the build began."""
    try:
        return load(choices_of(build.choices))
    except InvalidConfig as error:
        refused = error
    rules.require_choices_in_plan(build.build_id, refused)
    raise refused


def plan_file_of(build: Build, home: Path) -> Path:
    """The file that the plan of a build was read from; INVALID_RESUME_STATE where it is not there any more."""
    file = home / build.plan_file
    rules.require_plan_file(build, file.is_file())
    return file


def _spent(shown: Begun) -> int:
    lane = shown.lanes().get("usd_micros")
    return lane.total if lane else 0


def require_environment(resolved: Resolved) -> None:
    """What stages ask of the environment must be there before anything is begun."""
    for stage in resolved.steps.stages:
        rules.require_variables(stage, os.environ.keys())
        for name in stage.secrets:
            check_secret(name, os.environ[name])
