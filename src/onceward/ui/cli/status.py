"""How things stand: a build as a tree of its steps, a session with its children."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from onceward.core.money import to_micros, to_usd
from onceward.core.views import document
from onceward.ui.cli import render
from onceward.ui.cli.build_display import approval
from onceward.ui.cli.builds import build_table, state_of
from onceward.ui.cli.change_display import change_table
from onceward.ui.cli.display import amounts, explain, shown
from onceward.ui.cli.main import CliCommand, Globals, complete_build, pass_globals
from onceward.ui.cli.sagas import saga_table, show_saga

if TYPE_CHECKING:
    from onceward.builds.views import BuildSummary, BuildView, StepView
    from onceward.changes.views import ChangeSummary
    from onceward.core.views import LaneView
    from onceward.dispatch.views import ChildView, SessionSummary, SessionView
    from onceward.sagas.views import SagaSummary


_DONE = ("SUCCESS", "SKIPPED", "REUSED")
_EACH = 12
"""How many steps of a stage are shown without being asked for all."""


@click.command(cls=CliCommand)
@click.argument(
    "subject", metavar="[BUILD|SAGA|SESSION|CHILD]", required=False, shell_complete=complete_build
)
@click.option(
    "--children",
    "children",
    is_flag=True,
    help="For a build or saga: list its children instead of its steps.",
)
@click.option("--all", "everything", is_flag=True, help="List every step, however many.")
@pass_globals
def status(given: Globals, subject: str | None, children: bool, everything: bool) -> None:
    """Show the state of a build, saga, session or child.

    Lists the steps of a build or saga, and the children of a session. Without an id, lists the newest of each, and the
    changes that wait.
    """
    from onceward.builds.views import build_list, build_view
    from onceward.changes.views import WAITS_FOR, change_list
    from onceward.dispatch.views import session_list, session_view
    from onceward.sagas.views import saga_list, saga_view

    with given.workspace().reading() as store:
        if subject is None:
            sessions = [
                s
                for s in session_list(store)
                if not s.session_id.startswith(("bld_", "sga_", "vfy_"))
            ]
            builds, sagas = build_list(store, 10), saga_list(store, 10)
            changes = change_list(store, tuple(WAITS_FOR), limit=10)
        elif subject.startswith("sga_") and not children:
            saga = saga_view(store, subject)
            render.document(saga) if given.json else show_saga(saga)
            return
        elif (subject.startswith("bld_") or subject == "latest") and not children:
            build = build_view(store, subject)
            render.document(build) if given.json else _build(build, everything)
            return
        else:
            found = session_view(store, subject)
            render.document(found) if given.json else _session(found)
            return
    if given.json:
        render.document(
            {"builds": builds, "changes": changes, "sagas": sagas, "sessions": sessions}
        )
    else:
        _newest(builds, sagas, sessions, changes)


def _newest(
    builds: Sequence[BuildSummary],
    sagas: Sequence[SagaSummary],
    sessions: Sequence[SessionSummary],
    changes: Sequence[ChangeSummary],
) -> None:
    if not (builds or sagas or sessions or changes):
        render.say("Nothing yet.  Next: onceward run PLAN, or onceward spawn -- COMMAND")
    if builds:
        build_table(builds)
    if sagas:
        saga_table(sagas)
    if sessions:
        rows = [(s.session_id, s.created_at[:19], s.children, s.open, s.failed) for s in sessions]
        render.table(("session", "opened", "children", "open", "failed"), rows)
    if changes:
        change_table(changes)


def _build(build: BuildView, everything: bool) -> None:
    reason = f" ({build.reason})" if build.reason and build.state != "ACTIVE" else ""
    state = click.style(state_of(build), fg=render.STATES.get(build.state), bold=True)
    render.say(f"build {build.build_id}, {render.plain(build.name)}: {state}{reason}")
    _lanes(build.lanes)
    stages: dict[str, list[StepView]] = {}
    for step in build.steps:
        stages.setdefault(step.stage, []).append(step)
    width = max((len(render.plain(step.target)) for step in build.steps), default=0)
    for number, (stage, steps) in enumerate(stages.items(), 1):
        last = number == len(stages)
        render.say(f"{'└─' if last else '├─'} {_stage_line(stage, steps)}")
        _steps(steps, "   " if last else "│  ", min(width, 40), everything)
    for wanted in build.approvals:
        for line in approval(document(wanted), build.build_id):
            render.say(line)
    if build.next:
        render.say(f"next: {render.plain(build.next)}")


def _stage_line(stage: str, steps: Sequence[StepView]) -> str:
    done = sum(step.status in _DONE for step in steps)
    bad = sum(step.status in ("FAILED", "CANCELLED", "BLOCKED", "IN_DOUBT") for step in steps)
    colour = "green" if done == len(steps) else None
    if bad:
        colour = "red"
    cost = sum(to_micros(step.cost_usd or "0.00") for step in steps)
    paid = f"  {to_usd(cost)} usd" if cost else ""
    name = click.style(render.plain(stage), bold=True)
    far = click.style(f"{done}/{len(steps)}", fg=colour)
    return f"{name}  {far}{paid}{_took(sum(step.seconds or 0 for step in steps))}"


def _took(seconds: float) -> str:
    if not seconds:
        return ""
    return f"  {render.duration(int(seconds))}" if seconds >= 10 else f"  {seconds:.1f}s"


def _steps(steps: Sequence[StepView], before: str, width: int, everything: bool) -> None:
    """All of a stage, or, of many, those that are not simply done first and a few of the rest."""
    some = list(steps)
    if len(steps) > _EACH and not everything:
        loud = [step for step in steps if step.status not in (*_DONE, "waiting")]
        quiet = [step for step in steps if step.status in (*_DONE, "waiting")]
        some = [*loud, *quiet][:_EACH]
    for number, step in enumerate(some, 1):
        ends = number == len(some) and len(some) == len(steps)
        render.say(f"{before}{'└─' if ends else '├─'} {_step_line(step, width)}")
    if len(some) < len(steps):
        render.say(f"{before}└─ ... {len(steps) - len(some):,} more (--all)")


def _step_line(step: StepView, width: int) -> str:
    error = step.failure()
    exit_ = f"exit {error['exit']}: " if error.get("exit") else ""
    why = f"{exit_}{error.get('message') or error.get('last_line') or error.get('reason') or ''}"
    left = ", ".join(f"{one.name} {one.sha256[:12]}" for one in step.outputs()[:3])
    tries = f"{step.attempts} tries" if (step.attempts or 1) > 1 else ""
    took = f"{step.seconds:.1f}s" if step.seconds is not None else ""
    paid = step.cost_usd or ""
    word = click.style(
        f"{step.status:9s}", fg=render.STATES.get(step.status), dim=step.status == "waiting"
    )
    cells = (paid if paid != "0.00" else "", took, tries, render.plain(left or why[:80]))
    rest = "  ".join(cell for cell in cells if cell)
    return f"{render.plain(step.target):{width}s}  {word} {rest}".rstrip()


def _lanes(lanes: Sequence[LaneView]) -> None:
    for lane in lanes:
        if lane.total or lane.limit is not None:
            name, total, limit = shown(lane)
            render.say(f"  {name:13s} {total} {f'of {limit}' if limit else '(no limit)'}")


def _session(session: SessionView) -> None:
    at_once = f"{session.max_active_children} at once"
    render.say(f"session {session.session_id}, {at_once}, opened {session.created_at}")
    _lanes(session.lanes)
    rows = []
    for child in session.children:
        work = " ".join(child.work.get("argv", [])) or child.work.get("function", "")
        spent = amounts(child.spent) or "-"
        rows.append((child.child_id, _how(child), child.attempt, spent, work[:60]))
    if rows:
        render.table(("child", "how", "try", "spent", "work"), rows)


def _how(child: ChildView) -> str:
    """A child's state in a word, and why."""
    if not child.over:
        if child.cancel_request_id is not None:
            return "cancelling"
        return {"started": "running"}.get(child.phase, child.phase)
    reason, detail = child.reason or "", child.ending()
    word = "stopped" if detail.get("stopped") else {"completed": "passed"}.get(reason, reason)
    return f"{word}{explain(reason, detail)}"[:70]
