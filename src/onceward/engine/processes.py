"""Subprocess children: started by handshake, watched, ended with all they started (C-8)."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from onceward.engine import standby, tree
from onceward.engine.capture import Capture
from onceward.engine.cgroup import Cgroup
from onceward.errors import ChildStartFailed, InvalidConfig
from onceward.kernel import faults
from onceward.kernel.limits import HANDSHAKE_SECONDS, OUTPUT_BYTES, STOP_GRACE_SECONDS
from onceward.locks.identity import Identity, boot_id, machine_id, own_identity
from onceward.locks.watch import Seen

FIRST_INHERITED: Final = 3
"""The number under which a child finds the first descriptor it was given."""
Supervisor = subprocess.Popen[bytes]
_PLAIN = ("PATH", "LANG", "LC_ALL", "TZ", "TMPDIR")
_SUPERVISOR = str(Path(standby.__file__).with_name("supervisor.py"))
_READ = 1 << 16
_DRAIN = 1 << 21


class Order(msgspec.Struct, frozen=True):
    """What to run, and what of ours it may see."""

    name: str
    """The child's id; every process it starts is marked with it."""
    argv: Sequence[str]
    cwd: Path
    env: Mapping[str, str] = {}
    inherit: Sequence[int] = ()
    """Descriptors it gets, as 3, 4, 5 ..."""
    lock: int | None = None
    """The descriptor of its target lock: held by it, and by the supervisor until its whole tree is gone."""

    def check(self) -> None:
        words = (self.name, *self.argv, *self.env, *self.env.values())
        if not self.argv or not self.argv[0] or any("\0" in word for word in words) or any("=" in k for k in self.env):
            raise InvalidConfig(
                "a command needs a program, and neither it nor its environment may hold a NUL",
                context={"field": "argv"},
            )


class Ending(msgspec.Struct, frozen=True):
    """How a process ended, when all that it started had ended too."""

    exit: int
    """Its exit status, or minus the signal that ended it."""
    out: Capture
    err: Capture
    seconds: float
    strays: int
    """Processes it left behind, which were ended."""
    unsure: int = 0
    """Processes that hid whose they are, ended when nobody is left who may own them."""
    survivors: Sequence[int] = ()
    """Processes that could not be ended: its target must stay held."""
    unrunnable: str = ""
    """Why the program could not be executed after all."""


def environment(allow: Sequence[str], given: Mapping[str, str]) -> dict[str, str]:
    """The minimal environment, what the allow-list adds of ours, and what is given."""
    names = (*_PLAIN, *allow)
    return {**{name: os.environ[name] for name in names if name in os.environ}, **given}


class Processes:
    """All subprocess children of one kernel, under one supervisor that is started when first needed."""

    def __init__(self, grace: float = STOP_GRACE_SECONDS) -> None:
        self.grace = grace
        self._mutex = threading.Lock()
        self._supervisor: Supervisor | None = None
        self._control: socket.socket | None = None
        self._cgroup: Cgroup | None = None
        self._closed = False
        self.here = own_identity()

    def start(self, order: Order, commit_started: Callable[[Identity], None]) -> Process:
        """Start the work once `commit_started` has made its start durable; if that raises, nothing has run."""
        process = self.stand(order)
        try:
            commit_started(process.identity)
            faults.point("process.committed")
            process.go()
        except BaseException:
            process.dismiss()
            raise
        return process

    def stand(self, order: Order) -> Process:
        """A process that is ready to become the work and waits for `go`."""
        order.check()
        ours, theirs = socket.socketpair()
        out, out_theirs = os.pipe()
        err, err_theirs = os.pipe()
        given = [theirs.fileno(), out_theirs, err_theirs, *order.inherit]
        given += [] if order.lock is None else [order.lock]
        words = [
            *("stand", order.name, str(int(order.lock is not None)), str(order.cwd), str(len(order.argv)), *order.argv),
            *(f"{key}={value}" for key, value in {**order.env, tree.MARK: order.name}.items()),
        ]
        process = Process(self, order.name, ours, out, err)
        try:
            process.supervisor = self._send(words, given)
        except BaseException:
            process.close()
            raise
        finally:
            theirs.close()
            os.close(out_theirs)
            os.close(err_theirs)
        faults.point("process.ordered")
        process.await_ready()
        faults.point("process.ready")
        return process

    def tell(self, op: str, name: str) -> None:
        """Ask the supervisor to terminate or kill a child; if it is gone, so is the need."""
        with suppress(ChildStartFailed), self._mutex:
            if self._control is not None:
                self._write([op, name, ""], [])

    def close(self) -> None:
        """End every child and the supervisor, and see them gone."""
        with self._mutex:
            self._closed = True
            self._dismiss_supervisor()

    def lost(self, supervisor: Supervisor | None) -> None:
        """A supervisor died under its children: end what it watched; the next child gets another."""
        with self._mutex:
            if supervisor is self._supervisor:
                self._dismiss_supervisor()

    def _send(self, words: list[str], descriptors: list[int]) -> Supervisor:
        """Send an order to the supervisor, starting one if there is none; answers which took it."""
        with self._mutex:
            if self._closed:
                raise ChildStartFailed("the kernel is stopping; nothing new is started")
            if self._supervisor is not None and self._supervisor.poll() is not None:
                self._dismiss_supervisor()
            if self._supervisor is None:
                self._supervisor = self._start_supervisor()
            self._write(words, descriptors)
            return self._supervisor

    def _write(self, words: list[str], descriptors: list[int]) -> None:
        assert self._control is not None
        body = b"".join(os.fsencode(word) + b"\0" for word in words)
        if not standby.send(self._control.fileno(), body, descriptors):
            raise ChildStartFailed("the supervisor cannot be reached; try again")

    def _start_supervisor(self) -> Supervisor:
        ours, theirs = socket.socketpair()
        with theirs:
            started = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", _SUPERVISOR),
                    *(str(theirs.fileno()), str(os.getpid()), str(self.grace)),
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd="/",
                env={},
                start_new_session=True,
            )
        self._control = ours
        self._cgroup = Cgroup.around(started.pid, self.here)
        return started

    def _dismiss_supervisor(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._supervisor is not None:
            self._supervisor.wait()
            self._supervisor = None
        if self._cgroup is not None:
            self._cgroup.kill(self.grace)
            self._cgroup.remove()
            self._cgroup = None


class Process:
    """One child: stands until `go`, then runs until `seen` says that it exited."""

    def __init__(self, processes: Processes, name: str, line: socket.socket, out: int, err: int) -> None:
        self.name = name
        self._processes = processes
        self._line = line
        self._buffer = b""
        self._captures = {out: Capture(OUTPUT_BYTES), err: Capture(OUTPUT_BYTES)}
        self._out, self._err = self._captures.values()
        self._poll = select.poll()
        for descriptor in (line.fileno(), out, err):
            os.set_blocking(descriptor, False)
            self._poll.register(descriptor, select.POLLIN)
        self._begun = time.monotonic()
        self._unrunnable = ""
        self._stop_asked = False
        self.supervisor: Supervisor | None = None
        self.on_output: Callable[[str, bytes], None] | None = None
        """Told of output as it comes: `out` or `err`, and bytes."""
        self._reader: tuple[int, Callable[[], bool]] | None = None
        self.identity = Identity("", "", "", 0, "")
        self.ending: Ending | None = None

    def await_ready(self) -> None:
        """Wait until the copy says who it is, or why it cannot start."""
        deadline = time.monotonic() + HANDSHAKE_SECONDS
        refused = ""
        while True:
            try:
                said = self._hear(max(0.0, deadline - time.monotonic()))
            except _SupervisorLost:
                self.close()
                self._processes.lost(self.supervisor)
                raise ChildStartFailed("the supervisor ended before the child could start; try again") from None
            if said and said[0] == "ready":
                pid, start = said[1].split()
                self.identity = Identity(self._processes.here.hostname, machine_id(), boot_id(), int(pid), start)
                return
            if said and said[0] == "refused":
                refused = said[1]
            if refused or (said is None and time.monotonic() >= deadline):
                self.dismiss()
                raise ChildStartFailed(refused or f"the child did not stand ready within {HANDSHAKE_SECONDS:g} s")

    def go(self) -> None:
        """Let it become the work. Its start must be durable by now."""
        self._begun = time.monotonic()
        with suppress(BrokenPipeError):
            self._line.send(standby.GO)
        faults.point("process.going")

    def dismiss(self) -> None:
        """Let it end unrun, or end it if it runs; see it gone."""
        with suppress(OSError):
            self._line.shutdown(socket.SHUT_WR)
        self._processes.tell("kill", self.name)
        deadline = time.monotonic() + HANDSHAKE_SECONDS
        while self.ending is None and time.monotonic() < deadline and self._line.fileno() >= 0:
            self.seen(0.2)
        self.close()

    def seen(self, within: float) -> Seen | None:
        """Take in its output for so many seconds at most, until it is seen to have ended or was asked to."""
        deadline = time.monotonic() + within
        while self.ending is None:
            try:
                said = self._hear(max(0.0, deadline - time.monotonic()))
            except _SupervisorLost:
                self._end_alone()
                break
            if said is None:
                if time.monotonic() >= deadline:
                    return None
            elif said[0] == "unrunnable":
                self._unrunnable = said[1]
            elif said[0] == "stopping" and not self._stop_asked:
                self._stop_asked = True
                return "stop_asked"
            elif said[0] == "ended":
                status, strays, unsure = map(int, said[1].split())
                self._end(os.waitstatus_to_exitcode(status), strays, unsure)
        return "start_failed" if self._unrunnable else "exited"

    def listen(self, descriptor: int, take: Callable[[], bool]) -> None:
        """While it runs, call `take` whenever there is something to read, until it says that was the end."""
        self._reader = (descriptor, take)
        self._poll.register(descriptor, select.POLLIN)

    def terminate(self) -> None:
        """Ask all of it to end; may be called from any thread."""
        self._processes.tell("terminate", self.name)

    def kill(self) -> None:
        self._processes.tell("kill", self.name)

    def micros(self) -> int:
        """How long it has been running."""
        return int((time.monotonic() - self._begun) * 1_000_000)

    def close(self) -> None:
        self._line.close()
        for descriptor in self._captures:
            os.close(descriptor)
        self._captures = {}

    def _hear(self, within: float) -> tuple[str, str] | None:
        """The next word about the child and what follows it; output that comes first is taken in."""
        if b"\n" in self._buffer:
            line, _, self._buffer = self._buffer.partition(b"\n")
            word, _, rest = line.decode("utf-8", "replace").partition(" ")
            return word, rest
        for descriptor, _ in self._poll.poll(within * 1000):
            if descriptor in self._captures:
                self._take(descriptor)
            elif self._reader is not None and descriptor == self._reader[0]:
                if not self._reader[1]():
                    self._poll.unregister(descriptor)
                    self._reader = None
            else:
                try:
                    data = self._line.recv(_READ)
                except OSError:
                    data = b""
                if not data:
                    raise _SupervisorLost
                self._buffer += data
        return self._hear(0) if b"\n" in self._buffer else None

    def _take(self, descriptor: int) -> int:
        try:
            data = os.read(descriptor, _READ)
        except BlockingIOError:
            return 0
        if data:
            self._captures[descriptor].take(data)
            if self.on_output is not None:
                self.on_output("out" if self._captures[descriptor] is self._out else "err", data)
        else:
            self._poll.unregister(descriptor)
            os.close(descriptor)
            del self._captures[descriptor]
        return len(data)

    def _end_alone(self) -> None:
        """No supervisor is left to end the tree: do it by the evidence, and say what could not be ended."""
        self._processes.lost(self.supervisor)
        survivors = tree.end(self.name, self.identity, self._processes.grace) if self.identity.pid else []
        self._end(-9, 0, 0, survivors)

    def _end(self, exit_status: int, strays: int, unsure: int, survivors: Sequence[int] = ()) -> None:
        for descriptor in list(self._captures):
            # Whoever still has the pipe must not keep us: what it held at the end is all that counts.
            drained = 0
            while drained < _DRAIN and descriptor in self._captures and (taken := self._take(descriptor)):
                drained += taken
        if self._reader is not None:
            # What it said before its end counts; a pipe that somebody still has must not keep us.
            for _ in range(_DRAIN // _READ):
                if not select.select([self._reader[0]], [], [], 0)[0] or not self._reader[1]():
                    break
        seconds = time.monotonic() - self._begun
        self.ending = Ending(
            *(exit_status, self._out, self._err, seconds),
            *(strays, unsure, survivors, self._unrunnable),
        )
        self.close()


class _SupervisorLost(Exception):
    """The line ended without a word about the child's end."""
