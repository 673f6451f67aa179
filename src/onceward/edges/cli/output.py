"""Hand on what a build made (B-13)."""

from __future__ import annotations

import click

from onceward.edges.cli import render
from onceward.edges.cli.main import Command, Globals, file_argument, pass_globals


@click.command(cls=Command)
@click.argument("build")
@click.option("--project", metavar="NAME", default="output", show_default=True, help="What it is kept under.")
@click.option("--to", "to", metavar="DIR", help="Write it as this new folder instead.")
@pass_globals
def output(given: Globals, build: str, project: str, to: str | None) -> None:
    """Write everything BUILD made into a folder: files, manifest, checksums, and a page for people.

    It is staged, verified and moved into place whole; `current` beside it points to the newest.
    """
    from onceward.engine.output import write_output

    workspace = given.workspace()
    place = None if to is None else file_argument(to).absolute()
    with workspace.artifacts() as kept:
        written = write_output(kept, build, workspace.folder / "output", project, place)
    if given.json:
        render.document(
            {
                "folder": written.folder,
                "manifest_sha256": written.manifest_sha256,
                "files": written.files,
                "bytes": written.bytes,
            }
        )
        return
    render.say(f"{render.plain(written.folder)}")
    render.say(f"{render.counted(written.files, 'file')}, {render.counted(written.bytes, 'byte')}, verified")
    render.say(f"manifest {written.manifest_sha256}")
    render.say("look at it: HANDOFF.md there   check it: cd there; sha256sum --check SHA256SUMS")
