"""The registry of operations from the command line: planned, applied, rolled back, looked at (S-2, S-5, S-6)."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from onceward.core.views import document
from onceward.errors import PermitInvalid, Recovery
from onceward.ui.cli import render
from onceward.ui.cli.following import follow, serves
from onceward.ui.cli.main import Command, Globals, Group, file_argument, pass_globals
from onceward.ui.cli.sagas import SagaDisplay


@click.group(cls=Group)
def registry() -> None:
    """Operations that mean one thing for ever, by version."""


@registry.command(cls=Command)
@click.argument("file", metavar="PLAN")
@pass_globals
def plan(given: Globals, file: str) -> int:
    """Show what PLAN, a .toml file, would do, the digests a grant must name, and what stands against it."""
    return _foresee(given, file, None)


def _foresee(given: Globals, file: str, grant: str | None) -> int:
    """Everything that can be said without writing anything; exits 1 where something stands against it."""
    from onceward import saga_running
    from onceward.registry.jobs import to_apply
    from onceward.registry.views import forecast

    workspace = given.workspace()
    assembly = saga_running.in_file(file_argument(file), to_apply, workspace)
    with workspace.reading() as store:
        found = forecast(store, assembly, workspace.principal, grant)
    if given.json:
        render.document(document(found))
        return int(bool(found.objections))
    click.secho(
        f"{found.plan} into the collection {found.collection} ({found.collection_is})", bold=True
    )
    for value in found.values:
        also = f", in place of {value['supersedes']}" if value.get("supersedes") else ""
        render.say(
            render.plain(
                f"  + {value['value']}  {value['act_type']}  {value['governing_authority_ref']}{also}"
            )
        )
    render.say("a grant must name:")
    for name, value in found.scope.items():
        render.say(
            render.plain(
                f"  {name:16s} {', '.join(value) if isinstance(value, list | tuple) else value}"
            )
        )
    for why in found.objections:
        click.echo(f"{click.style('against it:', fg='red')} {render.plain(why)}")
    if found.objections:
        return 1
    if grant is None:
        render.say(
            f"next: onceward grant draft {file}, and by a granter: onceward grant issue GRANT"
        )
        render.say(f"then: onceward registry apply {file} --grant GRANT")
    else:
        render.say(
            f"nothing stands against it; carry it out: onceward registry apply {file} --grant {grant}"
        )
    return 0


@registry.command(cls=Command)
@click.argument("file", metavar="PLAN")
@click.option("--grant", metavar="GRANT", help="The grant that allows exactly this plan.")
@click.option(
    "--dry-run", is_flag=True, help="Only say what would be done, and whether the grant allows it."
)
@pass_globals
def apply(given: Globals, file: str, grant: str | None, dry_run: bool) -> int:
    """Bring the values of PLAN into the registry: all of them, or it stops at a named place.

    The same PLAN under the same GRANT is the same run: after a crash, the same command goes on with it.
    """
    from onceward import saga_running
    from onceward.registry.jobs import to_apply

    if dry_run:
        return _foresee(given, file, grant)
    workspace = given.workspace()
    assembly = saga_running.in_file(file_argument(file), to_apply, workspace)
    return _carry_out(given, assembly, file, grant, "apply")


def _carry_out(given: Globals, shipped: Any, file: str, grant: str | None, verb: str) -> int:
    from onceward import saga_running
    from onceward.registry.acts import ApplyPlan

    workspace = given.workspace()
    if grant is None:
        raise PermitInvalid(
            "changing the registry needs a grant for exactly this plan",
            recovery=[
                Recovery("ask for one", f"onceward grant draft {file}"),
                Recovery("or, as a granter, give it", f"onceward grant issue {file}"),
                Recovery("then say which", "--grant GRANT"),
            ],
        )
    display = SagaDisplay(given.json)
    if serves(workspace):
        order = ApplyPlan(plan=msgspec.to_builtins(shipped.plan), grant=grant)
        return follow(given, f"registry.{verb}", order, display.followed)
    outcome, signal = saga_running.carry_out(workspace, shipped, grant, display.begun, display.told)
    return display.end(outcome, signal)


@registry.command("list", cls=Command)
@pass_globals
def list_(given: Globals) -> None:
    """Every collection and its values, by version."""
    from onceward.registry.views import registry_list

    with given.workspace().reading() as store:
        found = registry_list(store)
    if given.json:
        render.document(document(found))
        return
    rows = [
        (
            collection.collection,
            value.value,
            value.status,
            value.act_type,
            value.governing_authority_ref,
            value.successor or "",
        )
        for collection in found
        for value in collection.values
    ]
    if rows:
        render.table(("collection", "value", "status", "act", "authority", "successor"), rows)
    else:
        render.say("The registry is empty. A plan fills it: onceward registry plan PLAN.toml")


@registry.command(cls=Command)
@click.argument("value")
@pass_globals
def show(given: Globals, value: str) -> None:
    """What VALUE, as code@version or by its id, means."""
    from onceward.registry.views import value_view

    with given.workspace().reading() as store:
        found = document(value_view(store, value))
    if given.json:
        render.document(found)
        return
    for name, what in found.items():
        render.say(render.plain(f"{name:24s} {what}"))


@registry.group(cls=Group)
def rollback() -> None:
    """Take a value out of force by naming what follows it. Nothing is deleted, nothing comes back."""


@rollback.command(cls=Command)
@click.argument("file", metavar="PLAN")
@pass_globals
def check(given: Globals, file: str) -> int:
    """Answer exactly one code for PLAN, and change nothing: exits 0 only for ROLLBACK_CONTRACT_VALID_FOR_REVIEW."""
    from onceward import saga_running
    from onceward.registry.jobs import to_roll_back
    from onceward.registry.views import verdict_on

    workspace = given.workspace()
    path = file_argument(file)
    plan = saga_running.in_file(path, to_roll_back, workspace).plan if path.exists() else None
    with workspace.reading() as store:
        verdict = verdict_on(store, plan)
    if given.json:
        render.document(msgspec.to_builtins(verdict))
    else:
        where = f"step {verdict.step}: " if verdict.step else ""
        click.echo(click.style(verdict.code, fg="green" if verdict.valid else "red"))
        if verdict.why:
            render.say(render.plain(f"  {where}{verdict.why}"))
        if verdict.valid:
            render.say(
                f"next: onceward grant draft {file}, and by a granter: onceward grant issue GRANT"
            )
            render.say(f"then: onceward registry rollback run {file} --grant GRANT")
    return 0 if verdict.valid else 1


@rollback.command("run", cls=Command)
@click.argument("file", metavar="PLAN")
@click.option("--grant", metavar="GRANT", help="The grant that allows exactly this plan.")
@pass_globals
def run_(given: Globals, file: str, grant: str | None) -> int:
    """Supersede what PLAN names, with its audit rows, in one transaction; or not at all."""
    from onceward import saga_running
    from onceward.registry.jobs import to_roll_back

    workspace = given.workspace()
    shipped = saga_running.in_file(file_argument(file), to_roll_back, workspace)
    return _carry_out(given, shipped, file, grant, "rollback")
