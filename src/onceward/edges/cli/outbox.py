"""What waits for delivery."""

from __future__ import annotations

import click

from onceward.edges.cli import render
from onceward.edges.cli.asking import ask
from onceward.edges.cli.main import Command, Globals, pass_globals


@click.group()
def outbox() -> None:
    """See and flush what waits for delivery to the configured sinks."""


@outbox.command(cls=Command)
@pass_globals
def status(given: Globals) -> None:
    """How far behind each sink is."""
    from onceward.engine.reading import outbox_status

    workspace = given.workspace()
    store = workspace.store()
    try:
        found = outbox_status(store, [sink.name for sink in workspace.settings.sink])
    finally:
        store.close()
    if given.json:
        render.document(found)
    elif not found:
        render.say("No sinks are configured. Add a [[sink]] to onceward.toml to have events delivered.")
    else:
        rows = [(s["sink"], s["waiting"], s["parked"], s.get("oldest", "-"), s.get("last_error", "-")) for s in found]
        render.table(("sink", "waiting", "parked", "oldest", "last error"), rows)


@outbox.command(cls=Command)
@click.option("--wait", type=float, metavar="SECONDS", help="How long to wait for a live kernel.")
@pass_globals
def flush(given: Globals, wait: float | None) -> int:
    """Deliver everything now, parked events included."""
    return ask(given, "outbox.flush", {}, wait, _render)


def _render(given: Globals, answer: dict[str, int]) -> None:
    if given.json:
        render.document(answer)
    elif answer.get("delivered") is None:
        render.say(f"{answer['due']} events are due; the live kernel delivers them now.")
    else:
        render.say(f"delivered {answer['delivered']}, failed {answer['failed']} of {answer['due']} due.")
