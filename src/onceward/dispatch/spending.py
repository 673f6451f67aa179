"""What was spent, across builds: by build, by stage, by day. From the debits, which nobody can change."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import msgspec

from onceward.core.money import to_usd
from onceward.dispatch import debits
from onceward.store.store import Store
from onceward.store.tables.budgets import (
    debits_by_child,
    debits_by_day,
    debits_by_session,
    debits_of,
)

DAY_MICROS = 86_400_000_000
_POINTS = 400


def spending(store: Store, by: str) -> dict[str, Any]:
    """Every group with its lanes, the total, and what the workspace may spend; newest or dearest first."""
    with store.read() as rows:
        if by == "day":
            found = _gathered(
                (_day(day), "", lane, amount)
                for day, lane, amount in debits_by_day(rows, DAY_MICROS)
            )
        elif by == "stage":
            found = _gathered(
                (*_stage(name, work), *rest) for _, name, work, *rest in debits_by_child(rows)
            )
        else:
            found = _gathered(
                (session, name or "", *rest) for session, name, *rest in debits_by_session(rows)
            )
        limits = {lane.lane: lane.limit for lane in debits.workspace(rows).values()}
    total: dict[str, int] = {}
    for group in found:
        for lane, amount in group["lanes"].items():
            total[lane] = total.get(lane, 0) + amount
    for group in found:
        group["cost_usd"] = to_usd(group["lanes"].get("usd_micros", 0))
    groups = sorted(found, key=_dearest) if by == "stage" else found
    return {"by": by, "groups": groups, "lanes": total, "limits": limits}


def spent_over_time(store: Store, session_id: str) -> list[dict[str, Any]]:
    """Each lane of a session, what may be spent, and how its total grew: moments in seconds and totals, few enough to
    be drawn."""
    with store.read() as rows:
        lanes = debits.lanes(rows, session_id)
        curves: dict[str, tuple[list[float], list[int]]] = {}
        for at, lane, amount in debits_of(rows, session_id):
            moments, totals = curves.setdefault(lane, ([], []))
            moments.append(at / 1e6)
            totals.append(amount + (totals[-1] if totals else 0))
    said = []
    for name, lane in lanes.items():
        moments, totals = curves.get(name, ([], []))
        every = max(1, len(moments) // _POINTS)
        # What was carried over from a parent was spent before the first debit here.
        before = lane.total - (totals[-1] if totals else 0)
        chosen = [
            *range(0, len(moments), every),
            *([len(moments) - 1] if (len(moments) - 1) % every else []),
        ]
        said.append(
            {"lane": name, "limit": lane.limit, "total": lane.total}
            | {"at": [moments[k] for k in chosen], "totals": [totals[k] + before for k in chosen]}
        )
    return said


def _dearest(group: dict[str, Any]) -> Any:
    return (
        -group["lanes"].get("usd_micros", 0),
        -group["lanes"].get("tokens", 0),
        group["name"],
        group["key"],
    )


def _gathered(debits: Iterable[tuple[str, str, str, int]]) -> list[dict[str, Any]]:
    groups: dict[tuple[str, str], dict[str, int]] = {}
    for key, name, lane, amount in debits:
        lanes = groups.setdefault((key, name), {})
        lanes[lane] = lanes.get(lane, 0) + amount
    return [{"key": key, "name": name, "lanes": lanes} for (key, name), lanes in groups.items()]


def _day(number: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(number * (DAY_MICROS // 1_000_000)))


def _stage(name: str | None, work: str) -> tuple[str, str]:
    """The stage that a child worked for, and the plan; a child of no build has neither."""
    return (msgspec.json.decode(work).get("stage", "(spawned)"), name or "")
