"""A build as it runs, drawn on a terminal: a bar a stage, who is at work, the money, and when it will be over."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from onceward.core.views import LaneView
from onceward.errors import OncewardError
from onceward.ui.cli import render
from onceward.ui.cli.build_display import BuildDisplay, step_line
from onceward.ui.cli.display import shown

if TYPE_CHECKING:
    from onceward.builds.progress import Begun, Busy
    from onceward.dispatch.budget import Lane

_FRAME_SECONDS = 0.2
_MONEY_SECONDS = 0.6
_STILL_SECONDS = 1.0
"""How long a terminal that stands still is waited for."""
_WINDOW = 60
"""How many ends the rate is taken from."""
_WORDS = {
    "SUCCESS": "done",
    "SKIPPED": "skipped",
    "REUSED": "reused",
    "FAILED": "failed",
    "CANCELLED": "failed",
}


class _Terminal(Console):
    """Leaves the cursor alone: a build that is killed must not take it along."""

    def show_cursor(self, show: bool = True) -> bool:
        return False


class _Above:
    """Stands for standard output or error while the picture is drawn: whole lines go above it."""

    def __init__(self, out: Any, say: Callable[[str], None]) -> None:
        self._out, self._say = out, say
        self._parts = threading.local()

    def write(self, text: str) -> int:
        *lines, self._parts.rest = (getattr(self._parts, "rest", "") + text).split("\n")
        for line in lines:
            self._say(line)
        return len(text)

    def flush(self) -> None:
        """Half a line waits for its other half."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._out, name)


class StageBar:
    """How far a stage is."""

    def __init__(self, name: str, total: int) -> None:
        self.name, self.total = name, total
        self.counts: dict[str, int] = {}

    @property
    def over(self) -> int:
        return sum(self.counts.values())

    @property
    def done(self) -> int:
        return self.over - self.counts.get("failed", 0)

    @property
    def quiet(self) -> bool:
        """Whether it has nothing to tell: not begun, or done and well."""
        return self.over in (0, self.total) and "failed" not in self.counts

    def row(self) -> tuple[RenderableType, RenderableType, RenderableType, RenderableType]:
        failed, whole = self.counts.get("failed", 0), self.over == self.total
        colour = "green" if whole else "cyan"
        if failed:
            colour = "red"
        bar = ProgressBar(
            self.total,
            self.over,
            width=30,
            complete_style=colour,
            finished_style=colour,
            style="bright_black",
        )
        notes = [
            f"{self.counts[word]:,} {word}"
            for word in ("skipped", "reused", "failed")
            if self.counts.get(word)
        ]
        return (
            Text(render.plain(self.name), style="" if self.done else "bright_black", no_wrap=True),
            bar,
            Text(f"{self.done:,}/{self.total:,}"),
            Text(", ".join(notes), style="red" if failed else "bright_black", no_wrap=True),
        )


class LiveDisplay(BuildDisplay):
    """Redraws a few lines at the bottom; what a person must see stays above them."""

    def __init__(self) -> None:
        super().__init__()
        self._console = _Terminal(file=sys.stderr, highlight=False)
        self._live = Live(
            console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )
        self._paint = threading.RLock()
        """One at a time: a line above and a new picture must not cross."""
        self._asked: dict[str, str] = {}
        self._over = threading.Event()
        self._ticker = threading.Thread(target=self._tick, name="picture", daemon=True)
        self._bars: dict[str, StageBar] = {}
        self._ends: deque[float] = deque(maxlen=_WINDOW)
        self._begun: Begun | None = None
        self._at = time.monotonic()
        self._lanes: Mapping[str, Lane] = {}
        self._looked = 0.0

    def begun(self, begun: Begun) -> None:
        self._begun, self._at = begun, time.monotonic()
        self._bars = {name: StageBar(name, count) for name, count in begun.stages}
        super().begun(begun)
        with suppress(OSError):
            self._live.start()
        # What steps print is shown above the picture, unless it goes somewhere else.
        sys.stderr = _Above(sys.stderr, self._say)
        if sys.stdout.isatty():
            sys.stdout = _Above(sys.stdout, self._say)
        self._ticker.start()

    def end(self) -> None:
        """Leave the last picture standing and give the terminal back; one that stands still is left as it is."""
        sys.stdout, sys.stderr = self._out, self._err
        self._over.set()
        self._ticker.join(_STILL_SECONDS)
        if self._paint.acquire(timeout=_STILL_SECONDS):
            try:
                with suppress(OSError):
                    while not self._lines.empty() and (line := self._lines.get()) is not None:
                        self._print(*line)
                self._draw(last=True)
                with suppress(OSError):
                    self._live.stop()
            finally:
                self._paint.release()

    def _tell(self, said: Mapping[str, Any]) -> None:
        status = said["status"]
        self._asked.pop(said["step"], None)
        if status in _WORDS:
            bar = self._bars[said["step"].partition(":")[0]]
            bar.counts[_WORDS[status]] = bar.counts.get(_WORDS[status], 0) + 1
            if status not in ("SKIPPED", "REUSED"):
                self._ends.append(time.monotonic())
        if status == "APPROVAL":
            self._asked[said["step"]] = said["text"]
        loud = status in ("FAILED", "CANCELLED", "RETRY", "STOPPED", "IN_DOUBT")
        loud = loud or bool(said.get("mistakes"))
        if not self._announced(said) and loud:
            self._say(step_line(said))

    def _print(self, line: str, to: TextIO) -> None:
        with self._paint:
            if self._live.is_started and to is self._err:
                self._console.print(Text.from_ansi(line), soft_wrap=True)
            else:
                super()._print(line, to)

    def _tick(self) -> None:
        while not self._over.wait(_FRAME_SECONDS):
            self._draw()

    def _draw(self, last: bool = False) -> None:
        """Gather first, then draw: the engine is never asked while the terminal is held."""
        assert self._begun is not None
        now = time.monotonic()
        # What cannot be looked at, or shown, now is no matter for the build.
        with suppress(OSError, OncewardError):
            if last or now - self._looked > _MONEY_SECONDS:
                self._looked = now
                self._lanes = self._begun.lanes()
        with suppress(OSError):
            busy = [] if last else self._begun.busy()
            with self._mutex:
                picture = self._picture(busy, last)
            with self._paint:
                self._live.update(picture, refresh=True)

    def _picture(self, busy: Sequence[Busy], last: bool) -> RenderableType:
        room = max(6, self._console.size.height - 3)
        asked = list(self._asked.items())[:3]
        bars = self._shown_bars(room - min(len(busy), 8) - len(asked) - 2)
        table = Table.grid(padding=(0, 2))
        for bar in bars:
            table.add_row(*bar.row())
        lines: list[RenderableType] = [table]
        hidden = len(self._bars) - len(bars)
        if hidden:
            what = "more" if last else "finished or not started"
            lines.append(
                Text(f"and {render.counted(hidden, 'stage')} {what}", style="bright_black")
            )
        for step, text in asked:
            words = f"  ? {render.plain(step)} waits for a person: {render.plain(text)}"
            lines.append(Text(words, style="yellow", no_wrap=True, overflow="ellipsis"))
        for at_work in sorted(busy, key=lambda b: -b.seconds)[
            : max(1, room - len(bars) - len(asked) - 2)
        ]:
            lines.append(_at_work(at_work, self._console.size.width))
        lines.append(self._money(bool(busy)))
        return Group(*lines)

    def _shown_bars(self, room: int) -> list[StageBar]:
        """All stages if they fit; else those that are under way, and then the next ones."""
        bars = list(self._bars.values())
        if len(bars) <= room:
            return bars
        wanted = sorted(range(len(bars)), key=lambda i: (bars[i].quiet, bars[i].done > 0, i))
        return [bars[i] for i in sorted(wanted[: max(1, room - 1)])]

    def _money(self, working: bool) -> Text:
        parts = [render.duration(int(time.monotonic() - self._at))]
        lanes = {
            name: lane for name, lane in self._lanes.items() if lane.total or lane.limit is not None
        }
        for lane in sorted(lanes.values(), key=lambda lane: lane.lane, reverse=True):
            if lane.lane != "duration_secs" or lane.limit is not None:
                name, total, limit = shown(
                    LaneView(lane=lane.lane, total=lane.total, limit=lane.limit)
                )
                parts.append(f"{total}{f' of {limit}' if limit else ''} {name}")
        left = sum(bar.total - bar.over for bar in self._bars.values())
        if len(self._ends) > 2 and working:
            rate = (len(self._ends) - 1) / max(0.001, time.monotonic() - self._ends[0])
            parts.append(f"{rate:.1f} steps/s" if rate >= 1 else f"{rate * 60:.1f} steps/min")
            if left:
                parts.append(f"about {render.duration(int(left / rate))} left")
        between = " · " if self._console.encoding.startswith("utf") else ", "
        return Text(between.join(parts), style="bold", no_wrap=True, overflow="ellipsis")


def _at_work(busy: Busy, width: int) -> Text:
    far = f" {busy.thousandths / 10:.0f}%" if busy.thousandths else ""
    line = Text("  > ", style="cyan", no_wrap=True, overflow="ellipsis")
    # Long names differ at their ends.
    name, most = render.plain(busy.step), max(20, width - 30)
    line.append(name if len(name) <= most else f"...{name[3 - most :]}", style="default")
    line.append(f"  {render.duration(int(busy.seconds))}{far}", style="bright_black")
    line.append(f"  {render.plain(busy.note)}" if busy.note else "", style="default")
    return line
