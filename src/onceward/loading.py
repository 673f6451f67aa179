"""Somebody's code, loaded for a server: first in a process of its own, then, where that survived it, here (K-15)."""

from __future__ import annotations

import ctypes
import importlib
import linecache
import os
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from onceward.builds.choices import Choices
from onceward.builds.plan_file import load, runs_code
from onceward.builds.plans import Resolved
from onceward.errors import (
    ExecutionFailed,
    InvalidConfig,
    InvalidDependency,
    LockLost,
    OncewardError,
    Recovery,
    StoredError,
)
from onceward.import_probe import Probe, ProbeReport
from onceward.locks.identity import own_identity
from onceward.processes import tree
from onceward.sagas.declaration import Saga
from onceward.sagas.saga_file import saga_in

T = TypeVar("T")
_POLL_SECONDS: Final = 0.02
_REPORT_BYTES: Final = 64 * 1024
_HERE_FACTOR: Final = 2
"""How much longer than in the probe a load may take here, beside everything else that a server does."""


class Loader:
    """Loads plans and sagas as they are now. What exits, hangs, crashes or eats memory is a refusal that says so."""

    _loading = threading.Lock()
    """One load at a time: modules are forgotten and imported for the whole process."""

    def __init__(self, home: Path, seconds: float, memory: int) -> None:
        self._home, self._seconds, self._memory = f"{home.resolve()}/", seconds, memory
        self.stopping = threading.Event()
        """Set when the server is to end: nothing is waited for any more."""

    def plan(self, path: Path, choices: Choices | None = None) -> Resolved:
        """The plan in a file."""
        if runs_code(path):
            chosen = choices or Choices()
            words = {"only": chosen.only, "force": chosen.force, "config": dict(chosen.config)}
            self._probe("plan", str(path), choices=words)
        return self._load(path.name, lambda: load(path, choices))

    def saga(self, path: Path) -> Saga:
        """The saga in a file."""
        if path.is_file():
            self._probe("saga", str(path))
        return self._load(path.name, lambda: saga_in(path))

    def probe_name(self, name: str, folder: Path) -> None:
        """See whether what `module:name` means can be imported; whoever needs it does so."""
        self._probe("name", name, folder=str(folder))

    def _probe(self, kind: str, place: str, **words: Any) -> None:
        """Load it in a process group of its own, under limits; everything in the group is gone when this ends."""
        order = Probe(kind, place, self._seconds, self._memory, **words)
        reader, writer = os.pipe()
        try:
            os.set_blocking(reader, False)
            process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "onceward.import_probe"),
                    *(msgspec.json.encode(order).decode(), str(writer)),
                ],
                pass_fds=[writer],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # The next kernel finds it by this mark, should this one die.
                env={**os.environ, tree.KERNEL: tree.kernel_mark(own_identity())},
                start_new_session=True,
            )
            name = place.rpartition("/")[2]
            try:
                self._wait(
                    f"{name} was not loaded", lambda: process.poll() is not None, self._seconds
                )
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            try:
                said = os.read(reader, _REPORT_BYTES)
            except BlockingIOError:
                said = b""
        finally:
            os.close(reader)
            os.close(writer)
        self._judge(name, process.returncode, said)

    def _judge(self, name: str, status: int, said: bytes) -> None:
        """Whether what was probed may be loaded here."""
        context: dict[str, Any] = {"file": name, "exit": status}
        if status < 0:
            raise InvalidConfig(
                f"{name} crashed the process that loaded it ({signal.Signals(-status).name})",
                context=context,
            )
        if status or not said:
            raise InvalidConfig(
                f"{name} ended the process that loaded it (exit status {status})", context=context
            )
        report = msgspec.json.decode(said, type=ProbeReport)
        if report.out_of_memory:
            raise InvalidConfig(
                f"{name} needs more than {self._memory} bytes of memory to be loaded",
                context=context,
                recovery=[Recovery("allow it more: import_memory under [serve] in onceward.toml")],
            )
        if report.error:
            raise _error_of(report.error)

    def _load(self, name: str, load_here: Callable[[], T]) -> T:
        """Load it in this process, on a thread that can be left behind."""
        done = threading.Event()
        outcome: list[T | BaseException] = []

        def run(lock: threading.Lock) -> None:
            with lock:
                try:
                    self._forget_modules()
                    outcome.append(load_here())
                except BaseException as error:
                    outcome.append(error)
                done.set()

        thread = threading.Thread(target=run, args=(Loader._loading,), name="load", daemon=True)
        thread.start()
        try:
            what = f"{name} was loaded in the probe, and not in the server"
            self._wait(what, done.is_set, _HERE_FACTOR * self._seconds, done.wait)
        except OncewardError:
            self._leave_behind(thread)
            raise
        (found,) = outcome
        if isinstance(found, OncewardError):
            raise found
        if isinstance(found, BaseException):
            raise ExecutionFailed(f"it cannot be read: {type(found).__name__}: {found}") from None
        return found

    def _wait(
        self,
        what: str,
        ended: Callable[[], bool],
        seconds: float,
        pause: Callable[[float], Any] = time.sleep,
    ) -> None:
        """Until it has ended; LOCK_LOST when the server is to end first, INVALID_CONFIG when it takes too long."""
        deadline = time.monotonic() + seconds
        while not ended():
            if self.stopping.is_set():
                raise LockLost("the server is stopping; ask again when it is back")
            if time.monotonic() > deadline:
                raise InvalidConfig(
                    f"{what} within {seconds:g} s",
                    context={"field": "import_seconds"},
                    recovery=[
                        Recovery(
                            "do less when it is imported, or allow it more: import_seconds under"
                            " [serve] in onceward.toml"
                        )
                    ],
                )
            pause(_POLL_SECONDS)

    def _leave_behind(self, thread: threading.Thread) -> None:
        """A thread that hangs keeps its lock; others get another. It ends when its code runs again, if ever."""
        Loader._loading = threading.Lock()
        raised = ctypes.py_object(SystemExit)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), raised)

    def _forget_modules(self) -> None:
        """What was imported before from the same folder is forgotten, so that what runs is what is in its files."""
        for name, module in list(sys.modules.items()):
            file = str(getattr(module, "__file__", None) or "")
            if file.startswith(self._home) and not file.startswith(_OURS):
                del sys.modules[name]
        importlib.invalidate_caches()
        linecache.checkcache()


_OURS = tuple(
    f"{Path(place).resolve()}/"
    for place in (
        sys.prefix,
        sys.base_prefix,
        *sysconfig.get_paths().values(),
        str(Path(__file__).parent),
    )
)
"""Python's own and ours: below a project's folder or not, they are nobody's plan."""


def _error_of(document: dict[str, Any]) -> OncewardError:
    """A refusal from the probe, as whoever loads here would have met it."""
    stored = StoredError(document)
    for kind in (InvalidConfig, InvalidDependency):
        if stored.code == kind.code:
            return kind(stored.message, context=stored.context, recovery=stored.recovery)
    return stored
