"""Serve a workspace: its kernel, its API and its pages, until told to stop; and the way in for a browser."""

from __future__ import annotations

import sys
import webbrowser
from contextlib import suppress
from typing import Any

import click

from onceward.errors import NotFound, Recovery
from onceward.ui.cli import render
from onceward.ui.cli.main import CliCommand, Globals, pass_globals

_SESSION = 12 * 3600


@click.command(cls=CliCommand)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port",
    default=7423,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="The port to listen on; 0 chooses a free one.",
)
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="NAME",
    help="A host name under which clients reach the server. May be repeated.",
)
@click.option(
    "--tls-cert",
    "certificate",
    metavar="FILE",
    default="",
    help="The TLS certificate.",
)
@click.option("--tls-key", "key", metavar="FILE", default="", help="The TLS certificate's key.")
@click.option(
    "--without-tls",
    is_flag=True,
    help="Listen on a public address without TLS; others can read the traffic.",
)
@click.option("--open", "open_", is_flag=True, help="Open the pages in a browser.")
@pass_globals
def serve(given: Globals, /, without_tls: bool, open_: bool, **asked: Any) -> None:
    """Run the server: kernel, API and web pages.

    Takes work from a browser, over HTTP, and from `onceward` commands in the same workspace. If another kernel is
    running, waits as its standby and takes over when it ends.
    """
    # Only here: no other command waits for the libraries of the server to load.
    from onceward.ui.http.listening import ListenAddress
    from onceward.ui.http.server import WorkspaceServer

    workspace = given.workspace()
    workspace.ensure()
    served = WorkspaceServer(workspace, ListenAddress(**asked, open_wide=without_tls))

    def ready() -> None:
        link = served.link()
        if given.json:
            render.document({"url": served.url, "state": served.service.state, "link": link})
        else:
            how = (
                "its kernel"
                if served.service.state == "kernel"
                else "a standby of the running kernel"
            )
            render.say(
                f"serving {workspace.folder.parent} at {served.url} as {how}; press Ctrl-C to stop"
            )
            render.say(f"sign in (the link works once, for five minutes): {link}")
        if open_:
            _browse(link)

    served.run(ready)


@click.command("open", cls=CliCommand)
@click.option("--link", is_flag=True, help="Print the link; open no browser.")
@pass_globals
def open_(given: Globals, link: bool) -> None:
    """Open the pages of the running server in a browser, signed in as you.

    The link works once, for five minutes.
    """
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
            click.secho("could not open a browser; use the link", dim=True, err=True)
