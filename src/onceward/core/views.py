"""Views: what can be seen of a subject, typed. Commands, pages, the API and explanations are
made from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from onceward.core.lanes import LABELS
from onceward.core.money import to_usd


class View(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is seen of something. A field that has nothing to say is left out of JSON."""


class LaneView(View, frozen=True):
    """What was spent in a lane, and what may be; no limit is null. Money is in millionths."""

    lane: str
    limit: int | None
    total: int


def document(view: Any) -> Any:
    """A view, or a list of views, as plain JSON values."""
    return msgspec.to_builtins(view)


class Explanation(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answers, each a few short sentences."""

    id: str
    kind: str
    what: Sequence[str]
    state: str
    why: Sequence[str] = ()
    story: Sequence[str] = ()
    """How it got there, the last moves last."""
    waits_for: Sequence[str] = ()
    who: Sequence[str] = ()
    """Who may do something about it."""
    cost: str = ""
    made: Sequence[str] = ()
    next: Sequence[str] = ()


def cost_of(lanes: Sequence[LaneView]) -> str:
    """What was spent, lane by lane, in words."""
    costs = []
    for lane in sorted(lanes, key=lambda lane: lane.lane, reverse=True):
        if lane.total or lane.limit is not None:
            total = _amount(lane.lane, lane.total)
            of = f" of {_amount(lane.lane, lane.limit)}" if lane.limit is not None else ""
            costs.append(f"{total}{of} {LABELS[lane.lane]}")
    return ", ".join(costs) or "nothing"


def _amount(lane: str, n: int) -> str:
    return to_usd(n) if lane == "usd_micros" else f"{n:,}"
