"""What may be asked of a kernel that serves: each kind of work, as it is signed and filed (K-13)."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Any, Final

import msgspec

from onceward.core.limits import MAX_JOBS, MAX_TIMEOUT_SECONDS
from onceward.errors import InvalidConfig

Jobs = Annotated[int, msgspec.Meta(ge=1, le=MAX_JOBS)]
Seconds = (
    Annotated[int, msgspec.Meta(ge=1, le=MAX_TIMEOUT_SECONDS)]
    | Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,7}(\.[0-9]{1,3})?$")]
)
"""A time in seconds: a whole number, or text such as "0.5", because canonical bytes hold no float."""


class Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Work that somebody wants done."""


class Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file that was brought: its name, and the digest of what is in it."""

    name: str
    sha256: str


class RunBuild(Order, frozen=True):
    plan: str
    """The plan's file, as seen from the workspace's own folder."""
    only: tuple[str, ...] = ()
    force: bool = False
    config: dict[str, Any] = {}
    jobs: Jobs | None = None
    budget: dict[str, Any] = {}
    keep_going: bool = False
    reuse: bool = True


class ResumeBuild(Order, frozen=True):
    build: str
    proof: str = ""
    """Shows that whoever asks has the confirmation token, without being it."""
    fork: bool = False
    strict_code: bool = False
    rerun: tuple[str, ...] = ()
    accept: dict[str, Kept] = {}
    plan: str = ""
    jobs: Jobs | None = None
    budget: dict[str, Any] = {}
    keep_going: bool = False
    reuse: bool = True


class Spawn(Order, frozen=True):
    argv: tuple[str, ...]
    session: str = ""
    """Go on in this session, or open one of this id; a new one of its own where it is empty."""
    folder: str = ""
    """Where to run, as seen from the workspace's own folder; it must lie in one of [server] folders."""
    jobs: Jobs | None = None
    budget: dict[str, Any] = {}
    target: str | None = None
    timeout: Seconds | None = None
    attempts: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1
    env: tuple[str, ...] = ()
    """Names of the asker's variables that it may see. Their values never travel with the request."""
    secrets: tuple[str, ...] = ()
    """The same, and redacted in whatever it leaves."""
    operation: str = ""
    effect: str = ""
    each: tuple[str, ...] = ()


class RunSaga(Order, frozen=True):
    file: str
    input: Any = None
    root: str = ""
    grant: str | None = None
    budget: dict[str, Any] = {}


class ResumeSaga(Order, frozen=True):
    saga: str
    retry: bool = False
    budget: dict[str, Any] = {}


class ApplyPlan(Order, frozen=True):
    plan: dict[str, Any]
    grant: str


class CutChange(Order, frozen=True):
    entry: str
    grant: str | None = None
    commit: bool = False


class VerifyChange(Order, frozen=True):
    entry: str
    again: bool = False
    timeout: Seconds | None = None
    commit: bool = False
    accept_drift: str = ""
    """The digest of what else was changed in the tree since the cut, to be accepted."""


ORDERS: Final[Mapping[str, type[Order]]] = {
    "builds.run": RunBuild,
    "builds.resume": ResumeBuild,
    "sessions.spawn": Spawn,
    "sagas.run": RunSaga,
    "sagas.resume": ResumeSaga,
    "registry.apply": ApplyPlan,
    "registry.rollback": ApplyPlan,
    "changes.cut": CutChange,
    "changes.verify": VerifyChange,
}


def order_of(verb: str, payload: Any) -> Order:
    """What is asked, in its one form."""
    try:
        return msgspec.convert(payload, ORDERS[verb])
    except msgspec.ValidationError as error:
        raise InvalidConfig(
            f"the request's payload does not fit: {error}", context={"field": "payload"}
        ) from None


def seconds_text(seconds: float | None) -> int | str | None:
    """A time as a request carries it, to the millisecond."""
    if seconds is None:
        return None
    exact = round(Decimal(repr(seconds)), 3)
    return int(exact) if exact == int(exact) else format(exact, "f")


def seconds_of(value: int | str | None, field: str) -> float | None:
    """The time that a request carries, as it is measured with."""
    seconds = None if value is None else float(value)
    if seconds is not None and not 0 < seconds <= MAX_TIMEOUT_SECONDS:
        raise InvalidConfig(
            f"{field} is a time of more than 0 and at most {MAX_TIMEOUT_SECONDS} seconds, not {value}",
            context={"field": field},
        )
    return seconds


def payload_of(order: Order) -> dict[str, Any]:
    said: dict[str, Any] = msgspec.to_builtins(order)
    return said
