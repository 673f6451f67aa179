"""What waits for delivery."""

from __future__ import annotations

import click

from onceward.ui.cli import render
from onceward.ui.cli.asking import ask, pending
from onceward.ui.cli.main import CliCommand, CliGroup, Globals, asking_options, pass_globals


@click.group(cls=CliGroup)
def outbox() -> None:
    """Show and flush events that wait for delivery to sinks."""


@outbox.command(cls=CliCommand)
@pass_globals
def status(given: Globals) -> None:
    """Show how many events wait for each sink."""
    from onceward.kernel.views import outbox_status

    workspace = given.workspace()
    with workspace.reading() as store:
        found = outbox_status(store, workspace.settings.sinks())
    if given.json:
        render.document(found)
    elif not found:
        render.say(
            "No sinks are configured. Add a [[sink]] to onceward.toml to have events delivered."
        )
    else:
        rows = [
            (one.sink, one.waiting, one.parked, one.oldest or "-", one.last_error or "-")
            for one in found
        ]
        render.table(("sink", "waiting", "parked", "oldest", "last error"), rows)


@outbox.command(cls=CliCommand)
@asking_options
@pass_globals
def flush(given: Globals) -> int:
    """Deliver all waiting events now, parked ones included."""
    asked = ask(given, "outbox.flush", {}, deliver=True)
    if asked.pending:
        return pending(given, asked)
    failures = [d for d in asked.deliveries or () if d.failed]
    if given.json:
        told = [
            {
                "sink": d.sink,
                "delivered": d.delivered,
                "failed": d.failed,
                "last_error": d.last_error,
            }
            for d in asked.deliveries or ()
        ]
        render.document({**asked.value, "sinks": told})
    elif asked.deliveries is None:
        render.say(
            f"{render.counted(asked.value['due'], 'event')} due; the running kernel delivers them now."
        )
    else:
        sent = sum(d.delivered for d in asked.deliveries)
        render.say(f"delivered {sent} of {asked.value['due']} due.")
        for delivery in failures:
            render.say(
                render.plain(f"  {delivery.sink}: {delivery.failed} failed: {delivery.last_error}")
            )
    return 1 if failures else 0
