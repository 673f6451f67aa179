"""What a person, or a program, sees while a build runs."""

from __future__ import annotations

import json
import shlex
import sys
import threading
from collections.abc import Mapping
from typing import Any

import click

from onceward.edges.cli import render
from onceward.edges.cli.display import explain, shown

_COLOURS = {"SUCCESS": "green", "FAILED": "red", "CANCELLED": "red", "RETRY": "yellow", "APPROVAL": "yellow"}
_QUIET = {"SKIPPED": "skipped", "REUSED": "reused", "BLOCKED": "blocked"}
_EACH = 20


class BuildDisplay:
    """Plain lines on standard error as steps end, or one JSON object a line on standard output."""

    def __init__(self, as_json: bool) -> None:
        self._json = as_json
        self._out = sys.stdout
        """Ours: what steps print goes elsewhere while we speak JSON."""
        self._mutex = threading.Lock()
        self._build = ""
        self._total = self._done = 0
        self._quiet: dict[str, int] = {}

    def begun(self, build_id: str, name: str, total: int, how: str) -> None:
        self._build, self._total = build_id, total
        if self._json:
            self._line({"type": "build", "build_id": build_id, "name": name, "steps": total})
        else:
            click.secho(
                f"build {build_id}: {render.plain(name)}, {render.counted(total, 'step')}{how}", dim=True, err=True
            )

    def told(self, said: Mapping[str, Any]) -> None:
        """One step got somewhere."""
        with self._mutex:
            try:
                self._tell(said)
            except OSError:
                # Whoever looked on has gone; the build goes on.
                pass

    def _tell(self, said: Mapping[str, Any]) -> None:
        status, ended = said["status"], said.get("ended")
        if status == "STOPPING":
            if not self._json:
                what = render.counted(said["waiting"], "step")
                click.echo(f"stopping: waiting for {what} to end; ask again to wait no longer", err=True)
            return
        if self._json:
            known = {"RETRY": "waiting", "STOPPED": "waiting", "APPROVAL": "waiting"}.get(status, status)
            line = {"type": "step", "step": said["step"], "status": known, "child_id": said.get("child_id") or None}
            line |= {
                "again": status == "RETRY" or None,
                "text": said.get("text"),
                "digest": said.get("digest"),
                "spent": dict(said["spent"]) or None,
            }
            if ended is not None:
                line |= {"reason": ended.reason, "message": ended.detail.get("message")}
            self._line({key: value for key, value in line.items() if value is not None})
            return
        if status in ("SUCCESS", "SKIPPED", "REUSED", "FAILED", "CANCELLED"):
            self._done += 1
        if status == "running":
            return
        if status in _QUIET:
            self._quiet[status] = self._quiet.get(status, 0) + 1
            if self._quiet[status] > _EACH:
                return
        name = render.plain(said["step"])
        spent = " ".join("=".join(shown({"lane": k, "total": v, "limit": None})[:2]) for k, v in said["spent"].items())
        why = explain(ended.reason, ended.detail) if ended is not None else ""
        if said.get("mistakes"):
            why += f" ({render.counted(said['mistakes'], 'line')} of its report refused)"
        word = click.style(_QUIET.get(status, status.lower()), fg=_COLOURS.get(status), dim=status in _QUIET)
        if status == "APPROVAL":
            click.echo(f"{name} waits for a person: {render.plain(said['text'])}", err=True)
            step = shlex.quote(said["step"])
            click.echo(f"  onceward approve {self._build} {step} --digest {said['digest']}", err=True)
            return
        more = " ..." if self._quiet.get(status) == _EACH and self._total > _EACH else ""
        click.echo(f"[{self._done}/{self._total}] {name} {word}{why}{f'  {spent}' if spent else ''}{more}", err=True)

    def result(self, outcome: Mapping[str, Any]) -> None:
        if self._json:
            self._line({"type": "result", **outcome})
            return
        steps = outcome["steps"]
        words = ", ".join(f"{count} {what}" for what, count in steps.items() if count and what != "total")
        colour = {"SUCCESS": "green", "BUDGET_PAUSE": "yellow"}.get(outcome["state"], "red")
        state = click.style(outcome["state"], fg=colour, bold=True)
        reason = f" ({outcome['reason']})" if outcome["state"] != "SUCCESS" else ""
        tokens = f", {outcome['tokens']:,} tokens" if outcome["tokens"] else ""
        total, cost = render.counted(steps["total"], "step"), f"{outcome['cost_usd']} usd{tokens}"
        click.echo(f"{state}{reason}: {total}: {words or 'none run'}; {cost}", err=True)
        if outcome.get("why"):
            click.echo(f"  {render.plain(outcome['why'])}", err=True)
        if "confirmation_token" in outcome:
            click.echo("confirmation token, shown once, good for an hour:", err=True)
            click.echo(outcome["confirmation_token"])
        if outcome.get("next"):
            click.echo(f"next: {outcome['next']}", err=True)

    def _line(self, value: dict[str, Any]) -> None:
        try:
            click.echo(json.dumps(value, sort_keys=True), file=self._out)
            self._out.flush()
        except BrokenPipeError:
            pass
