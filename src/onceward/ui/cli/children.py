"""Children from outside: cancel them, see what they left, speak for them."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from onceward.errors import InvalidConfig
from onceward.ui.cli import render
from onceward.ui.cli.asking import ask, pending
from onceward.ui.cli.main import CliCommand, CliGroup, Globals, asking_options, pass_globals


@click.command(cls=CliCommand)
@click.argument("subject", metavar="CHILD|SESSION|BUILD")
@asking_options
@pass_globals
def cancel(given: Globals, subject: str) -> int:
    """Stop a child, a session or a build.

    The kernel that runs it ends its processes. Works from any process and machine.
    """
    request_id = given.request_id = given.new_request_id()
    asked = ask(given, "children.cancel", {"subject": subject, "cancel_request_id": request_id})
    if asked.pending:
        return pending(given, asked)
    if given.json:
        render.document(asked.value)
    elif asked.value.get("build_id"):
        render.say(f"{asked.value['build_id']} is {asked.value['state']}")
    elif asked.value["receipts"]:
        render.table(("child", "outcome"), list(map(_receipt, asked.value["receipts"])))
    else:
        render.say("Nothing of it is running.")
    return 0


def _receipt(receipt: dict[str, str]) -> tuple[str, str]:
    first = receipt.get("joined_request_id")
    joined = f" (joined request {render.plain(first)})" if first else ""
    return receipt["child_id"], f"{receipt['outcome']}{joined}"


@click.group(cls=CliGroup)
def artifacts() -> None:
    """List, print and save stored files: logs and outputs, by content."""


@artifacts.command("list", cls=CliCommand)
@click.argument("owner", required=False)
@pass_globals
def list_(given: Globals, owner: str | None) -> None:
    """List the artifacts of OWNER (a child or build), or the newest."""
    from onceward.artifacts.views import artifact_list
    from onceward.core.steps import step_name

    with given.workspace().reading() as store:
        found = artifact_list(store, owner)
    if given.json:
        render.document(found)
    elif found:
        steps = found[0].stage is not None
        rows = [
            (
                step_name(one.stage or "", one.target or "") if steps else one.owner,
                one.name,
                one.kind,
                one.size,
                one.sha256[:12],
            )
            for one in found
        ]
        render.table(("step" if steps else "owner", "name", "kind", "bytes", "sha256"), rows)
    else:
        render.say(
            "No artifacts yet." if owner is None else f"{render.plain(owner)} has no artifacts."
        )


@artifacts.command(cls=CliCommand)
@click.argument("digest")
@pass_globals
def cat(given: Globals, digest: str) -> None:
    """Print an artifact. DIGEST can be shortened to its first letters."""
    with given.workspace().artifacts() as kept:
        for piece in kept.read(digest):
            sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()


@artifacts.command(cls=CliCommand)
@click.argument("digest")
@click.argument("file")
@pass_globals
def get(given: Globals, digest: str, file: str) -> None:
    """Write an artifact to FILE, which must not exist."""
    path = Path(file).expanduser()
    if path.exists():
        raise InvalidConfig(
            f"{path} already exists; nothing was written", context={"file": str(path)}
        )
    if not path.parent.is_dir():
        raise InvalidConfig(
            f"there is no folder {path.parent}; nothing was written", context={"file": str(path)}
        )
    fresh = path.with_name(f".{path.name}.new")
    with given.workspace().artifacts() as kept:
        try:
            with fresh.open("xb") as out:
                for piece in kept.read(digest):
                    out.write(piece)
            fresh.replace(path)
        finally:
            fresh.unlink(missing_ok=True)
    if given.json:
        render.document({"file": str(path), "bytes": path.stat().st_size})
    else:
        render.say(f"{path}: {render.counted(path.stat().st_size, 'byte')}, verified")


@click.command(cls=CliCommand)
@pass_globals
def gc(given: Globals) -> None:
    """Delete artifacts that nothing refers to."""
    kernel = given.workspace().kernel()
    try:
        count, freed = kernel.gc()
    finally:
        kernel.close()
    if given.json:
        render.document({"removed": count, "bytes": freed})
    else:
        render.say(f"removed {render.counted(count, 'artifact')}, {render.counted(freed, 'byte')}")


@click.command(cls=CliCommand)
@click.option("--usd", metavar="AMOUNT", help="Money in US dollars, such as 0.01.")
@click.option("--tokens", metavar="N", help="Number of tokens.")
@click.option("--solver-calls", metavar="N", help="Number of solver calls.")
@click.option(
    "--settled", is_flag=True, help="It is already spent: record it even if there is no room."
)
@click.option(
    "--progress", type=click.IntRange(0, 1000), metavar="N", help="Progress in thousandths."
)
@click.option("--note", metavar="TEXT", help="A short status text.")
@pass_globals
def report(
    given: Globals, /, settled: bool, progress: int | None, note: str | None, **lanes: str | None
) -> int:
    """Inside a child: report spending and progress.

    Without --settled, call it before spending. Exit status: 3 if the budget has no room; nothing is debited then.
    """
    from onceward import child
    from onceward.errors import BudgetExceeded

    spend = {lane: amount for lane, amount in lanes.items() if amount is not None}
    if not spend and progress is None and note is None:
        raise InvalidConfig(
            "give at least one of --usd, --tokens, --solver-calls, --progress and --note"
        )
    try:
        child.say(spend=spend, settled=settled, progress=progress, note=note or "")
    except BudgetExceeded as refused:
        render.error(refused, given.json)
        return 3
    if given.json:
        render.document({"ok": True})
    return 0
