"""Running totals of a session's budget lanes: what a debit comes to (C-30, running_total_v1)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from onceward.core.canon import digest
from onceward.core.lanes import LANE_BY_NAME, LANE_NAMES, LANES
from onceward.core.limits import MAX_INTEGER
from onceward.core.money import MICROS, to_micros, to_units
from onceward.core.sources import Micros
from onceward.errors import AccountingModeInvalid, InvalidConfig

MODE: Final = "running_total_v1"
ASKED, SETTLED, LATE = 0, 1, 2
"""What a debit's column `settled` says: asked before, reported afterwards, or reported after the child's end."""
_NONE: Final[Mapping[str, int]] = {}


class Debited(NamedTuple):
    """One debit of a child, as it is stored."""

    lane: str
    debit_seq: int
    amount: int
    settled: int
    at: Micros


def debits_digest(debits: Sequence[Debited]) -> str:
    """What a child's last event says of its debits, each with its kind and its time; empty where there are none. Its
    time is charged with that event itself, and what comes later has an event of its own."""
    own = [
        list(debit) for debit in debits if debit.lane != "duration_secs" and debit.settled != LATE
    ]
    return digest(sorted(own)) if own else ""


class Lane(msgspec.Struct, frozen=True):
    """One dimension of a session's budget; without a limit it is only counted."""

    lane: str
    limit: int | None
    total: int
    carried: int = 0
    """Microseconds of running time that do not make a whole second yet."""
    mode: str = MODE
    """How it is counted, as persisted; only `running_total_v1` is ever written to."""

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
    lanes: Mapping[str, Lane],
    estimate: Mapping[str, int],
    scope: str = "",
    in_flight: Mapping[str, int] = _NONE,
) -> Refusal | None:
    """The first lane whose estimate is more than a tenth above what remains beside `in_flight` (B-9)."""
    for name, amount in estimate.items():
        lane = lanes.get(name)
        if lane is None or lane.limit is None:
            continue
        room = lane.limit - lane.total - in_flight.get(name, 0)
        if amount * 10 > max(0, room) * 11:
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


def out_of_time(lanes: Mapping[str, Lane], running: int) -> Refusal | None:
    """Whether a session's time is used up, counting the microseconds of everything that runs (C-30)."""
    lane = lanes.get("duration_secs")
    if lane is None or lane.limit is None:
        return None
    used = lane.total * MICROS + lane.carried + running
    if used < lane.limit * MICROS:
        return None
    return Refusal(lane.lane, lane.limit, used // MICROS, 0)


def median(costs: Sequence[int]) -> int:
    """The middle one, the higher of two."""
    return sorted(costs)[len(costs) // 2]


def countable(lane: Lane | None, amount: int) -> int:
    """As much of an amount as a lane can count at all."""
    return min(amount, MAX_INTEGER - (lane.total if lane else 0))


def charge(lane: Lane, micros: int) -> tuple[int, int]:
    """Whole seconds that a running time adds to its lane, and what is carried to the next."""
    return divmod(lane.carried + max(0, micros), 1_000_000)


def limits_of_budget(budget: Mapping[str, object]) -> dict[str, int]:
    """The limits of lanes that an order asks for."""
    return amounts(dict(budget)) if budget else {}


def amounts(spend: object) -> dict[str, int]:
    """What a person or a child says it spends, as lanes and whole amounts; anything else is refused."""
    if not isinstance(spend, dict) or not spend:
        raise InvalidConfig(
            "a spend names lanes and amounts, as in usd=0.01 tokens=120", context={"field": "spend"}
        )
    by_lane: dict[str, int] = {}
    for name, amount in spend.items():
        lane = LANE_BY_NAME.get(str(name), name)
        if lane not in LANES:
            raise InvalidConfig(
                f"there is no budget lane {str(name)[:40]!a}; there are {', '.join(LANE_NAMES)}",
                context={"field": "spend"},
            )
        if lane in by_lane:
            raise InvalidConfig(
                "usd and usd_micros are one lane; say one of them", context={"field": "spend"}
            )
        by_lane[lane] = _whole(name, amount)
    return by_lane


def asked_by_child(spend: object) -> dict[str, int]:
    """What a child says it spends: everything but its time, which is measured."""
    by_lane = amounts(spend)
    if "duration_secs" in by_lane:
        raise InvalidConfig(
            "a child's time is measured, not reported", context={"field": "duration_secs"}
        )
    return by_lane


class Estimated(msgspec.Struct, frozen=True):
    """What money that is gone already comes to, read as well as it can be (C-30)."""

    amounts: Mapping[str, int]
    mistake: str = ""
    """What could not be read; the amounts are an estimate then."""


_NUMBER = re.compile(r"(?<![\d.,-])\d+(?:[.,]\d+)*(?![\d.,])")
_GROUPED = re.compile(r"\d{1,3}(,\d{3})+(\.\d+)?")


def best_reading(spend: object, usual: Mapping[str, int] = _NONE) -> Estimated:
    """Amounts of a settled spend. The money is gone: what cannot be read is named, never refused. Where nothing can be
    read it is `usual`, what such work costs otherwise."""
    try:
        return Estimated(asked_by_child(spend))
    except InvalidConfig as error:
        mistake = error.message
    by_lane: dict[str, int] = {}
    for name, amount in spend.items() if isinstance(spend, dict) else ():
        try:
            for lane, units in asked_by_child({name: _number_in(amount)}).items():
                by_lane[lane] = by_lane.get(lane, 0) + units
        except InvalidConfig:
            continue
    return Estimated(by_lane or usual, mistake)


def _number_in(amount: object) -> object:
    """The number in a text such as "$0.02", "0,02 USD" or "1,000", if there is exactly one; else the amount itself."""
    if not isinstance(amount, str) or len(amount) > 60:
        return amount
    numbers = _NUMBER.findall(amount)
    if len(numbers) != 1:
        return amount
    number = str(numbers[0])
    return number.replace(",", "" if _GROUPED.fullmatch(number) else ".")


def check_mode(mode: str) -> str:
    if mode != MODE:
        raise AccountingModeInvalid(
            f"{mode[:40]!a} is no accounting mode; only {MODE} is", context={"mode": mode[:40]}
        )
    return mode


def _whole(name: str, amount: object) -> int:
    return to_micros(amount, name) if name == "usd" else to_units(amount, name)
