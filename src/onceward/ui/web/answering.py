"""Answers with pages: rendered from what a route reads, with what every page has around it."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from onceward.errors import CODES, NotFound, OncewardError
from onceward.kernel.feed import position_now
from onceward.people.views import principal_named
from onceward.ui.http.routes import Call
from onceward.ui.http.special import Special
from onceward.ui.web.forms import Offered
from onceward.ui.web.pages import NAV
from onceward.ui.web.rendering import STATIC, rendered

_TYPES: Final = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".LICENSE": "text/plain",
}
_KEPT: Final = {"Cache-Control": "public, max-age=31536000, immutable"}


class Web(Special):
    """Everything the API answers, and pages."""

    async def page(self, call: Call, request: Request) -> Response:
        return HTMLResponse(await asyncio.to_thread(self._rendered, call, request.url.path))

    async def static(self, call: Call, request: Request) -> Response:
        """Files that never change under their address: what they are is part of it."""
        found = files().get(call.path["file"])
        if found is None:
            raise NotFound("there is no such file")
        data, kind = found
        return Response(data, 200, _KEPT if request.query_params.get("v") else None, kind)

    def refused(self, request: Request, error: OncewardError) -> Response:
        """What a person sees who is refused, or went where nothing is."""
        if request.url.path.startswith("/api/"):
            return super().refused(request, error)
        if error.http_status == 401:
            answer = HTMLResponse(
                rendered("signin.html", over=self._doors.cookie in request.cookies), 401
            )
            answer.headers["WWW-Authenticate"] = 'Bearer realm="onceward"'
            return answer
        said = {
            "error": error.document(),
            "status": error.http_status,
            "meaning": _meaning(error.code),
        }
        return HTMLResponse(rendered("error.html", **said), error.http_status)

    def _rendered(self, call: Call, path: str) -> str:
        assert call.route.read is not None
        said = call.route.read(call)
        around = {"here": _here(call, path)} if call.caller is not None else {"over": False}
        forms = Offered(_roles(call), call.workspace.settings.server)
        own = {"form_of": forms.form_of, "offered": forms.offered}
        return rendered(call.route.page, **own, **around, **said)


def _roles(call: Call) -> frozenset[str]:
    if call.caller is None:
        return frozenset()
    with call.service.store.read() as rows:
        return call.service.authority.roles(rows, call.principal)


def _here(call: Call, path: str) -> dict[str, Any]:
    assert call.caller is not None
    return {
        "principal": call.principal,
        "roles": principal_named(call.store, call.principal).roles,
        "nav": NAV,
        "path": path,
        "position": position_now(call.store),
        "state": call.service.state,
        "workspace": call.workspace.folder.parent.name,
    }


def _meaning(code: str) -> str:
    return CODES[code].meaning if code in CODES else ""


@cache
def files() -> dict[str, tuple[bytes, str]]:
    """Every file the pages are made of, by its name: no other is ever read for anybody."""
    return {
        path.name: (path.read_bytes(), _TYPES[path.suffix])
        for path in STATIC.rglob("*")
        if path.is_file() and path.suffix in _TYPES
    }
