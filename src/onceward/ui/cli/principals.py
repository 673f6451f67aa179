"""Who may act in this workspace."""

from __future__ import annotations

from typing import Any

import click

from onceward.core.records import ROLES
from onceward.core.views import document
from onceward.people.duties import ALLOWS
from onceward.ui.cli import render
from onceward.ui.cli.asking import ask, tell
from onceward.ui.cli.main import CliCommand, CliGroup, Globals, asking_options, pass_globals


@click.group(cls=CliGroup)
def principals() -> None:
    """Manage people and programs, and their roles."""


@principals.command("list", cls=CliCommand)
@pass_globals
def list_(given: Globals) -> None:
    """List all principals, and duties that no second person could do."""
    from onceward.people.views import duties_left, principal_list

    with given.workspace().reading() as store:
        found, left = principal_list(store), duties_left(store)
    if given.json:
        render.document(found)
        return
    rows = [(one.name, ", ".join(one.roles), (one.key or "none yet")[:16]) for one in found]
    render.table(("principal", "roles", "key"), rows)
    if left:
        render.say(render.plain(left))


@principals.command(cls=CliCommand)
@click.argument("name")
@click.option("--role", "roles", multiple=True, type=click.Choice(ROLES), help="May be repeated.")
@click.option(
    "--key",
    default="",
    metavar="OFFER",
    help="The principal's key, as printed by `keys new` or `keys show`.",
)
@asking_options
@pass_globals
def add(given: Globals, name: str, roles: tuple[str, ...], key: str) -> int:
    """Add the principal NAME, or give it more roles or a key.

    Without --key, the first key is created here.
    """
    if not roles and not key:
        raise click.UsageError("give a --role or a --key")
    payload = {"name": name, "roles": sorted(set(roles)), **({"key": key} if key else {})}
    return tell(given, ask(given, "principals.add", payload), _say)


@principals.command(cls=CliCommand)
@click.argument("name", required=False)
@click.option(
    "--take",
    "roles",
    multiple=True,
    type=click.Choice(ROLES),
    help="Remove this role. May be repeated.",
)
@asking_options
@pass_globals
def roles(given: Globals, name: str | None, roles: tuple[str, ...]) -> int:
    """Show what each role may do, or show or remove roles of NAME."""
    from onceward.people.views import principal_named

    if name is None:
        if roles:
            raise click.UsageError("--take needs a NAME")
        if given.json:
            render.document([{"role": role, "may": ALLOWS[role]} for role in ROLES])
        else:
            render.table(("role", "may"), [(role, ALLOWS[role]) for role in ROLES])
        return 0
    if roles:
        return tell(
            given, ask(given, "principals.take", {"name": name, "roles": sorted(set(roles))}), _say
        )
    with given.workspace().reading() as store:
        found = principal_named(store, name)
    if given.json:
        render.document(found)
    else:
        _say(document(found))
    return 0


def _say(value: dict[str, Any]) -> None:
    render.say(f"{render.plain(value['name'])}: {', '.join(value['roles']) or 'no role'}")
