"""Making, keeping and mending a workspace."""

from __future__ import annotations

import click

from onceward.core.version import VERSION
from onceward.errors import OncewardError
from onceward.ui.cli import render
from onceward.ui.cli.main import CliCommand, Globals, file_argument, pass_globals


@click.command(cls=CliCommand)
@pass_globals
def init(given: Globals) -> None:
    """Create a workspace: a folder, a settings file and a store.

    Running it again changes nothing.
    """
    workspace = given.workspace(nearest=False)
    made = workspace.create()
    # Opening it once makes whoever runs this its admin; a live kernel has done that already.
    workspace.engine().close()
    if given.json:
        render.document(
            {"workspace": str(workspace.folder), "made": made, "principal": workspace.principal}
        )
        return
    if not made:
        render.say(f"The workspace {render.plain(workspace.folder)} already exists.")
        return
    for thing in made:
        render.say(f"created {render.plain(thing)}")
    render.say(f"You act as {workspace.principal} (admin).  Next: onceward doctor")


@click.command(cls=CliCommand)
@pass_globals
def doctor(given: Globals) -> int:
    """Check the workspace and report what to fix.

    Checks versions, store, durability, filesystem, clock, locks, evidence and outbox. Exit status: 1 if a check failed,
    5 if the evidence did.
    """
    from onceward.maintenance import doctor as examine

    checks = examine.examine_machine(VERSION)
    try:
        workspace = given.workspace()
        store = workspace.store()
        try:
            checks += examine.examine_store(
                store,
                workspace.settings.sinks(),
                verify=lambda: workspace.verify([], None),
                seal_file=workspace.seal_file,
            )
        finally:
            store.close()
    except OncewardError as error:
        fix = next((way.command or way.action for way in error.recovery), "")
        severity = "warn" if error.code == "NOT_FOUND" else "fail"
        checks.append(examine.CheckResult("workspace", severity, error.message, fix))
    failed = [check for check in checks if check.status == "fail"]
    status = 5 if any(check.name == "evidence" for check in failed) else bool(failed)
    if given.json:
        listed = [
            {"name": c.name, "status": c.status, "detail": c.detail, "fix": c.fix} for c in checks
        ]
        render.document({"ok": not failed, "checks": listed})
        return int(status)
    render.table(("check", "", "found"), [(c.name, c.status, c.detail) for c in checks])
    for check in checks:
        if check.fix:
            render.say(render.plain(f"  {check.name}: {check.fix}"))
    return int(status)


@click.command(cls=CliCommand)
@click.option("--check", is_flag=True, help="List pending migrations; apply none.")
@pass_globals
def migrate(given: Globals, check: bool) -> None:
    """Upgrade the database schema to this version's."""
    workspace = given.workspace()
    done = workspace.pending_migrations() if check else workspace.migrate()
    if given.json:
        render.document(
            {"pending" if check else "applied": [f"{m.number:04d}_{m.name}" for m in done]}
        )
        return
    if not done:
        render.say("The store is up to date.")
    for migration in done:
        render.say(
            f"{'would apply' if check else 'applied'} {migration.number:04d}_{migration.name}"
        )


@click.command(cls=CliCommand)
@click.argument("file")
@pass_globals
def backup(given: Globals, file: str) -> None:
    """Write a verified backup of the store to the new FILE.

    The backup holds every row as of one moment. Other processes can go on working.
    """
    from onceward.maintenance.backup import backup as write_backup

    workspace = given.workspace()
    store = workspace.store()
    try:
        made = write_backup(
            store, file_argument(file).absolute(), workspace.new_file, workspace.old_file
        )
    finally:
        store.close()
    if given.json:
        render.document(made)
        return
    render.say(
        f"{render.plain(made['file'])}: {made['rows']:,} rows, {render.counted(made['events'], 'event')}, verified."
    )
    render.say(
        f"Keys and artifacts are files, not rows: copy {render.plain(workspace.folder)}/keys and /artifacts as well."
    )


@click.command(cls=CliCommand)
@click.argument("file")
@pass_globals
def restore(given: Globals, file: str) -> None:
    """Restore the backup FILE into an empty workspace, on SQLite or PostgreSQL."""
    from onceward.maintenance.backup import restore as fill

    workspace = given.workspace()
    done = fill(file_argument(file).absolute(), workspace.old_file, workspace.empty_store)
    if given.json:
        render.document(done)
        return
    events = render.counted(done["events"], "event")
    keys = workspace.folder / "keys"
    if not keys.is_dir():
        render.say(f"Copy your key files to {render.plain(keys)} before you act here.")
    render.say(
        f"restored {done['rows']:,} rows and {events} from {render.plain(done['file'])}, verified."
    )
