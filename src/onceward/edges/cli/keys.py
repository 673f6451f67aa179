"""Keys: the files somebody acts with, and which of them a workspace knows."""

from __future__ import annotations

import shlex
from typing import Any

import click

from onceward.edges.cli import render
from onceward.edges.cli.asking import ask, tell
from onceward.edges.cli.main import Command, Globals, Group, asking_options, pass_globals


@click.group(cls=Group)
def keys() -> None:
    """The keys people act with; their files stay on this machine. A principal comes with its first one."""


@keys.command(cls=Command)
@asking_options
@pass_globals
def new(given: Globals) -> int:
    """Make a new key for yourself, or for the principal of --as. The old one stays in force until it is revoked."""
    from onceward.engine.reading import standing_of

    workspace = given.workspace()
    with workspace.reading() as store:
        standing = standing_of(store, workspace.keyring, workspace.principal)
        signer = workspace.keyring.make(
            workspace.principal, standing.workspace, another=standing.known
        )
    said: dict[str, Any] = {
        "key": signer.key.fingerprint,
        "principal": workspace.principal,
        "offer": signer.offer(),
    }
    if standing.able:
        return tell(given, ask(given, "keys.add", {"key": signer.offer()}), _say_new)
    if given.json:
        render.document({**said, "status": "offered"})
        return 3
    role = "" if standing.known else " --role ROLE"
    render.say(
        f"made the key {said['key'][:16]} of {render.plain(said['principal'])}. It counts once an admin takes it:"
    )
    render.say(
        f"  onceward principals add {shlex.quote(said['principal'])}{role} --key {said['offer']}"
    )
    return 3


def _say_new(value: dict[str, Any]) -> None:
    render.say(
        f"{render.plain(value['principal'])} acts with the key {value['key'][:16]} from now on."
    )


@keys.command("list", cls=Command)
@pass_globals
def list_(given: Globals) -> None:
    """Every key that was ever in force here, and whether its file is on this machine."""
    from onceward.engine.reading import key_list

    workspace = given.workspace()
    with workspace.reading() as store:
        found = key_list(store, workspace.keyring)
    if given.json:
        render.document(found)
        return
    rows = [
        (
            k["key"][:16],
            k["principal"],
            "revoked" if "revoked_seq" in k else "in force",
            "here" if k["here"] else "",
        )
        for k in found
    ]
    render.table(("key", "of", "", "file"), rows)


@keys.command(cls=Command)
@click.argument("key", required=False)
@pass_globals
def show(given: Globals, key: str | None) -> None:
    """Show the public part of KEY, or of your own: what others need to check what it signed."""
    from onceward.engine.reading import key_shown

    workspace = given.workspace()
    with workspace.reading() as store:
        found = key_shown(store, workspace.keyring, workspace.principal, key)
    if given.json:
        render.document(found)
        return
    for name in ("key", "principal", "state", "public", "offer", "file"):
        if name in found:
            click.echo(f"{name:10s} {render.plain(found[name])}")


@keys.command(cls=Command)
@click.argument("key")
@click.option("--reason", default="", help="Why, for those who ask later.")
@asking_options
@pass_globals
def revoke(given: Globals, key: str, reason: str) -> int:
    """Let KEY be in force no more, from now on. What it signed before stays signed."""
    asked = ask(given, "keys.revoke", {"key": key.lower(), "reason": reason})
    return tell(
        given,
        asked,
        lambda value: render.say(f"revoked {value['key'][:16]} of {value['principal']}"),
    )
