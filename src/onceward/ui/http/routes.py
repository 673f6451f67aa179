"""What a route is: one row of the table that the API, its description and its tests are made from (I-3)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from onceward.core.acts import all_acts, is_work
from onceward.core.canon import holds_nul, parse
from onceward.core.limits import MAX_REQUEST_ID_CHARS
from onceward.errors import InvalidConfig, NotFound
from onceward.kernel.answers import Pending
from onceward.serving import Service

if TYPE_CHECKING:
    from onceward.ui.http.access import Caller, Doors

PREFIX: Final = "/api/v1"
RequestId = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_REQUEST_ID_CHARS)]
Read = Callable[["Call"], Any]
_NAME_CHARS: Final = 500
_PARAMETER: Final = re.compile(r"\{(\w+)\}")


class Query(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What may be asked beside the path."""


class Call(msgspec.Struct):
    """One request on its way: who asks, of what, with which words."""

    service: Service
    doors: Doors
    caller: Caller | None
    path: Mapping[str, str]
    query: Any
    body: Any
    headers: Mapping[str, str]
    route: Route

    @property
    def store(self) -> Any:
        return self.service.store

    @property
    def artifacts(self) -> Any:
        return self.service.artifacts

    @property
    def workspace(self) -> Any:
        return self.service.workspace

    @property
    def principal(self) -> str:
        assert self.caller is not None
        return self.caller.principal


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """A row: how it is called, who may, what it takes and gives."""

    method: str
    path: str
    name: str
    """Its name in the description: a verb and a noun."""
    summary: str
    noun: str
    answer: Any = dict[str, Any]
    """The shape of its answer."""
    query: type[Query] | None = None
    read: Callable[[Call], Any] | None = None
    """Looks, and changes nothing."""
    verb: str = ""
    """What it asks of the kernel: short, or work. Its body is what the verb is asked with, less what the path says."""
    act: Callable[[Call], Any] | None = None
    """Does something that is more than one verb, or none."""
    takes: type[Any] | None = None
    """What comes in the body of such an act."""
    public: bool = False
    """Whether anybody may ask, without a credential; none is looked at."""
    kind: str = "json"
    """`json`, or what answers it otherwise: `stream`, `text`, `bytes`, `bundle`, `upload`, `signin`, `signout`, `page`,
    `static`."""
    page: str = ""
    """The template of a page."""

    @property
    def parameters(self) -> list[str]:
        return _PARAMETER.findall(self.path)

    @property
    def body(self) -> type[Any] | None:
        """The shape of its body: with it comes an id, and the same id again is the same answer (K-8)."""
        return _body(self.verb, self.path) if self.verb else self.takes

    @property
    def mutates(self) -> bool:
        return self.method != "GET"

    @property
    def status(self) -> int:
        return 202 if self.verb and is_work(self.verb) else 200


def look(
    noun: str,
    path: str,
    *,
    name: str,
    summary: str,
    answer: Any,
    read: Read | None,
    **more: Any,
) -> Route:
    """A route that shows something and changes nothing."""
    said: dict[str, Any] = {
        "noun": noun,
        "name": name,
        "summary": summary,
        "answer": answer,
        "read": read,
        **more,
    }
    return Route(method="GET", path=PREFIX + path, **said)


def act(noun: str, path: str, *, name: str, summary: str, **more: Any) -> Route:
    """A route that does something which is more than one act, or none."""
    said: dict[str, Any] = {
        "method": "POST",
        "noun": noun,
        "name": name,
        "summary": summary,
        **more,
    }
    return Route(path=PREFIX + path, **said)


def routes_of_acts() -> Iterator[Route]:
    """The route of every act that has one of its own."""
    for declared in all_acts().values():
        if declared.path:
            yield Route(
                method="POST",
                path=PREFIX + declared.path,
                name=declared.operation,
                summary=declared.summary,
                noun=declared.noun,
                verb=declared.name,
            )


def by_noun(routes: Sequence[Route]) -> tuple[Route, ...]:
    """The routes of one noun together, in the order in which nouns come first."""
    nouns = list(dict.fromkeys(route.noun for route in routes))
    return tuple(sorted(routes, key=lambda route: nouns.index(route.noun)))


def converted(kind: type[Any], value: Any, what: str) -> Any:
    """A value as a route wants it; refused where it does not fit, with its place."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise InvalidConfig(f"{what} is not valid: {error}", context={"field": what}) from None


def query_of(kind: type[Query] | None, items: list[tuple[str, str]]) -> Any:
    """The words behind the question mark: each known, each once, each of its kind."""
    known = {} if kind is None else {field.encode_name for field in msgspec.structs.fields(kind)}
    said: dict[str, Any] = {}
    for name, value in items:
        if name not in known or name in said:
            raise InvalidConfig(
                f"the query parameter {name[:60]!a} is {'given twice' if name in said else 'unknown here'}",
                context={"field": name[:60]},
            )
        if "\0" in value:
            raise InvalidConfig("text must not contain a NUL", context={"field": name})
        said[name] = value
    if kind is None:
        return None
    try:
        return msgspec.convert(said, kind, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidConfig(
            f"the query is not valid: {error}", context={"field": "query"}
        ) from None


def body_of(kind: type[Any], data: bytes) -> dict[str, Any]:
    """A body as it was sent, after it was seen to fit."""
    said = parse(data)
    if holds_nul(data):
        raise InvalidConfig("text must not contain a NUL", context={"field": "the body"})
    converted(kind, said, "the body")
    return dict(said)


def path_of(said: Mapping[str, str]) -> Mapping[str, str]:
    """The names in a path: short, and of letters that a name can have."""
    for name, value in said.items():
        if len(value) > _NAME_CHARS or not value.isprintable():
            raise NotFound(f"there is no {name} with this name", context={"field": name})
    return said


def asked_of(call: Call, route: Route) -> dict[str, Any] | Pending:
    """Have the kernel do what a route is for, in the name of who asks."""
    payload = {**call.body, **call.path}
    return asked(call, route.verb, payload, payload.pop("client_request_id"))


def asked(call: Call, verb: str, payload: Any, request_id: str) -> dict[str, Any] | Pending:
    answer = call.service.ask(call.principal, verb, payload, request_id)
    if isinstance(answer, Pending):
        return answer
    return {**answer.value, "idempotent_replay": True} if answer.replayed else dict(answer.value)


@cache
def _body(verb: str, path: str) -> type[Any]:
    kind, said = all_acts()[verb].payload, _PARAMETER.findall(path)
    fields = [_field(one) for one in msgspec.structs.fields(kind) if one.encode_name not in said]
    name = "".join(word.capitalize() for word in verb.split("."))
    return msgspec.defstruct(
        name,
        [("client_request_id", RequestId), *fields],
        kw_only=True,
        frozen=True,
        forbid_unknown_fields=True,
    )


def _field(field: msgspec.structs.FieldInfo) -> Any:
    if field.default is not msgspec.NODEFAULT:
        return (field.encode_name, field.type, field.default)
    if field.default_factory is not msgspec.NODEFAULT:
        return (field.encode_name, field.type, msgspec.field(default_factory=field.default_factory))
    return (field.encode_name, field.type)
