"""Where events go: the console, a file, a webhook (K-6)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import math
import os
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Protocol, TextIO
from urllib.parse import SplitResult, urlsplit

import msgspec

from onceward.core.canon import canonical
from onceward.core.limits import FLUSH_SECONDS, WEBHOOK_TIMEOUT_SECONDS
from onceward.core.sources import Sources, iso
from onceward.errors import InvalidConfig, NetworkError, StorageError
from onceward.store.tables.outbox import Parcel

_LOOK_SECONDS = 0.02
"""How often a call in progress looks whether its time is over."""

_ABORT_SECONDS = 1.0
"""How long a call that was given up is waited for before the next one."""


class DeliveryCancelled(Exception):
    """The kernel ends now. Nobody knows what became of the event, so the next kernel offers it again."""


class Deadline:
    """The time limit of a sink that waits for others: for each call, and for all of them when the kernel leaves.

    The delivering thread asks, the leaving kernel sets: each value is written once and only makes the time shorter.
    """

    def __init__(self, seconds: float, leaving_seconds: float) -> None:
        self._seconds, self._leaving_seconds = seconds, leaving_seconds
        self._leave_at = math.inf
        self._cancelled = threading.Event()

    @property
    def over(self) -> bool:
        """Whether no further call may begin."""
        return self._cancelled.is_set() or time.monotonic() >= self._leave_at

    def leave(self) -> None:
        """The kernel leaves: a call in progress and those to come have a short time together."""
        self._leave_at = min(self._leave_at, time.monotonic() + self._leaving_seconds)

    def cancel(self) -> None:
        """End a call in progress at once and begin none."""
        self._cancelled.set()

    def passed(self, started: float) -> bool:
        """Whether a call that started then has used up its time; raises DeliveryCancelled if nobody waits for it."""
        if self._cancelled.is_set():
            raise DeliveryCancelled
        return time.monotonic() >= min(started + self._seconds, self._leave_at)


class Sink(Protocol):
    """Accepts events; a parcel counts as delivered once `settle` after it has returned."""

    name: str

    @property
    def deadline(self) -> Deadline | None:
        """None for a local sink: the kernel never leaves before it has told it everything."""

    def send(self, parcel: Parcel) -> None: ...

    def settle(self) -> None: ...


def envelope(parcel: Parcel) -> bytes:
    """The event and the key by which a consumer drops repeats, as one canonical line."""
    return b'{"dedupe_key":"%b","event":%b}' % (
        parcel.dedupe_key.hex().encode(),
        parcel.event.line(),
    )


class ConsoleSink:
    """Prints `[OUTBOX] {json}`."""

    deadline = None

    def __init__(self, name: str, out: TextIO | None = None) -> None:
        self.name = name
        self._out = out or sys.stdout

    def send(self, parcel: Parcel) -> None:
        self._out.write(f"[OUTBOX] {envelope(parcel).decode()}\n")

    def settle(self) -> None:
        self._out.flush()


class FileSink:
    """Appends one line an event, synced before the event counts as delivered."""

    deadline = None

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self._path = path
        self._lines: list[bytes] = []

    def send(self, parcel: Parcel) -> None:
        self._lines.append(envelope(parcel) + b"\n")

    def settle(self) -> None:
        lines, self._lines = self._lines, []
        if not lines:
            return
        try:
            with self._path.open("a+b") as file:
                _drop_torn_tail(file)
                file.write(b"".join(lines))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StorageError(f"cannot append to {self._path}: {error}") from error


def _drop_torn_tail(file: BinaryIO) -> None:
    """Cut an unfinished last line: its event was never settled and comes again whole."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - 65_536)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            end = start + found + 1
            break
        end = start
    file.truncate(end)
    file.seek(end)


class WebhookSink:
    """POSTs a CloudEvents 1.0 document, signed as Standard Webhooks asks."""

    content_type = "application/cloudevents+json; charset=UTF-8"

    def __init__(
        self, name: str, url: str, secret: str | None, workspace_id: str, sources: Sources
    ) -> None:
        self.name = name
        self.deadline = Deadline(WEBHOOK_TIMEOUT_SECONDS, FLUSH_SECONDS)
        self._url = urlsplit(url)
        self._call: _WebhookCall | None = None
        self._secret = secret
        self._origin = f"/onceward/{workspace_id}"
        self._sources = sources

    def send(self, parcel: Parcel) -> None:
        if self._secret is None:
            raise InvalidConfig("the environment variable that secret_env names is not set")
        if self._call is not None and not self._call.ended.wait(_ABORT_SECONDS):
            # A silent name server can keep a call that was given up: one thread waits for it, not one per event.
            raise NetworkError("the last call of the webhook was given up and has not ended yet")
        body = self.body(parcel)
        started = time.monotonic()
        self._call = _WebhookCall(self._url, body, self._headers(parcel, body))
        try:
            while not self._call.ended.wait(_LOOK_SECONDS):
                if self.deadline.passed(started):
                    seconds = time.monotonic() - started
                    raise NetworkError(f"the webhook did not answer within {seconds:.0f} s")
        finally:
            self._call.abort()
        status = self._call.outcome()
        if not 200 <= status < 300:
            raise NetworkError(f"the webhook answered {status}")

    def settle(self) -> None:
        """A 2xx answer has already settled each."""

    def body(self, parcel: Parcel) -> bytes:
        event = parcel.event
        facts = msgspec.json.decode(event.line())
        return canonical(
            {
                "specversion": "1.0",
                "id": parcel.dedupe_key.hex(),
                "source": self._origin,
                "type": f"onceward.{facts['event'].lower()}",
                "subject": event.stream,
                "time": iso(event.at),
                "datacontenttype": "application/json",
                "sequence": f"{event.seq:020d}",
                "data": facts,
            }
        )

    def _headers(self, parcel: Parcel, body: bytes) -> dict[str, str]:
        headers = {"Content-Type": self.content_type, "User-Agent": "onceward"}
        if self._secret:
            message_id = parcel.dedupe_key.hex()
            timestamp = str(self._sources.now() // 1_000_000)
            signed = f"{message_id}.{timestamp}.".encode() + body
            digest = hmac.new(signing_key(self._secret), signed, hashlib.sha256).digest()
            headers |= {
                "webhook-id": message_id,
                "webhook-timestamp": timestamp,
                "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
            }
        return headers


def signing_key(secret: str) -> bytes:
    """The key that a webhook's secret says: `whsec_` and base64, as Standard Webhooks writes it, or any text."""
    if secret.startswith("whsec_"):
        try:
            return base64.b64decode(secret.removeprefix("whsec_"), validate=True)
        except binascii.Error:
            pass
    return secret.encode()


class _WebhookCall:
    """One POST on a thread of its own, from looking up the name to the answer's last header.

    A socket's time-out counts from byte to byte, and looking up a name has none. So the thread that waits has the
    clock: it may give the call up at any moment, which closes the socket under the thread that uses it.
    """

    def __init__(self, url: SplitResult, body: bytes, headers: dict[str, str]) -> None:
        self._url, self._body, self._headers = url, body, headers
        self._status = 0
        self._error: Exception | None = None
        self._aborted = False
        self._socket: socket.socket | None = None
        self.ended = threading.Event()
        threading.Thread(target=self._run, name="webhook", daemon=True).start()

    def abort(self) -> None:
        """Give the call up. What was not sent yet is never sent: it would come after its own repetition."""
        self._aborted = True
        line = self._socket
        if line is not None:
            with suppress(OSError):
                # It wakes the thread that reads; closing is left to that thread, which would go on with a number
                # that is another file's by then.
                socket.socket.shutdown(line, socket.SHUT_RDWR)

    def outcome(self) -> int:
        """The status of the answer."""
        if self._error is not None:
            raise NetworkError(f"the webhook cannot be reached: {self._error}") from self._error
        return self._status

    def _run(self) -> None:
        try:
            self._status = self._post()
        except Exception as error:
            self._error = error
        finally:
            if self._socket is not None:
                self._socket.close()
            self.ended.set()

    def _post(self) -> int:
        import http.client

        secure = self._url.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = kind(self._url.hostname or "", self._url.port)
        connection.sock = self._connect(connection.port, secure)
        path = (self._url.path or "/") + (f"?{self._url.query}" if self._url.query else "")
        if self._aborted:
            raise OSError("given up")
        connection.request("POST", path, self._body, self._headers)
        with connection.getresponse() as response:
            return response.status

    def _connect(self, port: int, secure: bool) -> socket.socket:
        """A connection that `abort` can end from the first byte on, also in the middle of TLS's handshake."""
        host = self._url.hostname or ""
        line = self._socket = socket.create_connection((host, port), WEBHOOK_TIMEOUT_SECONDS)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if secure:
            import ssl

            context = ssl.create_default_context()
            context.set_alpn_protocols(["http/1.1"])
            secured = context.wrap_socket(line, server_hostname=host, do_handshake_on_connect=False)
            line = self._socket = secured
            if not self._aborted:
                secured.do_handshake()
        return line
