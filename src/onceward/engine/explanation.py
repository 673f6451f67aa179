"""What every explanation says; each kind of thing is explained by a module of its own (E-5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from onceward.core.money import to_usd
from onceward.core.sources import iso
from onceward.core.views import LaneView
from onceward.store.port import Reads
from onceward.store.store import Store
from onceward.store.tables.events import newest_of
from onceward.store.tables.principals import Principals

_LANES = {"usd_micros": "usd", "duration_secs": "seconds of work", "solver_calls": "solver calls"}
_STORY = 6


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


class Kind(msgspec.Struct, frozen=True):
    """A kind of thing: how to tell that a name means one of it, and what to say."""

    name: str
    find: Callable[[Reads, str], str | None]
    """The whole id of the one that is meant; None if it is of another kind."""
    explain: Callable[[Store, str], Explanation]


def story(rows: Reads, stream: str, source: str) -> list[str]:
    """The last moves that a stream tells of: when, what, by whom."""
    return [
        f"{iso(event.at)[:19]}  {told['event']}{_because(told['detail'])} by {told['context']['actor']}"
        for event in newest_of(rows, stream, source, _STORY)
        for told in (event.facts(),)
    ]


def _because(detail: Mapping[str, Any]) -> str:
    return f" ({detail['reason']})" if detail.get("reason") else ""


def who_may(rows: Reads, role: str) -> list[str]:
    """Everybody who may act in a role."""
    return [
        f"{p.name} ({role if role in p.roles else 'admin'})"
        for p in Principals(rows).all()
        if p.may(role)
    ] or [f"nobody: no principal has the role {role}"]


def cost_of(lanes: Sequence[LaneView]) -> str:
    """What was spent, lane by lane, in words."""
    costs = []
    for lane in sorted(lanes, key=lambda lane: lane.lane, reverse=True):
        total, limit = (
            "" if n is None else to_usd(n) if lane.lane == "usd_micros" else f"{n:,}"
            for n in (lane.total, lane.limit)
        )
        if lane.total or limit:
            of = f" of {limit}" if limit else ""
            costs.append(f"{total}{of} {_LANES.get(lane.lane, lane.lane)}")
    return ", ".join(costs) or "nothing"
