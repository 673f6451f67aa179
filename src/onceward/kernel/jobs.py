"""Jobs: work that takes its time. One way to begin it for the foreground, the server and Python (K-13).

A slice's `jobs.py` begins its work with `begin(kernel, actor, …) -> Job`: one transaction makes the resource, and accepts
the request where there is one. Whoever began the job then runs it: a command in the foreground on its own thread, a
server or an open workspace on a thread for each job."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

from onceward.errors import LockLost

Subject = dict[str, Any]
"""What work is called: the ids of what it makes."""


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

    def _run(self) -> None:
        try:
            self.job.run(self.stop)
        except BaseException as error:
            self.error = error
        self._ended(self.error)


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
