"""Acts: what may be asked of a kernel, each declared once.

A declaration gives the payload's type, the role, the ids that are completed before anybody
signs, the events that must carry the signature, and the route. Who may ask, what a statement
proves, the HTTP API, its description, forms and the client follow from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from onceward.errors import InvalidConfig

Payload = Mapping[str, Any]
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class SignedEvent(msgspec.Struct, frozen=True):
    """An event that says a statement asked for it."""

    place: str
    actor: str
    event: str
    subject: str
    """The subject of its stream."""
    session: str
    detail: Mapping[str, Any]
    position: int = 0
    """Its position in the order of all events."""


Agrees = Callable[[SignedEvent, Payload], bool]
"""Whether an event is what a signed payload asked for."""
Complete = Callable[[Any, str], str]
"""The whole id of what somebody named by a beginning or a word; the first argument reads rows."""


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """The declaration of an act: payload, role, events that it makes, route."""

    name: str
    """A noun and a verb, such as `grants.revoke`."""
    role: str
    """The role that it needs, or any of several with bars between; empty where any principal
    may."""
    payload: type
    run: Callable[..., Any] | None = None
    """`(tx, actor, asked)`; of an act that prepares, `(kernel, asked, principal)`, which returns
    `(tx, actor)`."""
    prepares: bool = False
    """Whether it looks at what lies outside the store before its transaction."""
    work: bool = False
    """Whether it takes its time: only a kernel that hosts takes it from others (K-13)."""
    own: bool = False
    """Whether a kernel signs it for its own principal while it works; nobody asks for it."""
    once: bool = False
    """Whether one event is the whole of it."""
    for_children: bool = False
    """Whether a child may ask for it with its own credential (K-14)."""
    ids: Mapping[str, Complete] = _NOTHING
    """Fields of the payload that name something, and what completes them."""
    makes: Mapping[str, Agrees] = _NOTHING
    """Events that only a signed act makes, with what they must agree to."""
    may_make: Mapping[str, Agrees] = _NOTHING
    """Events that it may bring about, and that happen without it too."""
    path: str = ""
    """Its route below the API's prefix; empty where it has none of its own."""
    operation: str = ""
    """Its name in the API's description, the client and forms."""
    summary: str = ""

    @property
    def noun(self) -> str:
        return self.name.partition(".")[0]

    def allows(self, roles: frozenset[str] | set[str]) -> bool:
        """Whether somebody with these roles may ask for it."""
        return not self.role or not roles.isdisjoint((*self.role.split("|"), "admin"))


class ActRegistry:
    """Every act by its name. It is open while modules declare theirs, and read once it is closed: nothing is judged by
    half of the acts."""

    def __init__(self) -> None:
        self._acts: dict[str, Act] = {}
        self._closed = False

    def add(self, declared: Act) -> None:
        if declared.name in self._acts:
            raise ValueError(f"{declared.name} is declared twice")
        self._acts[declared.name] = declared

    def close(self) -> None:
        self._closed = True

    @property
    def acts(self) -> dict[str, Act]:
        if not self._closed:
            raise RuntimeError("acts are asked for before onceward.catalogue was imported")
        return self._acts


REGISTRY = ActRegistry()
Run = TypeVar("Run", bound=Callable[..., Any])


def act(name: str, *, role: str, **declared: Any) -> Callable[[Run], Run]:
    """Declare an act over the function that carries it out; its payload is the type of the
    parameter `asked`."""

    def declare(run: Run) -> Run:
        payload = run.__globals__[run.__annotations__["asked"]]
        REGISTRY.add(Act(name=name, role=role, payload=payload, run=run, **declared))
        return run

    return declare


def work(name: str, payload: type, *, role: str, **declared: Any) -> None:
    """Declare work: it is begun by whoever hosts it, and its one event is that it was taken."""
    taken: Mapping[str, Agrees] = {"WORK_TAKEN": anything}
    REGISTRY.add(
        Act(name=name, role=role, payload=payload, work=True, once=True, makes=taken, **declared)
    )


def own(name: str, *, role: str, **declared: Any) -> None:
    """Declare what a kernel signs by itself."""
    REGISTRY.add(Act(name=name, role=role, payload=dict, own=True, **declared))


def all_acts() -> Mapping[str, Act]:
    """Every act by its name, in the order of declaration."""
    return REGISTRY.acts


def find_act(name: str) -> Act | None:
    """The act of that name, also one that nobody asks for; None if there is none."""
    return all_acts().get(name)


def act_named(name: str) -> Act:
    """The act that somebody asks for; refused if there is none."""
    found = find_act(name)
    if found is None or found.own:
        raise InvalidConfig(f"there is no verb {name!r}", context={"field": "verb"})
    return found


def is_work(name: str) -> bool:
    """Whether it takes its time, so that only a kernel that hosts takes it from others."""
    found = find_act(name)
    return found is not None and found.work


def children_may(name: str) -> bool:
    """Whether a child may ask for it with its own credential."""
    found = find_act(name)
    return found is not None and found.for_children


@cache
def signed_events() -> frozenset[str]:
    """Events that only a signed act makes; from the workspace's first key on they carry its
    signature."""
    return frozenset(event for act in all_acts().values() for event in act.makes)


def disagreement(claim: SignedEvent, statement: Mapping[str, Any]) -> str | None:
    """How an event differs from the signed act that it says it follows."""
    signed = find_act(statement["act"])
    if claim.actor != statement["principal"] and not (signed is not None and signed.own):
        return f"{claim.place} was done by {claim.actor}, and signed by {statement['principal']}"
    payload = statement["payload"]
    seconds = payload.get("seconds") if isinstance(payload, dict) else None
    until = claim.detail.get("expires_at") or 0
    if seconds is not None and until > statement["asked_at"] + seconds * 1_000_000:
        return f"{claim.place} lasts longer than was signed"
    agrees = None
    if signed is not None:
        agrees = signed.makes.get(claim.event) or signed.may_make.get(claim.event)
    if agrees is None or not agrees(claim, payload):
        return f"{claim.place} is not what was signed"
    return None


def misfit(statement: Mapping[str, Any]) -> str | None:
    """Why a signed payload is none of its act: nothing unknown is signed along with what is
    asked."""
    declared = find_act(statement["act"])
    if declared is None or declared.own:
        return None
    try:
        msgspec.convert(statement["payload"], declared.payload)
    except msgspec.ValidationError as error:
        return f"what is asked does not fit {declared.name}: {error}"
    return None


# What events are compared by.


def anything(claim: SignedEvent, payload: Payload) -> bool:
    """The event follows from the act whatever it says."""
    return True


def on(field: str) -> Agrees:
    """The event stands in the stream of what the payload names."""
    return lambda claim, payload: bool(payload[field] == claim.subject)


def says(field: str, detail: str = "") -> Agrees:
    """The event's detail has what the payload has."""
    return lambda claim, payload: bool(payload[field] == claim.detail[detail or field])


def ends(field: str) -> Agrees:
    """The payload names the event's subject, its session, or its child."""
    return lambda claim, payload: (
        payload[field] in (claim.subject, claim.session, claim.detail["child_id"])
    )


def all_of(*parts: Agrees) -> Agrees:
    """Every part agrees."""
    return lambda claim, payload: all(part(claim, payload) for part in parts)
