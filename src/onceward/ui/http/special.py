"""What answers routes that are not JSON: bytes, files, uploads, a browser's way in and out."""

from __future__ import annotations

import asyncio
import hashlib
import re
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

from starlette.background import BackgroundTask
from starlette.requests import ClientDisconnect, Request
from starlette.responses import (
    FileResponse,
    JSONResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)

from onceward.core.limits import HTTP_BODY_SECONDS
from onceward.errors import InvalidConfig, OncewardError
from onceward.ui.http import problems
from onceward.ui.http.access import SESSION_SECONDS, Doors, Unfit
from onceward.ui.http.feed import Feed, Listening
from onceward.ui.http.routes import Call

_RANGE: Final = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
INERT: Final = "default-src 'none'; sandbox; frame-ancestors 'none'"
"""For bytes that somebody made: whatever they are, they are not run here."""
_IN_MEMORY: Final = 1 << 20


class Special:
    """One method for each kind."""

    def __init__(self, feed: Feed, doors: Doors, secure: bool) -> None:
        self._feed, self._doors, self._secure = feed, doors, secure

    async def stream(self, call: Call, request: Request) -> Response:
        stream = call.path.get("stream")
        last = call.headers.get("last-event-id", "") or str(call.query.after)
        if not (last.isascii() and last.isdecimal() and len(last) < 19):
            raise InvalidConfig(
                "Last-Event-ID must be a number", context={"field": "Last-Event-ID"}
            )
        if stream is not None:
            stream = await asyncio.to_thread(self._feed.require, stream)
        if request.scope["http_version"] != "1.1":
            raise Unfit("events need HTTP/1.1", 505)
        return Listening(self._feed, stream, int(last), lambda: call.doors.still(call.caller))

    def refused(self, request: Request, error: OncewardError) -> Response:
        return problems.problem(error)

    async def text(self, call: Call, request: Request) -> Response:
        assert call.route.read is not None
        return PlainTextResponse(await asyncio.to_thread(call.route.read, call))

    async def bytes(self, call: Call, request: Request) -> Response:
        """Always something to be saved, or plain text: a browser is never told that it is a page."""
        digest, size = await asyncio.to_thread(call.artifacts.found, call.path["sha256"])
        start, end = _range(request.headers.get("range", ""), size)
        headers = {
            "Content-Security-Policy": INERT,
            "Content-Length": str(end - start),
            "Accept-Ranges": "bytes",
            "ETag": f'"{digest}"',
        }
        if call.query.as_ != "text":
            headers["Content-Disposition"] = f'attachment; filename="{digest[:16]}"'
        part = (start, end) != (0, size)
        if part:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        pieces = _cut(call.artifacts.read(digest), start, end)
        # Whether its file is there shows before anything is said.
        first = await asyncio.to_thread(next, pieces, b"")
        media = (
            "text/plain; charset=utf-8" if call.query.as_ == "text" else "application/octet-stream"
        )
        return StreamingResponse(_all(first, pieces), 206 if part else 200, headers, media)

    async def bundle(self, call: Call, request: Request) -> Response:
        folder = tempfile.TemporaryDirectory(prefix="onceward-bundle-")
        try:
            target = Path(folder.name) / "bundle.tar"
            _, page = await asyncio.to_thread(
                call.workspace.export, call.path["subject"], target, not call.query.digests
            )
        except BaseException:
            folder.cleanup()
            raise
        name = f"{page.subject}.bundle.tar"
        return FileResponse(
            target,
            headers={"Content-Security-Policy": INERT},
            media_type="application/x-tar",
            filename=name,
            background=BackgroundTask(folder.cleanup),
        )

    async def upload(self, call: Call, request: Request) -> Response:
        """Contents are named by their digest: the same again is the same, and until somebody has them adopted they are
        nobody's."""
        digest = call.path["sha256"]
        if not _DIGEST.fullmatch(digest):
            raise InvalidConfig(
                "the address of an upload must end in its SHA-256, 64 hexadecimal digits",
                context={"field": "sha256"},
            )
        await asyncio.to_thread(call.service.require, call.principal, "operator")
        most = call.artifacts.limit
        with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY) as file:
            made = hashlib.sha256()

            def take(part: bytes) -> None:
                made.update(part)
                file.write(part)

            size = await received(request, most, take)
            if made.hexdigest() != digest:
                raise InvalidConfig(
                    f"the uploaded bytes have the SHA-256 {made.hexdigest()}, not the one in the address",
                    context={"field": "sha256"},
                )
            file.seek(0)
            await asyncio.to_thread(
                call.artifacts.offer, {digest: iter(lambda: file.read(_IN_MEMORY), b"")}
            )
        return JSONResponse({"sha256": digest, "size": size})

    async def signin(self, call: Call, request: Request) -> Response:
        code, token = call.body.get("code", ""), call.body.get("token", "")
        value, session = await asyncio.to_thread(call.doors.sign_in, code, token)
        answer = JSONResponse({"principal": session.principal, "csrf": session.csrf})
        answer.set_cookie(
            call.doors.cookie,
            value,
            max_age=SESSION_SECONDS,
            path="/",
            secure=self._secure,
            httponly=True,
            samesite="strict",
        )
        return answer

    async def signout(self, call: Call, request: Request) -> Response:
        if call.caller is not None:
            call.doors.sign_out(call.caller)
        answer = JSONResponse({})
        answer.delete_cookie(
            call.doors.cookie, path="/", secure=self._secure, httponly=True, samesite="strict"
        )
        return answer


async def received(request: Request, most: int, take: Any) -> int:
    """A body in its pieces, as far as it is small enough, and there in time; answers how much it was."""
    size = 0
    try:
        async with asyncio.timeout(HTTP_BODY_SECONDS):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise Unfit(f"the body is larger than {most} bytes", 413)
                take(part)
    except TimeoutError:
        raise Unfit("the body did not arrive in time", 408) from None
    except ClientDisconnect:
        raise Unfit("the client disconnected", 400) from None
    return size


def _range(said: str, size: int) -> tuple[int, int]:
    """From where to where; all of it where nothing, or nothing that can be understood, is asked."""
    found = _RANGE.fullmatch(said)
    if found is None or found.groups() == ("", ""):
        return 0, size
    first, last = found.groups()
    start = int(first) if first else max(0, size - int(last))
    end = min(size, int(last) + 1) if first and last else size
    if start >= end:
        raise Unfit(f"the range is outside the {size} bytes of the content", 416)
    return start, end


def _cut(pieces: Iterator[bytes], start: int, end: int) -> Iterator[bytes]:
    """A part of what comes in pieces; read to its end, so that what is not as it was is found."""
    at = 0
    for piece in pieces:
        part = piece[max(0, start - at) : max(0, end - at)]
        at += len(piece)
        if part:
            yield part


async def _all(first: bytes, pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    while piece := await asyncio.to_thread(next, pieces, b""):
        yield piece
