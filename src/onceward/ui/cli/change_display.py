"""What a person, or a program, sees of a change: how it stands, and what is done about it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from onceward.core.views import document
from onceward.ui.cli import render

if TYPE_CHECKING:
    from onceward.changes.manifest import Origin
    from onceward.changes.views import ChangeSummary, ChangeView, ResultView, VerdictView

_STEPS = {
    "C0_CHECK": "checked: the files are as they were when approved",
    "C1_KEEP": "kept a copy of the files to be replaced",
    "C2_STAGE": "staged the new files",
    "C3_APPLY": "moved the new files into place",
    "C4_RECORD": "recorded and signed",
}
_MOST = 20
_COLOURS = {
    "verified_complete": "green",
    "cut_applied": "cyan",
    "reviewed_approved": "cyan",
    "review_pending": "yellow",
    "reviewed_rejected": "red",
    "verify_failed_escalated": "red",
    "stuck": "red",
}


def status_of(status: str) -> str:
    return click.style(status, fg=_COLOURS.get(status))


def show_change(view: ChangeView) -> None:
    say = render.say
    click.echo(f"{click.style(view.entry_id, bold=True)}  {status_of(view.status)}")
    child = f" (proposed by its child {view.child})" if view.child else ""
    reason = view.reason or "(no reason given)"
    say(render.plain(f"by {view.author}{child}, into {view.target}: {reason}"))
    revision = f", revision {view.revision}" if view.revision > 1 else ""
    say(f"manifest {view.manifest}{revision}")
    _units(view)
    if view.check:
        say(render.plain(f"check: {shlex.join(view.check)}"))
    if view.origin is not None:
        _origin(view, view.origin)
    for entry in view.depends_on or ():
        say(f"depends on {entry.entry_id} ({entry.status})")
    if view.escalates:
        say(f"follows {view.escalates}, which failed verification")
    for one in view.decisions or ():
        why = f": {one.reason}" if one.reason else ""
        say(render.plain(f"{one.decided_at[:19]}  {one.reviewer}: {one.decision}{why}"))
    if view.lacks:
        say(render.plain(f"still needed: {view.lacks}"))
    for change_set in view.sets():
        status = status_of(change_set.status)
        say(f"{change_set.change_set_id}  {change_set.kind} by {change_set.executor}: {status}")
    for result in view.results or ():
        word = _word_of(result)
        by = render.plain(result.verifier)
        say(f"{result.verify_result_id}  {word}, verified by {by}{_wrong(result.detail)}")
    for escalation in view.escalations or ():
        say(f"escalated: {escalation}")
    if view.waits_for:
        say(f"waits for {view.waits_for}")
    if view.next:
        say(f"next: {view.next}")


def _units(view: ChangeView) -> None:
    for unit in view.units[:_MOST]:
        sign = "~"
        if unit.before is None:
            sign = "+"
        elif unit.after is None:
            sign = "-"
        render.say(render.plain(f"  {sign} {unit.path}"))
    more = len(view.units) - _MOST
    if more > 0:
        render.say(f"  and {more:,} more: onceward change diff {view.entry_id} --stat")


def _origin(view: ChangeView, origin: Origin) -> None:
    own = {unit.path for unit in view.units}
    render.say(base_line(origin.build, {unit.path for unit in origin.drift} & own))
    for unit in origin.drift[:_MOST]:
        render.say(render.plain(f"  changed since then, outside any recorded cut: {unit.path}"))


def _word_of(result: ResultView) -> str:
    if result.passed:
        return click.style("passed", fg="green")
    return click.style("failed", fg="red")


def base_line(build: str, edited: Set[str]) -> str:
    """What a proposal was made on, in a line; `edited` are files of it that were changed since."""
    if edited:
        return f"based on the tree as it is now, not as it was before build {build}"
    return f"based on the tree as it was before build {build}"


def change_table(found: Sequence[ChangeSummary]) -> None:
    rows = [
        (
            entry.entry_id,
            entry.status,
            entry.author,
            entry.target,
            entry.created_at[:16],
            entry.reason[:60],
        )
        for entry in found
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

    def end(self, view: ChangeView, signal: int) -> int:
        unfinished = view.status == "reviewed_approved"
        if self._json:
            click.echo(json.dumps(document(view), sort_keys=True))
        elif unfinished:
            how = "is stuck: somebody else changed its files" if view.stuck else "was stopped"
            render.say(f"{view.entry_id} {how}; repeat the command to continue")
        else:
            files = render.counted(len(view.units), "file")
            render.say(f"{view.entry_id} is {click.style(view.status, fg='green')}: {files}")
            _committed(view)
            if view.next:
                render.say(f"next, by somebody else: {view.next}")
        if signal:
            return signal
        return 3 if view.stuck else int(unfinished)


def _committed(view: ChangeView) -> None:
    if view.commit:
        render.say(f"committed as {view.commit[:12]}")


def verified(view: VerdictView, as_json: bool) -> int:
    """What a verification found; answers the exit status."""
    passed, stuck = view.result.passed, view.undo == "stuck"
    status = 3 if stuck else int(not passed)
    if as_json:
        click.echo(json.dumps(document(view), sort_keys=True))
        return status
    before = "" if view.fresh else " (verified earlier)"
    render.say(f"{view.entry_id} {_word_of(view.result)}{before}{_wrong(view.result.detail)}")
    render.say(f"it is {status_of(view.status)}")
    _committed(view)
    if view.undo == "applied":
        render.say("the files it had changed are restored")
    elif stuck:
        render.say(
            "some files could not be restored because somebody else changed them; put them back as the change left"
            " them, then:"
        )
        render.say(f"  onceward change verify {view.entry_id}")
    if not passed and view.escalation:
        render.say(f"next: onceward change show {view.escalation}")
    return status
