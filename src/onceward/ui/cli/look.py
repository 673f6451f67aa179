"""Commands that only look."""

from __future__ import annotations

import os
import sys

import click

from onceward.core.version import VERSION
from onceward.errors import InvalidConfig, NotFound
from onceward.ui.cli import render
from onceward.ui.cli.main import CliCommand, Globals, pass_globals


@click.command(cls=CliCommand)
@pass_globals
def version(given: Globals) -> None:
    """Print the version."""
    render.document({"version": VERSION}) if given.json else render.say(f"onceward {VERSION}")


@click.command(cls=CliCommand)
@click.argument("name", required=False)
@click.option("--mermaid", is_flag=True, help="Print Mermaid state diagrams.")
@pass_globals
def machines(given: Globals, name: str | None, mermaid: bool) -> None:
    """Show the lifecycles: states, transitions, reasons and events."""
    from onceward.machines import MACHINES

    known = {machine.name: machine for machine in MACHINES}
    if name is not None and name not in known:
        raise NotFound(f"there is no lifecycle {name!r}; there are {', '.join(known)}")
    chosen = [known[name]] if name else list(known.values())
    if given.json:
        render.document([machine.document() for machine in chosen])
        return
    for number, machine in enumerate(chosen):
        if number:
            render.say()
        if mermaid:
            render.say(machine.mermaid())
            continue
        click.secho(f"{machine.name}  (final: {', '.join(machine.terminal)})", bold=True)
        rows = [(a.source, a.target, a.reason or "-", a.event or "-") for a in machine.arrows]
        render.table(("from", "to", "reason", "event"), rows)


@click.command(cls=CliCommand)
@click.argument("file")
@click.option("--digest", is_flag=True, help="Print the SHA-256 of the bytes instead.")
@pass_globals
def canon(given: Globals, file: str, digest: bool) -> None:
    """Print the canonical JSON bytes of FILE (- for standard input)."""
    from onceward.core.canon import canonical, parse, sha256_hex

    try:
        data = sys.stdin.buffer.read() if file == "-" else _read(file)
    except OSError as error:
        raise InvalidConfig(
            f"cannot read {file}: {error.strerror}", context={"file": file}
        ) from None
    try:
        data = canonical(parse(data))
    except InvalidConfig as error:
        raise InvalidConfig(
            f"{file}: {error.message}", context={"file": file, **error.context}
        ) from None
    if digest:
        render.document({"sha256": sha256_hex(data)}) if given.json else render.say(
            sha256_hex(data)
        )
        return
    sys.stdout.buffer.write(data + b"\n")
    sys.stdout.buffer.flush()


def _read(file: str) -> bytes:
    with open(file, "rb") as handle:  # noqa: PTH123 - a file that may also be a pipe
        return handle.read()


@click.command(cls=CliCommand)
@click.argument("stream", required=False)
@click.option("--follow", is_flag=True, help="Print new events as they arrive, until interrupted.")
@pass_globals
def events(given: Globals, stream: str | None, follow: bool) -> None:
    """Print the events of STREAM, one canonical JSON line each. Without STREAM, list all streams."""
    from onceward.kernel.views import stream_lines, stream_list, stream_named

    store = given.workspace().store()
    try:
        if stream is not None:
            stream = stream_named(store, stream)
            for line in stream_lines(store, stream, follow=follow):
                sys.stdout.buffer.write(line + b"\n")
                if follow:
                    sys.stdout.buffer.flush()
            sys.stdout.buffer.flush()
            return
        if follow:
            raise InvalidConfig("--follow needs a STREAM", context={"field": "stream"})
        found = stream_list(store)
    finally:
        store.close()
    if given.json:
        render.document(found)
    elif found:
        render.table(("stream", "events"), [(row.stream, row.events) for row in found])
    else:
        render.say("No events yet.")


@click.command(cls=CliCommand)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), required=False)
@pass_globals
def completion(given: Globals, shell: str | None) -> None:
    """Print the completion script of SHELL [default: yours].

    For bash: onceward completion bash >> ~/.bashrc
    """
    from click.shell_completion import get_completion_class

    from onceward.ui.cli.main import cli

    shell = shell or os.path.basename(os.environ.get("SHELL", "bash"))  # noqa: PTH119
    made = get_completion_class(shell)
    if made is None:
        raise InvalidConfig(f"there is no completion for {shell}; choose bash, zsh or fish")
    render.say(made(cli, {}, "onceward", "_ONCEWARD_COMPLETE").source())
