"""One subprocess child, from its handshake to the end of its whole tree."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import msgspec

from onceward.core import faults
from onceward.core.limits import HANDSHAKE_SECONDS, OUTPUT_BYTES
from onceward.errors import ChildStartFailed
from onceward.locks.identity import Identity, boot_id, machine_id
from onceward.locks.watch import Seen
from onceward.processes import standby, tree
from onceward.processes.capture import Capture

Supervisor = subprocess.Popen[bytes]
_READ = 1 << 16
_DRAIN = 1 << 21


class ProcessStarter(Protocol):
    """The interface that a process needs of its launcher."""

    grace: float
    here: Identity

    def tell(self, op: str, name: str) -> None: ...

    def lost(self, supervisor: Supervisor | None) -> None: ...


class ProcessEnd(msgspec.Struct, frozen=True):
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
    survivors: tree.Remains = tree.Remains()
    """Processes that could not be ended or proven gone: the target must stay held."""
    unrunnable: str = ""
    """Why the program could not be executed after all."""


class Process:
    """One child: stands until `go`, then runs until `seen` says that it exited."""

    def __init__(
        self,
        host: ProcessStarter,
        name: str,
        line: socket.socket,
        out: int,
        err: int,
        witness: Path | None = None,
    ) -> None:
        self.name, self.witness = name, witness
        self._host = host
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
        self._closed = False
        self.supervisor: Supervisor | None = None
        self.on_output: Callable[[str, bytes], None] | None = None
        """Called with output as it comes: `out` or `err`, and bytes."""
        self._reader: tuple[int, Callable[[], bool]] | None = None
        self.identity = Identity(hostname="", machine_id="", boot_id="", pid=0, process_start="")
        self.ending: ProcessEnd | None = None

    def await_ready(self) -> None:
        """Wait until the copy says who it is, or why it cannot start."""
        deadline = time.monotonic() + HANDSHAKE_SECONDS
        while True:
            try:
                said = self._hear(max(0.0, deadline - time.monotonic()))
            except _SupervisorLost:
                self.close()
                self._host.lost(self.supervisor)
                raise ChildStartFailed(
                    "the child was lost before it could start; try again"
                ) from None
            if said and said[0] == "ready":
                pid, start = said[1].split()
                self.identity = Identity(
                    hostname=self._host.here.hostname,
                    machine_id=machine_id(),
                    boot_id=boot_id(),
                    pid=int(pid),
                    process_start=start,
                )
                return
            late = said is None and time.monotonic() >= deadline
            if late:
                self.dismiss()
                raise ChildStartFailed(
                    f"the child did not stand ready within {HANDSHAKE_SECONDS:g} s"
                )
            if said and said[0] in ("refused", "ended"):
                # It ends by itself, unrun; its supervisor and its siblings are well.
                self.close()
                raise ChildStartFailed(
                    said[1] if said[0] == "refused" else "the child ended before it could start"
                )

    def go(self) -> None:
        """Let it become the work. Its start must be durable by now."""
        self._begun = time.monotonic()
        with suppress(BrokenPipeError):
            self._line.send(standby.GO)
        faults.point("process.going")

    def dismiss(self) -> bool:
        """Let it end unrun, or end it if it runs; whether it was seen gone."""
        with suppress(OSError):
            self._line.shutdown(socket.SHUT_WR)
        self._host.tell("kill", self.name)
        deadline = time.monotonic() + HANDSHAKE_SECONDS
        while self.ending is None and not self._closed and time.monotonic() < deadline:
            self.seen(0.2)
        self.close()
        return self.ending is not None and not self.ending.survivors

    def seen(self, within: float) -> Seen | None:
        """Take in its output for so many seconds at most, until it is seen to have ended or was
        asked to."""
        deadline = time.monotonic() + within
        while self.ending is None:
            if self._closed:
                raise ChildStartFailed(f"{self.name} was let go; nobody watches it any more")
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
                # The supervisor cannot say whose the unsure ones are; the witness can.
                left = tree.end(self._tree(), self._host.grace) if unsure else tree.Remains()
                self._end(os.waitstatus_to_exitcode(status), strays, unsure, left)
        if not self._all_gone(deadline):
            return None
        return "start_failed" if self._unrunnable else "exited"

    def _all_gone(self, deadline: float) -> bool:
        """Survivors of a lost supervisor keep it from counting as ended, for as long as they
        live."""
        assert self.ending is not None
        while self.ending.survivors:
            left = tree.end(self._tree(), max(0.0, min(0.2, deadline - time.monotonic())))
            self.ending = msgspec.structs.replace(self.ending, survivors=left)
            if left and time.monotonic() >= deadline:
                return False
        return True

    def listen(self, descriptor: int, take: Callable[[], bool]) -> None:
        """While it runs, call `take` whenever there is something to read, until it says that was
        the end."""
        self._reader = (descriptor, take)
        self._poll.register(descriptor, select.POLLIN)

    def terminate(self) -> None:
        """Ask all of it to end; may be called from any thread."""
        self._host.tell("terminate", self.name)

    def kill(self) -> None:
        self._host.tell("kill", self.name)

    def micros(self) -> int:
        """How long it has been running."""
        return int((time.monotonic() - self._begun) * 1_000_000)

    def close(self) -> None:
        """Stop watching; the process itself is left to its supervisor."""
        self._closed = True
        self._line.close()
        for descriptor in self._captures:
            os.close(descriptor)
        self._captures = {}

    def _hear(self, within: float) -> tuple[str, str] | None:
        """The next word about the child and what follows it; output that comes first is taken
        in."""
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
        """No supervisor is left to end the tree: do it by the evidence, and say what could not
        be ended."""
        self._host.lost(self.supervisor)
        survivors = (
            tree.end(self._tree(), self._host.grace) if self.identity.pid else tree.Remains()
        )
        self._end(-9, 0, 0, survivors)

    def _tree(self) -> tree.ProcessTree:
        witnesses = () if self.witness is None else (self.witness,)
        return tree.ProcessTree(self.name, leader=self.identity, witnesses=witnesses)

    def _end(
        self,
        exit_status: int,
        strays: int,
        unsure: int,
        survivors: tree.Remains,
    ) -> None:
        for descriptor in list(self._captures):
            # Whoever still has the pipe must not keep us: what it held at the end is all that
            # counts.
            drained = 0
            while (
                drained < _DRAIN
                and descriptor in self._captures
                and (taken := self._take(descriptor))
            ):
                drained += taken
        if self._reader is not None:
            # What it said before its end counts; a pipe that somebody still has must not keep us.
            waiting = select.poll()
            waiting.register(self._reader[0], select.POLLIN)
            for _ in range(_DRAIN // _READ):
                if not waiting.poll(0) or not self._reader[1]():
                    break
        seconds = time.monotonic() - self._begun
        self.ending = ProcessEnd(
            exit=exit_status,
            out=self._out,
            err=self._err,
            seconds=seconds,
            strays=strays,
            unsure=unsure,
            survivors=survivors,
            unrunnable=self._unrunnable,
        )
        self.close()


class _SupervisorLost(Exception):
    """The line ended without a word about the child's end."""
