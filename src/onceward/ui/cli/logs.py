"""What steps and children said."""

from __future__ import annotations

import sys

import click

from onceward.ui.cli import render
from onceward.ui.cli.main import CliCommand, Globals, complete_build, pass_globals


@click.command(cls=CliCommand)
@click.argument(
    "words",
    nargs=-1,
    required=True,
    metavar="[BUILD|SAGA] STEP|CHILD",
    shell_complete=complete_build,
)
@click.option("--follow", "-f", "follow", is_flag=True, help="Print new output until it ends.")
@pass_globals
def logs(given: Globals, words: tuple[str, ...], follow: bool) -> None:
    """Print the output of a step, an action or a child.

    A STEP is of BUILD, or of the newest build; an action is of SAGA.

    \b
    onceward logs extract:a
    onceward logs trip-1 charge
    onceward logs trip-1 "undo charge"
    onceward logs bld_01… extract:a --follow
    """
    from onceward.kernel.logs import child_named, lines_of
    from onceward.processes.spool import Spool

    if len(words) > 2:
        raise click.UsageError("give a step, or a build and a step")
    *build, subject = words
    workspace = given.workspace()
    with workspace.artifacts() as kept:
        with kept.store.read() as rows:
            child_id = child_named(rows, build[0] if build else None, subject)
        nothing = True
        for name, data in lines_of(kept, Spool(workspace.folder / "running"), child_id, follow):
            nothing = False
            if given.json:
                render.document(
                    {"child_id": child_id, "log": name, "text": data.decode("utf-8", "replace")}
                )
                continue
            to = sys.stderr if name == "stderr" else sys.stdout
            to.buffer.write(data)
            to.buffer.flush()
    if nothing and not given.json:
        click.secho(f"{child_id} printed nothing", dim=True, err=True)
