"""Work that a server does, as whoever asked for it sees it: from the record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from onceward.core.money import to_micros, to_usd
from onceward.engine import child_budget
from onceward.engine.build_reading import next_command, why_paused
from onceward.engine.glance import Begun
from onceward.lifecycles.child import Ended
from onceward.lifecycles.plan import step_name
from onceward.store.store import Store
from onceward.store.tables.children import Tokens, last_detail_of
from onceward.store.tables.events import events_of, head_of

_DONE = {
    "SUCCESS": "executed",
    "SKIPPED": "skipped",
    "REUSED": "reused",
    "FAILED": "failed",
    "CANCELLED": "failed",
}


class Ending:
    """Waits for the end of work that was taken, by what the workspace's stream says from now on."""

    def __init__(self, store: Store, verb: str, request_id: str) -> None:
        self._asked = (verb, request_id)
        with store.read() as rows:
            self._after = head_of(rows, "workspace")[0]

    def look(self, store: Store) -> dict[str, Any] | None:
        """How it ended; None while it goes on."""
        with store.read() as rows:
            for event in events_of(rows, "workspace", self._after):
                self._after = event.seq
                said = event.facts()
                detail = said["detail"]
                if (
                    said["event"] == "WORK_ENDED"
                    and (detail["verb"], detail["request_id"]) == self._asked
                ):
                    return dict(detail)
        return None


def begun_of(workspace: Any, found: Mapping[str, Any], how: str) -> Begun:
    """A build that somebody else runs, for whoever draws it."""
    stages: dict[str, int] = {}
    for step in found["steps"]:
        stages[step["stage"]] = stages.get(step["stage"], 0) + 1

    def lanes() -> Mapping[str, Any]:
        with workspace.reading() as store, store.read() as rows:
            return child_budget.lanes(rows, found["build_id"])

    return Begun(found["build_id"], found["name"], list(stages.items()), how, lambda: [], lanes)


def steps_since(found: Mapping[str, Any], known: dict[str, str]) -> Iterator[dict[str, Any]]:
    """What became of steps since somebody last looked, as a display is told of it."""
    wanted = {one["step"]: one for one in found.get("approvals", ())}
    for step in found["steps"]:
        name = step_name(step["stage"], step["target"])
        status = "APPROVAL" if name in wanted else step["status"]
        if known.get(name) == status or status in ("waiting", "queued", "running"):
            continue
        known[name] = status
        error = step.get("error") or {}
        ended = Ended(error.get("reason", ""), error) if error else None
        spent = {
            "usd_micros": to_micros(step.get("cost_usd", "0.00"), "cost"),
            "tokens": step.get("tokens", 0),
        }
        spent = (
            {lane: amount for lane, amount in spent.items() if amount}
            if status == "SUCCESS"
            else {}
        )
        yield {
            "step": name,
            "status": status,
            "child_id": step.get("child_id", ""),
            "spent": spent,
            "ended": ended,
        } | {key: wanted[name][key] for key in ("text", "digest") if name in wanted}


def summed_up(found: Mapping[str, Any], before: Mapping[str, Any], seconds: int) -> dict[str, Any]:
    """How a build stands after somebody followed it: as `run` says it of its own."""
    counts = dict.fromkeys(("executed", "skipped", "reused", "failed"), 0)
    for step in found["steps"]:
        if step["status"] in _DONE:
            counts[_DONE[step["status"]]] += 1
    said: dict[str, Any] = {
        name: found.get(name) for name in ("build_id", "state", "reason", "cost_usd", "tokens")
    }
    said["steps"] = {"total": len(found["steps"]), **counts}
    paid = to_micros(found["cost_usd"], "cost") - to_micros(before["cost_usd"], "cost")
    said |= {"saved_usd": to_usd(0), "paid_usd": to_usd(max(0, paid)), "seconds": seconds}
    if found["state"] == "BUDGET_PAUSE":
        said["why"] = why_paused(found.get("why", {}))
    elif found["state"] == "FAILED":
        why = found.get("why", {})
        said["why"] = f"{why.get('step')}: {(why.get('why') or {}).get('message') or 'it failed'}"
    said["next"] = next_command(found)
    return {key: value for key, value in said.items() if value is not None}


def ended_of(store: Store, child_id: str) -> Ended:
    """How a child ended."""
    with store.read() as rows:
        token = Tokens(rows).get(child_id)
        return Ended(token.reason or "lease_orphaned", last_detail_of(rows, child_id))
