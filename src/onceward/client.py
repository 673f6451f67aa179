"""A client of the server, as thin as its description allows: every operation by its name, sent until it is answered.

```python
from onceward.client import Client

client = Client.here()                        # the server of this folder; or Client(url, token)
begun = client.run_build(plan="plan.py")      # the same request again is the same answer: nothing runs twice
for event in client.events(f"session:{begun['build_id']}"):
    print(event["event"])
```
"""

from __future__ import annotations

import http.client
import json
import re
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from onceward.core.sources import LiveSources
from onceward.errors import InvalidConfig, NotFound, OncewardError, Recovery, StoredError

PREFIX: Final = "/api/v1"
_AGAIN: Final = (502, 503, 504)
_PAUSE: Final = (0.05, 2.0)


class Client:
    """Speaks to one server as whoever a token belongs to. What does not arrive, or is not answered, is sent again with
    the same id, for as long as `patience` says (seconds)."""

    def __init__(
        self, url: str, token: str, *, patience: float = 30.0, context: ssl.SSLContext | None = None
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidConfig(
                f"{url[:80]!a} is not the address of a server", context={"field": "url"}
            )
        self.url, self._parts, self._token = url.rstrip("/"), parts, token
        self._patience, self._context = patience, context
        self._line: http.client.HTTPConnection | None = None
        self.principal = ""
        """Whoever it acts as, where that is known."""
        self._known: dict[str, Any] | None = None
        self._kind = ""

    @classmethod
    def here(cls, folder: Path | str | None = None, **options: Any) -> Client:
        """The server of the workspace in this folder, as whoever runs it; NOT_FOUND where none runs, PERMISSION_DENIED
        inside a child that it runs."""
        from onceward.people.peer_socket import ask
        from onceward.settings import find_workspace

        place = Path(folder) if folder is not None else find_workspace(None)
        try:
            note = json.loads((place / "serve.json").read_bytes())
            said = ask(note["socket"], {})
            url, token, principal = note["url"], said["token"], said["principal"]
        except (OSError, ValueError, KeyError, TypeError):
            raise NotFound(
                f"no server runs at {place}", recovery=[Recovery("start one", "onceward serve")]
            ) from None
        client = cls(url, token, **options)
        client.principal = principal
        return client

    @property
    def token(self) -> str:
        """What it shows to be let in."""
        return self._token

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in self.operations:
            raise AttributeError(
                f"the server has no operation {name}; there are {', '.join(sorted(self.operations))}"
            )
        return lambda *args, **words: self._operate(name, args, words)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.operations]

    @property
    def operations(self) -> Mapping[str, Any]:
        """Every operation of the server by its name here, as its description has it."""
        if self._known is None:
            said = json.loads(self._sent("GET", f"{PREFIX}/openapi.json", None))
            self._known = {
                snake(operation["operationId"]): {
                    **operation,
                    "method": method.upper(),
                    "path": path,
                }
                for path, methods in said["paths"].items()
                for method, operation in methods.items()
                if _own(operation)
            }
            self._schemas = said["components"]["schemas"]
        return self._known

    def events(self, stream: str | None = None, after: int = 0) -> Iterator[dict[str, Any]]:
        """Every event of a stream, or of all, from an id on and for ever; where the line breaks, it goes on behind the
        last one that came. Each has its `id`."""
        place = (
            f"{PREFIX}/streams/{quote(stream, safe='')}/events"
            if stream is not None
            else f"{PREFIX}/events"
        )
        deadline, pause = time.monotonic() + self._patience, _PAUSE[0]
        while True:
            line = self._connection()
            try:
                line.request("GET", place, headers={**self._headers(), "Last-Event-ID": str(after)})
                answer = line.getresponse()
                if answer.status in _AGAIN:
                    raise ConnectionError(answer.status)
                if answer.status != 200:
                    raise _problem(answer.read())
                for event in _read(answer):
                    # A beat, too, says that somebody is there.
                    deadline, pause = time.monotonic() + self._patience, _PAUSE[0]
                    if event is not None:
                        after = event["id"]
                        yield event
            except ssl.SSLCertVerificationError as error:
                raise _untrusted(error) from None
            except (OSError, http.client.HTTPException):
                if time.monotonic() > deadline:
                    raise
            finally:
                line.close()
            time.sleep(pause)
            pause = min(pause * 2, _PAUSE[1])

    def bring(self, data: bytes) -> str:
        """Hand the server a content that a change or a step is to have; answers its digest."""
        from onceward.core.canon import sha256_hex

        digest = sha256_hex(data)
        self._sent(
            "PUT", f"{PREFIX}/uploads/{digest}", data, {"Content-Type": "application/octet-stream"}
        )
        return digest

    def _operate(self, name: str, args: tuple[Any, ...], words: dict[str, Any]) -> Any:
        operation = self.operations[name]
        places = [one["name"] for one in operation["parameters"] if one["in"] == "path"]
        asked = [one["name"] for one in operation["parameters"] if one["in"] == "query"]
        schema = self._body(operation)
        said = {**dict(zip(places, args, strict=False)), **words}
        known = {*places, *asked, *schema}
        odd, missing = sorted(said.keys() - known), [place for place in places if place not in said]
        if odd or missing or len(args) > len(places):
            takes = ", ".join([*places, *asked, *schema])
            raise TypeError(
                f"{name} takes {takes or 'nothing'}" + (f", not {', '.join(odd)}" if odd else "")
            )
        path = re.sub(
            r"\{(\w+)\}", lambda found: quote(str(said[found[1]]), safe=""), operation["path"]
        )
        query = {key: said[key] for key in asked if key in said}
        path += f"?{urlencode(query)}" if query else ""
        if "requestBody" not in operation:
            data = self._sent(operation["method"], path, None)
            return json.loads(data) if self._kind == "application/json" else data
        body = {key: said[key] for key in schema if key in said}
        if "client_request_id" in schema:
            body.setdefault("client_request_id", LiveSources().new_id("req"))
        return self._answered(operation["method"], path, json.dumps(body).encode())

    def _answered(self, method: str, path: str, body: bytes) -> Any:
        """What was taken and not yet answered is asked for again: it is the same request."""
        deadline, pause = time.monotonic() + self._patience, _PAUSE[0]
        while True:
            said = json.loads(self._sent(method, path, body, {"Content-Type": "application/json"}))
            if not (
                isinstance(said, dict) and said.get("status") == "asked" and "request_id" in said
            ):
                return said
            if time.monotonic() > deadline:
                return said
            time.sleep(pause)
            pause = min(pause * 2, _PAUSE[1])

    def _body(self, operation: Mapping[str, Any]) -> list[str]:
        content = operation.get("requestBody", {}).get("content", {}).get("application/json")
        if content is None:
            return []
        schema = content["schema"]
        if "$ref" in schema:
            schema = self._schemas[schema["$ref"].rsplit("/", 1)[1]]
        return list(schema.get("properties", {}))

    def _sent(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str] | None = None
    ) -> bytes:
        """Sent until it is answered. Everything may be sent again: looks change nothing, and acts have their id."""
        deadline, pause = time.monotonic() + self._patience, _PAUSE[0]
        while True:
            try:
                if self._line is None:
                    self._line = self._connection()
                self._line.request(method, path, body, {**self._headers(), **(headers or {})})
                answer = self._line.getresponse()
                data = answer.read()
                self._kind = answer.headers.get_content_type()
                if answer.status < 300:
                    return data
                error = _problem(data) if answer.status not in _AGAIN else None
                if error is not None and not (error.retryable and time.monotonic() < deadline):
                    raise error
                if error is None and time.monotonic() > deadline:
                    raise ConnectionError(f"the server answers {answer.status}")
            except ssl.SSLCertVerificationError as error:
                self.close()
                raise _untrusted(error) from None
            except (OSError, http.client.HTTPException):
                self.close()
                if time.monotonic() > deadline:
                    raise
            time.sleep(pause)
            pause = min(pause * 2, _PAUSE[1])

    def _connection(self) -> http.client.HTTPConnection:
        host, port = str(self._parts.hostname), self._parts.port
        if self._parts.scheme == "https":
            return http.client.HTTPSConnection(host, port, timeout=60, context=self._context)
        return http.client.HTTPConnection(host, port, timeout=60)

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token}"}


def _own(operation: Mapping[str, Any]) -> bool:
    """Whether it is asked and answered in one go; `events` and `bring` are for what is not."""
    answers = operation["responses"].get("200", {}).get("content", {})
    asked = operation.get("requestBody", {}).get("content", {"application/json": {}})
    return "text/event-stream" not in answers and "application/json" in asked


def snake(name: str) -> str:
    return re.sub(r"(?<!^)([A-Z])", lambda found: f"_{found[1].lower()}", name)


def _untrusted(error: ssl.SSLCertVerificationError) -> OncewardError:
    return InvalidConfig(
        f"the server's certificate is not trusted here: {error.verify_message}",
        recovery=[
            Recovery(
                "trust it: Client(url, token, context=ssl.create_default_context(cafile=FILE))"
            )
        ],
    )


def _problem(data: bytes) -> OncewardError:
    try:
        said = json.loads(data)
        return StoredError({**said, "message": said["detail"]})
    except (ValueError, KeyError, TypeError):
        return StoredError(
            {"code": "EXECUTION_FAILED", "message": data[:200].decode("utf-8", "replace")}
        )


def _read(answer: http.client.HTTPResponse) -> Iterator[dict[str, Any] | None]:
    """Server-sent events, each whole or not at all; nothing for whatever else is said."""
    number = -1
    yield None
    while line := answer.readline():
        if line.startswith(b":"):
            yield None
        if line.startswith(b"id: "):
            number = int(line[4:])
        elif line.startswith(b"data: ") and line.endswith(b"\n"):
            yield {**json.loads(line[6:]), "id": number}
