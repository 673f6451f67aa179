"""What a person, or a program, sees while children run."""

from __future__ import annotations

import codecs
import json
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from onceward.core.money import to_usd
from onceward.core.views import LaneView, document
from onceward.ui.cli import render

if TYPE_CHECKING:
    from onceward.dispatch.machine import Ended

_CLEAR = "\r\x1b[K"
_LONG_LINE = 65_536
_utf8 = codecs.getincrementaldecoder("utf-8")


class SpawnDisplay:
    """One child: its own output, untouched, and a line at its end. Several: their lines with a number before them, and
    on a terminal a last line that tells how far all are. For programs: one JSON object a line."""

    def __init__(self, as_json: bool, session: str, count: int) -> None:
        self._json, self._session, self._count = as_json, session, count
        self._mutex = threading.Lock()
        self._numbers: dict[str, int] = {}
        self._parts: dict[tuple[str, str], bytes] = {}
        self._done = self._failed = 0
        self._decoders: dict[tuple[str, str], codecs.IncrementalDecoder] = {}
        self._midline = False
        self._live = not as_json and count > 1 and sys.stderr.isatty()

    def begun(self, ids: list[str]) -> None:
        with self._mutex:
            self._numbers = {child_id: number for number, child_id in enumerate(ids, 1)}
            if self._json:
                self._line({"type": "session", "session_id": self._session, "children": ids})
            else:
                what = f"child {ids[0]}" if len(ids) == 1 else f"{len(ids)} children"
                click.secho(f"session {self._session}: {what}", dim=True, err=True)
            self._status()

    def output(self, child_id: str, stream: str, data: bytes) -> None:
        """Show output. Whoever read ours may have seen enough; the child goes on, and its record with it."""
        with self._mutex, self._heard():
            if not data:
                return
            self._midline = not data.endswith(b"\n")
            if self._json:
                decoder = self._decoders.setdefault((child_id, stream), _utf8(errors="replace"))
                text = decoder.decode(data)
                self._line({"type": "output", "child_id": child_id, "stream": stream, "text": text})
            elif self._count == 1:
                to = sys.stdout if stream == "out" else sys.stderr
                to.buffer.write(data)
                to.buffer.flush()
            else:
                self._prefixed(child_id, stream, data)

    def held(self, child_id: str, why: str) -> None:
        """A child waits for a target that somebody else holds."""
        with self._mutex, self._heard():
            if self._json:
                self._line({"type": "held", "child_id": child_id, "message": why})
            else:
                click.echo(f"{child_id} waits: {render.plain(why)}", err=True)

    def ended(self, child_id: str, how: Ended) -> None:
        with self._mutex, self._heard():
            passed = how.reason == "completed"
            if self._json:
                detail = dict(how.detail)
                self._line(
                    {"type": "ended", "child_id": child_id, "reason": how.reason, "detail": detail}
                )
            else:
                self._flush(child_id)
                self._erase()
                if self._count == 1 and self._midline and sys.stderr.isatty():
                    click.echo(err=True)
                word = "stopped" if how.detail.get("stopped") else how.reason
                mark = click.style("passed", fg="green") if passed else click.style(word, fg="red")
                click.echo(f"{self._name(child_id)}{mark}{_why(how)}", err=True)
            # A later attempt has no number of its own: it counts as the first one did.
            if child_id in self._numbers:
                self._done += 1
                self._failed += not passed
            self._status()

    def summary(self, lanes: Sequence[LaneView], ends: Iterable[Ended]) -> None:
        with self._heard():
            self._failed = sum(end.reason != "completed" for end in ends)
            self._summary(lanes)

    def _summary(self, lanes: Sequence[LaneView]) -> None:
        if self._json:
            self._line(
                {
                    "type": "result",
                    "session_id": self._session,
                    "ended": self._count,
                    "failed": self._failed,
                    "lanes": document(list(lanes)),
                }
            )
            return
        self._erase()
        spent = ", ".join(_spent(lane) for lane in lanes if lane.total or lane.limit is not None)
        if spent:
            click.echo(f"spent: {spent}", err=True)
        click.secho(f"more: onceward status {self._session}", dim=True, err=True)

    @contextmanager
    def _heard(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            for descriptor in (1, 2):
                os.dup2(nowhere, descriptor)

    def _name(self, child_id: str) -> str:
        if self._count == 1:
            return ""
        number = self._numbers.get(child_id)
        return f"[{number}] " if number else "[again] "

    def _prefixed(self, child_id: str, stream: str, data: bytes) -> None:
        *lines, rest = (self._parts.get((child_id, stream), b"") + data).split(b"\n")
        if len(rest) > _LONG_LINE:
            lines, rest = [*lines, rest], b""
        self._parts[child_id, stream] = rest
        self._erase()
        for line in lines:
            text = render.plain(line.decode("utf-8", "replace"))
            click.echo(f"{self._name(child_id)}{text}", err=stream == "err")
        self._status()

    def _flush(self, child_id: str) -> None:
        for stream in ("out", "err"):
            rest = self._parts.pop((child_id, stream), b"")
            if rest:
                text = render.plain(rest.decode("utf-8", "replace"))
                click.echo(f"{self._name(child_id)}{text}", err=stream == "err")

    def _status(self) -> None:
        if self._live:
            failed = f", {self._failed} failed" if self._failed else ""
            sys.stderr.write(f"{_CLEAR}{self._done} of {self._count} done{failed}")
            sys.stderr.flush()

    def _erase(self) -> None:
        if self._live:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()

    def _line(self, value: dict[str, Any]) -> None:
        click.echo(json.dumps(value, sort_keys=True))


def _why(how: Ended) -> str:
    """What a person wants to know about an end, in a few words."""
    left = how.detail.get("strays")
    also = f" (it left {render.counted(left, 'process')} running, now ended)" if left else ""
    return f"{explain(how.reason, how.detail)}{also}"


def explain(reason: str, detail: Mapping[str, Any]) -> str:
    """Why a child ended as it did, where there is more to say than the reason."""
    if reason == "budget_exceeded" and "lane" in detail:
        lane = str(detail["lane"])
        name, total, limit = shown(
            LaneView(lane=lane, total=detail["observed"], limit=detail["limit"])
        )
        asked = amount(lane, detail.get("asked", 0))
        return f": {name} is at {total} of {limit}" + (
            f", {asked} more requested" if detail.get("asked") else ""
        )
    if detail.get("message"):
        return f": {render.plain(' '.join(str(detail['message']).split()))}"
    if reason not in ("completed", "cancelled") and detail.get("exit") is not None:
        code = detail["exit"]
        last = f": {render.plain(detail['last_line'])}" if detail.get("last_line") else ""
        return f": exit {code}{last}" if code >= 0 else f": ended by signal {-code}{last}"
    return ""


def _spent(lane: LaneView) -> str:
    name, total, limit = shown(lane)
    return f"{name} {total}{f' of {limit}' if limit else ''}"


def amount(lane: str, total: int) -> str:
    """An amount of a lane as people write it."""
    return to_usd(total) if lane == "usd_micros" else str(total)


def amounts(spent: Mapping[str, int]) -> str:
    """What was spent, as `lane=amount` words."""
    return " ".join(f"{_name(lane)}={amount(lane, total)}" for lane, total in spent.items())


def shown(lane: LaneView) -> tuple[str, str, str]:
    """A lane's name, total and limit as people write them; no limit is an empty one."""
    limit = "" if lane.limit is None else amount(lane.lane, lane.limit)
    return _name(lane.lane), amount(lane.lane, lane.total), limit


def _name(lane: str) -> str:
    return "usd" if lane == "usd_micros" else lane
