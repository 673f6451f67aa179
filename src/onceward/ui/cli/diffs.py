"""Differences on a terminal: which files, and every line that goes or comes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence, Set

import click

from onceward.artifacts.tree_state import kind_of
from onceward.changes.diffs import FileDiff, Line
from onceward.changes.manifest import Origin
from onceward.core.hidden import marked
from onceward.ui.cli import render
from onceward.ui.cli.change_display import base_line

_MOST_DRIFT = 50
_SIGNS = {
    "added": ("+", "green"),
    "removed": ("-", "red"),
    "changed": ("~", "yellow"),
    "renamed": (">", "cyan"),
}


def show_diffs(diffs: Sequence[FileDiff], stat: bool) -> None:
    """All files of a change; without their lines if only the files are wanted."""
    for diff in diffs:
        if not stat:
            _lines(diff)
    for diff in diffs:
        sign, colour = _SIGNS.get(diff.what, ("m", "magenta"))
        counts = f"  {click.style(f'+{diff.added}', fg='green')} {click.style(f'-{diff.removed}', fg='red')}"
        click.echo(
            f"{click.style(sign, fg=colour)} {_name(diff)}{counts if diff.added or diff.removed else ''}"
        )
    added, removed = sum(diff.added for diff in diffs), sum(diff.removed for diff in diffs)
    click.echo(
        f"{render.counted(len(diffs), 'file')}, {render.counted(added, 'line')} added, {removed:,} removed"
    )


def show_terms(target: str, check: Sequence[str], origin: Origin | None, paths: Set[str]) -> None:
    """What an approval is for beside the files: where they go, what they were made on, and what is run there."""
    click.echo(f"into {click.style(render.plain(target), bold=True)}")
    if check:
        click.echo(
            f"check, run there at verification: {click.style(render.plain(shlex.join(check)), bold=True)}"
        )
    if origin is not None:
        click.echo(base_line(origin.build, {unit.path for unit in origin.drift} & paths))
        show_drift(origin)


def drift_digest(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """The digest of a list of files, as a refusal names it."""
    if value and not re.fullmatch("[0-9a-f]{64}", value):
        raise click.BadParameter("expected 64 hexadecimal digits, as the refusal prints them")
    return value


def show_drift(origin: Origin) -> None:
    """What was changed beside the proposal while it was made."""
    if not origin.drift:
        return
    many = render.counted(len(origin.drift), "file")
    click.secho(f"{many} changed since then, outside any recorded cut:", fg="red")
    for unit in origin.drift[:_MOST_DRIFT]:
        click.secho(f"  {render.plain(unit.path)} ({kind_of(unit)})", fg="red")
    if len(origin.drift) > _MOST_DRIFT:
        click.secho(f"  and {len(origin.drift) - _MOST_DRIFT:,} more (--json lists all)", fg="red")


def _name(diff: FileDiff) -> str:
    old = f"{diff.old_path} -> " if diff.old_path else ""
    changed = diff.before_mode and diff.after_mode and diff.before_mode != diff.after_mode
    modes = f" (mode {diff.before_mode} -> {diff.after_mode})" if changed else ""
    made = (
        f" ({diff.after_mode})"
        if diff.what == "added" and diff.after_mode not in (None, "644")
        else ""
    )
    return render.plain(f"{old}{diff.path}{modes}{made}{f' ({diff.note})' if diff.note else ''}")


def _lines(diff: FileDiff) -> None:
    if not diff.lines:
        return
    click.secho(f"--- {render.plain(diff.path) if diff.before else '/dev/null'}", bold=True)
    click.secho(f"+++ {render.plain(diff.path) if diff.after else '/dev/null'}", bold=True)
    for line in diff.lines:
        click.echo(_line(line))


def _line(line: Line) -> str:
    if line.sign == "@":
        return click.style("...", dim=True)
    text, _, note = line.text.partition("\n")
    shown = f"{line.sign}{marked(text)}"
    colour = {"+": "green", "-": "red"}.get(line.sign)
    return click.style(shown, fg=colour) + (click.style(f"\n{note}", dim=True) if note else "")
