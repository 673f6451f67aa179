"""The kernel's side of code hosts: warm processes that load somebody's code and run its functions (K-15).

A host is a process under the supervisor. It has no key and no store; what its functions spend, say and want comes as
messages, and is done here in the name of the step that runs. A host that ends fails the functions that ran in it, and
nothing else."""

from __future__ import annotations

import os
import queue
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, Final

import msgspec

from onceward.code.channel import (
    Ask,
    Channel,
    FunctionAnswer,
    FunctionAsks,
    FunctionEnded,
    Interrupt,
    Load,
    Loaded,
    Message,
    Refused,
    RunFunction,
    Said,
)
from onceward.core.canon import sha256_hex
from onceward.errors import (
    ChildStartFailed,
    CodeNotAvailable,
    InvalidConfig,
    InvalidDependency,
    LockLost,
    OncewardError,
    Recovery,
    StoredError,
)
from onceward.locks.identity import own_identity
from onceward.processes import tree
from onceward.processes.launcher import FIRST_INHERITED, Process, Processes, ProcessOrder

_POLL_SECONDS: Final = 0.02
_LOOK_SECONDS: Final = 0.5
_READ: Final = 1 << 18
_SEND_TIMEOUT: Final = struct.pack("ll", 30, 0)
_WARM: Final = 4
"""How many hosts are kept for the next build of their file when no build uses them."""


class CodeSource(msgspec.Struct, frozen=True):
    """What a host is for: a file, or functions that modules in a folder define."""

    kind: str
    place: str
    names: tuple[str, ...] = ()
    folder: str = ""

    @property
    def name(self) -> str:
        """How a person knows it."""
        return self.place.rpartition("/")[2]


class HostEnded(msgspec.Struct, frozen=True):
    """What a call hears when its host is gone."""

    why: str


class CodeHost:
    """One process, and what it loaded."""

    def __init__(self, hosts: CodeHosts, source: CodeSource) -> None:
        self.source = source
        self.users = 1
        """Who needs it: whoever has it loaded, and builds that run its functions. Changed under the mutex of all hosts."""
        self.description: Any = None
        self.files: Mapping[str, str] = {}
        """The files that its code consists of, with their digests."""
        self.ended = ""
        """How its process ended, once it has."""
        self._mutex = threading.Lock()
        self._calls: dict[int, queue.SimpleQueue[Message | HostEnded]] = {}
        self._loading: queue.SimpleQueue[Message | HostEnded] = queue.SimpleQueue()
        self._retired = False
        ours, theirs = socket.socketpair()
        try:
            self._process = hosts.stand(theirs.fileno())
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._channel = Channel(ours)
        # A host that is suspended must not hold up whoever tells it something.
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SEND_TIMEOUT)
        self._process.listen(ours.fileno(), self._take)
        self._process.go()
        threading.Thread(target=self._watch, name=f"host {source.name}", daemon=True).start()

    def load(self, seconds: float, memory: int, stopping: threading.Event) -> None:
        """Have it load its source; a coded refusal where it cannot be, after which the process is gone."""
        source = self.source
        self._send(
            Load(
                kind=source.kind,
                place=source.place,
                names=source.names,
                folder=source.folder,
                seconds=seconds,
                memory=memory,
            )
        )
        try:
            message = self._loaded_within(seconds, stopping)
            if isinstance(message, Loaded):
                self.description, self.files = message.description, message.files
                return
            raise self._refusal(message, memory)
        except BaseException:
            self.close()
            raise

    def _loaded_within(self, seconds: float, stopping: threading.Event) -> Message | HostEnded:
        deadline = time.monotonic() + seconds
        while True:
            if stopping.is_set():
                raise LockLost("the server is stopping; send the request again when it is back")
            if time.monotonic() > deadline:
                raise InvalidConfig(
                    f"{self.source.name} was not loaded within {seconds:g} s",
                    context={"field": "import_seconds"},
                    recovery=[
                        Recovery(
                            "do less when it is imported, or allow it more: import_seconds under"
                            " [serve] in onceward.toml"
                        )
                    ],
                )
            with suppress(queue.Empty):
                return self._loading.get(timeout=_POLL_SECONDS)

    def _refusal(self, message: Message | HostEnded, memory: int) -> OncewardError:
        name = self.source.name
        context: dict[str, Any] = {"file": name}
        if isinstance(message, HostEnded):
            return InvalidConfig(
                f"{name} {message.why.replace('its process', 'the process that loaded it')}",
                context=context,
            )
        assert isinstance(message, Refused)
        if message.out_of_memory:
            return InvalidConfig(
                f"{name} needs more than {memory} bytes of memory to be loaded",
                context=context,
                recovery=[Recovery("allow it more: import_memory under [serve] in onceward.toml")],
            )
        return _error_of(message.error)

    @contextmanager
    def call(self, run: RunFunction) -> Iterator[queue.SimpleQueue[Message | HostEnded]]:
        """Have a function run; what it says, asks and returns comes through the queue."""
        messages: queue.SimpleQueue[Message | HostEnded] = queue.SimpleQueue()
        with self._mutex:
            self._calls[run.call] = messages
            ended = self.ended
        if ended or not self._send(run):
            messages.put(HostEnded(ended or "ended before the function began"))
        try:
            yield messages
        finally:
            with self._mutex:
                self._calls.pop(run.call, None)
                alone = not self._calls
            if alone and self._retired:
                self.close()

    def answer(self, answer: FunctionAnswer) -> None:
        self._send(answer)

    def ask(self, call: int, why: str) -> None:
        """Ask a function to end."""
        self._send(Ask(call=call, why=why))

    def interrupt(self, call: int) -> None:
        """Raise in the thread of a function."""
        self._send(Interrupt(call=call))

    def retire(self) -> None:
        """A function of it does not end: begin nothing more in it, and end it when the others have ended."""
        self._retired = True

    @property
    def usable(self) -> bool:
        return not self.ended and not self._retired

    def close(self) -> None:
        """End the process, whatever runs in it."""
        self._process.kill()

    def _send(self, message: Message) -> bool:
        """Tell the host something. One that does not hear it, or heard half of it, is ended."""
        sent = self._channel.send(message)
        if not sent:
            self.close()
        return sent

    def _take(self) -> bool:
        """Read what the host said; False once it says nothing more."""
        try:
            data = self._channel.line.recv(_READ)
        except OSError:
            return False
        try:
            for message in self._channel.taken(data):
                self._hear(message)
        except (msgspec.MsgspecError, ValueError):
            # Its own code wrote into our line: nothing it says can be relied on any more.
            self.close()
            return False
        return bool(data)

    def _hear(self, message: Message) -> None:
        if isinstance(message, FunctionAsks | Said | FunctionEnded):
            with self._mutex:
                messages = self._calls.get(message.call)
            if messages is not None:
                messages.put(message)
        elif isinstance(message, Loaded | Refused):
            self._loading.put(message)

    def _watch(self) -> None:
        """On a thread of its own: take in what the process says until it has ended, and tell those that wait."""
        with suppress(OncewardError):
            while self._process.seen(_LOOK_SECONDS) is None:
                pass
        ending = self._process.ending
        why = _how_ended(ending.exit if ending is not None else -signal.SIGKILL)
        with self._mutex:
            self.ended = why
            waiting = list(self._calls.values())
        for messages in (self._loading, *waiting):
            messages.put(HostEnded(why))
        self._process.close()
        self._channel.close()


class CodeHosts:
    """The hosts of one kernel. Any thread may ask."""

    def __init__(
        self,
        processes: Processes,
        home: Path,
        *,
        seconds: float,
        memory: int,
        new_id: Callable[[str], str],
        hidden: Sequence[str] = (),
    ) -> None:
        """`hidden` are variables of ours that somebody's code does not get."""
        self._processes, self._home = processes, home
        self._seconds, self._memory = seconds, memory
        self._new_id, self._hidden = new_id, frozenset(hidden)
        self._mutex = threading.Lock()
        self._warm: dict[CodeSource, CodeHost] = {}
        """The newest host of each source, the one used last at the end."""
        self._all: set[CodeHost] = set()
        self.numbers = count(1)
        """Of calls, so that what is said of one is never taken for another's."""
        self.stopping = threading.Event()
        """Set when the server is to end: nothing is waited for any more."""

    @property
    def grace(self) -> float:
        """How long something that was asked to end is waited for."""
        return self._processes.grace

    def stand(self, descriptor: int) -> Process:
        """A process that is ready to become a host."""
        marks = {tree.KERNEL: tree.kernel_mark(own_identity())}
        env = {name: value for name, value in os.environ.items() if name not in self._hidden}
        return self._processes.stand(
            ProcessOrder(
                name=self._new_id("hst"),
                argv=(sys.executable, "-P", "-m", "onceward.code_host", str(FIRST_INHERITED)),
                cwd=self._home,
                env={**env, **marks},
                inherit=(descriptor,),
            )
        )

    def host(self, source: CodeSource) -> CodeHost:
        """A host that has loaded a source as it is now; one that is warm, if none of its files changed. It is used by
        the caller from now on, until it is let go."""
        with self._mutex:
            warm = self._warm.get(source)
            if warm is not None and warm.usable and _unchanged(warm.files):
                warm.users += 1
                self._warm[source] = self._warm.pop(source)
                return warm
        host = self._start(source)
        with self._mutex:
            self._warm.pop(source, None)
            self._warm[source] = host
        self._reap()
        return host

    def again(self, host: CodeHost) -> CodeHost:
        """A host in the place of one that has ended, with the same code; CODE_NOT_AVAILABLE where that has changed."""
        fresh = self.host(host.source)
        if fresh.files != host.files:
            self.let_go(fresh)
            raise CodeNotAvailable(
                f"{host.source.name} changed after the build began, and the process that had its code is gone",
                context={"file": host.source.name},
                recovery=[Recovery("go on with the code as it is now, by a resume")],
            )
        return fresh

    def check(self, source: CodeSource) -> None:
        """See whether a source can be loaded, in a process that ends then."""
        host = self._start(source)
        host.close()
        with self._mutex:
            self._all.discard(host)

    def let_go(self, host: CodeHost) -> None:
        """A build uses it no more."""
        with self._mutex:
            host.users -= 1
        self._reap()

    def close(self) -> None:
        """End every host."""
        self.stopping.set()
        with self._mutex:
            hosts = list(self._all)
        for host in hosts:
            host.close()

    def _start(self, source: CodeSource) -> CodeHost:
        try:
            host = CodeHost(self, source)
        except ChildStartFailed as error:
            raise LockLost(
                f"no process could be started for {source.name}: {error.message}"
            ) from error
        with self._mutex:
            self._all.add(host)
        try:
            host.load(self._seconds, self._memory, self.stopping)
        except BaseException:
            with self._mutex:
                self._all.discard(host)
            raise
        return host

    def _reap(self) -> None:
        """End what no build uses: older code, what has ended, and the longest unused beyond a few."""
        with self._mutex:
            idle = [source for source, host in self._warm.items() if not host.users]
            for source in idle[: max(0, len(idle) - _WARM)]:
                del self._warm[source]
            kept = set(self._warm.values())
            over = [host for host in self._all if not host.users and host not in kept]
            self._all.difference_update(over)
        for host in over:
            host.close()


def _how_ended(status: int) -> str:
    """What became of a process by its own code. Not every signal has a name."""
    if status >= 0:
        return f"ended its process (exit status {status})"
    with suppress(ValueError):
        return f"crashed its process ({signal.Signals(-status).name})"
    return f"crashed its process (signal {-status})"


def _unchanged(files: Mapping[str, str]) -> bool:
    return all(file_digest(Path(file)) == digest for file, digest in files.items())


def file_digest(file: Path) -> str:
    """The digest of a file's content; empty where it cannot be read."""
    try:
        return sha256_hex(file.read_bytes())
    except OSError:
        return ""


def _error_of(document: dict[str, Any]) -> OncewardError:
    """A refusal from a host, as whoever loads here would have met it."""
    stored = StoredError(document)
    for kind in (InvalidConfig, InvalidDependency):
        if stored.code == kind.code:
            return kind(stored.message, context=stored.context, recovery=stored.recovery)
    return stored
