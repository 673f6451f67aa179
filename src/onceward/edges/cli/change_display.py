"""What a person, or a program, sees of a change: how it stands, and what is done about it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from typing import Any

import click

from onceward.edges.cli import render

_STEPS = {
    "C0_CHECK": "checked: everything is what it was approved on",
    "C1_KEEP": "kept: what will be replaced",
    "C2_STAGE": "staged: what comes in its place",
    "C3_APPLY": "in its place",
    "C4_RECORD": "recorded and signed",
}
_MOST = 20
_COLOURS = {
    **{
        "verified_complete": "green",
        "cut_applied": "cyan",
        "reviewed_approved": "cyan",
        "review_pending": "yellow",
    },
    **{"reviewed_rejected": "red", "verify_failed_escalated": "red", "stuck": "red"},
}


def status_of(status: str) -> str:
    return click.style(status, fg=_COLOURS.get(status))


def show_change(found: Mapping[str, Any]) -> None:
    say, status = render.say, status_of
    click.echo(f"{click.style(found['entry_id'], bold=True)}  {status(found['status'])}")
    say(
        render.plain(
            f"by {found['author']}{_child(found)}, into {found['target']}: {found['reason'] or '(no reason given)'}"
        )
    )
    say(
        f"manifest {found['manifest']}"
        + (f", revision {found['revision']}" if found["revision"] > 1 else "")
    )
    for unit in found["units"][:_MOST]:
        sign = "+" if "before" not in unit else "-" if "after" not in unit else "~"
        say(render.plain(f"  {sign} {unit['path']}"))
    if len(found["units"]) > _MOST:
        say(
            f"  and {len(found['units']) - _MOST:,} more: onceward change diff {found['entry_id']} --stat"
        )
    if "check" in found:
        say(render.plain(f"its own check: {shlex.join(found['check'])}"))
    if "origin" in found:
        origin = found["origin"]
        own = {unit["path"] for unit in found["units"]}
        say(base_line(origin["build"], {unit["path"] for unit in origin.get("drift", ())} & own))
        for unit in origin.get("drift", ())[:_MOST]:
            say(render.plain(f"  changed since then, not by a recorded cut: {unit['path']}"))
    for one in found.get("depends_on", ()):
        say(f"depends on {one['entry_id']} ({one['status']})")
    if "escalates" in found:
        say(f"asks about {found['escalates']}, which failed its verification")
    for one in found.get("decisions", ()):
        why = f": {one['reason']}" if one["reason"] else ""
        say(
            render.plain(f"{one['decided_at'][:19]}  {one['reviewer']} said {one['decision']}{why}")
        )
    if "lacks" in found:
        say(render.plain(f"still lacks: {found['lacks']}"))
    for one in found.get("change_sets", ()):
        say(f"{one['change_set_id']}  {one['kind']} by {one['executor']}: {status(one['status'])}")
    for one in found.get("results", ()):
        word = (
            click.style("passed", fg="green") if one["passed"] else click.style("failed", fg="red")
        )
        say(
            f"{one['verify_result_id']}  {word}, found by {render.plain(one['verifier'])}{_wrong(one['detail'])}"
        )
    for one in found.get("escalations", ()):
        say(f"escalated: {one}")
    if "waits_for" in found:
        say(f"waits for {found['waits_for']}")
    if "next" in found:
        say(f"next: {found['next']}")


def _child(found: Mapping[str, Any]) -> str:
    return f" (proposed by its child {found['child']})" if "child" in found else ""


def base_line(build: str, edited: Set[str]) -> str:
    """What a proposal was made on, in a line; `edited` are files of it that were changed since."""
    if edited:
        return f"made on the tree as it is now, and not as it was before build {build} began"
    return f"made on the tree as it was before build {build} began"


def change_table(found: Sequence[Mapping[str, Any]]) -> None:
    rows = [
        (
            c["entry_id"],
            c["status"],
            c["author"],
            c["target"],
            c["created_at"][:16],
            c["reason"][:60],
        )
        for c in found
    ]
    render.table(("change", "status", "author", "target", "marked (UTC)", "reason"), rows)


def _wrong(detail: Mapping[str, Any]) -> str:
    """What a result found, in a few words."""
    said = []
    for name in ("different", "missing", "extra"):
        if name in detail:
            paths = ", ".join(detail[name]["paths"][:3])
            said.append(f"{detail[name]['count']} {name} ({paths})")
    if "accepted_drift" in detail:
        drift = detail["accepted_drift"]
        paths = ", ".join(drift["paths"][:3])
        said.append(
            f"{drift['count']} other files changed, accepted ({paths}; {drift['digest'][:12]})"
        )
    check = detail.get("check")
    if check is not None and not check["passed"]:
        said.append(f"its check failed: {check.get('last_line') or check['reason']}")
    return render.plain(f": {'; '.join(said)}") if said else ""


class CutDisplay:
    """While a change is carried out."""

    def __init__(self, as_json: bool) -> None:
        self._json = as_json

    def told(self, said: Mapping[str, Any]) -> None:
        if self._json or said["status"] == "running":
            return
        with suppress(OSError):
            if said["side"] == "compensation":
                click.echo(f"  undone: {said['step']}", err=True)
            elif said["status"] == "done":
                click.echo(f"  {_STEPS.get(said['step'], said['step'])}", err=True)
            else:
                why = said.get("why", {})
                click.secho(
                    f"  {said['step']}: {render.plain(why.get('message', why.get('reason', '')))}",
                    fg="red",
                    err=True,
                )

    def end(self, found: Mapping[str, Any], signal: int) -> int:
        stuck = any(one["status"] == "stuck" for one in found.get("change_sets", ()))
        if self._json:
            click.echo(json.dumps(found, sort_keys=True))
        elif found["status"] == "reviewed_approved":
            how = "is stuck: somebody else changed its files" if stuck else "was stopped"
            render.say(f"{found['entry_id']} {how}; the same command goes on with it")
        else:
            files = render.counted(len(found["units"]), "file")
            render.say(
                f"{found['entry_id']} is {click.style(found['status'], fg='green')}: {files}"
            )
            _committed(found)
            if "next" in found:
                render.say(f"next, by somebody else: {found['next']}")
        return signal or (3 if stuck else 0 if found["status"] != "reviewed_approved" else 1)


def _committed(found: Mapping[str, Any]) -> None:
    if "commit" in found:
        render.say(f"committed as {found['commit'][:12]}")


def verified(found: Mapping[str, Any], as_json: bool) -> int:
    """What a verification found; answers the exit status."""
    result = found["result"]
    passed, stuck = result["passed"], found.get("undo") == "stuck"
    if as_json:
        click.echo(json.dumps(found, sort_keys=True))
        return 3 if stuck else 0 if passed else 1
    before = "" if found["fresh"] else " (found before)"
    word = click.style("passed", fg="green") if passed else click.style("failed", fg="red")
    render.say(f"{found['entry_id']} {word}{before}{_wrong(result['detail'])}")
    render.say(f"it is {status_of(found['status'])}")
    _committed(found)
    if found.get("undo") == "applied":
        render.say("what it had changed is taken back")
    elif stuck:
        render.say(
            "some of it could not be taken back, for somebody else changed it; put that back as the change left it, then:"
        )
        render.say(f"  onceward change verify {found['entry_id']}")
    if not passed and "escalation" in found:
        render.say(f"next: onceward change show {found['escalation']}")
    return 3 if stuck else 0 if passed else 1
