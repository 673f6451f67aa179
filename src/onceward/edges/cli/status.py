"""How things stand: a build as a tree of its steps, a session with its children."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from onceward.core.money import to_micros, to_usd
from onceward.core.views import document
from onceward.edges.cli import render
from onceward.edges.cli.build_display import approval
from onceward.edges.cli.builds import build_table, state_of
from onceward.edges.cli.change_display import change_table
from onceward.edges.cli.display import explain, shown
from onceward.edges.cli.main import Command, Globals, complete_build, pass_globals
from onceward.edges.cli.sagas import saga_table, show_saga

if TYPE_CHECKING:
    from onceward.changes.views import ChangeSummary
    from onceward.sagas.views import SagaSummary


_DONE = ("SUCCESS", "SKIPPED", "REUSED")
_EACH = 12
"""How many steps of a stage are shown without being asked for all."""


@click.command(cls=Command)
@click.argument(
    "subject", metavar="[BUILD|SAGA|SESSION|CHILD]", required=False, shell_complete=complete_build
)
@click.option(
    "--children",
    "children",
    is_flag=True,
    help="Of a build or saga: its children instead of its steps.",
)
@click.option("--all", "everything", is_flag=True, help="Every step, however many.")
@pass_globals
def status(given: Globals, subject: str | None, children: bool, everything: bool) -> None:
    """How a build or saga stands with every step, or a session with every child. Without an id, a list of the newest of each."""
    from onceward.changes.views import WAITS_FOR, change_list
    from onceward.engine.build_reading import build_list, build_status
    from onceward.engine.reading import session_list, session_status
    from onceward.sagas.views import saga_list, saga_view

    with given.workspace().reading() as store:
        if subject is None:
            sessions = [
                s
                for s in session_list(store)
                if not s["session_id"].startswith(("bld_", "sga_", "vfy_"))
            ]
            builds, sagas = build_list(store, 10), saga_list(store, 10)
            changes = change_list(store, tuple(WAITS_FOR), limit=10)
        elif subject.startswith("sga_") and not children:
            saga = saga_view(store, subject)
            render.document(document(saga)) if given.json else show_saga(saga)
            return
        elif (subject.startswith("bld_") or subject == "latest") and not children:
            build = build_status(store, subject)
            render.document(build) if given.json else _build(build, everything)
            return
        else:
            found = session_status(store, subject)
            render.document(found) if given.json else _session(found)
            return
    if given.json:
        render.document(
            {
                "builds": builds,
                "changes": document(changes),
                "sagas": document(sagas),
                "sessions": sessions,
            }
        )
    else:
        _newest(builds, sagas, sessions, changes)


def _newest(
    builds: Sequence[dict[str, Any]],
    sagas: Sequence[SagaSummary],
    sessions: Sequence[dict[str, Any]],
    changes: Sequence[ChangeSummary],
) -> None:
    if not (builds or sagas or sessions or changes):
        render.say("Nothing yet.  Next: onceward run PLAN, or onceward spawn -- COMMAND")
    if builds:
        build_table(builds)
    if sagas:
        saga_table(sagas)
    if sessions:
        rows = [
            (s["session_id"], s["created_at"][:19], s["children"], s["open"], s["failed"])
            for s in sessions
        ]
        render.table(("session", "opened", "children", "open", "failed"), rows)
    if changes:
        change_table(changes)


def _build(found: dict[str, Any], everything: bool) -> None:
    reason = f" ({found['reason']})" if found.get("reason") and found["state"] != "ACTIVE" else ""
    state = click.style(state_of(found), fg=render.STATES.get(found["state"]), bold=True)
    render.say(f"build {found['build_id']}, {render.plain(found['name'])}: {state}{reason}")
    _lanes(found)
    stages: dict[str, list[dict[str, Any]]] = {}
    for step in found["steps"]:
        stages.setdefault(step["stage"], []).append(step)
    width = max((len(render.plain(s["target"])) for s in found["steps"]), default=0)
    for number, (stage, steps) in enumerate(stages.items(), 1):
        last = number == len(stages)
        render.say(f"{'└─' if last else '├─'} {_stage_line(stage, steps)}")
        _steps(steps, "   " if last else "│  ", min(width, 40), everything)
    for wanted in found.get("approvals", ()):
        for line in approval(wanted, found["build_id"]):
            render.say(line)
    if found.get("next"):
        render.say(f"next: {render.plain(found['next'])}")


def _stage_line(stage: str, steps: Sequence[dict[str, Any]]) -> str:
    done = sum(step["status"] in _DONE for step in steps)
    bad = sum(step["status"] in ("FAILED", "CANCELLED", "BLOCKED", "IN_DOUBT") for step in steps)
    colour = "red" if bad else "green" if done == len(steps) else None
    cost = sum(to_micros(step.get("cost_usd", "0.00")) for step in steps)
    paid = f"  {to_usd(cost)} usd" if cost else ""
    seconds = sum(step.get("seconds", 0) for step in steps)
    took = (
        f"  {render.duration(int(seconds)) if seconds >= 10 else f'{seconds:.1f}s'}"
        if seconds
        else ""
    )
    name, far = (
        click.style(render.plain(stage), bold=True),
        click.style(f"{done}/{len(steps)}", fg=colour),
    )
    return f"{name}  {far}{paid}{took}"


def _steps(steps: Sequence[dict[str, Any]], before: str, width: int, everything: bool) -> None:
    """All of a stage, or, of many, those that are not simply done first and a few of the rest."""
    shown_ = list(steps)
    if len(steps) > _EACH and not everything:
        loud = [step for step in steps if step["status"] not in (*_DONE, "waiting")]
        quiet = [step for step in steps if step["status"] in (*_DONE, "waiting")]
        shown_ = [*loud, *quiet][:_EACH]
    for number, step in enumerate(shown_, 1):
        ends = number == len(shown_) and len(shown_) == len(steps)
        render.say(f"{before}{'└─' if ends else '├─'} {_step_line(step, width)}")
    if len(shown_) < len(steps):
        render.say(f"{before}└─ ... {len(steps) - len(shown_):,} more (--all)")


def _step_line(step: dict[str, Any], width: int) -> str:
    error = step.get("error") or {}
    exit_ = f"exit {error['exit']}: " if error.get("exit") else ""
    why = f"{exit_}{error.get('message') or error.get('last_line') or error.get('reason') or ''}"
    left = ", ".join(f"{a['name']} {a['sha256'][:12]}" for a in step.get("artifacts", [])[:3])
    tries = f"{step['attempts']} tries" if step.get("attempts", 1) > 1 else ""
    took = f"{step['seconds']:.1f}s" if "seconds" in step else ""
    paid = step.get("cost_usd", "")
    word = click.style(
        f"{step['status']:9s}",
        fg=render.STATES.get(step["status"]),
        dim=step["status"] == "waiting",
    )
    cells = (paid if paid != "0.00" else "", took, tries, render.plain(left or why[:80]))
    rest = "  ".join(cell for cell in cells if cell)
    return f"{render.plain(step['target']):{width}s}  {word} {rest}".rstrip()


def _lanes(found: dict[str, Any]) -> None:
    for lane in (lane for lane in found["lanes"] if lane["total"] or lane["limit"] is not None):
        name, total, limit = shown(lane)
        render.say(f"  {name:13s} {total} {f'of {limit}' if limit else '(no limit)'}")


def _session(found: dict[str, Any]) -> None:
    render.say(
        f"session {found['session_id']}, {found['max_active_children']} at once, opened {found['created_at']}"
    )
    _lanes(found)
    rows = []
    for child in found["children"]:
        work = " ".join(child["work"].get("argv", [])) or child["work"].get("function", "")
        spent = " ".join(
            "=".join(shown({"lane": k, "total": v, "limit": None})[:2])
            for k, v in child["spent"].items()
        )
        rows.append((child["child_id"], _how(child), child["attempt"], spent or "-", work[:60]))
    if rows:
        render.table(("child", "how", "try", "spent", "work"), rows)


def _how(child: dict[str, Any]) -> str:
    """A child's state in a word, and why."""
    if child["phase"] != "terminal":
        return (
            "cancelling"
            if "cancel_request_id" in child
            else {"started": "running"}.get(child["phase"], child["phase"])
        )
    detail = child.get("detail", {})
    word = (
        "stopped"
        if detail.get("stopped")
        else {"completed": "passed"}.get(child["reason"], child["reason"])
    )
    return f"{word}{explain(child['reason'], detail)}"[:70]
