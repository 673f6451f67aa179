"""Who holds which target, and clearing what nobody holds any more (L-10)."""

from __future__ import annotations

from typing import Any

import click

from onceward.edges.cli import render
from onceward.edges.cli.asking import ask, pending
from onceward.edges.cli.main import Command, Globals, Group, asking_options, pass_globals
from onceward.errors import InvalidConfig


@click.group(cls=Group)
def locks() -> None:
    """Who holds which target."""


@locks.command("list", cls=Command)
@pass_globals
def list_(given: Globals) -> None:
    """Every claim, and whether its holder lives."""
    from onceward.engine.targets import lock_list

    workspace = given.workspace()
    workspace.store().close()
    found = lock_list(workspace.locks)
    if given.json:
        render.document(found)
    elif found:
        rows = [
            (e["target"], e["liveness"], e.get("pid", "-"), e.get("createdAt", "-"), e["why"])
            for e in found
        ]
        render.table(("target", "holder", "pid", "since", "why"), rows)
    else:
        render.say("No targets are locked.")


@locks.command(cls=Command)
@click.argument("target")
@pass_globals
def show(given: Globals, target: str) -> None:
    """All that is known of TARGET's claim."""
    from onceward.engine.targets import lock_named

    given.workspace().store().close()
    entry = lock_named(given.workspace().locks, target)
    if given.json:
        render.document(entry)
        return
    _describe(entry)
    if entry["liveness"] == "dead":
        render.say("Nothing needs to be done: whoever wants the target next takes it.")


@locks.command(cls=Command)
@click.argument("target")
@click.option(
    "--yes", "nonce", metavar="NONCE", help="Do not ask; the claim's nonce, as `show` prints it."
)
@asking_options
@pass_globals
def clear(given: Globals, target: str, nonce: str | None) -> int:
    """Remove TARGET's claim on your word that nobody works under it. Recorded in the workspace's stream."""
    from onceward.engine.targets import claim_of

    given.workspace().store().close()
    entry = claim_of(given.workspace().locks, target, nonce)
    if nonce is None:
        if not given.json:
            _describe(entry)
        typed = click.prompt("Type the target's name to clear its claim", err=True)
        if typed != target:
            raise InvalidConfig(f"{typed!r} is not {target!r}; nothing was cleared")
    workspace = given.workspace()
    asked = ask(given, "locks.clear", {"target": target, "claim": entry})
    if asked.pending:
        return pending(given, asked)
    outcome = workspace.locks.clear(target, entry.get("nonce"))
    if given.json:
        render.document({"target": target, "outcome": outcome})
    else:
        render.say(f"{target}: {outcome}")
    return 0 if outcome != "not-owned" else 4


def _describe(entry: dict[str, Any]) -> None:
    for key, value in entry.items():
        render.say(f"{key:13s} {render.plain(value)}")
