"""What a child does: a Python function or a command, and what can be said to one that runs."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from onceward.artifacts.redaction import Redactor
from onceward.core.limits import CHILD_TIMEOUT_SECONDS, REFUSED_SECONDS
from onceward.core.records import Token
from onceward.core.text import text_of
from onceward.dispatch import rules
from onceward.dispatch.machine import Ended, Order
from onceward.errors import ChildCancelled, OncewardError
from onceward.people.credentials import Credential
from onceward.processes.launcher import Process
from onceward.store.transaction import Transaction

Asked = Literal["", "cancel", "stop", "timeout", "budget", "reports"]


class FunctionFailed(Exception):
    """A function that ran in another process ended with an error, which is told in words."""

    def __init__(
        self, code: str, message: str, *, retryable: bool = False, trace: str = ""
    ) -> None:
        super().__init__(message)
        self.code, self.message, self.retryable, self.trace = code, message, retryable, trace


class ChildTask:
    """What a function child is given: who it is, and how to spend, report and notice that it should end."""

    def __init__(
        self, token: Token, running: Running, spend: Callable[[Mapping[str, Any], bool], None]
    ) -> None:
        self.child_id, self.attempt = token.child_id, token.attempt
        self.token, self.running, self.debit = token, running, spend

    def spend(self, *, settled: bool = False, **lanes: Any) -> None:
        """Debit lanes now, as in `spend(usd="0.01", tokens=120)`; raises when there is no room for it.

        `settled=True` says that the money is gone: it is always recorded and never raises. What the step
        returns is kept; if the budget is crossed, the build pauses after it."""
        if not settled:
            self.check()
            rules.require_debitable(self.running.over)
        self.debit(lanes, settled)

    def progress(self, thousandths: int, note: str = "") -> None:
        self.running.tell(thousandths, note)

    def check(self) -> None:
        """Raise if this child should end: it was cancelled, its kernel stops, or its time is over."""
        rules.require_not_asked_to_end(self.running.asked)

    @property
    def cancelled(self) -> bool:
        return bool(self.running.asked)


class StepEnd(Protocol):
    """What the end of a step's child means for its build: written with it, and noted when that is durable."""

    detail: Mapping[str, Any]
    """What its last event says of the step."""
    about: str

    def record(
        self, tx: Transaction, ended: Ended, spent: Mapping[str, int], state: str
    ) -> Sequence[Order]:
        """In the commit of the end: the step's checkpoint and all that belongs to it. Answers who is to run next."""
        ...

    def recorded(self) -> None: ...

    def lost(self) -> None:
        """The commit of the end could not be made by this kernel: keep what the step made for the next."""
        ...


class Step(Protocol):
    """A step of a build, as its child is dispatched."""

    name: str
    lock_target: str
    """The target lock under which it is known to others; empty where it has none."""
    estimate: Mapping[str, int]
    """What it is expected to spend, by lane; empty where nobody knows."""

    def prepare(self, token: Token) -> None:
        """Before a command starts: lay out what it is to find."""
        ...

    def collect(self, token: Token, value: Any) -> Any:
        """After it ended well: keep what it left. Raises a coded error where that cannot be taken."""
        ...

    def doubt(self, value: Any, why: OncewardError) -> Any:
        """After it ended well and `collect` refused what it left: keep that for a person to decide about. None where
        nobody is asked and it has failed."""
        ...

    def late(self, token: Token, kept: Any) -> None:
        """It ended well after it was given up: record what it made."""
        ...

    def close(self, token: Token, ended: Ended, kept: Any) -> StepEnd: ...

    def cancelled(self) -> None:
        """It was asked to end before it began, and has."""
        ...


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What every kind of work has: how often, how long, under which lock, and what its end must record."""

    target: str | None = None
    timeout: float | None = CHILD_TIMEOUT_SECONDS
    attempts: int = 1
    step: Step | None = None
    """The step of a build that it carries out."""

    said: Mapping[str, Any] = {}
    """What else is recorded of it."""
    operation: str = ""
    """The registered operation that it is."""
    effect: str = ""
    excused: bool = False
    """Whether it is carried out whatever is left of the budget: what it spends is debited, and never refused."""

    def __post_init__(self) -> None:
        rules.require_timeout(self.timeout)

    def policy(self) -> dict[str, Any]:
        """How often and how long it may be tried, as recorded with it."""
        limit = {} if self.timeout is None else {"timeout_ms": int(self.timeout * 1000)}
        named = {"operation": self.operation} if self.operation else {}
        return {"attempts": self.attempts, **limit, **named, **self.said}


class Function(Terms, frozen=True, kw_only=True):
    """A Python function, on a thread; `async def` on the one loop thread."""

    call: Callable[[ChildTask], Any]
    name: str = ""
    secrets: Sequence[str] = ()
    """Names of our environment whose values are redacted in whatever it leaves."""

    @property
    def kind(self) -> str:
        return "function"

    def described(self, base: Path) -> dict[str, Any]:
        return {
            "function": self.name or getattr(self.call, "__qualname__", "function"),
            **self.policy(),
        }


class Command(Terms, frozen=True, kw_only=True):
    """A program and its arguments, no shell."""

    argv: Sequence[str]
    cwd: Path
    env: Sequence[str] = ()
    """Names of our environment that it may see beside the minimal ones."""
    given: Mapping[str, str] = {}
    secrets: Sequence[str] = ()
    """Names of our environment that it may see and that are redacted in whatever it leaves."""
    secret_values: Mapping[str, str] | None = None
    """What those secrets are, where they are not ours but of who asked."""
    on_output: Callable[[str, str, bytes], None] | None = None
    """Told of output as it comes: child, `out` or `err`, bytes."""

    @property
    def kind(self) -> str:
        return "process"

    def secrets_now(self) -> dict[str, str]:
        """Its secrets by name, as far as they are set."""
        known = os.environ if self.secret_values is None else self.secret_values
        return {name: known[name] for name in self.secrets if name in known}

    def described(self, base: Path) -> dict[str, Any]:
        """What is recorded of it: no secret, not even one that somebody put on its command line, and where it runs as
        seen from the workspace's own folder."""
        redactor = Redactor(self.secrets_now())
        where = self.cwd.relative_to(base) if self.cwd.is_relative_to(base) else self.cwd
        *words, cwd = (
            _spoken(redactor.clean(os.fsencode(word))) for word in (*self.argv, str(where))
        )
        return {"argv": words, "cwd": cwd, **self.policy()}


Work = Function | Command


def isolated(call: Callable[[Any], Any], argument: Any, **words: Any) -> Command:
    """A function of a module in a process of its own, which can be ended, called with a JSON value."""
    rules.require_findable(call.__qualname__)
    spoken = msgspec.json.encode(argument).decode()
    argv = (
        sys.executable,
        "-m",
        "onceward.child",
        f"{call.__module__}:{call.__qualname__}",
        spoken,
    )
    return Command(argv=argv, **{"cwd": Path.cwd(), "env": ("PYTHONPATH",), **words})


def _spoken(word: bytes) -> str:
    """A word as it can be recorded: bytes that are no text are shown by their numbers."""
    return word.decode("utf-8", "backslashreplace")


class Running:
    """A child that runs, as the coordinator sees it."""

    def __init__(self) -> None:
        self.begun = time.monotonic()
        self.process: Process | None = None
        self.asked: Asked = ""
        self.thousandths = 0
        self.note = ""
        self.spending = False
        """Whether anything was ever to be debited for it."""
        self.refused: Mapping[str, Any] = {}
        """The debit that had no room, if one had none."""
        self.mistake = ""
        """What could not be read of a debit that was settled."""
        self.mistakes = 0
        self.store_failed: OncewardError | None = None
        """Why this kernel could not record what it spent: that is not the child's own error."""
        self.deadline: float | None = None
        """When a function is asked to end, by the watch of its coordinator."""
        self.limit = 0.0
        """Its own time limit."""
        self.out_of_time: Mapping[str, Any] = {}
        """Where the session's time stood when that ended it."""
        self.over = False
        self.thread: int | None = None
        """The thread of a function, for as long as its own code runs."""
        self.pressed_at: float | None = None
        """When it was asked to end."""
        self.abort: Callable[[], object] | None = None
        """Cancels the coroutine of an `async def` child; it is waited for all the same."""
        self.slot = 0
        self.credential: Callable[[], Credential | None] = lambda: None
        """Answers what a function shows to ask in its own name."""
        self.token: Token | None = None
        """What it runs as, for whoever has to give it up."""
        self.given_up = False
        """Whether its end was recorded while its thread went on."""
        self.overdue_told = False
        self._mutex = threading.Lock()

    def end(self) -> bool:
        """Its own thread says that it is over; False where it was given up before."""
        with self._mutex:
            self.over = True
            return not self.given_up

    def give_up(self) -> bool:
        """Somebody else records its end; False where it is over already."""
        with self._mutex:
            self.given_up = not self.over
            return self.given_up

    def attach(self, process: Process) -> None:
        """From now on asking reaches the process; what was asked before reaches it now."""
        with self._mutex:
            self.process = process
        if self.asked:
            process.terminate()

    def cancel(self) -> None:
        self.ask("cancel")

    def stop(self) -> None:
        self.ask("stop")

    def ask(self, why: Asked) -> None:
        """Ask it to end; the first reason counts."""
        with self._mutex:
            self.asked = self.asked or why
            self.pressed_at = self.pressed_at or time.monotonic()
            process, abort = self.process, self.abort
        if process is not None:
            process.terminate()
        if abort is not None:
            abort()

    def refuse(self, refusal: Mapping[str, Any]) -> None:
        """A debit had no room: the child ends, whatever it makes of the answer. It has a moment to end by itself."""
        self.refused = self.refused or refusal
        with self._mutex:
            first, self.asked = not self.asked, self.asked or "budget"
            process = self.process
        if first and process is not None:
            timer = threading.Timer(REFUSED_SECONDS, process.terminate)
            timer.daemon = True
            timer.start()

    def interrupt(self) -> None:
        """A function that was asked to end and has not: raise in its thread, as Ctrl-C does in a program's."""
        with self._mutex:
            if self.thread is not None:
                raised = ctypes.py_object(ChildCancelled)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.thread), raised)
                self.thread = None

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """While a function's own code runs, and only then, it may be interrupted."""
        self.thread = threading.get_ident()
        try:
            yield
        finally:
            with self._mutex:
                self.thread = None

    def tell(self, thousandths: object, note: object) -> None:
        """How far it is. A word of the wrong type is no reason to lose what it works on: it is shown as text, or not
        at all."""
        if isinstance(thousandths, int | float) and thousandths == thousandths:
            self.thousandths = int(min(1000, max(0, thousandths)))
        self.note = text_of(note) or self.note
