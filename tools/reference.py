"""Writes docs/reference from the code: machines, errors, limits, tables, rules, CLI."""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import click
import msgspec
import rules

from onceward import settings
from onceward.client import snake
from onceward.core import faults, limits
from onceward.core.lanes import LANES
from onceward.core.sources import LiveSources
from onceward.dispatch import machine as child
from onceward.errors import CODES
from onceward.evidence.findings import RULES
from onceward.gate import script
from onceward.machines import MACHINES
from onceward.store import migrate
from onceward.store.schema import TABLES
from onceward.store.sqlite import SqliteDatabase
from onceward.store.table import WHOLE_TABLE, Table
from onceward.ui.cli.main import COMMANDS, cli
from onceward.ui.http.api import ROUTES
from onceward.ui.http.openapi import document

OUT = Path(__file__).resolve().parent.parent / "docs" / "reference"


def machines() -> str:
    text = ["# Lifecycles", "", "Made by `make docs` from the `machine.py` of each slice.", ""]
    for machine in MACHINES:
        text += [f"## {machine.name}", "", "```mermaid", machine.mermaid(), "```", ""]
        text += ["| from | to | reason | event |", "|---|---|---|---|"]
        text += [
            f"| {a.source} | {a.target} | {a.reason or '–'} | {a.event or '–'} |"
            for a in machine.arrows
        ]
        text += [""]
    return "\n".join(text)


def errors() -> str:
    text = [
        "# Error codes",
        "",
        "Made by `make docs` from `src/onceward/errors.py`. Codes never change meaning.",
        "",
    ]
    text += ["| code | exit | HTTP | retry helps | meaning |", "|---|---|---|---|---|"]
    for code, facts in CODES.items():
        retry = "yes" if facts.retryable else "no"
        text.append(
            f"| `{code}` | {facts.exit_status} | {facts.http_status} | {retry} | {facts.meaning} |"
        )
    return "\n".join(text) + "\n"


def verification() -> str:
    text = [
        "# What `verify` looks for",
        "",
        "Made by `make docs` from `src/onceward/evidence/findings.py`.",
        "",
    ]
    text += [
        "Every fault names one of these rules and the place where it is broken. If there is a fault, `verify` exits 5.",
        "",
    ]
    text += [
        "| rule | what must hold |",
        "|---|---|",
        *(f"| `{rule}` | {meaning} |" for rule, meaning in RULES.items()),
    ]
    return "\n".join(text) + "\n"


def gate() -> str:
    """The language of the gate's scripts."""
    text = [
        "# The gate's scripts",
        "",
        "Made by `make docs` from `src/onceward/gate/script.py`.",
        "",
    ]
    text += [
        f"A fixture is a JSON file: `schema` (`{script.SCHEMA}`), `name`, `about`, `script`, and when it is locked"
    ]
    text += [
        "`expected`. Each line of the script has an `op` and these fields. A line that is not possible is `skipped`; one"
    ]
    text += [
        "that the engine does not allow is `refused`. Both are outcomes and are locked like all others. After `crash`"
    ]
    text += ["and `recover`, open the session again.", ""]
    text += ["| op | fields | what happens |", "|---|---|---|"]
    for kind in get_args(script.Op):
        fields = []
        for field in msgspec.structs.fields(kind):
            default = (
                field.default
                if field.default_factory is msgspec.NODEFAULT
                else field.default_factory()
            )
            said = (
                ""
                if default is msgspec.NODEFAULT
                else f" = `{msgspec.json.encode(default).decode()}`"
            )
            fields.append(f"`{field.name}`{said}")
        what = " ".join((kind.__doc__ or "").split())
        text.append(f"| `{kind.__name__.lower()}` | {', '.join(fields) or '–'} | {what} |")
    reasons = sorted({arrow.reason for arrow in child.CHILD.arrows if arrow.reason})
    text += ["", f"Reasons of `finish`: {', '.join(f'`{reason}`' for reason in reasons)}.", ""]
    text += [
        f"Lanes of `limits`: {', '.join(f'`{lane}`' for lane in LANES)}; `debit` also knows `usd`.",
        "",
    ]
    text += [
        f"Fault points of `crash` and `recover`: {', '.join(f'`{point}`' for point in faults.POINTS)}.",
        "",
    ]
    return "\n".join(text)


def bounds() -> str:
    text = ["# Limits", "", "Made by `make docs` from `src/onceward/core/limits.py`.", ""]
    text += ["| limit | value | why |", "|---|---|---|"]
    body = ast.parse(Path(limits.__file__).read_text("utf-8")).body
    for node, following in itertools.pairwise(body):
        if (
            isinstance(node, ast.AnnAssign)
            and isinstance(node.target, ast.Name)
            and isinstance(following, ast.Expr)
        ):
            name = node.target.id
            text.append(
                f"| `{name}` | {getattr(limits, name):,} | {' '.join(ast.literal_eval(following.value).split())} |"
            )
    return "\n".join(text) + "\n"


def tables() -> str:
    text = [
        "# Tables",
        "",
        "Made by `make docs` from `src/onceward/store/`: each table's declaration and its columns in a"
        " new store, with SQLite's types. Tables are in the order in which a backup copies them.",
        "",
    ]
    with tempfile.TemporaryDirectory() as folder:
        sources = LiveSources()
        database = SqliteDatabase(Path(folder) / "onceward.db", sources)
        migrate.migrate(database, sources)
        session = database.connect()
        made: dict[str, str] = dict(
            session.read("SELECT name, sql FROM sqlite_master WHERE type = 'table'")
        )
        session.close()
    for table in TABLES:
        body = made[table.name].split("(", 1)[1].rsplit(")", 1)[0]
        text += [f"## {table.name}", "", *_table_facts(table), "", "```sql"]
        text += [body.strip("\n"), "```", ""]
    return "\n".join(text)


def _table_facts(table: Table[Any]) -> Iterator[str]:
    """What a table's declaration says of it, as a list."""
    if table.record is not None and table.record.__doc__:
        yield f"{inspect.getdoc(table.record)}"
        yield ""
    yield f"- key: {', '.join(f'`{column}`' for column in table.key)}"
    if table.lifecycle is not None:
        life = table.lifecycle
        yield f"- lifecycle: `{life.machine}`, in `{life.state}`; events in `{life.stream}:ID`"
    if table.bundle:
        whose = f"bundles of kind `{table.bundled_with}`" if table.bundled_with else "bundles"
        yield f"- in {whose}: `{table.bundle}`"
    for column, why in table.not_evidence.items():
        what = "the whole table" if column == WHOLE_TABLE else f"`{column}`"
        yield f"- not evidence: {what}, {why}"


CLI_FACTS = """\
Results go to standard output, errors to standard error. With `--json` both are JSON; an error is
`{"error": {"code", "message", "context", "retryable", "recovery"}}`. Global options can be given before or after the
command's name.

| exit | means |
|---|---|
| 0 | done |
| 1 | the work failed |
| 2 | bad usage or refused input |
| 3 | waiting for a person, or for a kernel that has not answered yet |
| 4 | lock or concurrency conflict |
| 5 | integrity fault |
| 130, 143 | interrupted |

| variable | means |
|---|---|
| `ONCEWARD_WORKSPACE` `ONCEWARD_STORE` `ONCEWARD_AS` | the same as `--workspace`, `--store`, `--as` |
| `ONCEWARD_TRACEBACK` | print a traceback for an internal error |
| `ONCEWARD_FAULT` | kill the process at a named crash point, to test a crash: `commit.before:2` |
| `NO_COLOR` | no colours |
"""


def settings_page() -> str:
    said = "Made by `make docs` from `src/onceward/settings.py`: the settings in `onceward.toml`, beside `.onceward/`."
    text = ["# Settings", "", said, ""]
    text += ["```toml", settings.TEMPLATE.strip(), "```", ""]
    classes = {node.name: node for node in _classes(settings.__file__)}
    for name, table, kind in (
        ("StoreSettings", "[store]", settings.StoreSettings),
        ("LockSettings", "[locks]", settings.LockSettings),
        ("BuildSettings", "[builds]", settings.BuildSettings),
        ("ArtifactSettings", "[artifacts]", settings.ArtifactSettings),
        ("BudgetSettings", "[budget]", settings.BudgetSettings),
        ("NotifySettings", "[notify]", settings.NotifySettings),
        ("SinkSettings", "[[sink]]", settings.SinkSettings),
        ("SealSettings", "[seal]", settings.SealSettings),
        ("GrantSettings", "[grants]", settings.GrantSettings),
        ("RegistrySettings", "[registry]", settings.RegistrySettings),
        ("ChangeSettings", "[changes]", settings.ChangeSettings),
        ("PathSettings", "[[changes.path]]", settings.PathSettings),
        ("CutterSettings", "[[changes.cutter]]", settings.CutterSettings),
    ):
        text += [
            f"## `{table}`",
            "",
            str(kind.__doc__),
            "",
            "| key | default | means |",
            "|---|---|---|",
        ]
        told = _told(classes[name])
        for field in msgspec.structs.fields(kind):
            default = (
                "required" if field.default is msgspec.NODEFAULT else f"`{_toml(field.default)}`"
            )
            meaning = " ".join(told.get(field.name, "").split())
            text.append(f"| `{field.name}` | {default} | {meaning} |")
        text += [""]
    return "\n".join(text)


def _classes(file: str | None) -> list[ast.ClassDef]:
    return [
        n for n in ast.parse(Path(str(file)).read_text("utf-8")).body if isinstance(n, ast.ClassDef)
    ]


def _told(node: ast.ClassDef) -> dict[str, str]:
    """What a class says of its fields: the text under each."""
    found = {}
    for field, following in itertools.pairwise(node.body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(following, ast.Expr)
            and isinstance(field.target, ast.Name)
        ):
            found[field.target.id] = str(ast.literal_eval(following.value))
    return found


def _toml(value: object) -> str:
    return "none" if value is None else msgspec.json.encode(value).decode()


def commands() -> str:
    text = ["# Command line", "", "Made by `make docs` from the commands' own help.", "", CLI_FACTS]
    context = click.Context(
        cli, info_name="onceward", max_content_width=100, help_option_names=["-h", "--help"]
    )
    text += ["## onceward", "", "```text", cli.get_help(context), "```", ""]
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        text += _help(command, f"onceward {name}", context)
    return "\n".join(text)


def _help(command: click.Command, path: str, parent: click.Context) -> list[str]:
    context = click.Context(
        command, info_name=path.split()[-1], parent=parent, max_content_width=100
    )
    text = [f"## {path}", "", "```text", command.get_help(context), "```", ""]
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            text += _help(inner, f"{path} {name}", context)
    return text


def api() -> str:
    text = [
        "# The API",
        "",
        "Made by `make docs` from the table of routes in `src/onceward/ui/http/`.",
        "",
    ]
    text += [
        "All paths begin with `/api/v1`. [`openapi.json`](openapi.json) describes them (OpenAPI 3.1); a server",
        "has it at `/api/v1/openapi.json`. A request that changes something takes a `client_request_id`, an",
        "idempotency key: the same id again returns the same answer and has no second effect. Errors are problem",
        "documents (RFC 9457) with a [code](errors.md).",
        "",
    ]
    for noun in dict.fromkeys(route.noun for route in ROUTES):
        text += [
            f"## {noun}",
            "",
            "| | path | what it does | `client.` | may be asked |",
            "|---|---|---|---|---|",
        ]
        for route in (one for one in ROUTES if one.noun == noun):
            kinds = [kind for kind in (route.query, route.body) if kind is not None]
            fields = [
                f"`{field.encode_name}`" for kind in kinds for field in msgspec.structs.fields(kind)
            ]
            said = (
                route.method,
                f"`{route.path}`",
                route.summary,
                f"`{snake(route.name)}`",
                ", ".join(fields) or "–",
            )
            text.append(f"| {' | '.join(said)} |")
        text += [""]
    return "\n".join(text)


def described() -> str:
    return json.dumps(document(ROUTES), indent=1, ensure_ascii=False) + "\n"


PAGES = {
    "gate.md": gate,
    "machines.md": machines,
    "errors.md": errors,
    "limits.md": bounds,
    "tables.md": tables,
    "cli.md": commands,
    "settings.md": settings_page,
    "verify.md": verification,
    "api.md": api,
    "openapi.json": described,
    "rules.md": rules.page,
}


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    for name, make in PAGES.items():
        (OUT / name).write_text(make(), "utf-8")
    print(f"wrote {len(PAGES)} pages into docs/reference", file=sys.stderr)


if __name__ == "__main__":
    main()
