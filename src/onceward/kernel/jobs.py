"""Jobs: work that takes its time. One way to begin it for the foreground, the server and Python (K-13).

A slice's `jobs.py` begins its work with `begin(kernel, actor, …) -> Job`: one transaction makes the resource, and accepts
the request where there is one. Whoever began the job then runs it: a command in the foreground on its own thread, a
server or an open workspace on a thread for each job."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from onceward.core.orders import Order
from onceward.errors import LockLost
from onceward.kernel.answers import Accept, Subject
from onceward.kernel.environments import Environments
from onceward.kernel.kernel import Kernel
from onceward.kernel.open_sessions import OpenSessions
from onceward.people.actor import Actor


class Surroundings(Protocol):
    """What whoever hosts work has for those who begin it: where things are, and what outlives one request."""

    loader: Any
    """Loads plans and sagas."""
    sessions: OpenSessions
    environments: Environments
    runs_commands: bool
    """Whether commands are run for others."""

    def inside(self, name: str) -> Path:
        """A file in the folder around the workspace."""
        ...

    def working_folder(self, name: str) -> Path: ...


class Taking(msgspec.Struct, frozen=True):
    """A request on its way to be work."""

    kernel: Kernel
    actor: Actor
    """Who asked. What is signed at the end is signed by them, if their key is here."""
    ident: str
    """What the ids of its resources are made from: the same however often it is taken."""
    verb: str
    request_id: str
    accept: Accept
    """To be called in the commit that makes the resource."""
    host: Surroundings

    def accept_now(self, subject: Subject) -> Subject:
        """For what makes nothing new: a commit of its own."""
        self.kernel.store.write(lambda tx: self.accept(tx, subject))
        return subject


Begin = Callable[[Taking, Any], "Job"]
BEGINS: dict[type[Order], Begin] = {}
"""How each kind of work is begun for whoever asks; filled by the `jobs.py` of the slices."""
BeginT = TypeVar("BeginT", bound=Begin)


def begins(order: type[Order]) -> Callable[[BeginT], BeginT]:
    """Declare how an order is begun, over the function that does it."""

    def declare(begin: BeginT) -> BeginT:
        BEGINS[order] = begin
        return begin

    return declare


class Job(Protocol):
    """Work that was begun."""

    @property
    def subject(self) -> Subject:
        """What it is called."""
        ...

    @property
    def over(self) -> bool:
        """Whether nothing is left to be done: it had come to its end before."""
        ...

    def run(self, stop: threading.Event) -> None:
        """Carry it to its end, on this thread; once `stop` is set, to where the next kernel goes on."""
        ...


class FinishedJob:
    """A request whose work is done already."""

    over = True

    def __init__(self, subject: Subject) -> None:
        self.subject = subject

    def run(self, stop: threading.Event) -> None:
        """Nothing is left to do."""


class JobThread:
    """A job on a thread of its own."""

    def __init__(self, job: Job, ended: Callable[[BaseException | None], None]) -> None:
        self.job = job
        self.stop = threading.Event()
        self.error: BaseException | None = None
        """What it raised, once it has ended."""
        self._ended = ended
        self.thread = threading.Thread(target=self._run, name=f"job {_name(job.subject)}")
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        self._mutex = threading.Lock()
        self._over = False

    def _run(self) -> None:
        try:
            self.job.run(self.stop)
        except BaseException as error:
            self.error = error
        try:
            self._ended(self.error)
        finally:
            self._wake()

    def _wake(self) -> None:
        with self._mutex:
            self._over, waiters = True, self._waiters
        for loop, event in waiters:
            with suppress(RuntimeError):
                # A loop that is closed by now has nobody who waits.
                loop.call_soon_threadsafe(event.set)

    async def wait(self, timeout: float | None = None) -> None:
        """Until the job has ended, on the loop of whoever waits; TimeoutError where that takes longer."""
        event = asyncio.Event()
        with self._mutex:
            if self._over:
                event.set()
            else:
                self._waiters.append((asyncio.get_running_loop(), event))
        await asyncio.wait_for(event.wait(), timeout)
        while self.thread.is_alive():
            # Its last act was to wake us.
            await asyncio.sleep(0.001)


class Jobs:
    """The jobs that run beside each other under one kernel. Called from any thread."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._running: set[JobThread] = set()
        self.stopping = False

    def start(
        self, job: Job, ended: Callable[[BaseException | None], None] = lambda error: None
    ) -> JobThread | None:
        """Run a job on a thread of its own; `ended` is called on it, with what the job raised. None where everything
        is being stopped: the job was accepted, and whoever comes next finds it as this kernel leaves it."""

        def remove(error: BaseException | None) -> None:
            ended(error)
            with self._mutex:
                self._running.discard(running)

        running = JobThread(job, remove)
        with self._mutex:
            if self.stopping:
                return None
            self._running.add(running)
            running.thread.start()
        return running

    @property
    def running(self) -> list[JobThread]:
        with self._mutex:
            return list(self._running)

    def require_going(self) -> None:
        """LOCK_LOST where nothing new is begun any more."""
        if self.stopping:
            raise LockLost("this workspace is being closed; ask again when it is open")

    def ask_to_stop(self) -> list[JobThread]:
        """Begin nothing more and ask everything to end; answers what still runs."""
        with self._mutex:
            self.stopping = True
            running = list(self._running)
        for one in running:
            one.stop.set()
        return running


def _name(subject: Subject) -> str:
    return str(next(iter(subject.values()), ""))
