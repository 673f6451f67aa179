"""Who may act in this workspace."""

from __future__ import annotations

import click

from onceward.edges.cli import render
from onceward.edges.cli.asking import ask, pending
from onceward.edges.cli.main import Command, Globals, Group, asking_options, pass_globals
from onceward.kernel.records import ROLES


@click.group(cls=Group)
def principals() -> None:
    """Who may act here, and as what."""


@principals.command("list", cls=Command)
@pass_globals
def list_(given: Globals) -> None:
    """Everybody this workspace knows."""
    from onceward.engine.reading import principal_list

    store = given.workspace().store()
    try:
        found = principal_list(store)
    finally:
        store.close()
    if given.json:
        render.document(found)
    else:
        render.table(("principal", "roles"), [(p["name"], ", ".join(p["roles"])) for p in found])


@principals.command(cls=Command)
@click.argument("name")
@click.option("--role", "roles", multiple=True, required=True, type=click.Choice(ROLES), help="May be repeated.")
@asking_options
@pass_globals
def add(given: Globals, name: str, roles: tuple[str, ...]) -> int:
    """Make NAME known, or give it more roles."""
    asked = ask(given, "principals.add", {"name": name, "roles": sorted(set(roles))})
    if asked.pending:
        return pending(given, asked)
    if given.json:
        render.document(asked.value)
    else:
        render.say(f"{render.plain(asked.value['name'])}: {', '.join(asked.value['roles'])}")
    return 0
