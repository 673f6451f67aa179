"""Who may act in this workspace."""

from __future__ import annotations

from typing import Any

import click

from onceward.edges.cli import render
from onceward.edges.cli.asking import ask
from onceward.edges.cli.main import Command, Globals, pass_globals
from onceward.kernel.records import ROLES


@click.group()
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
@click.option("--wait", type=float, metavar="SECONDS", help="How long to wait for a live kernel.")
@click.option("--request-id", help="Ask again under this id and get the same answer.")
@pass_globals
def add(given: Globals, name: str, roles: tuple[str, ...], wait: float | None, request_id: str | None) -> int:
    """Make NAME known, or give it more roles."""
    given.request_id = request_id
    return ask(given, "principals.add", {"name": name, "roles": sorted(set(roles))}, wait, _render)


def _render(given: Globals, answer: dict[str, Any]) -> None:
    if given.json:
        render.document(answer)
    else:
        render.say(f"{answer['name']}: {', '.join(answer['roles'])}")
