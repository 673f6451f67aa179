"""`change mark`: what somebody has, as a proposal (H-2)."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from onceward.errors import InvalidConfig
from onceward.ui.cli import render
from onceward.ui.cli.asking import ask, tell
from onceward.ui.cli.change_display import status_of
from onceward.ui.cli.diffs import drift_digest, show_diffs, show_terms
from onceward.ui.cli.main import CliCommand, Globals, asking_options, file_argument, pass_globals


@click.command(cls=CliCommand)
@click.option("--tree", metavar="DIR", help="Propose a folder as the new state of the tree.")
@click.option(
    "--patch",
    metavar="FILE",
    help="Propose a unified diff, as from git diff; - for standard input.",
)
@click.option(
    "--build",
    metavar="BUILD",
    help="Propose the outputs of a build; each output's name is its path.",
)
@click.option(
    "--stage",
    "stages",
    multiple=True,
    metavar="STAGE",
    help="With --build: only this stage's outputs.",
)
@click.option("--registry", metavar="PLAN", help="Propose a .toml plan for the registry.")
@click.option(
    "--base",
    "--into",
    "base",
    metavar="DIR",
    default=".",
    help="The tree to change [default: the current folder].",
)
@click.option(
    "--cutter",
    metavar="NAME",
    default="",
    help="Apply the change with this cutter of your own instead of to a tree; --tree has the contents.",
)
@click.option("--target", metavar="NAME", default="", help="With --cutter: the target to change.")
@click.option("--delete", multiple=True, metavar="PATH", help="Propose to delete PATH.")
@click.option(
    "--check",
    metavar="COMMAND",
    help="A command that verification runs in the tree.",
)
@click.option("--reason", default="", metavar="TEXT", help="The reason, for the reviewers.")
@click.option(
    "--depends-on", multiple=True, metavar="ENTRY", help="An entry that must be verified first."
)
@click.option("--links", is_flag=True, help="Allow symbolic links that stay inside the tree.")
@click.option(
    "--key",
    metavar="KEY",
    help="Idempotency key: the same key is the same entry [default: from the content and the author].",
)
@click.option(
    "--revise", metavar="ENTRY", help="Replace the proposal of ENTRY instead of adding an entry."
)
@click.option(
    "--since",
    metavar="BUILD",
    help="Use the tree as it was before BUILD as the base, and show other changes since [default: --build].",
)
@click.option(
    "--accept-drift",
    default="",
    metavar="DIGEST",
    callback=drift_digest,
    help="Accept that files of the proposal changed since then; the refusal names the digest.",
)
@click.option("--stat", is_flag=True, help="List the files only, without their lines.")
@click.option("--dry-run", is_flag=True, help="Show the proposal; record nothing.")
@asking_options
@pass_globals
def mark(
    given: Globals,
    tree: str | None,
    patch: str | None,
    build: str | None,
    stages: tuple[str, ...],
    registry: str | None,
    base: str,
    cutter: str,
    target: str,
    delete: tuple[str, ...],
    check: str | None,
    reason: str,
    depends_on: tuple[str, ...],
    links: bool,
    key: str | None,
    revise: str | None,
    since: str | None,
    accept_drift: str,
    stat: bool,
    dry_run: bool,
) -> int:
    """Propose a change to files, the registry or a target of your own.

    Give one of --tree, --patch, --build, --registry or --delete. Nothing is changed yet. The same proposal again is the
    same entry.
    """
    from onceward import changing

    named = {"--tree": tree, "--patch": patch, "--build": build, "--registry": registry}
    found = [name for name, value in named.items() if value is not None]
    _require_fitting(
        found,
        stages=stages,
        build=build,
        target=target,
        cutter=cutter,
        depends_on=depends_on,
        revise=revise,
        delete=delete,
    )
    if len(found) > 1 or (not found and not delete):
        raise click.UsageError(
            f"give exactly one of {', '.join(named)}{' or --delete' if not found else ''}"
        )
    workspace = given.workspace()
    if not dry_run:
        workspace.ensure()
    proposal = changing.propose(
        workspace,
        changing.Source(
            base=file_argument(base),
            tree=file_argument(tree) if tree is not None else None,
            patch=_read(patch) if patch is not None else None,
            build=build,
            stages=stages,
            plan=file_argument(registry) if registry is not None else None,
            cutter=cutter,
            target=target,
            delete=delete,
            check=_words(check),
            links=links,
            since=since,
            accept_drift=accept_drift,
        ),
    )
    diffs = changing.shown(proposal)
    if not given.json:
        show_diffs(diffs, stat)
        manifest = proposal.manifest
        show_terms(manifest.target, manifest.check, manifest.origin, set(manifest.paths()))
        if build is not None and manifest.origin is None:
            render.say(
                "based on the tree as it is now; with `tree` in the plan, its state before the build is recorded"
            )
    digest = proposal.manifest.content_hash()
    if dry_run:
        if given.json:
            import msgspec

            render.document({"manifest": digest, "files": msgspec.to_builtins(diffs)})
        return 0
    changing.bring(workspace, proposal)
    payload: dict[str, Any] = {"manifest": digest, "reason": reason}
    if revise is not None:
        payload |= {"revises": revise}
    else:
        key = key or changing.key_of(workspace.principal, proposal, depends_on)
        payload |= {"key": key, "depends_on": list(depends_on)}
    return tell(
        given, ask(given, "changes.mark", payload), lambda value: _marked(value, bool(revise))
    )


def _require_fitting(
    found: Sequence[str],
    *,
    stages: Sequence[str],
    build: str | None,
    target: str,
    cutter: str,
    depends_on: Sequence[str],
    revise: str | None,
    delete: Sequence[str],
) -> None:
    """Refuse words that would be passed over."""
    for odd, why in (
        (bool(stages) and build is None, "--stage needs --build"),
        (bool(target) and not cutter, "--target needs --cutter"),
        (
            bool(depends_on) and revise is not None,
            "--depends-on cannot be used with --revise; dependencies are set when the entry is marked",
        ),
        (
            bool(delete) and bool(found) and not cutter,
            f"--delete cannot be combined with {', '.join(found)}",
        ),
    ):
        if odd:
            raise click.UsageError(why)


def _marked(value: Mapping[str, Any], revised: bool) -> None:
    status = status_of(value["status"])
    if revised:
        render.say(f"{value['entry_id']} revised: {status}")
    elif value.get("known"):
        render.say(f"{value['entry_id']} already exists: {status}")
    else:
        render.say(f"{value['entry_id']} marked: {status}")
    render.say(f"manifest {value['manifest']}")
    if value["status"] in ("marked", "reviewed_deferred"):
        render.say("next: onceward change sweep")


def _words(text: str | None) -> list[str]:
    try:
        return shlex.split(text) if text else []
    except ValueError as error:
        raise InvalidConfig(
            f"--check cannot be read: {error}", context={"field": "--check"}
        ) from None


def _read(name: str) -> bytes:
    return sys.stdin.buffer.read() if name == "-" else file_argument(name).read_bytes()
