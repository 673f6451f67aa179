"""What a person is asked to approve, shown on a terminal before they say so."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from onceward.core.hidden import marked
from onceward.core.views import document
from onceward.errors import InvalidConfig, Recovery
from onceward.ui.cli import render
from onceward.ui.cli.main import Globals

if TYPE_CHECKING:
    from onceward.builds.approval_content import Flowing
    from onceward.builds.views import WantedApproval


def show_approval(given: Globals, build: str, step: str) -> None:
    """What flows into a step that waits for a person, and the digest of it."""
    wanted, flowing = _wanted(given, build, step)
    if given.json:
        render.document({**document(wanted), "inputs": flowing})
        return
    _show(wanted, flowing)


def looked_at(given: Globals, build: str, step: str, *, refuse: bool) -> str:
    """The digest of what flows into a step, once somebody at a terminal has seen it and typed its beginning."""
    wanted, flowing = _wanted(given, build, step)
    name, digest = wanted.step, wanted.digest
    if given.json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InvalidConfig(
            "an approval needs the digest of the exact bytes you looked at",
            context={"field": "--digest", "digest": digest},
            recovery=[
                Recovery("look at them", f"onceward approve {build} {name} --show"),
                Recovery("then give their digest", f"onceward approve {build} {name} --digest D"),
            ],
        )
    _show(wanted, flowing)
    unseen = [one.name for one in flowing if one.cut_off]
    if unseen and not refuse:
        raise InvalidConfig(
            f"{render.plain(unseen[0])} is too large to show here, and what was not shown cannot be approved here",
            context={"files": unseen[:100]},
            recovery=[Recovery("look at it elsewhere, then give the digest", f"--digest {digest}")],
        )
    word = "refuse" if refuse else "approve"
    typed = click.prompt(f"to {word} exactly this, type the first 8 letters of the digest")
    if len(typed.strip()) < 8 or not digest.startswith(typed.strip().lower()):
        raise InvalidConfig(
            "those are not the first 8 letters of the digest; nothing was decided",
            context={"field": "digest"},
        )
    return digest


def _wanted(given: Globals, build: str, step: str) -> tuple[WantedApproval, list[Flowing]]:
    from onceward.builds.approval_content import to_approve
    from onceward.builds.views import build_view

    with given.workspace().artifacts() as artifacts:
        found = build_view(artifacts.store, build)
        wanted = [one for one in found.approvals if step in (one.step, one.step.partition(":")[0])]
        if not wanted:
            raise InvalidConfig(
                f"step {step[:80]!a} of {found.build_id} does not wait for an approval",
                context={"step": step[:200]},
                recovery=[Recovery("list the steps", f"onceward status {found.build_id}")],
            )
        return wanted[-1], to_approve(artifacts, found, whole=True)[wanted[-1].step]


def _show(wanted: WantedApproval, flowing: list[Flowing]) -> None:
    render.say(click.style(render.plain(wanted.text), bold=True))
    for one in flowing:
        about = f"{one.size:,} bytes, sha256 {one.sha256}"
        click.secho(f"--- {render.plain(one.step)} {render.plain(one.name)}", bold=True)
        if one.text is None:
            render.say(f"not text: {about}")
        else:
            render.say(marked(one.text).rstrip("\n"))
            if one.cut_off:
                render.say(click.style(f"... truncated: {about}", dim=True))
    digest = wanted.digest
    render.say(f"digest {click.style(digest[:8], bold=True)}{digest[8:]}")
