"""Changes from the command line: marked, reviewed, cut, verified (H-1 to H-8)."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from onceward.edges.cli import render
from onceward.edges.cli.asking import ask, pending, tell
from onceward.edges.cli.change_display import change_table
from onceward.edges.cli.diffs import show_diffs
from onceward.edges.cli.following import follow, serves
from onceward.edges.cli.main import Command, Globals, Group, asking_options, file_argument, pass_globals
from onceward.errors import InvalidConfig, Recovery

_COLOURS = {
    **{"verified_complete": "green", "cut_applied": "cyan", "reviewed_approved": "cyan", "review_pending": "yellow"},
    **{"reviewed_rejected": "red", "verify_failed_escalated": "red", "stuck": "red"},
}
_PASS = 1000
"""What one pass of a sweep brings up at most."""


@click.group(cls=Group)
def change() -> None:
    """What somebody proposes reaches the world exactly as a person approved it, once, and somebody else has checked."""


def _entry(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.argument("entry", shell_complete=_complete)(command)


def _complete(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    from onceward.engine.change_reading import change_list
    from onceward.errors import OncewardError

    try:
        with ctx.ensure_object(Globals).workspace().reading() as store:
            return [one["entry_id"] for one in change_list(store) if one["entry_id"].startswith(incomplete)]
    except OncewardError:
        return []


@change.command(cls=Command)
@click.option("--tree", metavar="DIR", help="A folder as the tree is to become.")
@click.option("--patch", metavar="FILE", help="A unified diff, such as git diff makes; - for standard input.")
@click.option("--build", metavar="BUILD", help="What a build made: each file at the path that is its name.")
@click.option("--stage", "stages", multiple=True, metavar="STAGE", help="With --build: only of these stages.")
@click.option("--registry", metavar="PLAN", help="A .toml plan for the registry.")
@click.option(
    "--base", "--into", "base", metavar="DIR", default=".", help="The tree that is to change [default: here]."
)
@click.option(
    "--cutter", metavar="NAME", default="", help="A place of your own instead of a tree; --tree says what goes there."
)
@click.option("--target", metavar="NAME", default="", help="Which one, for --cutter.")
@click.option("--delete", multiple=True, metavar="PATH", help="Something that is to go.")
@click.option("--check", metavar="COMMAND", help="The entry's own check: runs in the tree when it is verified.")
@click.option("--reason", default="", metavar="TEXT", help="Why, for whoever reviews it.")
@click.option("--depends-on", multiple=True, metavar="ENTRY", help="What must be verified first.")
@click.option("--links", is_flag=True, help="Symbolic links are meant, and stay inside the tree.")
@click.option("--key", metavar="KEY", help="The same key is the same entry [default: what is proposed, and by whom].")
@click.option("--revise", metavar="ENTRY", help="Propose it in the place of what ENTRY proposes now.")
@click.option("--stat", is_flag=True, help="Show which files, not every line.")
@click.option("--dry-run", is_flag=True, help="Only show what would be proposed.")
@asking_options
@pass_globals
def mark(
    given: Globals,
    tree: str | None,
    patch: str | None,
    build: str | None,
    stages: tuple[str, ...],
    registry: str | None,
    base: str,
    cutter: str,
    target: str,
    delete: tuple[str, ...],
    check: str | None,
    reason: str,
    depends_on: tuple[str, ...],
    links: bool,
    key: str | None,
    revise: str | None,
    stat: bool,
    dry_run: bool,
) -> int:
    """Propose a change: of a file tree, of the registry, or of a place of your own. Nothing is changed yet.

    Say what from: --tree, --patch, --build, --registry or --delete. The same proposal again is the same entry.
    """
    from onceward import changing

    named = {"--tree": tree, "--patch": patch, "--build": build, "--registry": registry}
    found = [name for name, value in named.items() if value is not None]
    if len(found) > 1 or (not found and not delete):
        raise click.UsageError(
            f"say what to propose, by one of {', '.join(named)}{' or --delete' if not found else ''}"
        )
    workspace = given.workspace()
    if not dry_run:
        workspace.ensure()
    proposal = changing.propose(
        workspace,
        changing.Source(
            base=file_argument(base),
            tree=file_argument(tree) if tree is not None else None,
            patch=_read(patch) if patch is not None else None,
            build=build,
            stages=stages,
            plan=file_argument(registry) if registry is not None else None,
            cutter=cutter,
            target=target,
            delete=delete,
            check=_words(check),
            links=links,
        ),
    )
    diffs = changing.shown(proposal)
    if not given.json:
        show_diffs(diffs, stat)
    digest = proposal.manifest.content_hash()
    if dry_run:
        if given.json:
            import msgspec

            render.document({"manifest": digest, "files": msgspec.to_builtins(diffs)})
        return 0
    changing.bring(workspace, proposal)
    payload: dict[str, Any] = {"manifest": digest, "reason": reason}
    if revise is not None:
        payload |= {"revises": revise}
    else:
        key = key or changing.key_of(workspace.principal, proposal, depends_on)
        payload |= {"key": key, "depends_on": list(depends_on)}
    return tell(given, ask(given, "changes.mark", payload), lambda value: _marked(value, bool(revise)))


def _marked(value: Mapping[str, Any], revised: bool) -> None:
    how = "revised" if revised else "known already, and" if value.get("known") else "marked:"
    render.say(f"{value['entry_id']} {how} {_status(value['status'])}")
    render.say(f"manifest {value['manifest']}")
    if value["status"] in ("marked", "reviewed_deferred"):
        render.say("next: onceward change sweep")


def _words(text: str | None) -> list[str]:
    try:
        return shlex.split(text) if text else []
    except ValueError as error:
        raise InvalidConfig(f"--check cannot be read: {error}", context={"field": "--check"}) from None


def _read(name: str) -> bytes:
    return sys.stdin.buffer.read() if name == "-" else file_argument(name).read_bytes()


@change.command(cls=Command)
@click.option("--every", metavar="TIME", help="Go on until interrupted, such as every 5m.")
@asking_options
@pass_globals
def sweep(given: Globals, every: str | None) -> int:
    """Bring up for review what was marked or deferred. Each pass is on the record."""
    from onceward.lifecycles.plan_words import duration_of

    pause = duration_of("--every", int(every) if every.isdecimal() else every) if every is not None else 0.0
    while True:
        asked = ask(given, "changes.sweep", {})
        if asked.pending:
            return pending(given, asked)
        if given.json:
            render.document(asked.value)
        else:
            render.say(
                f"{render.counted(asked.value['promoted'], 'entry').replace('entrys', 'entries')} brought up;"
                f" {asked.value['waiting']:,} wait for a review"
            )
            for entry in asked.value["entries"][:20]:
                render.say(f"  onceward change review {entry}")
        if asked.value["promoted"] == _PASS:
            continue
        if not every:
            return 0
        time.sleep(pause)


@change.command("list", cls=Command)
@click.option("--status", "statuses", multiple=True, metavar="STATUS", help="Only these, such as review_pending.")
@click.option("--author", default="", metavar="NAME", help="Only what somebody proposed.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many.")
@click.option("--before", default="", metavar="ENTRY", help="Only older than this one, for the next page.")
@pass_globals
def list_(given: Globals, statuses: tuple[str, ...], author: str, limit: int, before: str) -> None:
    """The newest changes and how they stand."""
    from onceward.engine.change_reading import change_list
    from onceward.lifecycles.change import CHANGE

    odd = [status for status in statuses if status not in CHANGE.persistent]
    if odd:
        raise InvalidConfig(
            f"{odd[0][:40]!a} is no status; there are {', '.join(CHANGE.persistent)}", context={"field": "--status"}
        )
    with given.workspace().reading() as store:
        found = change_list(store, statuses, author, limit, before)
    if given.json:
        render.document(found)
    elif not found:
        render.say("No changes.  Next: onceward change mark --tree DIR --base DIR" if not statuses else "None.")
    else:
        change_table(found)
        if len(found) == limit:
            render.say(f"more: --before {found[-1]['entry_id']}")


@change.command(cls=Command)
@_entry
@pass_globals
def show(given: Globals, entry: str) -> None:
    """How ENTRY stands: what it proposes, who said what of it, what was cut and found, and the next command."""
    from onceward.edges.cli.change_display import show_change
    from onceward.engine.change_reading import change_status

    workspace = given.workspace()
    with workspace.reading() as store:
        found = change_status(store, entry, workspace.policy)
    render.document(found) if given.json else show_change(found, _status)


@change.command(cls=Command)
@_entry
@click.argument("paths", nargs=-1)
@click.option("--stat", is_flag=True, help="Show which files, not every line.")
@pass_globals
def diff(given: Globals, entry: str, paths: tuple[str, ...], stat: bool) -> None:
    """What ENTRY would do, line by line, and the digest that an approval of it is for."""
    import msgspec

    from onceward.engine.change_reading import change_diff

    with given.workspace().artifacts() as artifacts:
        entry_id, digest, diffs = change_diff(artifacts, entry, paths)
    if given.json:
        render.document({"entry_id": entry_id, "manifest": digest, "files": msgspec.to_builtins(diffs)})
        return
    show_diffs(diffs, stat)
    render.say(f"manifest {digest}")


@change.command(cls=Command)
@_entry
@pass_globals
def history(given: Globals, entry: str) -> None:
    """Every arrow of ENTRY's life: when, what, by whom, why."""
    from onceward.engine.change_reading import change_history

    with given.workspace().reading() as store:
        found = change_history(store, entry)
    if given.json:
        render.document(found)
        return
    rows = [
        (h["at"][:19], h.get("from_state", ""), h["to_state"], h["actor"], h["detail"].get("why") or h["reason"])
        for h in found
    ]
    render.table(("when (UTC)", "from", "to", "by", "why"), rows)


@change.command(cls=Command)
@_entry
@click.option("--approve", "decision", flag_value="approve", help="Let it be cut.")
@click.option("--defer", "decision", flag_value="defer", help="Not now: it comes up again.")
@click.option("--reject", "decision", flag_value="reject", help="Never.")
@click.option("--reason", default="", metavar="TEXT", help="Why, for the record.")
@click.option("--digest", metavar="D", help="Of exactly what was looked at, as `change diff` shows it.")
@asking_options
@pass_globals
def review(given: Globals, entry: str, decision: str | None, reason: str, digest: str | None) -> int:
    """Say what is to become of ENTRY: for exactly the bytes it proposes now, and no others.

    In a terminal the difference is shown, and the beginning of its digest typed back.
    """
    from onceward.engine.change_reading import change_diff

    workspace = given.workspace()
    with workspace.artifacts() as artifacts:
        entry_id, current, diffs = change_diff(artifacts, entry)
    if digest is None:
        decision, digest = _look(given, entry_id, current, diffs, decision)
    elif decision is None:
        raise click.UsageError("say --approve, --defer or --reject")
    elif len(digest) >= 8 and current.startswith(digest.lower()):
        digest = current
    payload = {"entry": entry_id, "decision": decision, "digest": digest, "reason": reason}
    if workspace.policy.authors_may_review and not given.json:
        click.secho("note: authors may review their own changes here (authors_may_review)", fg="yellow", err=True)
    return tell(given, ask(given, "changes.review", payload), _reviewed)


def _look(given: Globals, entry_id: str, current: str, diffs: Sequence[Any], decision: str | None) -> tuple[str, str]:
    """Show it to whoever decides, and have them say so; elsewhere they must have looked before."""
    if given.json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InvalidConfig(
            "a review is of exact bytes: say which were looked at",
            context={"field": "--digest", "manifest": current},
            recovery=[
                Recovery("look at them", f"onceward change diff {entry_id}"),
                Recovery("then name their digest", "--digest D"),
            ],
        )
    show_diffs(diffs, False)
    render.say(f"manifest {click.style(current[:8], bold=True)}{current[8:]}")
    while decision is None:
        word = click.prompt("approve, defer or reject", default="defer")
        decision = word if word in ("approve", "defer", "reject") else None
    typed = click.prompt(f"to {decision} exactly this, type the first 8 letters of the manifest")
    if len(typed.strip()) < 8 or not current.startswith(typed.strip().lower()):
        raise InvalidConfig("that is not what was shown; nothing was decided", context={"field": "digest"})
    return decision, current


def _reviewed(value: Mapping[str, Any]) -> None:
    render.say(f"{value['entry_id']} is {_status(value['status'])}")
    if value.get("lacks"):
        render.say(f"your word counts, but more is needed: {render.plain(value['lacks'])}")
    elif value["status"] == "reviewed_approved":
        render.say(f"next: onceward change cut {value['entry_id']}")


@change.command(cls=Command)
@_entry
@click.option("--grant", metavar="GRANT", help="For a change of the registry: the grant for exactly its plan.")
@click.option(
    "--git-commit", is_flag=True, help="Commit what was changed, and nothing else, naming entry and signatures."
)
@pass_globals
def cut(given: Globals, entry: str, grant: str | None, git_commit: bool) -> int:
    """Carry ENTRY out exactly as it was approved, once. After a crash, the same command finishes it, or undoes it."""
    from onceward import changing
    from onceward.edges.cli.change_display import CutDisplay
    from onceward.engine.change_reading import change_status
    from onceward.engine.work_orders import CutChange

    display, workspace = CutDisplay(given.json), given.workspace()
    if serves(workspace):
        order = CutChange(entry=entry, grant=grant, commit=git_commit)
        return follow(
            *(given, "changes.cut", order),
            lambda store, subject: display.end(change_status(store, subject["entry_id"], workspace.policy), 0),
        )
    found, signal = changing.cut(workspace, entry, grant=grant, told=display.told, commit=git_commit)
    return display.end(found, signal)


@change.command(cls=Command)
@_entry
@click.option("--again", is_flag=True, help="Look again, though it was verified: one more result follows the last.")
@click.option("--timeout", metavar="TIME", help="How long its check may take [default: 5m].")
@click.option("--git-commit", is_flag=True, help="If it passes: commit what was changed, naming entry and signatures.")
@pass_globals
def verify(given: Globals, entry: str, again: bool, timeout: str | None, git_commit: bool) -> int:
    """Look at what the cut of ENTRY really left: exactly the approved files, nothing else, and its own check.

    Somebody else than who cut it does. What fails is taken back, and comes up as an entry of its own. Exits 0 if it
    passed, 1 if not, 3 if it could not be taken back.
    """
    from onceward import changing
    from onceward.edges.cli.change_display import verified
    from onceward.engine.change_reading import change_verdict
    from onceward.engine.work_orders import VerifyChange
    from onceward.lifecycles.plan_words import duration_of

    seconds = (
        duration_of("--timeout", int(timeout) if timeout.isdecimal() else timeout) if timeout is not None else None
    )
    workspace = given.workspace()
    if serves(workspace):
        order = VerifyChange(entry=entry, again=again, timeout=seconds, commit=git_commit)
        return follow(
            *(given, "changes.verify", order),
            lambda store, subject: verified(
                change_verdict(store, subject["entry_id"], workspace.policy), given.json, _status
            ),
        )
    found, signal = changing.verify(workspace, entry, again=again, timeout=seconds, commit=git_commit)
    return signal or verified(found, given.json, _status)


@change.command(cls=Command)
@_entry
@click.option("--reason", required=True, metavar="TEXT", help="Why, for the record.")
@asking_options
@pass_globals
def abandon(given: Globals, entry: str, reason: str) -> int:
    """Give ENTRY up for good, from wherever it is. What was cut stays; a cut that was cut off is closed first."""
    asked = ask(given, "changes.abandon", {"entry": entry, "reason": reason})
    return tell(given, asked, lambda value: render.say(f"{value['entry_id']} is {_status(value['status'])}"))


def _status(status: str) -> str:
    return click.style(status, fg=_COLOURS.get(status))
