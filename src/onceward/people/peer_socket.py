"""A socket for other processes of the same user, none of which stands inside a running child:
for what must not lie in a file that children can read (K-14)."""

from __future__ import annotations

import os
import socket
import struct
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from onceward.errors import PermissionDenied
from onceward.locks.identity import start_of

_SECONDS: Final = 10.0
_LONGEST: Final = 4 * 1024 * 1024
_PEER: Final = struct.Struct("3i")
_AGAIN_SECONDS: Final = 0.2

Handler = Callable[[int, bytes], Mapping[str, Any]]
"""Answers what a process asks, by its pid; raises PERMISSION_DENIED for what it may not."""


class PeerSocket:
    """Answers one line with one line, each asker on a thread of its own."""

    def __init__(self, inside: Callable[[int], str], handler: Handler) -> None:
        """`inside` answers which running child a process is in, or an empty text."""
        self._inside, self._handler = inside, handler
        self._folder = Path(tempfile.mkdtemp(prefix="onceward-"))
        self.place = self._folder / "socket"
        self._line = socket.socket(socket.AF_UNIX)
        self._line.bind(str(self.place))
        self.place.chmod(0o600)
        if hasattr(socket, "SO_PASSCRED"):
            # Every message then comes with the process that sent it, not only with the one that
            # connected.
            self._line.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._line.listen(16)
        self._line.settimeout(_AGAIN_SECONDS)

    def serve(self, stop: threading.Event) -> None:
        """Answer until stopped; then nothing of it is left."""
        try:
            while not stop.is_set():
                try:
                    line, _ = self._line.accept()
                except TimeoutError:
                    continue
                threading.Thread(target=self._answer, args=(line,), daemon=True).start()
        finally:
            self.close()

    def close(self) -> None:
        self._line.close()
        with suppress(OSError):
            self.place.unlink()
        with suppress(OSError):
            self._folder.rmdir()

    def _answer(self, line: socket.socket) -> None:
        with line, suppress(OSError):
            line.settimeout(_SECONDS)
            try:
                pid, uid = _peer(line)
                if uid != os.getuid():
                    raise PermissionDenied(f"process {pid} is another user's")
                asked, senders = _asked(line)
                # One that connects and goes, so that another goes on in its name, is not believed.
                if senders - {pid} or not start_of(pid):
                    raise PermissionDenied("whoever asks is not who connected")
                child = self._inside(pid)
                if child:
                    raise PermissionDenied(
                        f"process {pid} is in the child {child}, which acts for nobody: do this in a terminal outside of the build"
                    )
                said = self._handler(pid, asked)
            except PermissionDenied as error:
                said = {"refused": error.message}
            except (msgspec.MsgspecError, ValueError):
                said = {"refused": "this is no request"}
            line.sendall(msgspec.json.encode(said) + b"\n")


def ask(place: str, asked: Mapping[str, str]) -> Any:
    """The answer of the listener; PERMISSION_DENIED where it refuses, OSError where there is
    none."""
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(_SECONDS)
        line.connect(place)
        if _peer(line)[1] != os.getuid():
            raise PermissionDenied("whoever listens there is another user")
        line.sendall(msgspec.json.encode(asked) + b"\n")
        said = msgspec.json.decode(_line_of(line))
    if isinstance(said, dict) and "refused" in said:
        raise PermissionDenied(str(said["refused"]))
    return said


def _peer(line: socket.socket) -> tuple[int, int]:
    """The process and the user at the other end. Where the system does not tell, the mode of the
    folder is all that keeps others away."""
    if not hasattr(socket, "SO_PEERCRED"):
        return os.getpid(), os.getuid()
    packed = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    pid, uid, _ = _PEER.unpack(packed)
    return pid, uid


def _asked(line: socket.socket) -> tuple[bytes, set[int]]:
    """One line, and the processes that sent it."""
    if not hasattr(socket, "SCM_CREDENTIALS"):
        return _line_of(line), set()
    data, senders = b"", set[int]()
    while not data.endswith(b"\n"):
        piece, extra, _, _ = line.recvmsg(1 << 16, socket.CMSG_SPACE(_PEER.size))
        senders |= {_PEER.unpack(content[: _PEER.size])[0] for _, _, content in extra}
        if not piece or len(data) > _LONGEST:
            break
        data += piece
    # Bytes that nobody can be named for are nobody's.
    return data, senders or {0}


def _line_of(line: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\n"):
        piece = line.recv(1 << 16)
        if not piece or len(data) > _LONGEST:
            break
        data += piece
    return data
