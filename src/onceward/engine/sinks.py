"""Where events go: the console, a file, a webhook (K-6)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import sys
from pathlib import Path
from typing import BinaryIO, Protocol, TextIO
from urllib.parse import urlsplit

import msgspec

from onceward.errors import InvalidConfig, NetworkError, StorageError
from onceward.kernel.canon import canonical
from onceward.kernel.limits import WEBHOOK_TIMEOUT_SECONDS
from onceward.kernel.sources import Sources, iso
from onceward.store.tables.outbox import Parcel


class Sink(Protocol):
    """Accepts events; a parcel counts as delivered once `settle` after it has returned."""

    name: str

    def send(self, parcel: Parcel) -> None: ...

    def settle(self) -> None: ...


class Notice(Sink, Protocol):
    """A sink that a person waits for: it is served once more before the kernel goes."""

    until: float
    """When it must be done, on the steady clock."""


def envelope(parcel: Parcel) -> bytes:
    """The event and the key by which a consumer drops repeats, as one canonical line."""
    return b'{"dedupe_key":"%b","event":%b}' % (
        parcel.dedupe_key.hex().encode(),
        parcel.event.line(),
    )


class ConsoleSink:
    """Prints `[OUTBOX] {json}`."""

    def __init__(self, name: str, out: TextIO | None = None) -> None:
        self.name = name
        self._out = out or sys.stdout

    def send(self, parcel: Parcel) -> None:
        self._out.write(f"[OUTBOX] {envelope(parcel).decode()}\n")

    def settle(self) -> None:
        self._out.flush()


class FileSink:
    """Appends one line an event, synced before the event counts as delivered."""

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
        self._url = urlsplit(url)
        self._secret = secret
        self._origin = f"/onceward/{workspace_id}"
        self._sources = sources

    def send(self, parcel: Parcel) -> None:
        import http.client

        if self._secret is None:
            raise InvalidConfig("the environment variable that secret_env names is not set")
        body = self.body(parcel)
        kind = (
            http.client.HTTPSConnection
            if self._url.scheme == "https"
            else http.client.HTTPConnection
        )
        connection = kind(self._url.hostname or "", self._url.port, timeout=self.timeout())
        try:
            path = (self._url.path or "/") + (f"?{self._url.query}" if self._url.query else "")
            connection.request("POST", path, body, self._headers(parcel, body))
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException) as error:
            raise NetworkError(f"the webhook cannot be reached: {error}") from error
        finally:
            connection.close()
        if not 200 <= status < 300:
            raise NetworkError(f"the webhook answered {status}")

    def timeout(self) -> float:
        return WEBHOOK_TIMEOUT_SECONDS

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
            digest = hmac.new(self._secret.encode(), signed, hashlib.sha256).digest()
            headers |= {
                "webhook-id": message_id,
                "webhook-timestamp": timestamp,
                "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
            }
        return headers
