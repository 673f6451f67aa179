"""Record `make demo` in a real terminal and write it as an animated picture: docs/demo.svg.
Needs tmux."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import uuid
from html import escape
from itertools import pairwise
from pathlib import Path

from rich.style import Style
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
COLUMNS, ROWS = 104, 30
CHARACTER, LINE, MARGIN = 7.83, 17, 14
FRAME_SECONDS = 0.2
LAST_SECONDS = 6.0
OVER = "Now write your own"


def frames() -> list[tuple[float, str]]:
    """Screens with their colours, each with the seconds that it stood."""
    server = ["tmux", "-u", "-f", "/dev/null", "-L", f"record-{uuid.uuid4().hex[:8]}"]
    env = {**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
    env.pop("NO_COLOR", None)
    command = f"{sys.executable} {ROOT / 'examples' / 'demo.py'}; sleep 5"
    size = ["-x", str(COLUMNS), "-y", str(ROWS)]
    subprocess.run([*server, "new-session", "-d", "-s", "s", *size, command], env=env, check=True)
    found: list[tuple[float, str]] = []
    begun = time.monotonic()
    try:
        while time.monotonic() - begun < 60:
            time.sleep(FRAME_SECONDS)
            shown = subprocess.run(
                [*server, "capture-pane", "-p", "-e", "-t", "s"],
                check=True,
                capture_output=True,
                text=True,
            ).stdout
            if found and found[-1][1] == shown:
                found[-1] = (found[-1][0] + FRAME_SECONDS, shown)
            else:
                found.append((FRAME_SECONDS, shown))
            if OVER in shown:
                found[-1] = (LAST_SECONDS, shown)
                return found
    finally:
        subprocess.run([*server, "kill-server"], check=False)
    raise SystemExit("the demo did not come to its end")


def masked(screen: str) -> str:
    """Without what belongs to this machine."""
    return re.sub(r"/\S*/onceward-demo-\w+", "/tmp/onceward-demo", screen)


class Picture:
    """Every line is drawn once and used by all frames that show it."""

    def __init__(self) -> None:
        self._lines: dict[str, int] = {}
        self._drawn: list[str] = []

    def line(self, ansi: str) -> int | None:
        if ansi not in self._lines:
            text = Text.from_ansi(ansi)
            if not text.plain.strip():
                return None
            self._lines[ansi] = len(self._drawn)
            self._drawn.append(f'<g id="l{len(self._drawn)}">{self._spans(text)}</g>')
        return self._lines[ansi]

    def _spans(self, text: Text) -> str:
        drawn = []
        plain = text.plain
        edges = sorted({0, len(plain), *(n for span in text.spans for n in (span.start, span.end))})
        for start, end in pairwise(edges):
            piece = plain[start:end]
            if piece.strip():
                style = Style()
                for span in text.spans:
                    if span.start <= start < span.end:
                        style += _style(span.style)
                lead = len(piece) - len(piece.lstrip())
                x = (start + lead) * CHARACTER
                width = len(piece.strip()) * CHARACTER
                drawn.append(
                    f'<text x="{x:.1f}" textLength="{width:.1f}"{_look(style)}>{escape(piece.strip())}</text>'
                )
        return "".join(drawn)

    def svg(self, shots: list[tuple[float, str]]) -> str:
        width, height = COLUMNS * CHARACTER + 2 * MARGIN, ROWS * LINE + 2 * MARGIN
        groups, steps, at = [], [], 0.0
        total = sum(seconds for seconds, _ in shots)
        for number, (seconds, screen) in enumerate(shots):
            uses = []
            for row, line in enumerate(masked(screen).splitlines()[:ROWS]):
                known = self.line(line.rstrip())
                if known is not None:
                    uses.append(f'<use href="#l{known}" y="{row * LINE}"/>')
            groups.append(f'<g transform="translate({number * width:.0f} 0)">{"".join(uses)}</g>')
            steps.append(
                f"{at / total * 100:.3f}%{{transform:translateX(-{number * width:.0f}px)}}"
            )
            at += seconds
        last = f"translateX(-{(len(shots) - 1) * width:.0f}px)"
        style = (
            f"text{{font:13px ui-monospace,Menlo,Consolas,monospace;white-space:pre}}"
            f"@keyframes play{{{''.join(steps)}100%{{transform:{last}}}}}"
            f"#strip{{animation:play {total:.1f}s steps(1,end) infinite}}"
            f"@media(prefers-reduced-motion:reduce){{#strip{{animation:none;transform:{last}}}}}"
        )
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img"'
            ' aria-label="A build is killed with -9 half-way, resumed, and nothing is paid twice">'
            f"<style>{style}</style><defs>{''.join(self._drawn)}</defs>"
            f'<rect width="100%" height="100%" rx="8" fill="#1d1f21"/>'
            f'<svg x="{MARGIN}" y="{MARGIN}" width="{COLUMNS * CHARACTER:.0f}" height="{ROWS * LINE}">'
            f'<g transform="translate(0 {LINE - 4})" fill="#c5c8c6"><g id="strip">{"".join(groups)}</g></g>'
            "</svg></svg>\n"
        )


def _style(style: str | Style) -> Style:
    return style if isinstance(style, Style) else Style.parse(style)


def _look(style: Style) -> str:
    said = ""
    if style.color is not None and not style.color.is_default:
        said += f' fill="{style.color.get_truecolor(SVG_EXPORT_THEME).hex}"'
    if style.bold:
        said += ' style="font-weight:bold"'
    return said + (' opacity=".6"' if style.dim else "")


def main() -> None:
    place = ROOT / "docs" / "demo.svg"
    place.write_text(Picture().svg(frames()), "utf-8")
    print(f"wrote {place.relative_to(ROOT)}, {place.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
