"""The server itself: where it listens, who it lets in at first, and how it ends (I-3)."""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from starlette.requests import Request
from starlette.responses import StreamingResponse

from onceward.edges.http.access import Doors, Origins
from onceward.edges.http.api import ROUTES
from onceward.edges.http.app import application
from onceward.edges.http.feed import Feed
from onceward.edges.http.routes import Call
from onceward.errors import InvalidConfig, Recovery
from onceward.kernel.canon import canonical
from onceward.serving import Service
from onceward.wiring import Workspace

NOTE = "serve.json"
"""Where whoever runs the server finds it, and the token to act as themselves; only they can read it."""


class _Server(uvicorn.Server):
    """Ends when it is told to, and leaves the rest of us time to end as well."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._told) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _told(self, number: int, frame: Any) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True


class Served:
    """One server of one workspace."""

    def __init__(self, workspace: Workspace, host: str, port: int, *, open_wide: bool = False) -> None:
        if not _loopback(host) and not open_wide:
            raise InvalidConfig(
                f"{host} can be reached from elsewhere, and what is said would be readable on the way",
                context={"field": "host", "host": host},
                recovery=[Recovery("listen here only", "onceward serve"), Recovery("mean it", "--without-tls", "high")],
            )
        self._workspace = workspace
        self._socket = _listening(host, port)
        self.port = self._socket.getsockname()[1]
        self.url = f"http://{_written(host)}:{self.port}"
        self.service = Service(workspace, self.url)
        self.doors = Doors(self.service)
        self.feed = Feed(self.service)
        names = {_written(host), "localhost", "127.0.0.1", "[::1]"} if _loopback(host) else {_written(host)}
        origins = Origins("http", [f"{name}:{self.port}" for name in sorted(names)])
        app = application(self.service, self.doors, origins, ROUTES, {"stream": self._stream})
        self._server = _Server(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                lifespan="off",
                timeout_keep_alive=15,
                timeout_graceful_shutdown=5,
                h11_max_incomplete_event_size=32 * 1024,
                ws="none",
                loop="asyncio",
                http="h11",
            )
        )

    def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Serve until told to stop."""
        self.service.start()
        note = self._workspace.folder / NOTE
        try:
            _write_note(note, {"url": self.url, "token": self.doors.local, "pid": os.getpid()})
            threading.Thread(target=self._announce, args=(ready,), daemon=True).start()
            self._server.run(sockets=[self._socket])
        finally:
            note.unlink(missing_ok=True)
            self.feed.close()
            self.service.stop()

    def _announce(self, ready: Callable[[], None]) -> None:
        pause = threading.Event()
        while not self._server.started:
            if self._server.should_exit or pause.wait(0.02):
                return
        ready()

    async def _stream(self, call: Call, request: Request) -> StreamingResponse:
        stream = call.path.get("stream")
        last = call.headers.get("last-event-id", "") or str(call.query.after)
        if not (last.isascii() and last.isdecimal() and len(last) < 19):
            raise InvalidConfig("an event's id is a number", context={"field": "Last-Event-ID"})
        return StreamingResponse(self.feed.listen(stream, int(last)), media_type="text/event-stream")


def _loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _written(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Said to be TCP, so that asyncio lets no answer wait for an acknowledgement.
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(1024)
    except OSError as error:
        found.close()
        raise InvalidConfig(
            f"cannot listen on {host}:{port}: {error.strerror}",
            context={"field": "port", "port": port},
            recovery=[Recovery("let the system choose", "onceward serve --port 0")],
        ) from error
    return found


def _write_note(path: Path, said: dict[str, Any]) -> None:
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(canonical(said))
