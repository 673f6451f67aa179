"""Tokens: what a program shows the server to act as somebody."""

from __future__ import annotations

from typing import Any

import click

from onceward.ui.cli import render
from onceward.ui.cli.asking import ask, tell
from onceward.ui.cli.main import CliCommand, CliGroup, Globals, asking_options, pass_globals

SIGN: str = "owt_"
"""How every token begins, so that whoever finds one knows what it is."""


@click.group(cls=CliGroup)
def tokens() -> None:
    """Manage access tokens for the server.

    A program that presents a token acts as its principal. The workspace stores only the token's hash.
    """


@tokens.command(cls=CliCommand)
@click.option(
    "--for",
    "lasting",
    default="30d",
    show_default=True,
    help="How long it is valid: 12h, 30d.",
)
@click.option("--note", default="", help="What the token is for.")
@asking_options
@pass_globals
def new(given: Globals, lasting: str, note: str) -> int:
    """Create a token for yourself, or for the principal of --as.

    The token is shown once.
    """
    from onceward.dispatch.stage_words import duration_of
    from onceward.people.permits import hash_of

    seconds = int(duration_of("--for", int(lasting) if lasting.isdecimal() else lasting))
    token = f"{SIGN}{given.workspace().sources.secret()}"
    asked = ask(
        given, "tokens.new", {"token_hash": hash_of(token), "seconds": seconds, "note": note}
    )
    # Shown even while the kernel has not answered: it is nowhere else.
    asked.value = {**asked.value, "token": token}
    if asked.pending and not given.json:
        render.say(f"{token} is valid once the kernel has answered.")
    return tell(given, asked, _say_new)


def _say_new(value: dict[str, Any]) -> None:
    click.echo(value["token"])
    click.echo(
        f"{value['token_id']}: its bearer acts as {render.plain(value['principal'])} until"
        f" {value['expires_at'][:16].replace('T', ' ')} UTC. The token is not shown again.",
        err=True,
    )


@tokens.command("list", cls=CliCommand)
@pass_globals
def list_(given: Globals) -> None:
    """List all tokens with their principals and states."""
    from onceward.people.tokens import token_list

    with given.workspace().reading() as store:
        found = token_list(store)
    if given.json:
        render.document(found)
        return
    rows = [
        (
            one["token_id"],
            one["principal"],
            one["state"],
            one["expires_at"][:16].replace("T", " "),
            one["note"],
        )
        for one in found
    ]
    render.table(("token", "of", "", "until", "for"), rows)


@tokens.command(cls=CliCommand)
@click.argument("token")
@asking_options
@pass_globals
def revoke(given: Globals, token: str) -> int:
    """Revoke TOKEN, given by its id.

    You can revoke your own tokens; an admin can revoke any.
    """
    return tell(given, ask(given, "tokens.revoke", {"token": token}), _say_revoked)


def _say_revoked(value: dict[str, Any]) -> None:
    render.say(f"revoked {value['token_id']} of {render.plain(value['principal'])}")
