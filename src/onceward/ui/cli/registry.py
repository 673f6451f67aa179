"""The registry of operations from the command line: planned, applied, rolled back, looked at (S-2, S-5, S-6)."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from onceward.core.views import document
from onceward.errors import PermitInvalid, Recovery
from onceward.ui.cli import render
from onceward.ui.cli.following import follow, serves
from onceward.ui.cli.main import CliCommand, CliGroup, Globals, file_argument, pass_globals
from onceward.ui.cli.sagas import SagaDisplay


@click.group(cls=CliGroup)
def registry() -> None:
    """Manage the registry of versioned operations.

    The meaning of a registered version never changes; a new meaning needs a new version.
    """


@registry.command(cls=CliCommand)
@click.argument("file", metavar="PLAN")
@pass_globals
def plan(given: Globals, file: str) -> int:
    """Show what PLAN, a .toml file, would do, and any objections.

    Also prints the digests that a grant must name. Exit status: 1 if there is an objection.
    """
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
        click.echo(f"{click.style('objection:', fg='red')} {render.plain(why)}")
    if found.objections:
        return 1
    if grant is None:
        render.say(
            f"next: onceward grant draft {file}, then by a granter: onceward grant issue GRANT"
        )
        render.say(f"then: onceward registry apply {file} --grant GRANT")
    else:
        render.say(f"no objections; next: onceward registry apply {file} --grant {grant}")
    return 0


@registry.command(cls=CliCommand)
@click.argument("file", metavar="PLAN")
@click.option("--grant", metavar="GRANT", help="The grant that allows exactly this plan.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Show what would be done and whether the grant allows it; change nothing.",
)
@pass_globals
def apply(given: Globals, file: str, grant: str | None, dry_run: bool) -> int:
    """Register all values of PLAN, or stop at a named state.

    The same PLAN under the same GRANT is the same run: after a crash, repeat the command to continue it.
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
                Recovery("or, as a granter, issue it", f"onceward grant issue {file}"),
                Recovery("then use it", "--grant GRANT"),
            ],
        )
    display = SagaDisplay(given.json)
    if serves(workspace):
        order = ApplyPlan(plan=msgspec.to_builtins(shipped.plan), grant=grant)
        return follow(given, f"registry.{verb}", order, display.followed)
    outcome, signal = saga_running.carry_out(workspace, shipped, grant, display.begun, display.told)
    return display.end(outcome, signal)


@registry.command("list", cls=CliCommand)
@pass_globals
def list_(given: Globals) -> None:
    """List all collections and their values, by version."""
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
        render.say("The registry is empty.  Next: onceward registry plan PLAN.toml")


@registry.command(cls=CliCommand)
@click.argument("value")
@pass_globals
def show(given: Globals, value: str) -> None:
    """Show VALUE, given as code@version or by its id."""
    from onceward.registry.views import value_view

    with given.workspace().reading() as store:
        found = document(value_view(store, value))
    if given.json:
        render.document(found)
        return
    for name, what in found.items():
        render.say(render.plain(f"{name:24s} {what}"))


@registry.group(cls=CliGroup)
def rollback() -> None:
    """Replace values in force by named successors.

    Nothing is deleted, and a superseded value cannot be reinstated.
    """


@rollback.command(cls=CliCommand)
@click.argument("file", metavar="PLAN")
@pass_globals
def check(given: Globals, file: str) -> int:
    """Check the rollback PLAN and print one verdict code; change nothing.

    Exit status: 0 only for ROLLBACK_CONTRACT_VALID_FOR_REVIEW.
    """
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
                f"next: onceward grant draft {file}, then by a granter: onceward grant issue GRANT"
            )
            render.say(f"then: onceward registry rollback run {file} --grant GRANT")
    return 0 if verdict.valid else 1


@rollback.command("run", cls=CliCommand)
@click.argument("file", metavar="PLAN")
@click.option("--grant", metavar="GRANT", help="The grant that allows exactly this plan.")
@pass_globals
def run_(given: Globals, file: str, grant: str | None) -> int:
    """Supersede the values that PLAN names, in one transaction.

    Either all values and their audit rows are written, or none.
    """
    from onceward import saga_running
    from onceward.registry.jobs import to_roll_back

    workspace = given.workspace()
    shipped = saga_running.in_file(file_argument(file), to_roll_back, workspace)
    return _carry_out(given, shipped, file, grant, "rollback")
