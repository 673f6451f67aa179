"""Subprocess children: started by handshake, watched, ended with all they started (C-8)."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import msgspec

from onceward.core import faults
from onceward.core.limits import STOP_GRACE_SECONDS
from onceward.errors import ChildStartFailed, InvalidConfig
from onceward.locks.identity import Identity, own_identity
from onceward.processes import standby, tree
from onceward.processes.cgroup import Cgroup
from onceward.processes.process import Process, ProcessEnd, Supervisor

__all__ = ["FIRST_INHERITED", "Process", "ProcessEnd", "ProcessOrder", "Processes", "environment"]

FIRST_INHERITED: Final = 3
"""The number under which a child finds the first descriptor it was given."""
_PLAIN = ("PATH", "LANG", "LC_ALL", "TZ", "TMPDIR")
_SUPERVISOR = str(Path(standby.__file__).with_name("supervisor.py"))
_MAX_INHERITED = 10
_DYING_SECONDS = 2.0
_SEND_TIMEOUT = struct.pack("ll", 10, 0)


class ProcessOrder(msgspec.Struct, frozen=True):
    """The program to run, and the descriptors and environment it gets."""

    name: str
    """The child's id; every process it starts is marked with it."""
    argv: Sequence[str]
    cwd: Path
    env: Mapping[str, str] = {}
    inherit: Sequence[int] = ()
    """Descriptors it gets, as 3, 4, 5 ..."""
    lock: int | None = None
    """The descriptor of its target lock: held by it, and by the supervisor until its whole tree
    is gone."""
    witness: Path | None = None
    """A file to make and lock for it: while any process has its descriptor, something of the
    child lives."""

    def check(self) -> None:
        """Refuse what cannot be said to the system, before anything is started."""
        words = (self.name, str(self.cwd), *self.argv, *self.env, *self.env.values())
        odd = any("\0" in word or not _sayable(word) for word in words)
        has_program = self.argv and self.argv[0]
        names_fit = all(key and "=" not in key for key in self.env)
        if odd or not has_program or not names_fit:
            raise InvalidConfig(
                "a command needs a program; neither it, its folder nor its environment"
                " may hold a NUL or half a letter",
                context={"field": "argv"},
            )
        if len(self.inherit) > _MAX_INHERITED:
            raise InvalidConfig(
                f"a child inherits at most {_MAX_INHERITED} descriptors",
                context={"field": "inherit"},
            )


def environment(allow: Sequence[str], given: Mapping[str, str]) -> dict[str, str]:
    """The minimal environment, what the allow-list adds of ours, and what is given."""
    names = (*_PLAIN, *allow)
    return {**{name: os.environ[name] for name in names if name in os.environ}, **given}


class Processes:
    """All subprocess children of one kernel, under one supervisor that is started when first
    needed."""

    def __init__(self, grace: float = STOP_GRACE_SECONDS, here: Identity | None = None) -> None:
        self.grace = grace
        self._mutex = threading.Lock()
        self._supervisor: Supervisor | None = None
        self._control: socket.socket | None = None
        self._cgroup: Cgroup | None = None
        self._closed = False
        self.here = here or own_identity()

    def start(self, order: ProcessOrder, commit_started: Callable[[Identity], None]) -> Process:
        """Start the work once `commit_started` has made its start durable; if that raises,
        nothing has run."""
        process = self.stand(order)
        try:
            commit_started(process.identity)
            faults.point("process.committed")
            process.go()
        except BaseException:
            process.dismiss()
            raise
        return process

    def stand(self, order: ProcessOrder) -> Process:
        """A process that is ready to become the work and waits for `go`."""
        order.check()
        # Only the child's own processes may have the witness, so ours is closed once it is sent.
        with ExitStack() as undo, ExitStack() as handed_over:
            try:
                ours, theirs = (undo.enter_context(end) for end in socket.socketpair())
                pipes = [_pipe(undo), _pipe(undo)]
            except OSError as error:
                raise ChildStartFailed(
                    f"cannot make the pipes of a child: {error.strerror}"
                ) from error
            (out, out_theirs), (err, err_theirs) = pipes
            given = [theirs.fileno(), out_theirs, err_theirs, *order.inherit]
            if order.witness is not None:
                given.append(_lock_witness(order.witness, handed_over))
            given += [] if order.lock is None else [order.lock]
            supervisor = self._send(_words(order), given)
            undo.pop_all()
        theirs.close()
        os.close(out_theirs)
        os.close(err_theirs)
        process = Process(
            host=self, name=order.name, line=ours, out=out, err=err, witness=order.witness
        )
        process.supervisor = supervisor
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
        """A child's line ended without a word: if its supervisor died, end what that watched;
        the next gets another."""
        with self._mutex:
            if supervisor is None or supervisor is not self._supervisor:
                return
            try:
                # The line can end a moment before the system tells of the death.
                supervisor.wait(_DYING_SECONDS)
            except subprocess.TimeoutExpired:
                return
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
            # Dead, or so stuck that nothing can be said to it: either way it goes.
            self._dismiss_supervisor()
            raise ChildStartFailed("the supervisor could not be reached; try again")

    def _start_supervisor(self) -> Supervisor:
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SEND_TIMEOUT)
        # Its own mark lets the next kernel find it; ours lets the kernel find it that we may
        # ourselves be a child of.
        marks = {tree.KERNEL: tree.kernel_mark(self.here)}
        marks |= {name: os.environ[name] for name in (tree.MARK,) if name in os.environ}
        try:
            with theirs:
                started = subprocess.Popen(
                    [
                        sys.executable,
                        "-I",
                        "-S",
                        _SUPERVISOR,
                        str(theirs.fileno()),
                        str(os.getpid()),
                        str(self.grace),
                    ],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=None if os.environ.get("ONCEWARD_TRACEBACK") else subprocess.DEVNULL,
                    cwd="/",
                    env=marks,
                    start_new_session=True,
                )
        except OSError as error:
            ours.close()
            raise ChildStartFailed(f"cannot start the supervisor: {error.strerror}") from error
        self._control = ours
        self._cgroup = Cgroup.around(started.pid, self.here)
        return started

    def _dismiss_supervisor(self) -> None:
        """Let the supervisor end everything and itself; one that cannot is killed, and its
        children with it."""
        supervisor, self._supervisor = self._supervisor, None
        cgroup, self._cgroup = self._cgroup, None
        if self._control is not None:
            self._control.close()
            self._control = None
        if supervisor is not None:
            try:
                supervisor.wait(2 * self.grace + _DYING_SECONDS)
            except subprocess.TimeoutExpired:
                supervisor.kill()
                supervisor.wait()
        if cgroup is not None:
            cgroup.kill(self.grace)
            cgroup.remove()


def _words(order: ProcessOrder) -> list[str]:
    keep = str(int(order.lock is not None))
    env = {**order.env, tree.MARK: order.name}
    return [
        "stand",
        order.name,
        keep,
        str(order.cwd),
        str(len(order.argv)),
        *order.argv,
        *(f"{key}={value}" for key, value in env.items()),
    ]


def _lock_witness(path: Path, undo: ExitStack) -> int:
    """Make a child's witness and lock it; the lock lives in the descriptor, whoever has a copy."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # A leftover of the same name is another file: nobody's lock on it may count for this child.
        path.unlink(missing_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(path, flags, 0o600)
        undo.callback(os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise ChildStartFailed(f"cannot make {path}: {error.strerror}") from error
    return descriptor


def _pipe(undo: ExitStack) -> tuple[int, int]:
    reader, writer = os.pipe()
    undo.callback(os.close, reader)
    undo.callback(os.close, writer)
    return reader, writer


def _sayable(word: str) -> bool:
    try:
        os.fsencode(word)
    except UnicodeEncodeError:
        return False
    return True
