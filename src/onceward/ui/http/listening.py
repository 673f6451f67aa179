"""Where the server listens, under which names it is known, and how long it waits for whoever has called (G23)."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

import h11
import msgspec
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from onceward.core.limits import HTTP_BODY_SECONDS, HTTP_HEAD_SECONDS
from onceward.errors import InvalidConfig, Recovery

_THREADS: Final = 40
_LATE: Final = b"HTTP/1.1 408 Request Timeout\r\nContent-Type: text/plain\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class ListenAddress(msgspec.Struct, frozen=True):
    """Where to listen, and how."""

    host: str = "127.0.0.1"
    port: int = 7423
    names: tuple[str, ...] = ()
    """Other names it is known under."""
    certificate: str = ""
    key: str = ""
    open_wide: bool = False
    """Whether somebody means it: reachable from elsewhere, and readable on the way."""

    @property
    def loopback(self) -> bool:
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def scheme(self) -> str:
        return "https" if self.certificate else "http"

    def check(self) -> None:
        if bool(self.certificate) != bool(self.key):
            raise InvalidConfig("TLS needs both --tls-cert and --tls-key", context={"field": "tls"})
        if not self.loopback and not self.certificate and not self.open_wide:
            raise InvalidConfig(
                f"{self.host} can be reached from other machines, and without TLS others can read the traffic",
                context={"field": "host", "host": self.host},
                recovery=[
                    Recovery("listen on this machine only", "onceward serve"),
                    Recovery("or use TLS", "--tls-cert FILE --tls-key FILE"),
                    Recovery("or allow it", "--without-tls", "high"),
                ],
            )

    def known_as(self, port: int) -> list[str]:
        """Every name with its port, as a browser says it."""
        own = {_written(self.host), *self.names}
        names = own | ({"localhost", "127.0.0.1", "[::1]"} if self.loopback else set())
        plain = {"https": 443, "http": 80}[self.scheme]
        return sorted({f"{name}:{port}" for name in names} | (names if port == plain else set()))

    def url(self, port: int) -> str:
        return f"{self.scheme}://{self.names[0] if self.names else _written(self.host)}:{port}"


class Server(uvicorn.Server):
    """Ends when it is told to, and leaves the rest of us time to end as well."""

    ending: Callable[[], None] = staticmethod(lambda: None)
    """Called when it is to end, before anybody is waited for."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        with ThreadPoolExecutor(1, "ending") as own:
            await asyncio.get_running_loop().run_in_executor(own, self.ending)
        await super().shutdown(sockets)
        # What was asked and not yet begun is not begun any more.
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # Some who ask wait for a kernel elsewhere: they must not keep others waiting.
        self._pool = ThreadPoolExecutor(_THREADS, "answer")
        asyncio.get_running_loop().set_default_executor(self._pool)
        await super().startup(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {
            number: signal.signal(number, self._told) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _told(self, number: int, frame: Any) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True


class Waiting(H11Protocol):
    """Whoever calls says in time what they want, or hangs up, or is hung up on."""

    _late: asyncio.TimerHandle | None = None
    _room: Callable[[], None] | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        app = self.app

        async def with_line(scope: Any, receive: Any, send: Any) -> None:
            # What very many listen to goes straight into their lines.
            scope["onceward.line"] = self
            await app(scope, receive, send)

        self.app = with_line
        self._wait()

    def take(self, room: Callable[[], None]) -> Any:
        """The line itself, for who fills it; they are told whenever all that was in it is gone."""
        self.transport.set_write_buffer_limits(high=0)
        self._room = room
        return self.transport

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._room is not None:
            self._room()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._heard()
        elif self._late is None:
            self._wait()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing() and self.conn.their_state is h11.SEND_BODY:
            # They have their answer, and what they still may send is not waited for for ever.
            self.loop.call_later(HTTP_BODY_SECONDS, self._close_unread, self.cycle)
        if (
            not self.transport.is_closing()
            and self.conn.their_state is h11.IDLE
            and self.conn.trailing_data[0]
        ):
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._heard()
        self._room = None
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._heard()
        self._late = self.loop.call_later(HTTP_HEAD_SECONDS, self._hang_up)

    def _heard(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _close_unread(self, cycle: Any) -> None:
        if self.cycle is cycle and self.conn.their_state is h11.SEND_BODY:
            self.transport.close()

    def _hang_up(self) -> None:
        if not self.transport.is_closing() and self.conn.their_state is h11.IDLE:
            self.transport.write(_LATE)
            self.transport.close()


def listening(place: ListenAddress) -> socket.socket:
    family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
    # Said to be TCP, so that asyncio lets no answer wait for an acknowledgement.
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((place.host, place.port))
        found.listen(1024)
    except OSError as error:
        found.close()
        raise InvalidConfig(
            f"cannot listen on {place.host}:{place.port}: {error.strerror}",
            context={"field": "port", "port": place.port},
            recovery=[Recovery("let the system choose a port", "onceward serve --port 0")],
        ) from error
    return found


class _Worth(logging.Filter):
    """What an operator is told: our own errors, and not what others send or that we end."""

    def filter(self, record: logging.LogRecord) -> bool:
        kind = record.exc_info[0] if record.exc_info else None
        ended = kind is not None and issubclass(kind, asyncio.CancelledError)
        return record.levelno >= logging.ERROR and not ended


def server(app: Any, place: ListenAddress) -> Server:
    for name in ("uvicorn.error", "asyncio"):
        logging.getLogger(name).addFilter(_Worth())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = min(hard, 8192) if hard != resource.RLIM_INFINITY else 8192
    if soft < most:
        # Every reader of events is an open file.
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        lifespan="off",
        timeout_keep_alive=15,
        timeout_graceful_shutdown=5,
        h11_max_incomplete_event_size=32 * 1024,
        limit_concurrency=4096,
        ws="none",
        loop="asyncio",
        http=Waiting,
        ssl_certfile=place.certificate or None,
        ssl_keyfile=place.key or None,
    )
    try:
        config.load()
    except (OSError, ValueError) as error:
        raise InvalidConfig(
            f"the certificate or its key cannot be used: {error}", context={"field": "tls"}
        ) from None
    return Server(config)


def _written(host: str) -> str:
    return f"[{host}]" if ":" in host else host
