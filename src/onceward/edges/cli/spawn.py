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

from onceward.edges.cli.display import Display
from onceward.edges.cli.main import Command, Globals, Seconds, pass_globals
from onceward.errors import InvalidConfig

_SESSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@click.command(cls=Command, context_settings={"allow_interspersed_args": False})
@click.option("--session", metavar="ID", help="Go on in this session: its budgets and its stream [default: a new one].")
@click.option("--new", "new", is_flag=True, help="The session may be a new one of that ID.")
@click.option("--jobs", type=click.IntRange(1, 1000), help="How many run at once [default: 2].")
@click.option(
    "--budget", "budgets", multiple=True, metavar="LANE=N", help="Lanes: usd tokens solver_calls duration_secs."
)
@click.option("--target", metavar="NAME", help="Hold this target's lock meanwhile.")
@click.option("--timeout", type=Seconds(), metavar="SECONDS", help="End it after so long [default: no limit].")
@click.option(
    "--attempts",
    type=click.IntRange(1, 100),
    default=1,
    show_default=True,
    help="Tries, where it exits with 75, 76 or 77.",
)
@click.option("--env", "env", multiple=True, metavar="NAME", help="Let it see this variable of yours.")
@click.option("--secret", "secrets", multiple=True, metavar="NAME", help="The same, and redact its value everywhere.")
@click.option("--operation", default="", metavar="CODE@VERSION", help="The registered operation that it is.")
@click.option("--effect", default="", metavar="ACT", help="The kind of act that it is; the operation must be for it.")
@click.option("--each", "each", multiple=True, metavar="VALUE", help="Once per VALUE, put in for {} (- reads lines).")
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED)
@pass_globals
def spawn(
    given: Globals, /, session: str | None, new: bool, jobs: int | None, argv: tuple[str, ...], **asked: Any
) -> int:
    """Run ARGV... in the foreground as a child of a session: with budgets, a time limit, a lock and a record.

    The command sees PATH, HOME and a few like them, and an empty standard input. It says what it spends with
    `onceward report`; when a lane of the budget has no room, it is ended.

    \b
    onceward spawn --budget tokens=200000 --timeout 600 --target repo -- my-agent --task fix
    onceward spawn --jobs 4 --each a.md --each b.md -- ./summarise {}
    """
    from onceward.engine import foreground
    from onceward.engine.signals import Signals

    limits = limits_of(asked["budgets"])
    values = _values(asked["each"])
    workspace = given.workspace()
    new = new or session is None
    session = session or workspace.sources.new_id("ses")
    if not _SESSION.fullmatch(session):
        raise InvalidConfig(f"{session[:60]!a} is not a session's id", context={"field": "--session"})
    if not new:
        session = workspace.session(session)
    shown = Display(given.json, session, len(values))
    works = _works(values, argv, asked, shown)
    stop = threading.Event()
    with Signals(stop, leaving=True) as signals:
        kernel = workspace.kernel()
        try:
            ended = foreground.run(kernel, session, jobs, limits, works, stop, shown.begun, shown.ended)
        finally:
            kernel.close()
    shown.summary(workspace.spending(session), ended.values())
    return signals.exit_status or _status(ended.values())


def _status(ends: Iterable[Any]) -> int:
    """0 if all passed, 4 if a target was held by another, else 1."""
    failed = [end for end in ends if end.reason != "completed"]
    held = any(end.detail.get("error") == "LOCK_CONFLICT" for end in failed)
    return 4 if held else int(bool(failed))


def _works(values: Sequence[str | None], argv: Sequence[str], asked: dict[str, Any], shown: Display) -> list[Any]:
    from onceward.engine.redaction import check_secret
    from onceward.engine.work import Command as CommandWork
    from onceward.kernel.vocabulary import key_of
    from onceward.locks.claims import check_target

    target = asked["target"]
    if asked["each"] and not any("{}" in word for word in argv):
        raise InvalidConfig("--each puts its values in for {}, and the command has none", context={"field": "--each"})
    for name in (*asked["env"], *asked["secrets"]):
        if name not in os.environ:
            raise InvalidConfig(f"{name[:60]!a} is not set, so it cannot be passed on", context={"field": "--env"})
    for name in asked["secrets"]:
        check_secret(name, os.environ[name])
    if target is not None and len(values) > 1 and "{}" not in target:
        raise InvalidConfig("one target cannot be held by several; put {} into its name", context={"field": "--target"})
    operation = str(key_of(asked["operation"])) if asked["operation"] else ""
    works = []
    for value in values:
        named = None if target is None else check_target(_filled(target, value))
        works.append(
            CommandWork(
                argv=[_filled(word, value) for word in argv],
                cwd=Path.cwd(),
                target=named,
                timeout=asked["timeout"],
                attempts=asked["attempts"],
                env=(*_USUAL, *asked["env"]),
                secrets=asked["secrets"],
                on_output=shown.output,
                operation=operation,
                effect=asked["effect"],
            )
        )
    return works


# What a command started by hand expects to find; nothing secret is among them by habit.
_USUAL = ("HOME", "USER", "LOGNAME", "SHELL", "TERM", "COLORTERM", "NO_COLOR", "XDG_CONFIG_HOME", "VIRTUAL_ENV")


def _filled(word: str, value: str | None) -> str:
    return word if value is None else word.replace("{}", value)


def _values(each: Sequence[str]) -> list[str | None]:
    found: list[str | None] = []
    if "-" in each and sys.stdin is None:
        raise InvalidConfig("--each - reads standard input, and that is closed", context={"field": "--each"})
    for value in each:
        found += filter(None, sys.stdin.read().splitlines()) if value == "-" else [value]
    if each and not found:
        raise InvalidConfig("--each - found no lines on standard input", context={"field": "--each"})
    return found or [None]


def limits_of(budgets: Sequence[str]) -> dict[str, int]:
    """`LANE=N` words as limits."""
    from onceward.lifecycles.budget import amounts

    said = {}
    for text in budgets:
        lane, equals, amount = text.partition("=")
        if not equals:
            raise InvalidConfig(f"--budget takes LANE=N, not {text[:60]!a}", context={"field": "--budget"})
        if lane in said:
            raise InvalidConfig(f"--budget names {lane[:40]} twice", context={"field": "--budget"})
        said[lane] = amount
    return amounts(said) if said else {}
