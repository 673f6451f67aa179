"""Forms for whatever can be done, made from the API's own table: nothing can be done here that is not there (I-5)."""

from __future__ import annotations

import types
import typing
from functools import cache
from typing import Any, Final

import msgspec

from onceward.core.acts import find_act
from onceward.core.canon import parse
from onceward.errors import InvalidConfig, NotFound
from onceward.settings import ServerSettings
from onceward.ui.http.api import ROUTES
from onceward.ui.http.routes import PREFIX, Route

_NOT_ASKED: Final = ("client_request_id",)
_PAIRS: Final = ("budget", "config")
_HIDDEN: Final = ("signin", "signout", "upload")
_FOR_PROGRAMS: Final = ("bringEnvironment",)
"""What only makes sense before another request of the same id."""


_ACT_OF: Final = {"clearLock": "locks.clear"}
_ROLE_OF: Final = {"runGate": "operator"}
"""Who may do what is more than one act."""


class Field(msgspec.Struct, frozen=True):
    """One thing that a form asks for."""

    name: str
    kind: str
    """`text`, `whole` (a number), `flag`, `lines` (several texts), `pairs` (names and values) or `json`."""
    needed: bool
    value: str = ""


class Form(msgspec.Struct, frozen=True):
    """A form for one operation."""

    name: str
    noun: str
    summary: str
    method: str
    path: str
    """Under the server; names in braces are fields."""
    fields: list[Field]
    role: str
    once: bool
    """Whether it is sent with an id, and so done once."""
    refusal: str = ""
    """Why whoever looks may not do it; empty if they may."""


@cache
def _forms() -> dict[str, Form]:
    return {
        route.name: _form(route)
        for route in ROUTES
        if route.method != "GET" and route.kind not in _HIDDEN and route.name not in _FOR_PROGRAMS
    }


def acts() -> dict[str, list[Form]]:
    """Everything that can be done, by noun."""
    found: dict[str, list[Form]] = {}
    for form in _forms().values():
        found.setdefault(form.noun, []).append(form)
    return found


def form_of(name: str, /, **given: Any) -> Form:
    """An operation's form; what is given is filled in."""
    form = _forms()[name]
    fields = [
        msgspec.structs.replace(one, value=_written(given[one.name], one.kind))
        if one.name in given
        else one
        for one in form.fields
    ]
    return msgspec.structs.replace(form, fields=fields)


class Offered:
    """Forms for one person: what they may not do is said, and not offered."""

    def __init__(self, roles: frozenset[str], settings: ServerSettings) -> None:
        self._roles, self._settings = roles, settings

    def form_of(self, name: str, /, **given: Any) -> Form:
        return self.offered(form_of(name, **given))

    def offered(self, form: Form) -> Form:
        return msgspec.structs.replace(form, refusal=self._refusal(form))

    def _refusal(self, form: Form) -> str:
        if form.name == "spawn" and not self._settings.spawn:
            return "this server does not run commands (spawn = false)"
        needs = form.role.split("|") if form.role else []
        if not needs or not self._roles.isdisjoint((*needs, "admin")):
            return ""
        return f"needs the role {' or '.join(needs)}"


def act_named(name: str, given: str) -> Form:
    if name not in _forms():
        raise NotFound(f"there is no operation {name[:60]!a}")
    said = parse(given.encode()) if given else {}
    if not isinstance(said, dict):
        raise InvalidConfig("`given` must be a JSON object", context={"field": "given"})
    return form_of(name, **said)


def _form(route: Route) -> Form:
    places = [Field(name, "text", True) for name in route.parameters]
    assert route.body is not None
    asked = [
        Field(
            one.encode_name,
            "pairs" if one.encode_name in _PAIRS else _kind(one.type),
            one.required,
            "yes" if one.default is True else "",
        )
        for one in msgspec.structs.fields(route.body)
        if one.encode_name not in _NOT_ASKED
    ]
    once = any(one.encode_name in _NOT_ASKED for one in msgspec.structs.fields(route.body))
    declared = find_act(route.verb or _ACT_OF.get(route.name, ""))
    role = declared.role if declared is not None else _ROLE_OF.get(route.name, "")
    return Form(
        name=route.name,
        noun=route.noun,
        summary=route.summary,
        method=route.method,
        path=route.path.removeprefix(PREFIX),
        fields=[*places, *asked],
        role=role,
        once=once,
    )


def _kind(kind: Any) -> str:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _kind(args[0])
    if origin in (types.UnionType, typing.Union):
        return _kind(next(one for one in args if one is not types.NoneType))
    if kind is bool:
        return "flag"
    if kind in (int, float):
        return "whole"
    if kind is str:
        return "text"
    if origin in (list, tuple) and args and args[0] is str:
        return "lines"
    return "json"


def _written(value: Any, kind: str) -> str:
    if kind == "json":
        return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    if kind == "pairs" and isinstance(value, dict):
        return "\n".join(f"{name}={said}" for name, said in value.items())
    if kind == "lines" and isinstance(value, list | tuple):
        return "\n".join(str(one) for one in value)
    if kind == "flag":
        return "yes" if value else ""
    return str(value)
