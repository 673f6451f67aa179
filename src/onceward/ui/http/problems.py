"""Errors as RFC 9457 problem documents that carry their code."""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse

from onceward.errors import CODES, OncewardError

MEDIA = "application/problem+json"


def problem(error: OncewardError, instance: str = "") -> JSONResponse:
    return answer(error.code, error.message, error.http_status, error.document(), instance)


def answer(
    code: str, message: str, status: int, document: dict[str, Any] | None = None, instance: str = ""
) -> JSONResponse:
    """One problem: what a person reads, and what a program does about it."""
    said = document or {"context": {}, "retryable": False, "recovery": []}
    body = {
        "type": f"urn:onceward:error:{code}",
        "title": CODES[code].meaning if code in CODES else "something went wrong",
        "status": status,
        "detail": message,
        "code": code,
        **{name: said[name] for name in ("context", "retryable", "recovery")},
        **({"instance": instance} if instance else {}),
    }
    headers = {"WWW-Authenticate": 'Bearer realm="onceward"'} if status == 401 else {}
    if status in (408, 413, 431):
        # What else may come on this line is not looked at.
        headers["Connection"] = "close"
    if status in (429, 503):
        headers["Retry-After"] = "60" if status == 429 else "2"
    return JSONResponse(body, status, headers, MEDIA)
