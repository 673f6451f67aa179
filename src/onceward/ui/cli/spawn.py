"""Run any command under a session: budgets, a target lock, a time limit, whole-tree endings, and evidence (C-9)."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from onceward.errors import InvalidConfig
from onceward.ui.cli.display import SpawnDisplay
from onceward.ui.cli.following import follow_session, serves
from onceward.ui.cli.main import CliCommand, Globals, Seconds, pass_globals

_SESSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@click.command(cls=CliCommand, context_settings={"allow_interspersed_args": False})
@click.option(
    "--session",
    metavar="ID",
    help="Run in this session, with its budgets and its stream [default: a new session].",
)
@click.option(
    "--new", "new", is_flag=True, help="Create the session of --session if it is missing."
)
@click.option(
    "--jobs",
    type=click.IntRange(1, 1000),
    help="Maximum number of commands at a time [default: 2].",
)
@click.option(
    "--budget",
    "budgets",
    multiple=True,
    metavar="LANE=N",
    help="Limit a lane: usd, tokens, solver_calls or duration_secs.",
)
@click.option("--target", metavar="NAME", help="Hold this target's lock while the command runs.")
@click.option(
    "--timeout",
    type=Seconds(least=0.001),
    metavar="SECONDS",
    help="Time limit of the command [default: none].",
)
@click.option(
    "--attempts",
    type=click.IntRange(1, 100),
    default=1,
    show_default=True,
    help="Maximum attempts; only exit statuses 75, 76 and 77 are retried.",
)
@click.option(
    "--env",
    "env",
    multiple=True,
    metavar="NAME",
    help="Pass this environment variable to the command.",
)
@click.option(
    "--secret",
    "secrets",
    multiple=True,
    metavar="NAME",
    help="Like --env, and redact the value in all records.",
)
@click.option(
    "--operation", default="", metavar="CODE@VERSION", help="The registered operation it performs."
)
@click.option(
    "--effect",
    default="",
    metavar="ACT",
    help="The kind of act it performs, such as WRITE; the operation must be of that kind.",
)
@click.option(
    "--each",
    "each",
    multiple=True,
    metavar="VALUE",
    help="Run once per VALUE, which replaces {} (- reads lines from standard input).",
)
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED)
@pass_globals
def spawn(
    given: Globals,
    /,
    session: str | None,
    new: bool,
    jobs: int | None,
    argv: tuple[str, ...],
    **asked: Any,
) -> int:
    """Run the command ARGV with a budget, a lock and a time limit.

    It runs in the foreground as a child of a session, and everything is recorded. The command sees PATH, HOME and a few
    other variables, and an empty standard input. It reports its spending with `onceward report`; when a budget lane is
    used up, it is ended.

    \b
    onceward spawn --budget tokens=200000 --timeout 600 --target repo -- my-agent --task fix
    onceward spawn --jobs 4 --each a.md --each b.md -- ./summarise {}
    """
    import msgspec

    from onceward.core.orders import seconds_text
    from onceward.dispatch.acts import Spawn
    from onceward.dispatch.spawning import commands_of
    from onceward.kernel import foreground
    from onceward.kernel.signals import Signals

    limits = limits_of(asked["budgets"])
    values = _values(asked["each"])
    workspace = given.workspace()
    new = new or session is None
    session = session or workspace.sources.new_id("ses")
    if not _SESSION.fullmatch(session):
        raise InvalidConfig(
            f"{session[:60]!a} is not a valid session id", context={"field": "--session"}
        )
    if not new:
        session = workspace.session(session)
    order = Spawn(
        argv=argv,
        session=session,
        budget=budget_of(asked["budgets"]),
        jobs=jobs,
        each=tuple(values),
        folder=str(Path.cwd()),
        timeout=seconds_text(asked["timeout"]),
        **{
            name: asked[name]
            for name in ("target", "attempts", "env", "secrets", "operation", "effect")
        },
    )
    shown = SpawnDisplay(given.json, session, len(values) or 1)
    works = [
        msgspec.structs.replace(work, on_output=shown.output)
        for work in commands_of(order, Path.cwd())
    ]
    if serves(workspace):
        variables = {name: os.environ[name] for name in (*order.env, *order.secrets)}
        return follow_session(given, order, shown, variables)
    stop = threading.Event()
    with Signals(stop, leaving=True) as signals:
        kernel = workspace.kernel(signals.interrupted)
        try:
            ended = foreground.run(
                kernel,
                session,
                jobs=jobs,
                limits=limits,
                works=works,
                stop=stop,
                begun=shown.begun,
                told=shown.ended,
                held=shown.held,
            )
        finally:
            kernel.close()
    shown.summary(workspace.spending(session), ended.values())
    return signals.exit_status or _status(ended.values())


def _status(ends: Iterable[Any]) -> int:
    """0 if all passed, 4 if a target was held by another, else 1."""
    failed = [end for end in ends if end.reason != "completed"]
    held = any(end.detail.get("error") == "LOCK_CONFLICT" for end in failed)
    return 4 if held else int(bool(failed))


def _values(each: Sequence[str]) -> list[str]:
    found: list[str] = []
    if "-" in each and sys.stdin is None:
        raise InvalidConfig(
            "--each - reads standard input, which is closed", context={"field": "--each"}
        )
    for value in each:
        found += filter(None, sys.stdin.read().splitlines()) if value == "-" else [value]
    if each and not found:
        raise InvalidConfig(
            "--each - found no lines on standard input", context={"field": "--each"}
        )
    return found


def limits_of(budgets: Sequence[str]) -> dict[str, int]:
    """`LANE=N` words as limits."""
    from onceward.dispatch.budget import amounts

    said = budget_of(budgets)
    return amounts(said) if said else {}


def budget_of(budgets: Sequence[str]) -> dict[str, str]:
    """`LANE=N` words, as they were said."""
    said: dict[str, str] = {}
    for text in budgets:
        lane, equals, amount = text.partition("=")
        if not equals:
            raise InvalidConfig(
                f"--budget takes LANE=N, not {text[:60]!a}", context={"field": "--budget"}
            )
        if lane in said:
            raise InvalidConfig(f"--budget names {lane[:40]} twice", context={"field": "--budget"})
        said[lane] = amount
    return said
