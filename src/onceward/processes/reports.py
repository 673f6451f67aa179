"""The report protocol: a child says on one descriptor what it spends and how far it is, and is
answered on another.

One JSON object a line: `{"spend": {"usd": "0.01", "tokens": 120}, "settled": false}`, or, in
thousandths, `{"progress": 500, "note": "…"}`. Every line is answered with one: `{"ok": true}`,
or `{"ok": false, "error": {…}}`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from onceward.core.limits import REPORT_LINE_BYTES, REPORT_MISTAKES
from onceward.errors import BudgetExceeded, InvalidConfig, OncewardError

_READ = 1 << 16


class ReportLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of a report."""

    spend: dict[str, Any] | None = None
    settled: bool = False
    progress: int | None = None
    note: str = ""
    id: str = ""
    """Given back with the answer, so that each asker finds its own."""


class Reports:
    """Our ends of a child's two pipes. Its words are claims: checked, bounded, and answered."""

    def __init__(
        self,
        spend: Callable[[Mapping[str, Any], bool], None],
        progress: Callable[[int | None, str], None],
        refused: Callable[[OncewardError], None],
        give_up: Callable[[], None],
    ) -> None:
        self._spend, self._progress, self._refused, self._give_up = (
            spend,
            progress,
            refused,
            give_up,
        )
        self.reader, self.child_writes = os.pipe()
        self.child_reads, self._answers = os.pipe()
        os.set_blocking(self.reader, False)
        os.set_blocking(self._answers, False)
        self.identity = f"{os.fstat(self.reader).st_ino}:{os.fstat(self.child_reads).st_ino}"
        """Which pipes they are: a child's own files may have the same numbers."""
        self._buffer = b""
        self._id = ""
        self.mistakes = 0
        self.last_mistake = ""
        self._given_up = False

    def handed_over(self) -> None:
        """The child has its ends; ours of them would keep the pipes open."""
        os.close(self.child_writes)
        os.close(self.child_reads)

    def take(self) -> bool:
        """Read what is there and answer it; False at the end."""
        try:
            data = os.read(self.reader, _READ)
        except BlockingIOError:
            return True
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            if not self._given_up:
                self._line(line)
        if not data and self._buffer and not self._given_up:
            # It ended without ending its last line: what that says counts all the same.
            line, self._buffer = self._buffer, b""
            self._line(line)
        if len(self._buffer) > REPORT_LINE_BYTES:
            self._buffer = b""
            if not self._given_up:
                self._mistake("a line of a report is too long", last=True)
        return bool(data)

    def close(self) -> None:
        os.close(self.reader)
        os.close(self._answers)

    def _line(self, line: bytes) -> None:
        if len(line) > REPORT_LINE_BYTES:
            return self._mistake("a line of a report is too long", last=True)
        try:
            said = msgspec.json.decode(line, type=ReportLine)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            loose = _loosely(line)
            self._id = _id_of(loose)
            for spend in _settled_in(loose):
                # The money is gone, whatever else is wrong with the line.
                self._spend(spend, True)
            return self._mistake(f"this is no report: {error}")
        self._id = said.id
        try:
            if said.spend is not None:
                self._spend(said.spend, said.settled)
            if said.progress is not None and not 0 <= said.progress <= 1000:
                raise InvalidConfig(
                    f"progress is told in thousandths, 0 to 1000, not {said.progress}"
                )
            if said.progress is not None or said.note:
                self._progress(said.progress, said.note)
        except InvalidConfig as error:
            return self._mistake(error.message[:500])
        except BudgetExceeded as error:
            # The answer first: whoever waits for it may still end well.
            self._answer({"ok": False, "error": error.document()})
            return self._refused(error)
        return self._answer({"ok": True})

    def _mistake(self, why: str, last: bool = False) -> None:
        """A line that is no report: answered, counted, and beyond a bound the end of listening."""
        self.mistakes += 1
        self.last_mistake = why
        self._answer({"ok": False, "error": {"code": "INVALID_CONFIG", "message": why}})
        if last or self.mistakes > REPORT_MISTAKES:
            self._given_up = True
            self._give_up()

    def _answer(self, answer: dict[str, Any]) -> None:
        """A child that does not read its answers loses them; it must not be able to hold us up."""
        if self._id:
            answer["id"] = self._id[:200]
        line = msgspec.json.encode(answer) + b"\n"
        try:
            # Short enough to be written whole or not at all.
            os.write(self._answers, line if len(line) <= 4096 else b'{"ok":false,"error":{}}\n')
        except OSError:
            pass
        self._id = ""


def _loosely(line: bytes) -> dict[str, Any]:
    """A line that is no report, as far as it is an object at all; also with numbers that JSON
    has not."""
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _id_of(said: Mapping[str, Any]) -> str:
    """The id of a line that is no report: whoever wrote it still waits for its answer."""
    found = said.get("id", "")
    return found if isinstance(found, str) else ""


def _settled_in(said: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The settled spending claimed by a line that is no valid report."""
    settled = str(said.get("settled", "")).strip().lower() in ("true", "yes", "1")
    spent = said.get("spend")
    found = spent if isinstance(spent, list) else [spent]
    return [one for one in found if settled and isinstance(one, dict)]
