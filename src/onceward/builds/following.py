"""A build that somebody else's kernel runs, as whoever follows it is told of it: from the record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from onceward.builds.progress import Begun
from onceward.builds.rules import why_paused
from onceward.builds.views import BuildView, next_command
from onceward.core.money import to_micros, to_usd
from onceward.dispatch import debits
from onceward.dispatch.machine import Ended

_DONE = {
    "SUCCESS": "executed",
    "SKIPPED": "skipped",
    "REUSED": "reused",
    "FAILED": "failed",
    "CANCELLED": "failed",
}


def begun_of(workspace: Any, build: BuildView, how: str) -> Begun:
    """A build that somebody else runs, for whoever draws it."""
    stages: dict[str, int] = {}
    for step in build.steps:
        stages[step.stage] = stages.get(step.stage, 0) + 1

    def lanes() -> Mapping[str, Any]:
        with workspace.reading() as store, store.read() as rows:
            return debits.lanes(rows, build.build_id)

    return Begun(
        build_id=build.build_id,
        name=build.name,
        stages=list(stages.items()),
        how=how,
        busy=lambda: [],
        lanes=lanes,
    )


def steps_since(build: BuildView, known: dict[str, str]) -> Iterator[dict[str, Any]]:
    """What became of steps since somebody last looked, as a display is told of it."""
    wanted = {approval.step: approval for approval in build.approvals}
    for step in build.steps:
        status = "APPROVAL" if step.name in wanted else step.status
        if known.get(step.name) == status or status in ("waiting", "queued", "running"):
            continue
        known[step.name] = status
        error = step.failure()
        spent = {
            "usd_micros": to_micros(step.cost_usd or "0.00", "cost"),
            "tokens": step.tokens or 0,
        }
        news = {
            "step": step.name,
            "status": status,
            "child_id": step.child_id or "",
            "spent": {lane: n for lane, n in spent.items() if n} if status == "SUCCESS" else {},
            "ended": Ended(error.get("reason", ""), dict(error)) if error else None,
        }
        if step.name in wanted:
            news |= {"text": wanted[step.name].text, "digest": wanted[step.name].digest}
        yield news


def summed_up(build: BuildView, before: BuildView, seconds: int) -> dict[str, Any]:
    """How a build stands after somebody followed it: as `run` says it of its own."""
    counts = dict.fromkeys(("executed", "skipped", "reused", "failed"), 0)
    for step in build.steps:
        if step.status in _DONE:
            counts[_DONE[step.status]] += 1
    paid = to_micros(build.cost_usd, "cost") - to_micros(before.cost_usd, "cost")
    summary: dict[str, Any] = {
        "build_id": build.build_id,
        "state": build.state,
        "reason": build.reason,
        "cost_usd": build.cost_usd,
        "tokens": build.tokens,
        "steps": {"total": len(build.steps), **counts},
        "saved_usd": to_usd(0),
        "paid_usd": to_usd(max(0, paid)),
        "seconds": seconds,
        "next": next_command(build),
    }
    why = build.facts()
    if build.state == "BUDGET_PAUSE":
        summary["why"] = why_paused(why)
    elif build.state == "FAILED":
        message = (why.get("why") or {}).get("message") or "it failed"
        summary["why"] = f"{why.get('step')}: {message}"
    return {key: value for key, value in summary.items() if value is not None}
