"""The application: every request looked over, let in or not, answered from the one table of routes (I-3, G23)."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route as Path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onceward.core.limits import HTTP_BODY_BYTES
from onceward.core.views import document
from onceward.errors import NotFound, OncewardError
from onceward.kernel.answers import Pending
from onceward.serving import Service
from onceward.ui.http import problems
from onceward.ui.http.access import (
    CSRF,
    Caller,
    Doors,
    Forbidden,
    HttpRefused,
    Origins,
    ServerBusy,
    Unfit,
)
from onceward.ui.http.routes import Call, Route, asked_of, body_of, path_of, query_of
from onceward.ui.http.special import Special, received

SAFE: Final[Mapping[str, str]] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src"
    " 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_UNFIT: Final = {
    404: NotFound("there is no such page or operation"),
    405: Unfit("this method is not allowed here", 405),
}
_LONG: Final = re.compile(r"\{(step|name)\}")
"""What may have a slash in its name."""
_ASKING: Final = 32
"""How much one may ask at the same time."""
_HEADERS, _HEADER_BYTES = 100, 32 * 1024
_JSON: Final = re.compile(r"application/json(\s*;\s*charset=\"?utf-8\"?)?", re.IGNORECASE)


class Gate:
    """Stands before everything: foreign names and foreign pages get no further, and no answer leaves without its
    headers."""

    def __init__(self, app: ASGIApp, origins: Origins) -> None:
        self._app, self._origins = app, origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                said = {name for name, _ in message["headers"]}
                message["headers"] = [
                    *message["headers"],
                    *(
                        (n.lower().encode(), v.encode())
                        for n, v in SAFE.items()
                        if n.lower().encode() not in said
                    ),
                ]
            await send(message)

        unfit = _overdone(scope["headers"])
        if unfit is not None:
            await problems.problem(unfit)(scope, receive, guarded)
            return
        page = not scope["path"].startswith("/api/")
        objection = self._origins.objection(scope["method"], Headers(scope=scope), page)
        if objection:
            await problems.problem(Forbidden(objection))(scope, receive, guarded)
            return
        await self._app(scope, receive, guarded)


def _overdone(headers: list[tuple[bytes, bytes]]) -> Unfit | None:
    """What is said beside a request: not too much, and of its length in one way only."""
    if (
        len(headers) > _HEADERS
        or sum(len(name) + len(value) for name, value in headers) > _HEADER_BYTES
    ):
        return Unfit("the headers are too large", 431)
    if {b"transfer-encoding", b"content-length"} <= {name for name, _ in headers}:
        return Unfit("a request must not have both Content-Length and Transfer-Encoding", 400)
    return None


def application(
    service: Service, doors: Doors, origins: Origins, table: Sequence[Route], special: Special
) -> ASGIApp:
    """Everything under one roof. Whatever goes wrong is a problem document, and says nothing of how we are made."""
    paths: dict[str, dict[str, Route]] = {}
    for route in table:
        paths.setdefault(route.path, {})[route.method] = route
    answering = Answering(service, doors, special)
    served = Starlette(
        routes=[
            Path(
                _LONG.sub(r"{\1:path}", path),
                answering.endpoint(methods),
                methods=list(methods),
                name=path,
            )
            for path, methods in paths.items()
        ],
        exception_handlers={
            OncewardError: refusing(special),
            HTTPException: refusing(special),
            Exception: _bug,
        },
    )
    served.router.redirect_slashes = False
    return Gate(served, origins)


class Answering:
    """From a request to its answer."""

    def __init__(self, service: Service, doors: Doors, special: Special) -> None:
        self._service, self._doors, self._special = service, doors, special
        self._busy: Counter[str] = Counter()

    def endpoint(self, methods: Mapping[str, Route]) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            route = methods.get(request.method) or methods["GET"]  # HEAD
            caller = None if route.public else await asyncio.to_thread(self._caller, route, request)
            with self._room_for(caller):
                return await self._answered(route, caller, request)

        return answer

    @contextmanager
    def _room_for(self, caller: Caller | None) -> Iterator[None]:
        """So many at a time for each: nobody keeps everybody else waiting."""
        who = caller.principal if caller is not None else ""
        if who and self._busy[who] >= _ASKING:
            raise ServerBusy("too many requests at once; try again in a moment")
        self._busy[who] += 1
        try:
            yield
        finally:
            self._busy[who] -= 1

    async def _answered(self, route: Route, caller: Caller | None, request: Request) -> Response:
        call = Call(
            service=self._service,
            doors=self._doors,
            caller=caller,
            path=path_of(request.path_params),
            query=query_of(route.query, request.query_params.multi_items()),
            body=body_of(route.body, await _body(request)) if route.body is not None else None,
            headers=request.headers,
            route=route,
        )
        if route.kind != "json":
            found: Response = await getattr(self._special, route.kind)(call, request)
            return found
        if route.public:
            return _answer(route, _looked(call, route))
        return _answer(route, await asyncio.to_thread(_looked, call, route))

    def _caller(self, route: Route, request: Request) -> Caller:
        caller = self._doors.caller(
            request.headers.get("authorization", ""), request.cookies.get(self._doors.cookie, "")
        )
        if caller is None:
            raise HttpRefused("authentication required: an access token or a browser session")
        if route.mutates:
            self._doors.require_header(caller, request.headers.get(CSRF, ""))
        return caller


def _looked(call: Call, route: Route) -> Any:
    if route.verb:
        return asked_of(call, route)
    look = route.act or route.read
    assert look is not None
    return look(call)


def _answer(route: Route, found: Any) -> Response:
    if isinstance(found, Pending):
        return JSONResponse({"status": "asked", "request_id": found.request_id}, 202)
    return JSONResponse(document(found), route.status)


async def _body(request: Request) -> bytes:
    """What was sent, as far as it is JSON, small enough, and there in time."""
    if not _JSON.fullmatch(request.headers.get("content-type", "")):
        raise Unfit("the body must be application/json", 415)
    parts: list[bytes] = []
    await received(request, HTTP_BODY_BYTES, parts.append)
    return b"".join(parts)


def refusing(special: Special) -> Any:
    async def refuse(request: Request, error: Exception) -> Response:
        if isinstance(error, OncewardError):
            return special.refused(request, error)
        assert isinstance(error, HTTPException)
        answer = special.refused(
            request, _UNFIT.get(error.status_code, Unfit("the request is not valid HTTP", 400))
        )
        answer.headers.update(error.headers or {})
        return answer

    return refuse


async def _bug(request: Request, error: Exception) -> Response:
    return problems.answer("EXECUTION_FAILED", "internal error in the server", 500)
