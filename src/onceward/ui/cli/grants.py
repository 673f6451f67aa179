"""Grants from the command line: an authority for exactly one thing, used once (S-3)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click
import msgspec

from onceward.core.views import document
from onceward.ui.cli import render
from onceward.ui.cli.asking import RequestOutcome, ask, pending, tell
from onceward.ui.cli.main import (
    CliCommand,
    CliGroup,
    Globals,
    asking_options,
    file_argument,
    pass_globals,
)
from onceward.ui.cli.sagas import json_of


@click.group(cls=CliGroup)
def grant() -> None:
    """Draft, issue and revoke single-use permissions.

    A grant allows one executor to run exactly one plan or saga with exactly one input, once.
    """


def _subject_options(command: Any) -> Any:
    for option in (
        click.option(
            "--executor", metavar="PRINCIPAL", help="Who may use the grant [default: you]."
        ),
        click.option(
            "--input", "given_", metavar="JSON|@FILE", default="null", help="The input of a saga."
        ),
    ):
        command = option(command)
    return command


@grant.command(cls=CliCommand)
@click.argument("file")
@_subject_options
@asking_options
@pass_globals
def draft(given: Globals, file: str, executor: str | None, given_: str) -> int:
    """Draft a grant for FILE, a registry plan (.toml) or a saga (.py).

    The draft is for the file exactly as it is now.
    A draft allows nothing until somebody with the role `granter` issues it.
    """
    asked = ask(given, "grants.draft", _wanted(given, file, executor, given_))

    def say(value: dict[str, Any]) -> None:
        render.say(f"{value['grant_id']}  {value['status']}")
        render.say(f"next, by a granter: onceward grant issue {value['grant_id']}")

    return tell(given, asked, say)


@grant.command(cls=CliCommand)
@click.argument("what", metavar="GRANT|FILE")
@click.option(
    "--for",
    "lasts",
    default="1h",
    show_default=True,
    metavar="TIME",
    help="How long it is valid: 90s, 15m, 1h, 7d.",
)
@_subject_options
@asking_options
@pass_globals
def issue(given: Globals, what: str, lasts: str, executor: str | None, given_: str) -> int:
    """Issue a drafted GRANT, or a new one for FILE as it is now.

    Needs the role `granter`. The grant is signed with your key, and everything it allows is shown.
    """
    from onceward.dispatch.stage_words import duration_of

    seconds = int(duration_of("--for", int(lasts) if lasts.isdecimal() else lasts))
    if what.startswith("grt_"):
        scope, about, grant_id = _drafted(given, what)
    else:
        wanted = _wanted(given, what, executor, given_)
        scope, about = wanted["scope"], wanted["about"]
        drafted = ask(given, "grants.draft", wanted)
        if drafted.pending:
            return pending(given, drafted)
        grant_id = drafted.value["grant_id"]
        # The request id, if one was given, is the draft's; the issue is another request.
        given.request_id = f"{given.request_id}.issue" if given.request_id else None
    asked: RequestOutcome = ask(
        given, "grants.issue", {"grant": grant_id, "scope": scope, "seconds": seconds}
    )

    def say(value: dict[str, Any]) -> None:
        render.say(f"{value['grant_id']}  {value['status']}, for {lasts}, once")
        _say_about(about)
        _say_scope(scope)
        word = {"assembly": "registry apply", "rollback": "registry rollback run"}.get(
            (about or {}).get("kind", "")
        )
        render.say(
            f"next, by {scope['executor']}: onceward {word or 'saga run'} FILE --grant {value['grant_id']}"
        )

    return tell(given, asked, say)


@grant.command(cls=CliCommand)
@click.argument("name", metavar="GRANT")
@click.option("--why", default="", metavar="TEXT", help="The reason, for the record.")
@asking_options
@pass_globals
def revoke(given: Globals, name: str, why: str) -> int:
    """Revoke GRANT before it is used."""

    def say(value: dict[str, Any]) -> None:
        render.say(f"{value['grant_id']}  {value['status']}")

    return tell(given, ask(given, "grants.revoke", {"grant": name, "why": why}), say)


@grant.command(cls=CliCommand)
@asking_options
@pass_globals
def expire(given: Globals) -> int:
    """Mark expired grants as expired. They allow nothing either way."""

    def say(value: dict[str, Any]) -> None:
        render.say("\n".join(value["expired"]) or "No grant has expired.")

    return tell(given, ask(given, "grants.expire", {}), say)


@grant.command("list", cls=CliCommand)
@pass_globals
def list_(given: Globals) -> None:
    """List the newest grants and their states."""
    from onceward.grants.views import grant_list

    with given.workspace().reading() as store:
        found = grant_list(store)
    if given.json:
        render.document(document(found))
    elif found:
        rows = [
            (
                grant.grant_id,
                grant.status,
                f"{grant.scope.plan_id}@{grant.scope.revision}",
                grant.scope.executor,
                grant.granter or "",
                (grant.expires_at or "")[:19],
            )
            for grant in found
        ]
        render.table(("grant", "status", "for", "executor", "issued by", "until"), rows)
    else:
        render.say("No grants yet.")


@grant.command(cls=CliCommand)
@click.argument("name", metavar="GRANT")
@pass_globals
def show(given: Globals, name: str) -> None:
    """Show what GRANT allows, who issued it and which run used it."""
    from onceward.grants.views import grant_view

    with given.workspace().reading() as store:
        view = grant_view(store, name)
    if given.json:
        render.document(document(view))
        return
    click.echo(f"{click.style(view.grant_id, bold=True)}  {view.status}")
    _say_about(view.about)
    _say_scope(document(view.scope))
    for label, value in (
        ("issued by", view.granter),
        ("until", view.expires_at),
        ("used by", view.consumed_by_root),
    ):
        if value:
            render.say(f"  {label:16s} {render.plain(value)}")


def _say_scope(scope: Mapping[str, Any]) -> None:
    for name, value in scope.items():
        render.say(
            f"  {name:16s} {render.plain(', '.join(value) if isinstance(value, list | tuple) else value)}"
        )


def _say_about(about: Mapping[str, Any] | None) -> None:
    """What is allowed, as a person reads it."""
    if about is None:
        return
    if about["kind"] == "assembly":
        for value in about["plan"]["value"]:
            also = f", in place of {value['supersedes']}" if value.get("supersedes") else ""
            key = f"{value['operation_code']}@{value['protocol_version']}"
            render.say(
                render.plain(
                    f"  + {key}  {value['act_type']}  {value['governing_authority_ref']}{also}"
                )
            )
    elif about["kind"] == "rollback":
        for step in about["plan"]["step"]:
            render.say(
                render.plain(
                    f"  {step['target']} is superseded by {step['successor']} ({step['rollback_ref']})"
                )
            )
    else:
        render.say(render.plain(f"  input            {json.dumps(about['input'])[:2000]}"))
        for name, action in about["work"]["actions"].items():
            for word in ("do", "undo"):
                if word in action:
                    what = action[word].get("run") or [f"code {action[word]['function'][:16]}"]
                    render.say(
                        render.plain(f"  {'' if word == 'do' else 'undo '}{name}: {' '.join(what)}")
                    )


def _wanted(given: Globals, file: str, executor: str | None, text: str) -> dict[str, Any]:
    """The scope of what a file says now, and what that is."""
    from onceward import saga_running

    workspace = given.workspace()
    subject, value = saga_running.governed(workspace, file_argument(file)), json_of(text)
    scope = subject.scope(
        value, workspace.settings.grants.environment, executor or workspace.principal
    )
    return {"scope": msgspec.to_builtins(scope), "about": subject.about(value)}


def _drafted(given: Globals, name: str) -> tuple[dict[str, Any], Any, str]:
    from onceward.grants.views import grant_view

    with given.workspace().reading() as store:
        view = grant_view(store, name)
    return document(view.scope), view.about, view.grant_id
