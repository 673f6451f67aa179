"""Plain words about things: what they are, why they are so, what to do next."""

from __future__ import annotations

from collections.abc import Sequence

import click
import msgspec

from onceward.ui.cli import render
from onceward.ui.cli.main import CliCommand, Globals, complete_build, pass_globals


@click.command(cls=CliCommand)
@click.argument(
    "words", nargs=-1, required=True, metavar="ID | [BUILD] STEP", shell_complete=complete_build
)
@pass_globals
def explain(given: Globals, words: tuple[str, ...]) -> None:
    """Describe anything by its ID, and print the next command.

    Says what it is, why it is in its state, how it got there, what it waits for, who may act and what it cost. Works for
    a build, step, saga, grant, registered value, change, child, session, principal, key, artifact or seal. A STEP alone
    is a step of the newest build.
    """
    from onceward.subjects import explain as explained

    if len(words) > 2:
        raise click.UsageError("give one id, or a build and a step")
    with given.workspace().reading() as store:
        found = explained(store, words)
    if given.json:
        render.document(msgspec.to_builtins(found))
        return
    colour = render.STATES.get(found.state)
    click.echo(
        f"{click.style(render.plain(found.id), bold=True)}  {click.style(found.state, fg=colour)}"
    )
    _lines("is", found.what)
    _lines("because", found.why)
    _lines("story", found.story)
    _lines("waits for", found.waits_for)
    _lines("may act", found.who)
    _lines("cost", [found.cost] if found.cost else [])
    _lines("has", found.made)
    _lines("next", found.next)


@click.command(cls=CliCommand)
@click.argument(
    "words", nargs=-1, required=True, metavar="[BUILD] STEP", shell_complete=complete_build
)
@pass_globals
def why(given: Globals, words: tuple[str, ...]) -> None:
    """Show why STEP of BUILD, or of the newest build, ran or was skipped.

    Names the inputs that changed. To see what a run would do now: onceward run PLAN --dry-run
    """
    from onceward.builds.explain import build_of
    from onceward.builds.explain import why as reasons

    if len(words) > 2:
        raise click.UsageError("give a step, or a build and a step")
    with given.workspace().reading() as store:
        found = reasons(store, build_of(store, words[0] if len(words) == 2 else None), words[-1])
    if given.json:
        render.document(found)
        return
    state = click.style(found.status, fg=render.STATES.get(found.status))
    click.echo(f"{click.style(render.plain(found.step), bold=True)}  {state}  in {found.build_id}")
    _lines("because", found.because)
    _lines("since", [found.since] if found.since is not None else [])


def _lines(word: str, texts: Sequence[str]) -> None:
    for number, text in enumerate(texts):
        label = click.style(f"  {word if not number else '':10s}", dim=True)
        click.echo(f"{label} {render.plain(text)}")
