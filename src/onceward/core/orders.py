"""Orders: payloads of work, as they are signed and filed."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any

import msgspec

from onceward.core.acts import find_act
from onceward.core.limits import MAX_JOBS, MAX_TIMEOUT_SECONDS
from onceward.errors import InvalidConfig

Jobs = Annotated[int, msgspec.Meta(ge=1, le=MAX_JOBS)]
Seconds = (
    Annotated[int, msgspec.Meta(ge=1, le=MAX_TIMEOUT_SECONDS)]
    | Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,7}(\.[0-9]{1,3})?$")]
)
"""A time in seconds: a whole number, or text such as "0.5", because canonical bytes hold no
float."""


class Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Work that somebody wants done."""


def order_of(name: str, payload: Any) -> Order:
    """A request's payload as the order that it is."""
    declared = find_act(name)
    assert declared is not None and declared.work
    try:
        order: Order = msgspec.convert(payload, declared.payload)
    except msgspec.ValidationError as error:
        raise InvalidConfig(
            f"the request's payload does not fit: {error}", context={"field": "payload"}
        ) from None
    return order


def payload_of(order: Order) -> dict[str, Any]:
    """An order as it is filed."""
    payload: dict[str, Any] = msgspec.to_builtins(order)
    return payload


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
