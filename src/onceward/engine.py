"""`onceward.open()`: one process that has a workspace open and runs any number of builds beside each other."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from onceward.builds import jobs as build_jobs
from onceward.builds.choices import Choices
from onceward.builds.jobs import BuildJob, BuildOptions
from onceward.builds.lifecycle import Offer
from onceward.builds.plans import Plan, Resolved
from onceward.builds.views import build_named, build_summary
from onceward.core.records import Request
from onceward.dispatch.stage_words import limits_of
from onceward.errors import LockLost, NotFound
from onceward.kernel.jobs import JobThread
from onceward.kernel.kernel import Kernel
from onceward.people.keyring import inside_child
from onceward.plan import BuildStopped, Result, workspace_at
from onceward.running import load_for
from onceward.serving import Service
from onceward.workspace import Workspace


def open(workspace: Path | str | Workspace | None = None, *, store: str | None = None) -> Engine:
    """The workspace of this folder, which is made if there is none, open for many builds at once.

        with onceward.open() as engine:
            handles = [engine.start(plan) for plan in plans]
            results = [handle.result() for handle in handles]

    In `async with` the same methods are coroutines. While it is open, commands of other processes ask this one."""
    return Engine(workspace, store)


class Engine:
    """A workspace that this process has open. Its methods may be called from any thread."""

    def __init__(self, workspace: Path | str | Workspace | None, store: str | None) -> None:
        if isinstance(workspace, Workspace):
            self._place = workspace
        else:
            self._place = workspace_at(workspace, store)
        self._service: Service | None = None
        self._handles: dict[str, Handle] = {}

    def __enter__(self) -> Self:
        service = Service(self._place)
        try:
            service.open()
        except BaseException:
            service.stop()
            raise
        self._service = service
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> AsyncEngine:
        await asyncio.to_thread(self.__enter__)
        return AsyncEngine(self)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Stop what runs, and give the workspace back. A build that was stopped is CRASHED, and can be resumed."""
        service, self._service = self._service, None
        if service is not None:
            service.stop()

    def start(
        self,
        plan: Plan,
        *,
        jobs: int | None = None,
        budget: Mapping[str, Any] | None = None,
        keep_going: bool = False,
        reuse: bool = True,
        only: Sequence[str] = (),
        force: bool = False,
    ) -> Handle:
        """Begin a build of a plan; it runs beside everything else. The words mean what they do for `Plan.run`."""
        resolved = Resolved(plan, Choices(tuple(only), force))
        options = BuildOptions(
            jobs=jobs, limits=limits_of(budget or {}), keep_going=keep_going, reuse=reuse
        )
        kernel = self._kernel()
        return self._run(build_jobs.begin(kernel, kernel.actor, resolved, options))

    def resume(
        self,
        build_id: str,
        plan: Plan | None = None,
        *,
        token: str = "",
        jobs: int | None = None,
        budget: Mapping[str, Any] | None = None,
        keep_going: bool = False,
        fork: bool = False,
        strict_code: bool = False,
    ) -> Handle:
        """Go on with a build that crashed or was paused. Without a plan it is read from its file again."""
        kernel = self._kernel()
        build = build_named(kernel.store, build_id)
        resolved = load_for(self._place, build, plan)
        offer = Offer(
            token=token, limits=limits_of(budget or {}), fork=fork, strict_code=strict_code
        )
        options = BuildOptions(jobs=jobs, keep_going=keep_going)
        return self._run(build_jobs.resume(kernel, kernel.actor, build, resolved, offer, options))

    def handle(self, build_id: str) -> Handle:
        """The handle of a build that was started or resumed here."""
        found = self._handles.get(build_id)
        if found is None:
            raise NotFound(
                f"no build {build_id} was started here; its result can be read with"
                f" `onceward status {build_id}`",
                context={"build_id": build_id},
            )
        return found

    def _run(self, job: BuildJob) -> Handle:
        service = self._open()
        assert service.hosted is not None
        thread = service.hosted.jobs.start(job)
        if thread is None:
            raise LockLost("this workspace is being closed")
        handle = Handle(self, job, thread)
        self._handles[job.build_id] = handle
        return handle

    def _open(self) -> Service:
        if self._service is None:
            raise LockLost(
                "this workspace is not open; use it inside `with onceward.open() as engine`"
            )
        return self._service

    def _kernel(self) -> Kernel:
        kernel = self._open().kernel
        if kernel is None:
            why = self._open().failure
            raise LockLost(f"this process does not hold the workspace any more{why and f': {why}'}")
        with kernel.store.read() as rows:
            inside = kernel.keyring.child_around(rows)
        if inside:
            raise inside_child(kernel.principal, inside)
        return kernel

    def _ask(self, verb: str, payload: Mapping[str, Any]) -> Any:
        kernel = self._kernel()
        request_id = kernel.store.sources.new_id("req")
        return kernel.ask(Request(verb, request_id, dict(payload), kernel.principal)).value

    def _outcome(self, job: BuildJob) -> dict[str, Any]:
        settings = self._place.settings
        assert job.carried is not None
        with self._place.reading() as store:
            return job.carried.outcome(
                store,
                sinks=settings.sinks(),
                confirmation_seconds=settings.builds.confirmation_seconds,
            )

    def _result(self, outcome: Mapping[str, Any]) -> Result:
        return Result(self._place.folder, outcome, self._place.settings.store.url)


class Handle:
    """A build that was started: how it stands, what came of it, and how to end it."""

    def __init__(self, engine: Engine, job: BuildJob, thread: JobThread) -> None:
        self._engine, self._job, self._thread = engine, job, thread
        self.build_id = job.build_id

    def __repr__(self) -> str:
        return f"<handle of build {self.build_id}>"

    @property
    def done(self) -> bool:
        """Whether nobody works on it here any more: it ended, was paused, or was stopped."""
        return not self._thread.thread.is_alive()

    @property
    def state(self) -> str:
        """The build's state, such as ACTIVE or SUCCESS."""
        with self._engine._place.reading() as store:
            return build_summary(store, self.build_id).state

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the end and answer what came of it. Raises BuildStopped where the build did not succeed, and
        TimeoutError where it goes on for longer; it goes on all the same."""
        self._thread.thread.join(timeout)
        if not self.done:
            raise TimeoutError(f"build {self.build_id} still runs after {timeout:g} s")
        if self._job.carried is None:
            assert self._thread.error is not None
            raise self._thread.error
        result = self._engine._result(self._engine._outcome(self._job))
        if result.state != "SUCCESS":
            raise BuildStopped(result)
        return result

    def cancel(self) -> None:
        """Give the build up: what runs is asked to end, and it can not be resumed."""
        self._engine._ask("builds.abandon", {"build": self.build_id})


class AsyncEngine:
    """The same workspace for programs on an event loop: nothing here blocks the loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def start(self, plan: Plan, **words: Any) -> AsyncHandle:
        """As `Engine.start`."""
        return AsyncHandle(await asyncio.to_thread(self._engine.start, plan, **words))

    async def resume(self, build_id: str, plan: Plan | None = None, **words: Any) -> AsyncHandle:
        """As `Engine.resume`."""
        return AsyncHandle(await asyncio.to_thread(self._engine.resume, build_id, plan, **words))

    def handle(self, build_id: str) -> AsyncHandle:
        """As `Engine.handle`."""
        return AsyncHandle(self._engine.handle(build_id))


class AsyncHandle:
    """A build that was started, for programs on an event loop."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self.build_id = handle.build_id

    @property
    def done(self) -> bool:
        """As `Handle.done`."""
        return self._handle.done

    async def state(self) -> str:
        """As `Handle.state`."""
        return await asyncio.to_thread(lambda: self._handle.state)

    async def result(self, timeout: float | None = None) -> Result:
        """As `Handle.result`; a thousand of them wait without a thread each."""
        await self._handle._thread.wait(timeout)
        return await asyncio.to_thread(self._handle.result, 0)

    async def cancel(self) -> None:
        """As `Handle.cancel`."""
        await asyncio.to_thread(self._handle.cancel)
