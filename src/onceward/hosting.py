"""Work taken from others and done beside everything else, by a kernel that serves; in the name of who asked (K-13)."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from onceward import changing, running, saga_running
from onceward.builds import jobs as build_jobs
from onceward.builds.acts import ResumeBuild, RunBuild
from onceward.builds.choices import Choices
from onceward.builds.jobs import BuildOptions
from onceward.builds.lifecycle import Offer
from onceward.changes.acts import CutChange, VerifyChange
from onceward.changes.cut import cut, own_code, require_cuttable
from onceward.changes.verify import require_verifiable, verify
from onceward.core.orders import Order, order_of, seconds_of
from onceward.core.records import Request
from onceward.core.sagas import Lease, Run
from onceward.dispatch.acts import Spawn
from onceward.dispatch.budget import amounts
from onceward.dispatch.spawning import commands_of
from onceward.environments import Environments
from onceward.errors import (
    InvalidConfig,
    LockLost,
    OncewardError,
    PermissionDenied,
    Recovery,
)
from onceward.kernel.answers import Accept, Subject
from onceward.kernel.kernel import Kernel
from onceward.kernel.open_sessions import OpenSessions
from onceward.loading import Loader
from onceward.registry.acts import ApplyPlan
from onceward.registry.assembly import shipped
from onceward.sagas.acts import ResumeSaga, RunSaga
from onceward.sagas.declaration import Saga
from onceward.sagas.lifecycle import Wanted, begin, take_up
from onceward.sagas.run import SagaRun, run_saga
from onceward.store.tables.builds import Builds
from onceward.store.tables.changes import Changes
from onceward.store.tables.children import Sessions, Tokens
from onceward.store.tables.sagas import Runs
from onceward.store.transaction import Transaction
from onceward.workspace import Workspace

Do = Callable[[threading.Event], Any]
Begun = tuple[Subject, Do | None]
"""What the work is called, and how it is carried out where that is still to be done."""


class Taking(msgspec.Struct, frozen=True):
    """A request on its way to be work."""

    kernel: Kernel
    """In the name of who asked."""
    ident: str
    """What the ids of its resources are made from: the same however often it is taken."""
    verb: str
    request_id: str
    accept: Accept
    """To be called in the commit that makes the resource."""

    def accept_now(self, subject: Subject) -> Subject:
        """For what makes nothing new: a commit of its own."""
        self.kernel.store.write(lambda tx: self.accept(tx, subject))
        return subject


class Hosted:
    """Takes work, begins it at once, and carries it out on a thread of its own."""

    def __init__(self, workspace: Workspace, kernel: Kernel) -> None:
        self.workspace, self.kernel = workspace, kernel
        self._mutex = threading.Lock()
        limits = workspace.settings.serve
        self.loader = Loader(workspace.folder.parent, limits.import_seconds, limits.import_memory)
        self.sessions = OpenSessions()
        self.environments = Environments()
        self._works: dict[str, tuple[threading.Thread, threading.Event]] = {}
        self._stopping = False

    def take(self, request: Request, resource_id: str, accept: Accept) -> Subject:
        """Begin what is asked; answers what it is called. Asked again with the same id, it is the same."""
        if self._stopping:
            raise LockLost("the server is stopping; ask again when it is back")
        order = order_of(request.verb, request.payload)
        taking = Taking(
            kernel=self._acting(request),
            ident=resource_id.partition("_")[2],
            verb=request.verb,
            request_id=request.request_id,
            accept=accept,
        )
        begin: Mapping[type[Order], Callable[[Taking, Any], Begun]] = {
            RunBuild: self._run_build,
            ResumeBuild: self._resume_build,
            Spawn: self._spawn,
            RunSaga: self._run_saga,
            ResumeSaga: self._resume_saga,
            ApplyPlan: self._apply,
            CutChange: self._cut,
            VerifyChange: self._verify,
        }
        subject, do = begin[type(order)](taking, order)
        self.environments.forget(request.request_id)
        if do is not None:
            self._start(request, subject, do)
        return subject

    def _acting(self, request: Request) -> Kernel:
        """The kernel in the name of who asked. What is signed at the end is signed by them, if their key is here."""
        kernel = self.kernel
        try:
            with kernel.store.read() as rows:
                signer = self.workspace.keyring.signer(rows, request.principal)
        except PermissionDenied:
            if request.verb.startswith("changes."):
                raise
            signer = kernel.signer  # type: ignore[assignment]
        return kernel.acting(request.principal, signer)

    def _start(self, request: Request, subject: Subject, do: Do) -> None:
        stop = threading.Event()
        key = f"{request.verb} {request.request_id}"
        thread = threading.Thread(
            target=self._carry, args=(request, subject, do, stop, key), name=f"work {key}"
        )
        with self._mutex:
            if self._stopping:
                # It is accepted: whoever comes next finds it as this kernel leaves it.
                return
            self._works[key] = (thread, stop)
            thread.start()

    def _carry(
        self, request: Request, subject: Subject, do: Do, stop: threading.Event, key: str
    ) -> None:
        said: dict[str, Any] = {
            "verb": request.verb,
            "request_id": request.request_id,
            **subject,
            "outcome": "done",
        }
        try:
            do(stop)
        except OncewardError as error:
            said |= {
                "outcome": "failed",
                "error": {"code": error.code, "message": error.message[:1000]},
            }
        except Exception as bug:
            said |= {
                "outcome": "failed",
                "error": {"code": "EXECUTION_FAILED", "message": type(bug).__name__},
            }
        with suppress(OncewardError):
            # One that can write no more has an heir, who finds what was left.
            self.kernel.store.write(
                lambda tx: tx.append("workspace", "WORK_ENDED", self.kernel.principal, said)
            )
        with self._mutex:
            self._works.pop(key, None)

    def stop(self) -> None:
        """Ask everything to end, and wait until it has."""
        self.loader.stopping.set()
        with self._mutex:
            self._stopping = True
            works = list(self._works.values())
        for _, stop in works:
            stop.set()
        self.sessions.stop()
        for thread, _ in works:
            thread.join()

    # Builds.

    def _run_build(self, taking: Taking, order: RunBuild) -> Begun:
        kernel, build_id = taking.kernel, f"bld_{taking.ident}"
        with kernel.store.read() as rows:
            known = Builds(rows).find(build_id)
        if known is not None:
            # It was begun by an older Onceward, and whoever was to answer died.
            offer = ResumeBuild(
                build=build_id, jobs=order.jobs, keep_going=order.keep_going, reuse=order.reuse
            )
            if known.state == "CRASHED":
                return self._resume_build(taking, offer)
            return taking.accept_now({"build_id": build_id}), None
        choices = Choices(order.only, order.force, order.config)
        resolved = self.loader.plan(self.workspace.inside(order.plan), choices)
        options = BuildOptions(
            jobs=order.jobs,
            limits=_limits(order.budget),
            keep_going=order.keep_going,
            reuse=order.reuse,
        )
        job = build_jobs.begin(
            kernel,
            kernel.actor,
            resolved,
            options,
            build_id=build_id,
            accept=lambda tx, build_id: taking.accept(tx, {"build_id": build_id}),
        )
        return job.subject, job.run

    def _resume_build(self, taking: Taking, order: ResumeBuild) -> Begun:
        kernel = taking.kernel
        with kernel.store.read() as rows:
            build = Builds(rows).named(order.build)
        file = self.workspace.inside(order.plan) if order.plan else None
        resolved = running.load_for(
            self.workspace, build, plan_file=file, load_file=self.loader.plan
        )
        offer = Offer(
            proof=order.proof,
            limits=_limits(order.budget),
            fork=order.fork,
            strict_code=order.strict_code,
            rerun=order.rerun,
            accept={
                step: self._brought(kernel, taking.ident, kept.name, kept.sha256)
                for step, kept in order.accept.items()
            },
        )
        job = build_jobs.resume(
            kernel,
            kernel.actor,
            build,
            resolved,
            offer,
            BuildOptions(jobs=order.jobs, keep_going=order.keep_going, reuse=order.reuse),
            accept=lambda tx, build_id: taking.accept(tx, {"build_id": build_id}),
        )
        return job.subject, job.run

    def _brought(self, kernel: Kernel, ident: str, name: str, sha256: str) -> Path:
        """A file that somebody brought, under its own name."""
        if "/" in name or name in ("", ".", ".."):
            raise InvalidConfig(f"{name[:60]!a} is no file's name", context={"field": "accept"})
        place = kernel.work / f"accept-{ident}" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        blob = kernel.artifacts.adopt(sha256)
        place.write_bytes(
            blob.data if blob.data is not None else kernel.artifacts.path_of(sha256).read_bytes()
        )
        return place

    # Commands.

    def _spawn(self, taking: Taking, order: Spawn) -> Begun:
        kernel, session = taking.kernel, order.session or f"ses_{taking.ident}"
        if not self.workspace.settings.server.spawn:
            raise PermissionDenied(
                "this server runs no commands for others; it runs plans and sagas",
                context={"setting": "server.spawn"},
                recovery=[
                    Recovery("run it yourself, where nobody serves", "onceward spawn -- ...")
                ],
            )
        folder = self.workspace.working_folder(order.folder or ".")
        brought = self.environments.of(
            taking.request_id, kernel.principal, self.workspace.principal
        )
        works = commands_of(order, folder, brought)
        ids = [f"chd_{_next(taking.ident, number)}" for number in range(len(works))]
        subject = {"session_id": session, "children": ids}
        with kernel.store.read() as rows:
            known = Sessions(rows).find(session) is not None and any(
                token.child_id == ids[0] for token in Tokens(rows).of_session(session)
            )
        if known:
            return taking.accept_now(subject), None
        children = self.sessions.join(kernel, session, order.jobs, _limits(order.budget))
        try:
            children.spawn(
                works,
                ids,
                accept=lambda tx: taking.accept(tx, subject),
                actor=kernel.principal,
            )
        except BaseException:
            self.sessions.leave(children)
            raise

        def run(stop: threading.Event) -> None:
            # Who stops everything stops the sessions: one that others share is not stopped for one of them.
            try:
                for child_id in ids:
                    children.wait(child_id)
            finally:
                self.sessions.leave(children)

        return subject, run

    # Sagas and the registry.

    def _run_saga(self, taking: Taking, order: RunSaga) -> Begun:
        kernel = taking.kernel
        saga = self.loader.saga(self.workspace.inside(order.file))
        wanted = Wanted(
            saga=saga,
            root=order.root or f"root_{taking.ident}",
            given=order.input,
            executor=kernel.principal,
            environment=kernel.environment,
            grant_id=self.workspace.grant(order.grant) if order.grant else None,
        )
        place = kernel.recorded_place(saga.file)
        run, lease = begin(kernel, wanted, place, _limits(order.budget), accept=_accept_run(taking))
        return self._saga(kernel, saga, run, lease)

    def _resume_saga(self, taking: Taking, order: ResumeSaga) -> Begun:
        kernel = taking.kernel
        with kernel.store.read() as rows:
            known = Runs(rows).named(order.saga)
        saga = shipped(known) or saga_running.saga_of(
            self.workspace, known, None, load_file=self.loader.saga
        )
        run, lease = take_up(
            *(kernel, saga, known.saga_id, kernel.environment, _limits(order.budget)),
            retry=order.retry,
            accept=_accept_run(taking),
        )
        return self._saga(kernel, saga, run, lease)

    def _apply(self, taking: Taking, order: ApplyPlan) -> Begun:
        kernel, applies = taking.kernel, taking.verb == "registry.apply"
        make = saga_running.to_apply if applies else saga_running.to_roll_back
        saga = make(self.workspace, order.plan)
        grant, root = saga_running.root_for(self.workspace, saga, order.grant)
        wanted = Wanted(saga, root, saga.given(), kernel.principal, kernel.environment, grant)
        run, lease = begin(kernel, wanted, accept=_accept_run(taking))
        return self._saga(kernel, saga, run, lease)

    def _saga(self, kernel: Kernel, saga: Saga, run: Run, lease: Lease | None) -> Begun:
        subject = _subject_of(run)
        if run.over or run.stuck is not None:
            return subject, None

        def work(stop: threading.Event) -> None:
            carrying = SagaRun(kernel, saga, run.saga_id, lease, lambda told: None)
            run_saga(kernel, carrying, stop)

        return subject, work

    # Changes.

    def _cut(self, taking: Taking, order: CutChange) -> Begun:
        kernel = taking.kernel
        self._probe_place(kernel, order.entry)
        entry_id = require_cuttable(kernel, order.entry, order.grant)
        if order.commit:
            changing.require_commit(kernel, entry_id)

        def work(stop: threading.Event) -> None:
            changing.carried_out(
                self.workspace, kernel, cut(kernel, entry_id, order.grant, stop=stop), order.commit
            )

        return taking.accept_now({"entry_id": entry_id}), work

    def _verify(self, taking: Taking, order: VerifyChange) -> Begun:
        kernel = taking.kernel
        with kernel.store.read() as rows:
            entry_id = Changes(rows).named(order.entry).entry_id
        self._probe_place(kernel, entry_id)
        require_verifiable(kernel, entry_id, order.accept_drift)
        result_id, timeout = f"vrf_{taking.ident}", seconds_of(order.timeout, "timeout")

        def work(stop: threading.Event) -> None:
            done = verify(
                kernel,
                entry_id,
                again=order.again,
                timeout=timeout,
                stop=stop,
                result_id=result_id,
                accept_drift=order.accept_drift,
            )
            changing.checked(self.workspace, kernel, done, order.commit)

        return taking.accept_now({"entry_id": entry_id}), work

    def _probe_place(self, kernel: Kernel, name: str) -> None:
        """A place of the user's own is code, too."""
        with kernel.store.read() as rows:
            entry_id = Changes(rows).named(name).entry_id
        code = own_code(kernel, entry_id)
        if code:
            self.loader.probe_name(code, kernel.home)


def _next(ident: str, number: int) -> str:
    """The id that many after another: the same for the same request, for ever."""
    return str(uuid.UUID(int=uuid.UUID(ident).int + number))


def _limits(budget: Mapping[str, Any]) -> dict[str, int]:
    return amounts(dict(budget)) if budget else {}


def _subject_of(run: Run) -> Subject:
    return {"saga_id": run.saga_id, "root": run.idempotency_root}


def _accept_run(taking: Taking) -> Callable[[Transaction, Run], None]:
    return lambda tx, run: taking.accept(tx, _subject_of(run))
