"""Making again from the records what follows from them."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click
import msgspec

from onceward.errors import NotFound, Recovery
from onceward.evidence.differences import Difference
from onceward.evidence.replay import ReplayResult, replay_bundle
from onceward.ui.cli import render
from onceward.ui.cli.evidence import progress_bar
from onceward.ui.cli.main import CliCommand, Globals, complete_build, means_file, pass_globals


@click.command(cls=CliCommand)
@click.argument(
    "subject", required=False, metavar="[BUILD|SESSION|BUNDLE]", shell_complete=complete_build
)
@click.option(
    "--runs",
    type=click.IntRange(1, 100),
    default=1,
    show_default=True,
    help="Number of repetitions.",
)
@pass_globals
def replay(given: Globals, subject: str | None, runs: int) -> int:
    """Recompute states from the records and compare byte by byte.

    Recomputes dispatch order, streams, totals and states; runs no work. A BUNDLE needs no workspace. Exit status: 5 if
    something differs; the first difference is printed.
    """
    with progress_bar(given) as progress:
        found = _replays(given, subject, runs, progress)
    last = found[-1]
    identical = last.difference is None and len({one.sha256 for one in found}) == 1
    if given.json:
        said = {"identical": identical, "runs": len(found), "sha256": last.sha256}
        said |= {"events": last.events, "children": last.children, "sessions": last.sessions}
        if last.difference is not None:
            said["first_difference"] = msgspec.to_builtins(last.difference)
        render.document(said)
    else:
        _say(last, identical, subject, len(found))
    return 0 if identical else 5


def _replays(given: Globals, subject: str | None, runs: int, progress: Any) -> list[ReplayResult]:
    def seen(events: int) -> None:
        if progress is not None:
            progress("events", events, events)

    path = Path(subject).expanduser() if subject else None
    if path is not None and path.is_file():
        return [replay_bundle(path, seen) for _ in range(runs)]
    if subject is not None and means_file(subject):
        raise NotFound(
            f"there is no file {path}",
            recovery=[Recovery("see which builds there are", "onceward list")],
        )
    return given.workspace().replay(subject, runs, seen)


def _say(found: ReplayResult, identical: bool, subject: str | None, runs: int) -> None:
    looked = (
        f"{render.counted(found.events, 'event')} of {render.counted(found.sessions, 'session')}"
    )
    often = f" {runs} times" if runs > 1 else ""
    if identical:
        render.say(
            f"{click.style('identical', fg='green')}: {looked} recomputed{often}, byte for byte"
        )
        render.say(f"sha256 {found.sha256}")
        return
    render.say(f"{click.style('not identical', fg='red')}: the first difference after {looked}")
    if found.difference is not None:
        _tell(found.difference)
    bundle = f" {shlex.quote(subject)}" if subject and Path(subject).expanduser().is_file() else ""
    render.say(f"next: onceward verify{bundle}")


def _tell(difference: Difference) -> None:
    code = f" ({difference.code})" if difference.code else ""
    render.say(f"  {render.plain(difference.where)}, {render.plain(difference.field)}{code}")
    for name in ("stored", "replayed"):
        value = getattr(difference, name)
        said = "nothing" if value is None else msgspec.json.encode(value).decode()
        render.say(f"    {name:9s} {render.plain(said)[:300]}")
