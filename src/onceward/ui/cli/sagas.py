"""Sagas from the command line: run, resume, and what a person may say to one (S-1, S-8)."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onceward.core.views import document
from onceward.errors import InvalidConfig
from onceward.ui.cli import render
from onceward.ui.cli.asking import ask, tell
from onceward.ui.cli.builds import prints_aside
from onceward.ui.cli.display import explain, shown
from onceward.ui.cli.following import follow, serves
from onceward.ui.cli.main import (
    CliCommand,
    CliGroup,
    Globals,
    asking_options,
    file_argument,
    pass_globals,
)
from onceward.ui.cli.spawn import budget_of, limits_of

if TYPE_CHECKING:
    from onceward.sagas.views import SagaSummary, SagaView


EXITS = {"done": 0, "stopped": 1, "given up": 1, "stuck": 3, "unfinished": 1, "running": 1}
"""How a command that carried a run ends: 3 where a person must decide."""
_COLOURS = {
    "done": "green",
    "stopped": "red",
    "failed": "red",
    "stuck": "yellow",
    "unfinished": "yellow",
    "given up": "yellow",
}


@click.group(cls=CliGroup)
def saga() -> None:
    """Run actions in order; undo them if one fails.

    A saga lists actions, each with the compensation that undoes it. A run ends DONE, or stops at a named state and
    compensates the actions before it in reverse order.
    """


def _budget_option(command: Any) -> Any:
    return click.option(
        "--budget",
        "budgets",
        multiple=True,
        metavar="LANE=N",
        help="Limit a lane: usd, tokens, solver_calls or duration_secs.",
    )(command)


@saga.command(cls=CliCommand)
@click.argument("file", type=click.Path())
@click.option(
    "--input", "given_", metavar="JSON|@FILE", default="null", help="The input of the run."
)
@click.option(
    "--root",
    metavar="ROOT",
    help="The run's name and idempotency key: the same root is the same run [default: a new one].",
)
@click.option("--grant", metavar="GRANT", help="The grant to run under.")
@_budget_option
@pass_globals
def run(
    given: Globals,
    /,
    file: str,
    given_: str,
    root: str | None,
    grant: str | None,
    budgets: tuple[str, ...],
) -> int:
    """Run the saga that FILE, a .py file, defines.

    The same ROOT is the same run: finished actions are not repeated. Creates the workspace if there is none. Exit
    status: 0 DONE, 1 stopped and compensated, 3 stuck.
    """
    from onceward import saga_running
    from onceward.sagas.acts import RunSaga
    from onceward.sagas.saga_file import saga_in

    limits, value = limits_of(budgets), json_of(given_)
    if root == "":
        raise InvalidConfig(
            "--root must not be empty; leave it out for a new run", context={"field": "--root"}
        )
    workspace = given.workspace()
    found = saga_in(file_argument(file))
    workspace.ensure()
    display = SagaDisplay(given.json)
    if serves(workspace):
        place = workspace.recorded_place(file_argument(file).absolute())
        order = RunSaga(
            file=place, input=value, root=root or "", grant=grant, budget=budget_of(budgets)
        )
        return follow(given, "sagas.run", order, display.followed)
    with prints_aside(given.json):
        outcome, signal = saga_running.run(
            workspace,
            found,
            root=root,
            given=value,
            grant=grant,
            limits=limits,
            begun=display.begun,
            told=display.told,
            leaving=True,
        )
    return display.end(outcome, signal)


def _go_on(
    given: Globals, name: str, file: str | None, budgets: tuple[str, ...], retry: bool
) -> int:
    from onceward import saga_running
    from onceward.sagas.acts import ResumeSaga

    display, workspace = SagaDisplay(given.json), given.workspace()
    limits = limits_of(budgets)
    if serves(workspace) and file is None:
        order = ResumeSaga(saga=name, retry=retry, budget=budget_of(budgets))
        return follow(given, "sagas.resume", order, display.followed)
    with prints_aside(given.json):
        outcome, signal = saga_running.resume(
            workspace,
            name,
            file=Path(file).expanduser() if file else None,
            retry=retry,
            limits=limits,
            begun=display.begun,
            told=display.told,
            leaving=True,
        )
    return display.end(outcome, signal)


@saga.command(cls=CliCommand)
@click.argument("run_", metavar="RUN")
@click.option("--file", metavar="FILE", help="The saga's file, if it was moved.")
@_budget_option
@pass_globals
def resume(given: Globals, /, run_: str, file: str | None, budgets: tuple[str, ...]) -> int:
    """Continue RUN (an id or a root) at its first unfinished state."""
    return _go_on(given, run_, file, budgets, retry=False)


@saga.command(cls=CliCommand)
@click.argument("run_", metavar="RUN")
@click.option("--file", metavar="FILE", help="The saga's file, if it was moved.")
@_budget_option
@pass_globals
def retry(given: Globals, /, run_: str, file: str | None, budgets: tuple[str, ...]) -> int:
    """Retry the compensation or state at which RUN is stuck."""
    return _go_on(given, run_, file, budgets, retry=True)


@saga.command(cls=CliCommand)
@click.argument("run_", metavar="RUN")
@asking_options
@pass_globals
def abandon(given: Globals, run_: str) -> int:
    """Give up RUN.

    A run that is not finished stops and is compensated. A stuck run is closed as it is; nothing more is undone.
    """

    def say(value: dict[str, Any]) -> None:
        render.say(f"{value['saga_id']} is at {value['state']}")
        if value["settled"]:
            render.say(
                f"closed as it is; not undone: {', '.join(value['not_undone']) or 'nothing'}"
            )
        elif value["at_work"]:
            render.say("the kernel that runs it is compensating it now")
        else:
            render.say(f"to undo what it did: onceward saga resume {value['saga_id']}")

    return tell(given, ask(given, "sagas.abandon", {"saga": run_}), say)


@saga.command("list", cls=CliCommand)
@pass_globals
def list_(given: Globals) -> None:
    """List the newest runs and their states."""
    from onceward.sagas.views import saga_list

    with given.workspace().reading() as store:
        found = saga_list(store)
    if given.json:
        render.document(document(found))
    elif found:
        saga_table(found)
    else:
        render.say("No sagas yet.")


def saga_table(found: Sequence[SagaSummary]) -> None:
    rows = [
        (run.saga_id, run.name, run.state, run.standing, run.root, run.created_at[:19])
        for run in found
    ]
    render.table(("run", "saga", "state", "standing", "root", "begun"), rows)


@saga.command(cls=CliCommand)
@click.argument("run_", metavar="RUN")
@pass_globals
def show(given: Globals, run_: str) -> None:
    """Show RUN: its actions, compensations, costs and the next command."""
    from onceward.sagas.views import saga_view

    with given.workspace().reading() as store:
        found = saga_view(store, run_)
    render.document(document(found)) if given.json else show_saga(found)


def show_saga(view: SagaView) -> None:
    standing = click.style(view.standing, fg=_COLOURS.get(view.standing, "cyan"))
    saga_id = click.style(view.saga_id, bold=True)
    click.echo(f"{saga_id}  {render.plain(view.name)}  {view.state}  {standing}")
    grant = f", grant {view.grant_id}" if view.grant_id else ""
    render.say(f"root {render.plain(view.root)}{grant}")
    held = "held" if view.lease_held else "free"
    render.say(f"lease {render.plain(view.lease)} ({held})")
    for step in view.steps:
        name = step.step if step.side == "action" else f"undo {step.step}"
        word = click.style(f"{step.status:10s}", fg=_COLOURS.get(step.status))
        why = explain(step.error.get("reason", ""), step.error) if step.error else ""
        child = click.style(f"  {step.child_id}", dim=True) if step.child_id else ""
        click.echo(f"  {word} {name}{why}{child}")
    _reasons(view)
    _spent(view, err=False)
    if view.next:
        render.say(f"next: {view.next}")


def _reasons(view: SagaView) -> None:
    """Why it stopped, where that is not an action's own failure, and what is left of it."""
    why = view.why or {}
    if why.get("reason") in ("check_failed", "guard_failed", "write_failed", "abandoned"):
        render.say(render.plain(f"stopped by {why['step']}: {why.get('message', why['reason'])}"))
    for left in view.left or ():
        render.say(render.plain(f"left unchanged: {left}"))
    if view.not_undone:
        render.say(render.plain(f"not undone: {', '.join(view.not_undone)}"))


def _spent(view: SagaView, err: bool) -> None:
    lanes = [shown(lane) for lane in view.lanes if lane.total or lane.limit is not None]
    if lanes:
        said = ", ".join(
            f"{name} {total}{f' of {limit}' if limit else ''}" for name, total, limit in lanes
        )
        with suppress(OSError):
            click.echo(f"spent: {said}", err=err)


class SagaDisplay:
    """What a person, or a program, sees while a saga runs."""

    def __init__(self, as_json: bool) -> None:
        self._json, self._out = as_json, sys.stdout
        self._undoing = False

    def begun(self, run: Any, how: str) -> None:
        if self._json:
            self._line(
                {
                    "type": "saga",
                    "saga_id": run.saga_id,
                    "name": run.name,
                    "root": run.idempotency_root,
                }
            )
            return
        also = {"": "", "over": " (this root has already run)", "resumed": " (resumed)"}[how]
        self._say(click.style(f"saga {render.plain(run.name)}: {run.saga_id}{also}", dim=True))

    def told(self, said: Mapping[str, Any]) -> None:
        if self._json:
            self._line(
                {
                    "type": "step",
                    **{key: said[key] for key in said if key != "why"},
                    **_reason(said),
                }
            )
            return
        if said["side"] == "compensation" and not self._undoing:
            self._undoing = True
            self._say("an action failed; compensating:")
        if said["status"] == "running":
            return
        name = said["step"] if said["side"] == "action" else f"undo {said['step']}"
        colour = {"done": "green", "failed": "red"}.get(said["status"], "yellow")
        why = (
            "" if said["status"] == "done" else explain(said["why"].get("reason", ""), said["why"])
        )
        self._say(f"  {click.style(said['status'], fg=colour)} {render.plain(name)}{why}")

    def end(self, outcome: SagaView, signal: int) -> int:
        if self._json:
            self._line({"type": "result", **document(outcome)})
        else:
            self._say(_summary(outcome))
            not_undone = [f"{name} was not undone" for name in outcome.not_undone or ()]
            for left in (*(outcome.left or ()), *not_undone):
                self._say(click.style(f"  remains: {render.plain(left)}", fg="yellow"))
            _spent(outcome, err=True)
            if outcome.standing != "done":
                self._say(f"next: {outcome.next or f'onceward explain {outcome.saga_id}'}")
        return signal or EXITS[outcome.standing]

    def followed(self, store: Any, subject: Mapping[str, Any]) -> int:
        """A run that a server carried: how it stands."""
        from onceward.sagas.views import saga_view

        return self.end(saga_view(store, subject["saga_id"]), 0)

    def _line(self, value: dict[str, Any]) -> None:
        # Whoever read us may have seen enough; the run goes on.
        with suppress(OSError):
            click.echo(json.dumps(value, sort_keys=True), file=self._out)

    def _say(self, text: str) -> None:
        with suppress(OSError):
            click.echo(text, err=True)


def _reason(said: Mapping[str, Any]) -> dict[str, Any]:
    return {"why": dict(said["why"])} if said.get("why") and said["status"] != "done" else {}


def _summary(outcome: SagaView) -> str:
    name, state = render.plain(outcome.name), outcome.state
    if outcome.standing == "done":
        return f"{click.style('DONE', fg='green')}: {name}"
    if outcome.standing == "stopped":
        untouched = state.startswith("ABORT_")
        how = " before it changed anything" if untouched else "; its compensations are done"
        return f"{click.style(state, fg='red')}: {name} stopped{how}"
    label = f"{click.style(state, fg='yellow')}: {name}"
    if outcome.standing == "given up":
        return f"{label} was given up; not everything is undone"
    if outcome.standing != "stuck":
        return f"{label} is not finished"
    if (outcome.stuck or {}).get("again"):
        return f"{label} waits for you: the earlier states are in force, and the state that failed can be retried"
    return f"{label} is stuck: a compensation failed; retry it or give the run up"


def json_of(text: str) -> Any:
    """A JSON value, or that of a file named with @; without what canonical JSON cannot hold."""
    from onceward.core.canon import parse

    try:
        data = (
            Path(text[1:]).expanduser().read_bytes()
            if text.startswith("@") and text != "@-"
            else text.encode()
        )
        return parse(sys.stdin.buffer.read() if text == "@-" else data)
    except OSError as error:
        raise InvalidConfig(
            f"cannot read {text[1:]}: {error.strerror}", context={"field": "--input"}
        ) from None
    except InvalidConfig as error:
        raise InvalidConfig(f"--input: {error.message}", context={"field": "--input"}) from None
