"""Running totals of a session's budget lanes: what a debit comes to (C-30, running_total_v1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from onceward.errors import AccountingModeInvalid, InvalidConfig
from onceward.kernel.limits import MAX_INTEGER
from onceward.kernel.money import to_micros

MODE: Final = "running_total_v1"
LANES: Final = ("solver_calls", "duration_secs", "tokens", "usd_micros")


class Lane(msgspec.Struct, frozen=True):
    """One dimension of a session's budget; without a limit it is only counted."""

    lane: str
    limit: int | None
    total: int
    carried: int = 0
    """Microseconds of running time that do not make a whole second yet."""

    def room(self) -> int | None:
        return None if self.limit is None else self.limit - self.total


class Refusal(msgspec.Struct, frozen=True):
    """The first lane that a debit does not fit into."""

    lane: str
    limit: int
    observed: int
    asked: int
    scope: str = ""
    """Whose budget it is, where it is not the session's own."""

    def detail(self) -> dict[str, Any]:
        whose = {"scope": self.scope} if self.scope else {}
        return {
            "lane": self.lane,
            "limit": self.limit,
            "observed": self.observed,
            "asked": self.asked,
            **whose,
        }


def judge(lanes: Mapping[str, Lane], asked: Mapping[str, int], scope: str = "") -> Refusal | None:
    """Whether every lane has room for its amount: one that is exactly used up is within its limit."""
    for name, amount in asked.items():
        lane = lanes.get(name)
        if lane is not None and lane.limit is not None and lane.total + amount > lane.limit:
            return Refusal(name, lane.limit, lane.total, amount, scope)
    return None


def precheck(
    lanes: Mapping[str, Lane], estimate: Mapping[str, int], scope: str = ""
) -> Refusal | None:
    """The first lane whose estimate is more than a tenth above what remains: then nothing is begun (B-9)."""
    for name, amount in estimate.items():
        lane = lanes.get(name)
        room = lane.room() if lane is not None else None
        if (
            lane is not None
            and lane.limit is not None
            and room is not None
            and amount * 10 > max(0, room) * 11
        ):
            return Refusal(name, lane.limit, lane.total, amount, scope)
    return None


def overrun(lanes: Mapping[str, Lane], scope: str = "") -> Refusal | None:
    """The first lane that holds more than its limit; equal to it is within it (B-9)."""
    return judge(lanes, dict.fromkeys(lanes, 0), scope)


def exhausted(lanes: Mapping[str, Lane], scope: str = "") -> Refusal | None:
    """The first lane whose limit does not exceed what is spent: there is nothing to go on with (B-10)."""
    for name, lane in lanes.items():
        if lane.limit is not None and lane.limit <= lane.total:
            return Refusal(name, lane.limit, lane.total, 0, scope)
    return None


def median(costs: Sequence[int]) -> int:
    """The middle one, the higher of two."""
    return sorted(costs)[len(costs) // 2]


def fits(lane: Lane | None, amount: int) -> bool:
    """Whether a lane can count that far at all."""
    return (lane.total if lane else 0) + amount <= MAX_INTEGER


def charge(lane: Lane, micros: int) -> tuple[int, int]:
    """Whole seconds that a running time adds to its lane, and what is carried to the next."""
    return divmod(lane.carried + max(0, micros), 1_000_000)


def amounts(spend: object) -> dict[str, int]:
    """What a person or a child says it spends, as lanes and whole amounts; anything else is refused."""
    if not isinstance(spend, dict) or not spend:
        raise InvalidConfig(
            "a spend names lanes and amounts, as in usd=0.01 tokens=120", context={"field": "spend"}
        )
    found: dict[str, int] = {}
    for name, amount in spend.items():
        lane = "usd_micros" if name == "usd" else name
        if lane not in LANES:
            raise InvalidConfig(
                f"there is no budget lane {str(name)[:40]!a}; there are usd, tokens, solver_calls and duration_secs",
                context={"field": "spend"},
            )
        if lane in found:
            raise InvalidConfig(
                "usd and usd_micros are one lane; say one of them", context={"field": "spend"}
            )
        found[lane] = _whole(name, amount)
    return found


def asked_by_child(spend: object) -> dict[str, int]:
    """What a child says it spends: everything but its time, which is measured."""
    found = amounts(spend)
    if "duration_secs" in found:
        raise InvalidConfig(
            "a child's time is measured, not reported", context={"field": "duration_secs"}
        )
    return found


def check_mode(mode: str) -> str:
    if mode != MODE:
        raise AccountingModeInvalid(
            f"{mode[:40]!a} is no accounting mode; only {MODE} is", context={"mode": mode[:40]}
        )
    return mode


def _whole(name: str, amount: object) -> int:
    if name == "usd":
        value = to_micros(amount, "usd")  # type: ignore[arg-type]
    elif isinstance(amount, str) and len(amount) <= 16 and amount.isascii() and amount.isdecimal():
        value = int(amount)
    elif type(amount) is int:
        value = amount
    else:
        raise InvalidConfig(
            f"{name} takes a whole number, not {str(amount)[:40]!a}", context={"field": name}
        )
    if not 0 <= value <= MAX_INTEGER:
        raise InvalidConfig(f"{name} must be between 0 and {MAX_INTEGER}", context={"field": name})
    return value
