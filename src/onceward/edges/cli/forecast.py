"""`run --dry-run`: what would happen, told without doing it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import click
import msgspec

from onceward.edges.cli import render
from onceward.edges.cli.display import shown
from onceward.edges.cli.main import Globals
from onceward.engine.forecast import Expected, Forecast
from onceward.engine.plans import Resolved
from onceward.errors import NotFound

_EACH = 40
_WORDS = {"run": "would run", "reuse": "would be reused", "skip": "would be skipped", "ask": "would ask a person"}
_COLOURS = {"run": "cyan", "ask": "yellow"}


def tell(given: Globals, resolved: Resolved, limits: Mapping[str, int], *, reuse: bool) -> int:
    """Nothing is written, not even a workspace where there is none."""
    workspace = given.workspace()
    try:
        workspace.store().close()
        opened: Any = workspace.artifacts()
    except NotFound:
        opened = nullcontext(None)
    with opened as artifacts:
        steps = Forecast(resolved, artifacts, reuse=reuse).steps()
    counts = {what: sum(step.what == what for step in steps) for what in _WORDS}
    totals = _total(steps)
    if given.json:
        told = [msgspec.to_builtins(step) for step in steps]
        render.document({"dry_run": True, "steps": told, "counts": counts, "estimate": totals})
        return 0
    _steps(steps)
    said = [f"{count:,} {_WORDS[what]}" for what, count in counts.items() if count]
    render.say(f"{render.counted(len(steps), 'step')}: {', '.join(said)}. Nothing was done.")
    _money(steps, totals, limits)
    return 0


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
        render.say(f"... and {len(rows) - _EACH:,} more lines (--json has every step)")


def _total(steps: Sequence[Expected]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for step in steps:
        for lane, amount in step.estimate.items():
            totals[lane] = totals.get(lane, 0) + amount
    return totals


def _amounts(estimate: Mapping[str, int]) -> list[tuple[str, str]]:
    return [shown({"lane": lane, "total": n, "limit": None})[:2] for lane, n in estimate.items() if n]


def _money(steps: Sequence[Expected], totals: Mapping[str, int], limits: Mapping[str, int]) -> None:
    guessed = [step for step in steps if step.what == "run"]
    unknown = sum(not step.estimate for step in guessed)
    for lane in sorted({*totals, *limits}):
        name, total, limit = shown({"lane": lane, "total": totals.get(lane, 0), "limit": limits.get(lane)})
        if totals.get(lane):
            over = click.style("  more than that: it would pause", fg="yellow")
            beyond = over if lane in limits and totals.get(lane, 0) > limits[lane] else ""
            render.say(f"estimated {name}: {total}{f' of {limit}' if limit else ''}{beyond}")
    if guessed and unknown:
        render.say(f"no estimate for {render.counted(unknown, 'step')}: say estimate in the plan, or run it once")
