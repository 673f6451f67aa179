"""Plain words about things: what they are, why they are so, what to do next."""

from __future__ import annotations

from collections.abc import Sequence

import click
import msgspec

from onceward.ui.cli import render
from onceward.ui.cli.main import Command, Globals, complete_build, pass_globals


@click.command(cls=Command)
@click.argument(
    "words", nargs=-1, required=True, metavar="ID | [BUILD] STEP", shell_complete=complete_build
)
@pass_globals
def explain(given: Globals, words: tuple[str, ...]) -> None:
    """Say what something is, why it is in its state, how it got there, what it waits for, who may act, what it cost,
    and the next command: a build, step, saga, grant,
    registered value, change, child, session, principal, key, artifact or seal. A STEP alone is one of the
    newest build."""
    from onceward.subjects import explain as explained

    if len(words) > 2:
        raise click.UsageError("name one thing, or a build and a step")
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


@click.command(cls=Command)
@click.argument(
    "words", nargs=-1, required=True, metavar="[BUILD] STEP", shell_complete=complete_build
)
@pass_globals
def why(given: Globals, words: tuple[str, ...]) -> None:
    """Say why a STEP of BUILD, or of the newest build, ran or did not: which of its inputs changed.

    What a run would do now, and why, is told by: onceward run PLAN --dry-run
    """
    from onceward.builds.explain import build_of
    from onceward.builds.explain import why as reasons

    if len(words) > 2:
        raise click.UsageError("name a step, or a build and a step")
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
