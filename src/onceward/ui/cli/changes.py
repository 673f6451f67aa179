"""Changes from the command line: marked, reviewed, cut, verified (H-1 to H-8)."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import click

from onceward.core.views import document
from onceward.errors import InvalidConfig, Recovery
from onceward.ui.cli import render
from onceward.ui.cli.asking import ask, pending, tell
from onceward.ui.cli.change_display import change_table, status_of
from onceward.ui.cli.change_mark import mark
from onceward.ui.cli.diffs import drift_digest, show_diffs, show_terms
from onceward.ui.cli.following import follow, serves
from onceward.ui.cli.main import CliCommand, CliGroup, Globals, asking_options, pass_globals

_PASS = 1000
"""What one pass of a sweep brings up at most."""


@click.group(cls=CliGroup)
def change() -> None:
    """Propose, review, apply and verify changes to files.

    A change is marked (proposed), reviewed, cut (applied exactly as approved, once) and verified by somebody else.
    """


change.add_command(mark)


def _entry(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.argument("entry", shell_complete=_complete)(command)


def _complete(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    from onceward.changes.views import change_list
    from onceward.errors import OncewardError

    try:
        with ctx.ensure_object(Globals).workspace().reading() as store:
            return [
                one.entry_id for one in change_list(store) if one.entry_id.startswith(incomplete)
            ]
    except OncewardError:
        return []


@change.command(cls=CliCommand)
@click.option(
    "--every", metavar="TIME", help="Repeat at this interval, such as 5m, until interrupted."
)
@asking_options
@pass_globals
def sweep(given: Globals, every: str | None) -> int:
    """Queue marked and deferred changes for review. Each pass is recorded."""
    from onceward.dispatch.stage_words import duration_of

    pause = 0.0
    if every is not None:
        pause = duration_of("--every", int(every) if every.isdecimal() else every)
    while True:
        asked = ask(given, "changes.sweep", {})
        if asked.pending:
            return pending(given, asked)
        if given.json:
            render.document(asked.value)
        else:
            render.say(
                f"{render.counted(asked.value['promoted'], 'entry').replace('entrys', 'entries')} queued for review;"
                f" {asked.value['waiting']:,} waiting"
            )
            for entry in asked.value["entries"][:20]:
                render.say(f"  onceward change review {entry}")
        if asked.value["promoted"] == _PASS:
            continue
        if not every:
            return 0
        time.sleep(pause)


@change.command("list", cls=CliCommand)
@click.option(
    "--status",
    "statuses",
    multiple=True,
    metavar="STATUS",
    help="Only changes with this status, such as review_pending. May be repeated.",
)
@click.option("--author", default="", metavar="NAME", help="Only changes by this author.")
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=50,
    show_default=True,
    help="Maximum number of changes.",
)
@click.option(
    "--before",
    default="",
    metavar="ENTRY",
    help="Only changes older than ENTRY, for the next page.",
)
@pass_globals
def list_(given: Globals, statuses: tuple[str, ...], author: str, limit: int, before: str) -> None:
    """List the newest changes and their states."""
    from onceward.changes.machine import CHANGE
    from onceward.changes.views import change_list

    odd = [status for status in statuses if status not in CHANGE.persistent]
    if odd:
        raise InvalidConfig(
            f"{odd[0][:40]!a} is not a status; choose from {', '.join(CHANGE.persistent)}",
            context={"field": "--status"},
        )
    with given.workspace().reading() as store:
        found = change_list(store, statuses, author, limit, before)
    if given.json:
        render.document(document(found))
    elif not found:
        render.say(
            "No changes.  Next: onceward change mark --tree DIR --base DIR"
            if not statuses
            else "No matching changes."
        )
    else:
        change_table(found)
        if len(found) == limit:
            render.say(f"next page: --before {found[-1].entry_id}")


@change.command(cls=CliCommand)
@_entry
@pass_globals
def show(given: Globals, entry: str) -> None:
    """Show ENTRY: its proposal, reviews, results and the next command."""
    from onceward.changes.views import change_view
    from onceward.ui.cli.change_display import show_change

    workspace = given.workspace()
    with workspace.reading() as store:
        found = change_view(store, entry, workspace.policy)
    render.document(document(found)) if given.json else show_change(found)


@change.command(cls=CliCommand)
@_entry
@click.argument("paths", nargs=-1)
@click.option("--stat", is_flag=True, help="List the files only, without their lines.")
@pass_globals
def diff(given: Globals, entry: str, paths: tuple[str, ...], stat: bool) -> None:
    """Show ENTRY line by line, with the digest to approve."""
    import msgspec

    from onceward.changes.views import change_diff

    with given.workspace().artifacts() as artifacts:
        found = change_diff(artifacts, entry, paths, whole=True)
    if given.json:
        render.document(msgspec.to_builtins(found))
        return
    show_diffs(found.files, stat)
    show_terms(found.target, found.check, found.origin, {file.path for file in found.files})
    render.say(f"manifest {found.manifest}")


@change.command(cls=CliCommand)
@_entry
@pass_globals
def history(given: Globals, entry: str) -> None:
    """List the state changes of ENTRY: when, what, by whom, why."""
    from onceward.changes.views import change_history

    with given.workspace().reading() as store:
        found = change_history(store, entry)
    if given.json:
        render.document(document(found))
        return
    rows = [
        (
            arrow.at[:19],
            arrow.from_state or "",
            arrow.to_state,
            arrow.actor,
            arrow.detail.get("why") or arrow.reason,
        )
        for arrow in found
    ]
    render.table(("when (UTC)", "from", "to", "by", "why"), rows)


@change.command(cls=CliCommand)
@_entry
@click.option("--approve", "decision", flag_value="approve", help="Approve: it can be cut.")
@click.option(
    "--defer", "decision", flag_value="defer", help="Defer: it comes up for review again."
)
@click.option("--reject", "decision", flag_value="reject", help="Reject for good.")
@click.option("--reason", default="", metavar="TEXT", help="The reason, for the record.")
@click.option(
    "--digest", metavar="D", help="The digest of what you looked at, as `change diff` shows it."
)
@asking_options
@pass_globals
def review(
    given: Globals, entry: str, decision: str | None, reason: str, digest: str | None
) -> int:
    """Approve, defer or reject ENTRY.

    The decision is for exactly the bytes with the given digest. Without --digest, the difference is shown on the
    terminal and you type the first letters of its digest.
    """
    from onceward.changes.views import change_hash

    workspace = given.workspace()
    with workspace.reading() as store:
        entry_id, current = change_hash(store, entry)
    if digest is None:
        decision, digest = _look(given, entry_id, current, decision)
    elif decision is None:
        raise click.UsageError("give --approve, --defer or --reject")
    elif len(digest) >= 8 and current.startswith(digest.lower()):
        digest = current
    payload = {"entry": entry_id, "decision": decision, "digest": digest, "reason": reason}
    if workspace.policy.authors_may_review and not given.json:
        click.secho(
            "note: authors may review their own changes here (authors_may_review)",
            fg="yellow",
            err=True,
        )
    return tell(given, ask(given, "changes.review", payload), _reviewed)


def _look(given: Globals, entry_id: str, current: str, decision: str | None) -> tuple[str, str]:
    """Show it to whoever decides, and have them say so; elsewhere they must have looked before."""
    from onceward.changes.views import change_diff

    if given.json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InvalidConfig(
            "a review needs the digest of the exact bytes you looked at",
            context={"field": "--digest", "manifest": current},
            recovery=[
                Recovery("look at them", f"onceward change diff {entry_id}"),
                Recovery("then give their digest", "--digest D"),
            ],
        )
    with given.workspace().artifacts() as artifacts:
        found = change_diff(artifacts, entry_id, whole=True)
    show_diffs(found.files, False)
    show_terms(found.target, found.check, found.origin, {file.path for file in found.files})
    current = found.manifest
    unseen = [file.path for file in found.files if file.cut_off]
    if unseen and decision != "reject":
        raise InvalidConfig(
            f"{render.plain(unseen[0])} is too large to show here, and what was not shown cannot be approved here",
            context={"files": unseen[:100]},
            recovery=[Recovery("look at it elsewhere, then give the digest", "--digest D")],
        )
    render.say(f"manifest {click.style(current[:8], bold=True)}{current[8:]}")
    while decision is None:
        word = click.prompt("approve, defer or reject", default="defer")
        decision = word if word in ("approve", "defer", "reject") else None
    typed = click.prompt(f"to {decision} exactly this, type the first 8 letters of the manifest")
    if len(typed.strip()) < 8 or not current.startswith(typed.strip().lower()):
        raise InvalidConfig(
            "those are not the first 8 letters of the manifest; nothing was decided",
            context={"field": "digest"},
        )
    return decision, current


def _reviewed(value: Mapping[str, Any]) -> None:
    render.say(f"{value['entry_id']} is {status_of(value['status'])}")
    if value.get("lacks"):
        render.say(f"your review is recorded; still needed: {render.plain(value['lacks'])}")
    elif value["status"] == "reviewed_approved":
        render.say(f"next: onceward change cut {value['entry_id']}")


@change.command(cls=CliCommand)
@_entry
@click.option(
    "--grant", metavar="GRANT", help="For a registry change: the grant for exactly its plan."
)
@click.option(
    "--git-commit",
    is_flag=True,
    help="Commit the changed files to git; the message names the entry and the signatures.",
)
@pass_globals
def cut(given: Globals, entry: str, grant: str | None, git_commit: bool) -> int:
    """Apply ENTRY exactly as it was approved, once.

    After a crash, repeat the command: it finishes the cut, or undoes it.
    """
    from onceward import changing
    from onceward.changes.acts import CutChange
    from onceward.changes.views import change_view
    from onceward.ui.cli.change_display import CutDisplay

    display, workspace = CutDisplay(given.json), given.workspace()
    if serves(workspace):
        order = CutChange(entry=entry, grant=grant, commit=git_commit)
        return follow(
            given,
            "changes.cut",
            order,
            lambda store, subject: display.end(
                change_view(store, subject["entry_id"], workspace.policy), 0
            ),
        )
    found, signal = changing.cut(
        workspace, entry, grant=grant, told=display.told, commit=git_commit
    )
    return display.end(found, signal)


@change.command(cls=CliCommand)
@_entry
@click.option(
    "--again",
    is_flag=True,
    help="Verify again an entry that is verified already; adds one more result.",
)
@click.option("--timeout", metavar="TIME", help="Time limit of its check [default: 5m].")
@click.option(
    "--git-commit",
    is_flag=True,
    help="If it passes: commit the changed files to git, naming the entry and the signatures.",
)
@click.option(
    "--accept-drift",
    default="",
    metavar="DIGEST",
    callback=drift_digest,
    help="Accept exactly the other files that changed since the cut; the refusal names the digest.",
)
@pass_globals
def verify(
    given: Globals,
    entry: str,
    again: bool,
    timeout: str | None,
    git_commit: bool,
    accept_drift: str,
) -> int:
    """Compare the tree with what ENTRY wrote, and run its check.

    This must be done by another principal than the one who cut it. A failed verification restores the files and opens a
    new entry. If another file of the tree changed after the cut, the command refuses (BASE_DRIFT) and changes nothing.
    Exit status: 0 passed, 1 failed or refused for drift, 3 could not be restored.
    """
    from onceward import changing
    from onceward.changes.acts import VerifyChange
    from onceward.changes.views import change_verdict
    from onceward.core.orders import seconds_text
    from onceward.dispatch.stage_words import duration_of
    from onceward.ui.cli.change_display import verified

    seconds = None
    if timeout is not None:
        seconds = duration_of("--timeout", int(timeout) if timeout.isdecimal() else timeout)
    workspace = given.workspace()
    if serves(workspace):
        order = VerifyChange(
            entry=entry,
            again=again,
            timeout=seconds_text(seconds),
            commit=git_commit,
            accept_drift=accept_drift,
        )
        return follow(
            given,
            "changes.verify",
            order,
            lambda store, subject: verified(
                change_verdict(store, subject["entry_id"], workspace.policy), given.json
            ),
        )
    found, signal = changing.verify(
        workspace,
        entry,
        again=again,
        timeout=seconds,
        commit=git_commit,
        accept_drift=accept_drift,
    )
    return signal or verified(found, given.json)


@change.command(cls=CliCommand)
@_entry
@click.option("--reason", required=True, metavar="TEXT", help="The reason, for the record.")
@asking_options
@pass_globals
def abandon(given: Globals, entry: str, reason: str) -> int:
    """Give up ENTRY for good, in whatever state it is.

    Files that were cut stay as they are. An interrupted cut is closed first.
    """
    asked = ask(given, "changes.abandon", {"entry": entry, "reason": reason})
    return tell(
        given,
        asked,
        lambda value: render.say(f"{value['entry_id']} is {status_of(value['status'])}"),
    )
