"""The description of the API, made from the table that answers it (OpenAPI 3.1)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import msgspec

from onceward.core.version import VERSION
from onceward.ui.http import shapes
from onceward.ui.http.access import COOKIE, CSRF
from onceward.ui.http.routes import Route

_REF: Final = "#/components/schemas/{name}"
_MEDIA: Final = {
    "stream": "text/event-stream",
    "text": "text/plain",
    "bytes": "application/octet-stream",
}
_FILE: Final = {"bundle": "application/x-tar", "upload": "application/octet-stream"}


@cache
def document(table: tuple[Route, ...]) -> dict[str, Any]:
    """What every route takes and gives."""
    kinds = _kinds(table)
    found, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    schemas = dict(zip(map(repr, kinds), found, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in table:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Onceward",
            "version": VERSION,
            "description": "All operations of the command line. A request that changes something takes a"
            " `client_request_id`, an idempotency key: the same id again returns the same answer and has no second effect.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"bearer": []}, {"browser": []}],
        "tags": [{"name": noun} for noun in dict.fromkeys(route.noun for route in table)],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "`onceward tokens new`",
                },
                "browser": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": COOKIE.format(port=7423),
                    "description": f"and {CSRF} to change",
                },
            },
        },
    }


def _kinds(table: Sequence[Route]) -> list[Any]:
    wanted = [shapes.Problem, *(r.answer for r in table), *(r.body for r in table)]
    return list({repr(kind): kind for kind in wanted if kind is not None}.values())


def _operation(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    said: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "tags": [route.noun],
        "parameters": [*_in_path(route), *_in_query(route)],
        "responses": {
            **{str(status): answer for status, answer in _answers(route, schemas).items()},
            "default": {
                "description": "an error, as a problem document with a code",
                "content": {"application/problem+json": {"schema": schemas[repr(shapes.Problem)]}},
            },
        },
    }
    if route.public:
        said["security"] = []
    if route.body is not None:
        content = {"application/json": {"schema": schemas[repr(route.body)]}}
        said["requestBody"] = {"required": True, "content": content}
    elif route.kind == "upload":
        said["requestBody"] = {"required": True, "content": {_FILE["upload"]: {}}}
    return said


def _in_path(route: Route) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in route.parameters
    ]


def _in_query(route: Route) -> list[dict[str, Any]]:
    if route.query is None:
        return []
    schema = msgspec.json.schema(route.query)["$defs"][route.query.__name__]
    needed = schema.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in needed, "schema": field}
        for name, field in schema["properties"].items()
    ]


def _answers(route: Route, schemas: dict[str, Any]) -> dict[int, dict[str, Any]]:
    media = {**_MEDIA, "bundle": _FILE["bundle"]}.get(route.kind)
    if media is not None:
        content: dict[str, Any] = {media: {}}
        if route.kind == "bytes":
            content["text/plain"] = {}
            return {
                200: {"description": "the whole content", "content": content},
                206: {"description": "the requested range"},
            }
        return {200: {"description": route.summary, "content": content}}
    told = {
        "description": route.summary,
        "content": {"application/json": {"schema": schemas[repr(route.answer)]}},
    }
    if route.verb or route.act is not None:
        # What a standby forwards may be answered later: asked again with the same id, it is told.
        return {
            route.status: told,
            202: {**told, "description": f"{route.summary}: accepted, not done yet"},
        }
    return {route.status: told}
