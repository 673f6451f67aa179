"""Serve a workspace: its kernel, its API, until told to stop."""

from __future__ import annotations

import click

from onceward.edges.cli import render
from onceward.edges.cli.main import Command, Globals, pass_globals
from onceward.errors import InvalidConfig, Recovery


@click.command(cls=Command)
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option("--port", default=7423, show_default=True, type=click.IntRange(0, 65535), help="0: any that is free.")
@click.option("--without-tls", is_flag=True, help="Listen where others can reach it, and read what is said.")
@pass_globals
def serve(given: Globals, host: str, port: int, without_tls: bool) -> None:
    """Be the kernel of the workspace and take work from everybody who may ask: over HTTP, and from `onceward` commands
    that find you here. Beside a kernel that lives, wait as its standby."""
    try:
        from onceward.edges.http.server import Served
    except ModuleNotFoundError as missing:
        raise InvalidConfig(
            f"the server needs {missing.name}, which is not installed",
            recovery=[Recovery("install it", "pip install 'onceward[server]'")],
        ) from None

    workspace = given.workspace()
    workspace.ensure()
    served = Served(workspace, host, port, open_wide=without_tls)

    def ready() -> None:
        said = {"url": served.url, "state": served.service.state}
        if given.json:
            render.document(said)
        else:
            how = "its kernel" if said["state"] == "kernel" else "a standby of the kernel that lives"
            render.say(f"serving {workspace.folder.parent} at {served.url}/api/v1 as {how}; Ctrl-C ends it")

    served.run(ready)
