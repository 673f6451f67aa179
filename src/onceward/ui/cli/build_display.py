"""What a person, or a program, sees while a build runs."""

from __future__ import annotations

import json
import queue
import shlex
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO

import click

from onceward.ui.cli import render
from onceward.ui.cli.display import amounts, explain

if TYPE_CHECKING:
    from onceward.builds.progress import Begun

_COLOURS = {
    "SUCCESS": "green",
    "FAILED": "red",
    "CANCELLED": "red",
    "RETRY": "yellow",
    "APPROVAL": "yellow",
    "IN_DOUBT": "yellow",
}
_OUTCOMES = {
    "SUCCESS": "green",
    "BUDGET_PAUSE": "yellow",
    "STOPPED": "yellow",
    "WAITING": "yellow",
}
_QUIET = {"SKIPPED": "skipped", "REUSED": "reused", "BLOCKED": "blocked"}
_ENDS = ("SUCCESS", "SKIPPED", "REUSED", "FAILED", "CANCELLED")
_EACH = 5
_PATIENCE = 3.0


class BuildDisplay:
    """Plain lines on standard error as steps end. A thread of its own writes them: whoever tells is never held up by a
    terminal that stands still, and nobody minds one that is gone."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._lines: queue.SimpleQueue[tuple[str, TextIO] | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write_out, name="display", daemon=True)
        self._err, self._out = sys.stderr, sys.stdout
        """Ours: what steps print may go elsewhere meanwhile."""
        self._build = ""
        self._total = self._done = 0
        self._quiet: dict[str, int] = {}

    def begun(self, begun: Begun) -> None:
        self._build, self._total = begun.build_id, begun.total
        how = f", {begun.how}" if begun.how else ""
        steps = render.counted(begun.total, "step")
        self._say(
            click.style(
                f"build {begun.build_id}: {render.plain(begun.name)}, {steps}{how}", dim=True
            )
        )
        self._writer.start()

    def told(self, said: Mapping[str, Any]) -> None:
        """One step got somewhere."""
        with self._mutex:
            self._tell(said)

    def end(self) -> None:
        """Nothing more will be told of steps."""

    def result(self, outcome: Mapping[str, Any]) -> None:
        self._say(_summary(outcome))
        if outcome.get("why"):
            self._say(f"  {render.plain(outcome['why'])}")
        if "confirmation_token" in outcome:
            seconds = outcome["confirmation_seconds"]
            lasts = "an hour" if seconds == 3600 else render.duration(seconds)
            self._say(f"confirmation token, shown once, valid for {lasts}:")
            self._say(outcome["confirmation_token"], self._out)
        if outcome.get("unread"):
            warning = "the cost may be higher: some reported amounts could not be read"
            self._say(click.style(f"{warning}: {render.plain(outcome['unread'])}", fg="yellow"))
        if outcome.get("untold"):
            self._say(
                f"not delivered yet: {render.plain(outcome['untold'])} (onceward outbox status)"
            )
        if outcome.get("next"):
            self._say(f"next: {render.plain(outcome['next'])}")
        self._finish(outcome)

    def _finish(self, outcome: Mapping[str, Any]) -> None:
        """Until all is written; one who asked us to stop does not wait long for it."""
        self._lines.put(None)
        if self._writer.ident is None:
            self._writer.start()
        self._writer.join(_PATIENCE if outcome.get("stopped") else None)

    def _tell(self, said: Mapping[str, Any]) -> None:
        status = said["status"]
        if status in _ENDS:
            self._done += 1
        if status in _QUIET:
            self._quiet[status] = self._quiet.get(status, 0) + 1
        if (
            not self._announced(said)
            and status != "running"
            and self._quiet.get(status, 0) <= _EACH
        ):
            more = " ..." if self._quiet.get(status) == _EACH and self._total > _EACH else ""
            self._say(f"[{self._done}/{self._total}] {step_line(said)}{more}")

    def _announced(self, said: Mapping[str, Any]) -> bool:
        """What a person must see in any case, if it is that."""
        if said["status"] == "STOPPING":
            self._say(_stopping(said, self._build))
        elif said["status"] == "APPROVAL":
            for line in approval(said, self._build):
                self._say(line)
        elif said["status"] == "STALE":
            self._say(
                f"{render.plain(said['step'])}: an input changed while it ran; other builds will not reuse its result"
            )
        elif said["status"] == "OVERDUE":
            self._say(overdue(said))
        elif said["status"] == "LATE":
            self._say(waiting_for_threads(said))
        elif said["status"] == "HELD":
            self._say(f"{render.plain(said['step'])} waits: {render.plain(said['message'])}")
        else:
            return False
        return True

    def _say(self, line: str, to: TextIO | None = None) -> None:
        self._lines.put((line, to or self._err))

    def _write_out(self) -> None:
        while (line := self._lines.get()) is not None:
            with suppress(OSError, ValueError):
                self._print(*line)

    def _print(self, line: str, to: TextIO) -> None:
        click.echo(line, file=to, color=render.colour())
        to.flush()


class JsonDisplay(BuildDisplay):
    """One JSON object a line on standard output."""

    def begun(self, begun: Begun) -> None:
        self._line(
            {"type": "build", "build_id": begun.build_id, "name": begun.name, "steps": begun.total}
        )
        self._writer.start()

    def _tell(self, said: Mapping[str, Any]) -> None:
        status, ended = said["status"], said.get("ended")
        if status in ("STOPPING", "LATE", "STALE", "OVERDUE", "HELD"):
            about = {"waiting": said["waiting"]} if "waiting" in said else {"step": said["step"]}
            self._line({"type": status.lower(), **about})
            return
        known = {"RETRY": "waiting", "STOPPED": "waiting", "APPROVAL": "waiting"}.get(
            status, status
        )
        line = {
            "type": "step",
            "step": said["step"],
            "status": known,
            "child_id": said.get("child_id") or None,
        }
        line |= {
            "again": status == "RETRY" or None,
            "text": said.get("text"),
            "digest": said.get("digest"),
            "spent": dict(said["spent"]) or None,
        }
        if ended is not None:
            line |= {"reason": ended.reason, "message": ended.detail.get("message")}
        self._line({key: value for key, value in line.items() if value is not None})

    def result(self, outcome: Mapping[str, Any]) -> None:
        self._line({"type": "result", **outcome})
        self._finish(outcome)

    def _line(self, value: dict[str, Any]) -> None:
        self._say(json.dumps(value, sort_keys=True), self._out)


def step_line(said: Mapping[str, Any]) -> str:
    """How a step ended, and what it cost."""
    status, ended = said["status"], said.get("ended")
    if status == "IN_DOUBT":
        why = str(ended.detail.get("in_doubt", {}).get("message", "")) if ended else ""
        word = click.style("in doubt", fg="yellow")
        return f"{render.plain(said['step'])} {word}: {render.plain(why)}"
    spent = amounts({k: v for k, v in said["spent"].items() if k != "duration_secs"})
    why = explain(ended.reason, ended.detail) if ended is not None else ""
    if said.get("mistakes"):
        mistake = f": {render.plain(said['mistake'])}" if said.get("mistake") else ""
        why += f" ({render.counted(said['mistakes'], 'line')} of its report refused{mistake})"
    word = click.style(
        _QUIET.get(status, status.lower()), fg=_COLOURS.get(status), dim=status in _QUIET
    )
    return f"{render.plain(said['step'])} {word}{why}{f'  {spent}' if spent else ''}"


def overdue(said: Mapping[str, Any]) -> str:
    """A function that outlives its time limit."""
    return (
        f"{render.plain(said['step'])} timed out after {said['limit']:g} s, but its thread is still running;"
        " its slot is freed soon, and its result is kept if it returns while this process lives"
    )


def waiting_for_threads(said: Mapping[str, Any]) -> str:
    """The last thing before a program ends whose threads go on."""
    return (
        f"waiting up to {said['limit']:g} s for {_named(said['waiting'])}: the result may already be paid for, and is"
        " kept if it arrives; press Ctrl-C to stop waiting"
    )


def approval(said: Mapping[str, Any], build_id: str) -> list[str]:
    """What a person is asked, how to look at it, and what to type."""
    step = render.plain(shlex.quote(said["step"]))
    return [
        f"{render.plain(said['step'])} waits for a person: {render.plain(said['text'])}",
        f"  onceward explain {build_id} {step}",
        f"  onceward approve {build_id} {step} --digest {said['digest']}",
    ]


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if names[5:] else ""
    return ", ".join(render.plain(name) for name in names[:5]) + more


def _stopping(said: Mapping[str, Any], build_id: str) -> str:
    what = _named(said["waiting"])
    return (
        f"stopping {what}; press Ctrl-C again to stop immediately\n"
        f"continue later with: onceward resume {build_id}"
    )


def _summary(outcome: Mapping[str, Any]) -> str:
    """How it stands, what was done and what was not, and what that cost."""
    steps = outcome["steps"]
    words = {
        "executed": "run",
        "failed": click.style("failed", fg="red"),
        "blocked": "blocked by that",
    }
    counts = [
        f"{count:,} {words.get(what, what)}"
        for what, count in steps.items()
        if count and what != "total"
    ]
    left = steps["total"] - sum(count for what, count in steps.items() if what != "total")
    counts += [f"{left:,} not done"] if left and counts else []
    word = outcome["state"]
    reason = f" ({outcome['reason']})" if word != "SUCCESS" else ""
    if outcome.get("stopped"):
        word, reason = "STOPPED", " (as asked; it can be resumed)"
    elif outcome.get("in_doubt"):
        word, reason = "WAITING", " (for a person to decide)"
    state = click.style(word, fg=_OUTCOMES.get(word, "red"), bold=True)
    paid, whole = outcome["paid_usd"], outcome["cost_usd"]
    tokens = f" and {outcome['tokens']:,} tokens" if outcome["tokens"] else ""
    money = (
        f"paid {paid} usd now ({whole}{tokens} in all)"
        if paid != whole
        else f"paid {paid} usd{tokens}"
    )
    if float(outcome["saved_usd"]):
        money += f", {outcome['saved_usd']} usd not paid again"
    total = render.counted(steps["total"], "step")
    took = render.duration(outcome["seconds"])
    return f"{state}{reason} after {took}: {total}: {', '.join(counts) or 'none run'}; {money}"
