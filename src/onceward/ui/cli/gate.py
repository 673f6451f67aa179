"""The gate on the command line: run, show, play and record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import msgspec

from onceward.errors import IntegrityFault, InvalidConfig, NotFound, Recovery
from onceward.gate.manifest import HASH, METRICS, REPORT, apart, manifest_hash
from onceward.gate.record import listed, lock, locked, require_told, told, write
from onceward.gate.run import once
from onceward.gate.run import run as run_gate
from onceward.gate.script import Fixture, read_fixture, written
from onceward.scratch import scratches
from onceward.ui.cli import render
from onceward.ui.cli.main import (
    CliCommand,
    CliGroup,
    Globals,
    file_argument,
    means_file,
    pass_globals,
)

_SHORT = {"scheduler": 0, "orphan": 1, "budget": 2}


@click.group(cls=CliGroup)
def gate() -> None:
    """Replay locked fixtures; fail if the engine behaves differently.

    A fixture is a script of operations with the transcript the engine must produce; a manifest lists fixtures with
    their hashes.
    """


@gate.command(cls=CliCommand)
@click.argument("manifest")
@click.option(
    "--expect",
    default="",
    metavar="HASH",
    help="Refuse the manifest unless it has this hash.",
)
@click.option(
    "--page", "page_file", metavar="FILE", help="Also write the report to FILE as an HTML page."
)
@pass_globals
def run(given: Globals, manifest: str, expect: str, page_file: str | None) -> int:
    """Run every fixture of MANIFEST and compare with the locked results.

    Each fixture runs three times, in new processes. Exit status: 1 a metric is below 100.0, 2 the gate cannot be run, 5
    the manifest does not have the expected hash.
    """
    if page_file is not None and not file_argument(page_file).parent.is_dir():
        # Whoever cannot have the page hears of it before the work, not after.
        raise NotFound(f"there is no folder for {page_file}", context={"field": "page"})
    found = run_gate(_there(manifest), expect.strip().lower(), given.store_url or "sqlite")
    _keep(given, manifest, found)
    if page_file is not None:
        from onceward.gate.page import page

        file_argument(page_file).write_text(page(found), "utf-8")
    if given.json:
        render.document(found)
    else:
        _say(found)
        if page_file is not None:
            render.say(f"report written to {render.plain(page_file)}")
    return 0 if found["all_passed"] else 1


def _keep(given: Globals, manifest: str, found: dict[str, Any]) -> None:
    """Where there is a workspace it keeps the report, for its pages."""
    from onceward.gate.reports import keep

    workspace = given.workspace()
    if workspace.folder.is_dir():
        name = workspace.sources.new_id("gat").removeprefix("gat_")
        keep(workspace.folder, name, manifest, workspace.sources.now(), found)


def _say(found: dict[str, Any]) -> None:
    for metric in sorted(found["metrics"], key=_place):
        value = found["metrics"][metric]
        own = [one for one in found["fixtures"] if one["metric"] == metric]
        good = value >= found["thresholds"][metric]
        said = click.style(f"{value:5.1f}", fg="green" if good else "red")
        render.say(
            f"{said}  {metric}  ({sum(one['passed'] for one in own)} of {render.counted(len(own), 'fixture')})"
        )
        for one in own:
            if not one["passed"]:
                render.say(f"       {one['fixture']}: {one['reason']}")
                render.say(f"         {render.plain(one['where'])[:400]}")
    verdict = (
        "open: every metric is at its threshold"
        if found["all_passed"]
        else "closed: a metric is below its threshold"
    )
    render.say(f"The gate is {click.style(verdict, fg='green' if found['all_passed'] else 'red')}.")
    render.say(f"{HASH} {found[HASH]} (store it elsewhere, for --expect)")


def _place(metric: str) -> int:
    return list(METRICS).index(metric) if metric in METRICS else len(METRICS)


@gate.command(cls=CliCommand)
@click.argument("fixtures", nargs=-1, required=True, metavar="FIXTURE...")
@pass_globals
def play(given: Globals, fixtures: tuple[str, ...]) -> int:
    """Play fixtures once and show the outcome of each line.

    Exit status: 1 if an outcome is not as locked, or replay or verify finds a fault. --json prints one document per
    line.
    """
    failed = False
    for name in fixtures:
        path = _there(name)
        data = path.read_bytes()
        found = once(data, path.name, scratches(given.store_url or "sqlite"))
        failed = failed or bool(found.error or found.wrong)
        if given.json:
            render.document(msgspec.to_builtins(found))
            continue
        fixture = read_fixture(data, path.name)
        _show_lines(fixture, found.lines)
        as_locked = not fixture.expected or found.lines == fixture.expected
        failed = failed or not as_locked
        said = ""
        if fixture.expected:
            said = "as locked" if as_locked else _not_as_locked(fixture, found.lines)
        total = f"{len(found.lines)} lines of transcript, sha256 {found.sha256}"
        render.say(found.error or found.wrong or "; ".join(filter(None, (said, total))))
    return 1 if failed else 0


def _not_as_locked(fixture: Fixture, lines: list[str]) -> str:
    return (
        click.style("not as locked", fg="red") + f": {render.plain(apart(fixture.expected, lines))}"
    )


def _show_lines(fixture: Fixture, lines: list[str]) -> None:
    """Each line of a script beside what it came to."""
    for number, op in enumerate(fixture.script):
        outcome = json.loads(lines[number]) if number < len(lines) else {}
        render.say(f"{number + 1:4d}  {_words(op):60s} {_short(outcome)}")


def _words(op: Any) -> str:
    said = msgspec.to_builtins(op)
    rest = " ".join(f"{key}={json.dumps(value)}" for key, value in said.items() if key != "op")
    return render.plain(f"{said['op']} {rest}")


def _short(outcome: dict[str, Any]) -> str:
    said = {key: value for key, value in outcome.items() if key != "line"}
    return render.plain(" ".join(f"{key}={json.dumps(value)}" for key, value in said.items()))


@gate.command(cls=CliCommand)
@click.argument("file")
@pass_globals
def show(given: Globals, file: str) -> int:
    """Show a manifest, a fixture, or a report of `gate run`."""
    path = _there(file)
    try:
        value = json.loads(path.read_bytes())
        schema = str(value.get("schema", ""))
        if schema == REPORT:
            _ = [value[name] for name in ("metrics", "thresholds", "fixtures", "all_passed", HASH)]
    except (ValueError, AttributeError, KeyError, RecursionError):
        raise InvalidConfig(f"{path} is not a manifest, fixture or report") from None
    if given.json:
        render.document(value)
    elif schema == REPORT:
        _say(value)
    elif schema.startswith("stop_gate.fixture"):
        _show_fixture(read_fixture(path.read_bytes(), path.name))
    else:
        _show_manifest(path)
    return 0


def _show_manifest(path: Path) -> None:
    entries = listed(path)
    for metric in METRICS:
        render.say(f"{metric}: {METRICS[metric]}")
        for entry in entries.get(metric, []):
            about = read_fixture((path.parent / entry.fixture).read_bytes(), entry.fixture).about
            render.say(
                f"  {entry.sha256[:12]}  {entry.fixture.removesuffix('.json'):28s} {render.plain(about)}"
            )
    render.say(f"{HASH} {manifest_hash(entries)}")


def _show_fixture(fixture: Fixture) -> None:
    render.say(f"{fixture.name}: {render.plain(fixture.about)}")
    if fixture.rows:
        render.say(f"starts from {sum(len(some.rows) for some in fixture.rows)} existing rows")
    _show_lines(fixture, fixture.expected)


@gate.command(cls=CliCommand)
@click.argument("manifest")
@click.argument("subject", required=False, metavar="[FIXTURE|BUILD|SESSION]")
@click.option(
    "--metric",
    type=click.Choice(list(_SHORT)),
    help="scheduler: dispatch order; orphan: recovery after a dead kernel; budget: concurrent debits and cancels.",
)
@click.option("--name", help="The fixture's name [default: the name in its file].")
@click.option("--about", default="", help="A description of the fixture, in one line.")
@click.option(
    "--rows-after",
    type=click.IntRange(1),
    help="Play the first N lines now and store the rows they leave; the script is the rest, from `recover` on.",
)
@pass_globals
def record(
    given: Globals,
    manifest: str,
    subject: str | None,
    metric: str | None,
    name: str | None,
    about: str,
    rows_after: int | None,
) -> int:
    """Lock a fixture into MANIFEST.

    The fixture is a FIXTURE file with a script, or a finished BUILD or SESSION of this workspace; its file is written
    beside MANIFEST. Without a subject, all fixtures of MANIFEST are played and locked again, and missing ones are
    removed: review the difference before you commit it.
    """
    path = file_argument(manifest)
    play_in = scratches("sqlite")
    if subject is None:
        # All are played before any is written.
        played_anew = [(own, *lock(fixture, play_in)) for own, fixture in locked(_there(manifest))]
        said = {fresh.name: write(path, own, fresh, played) for own, fresh, played in played_anew}
        if given.json:
            render.document(
                [{"fixture": name, "changed": changed} for name, changed in said.items()]
            )
            return 0
        for name, changed in said.items():
            render.say(f"{name}: {'locked again' if changed else 'unchanged'}")
        return 0
    ran = not file_argument(subject).is_file()
    fixture = _fixture(given, subject, name, about)
    read_fixture(written(fixture), fixture.name)
    if rows_after is not None:
        from onceward.gate.play import frozen

        with play_in() as scratch:
            fixture = frozen(fixture, rows_after, scratch)
    known = (
        next((own for own, one in locked(path) if one.name == fixture.name), None)
        if path.exists()
        else None
    )
    if metric is None and known is None:
        raise click.UsageError("a fixture that is not in the manifest needs --metric")
    fresh, played = lock(fixture, play_in)
    if ran:
        require_told(fresh)
    chosen = list(METRICS)[_SHORT[metric]] if metric else str(known)
    before = {entry.fixture: entry.sha256 for _, entry in _entries(path)}.get(f"{fresh.name}.json")
    write(path, chosen, fresh, played)
    if given.json:
        render.document(
            {"fixture": fresh.name, "lines": len(played.lines), "sha256": played.sha256}
        )
    else:
        render.say(
            f"locked {fresh.name}: {len(fresh.script)} lines of script, sha256 {played.sha256}"
        )
        idle = [
            n
            for n, line in enumerate(fresh.expected[: len(fresh.script)], 1)
            if '"skipped"' in line
        ]
        if idle:
            render.say(f"  lines without effect: {', '.join(map(str, idle))}")
        if before is not None and before != played.sha256:
            render.say(f"  replaces {before[:16]}")
        if known is not None and known != chosen:
            render.say(f"  moved here from {known}")
    return 0


def _entries(path: Path) -> list[tuple[str, Any]]:
    return [(metric, entry) for metric, entries in listed(path).items() for entry in entries]


def _fixture(given: Globals, subject: str, name: str | None, about: str) -> Fixture:
    path = file_argument(subject)
    if path.is_file():
        found = read_fixture(path.read_bytes(), path.name)
        return msgspec.structs.replace(found, name=name or found.name, about=about or found.about)
    if means_file(subject):
        raise NotFound(
            f"there is no file {path}",
            recovery=[Recovery("see what a gate needs", "onceward gate --help")],
        )
    if name is None:
        raise click.UsageError("to record a build or session, give a --name")
    (again,) = given.workspace().replay(subject)
    if again.difference is not None:
        raise IntegrityFault(
            f"replay of {subject} differs from its records, so it cannot be locked",
            recovery=[Recovery("see where it differs", f"onceward replay {subject}")],
        )
    return given.workspace().telling(
        subject, lambda records, session: told(records, session, name, about or subject)
    )


def _there(name: str) -> Path:
    path = file_argument(name)
    if not path.is_file():
        raise NotFound(
            f"there is no file {path}",
            recovery=[Recovery("see what a gate needs", "onceward gate --help")],
        )
    return path
