"""What a kernel, its supervisor and the forked copies say to each other, and how a copy becomes the
work.

Imported by the supervisor without the package around it, so: standard library only, and of that
what is written in C.

An order is a length, words with a NUL behind each, and descriptors sent along:

    stand NAME KEEP CWD ARGC ARG... ENV=...  with: line, output, error, what is inherited (the last
    KEEP are its locks) terminate NAME kill NAME

On the line come `ready PID START`, `refused WHY`, `unrunnable WHY`, `stopping` and
`ended STATUS STRAYS UNSURE`.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import ctypes
import fcntl
import os
import resource
import sys

GO = b"g"
SUBREAPER = 36
SIGNALS = (_signal.SIGCHLD, _signal.SIGTERM, _signal.SIGINT, _signal.SIGHUP)
"""Signals that the supervisor handles, and that a copy must not inherit as blocked."""
_PDEATHSIG = 1
_HEADER = 5
_MAX_FDS = 16
_NOW = _socket.MSG_DONTWAIT
_CLOEXEC = getattr(_socket, "MSG_CMSG_CLOEXEC", 0)
_LIMIT = resource.getrlimit(resource.RLIMIT_NOFILE)
"""How many descriptors a child may have open: as many as its kernel may, whatever we allow
ourselves."""
_prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


def prctl(option: int, value: int) -> None:
    if _prctl is not None:
        _prctl(option, value, 0, 0, 0)


def stand_by(orders: int, parent: int) -> None:
    """In the forked copy: do all that needs no order, then wait for one. Never returns."""
    try:
        # Our own descriptors only: those of other children are none of this one's business.
        _close_above(2, orders)
        os.write(orders, b"c")
        os.setsid()
        prctl(_PDEATHSIG, _signal.SIGKILL)
        if os.getppid() != parent:
            return
        _signal.set_wakeup_fd(-1)
        resource.setrlimit(resource.RLIMIT_NOFILE, _LIMIT)
        for number in (*SIGNALS, _signal.SIGPIPE, _signal.SIGXFSZ):
            _signal.signal(number, _signal.SIG_DFL)
        _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
        start = stat_of(os.getpid())[19].decode()
        received = receive(orders)
        if received is not None and received[1]:
            become(*received, start)
    finally:
        os._exit(127)


def become(body: bytes, descriptors: list[int], complete: bool, start: str) -> None:
    """Get ready, say who we are, wait for the go byte, become the work; returns only where that
    cannot be."""
    line = descriptors[0]
    try:
        if not complete:
            raise OSError(24, "no room for its descriptors")
        _, _, _, cwd, argc, *words = body.split(b"\0")[:-1]
        argv = words[: int(argc)]
        env = dict(word.split(b"=", 1) for word in words[int(argc) :])
        line = _arrange(descriptors)
        os.chdir(cwd)
        program = _find(argv[0], env.get(b"PATH", os.defpath.encode()))
        env[b"ONCEWARD_LEADER"] = str(os.getpid()).encode()
        tell(line, f"ready {os.getpid()} {start}")
        if os.read(line, 1) != GO:
            return
        try:
            os.execve(program, argv, env)  # noqa: S606
        except OSError as error:
            hint = " (does it lack a first line such as #!/bin/sh?)" if error.errno == 8 else ""
            tell(line, f"unrunnable cannot run {os.fsdecode(argv[0])}: {error.strerror}{hint}")
    except OSError as error:
        where = f" {os.fsdecode(error.filename)}" if error.filename else ""
        tell(line, f"refused cannot start{where}: {error.strerror}")
    except Exception as error:
        tell(line, f"refused cannot start: {error!r}")


def _arrange(descriptors: list[int]) -> int:
    """Standard input from nowhere, output and error where told, the rest from 3 up; all others
    closed."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    line, *rest = descriptors
    placed = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 100) for descriptor in (nothing, *rest, line)]
    for number, descriptor in enumerate(placed):
        os.dup2(descriptor, number)
    line = len(placed) - 1
    os.set_inheritable(line, False)
    _close_above(line)
    return line


def _close_above(last: int, *kept: int) -> None:
    for name in os.listdir("/dev/fd"):  # noqa: PTH208
        if int(name) > last and int(name) not in kept:
            try:
                os.close(int(name))
            except OSError:
                pass


def _find(program: bytes, path: bytes) -> bytes:
    """The file to run, refused before anything is recorded as started."""
    places = (
        [program]
        if b"/" in program
        else [(folder or b".") + b"/" + program for folder in path.split(b":")]
    )
    for place in places:
        if os.path.isfile(place) and os.access(place, os.X_OK):  # noqa: PTH113
            return place
    if any(os.path.exists(place) for place in places):  # noqa: PTH110
        raise PermissionError(13, "it is not a program that may be run", program)
    raise FileNotFoundError(2, "there is no such program", program)


def tell(line: int, words: str) -> None:
    """One line to the kernel; one that no longer listens needs no answer."""
    end = _socket.socket(fileno=line)
    try:
        end.send(words.replace("\n", " ").encode("utf-8", "replace") + b"\n", _NOW)
    except OSError:
        pass
    finally:
        end.detach()


def send(control: int, body: bytes, descriptors: list[int]) -> bool:
    """One order and the descriptors that go with it; False if nobody takes it."""
    line = _socket.socket(fileno=control)
    rights = b"".join(descriptor.to_bytes(4, sys.byteorder) for descriptor in descriptors)
    try:
        line.sendmsg(
            [len(body).to_bytes(4, "big") + len(descriptors).to_bytes(1, "big")],
            [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)] if rights else [],
        )
        line.sendall(body)
    except OSError:
        return False
    finally:
        line.detach()
    return True


def receive(control: int) -> tuple[bytes, list[int], bool] | None:
    """One order, the descriptors that came with it and whether that is all of them; None at the
    end."""
    line = _socket.socket(fileno=control)
    rights, got, wanted = b"", b"", _HEADER
    try:
        while len(got) < wanted:
            part, extra, _, _ = line.recvmsg(
                wanted - len(got), _socket.CMSG_LEN(_MAX_FDS * 4), _CLOEXEC
            )
            if not part:
                return None
            rights += b"".join(content for _, _, content in extra)
            got += part
            if len(got) == _HEADER:
                wanted += int.from_bytes(got[:4], "big")
    finally:
        line.detach()
    descriptors = [
        int.from_bytes(rights[n : n + 4], sys.byteorder) for n in range(0, len(rights) // 4 * 4, 4)
    ]
    return got[_HEADER:], descriptors, len(descriptors) == got[4]


def stat_of(pid: int) -> list[bytes]:
    try:
        return read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    except OSError:
        return []


def read(file: str) -> bytes:
    with open(file, "rb", buffering=0) as opened:  # noqa: PTH123
        return opened.read()
