"""Hand on what a build made (B-13)."""

from __future__ import annotations

import shlex

import click

from onceward.ui.cli import render
from onceward.ui.cli.main import CliCommand, Globals, build_argument, file_argument, pass_globals


@click.command(cls=CliCommand)
@build_argument(required=False)
@click.option(
    "--project",
    metavar="NAME",
    default="output",
    show_default=True,
    help="Write to .onceward/output/NAME.",
)
@click.option("--to", "to", metavar="DIR", help="Write to this new folder instead.")
@pass_globals
def output(given: Globals, build: str | None, project: str, to: str | None) -> None:
    """Write the results of BUILD, or of the newest build, to a folder.

    Writes the output files, a manifest, checksums and a readable page. The folder is staged, verified and moved into
    place as a whole; `current` beside it points to the newest.
    """
    from onceward.builds.explain import build_of
    from onceward.builds.output import write_output

    workspace = given.workspace()
    place = None if to is None else file_argument(to).absolute()
    with workspace.artifacts() as kept:
        name = build_of(kept.store, build).build_id
        written = write_output(kept, name, workspace.folder / "output", project, place)
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
    render.say(
        f"{render.counted(written.files, 'file')}, {render.counted(written.bytes, 'byte')}, verified"
    )
    render.say(f"manifest {written.manifest_sha256}")
    there = shlex.quote(str(written.folder))
    render.say(f"read it:  {render.plain(there)}/handoff.html (or HANDOFF.md)")
    render.say(f"check it: (cd {render.plain(there)} && sha256sum --check SHA256SUMS)")
