"""Somebody's code, loaded for a server: plans in code hosts, which also run them; sagas and places here, once a process
of its own has survived loading them (K-15)."""

from __future__ import annotations

import ctypes
import importlib
import linecache
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from onceward.builds.choices import Choices
from onceward.builds.hosted_plan import load_hosted
from onceward.builds.plans import Resolved
from onceward.code.hosts import CodeHosts, CodeSource
from onceward.errors import ExecutionFailed, InvalidConfig, LockLost, OncewardError, Recovery
from onceward.sagas.declaration import Saga
from onceward.sagas.saga_file import saga_in

T = TypeVar("T")
_POLL_SECONDS: Final = 0.02
_HERE_FACTOR: Final = 2
"""How much longer than in a host a load may take here, beside everything else that a server does."""


class Loader:
    """Loads plans and sagas as they are now. What exits, hangs, crashes or eats memory is a refusal that says so."""

    _loading = threading.Lock()
    """One load at a time: modules are forgotten and imported for the whole process."""

    def __init__(self, home: Path, seconds: float, hosts: CodeHosts) -> None:
        self._home, self._seconds = f"{home.resolve()}/", seconds
        self.hosts = hosts
        self.stopping = hosts.stopping
        """Set when the server is to end: nothing is waited for any more."""

    def plan(self, path: Path, choices: Choices | None = None) -> Resolved:
        """The plan in a file. Its functions run in a code host, which is let go by `release` of what this answers."""
        resolved, code = load_hosted(path, choices, self.hosts)
        if code is not None:
            resolved.release = code.release
        return resolved

    def saga(self, path: Path) -> Saga:
        """The saga in a file. Its checks look at the workspace's rows, so its code runs here."""
        if path.is_file():
            self.hosts.check(CodeSource("saga", str(path)))
        return self._load(path.name, lambda: saga_in(path))

    def probe_name(self, name: str, folder: Path) -> None:
        """See whether what `module:name` means can be imported; whoever needs it does so."""
        self.hosts.check(CodeSource("name", name, folder=str(folder)))

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
            what = f"{name} was loaded in a process of its own, and not in the server"
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
                raise LockLost("the server is stopping; send the request again when it is back")
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
