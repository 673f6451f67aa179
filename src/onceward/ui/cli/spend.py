"""What was spent, across builds."""

from __future__ import annotations

import shutil
from typing import Any

import click

from onceward.core.views import LaneView
from onceward.ui.cli import render
from onceward.ui.cli.display import shown
from onceward.ui.cli.main import CliCommand, Globals, pass_globals

_HEADINGS = {"build": ("build", "plan"), "stage": ("stage", "plan"), "day": ("day (UTC)", "")}
_BAR = 24
_OTHERS = 74
"""How wide the other columns are at most."""


@click.command(cls=CliCommand)
@click.option(
    "--by",
    type=click.Choice(["build", "stage", "day"]),
    default="build",
    show_default=True,
    help="Group costs by this.",
)
@click.option(
    "--last",
    type=click.IntRange(1, 100_000),
    default=30,
    show_default=True,
    help="Maximum number of lines.",
)
@pass_globals
def spend(given: Globals, by: str, last: int) -> None:
    """Show the costs in this workspace by build, stage or day."""
    from onceward.dispatch.spending import spending

    with given.workspace().reading() as store:
        found = spending(store, by)
    if given.json:
        render.document({**found, "groups": found["groups"][:last]})
        return
    groups = found["groups"]
    if not groups:
        render.say("No costs yet.")
        return
    most = max(group["lanes"].get("usd_micros", 0) for group in groups)
    first, second = _HEADINGS[by]
    room = max(0, min(_BAR, shutil.get_terminal_size((120, 24)).columns - _OTHERS))
    rows = [_row(group, most, bool(second), room) for group in groups[:last]]
    render.table((first, *([second] if second else []), "usd", "tokens", "time", ""), rows)
    if len(groups) > last:
        render.say(f"... and {len(groups) - last:,} more (--last {len(groups)})")
    _total(found)


def _row(group: dict[str, Any], most: int, named: bool, room: int) -> tuple[str, ...]:
    lanes = group["lanes"]
    share = lanes.get("usd_micros", 0) * room // most if most else 0
    bar = "\N{BLACK SQUARE}" * share
    name = (group["name"] or "-",) if named else ()
    time = render.duration(lanes.get("duration_secs", 0))
    return (group["key"], *name, group["cost_usd"], f"{lanes.get('tokens', 0):,}", time, bar)


def _total(found: dict[str, Any]) -> None:
    said = []
    for lane in sorted(found["lanes"], reverse=True):
        if lane == "duration_secs":
            continue
        name, total, limit = shown(
            LaneView(lane=lane, total=found["lanes"][lane], limit=found["limits"].get(lane))
        )
        said.append(f"{total}{f' of the {limit} limit of the workspace,' if limit else ''} {name}")
    render.say(f"total: {', '.join(said)}" if said else "total: no money")
