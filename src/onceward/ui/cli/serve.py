"""Serve a workspace: its kernel, its API and its pages, until told to stop; and the way in for a browser."""

from __future__ import annotations

import sys
import webbrowser
from contextlib import suppress
from typing import Any

import click

from onceward.errors import NotFound, Recovery
from onceward.ui.cli import render
from onceward.ui.cli.main import Command, Globals, pass_globals

_SESSION = 12 * 3600


@click.command(cls=Command)
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option(
    "--port",
    default=7423,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="0: any that is free.",
)
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="NAME",
    help="A name it is reached under. May be repeated.",
)
@click.option(
    "--tls-cert",
    "certificate",
    metavar="FILE",
    default="",
    help="A certificate, to be reached safely.",
)
@click.option("--tls-key", "key", metavar="FILE", default="", help="Its key.")
@click.option(
    "--without-tls", is_flag=True, help="Listen where others can reach it, and read what is said."
)
@click.option("--open", "open_", is_flag=True, help="Open it in a browser.")
@pass_globals
def serve(given: Globals, /, without_tls: bool, open_: bool, **asked: Any) -> None:
    """Be the kernel of the workspace and take work from everybody who may ask: in a browser, over HTTP, and from
    `onceward` commands that find you here. Beside a kernel that lives, wait as its standby."""
    # Only here: no other command waits for the libraries of the server to load.
    from onceward.ui.http.listening import Place
    from onceward.ui.http.server import Served

    workspace = given.workspace()
    workspace.ensure()
    served = Served(workspace, Place(**asked, open_wide=without_tls))

    def ready() -> None:
        link = served.link()
        if given.json:
            render.document({"url": served.url, "state": served.service.state, "link": link})
        else:
            how = (
                "its kernel"
                if served.service.state == "kernel"
                else "a standby of the kernel that lives"
            )
            render.say(
                f"serving {workspace.folder.parent} at {served.url} as {how}; Ctrl-C ends it"
            )
            render.say(f"sign in (once, within five minutes): {link}")
        if open_:
            _browse(link)

    served.run(ready)


@click.command("open", cls=Command)
@click.option("--link", is_flag=True, help="Only print the link.")
@pass_globals
def open_(given: Globals, link: bool) -> None:
    """Open the pages of the server that runs here in a browser, signed in as you. The link is good once, for five
    minutes."""
    from onceward.client import Client

    workspace = given.workspace()
    try:
        client = Client.here(workspace.folder)
    except NotFound as error:
        error.recovery = (Recovery("start one", "onceward serve --open"),)
        raise
    if workspace.principal != client.principal:
        client = Client(client.url, _own_token(given))
    said = client.new_code()
    if given.json:
        render.document({"url": said["url"], "seconds": said["seconds"]})
        return
    render.say(said["url"])
    if not link:
        _browse(said["url"])


def _own_token(given: Globals) -> str:
    """A token of whoever opens the pages, where the server is somebody else's; for as long as a browser's session."""
    from onceward.people.permits import hash_of
    from onceward.ui.cli.asking import ask
    from onceward.ui.cli.tokens import SIGN

    token = f"{SIGN}{given.workspace().sources.secret()}"
    asked = {"token_hash": hash_of(token), "seconds": _SESSION, "note": "onceward open"}
    ask(given, "tokens.new", asked)
    return token


def _browse(link: str) -> None:
    # Browsers of the terminal would take its place.
    with suppress(webbrowser.Error):
        if not webbrowser.open(link, new=2) and sys.stderr.isatty():
            click.secho("no browser could be opened: use the link", dim=True, err=True)
