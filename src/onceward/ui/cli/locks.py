"""Who holds which target, and clearing what nobody holds any more (L-10)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onceward.errors import InvalidConfig, Recovery
from onceward.ui.cli import render
from onceward.ui.cli.asking import ask, pending
from onceward.ui.cli.main import CliCommand, CliGroup, Globals, asking_options, pass_globals

if TYPE_CHECKING:
    from onceward.locks import TargetLock

folder_option = click.option(
    "--folder",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A lock folder outside a workspace, as given to TargetLock.",
)


@click.group(cls=CliGroup)
def locks() -> None:
    """List target locks and clear abandoned ones."""


@locks.command("list", cls=CliCommand)
@folder_option
@pass_globals
def list_(given: Globals, folder: Path | None) -> None:
    """List all claims and whether their holders are alive."""
    from onceward.dispatch.targets import lock_list

    found = lock_list(_locks(given, folder))
    if given.json:
        render.document(found)
    elif found:
        rows = [
            (e["target"], e["liveness"], e.get("pid", "-"), e.get("createdAt", "-"), e["why"])
            for e in found
        ]
        render.table(("target", "holder", "pid", "since", "why"), rows)
    else:
        render.say("No targets are locked.")


@locks.command(cls=CliCommand)
@click.argument("target")
@folder_option
@pass_globals
def show(given: Globals, target: str, folder: Path | None) -> None:
    """Show the claim on TARGET."""
    from onceward.dispatch.targets import lock_named

    entry = lock_named(_locks(given, folder), target)
    if given.json:
        render.document(entry)
        return
    _describe(entry)
    if entry["liveness"] == "dead":
        render.say(
            "Nothing needs to be done: the next process that wants the target takes it over."
        )


@locks.command(cls=CliCommand)
@click.argument("target")
@folder_option
@click.option(
    "--yes", "nonce", metavar="NONCE", help="Do not prompt; clear the claim with this nonce."
)
@asking_options
@pass_globals
def clear(given: Globals, target: str, folder: Path | None, nonce: str | None) -> int:
    """Remove the claim on TARGET. Be sure that nothing works on it.

    The removal is recorded in the workspace's stream. With --folder, there is no stream and nothing is recorded.
    """
    from onceward.dispatch.targets import claim_of

    if folder is not None:
        _require_no_workspace(folder, target)
    found = _locks(given, folder)
    entry = claim_of(found, target, nonce)
    if nonce is None:
        if not given.json:
            _describe(entry)
        typed = click.prompt("Type the target's name to clear its claim", err=True)
        if typed != target:
            raise InvalidConfig(f"{typed!r} is not {target!r}; nothing was cleared")
    if folder is None:
        asked = ask(given, "locks.clear", {"target": target, "claim": entry})
        if asked.pending:
            return pending(given, asked)
    outcome = found.clear(target, entry.get("nonce"))
    if given.json:
        render.document({"target": target, "outcome": outcome})
    else:
        render.say(f"{target}: {outcome}")
    return 0 if outcome != "not-owned" else 4


def _locks(given: Globals, folder: Path | None) -> TargetLock:
    """The locks of the workspace, or of a folder that stands alone."""
    if folder is not None:
        from onceward.locks import TargetLock

        return TargetLock(folder)
    workspace = given.workspace()
    workspace.store().close()
    return workspace.locks


def _require_no_workspace(folder: Path, target: str) -> None:
    """Clearing in a workspace is recorded and needs a role; --folder is no way around that."""
    from onceward.settings import FILE

    workspace = folder.resolve().parent
    if folder.resolve().name == "locks" and (
        (workspace / "onceward.db").exists() or (workspace.parent / FILE).exists()
    ):
        raise InvalidConfig(
            f"{folder} belongs to the workspace {workspace}; clear the claim in the workspace, where it is recorded",
            context={"field": "folder"},
            recovery=[
                Recovery("clear it there", f"onceward locks clear {target} --workspace {workspace}")
            ],
        )


def _describe(entry: dict[str, Any]) -> None:
    for key, value in entry.items():
        render.say(f"{key:13s} {render.plain(value)}")
