"""Builds from the command line: run, resume, and what a person may say to one (B-1 to B-16)."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onceward.errors import InvalidConfig, Recovery
from onceward.ui.cli import render
from onceward.ui.cli.approvals import looked_at, show_approval
from onceward.ui.cli.asking import ask, tell
from onceward.ui.cli.build_display import BuildDisplay
from onceward.ui.cli.displays import build_display
from onceward.ui.cli.following import follow_build, serves
from onceward.ui.cli.main import (
    CliCommand,
    Globals,
    asking_options,
    build_argument,
    pass_globals,
    wait_option,
)
from onceward.ui.cli.spawn import budget_of, limits_of

if TYPE_CHECKING:
    from onceward.builds.views import BuildSummary

_EXITS = {"SUCCESS": 0, "FAILED": 1, "BUDGET_PAUSE": 3, "CRASHED": 1, "ACTIVE": 1, "ABANDONED": 1}


def _work_options(command: Any) -> Any:
    """What `run` and `resume` share."""
    for option in (
        click.option(
            "--jobs",
            type=click.IntRange(1, 1000),
            help="Maximum number of steps at a time [default: the plan's, or 2].",
        ),
        click.option(
            "--budget",
            "budgets",
            multiple=True,
            metavar="LANE=N",
            help="Limit a lane: usd, tokens, solver_calls or duration_secs.",
        ),
        click.option(
            "--keep-going",
            is_flag=True,
            help="After a failure, run the steps that do not depend on it.",
        ),
        click.option("--no-reuse", is_flag=True, help="Do not reuse results of other builds."),
    ):
        command = option(command)
    return command


@click.command(cls=CliCommand)
@click.argument("plan", type=click.Path())
@click.option(
    "--dry-run",
    is_flag=True,
    help="Show what would run, why, and the estimated cost; run nothing.",
)
@click.option(
    "--only",
    multiple=True,
    metavar="STAGE[:TARGET]",
    help="Run only these steps and the steps they need.",
)
@click.option(
    "--force", is_flag=True, help="Run the chosen steps even if their results exist already."
)
@click.option(
    "--set",
    "config",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a config key.",
)
@_work_options
@pass_globals
def run(
    given: Globals, /, plan: str, jobs: int | None, keep_going: bool, no_reuse: bool, **asked: Any
) -> int:
    """Run PLAN, a .toml or .py file, as a new build.

    A step whose inputs, config and code are unchanged is not run again: its stored result is reused. Creates the
    workspace if there is none. Exit status: 0 all steps done, 1 a step failed, 3 paused by the budget.
    """
    from onceward import running
    from onceward.builds.acts import RunBuild
    from onceward.builds.choices import Choices, assignments
    from onceward.builds.jobs import BuildOptions, require_environment
    from onceward.builds.plan_file import load

    limits = limits_of(asked["budgets"])
    workspace = given.workspace()
    choices = Choices(asked["only"], asked["force"], assignments(asked["config"]))
    resolved = load(Path(plan).expanduser(), choices)
    require_environment(resolved)
    if asked["dry_run"]:
        from onceward.ui.cli.forecast import tell

        return tell(given, resolved, {**resolved.plan.limits, **limits}, reuse=not no_reuse)
    made = workspace.ensure()
    if made and not given.json:
        with suppress(OSError):
            click.secho(f"created the workspace {workspace.folder}", dim=True, err=True)
    display = build_display(given.json)
    if serves(workspace):
        order = RunBuild(
            plan=workspace.recorded_place(Path(plan).expanduser().absolute()),
            only=choices.only,
            force=choices.force,
            config=dict(choices.config),
            jobs=jobs,
            budget=budget_of(asked["budgets"]),
            keep_going=keep_going,
            reuse=not no_reuse,
        )
        return _followed(follow_build(given, "builds.run", order, display), display)
    with prints_aside(given.json):
        options = BuildOptions(
            jobs=jobs, limits=limits, keep_going=keep_going, reuse=not no_reuse, leaving=True
        )
        outcome, signal = running.run(workspace, resolved, display, options)
    return _leave(display, outcome, signal)


@click.command(cls=CliCommand)
@build_argument(required=False)
@click.option(
    "--token", metavar="TOKEN", default="", help="The confirmation token of a paused build."
)
@click.option("--plan", metavar="FILE", help="The plan's file, if it was moved.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Show what would run, why, and the estimated cost; run nothing.",
)
@click.option(
    "--fork",
    is_flag=True,
    help="If the plan changed: start a new build that reuses the results that still apply.",
)
@click.option(
    "--strict-code",
    is_flag=True,
    help="Refuse if the code of a finished step changed; by default its result is kept.",
)
@click.option(
    "--rerun",
    "rerun",
    multiple=True,
    metavar="STEP",
    help="Run this step, which is in doubt, again.",
)
@click.option(
    "--accept",
    "accept",
    multiple=True,
    metavar="STEP=FILE",
    help="Accept this step, which is in doubt, as done, with FILE as its result.",
)
@_work_options
@pass_globals
def resume(
    given: Globals,
    /,
    build: str | None,
    jobs: int | None,
    keep_going: bool,
    no_reuse: bool,
    **asked: Any,
) -> int:
    """Continue BUILD, which crashed or was paused.

    Steps with a checkpoint are skipped. Without BUILD, resumes the only build that can be resumed.
    """
    from onceward import running
    from onceward.builds.acts import ResumeBuild
    from onceward.builds.jobs import BuildOptions
    from onceward.builds.lifecycle import Offer
    from onceward.people.permits import proof_of

    offer = Offer(
        token=asked["token"],
        limits=limits_of(asked["budgets"]),
        fork=asked["fork"],
        strict_code=asked["strict_code"],
        rerun=asked["rerun"],
        accept=_accepted(asked["accept"]),
    )
    workspace = given.workspace()
    build = build or _the_one(workspace)
    file = Path(asked["plan"]).expanduser() if asked["plan"] else None
    if asked["dry_run"]:
        return _foresee(given, build, file, offer.limits, no_reuse)
    display = build_display(given.json)
    if serves(workspace):
        order = ResumeBuild(
            build=build,
            proof=proof_of(offer.token) if offer.token else "",
            fork=offer.fork,
            strict_code=offer.strict_code,
            rerun=tuple(offer.rerun),
            accept=_bring(workspace, offer.accept),
            plan=workspace.recorded_place(file and file.absolute()),
            jobs=jobs,
            budget=budget_of(asked["budgets"]),
            keep_going=keep_going,
            reuse=not no_reuse,
        )
        return _followed(follow_build(given, "builds.resume", order, display), display)
    with prints_aside(given.json):
        options = BuildOptions(jobs=jobs, keep_going=keep_going, reuse=not no_reuse, leaving=True)
        outcome, signal = running.resume(workspace, build, display, offer, options, plan_file=file)
    return _leave(display, outcome, signal)


def _foresee(
    given: Globals, name: str, file: Path | None, limits: Mapping[str, int], no_reuse: bool
) -> int:
    """What a resume would do."""
    from onceward import running
    from onceward.builds.jobs import require_environment
    from onceward.builds.views import build_named
    from onceward.ui.cli.forecast import tell

    workspace = given.workspace()
    with workspace.reading() as store:
        build = build_named(store, name)
    resolved = running.load_for(workspace, build, plan_file=file)
    require_environment(resolved)
    return tell(
        given, resolved, limits, reuse=not no_reuse and bool(build.reuse), build_id=build.build_id
    )


def _the_one(workspace: Any) -> str:
    from onceward.builds.views import build_list

    with workspace.reading() as store:
        builds = build_list(store)
    went_on = {build.parent_build_id for build in builds}
    resumable = [b for b in builds if b.state in ("CRASHED", "BUDGET_PAUSE") or b.orphaned]
    found = [build for build in resumable if build.build_id not in went_on] or resumable
    if len(found) == 1:
        return found[0].build_id
    if found:
        ways = ", ".join(f"{build.build_id} ({build.state})" for build in found[:5])
        give_up = Recovery("or give one up", f"onceward abandon {found[-1].build_id}", "medium")
        raise InvalidConfig(
            f"more than one build can be resumed; name one: {ways}",
            context={"field": "build"},
            recovery=[give_up],
        )
    running = [build.build_id for build in builds if build.state == "ACTIVE"]
    raise InvalidConfig(
        f"{running[0]} is running" if running else "there is no build to resume",
        context={"field": "build"},
    )


def prints_aside(as_json: bool) -> Any:
    """What Python steps print must not stand between our lines of JSON."""
    return redirect_stdout(sys.stderr) if as_json else nullcontext()


def _followed(outcome: dict[str, Any] | int, display: BuildDisplay) -> int:
    return outcome if isinstance(outcome, int) else _leave(display, outcome, 0)


def _bring(workspace: Any, files: Mapping[str, Path]) -> dict[str, Any]:
    """Files put where the server finds them."""
    from onceward.builds.acts import Kept
    from onceward.core.canon import sha256_hex

    contents = {step: (path.name, path.read_bytes()) for step, path in files.items()}
    if contents:
        with workspace.artifacts() as artifacts:
            artifacts.offer({sha256_hex(data): [data] for _, data in contents.values()})
    return {step: Kept(name, sha256_hex(data)) for step, (name, data) in contents.items()}


def _leave(display: BuildDisplay, outcome: dict[str, Any], signal: int) -> int:
    display.result(outcome)
    if signal and outcome["state"] in ("CRASHED", "ACTIVE"):
        return signal
    return 3 if outcome.get("in_doubt") else _EXITS[outcome["state"]]


def _accepted(texts: Sequence[str]) -> dict[str, Path]:
    """`STEP=FILE` words. Either may hold a `=`: the file that is there decides."""
    found: dict[str, Path] = {}
    for text in texts:
        places = [at for at, letter in enumerate(text) if letter == "="]
        pairs = [(text[:at], Path(text[at + 1 :]).expanduser()) for at in places if text[at + 1 :]]
        if not pairs:
            raise InvalidConfig(
                f"--accept takes STEP=FILE, not {text[:60]!a}", context={"field": "--accept"}
            )
        step, file = next((pair for pair in pairs if pair[1].is_file()), pairs[0])
        if step in found:
            raise InvalidConfig(
                f"--accept names {step[:60]!a} twice", context={"field": "--accept"}
            )
        found[step] = file
    return found


def build_table(builds: Sequence[BuildSummary]) -> None:
    rows = [(b.build_id, b.name, state_of(b), b.cost_usd, b.created_at[:19]) for b in builds]
    render.table(("build", "plan", "state", "usd", "begun (UTC)"), rows)


def state_of(build: BuildSummary) -> str:
    """A build's state, and whether that is only what its dead kernel left."""
    return f"{build.state} (no kernel runs it)" if build.orphaned else build.state


@click.command("list", cls=CliCommand)
@pass_globals
def list_(given: Globals) -> None:
    """List the newest builds, with their states and costs."""
    from onceward.builds.views import build_list

    with given.workspace().reading() as store:
        found = build_list(store)
    if given.json:
        render.document(found)
    elif not found:
        render.say("No builds yet.  Next: onceward run PLAN")
    else:
        build_table(found)


@click.command(cls=CliCommand)
@build_argument()
@wait_option
@pass_globals
def confirm(given: Globals, build: str) -> int:
    """Create a confirmation token for BUILD, which is paused.

    The token is shown once. Earlier tokens become void.
    """
    from onceward.people.permits import hash_of

    secret = secrets.token_hex(32)
    # Only its hash is asked for: the token itself is in no request, no answer and no log.
    asked = ask(given, "builds.confirm", {"build": build, "token_hash": hash_of(secret)})
    if given.json:
        waiting = {"request_id": asked.request_id, "status": "asked"} if asked.pending else {}
        render.document({**asked.value, **waiting, "confirmation_token": secret})
    elif asked.pending:
        click.echo("The kernel has not answered yet. Once it does, this token is valid:", err=True)
        render.say(secret)
    else:
        click.echo(
            f"valid until {asked.value['expires_at'][:19]} UTC; resume with --token", err=True
        )
        render.say(secret)
    return 3 if asked.pending else 0


@click.command(cls=CliCommand)
@build_argument()
@click.argument("step")
@click.option("--digest", metavar="D", help="The digest of the inputs you approve, as shown.")
@click.option("--show", is_flag=True, help="Show the inputs of the step; decide nothing.")
@click.option("--refuse", is_flag=True, help="Refuse: the step fails.")
@click.option("--note", default="", metavar="TEXT", help="The reason, for the record.")
@asking_options
@pass_globals
def approve(
    given: Globals,
    build: str,
    step: str,
    digest: str | None,
    show: bool,
    refuse: bool,
    note: str,
) -> int:
    """Approve or refuse STEP of BUILD, which waits for a person.

    An approval is for exactly the inputs with the given digest. Without --digest, the inputs are shown on the terminal
    and you type the first letters of their digest.
    """
    if show:
        show_approval(given, build, step)
        return 0
    if digest is None:
        digest = looked_at(given, build, step, refuse=refuse)
    payload = {"build": build, "step": step, "digest": digest, "refuse": refuse, "note": note}
    return tell(given, ask(given, "builds.approve", payload), _say_decided)


def _say_decided(answer: dict[str, Any]) -> None:
    render.say(f"{render.plain(answer['step'])} {answer['decision']}")
    if answer["state"] != "ACTIVE":
        click.echo(f"next: onceward resume {answer['build_id']}", err=True)


@click.command(cls=CliCommand)
@build_argument()
@click.option("--failed", is_flag=True, help="Record a paused build as failed for lack of budget.")
@asking_options
@pass_globals
def abandon(given: Globals, build: str, failed: bool) -> int:
    """Give up BUILD for good.

    Results of finished steps are kept, and other builds can reuse them.
    """
    asked = ask(given, "builds.abandon", {"build": build, "failed": failed})
    return tell(
        given, asked, lambda answer: render.say(f"{answer['build_id']} is {answer['state']}")
    )
