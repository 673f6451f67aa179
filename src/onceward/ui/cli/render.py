"""How answers and errors look, for people and for programs."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from onceward.core.hidden import marked
from onceward.core.views import document as as_values
from onceward.errors import OncewardError

STATES = {
    "SUCCESS": "green",
    "FAILED": "red",
    "CANCELLED": "red",
    "BLOCKED": "red",
    "CRASHED": "red",
    "IN_DOUBT": "yellow",
    "BUDGET_PAUSE": "yellow",
    "running": "cyan",
}
"""The colours of what a build or a step can be."""
_SPACES = dict.fromkeys(map(ord, "\n\r\t"), " ")
_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


def say(text: str = "") -> None:
    click.echo(text)


def document(value: Any) -> None:
    """One JSON document on standard output: of a view, of views, or of plain values."""
    click.echo(json.dumps(as_values(value), sort_keys=True))


def plain(text: object) -> str:
    """Stored text on one line, with nothing in it that could speak to a terminal or is hidden."""
    return marked(str(text).translate(_SPACES))


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Columns as wide as they need to be; the last one as it comes."""
    cells = [[plain(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in (headings, *cells)) for i in range(len(headings))]
    click.secho(_line(headings, widths), bold=True)
    for row in cells:
        line = _line(row, widths)
        colour = next((_COLOURS[cell] for cell in row if cell in _COLOURS), None)
        click.echo(line if colour is None else _coloured(line, row, colour))


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _coloured(line: str, row: Sequence[str], colour: str) -> str:
    word = next(cell for cell in row if cell in _COLOURS)
    return line.replace(f"  {word}", f"  {click.style(word, fg=colour)}", 1)


def error(failure: OncewardError, as_json: bool) -> None:
    """An error on standard error: what happened, and what to type next."""
    if as_json:
        click.echo(json.dumps({"error": failure.document()}, sort_keys=True), err=True)
        return
    colours = colour()
    click.echo(
        f"{click.style(failure.code, fg='red', bold=True)}: {plain(failure.message)}",
        err=True,
        color=colours,
    )
    for way in failure.recovery:
        risk = "" if way.risk == "none" else f"  [risk: {way.risk}]"
        if way.command:
            command = click.style(plain(way.command), bold=True)
            click.echo(f"  {plain(way.action)}:  {command}{risk}", err=True, color=colours)
        else:
            click.echo(f"  {plain(way.action)}{risk}", err=True)


def usage(failure: click.ClickException, as_json: bool) -> None:
    if as_json:
        problem("INVALID_CONFIG", " ".join(failure.format_message().split()), as_json)
    else:
        failure.show(sys.stderr)


def problem(code: str, message: str, as_json: bool) -> None:
    """An error that is no OncewardError, in the same clothes."""
    if as_json:
        told = {"code": code, "message": message, "context": {}, "retryable": False, "recovery": []}
        click.echo(json.dumps({"error": told}, sort_keys=True), err=True)
    else:
        click.echo(
            plain(message) if code == "EXECUTION_FAILED" else f"{code}: {plain(message)}", err=True
        )


def colour() -> bool | None:
    """Whether to colour: no where the environment says so, else whatever the terminal can."""
    return False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None


def prepare_streams() -> None:
    """A terminal that lacks a letter gets a question mark, not a stack trace."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def duration(seconds: int) -> str:
    """A time as people say it."""
    hours, rest = divmod(seconds, 3600)
    minutes, rest = divmod(rest, 60)
    if hours:
        return f"{hours}h {minutes:02d}m"
    return f"{minutes}m {rest:02d}s" if minutes else f"{rest}s"


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
