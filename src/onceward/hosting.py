"""Work taken from others and done beside everything else, by a kernel that serves; in the name of who asked (K-13)."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from onceward.builds import jobs as _builds  # noqa: F401
from onceward.changes import jobs as _changes  # noqa: F401
from onceward.code.hosts import CodeHosts
from onceward.core.orders import order_of
from onceward.core.records import Request
from onceward.errors import OncewardError, PermissionDenied
from onceward.kernel import spawn as _spawn  # noqa: F401
from onceward.kernel.answers import Accept, Subject
from onceward.kernel.environments import Environments
from onceward.kernel.jobs import BEGINS, Jobs, Taking
from onceward.kernel.kernel import Kernel
from onceward.kernel.open_sessions import OpenSessions
from onceward.loading import Loader
from onceward.people.actor import Actor
from onceward.registry import jobs as _registry  # noqa: F401
from onceward.sagas import jobs as _sagas  # noqa: F401
from onceward.workspace import Workspace


class Hosted:
    """Takes work, begins it at once, and has it carried out on a thread of its own."""

    def __init__(self, workspace: Workspace, kernel: Kernel) -> None:
        self.workspace, self.kernel = workspace, kernel
        limits = workspace.settings.serve
        hosts = CodeHosts(
            kernel.processes,
            kernel.home,
            seconds=limits.import_seconds,
            memory=limits.import_memory,
            new_id=kernel.store.sources.new_id,
            hidden=[*kernel.held_secrets],
        )
        self.loader = Loader(kernel.home, limits.import_seconds, hosts)
        self.sessions = OpenSessions()
        self.environments = Environments()
        self.runs_commands = workspace.settings.server.spawn
        self.jobs = Jobs()

    def inside(self, name: str) -> Path:
        return self.workspace.inside(name)

    def working_folder(self, name: str) -> Path:
        return self.workspace.working_folder(name)

    def take(self, request: Request, resource_id: str, accept: Accept) -> Subject:
        """Begin what is asked; answers what it is called. Asked again with the same id, it is the same."""
        self.jobs.require_going()
        order = order_of(request.verb, request.payload)
        taking = Taking(
            kernel=self.kernel,
            actor=self._actor(request),
            ident=resource_id.partition("_")[2],
            verb=request.verb,
            request_id=request.request_id,
            accept=accept,
            host=self,
        )
        job = BEGINS[type(order)](taking, order)
        self.environments.forget(request.request_id)
        subject = job.subject
        if not job.over:
            self.jobs.start(job, lambda error: self._note_end(request, subject, error))
        return subject

    def _actor(self, request: Request) -> Actor:
        """Who asked. Where their key is not here, what is signed at the end is signed by this kernel's own principal;
        but for changes, which nobody signs for somebody else."""
        try:
            with self.kernel.store.read() as rows:
                signer = self.workspace.keyring.signer(rows, request.principal)
        except PermissionDenied:
            if request.verb.startswith("changes."):
                raise
            return Actor(request.principal, self.kernel.signer)
        return Actor(request.principal, signer)

    def _note_end(self, request: Request, subject: Subject, error: BaseException | None) -> None:
        detail: dict[str, Any] = {
            "verb": request.verb,
            "request_id": request.request_id,
            **subject,
            "outcome": "done" if error is None else "failed",
        }
        if isinstance(error, OncewardError):
            detail["error"] = {"code": error.code, "message": error.message[:1000]}
        elif error is not None:
            detail["error"] = {"code": "EXECUTION_FAILED", "message": type(error).__name__}
        with suppress(OncewardError):
            # One that can write no more has an heir, who finds what was left.
            self.kernel.store.write(
                lambda tx: tx.append("workspace", "WORK_ENDED", self.kernel.principal, detail)
            )

    def stop(self) -> None:
        """Ask everything to end, and wait until it has."""
        self.loader.stopping.set()
        running = self.jobs.ask_to_stop()
        self.sessions.stop()
        for job in running:
            job.thread.join()
        self.loader.hosts.close()
