"""The page that goes with an output: what was built, what it cost, and how to check it; for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from html import escape
from typing import Any

from onceward.builds.views import BuildView, StepView
from onceward.core.money import to_micros, to_usd

_WIDTH, _ROW = 640, 22


def as_markdown(build: BuildView, entries: Sequence[Mapping[str, Any]], manifest: str) -> str:
    lines = [
        f"# {build.name}",
        "",
        *(f"- {line}" for line in _facts(build, entries)),
        "",
        "## Steps",
        "",
    ]
    lines += ["| step | how | usd | tries |", "|---|---|---|---|"]
    for step in build.steps:
        name = f"{step.stage}:{step.target}".replace("|", "\\|")
        lines.append(f"| {name} | {step.status} | {step.cost_usd or '-'} | {_tries(step)} |")
    lines += ["", "## Check it", "", "```sh", "sha256sum --check SHA256SUMS", "```", ""]
    lines += [
        f"`manifest.json` lists every file; without its last line end its SHA-256 is `{manifest}`.",
        "",
    ]
    return "\n".join(lines)


def as_html(build: BuildView, entries: Sequence[Mapping[str, Any]], manifest: str) -> str:
    rows = "".join(
        f"<tr><td>{escape(step.stage)}:{escape(step.target)}</td><td>{step.status}</td>"
        f"<td>{step.cost_usd or '-'}</td><td>{_tries(step)}</td></tr>"
        for step in build.steps
    )
    facts = "".join(f"<li>{escape(fact)}</li>" for fact in _facts(build, entries))
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        f"<title>{escape(build.name)}</title><style>{_STYLE}</style>"
        f"<h1>{escape(build.name)}</h1><ul>{facts}</ul>{_picture(build)}{_timeline(build)}"
        f"<table><thead><tr><th>step</th><th>how</th><th>usd</th><th>tries</th></tr></thead><tbody>{rows}</tbody></table>"
        f"<h2>Check it</h2><pre>sha256sum --check SHA256SUMS</pre>"
        "<p><code>manifest.json</code> lists every file; without its last line end its SHA-256 is"
        f" <code>{manifest}</code>.</p>"
        "</html>\n"
    )


_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:44rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}"
    "table{border-collapse:collapse;width:100%}"
    "td,th{text-align:left;padding:.2rem .6rem .2rem 0;border-bottom:1px solid #8884}"
    "figure{margin:1rem 0}figcaption{font-size:.8rem;opacity:.7}"
    "code,pre{font-family:ui-monospace,monospace;overflow-wrap:anywhere}"
)


def _tries(step: StepView) -> str:
    return "-" if step.attempts is None else str(step.attempts)


def _facts(build: BuildView, entries: Sequence[Mapping[str, Any]]) -> list[str]:
    how: dict[str, int] = {}
    for step in build.steps:
        how[step.status] = how.get(step.status, 0) + 1
    steps = ", ".join(f"{count} {word}" for word, count in sorted(how.items()))
    size = sum(entry["bytes"] for entry in entries)
    return [
        f"build {build.build_id}: {build.state}, begun {build.created_at[:19]} UTC",
        f"{len(build.steps)} steps: {steps}",
        f"cost {build.cost_usd} usd, {build.tokens} tokens",
        f"{len(entries)} files, {size} bytes",
    ]


def _picture(build: BuildView) -> str:
    """What each stage cost, as bars."""
    costs: dict[str, int] = {}
    for step in build.steps:
        costs[step.stage] = costs.get(step.stage, 0) + to_micros(step.cost_usd or "0.00")
    most = max(costs.values(), default=0)
    if not most:
        return ""
    bars = []
    for number, (stage, cost) in enumerate(costs.items()):
        width = max(1, cost * (_WIDTH - 260) // most)
        bars.append(
            _bar(number, stage, x=160, width=width, text=f"{to_usd(cost)} usd", colour="#4a7dbd")
        )
    return _figure("cost by stage", bars)


def _bar(number: int, stage: str, *, x: float, width: float, text: str, colour: str) -> str:
    y = number * _ROW
    return (
        f'<text x="0" y="{y + 15}" font-size="13" fill="currentColor">{escape(stage[:20])}</text>'
        f'<rect x="{x:.1f}" y="{y + 4}" width="{width:.1f}" height="{_ROW - 8}" fill="{colour}"/>'
        f'<text x="{x + width + 8:.1f}" y="{y + 15}" font-size="13" fill="currentColor">{text}</text>'
    )


def _figure(label: str, bars: Sequence[str]) -> str:
    return (
        f'<figure><svg viewBox="0 0 {_WIDTH} {len(bars) * _ROW}" width="100%" role="img" aria-label="{label}">'
        f"{''.join(bars)}</svg><figcaption>{label}</figcaption></figure>"
    )


def _timeline(build: BuildView) -> str:
    """When each stage was at work, as bars from the first start to the last end."""
    spans: dict[str, tuple[float, float]] = {}
    for step in build.steps:
        if (
            step.started_at
            and step.seconds is not None
            and step.status not in ("running", "queued")
        ):
            start = datetime.fromisoformat(step.started_at).timestamp()
            first, last = spans.get(step.stage, (start, start))
            spans[step.stage] = (min(first, start), max(last, start + step.seconds))
    if not spans:
        return ""
    begin, end = min(first for first, _ in spans.values()), max(last for _, last in spans.values())
    scale = (_WIDTH - 260) / max(0.001, end - begin)
    bars = []
    for number, (stage, (first, last)) in enumerate(spans.items()):
        x, width = 160 + (first - begin) * scale, max(1.0, (last - first) * scale)
        bars.append(
            _bar(number, stage, x=x, width=width, text=f"{last - first:.1f} s", colour="#6a9a5b")
        )
    return _figure("when each stage was at work", bars)
