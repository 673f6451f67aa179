"""Children from outside: cancel them, see what they left, speak for them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from onceward.edges.cli import render
from onceward.edges.cli.asking import ask, pending
from onceward.edges.cli.display import explain, shown
from onceward.edges.cli.main import Command, Globals, Group, asking_options, pass_globals
from onceward.errors import InvalidConfig


@click.command(cls=Command)
@click.argument("subject", metavar="[BUILD|SESSION|CHILD]", required=False)
@click.option("--children", "children", is_flag=True, help="Of a build: its children instead of its steps.")
@pass_globals
def status(given: Globals, subject: str | None, children: bool) -> None:
    """How a build stands with every step, or a session with every child. Without an id, the newest sessions."""
    from onceward.engine.build_reading import build_status
    from onceward.engine.reading import session_list, session_status

    store = given.workspace().store()
    try:
        if subject is not None and subject.startswith("bld_") and not children:
            _build(build_status(store, subject), given.json)
            return
        found = session_list(store) if subject is None else session_status(store, subject)
    finally:
        store.close()
    if given.json:
        render.document(found)
    elif isinstance(found, list):
        if found:
            rows = [(s["session_id"], s["created_at"][:19], s["children"], s["open"], s["failed"]) for s in found]
            render.table(("session", "opened", "children", "open", "failed"), rows)
        else:
            render.say("No sessions yet.  Next: onceward spawn -- COMMAND")
    else:
        _session(found)


def _build(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        render.document(found)
        return
    reason = f" ({found['reason']})" if found.get("reason") else ""
    from onceward.edges.cli.builds import state_of

    render.say(f"build {found['build_id']}, {render.plain(found['name'])}: {state_of(found)}{reason}")
    if found.get("next"):
        render.say(f"next: {found['next']}")
    _lanes(found)
    rows = []
    for step in found["steps"]:
        error = step.get("error") or {}
        exit_ = f"exit {error['exit']}: " if error.get("exit") else ""
        why = f"{exit_}{error.get('message') or error.get('last_line') or error.get('reason') or ''}"
        left = ", ".join(f"{a['name']} {a['sha256'][:12]}" for a in step.get("artifacts", [])[:3])
        name = f"{step['stage']}:{step['target']}"
        rows.append((name, step["status"], step.get("cost_usd", "-"), step.get("attempts", "-"), left or why[:80]))
    if rows:
        render.table(("step", "how", "usd", "try", "left"), rows)
    for wanted in found.get("approvals", ()):
        render.say(f"{render.plain(wanted['step'])} waits for a person: {render.plain(wanted['text'])}")
        step = render.plain(wanted["step"])
        render.say(f"  onceward approve {found['build_id']} {step} --digest {wanted['digest']}")


def _lanes(found: dict[str, Any]) -> None:
    for lane in found["lanes"]:
        name, total, limit = shown(lane)
        render.say(f"  {name:13s} {total} {f'of {limit}' if limit else '(no limit)'}")


def _session(found: dict[str, Any]) -> None:
    render.say(f"session {found['session_id']}, {found['max_active_children']} at once, opened {found['created_at']}")
    _lanes(found)
    rows = []
    for child in found["children"]:
        work = " ".join(child["work"].get("argv", [])) or child["work"].get("function", "")
        spent = " ".join("=".join(shown({"lane": k, "total": v, "limit": None})[:2]) for k, v in child["spent"].items())
        rows.append((child["child_id"], _how(child), child["attempt"], spent or "-", work[:60]))
    if rows:
        render.table(("child", "how", "try", "spent", "work"), rows)


def _how(child: dict[str, Any]) -> str:
    """A child's state in a word, and why."""
    if child["phase"] != "terminal":
        return (
            "cancelling" if "cancel_request_id" in child else {"started": "running"}.get(child["phase"], child["phase"])
        )
    detail = child.get("detail", {})
    word = "stopped" if detail.get("stopped") else {"completed": "passed"}.get(child["reason"], child["reason"])
    return f"{word}{explain(child['reason'], detail)}"[:70]


@click.command(cls=Command)
@click.argument("subject", metavar="CHILD|SESSION")
@asking_options
@pass_globals
def cancel(given: Globals, subject: str) -> int:
    """Ask a child, or all children of a session, to end. Works from anywhere, whoever runs them."""
    request_id = given.request_id = given.new_request_id()
    asked = ask(given, "children.cancel", {"subject": subject, "cancel_request_id": request_id})
    if asked.pending:
        return pending(given, asked)
    if given.json:
        render.document(asked.value)
    elif asked.value["receipts"]:
        render.table(("child", "outcome"), [(r["child_id"], r["outcome"]) for r in asked.value["receipts"]])
    else:
        render.say("Nothing of it is running.")
    return 0


@click.group(cls=Group)
def artifacts() -> None:
    """What children and builds left: logs and outputs, by content."""


@artifacts.command("list", cls=Command)
@click.argument("owner", required=False)
@pass_globals
def list_(given: Globals, owner: str | None) -> None:
    """The artifacts of OWNER (a child or build), or the newest of all."""
    from onceward.engine.reading import artifact_list

    store = given.workspace().store()
    try:
        found = artifact_list(store, owner)
    finally:
        store.close()
    if given.json:
        render.document(found)
    elif found:
        rows = [(e["owner"], e["name"], e["kind"], e["size"], e["sha256"][:12]) for e in found]
        render.table(("owner", "name", "kind", "bytes", "sha256"), rows)
    else:
        render.say("No artifacts yet." if owner is None else f"{render.plain(owner)} has no artifacts.")


@artifacts.command(cls=Command)
@click.argument("digest")
@pass_globals
def cat(given: Globals, digest: str) -> None:
    """Print an artifact's bytes; DIGEST may be its first letters."""
    with given.workspace().artifacts() as kept:
        for piece in kept.read(digest):
            sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()


@artifacts.command(cls=Command)
@click.argument("digest")
@click.argument("file")
@pass_globals
def get(given: Globals, digest: str, file: str) -> None:
    """Write an artifact's bytes into FILE, which must not be there yet."""
    path = Path(file).expanduser()
    if path.exists():
        raise InvalidConfig(f"{path} is there already; nothing was written", context={"file": str(path)})
    if not path.parent.is_dir():
        raise InvalidConfig(f"there is no folder {path.parent}; nothing was written", context={"file": str(path)})
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


@click.command(cls=Command)
@pass_globals
def gc(given: Globals) -> None:
    """Remove artifacts that nothing refers to any more. Never one that something does."""
    kernel = given.workspace().kernel()
    try:
        count, freed = kernel.gc()
    finally:
        kernel.close()
    if given.json:
        render.document({"removed": count, "bytes": freed})
    else:
        render.say(f"removed {render.counted(count, 'artifact')}, {render.counted(freed, 'byte')}")


@click.command(cls=Command)
@click.option("--usd", metavar="AMOUNT", help="Money, as in 0.01.")
@click.option("--tokens", metavar="N")
@click.option("--solver-calls", metavar="N")
@click.option("--settled", is_flag=True, help="It is spent already.")
@click.option("--progress", type=click.IntRange(0, 1000), metavar="N", help="How far, in thousandths.")
@click.option("--note", metavar="TEXT", help="What is going on.")
@pass_globals
def report(given: Globals, /, settled: bool, progress: int | None, note: str | None, **lanes: str | None) -> int:
    """Inside a child: say what it spends and how far it is. Exits 3 when there is no room for the debit."""
    from onceward import child
    from onceward.errors import BudgetExceeded

    spend = {lane: amount for lane, amount in lanes.items() if amount is not None}
    if not spend and progress is None and note is None:
        raise InvalidConfig("say at least one of --usd, --tokens, --solver-calls, --progress and --note")
    try:
        child.say(spend=spend, settled=settled, progress=progress, note=note or "")
    except BudgetExceeded as refused:
        render.error(refused, given.json)
        return 3
    if given.json:
        render.document({"ok": True})
    return 0
