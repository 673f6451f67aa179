"""A workspace that is served: by its kernel, or by a standby that forwards, and takes over when nobody is (K-13)."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from onceward.artifacts.blobs import Artifacts
from onceward.core.limits import REQUEST_WAIT_SECONDS, STANDBY_SECONDS
from onceward.core.records import Answer, Request
from onceward.errors import LockConflict, LockLost, OncewardError
from onceward.hosting import Hosted
from onceward.kernel.answers import Pending
from onceward.kernel.asker import sign_for
from onceward.kernel.kernel import Kernel
from onceward.kernel.tenure import show_where, vacant
from onceward.people.authority import Authority
from onceward.store.store import Store
from onceward.store.tables.requests import Requests
from onceward.workspace import Workspace

NOTE: Final = "serve.json"
"""Where whoever runs a server finds it: its address, and the socket at which they get a token to act as themselves. No
credential lies in it."""


class Service:
    """Reads from a store of its own; writes as the kernel, or by asking the kernel that lives."""

    def __init__(self, workspace: Workspace, url: str = "") -> None:
        self.workspace, self.url = workspace, url
        self.store: Store = workspace.store()
        """To read from, whoever is the kernel."""
        self.artifacts = Artifacts(
            workspace.folder / "artifacts", self.store, workspace.settings.artifacts.max_bytes
        )
        self.authority = Authority()
        self.hosted: Hosted | None = None
        self._kernel: Kernel | None = None
        self._mutex = threading.Lock()
        self._stop, self.stopping = threading.Event(), threading.Event()
        self._threads: list[threading.Thread] = []
        self.held_secrets: dict[str, str] = {}
        """What this server itself must not let children print, by name."""
        self.failure: str = ""
        """Why this is no kernel any more, if it was one."""

    @property
    def kernel(self) -> Kernel | None:
        """The kernel that this process is; None while it is a standby."""
        return self._kernel

    @property
    def state(self) -> str:
        return "kernel" if self._kernel is not None else "standby"

    def start(self) -> None:
        """Be the kernel if the workspace is free; else wait beside the one that lives."""
        with suppress(LockConflict):
            self._become()
        self._start_tending()

    def open(self) -> None:
        """Be the kernel now, or LOCK_CONFLICT."""
        self._become()
        self._start_tending()

    def _start_tending(self) -> None:
        tending = threading.Thread(target=self._tend, name="tend", daemon=True)
        tending.start()
        self._threads.append(tending)

    def give_up(self) -> None:
        """The server is to end: what takes long is not waited for any more, nor what is being loaded."""
        self.stopping.set()
        hosted = self.hosted
        if hosted is not None:
            hosted.loader.stopping.set()

    def stop(self) -> None:
        """End what was begun, and leave the workspace to others."""
        self._stop.set()
        self._leave()
        for thread in self._threads:
            thread.join()
        self.store.close()

    def ask(
        self,
        principal: str,
        verb: str,
        payload: Any,
        request_id: str,
        wait: float = REQUEST_WAIT_SECONDS,
    ) -> Answer | Pending:
        """Have something done in somebody's name, signed with their key; the same id again is the same answer."""
        request = Request(verb, request_id, payload, principal)
        request.check()
        kernel = self._kernel
        if kernel is None:
            asker = self.workspace.asker()
            try:
                return asker.ask(request, wait)
            finally:
                asker.close()
        try:
            signed = sign_for(kernel.store, self.workspace.keyring, request)
        except OncewardError as error:
            return kernel.answers.refuse(request, error)
        try:
            return kernel.ask(signed)
        except LockLost:
            if self.answered(principal, verb, request_id) is None:
                raise
            # It is filed, and the next kernel takes it: it must not be told as refused.
            return Pending(request_id)

    def answered(self, principal: str, verb: str, request_id: str) -> dict[str, Any] | None:
        """What somebody asked with before under an id, if they did: what is made anew each time is made once."""
        with self.store.read() as rows:
            found = Requests(rows).under(verb, request_id)
        return (
            dict(found.request.payload)
            if found is not None and found.principal == principal
            else None
        )

    def bring_environment(self, principal: str, request_id: str, values: Mapping[str, str]) -> None:
        """Remember the values of variables for a request that follows; in this process only."""
        hosted = self.hosted
        if hosted is None:
            raise LockConflict(
                "this server is a standby and keeps no values for the kernel; send them to the kernel's server"
            )
        hosted.environments.bring(principal, request_id, values)

    def require_going(self) -> None:
        """For what takes long and changes nothing: it is not waited for when the server is to end."""
        if self.stopping.is_set():
            raise LockLost("the server is stopping; send the request again when it is back")

    def require(self, principal: str, role: str) -> None:
        """For what changes no row, and is still not for everybody."""
        with self.store.read() as rows:
            self.authority.require(rows, principal, role)

    def has_role(self, principal: str) -> bool:
        """Whether somebody may still do anything here, and be it only look."""
        with self.store.read() as rows:
            return bool(self.authority.roles(rows, principal))

    def sweep(self) -> None:
        """A pass of the backlog, as often as the settings want it."""
        kernel = self._kernel
        if kernel is not None:
            kernel.ask(
                Request("changes.sweep", kernel.store.sources.new_id("swp"), {}, kernel.principal)
            )

    def _become(self) -> None:
        kernel = self.workspace.kernel()
        try:
            kernel.require("operator")
            kernel.held_secrets |= self.held_secrets
            hosted = Hosted(self.workspace, kernel)
            kernel.answers.host = hosted
            kernel.store.write(lambda tx: show_where(tx, self.url or "here"))
            kernel.streams.look_over()
        except BaseException:
            kernel.close()
            raise
        ended = threading.Event()
        serving = threading.Thread(
            target=self._serve, args=(kernel, ended), name="kernel", daemon=True
        )
        with self._mutex:
            late = self._stop.is_set()
            if not late:
                self._kernel, self.hosted, self._ended, self._serving = (
                    kernel,
                    hosted,
                    ended,
                    serving,
                )
                self.failure = ""
        if late:
            kernel.close()
            return
        # From here on: whoever begins work now must not answer requests beside this loop.
        kernel.served = True
        serving.start()

    def _serve(self, kernel: Kernel, ended: threading.Event) -> None:
        try:
            kernel.run(ended)
        except BaseException as error:
            # It may write no more, and somebody else can; whoever looks is told.
            self.failure = (
                error.message if isinstance(error, OncewardError) else type(error).__name__
            )
            threading.Thread(target=self._leave, name="leave").start()

    def _leave(self) -> None:
        with self._mutex:
            kernel, hosted, self._kernel, self.hosted = self._kernel, self.hosted, None, None
        if kernel is None:
            return
        if hosted is not None:
            hosted.stop()
        self._ended.set()
        self._serving.join()
        with suppress(OncewardError):
            kernel.close()

    def _tend(self) -> None:
        """Take over when nobody holds the workspace; sweep while it is ours."""
        swept = time.monotonic()
        while not self._stop.wait(STANDBY_SECONDS):
            with suppress(OncewardError):
                if self._kernel is None:
                    if vacant(self.store):
                        self._become()
                    continue
                every = self.workspace.settings.changes.sweep_seconds
                if every and time.monotonic() - swept >= every:
                    swept = time.monotonic()
                    self.sweep()
