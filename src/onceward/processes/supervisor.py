"""The small warm process that starts, watches and ends every subprocess child of one kernel (DESIGN
§4).

Run by path with `python -I -S`: nothing of Onceward is imported, and of the standard library only
what is written in C, for every page of this process is paid for again at each fork. It keeps a
forked copy of itself in reserve; given an order, the copy makes itself ready, says who it is and
waits for the go byte, so no work begins before its start is durable. As a subreaper the supervisor
inherits whatever a child leaves behind, and ends it. When the kernel goes, by whatever way, it ends
everything.

    supervisor.py CONTROL_FD KERNEL_PID GRACE_SECONDS
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import gc
import os
import resource
import select
import sys
import time

# Isolated as it runs, it finds its other half only if told where: beside it.
sys.path.append(os.path.dirname(__file__))  # noqa: PTH120
from standby import SIGNALS, SUBREAPER, prctl, read, receive, send, stand_by, stat_of, tell  # type: ignore

MARK = "ONCEWARD_CHILD"
_LOOK_AGAIN_SECONDS = 0.01
_TRIES = 3
_TERM, _KILL = _signal.SIGTERM, _signal.SIGKILL


class Child:
    """A process we started, and what is known of its end."""

    def __init__(self, name: bytes, pid: int, line: int, kept: list[int]) -> None:
        self.name, self.pid, self.line, self.kept = name, pid, line, kept
        self.status = -1
        """How its first process ended; -1 while it runs."""
        self.signal = 0
        """The strongest signal its tree was sent: 0, TERM or KILL."""
        self.kill_at = 0.0
        self.strays = 0


class Supervisor:
    def __init__(self, control: int, kernel: int, grace: float) -> None:
        self.control, self.grace = control, grace
        self.children: dict[bytes, Child] = {}
        self.owners: dict[int, frozenset[bytes]] = {}
        """Whose an adopted process may be, by its pid: one name where we know, several where we
        do not."""
        self.spare = (0, -1)
        """A copy of us that waits for an order, and our end of its line; a pid of 0 where there
        is none."""
        self.clean = False
        """Whether the spare has closed what it got from us and does not need: locks above all."""
        try:
            self.kernel_pidfd = os.pidfd_open(kernel)
        except (OSError, AttributeError):
            self.kernel_pidfd = -1
        self.woken, self.wake = os.pipe()
        for descriptor in (self.woken, self.wake):
            os.set_blocking(descriptor, False)
        _signal.set_wakeup_fd(self.wake, warn_on_full_buffer=False)
        self.asked = False
        """Whether there was an order yet: before it, our kernel may still be putting us into a
        control group."""
        self.ended = False

    def run(self) -> None:
        poll = select.poll()
        for descriptor in (self.control, self.woken, self.kernel_pidfd):
            if descriptor >= 0:
                poll.register(descriptor, select.POLLIN)
        while not self.ended:
            if self.asked and not self.spare[0]:
                self._fork()
            ready = [descriptor for descriptor, _ in poll.poll(self._patience())]
            if self.woken in ready:
                self._drain()
                self._reap()
            if self.control in ready:
                self._obey()
            if self.kernel_pidfd in ready:
                self.ended = True
            self._press_on()
        self._end_all()

    def _drain(self) -> None:
        try:
            if _TERM in os.read(self.woken, 4096):
                self.ended = True
        except BlockingIOError:
            pass

    def _patience(self) -> int | None:
        """Milliseconds until something must be looked at again, if anything must."""
        over = any(child.status >= 0 for child in self.children.values())
        return int(_LOOK_AGAIN_SECONDS * 1000) if over or self._owned() else None

    def _obey(self) -> None:
        received = receive(self.control)
        if received is None:
            self.ended = True
            return
        body, descriptors, complete = received
        op, name, rest = body.split(b"\0", 2)
        if op == b"stand":
            self._stand(
                name=name,
                keep=int(rest.partition(b"\0")[0]),
                body=body,
                descriptors=descriptors,
                complete=complete,
            )
        elif name in self.children:
            child = self.children[name]
            # Asking twice is asking once: many programs take a second TERM for an order to drop
            # everything.
            if not child.signal:
                tell(child.line, "stopping")
            if op == b"kill" or not child.signal:
                self._signal(child, _KILL if op == b"kill" else _TERM)

    def _stand(
        self, name: bytes, keep: int, body: bytes, descriptors: list[int], complete: bool
    ) -> None:
        """Hand an order to a copy, which gets ready to become the work."""
        self.asked = True
        if not complete or name in self.children:
            # Its line, if it came through, ends with us: its kernel hears that, and nobody runs.
            why = "another child has its name" if complete else "too many files are open"
            if descriptors:
                tell(descriptors[0], f"refused {why}")
            for descriptor in descriptors:
                os.close(descriptor)
            return
        line, *rest = descriptors
        # A kept descriptor is the target's lock: it stays held until the whole tree is gone,
        # whoever else dies.
        kept = rest[len(rest) - keep :]
        pid, tries = 0, 0
        while not pid and tries < _TRIES and (self.spare[0] or self._fork()):
            tries += 1
            self._await_clean()
            (pid, orders), self.spare = self.spare, (0, -1)
            if not send(orders, body, descriptors):
                pid = 0
            os.close(orders)
        for descriptor in rest:
            if descriptor not in kept or not pid:
                os.close(descriptor)
        if pid:
            self.children[name] = Child(name, pid, line, kept)
        else:
            tell(line, "refused cannot fork another process")
            os.close(line)

    def _fork(self) -> bool:
        """Put a copy of us in reserve."""
        try:
            ours, theirs = (end.detach() for end in _socket.socketpair())
        except OSError:
            return False
        parent = os.getpid()
        _signal.pthread_sigmask(_signal.SIG_BLOCK, SIGNALS)
        try:
            pid = os.fork()
        except OSError:
            pid = -1
        if pid == 0:
            stand_by(theirs, parent)
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, SIGNALS)
        os.close(theirs)
        if pid > 0:
            self.spare, self.clean = (pid, ours), False
        else:
            os.close(ours)
        return pid > 0

    def _await_clean(self) -> None:
        """A copy that has just been forked still has our descriptors: wait the moment it needs
        to close them."""
        if self.spare[0] and not self.clean:
            os.read(self.spare[1], 1)
            self.clean = True

    def _reap(self) -> None:
        leaders = {child.pid: child for child in self.children.values()}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.owners.pop(pid, None)
            if pid in leaders:
                leaders[pid].status = status
            elif pid == self.spare[0]:
                os.close(self.spare[1])
                self.spare = (0, -1)

    def _press_on(self) -> None:
        """Bring children whose first process has ended to their whole end: nothing of them
        stays."""
        over = [child for child in self.children.values() if child.status >= 0]
        if not over and not self._owned():
            return
        self._attribute()
        for child in over:
            strays = self._owned(child.name)
            if strays:
                self._press(child, len(strays))
                continue
            unsure = sum(child.name in owners for owners in self.owners.values())
            for descriptor in child.kept:
                self._await_clean()
                os.close(descriptor)
            tell(child.line, f"ended {child.status} {child.strays} {unsure}")
            os.close(child.line)
            del self.children[child.name]
            # What it may have left goes to whoever else may own it; with nobody left, it is ended
            # below.
            self.owners = {pid: owners - {child.name} for pid, owners in self.owners.items()}
        for pid in self._owned():
            _kill(pid, _KILL)

    def _press(self, child: Child, strays: int) -> None:
        child.strays = max(child.strays, strays)
        child.kill_at = child.kill_at or time.monotonic() + self.grace
        if child.signal == _KILL or time.monotonic() >= child.kill_at:
            self._signal(child, _KILL)
        elif child.signal == 0:
            self._signal(child, _TERM)

    def _signal(self, child: Child, number: int) -> None:
        child.signal = number if child.signal != _KILL else _KILL
        if child.status < 0:
            # Not reaped yet, so its pid and its group are still its own.
            _kill(-child.pid, number)
        self._attribute()
        for pid in self._owned(child.name):
            _kill(pid, number)

    def _owned(self, *by: bytes) -> list[int]:
        return [pid for pid, owners in self.owners.items() if owners == {*by}]

    def _attribute(self) -> None:
        """Find the processes we adopted and say whose they are."""
        leaders = {child.pid for child in self.children.values() if child.status < 0}
        adopted = [pid for pid in own_children() if pid not in leaders and pid != self.spare[0]]
        self.owners = {
            pid: self.owners[pid] if pid in self.owners else self._owner(pid) for pid in adopted
        }

    def _owner(self, pid: int) -> frozenset[bytes]:
        marked = _mark_of(pid)
        if marked in self.children:
            return frozenset({marked})
        try:
            lineage = {os.getsid(pid), os.getpgid(pid)}
        except ProcessLookupError:
            lineage = set()
        related = frozenset(child.name for child in self.children.values() if child.pid in lineage)
        # It hid where it comes from: it lives as long as anybody who may have started it.
        return related or frozenset(self.children)

    def _end_all(self) -> None:
        """The kernel is gone: ask all to end, give them the grace time, then end them, until
        none is left."""
        deadline, asked = time.monotonic() + self.grace, set[int]()
        while True:
            self._reap()
            self._press_on()
            living = own_children()
            if not living:
                return
            number = _TERM if time.monotonic() < deadline else _KILL
            groups = [-child.pid for child in self.children.values() if child.status < 0]
            for pid in (*groups, *living):
                if number == _KILL or pid not in asked:
                    asked.add(pid)
                    _kill(pid, number)
            select.select([self.woken], [], [], _LOOK_AGAIN_SECONDS)
            self._drain()


def own_children() -> list[int]:
    """Every process whose parent we are, the adopted ones included."""
    me = os.getpid()
    try:
        return [int(pid) for pid in read(f"/proc/self/task/{me}/children").split()]
    except OSError:
        pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208
        return [pid for pid in pids if stat_of(pid)[1:2] == [str(me).encode()]]


def _mark_of(pid: int) -> bytes:
    start = f"{MARK}=".encode()
    try:
        words = read(f"/proc/{pid}/environ").split(b"\0")
    except OSError:
        return b""
    return next((word[len(start) :] for word in words if word.startswith(start)), b"")


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def main() -> None:
    prctl(SUBREAPER, 1)
    for number in (_signal.SIGINT, _signal.SIGHUP):
        _signal.signal(number, _signal.SIG_IGN)
    for number in (_signal.SIGCHLD, _TERM):
        _signal.signal(number, lambda *_: None)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    control = int(sys.argv[1])
    os.set_inheritable(control, False)
    supervisor = Supervisor(control, int(sys.argv[2]), float(sys.argv[3]))
    gc.collect()
    gc.freeze()
    supervisor.run()


if __name__ == "__main__":
    main()
