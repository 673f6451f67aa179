"""`run --dry-run`: what would happen, told without doing it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import click
import msgspec

from onceward.builds.forecast import Expected, Forecast, room_left
from onceward.builds.lifecycle import require_no_doubt
from onceward.builds.plans import Resolved
from onceward.core.views import LaneView
from onceward.errors import NotFound
from onceward.ui.cli import render
from onceward.ui.cli.display import shown
from onceward.ui.cli.main import Globals

_EACH = 40
_WORDS = {
    "run": "would run",
    "reuse": "would be reused",
    "skip": "would be skipped",
    "ask": "would ask a person",
}
_COLOURS = {"run": "cyan", "ask": "yellow"}


def tell(
    given: Globals,
    resolved: Resolved,
    limits: Mapping[str, int],
    *,
    reuse: bool,
    build_id: str = "",
) -> int:
    """Nothing is written, not even a workspace where there is none. What a run would refuse is refused here, too."""
    workspace = given.workspace()
    with ExitStack() as open_:
        try:
            artifacts = open_.enter_context(workspace.artifacts())
        except NotFound:
            artifacts = None
        if artifacts is not None and not build_id:
            require_no_doubt(artifacts.store, resolved.plan.name)
        left = (
            room_left(artifacts.store, build_id, limits) if artifacts is not None else dict(limits)
        )
        steps = Forecast(resolved, artifacts, reuse=reuse, build_id=build_id).steps()
    counts = {what: sum(step.what == what for step in steps) for what in _WORDS}
    totals = _total(steps)
    if given.json:
        told = [msgspec.to_builtins(step) for step in steps]
        document = {"dry_run": True, "steps": told, "counts": counts, "estimate": totals}
        render.document({**document, "unfollowed": _unfollowed(resolved)})
        return 0
    _steps(steps)
    said = [f"{count:,} {_WORDS[what]}" for what, count in counts.items() if count]
    render.say(f"{render.counted(len(steps), 'step')}: {', '.join(said)}. Nothing was run.")
    _money(steps, totals, left)
    for stage, unfollowed in _unfollowed(resolved).items():
        for what in unfollowed:
            render.say(f"code not tracked in {stage}: {render.plain(what)}")
    return 0


def _unfollowed(resolved: Resolved) -> dict[str, list[str]]:
    """What code of each stage could change without a step running again because of it."""
    stages = resolved.steps.stages
    return {stage.name: list(stage.unfollowed) for stage in stages if stage.unfollowed}


def _steps(steps: Sequence[Expected]) -> None:
    """Steps of a stage that have the same in store are told together."""
    groups: dict[tuple[str, str, str], list[Expected]] = {}
    for step in steps:
        because = "; ".join(step.because[:3]) + (" ..." if len(step.because) > 3 else "")
        groups.setdefault((step.step.partition(":")[0], step.what, because), []).append(step)
    rows = []
    for (stage, what, because), some in groups.items():
        named = [(render.plain(step.step), [step]) for step in some]
        if len(some) > 3:
            named = [(f"{stage}: {render.counted(len(some), 'step')}", some)]
        rows += [(what, name, render.plain(because), _total(group)) for name, group in named]
    width = max(len(name) for _, name, _, _ in rows[:_EACH])
    for what, name, because, estimate in rows[:_EACH]:
        word = click.style(f"{what:5s}", fg=_COLOURS.get(what), dim=what not in _COLOURS)
        cost = "".join(f"  ~{amount} {lane}" for lane, amount in _amounts(estimate))
        render.say(f"{word} {name:{width}s}  {because}{cost}")
    if len(rows) > _EACH:
        render.say(f"... and {len(rows) - _EACH:,} more lines (--json lists every step)")


def _total(steps: Sequence[Expected]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for step in steps:
        for lane, amount in step.estimate.items():
            totals[lane] = totals.get(lane, 0) + amount
    return totals


def _amounts(estimate: Mapping[str, int]) -> list[tuple[str, str]]:
    return [
        shown(LaneView(lane=lane, total=n, limit=None))[:2] for lane, n in estimate.items() if n
    ]


def _money(steps: Sequence[Expected], totals: Mapping[str, int], limits: Mapping[str, int]) -> None:
    guessed = [step for step in steps if step.what == "run"]
    unknown = sum(not step.estimate for step in guessed)
    for lane in sorted(lane for lane, amount in totals.items() if amount):
        name, total, limit = shown(LaneView(lane=lane, total=totals[lane], limit=limits.get(lane)))
        beyond = (
            click.style("; it would pause", fg="yellow")
            if totals[lane] > limits.get(lane, totals[lane])
            else ""
        )
        render.say(
            f"estimated {name}: {total}{f' of the {limit} left in the budget' if limit else ''}{beyond}"
        )
    if guessed and unknown:
        render.say(
            f"no estimate for {render.counted(unknown, 'step')}: set `estimate` in the plan, or run it once"
        )
