"""A gate's report as one page for people: no script, no network, light and dark."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from onceward.gate.manifest import HASH, METRICS

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --good: #2a8a4a; --bad: #c0392b; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .3rem; }
.verdict { font-weight: 600; } .good { color: var(--good); } .bad { color: var(--bad); }
.bar { height: .6rem; background: var(--line); border-radius: .3rem; overflow: hidden; }
.bar i { display: block; height: 100%; background: var(--good); }
.bar.low i { background: var(--bad); }
table { border-collapse: collapse; width: 100%; font-size: .92rem; }
td, th { text-align: left; padding: .3rem .6rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
code { font-size: .85rem; overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
"""


def page(report: Mapping[str, Any]) -> str:
    passed = report["all_passed"]
    said = (
        "Every metric is at its threshold."
        if passed
        else "The gate is closed: not every metric is at its threshold."
    )
    parts = [
        f'<p class="verdict {"good" if passed else "bad"}">{said}</p>',
        f"<p>Every fixture was executed {len(report['runs'])} times on {escape(report['store'])}, in fresh processes"
        " with another hash seed, time zone, locale (where the system has it), folder, umask and order,"
        " and replayed from its records.</p>",
        f"<p>Manifest <code>{escape(report[HASH])}</code></p>",
        *(_metric(report, metric) for metric in METRICS),
        _worlds(report),
    ]
    title = "Stop gate: " + ("open (passed)" if passed else "closed (not passed)")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head>\n'
        f"<body><h1>{title}</h1>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def _metric(report: Mapping[str, Any], metric: str) -> str:
    value, least = report["metrics"][metric], report["thresholds"][metric]
    low = " low" if value < least else ""
    rows = "".join(_fixture(one) for one in report["fixtures"] if one["metric"] == metric)
    return (
        f"<h2>{escape(metric)}: {value:.1f}</h2><p>{escape(METRICS[metric])}; the threshold is {least:.1f}.</p>"
        f'<div class="bar{low}" role="img" aria-label="{value:.1f} of 100"><i style="width:{value:.1f}%"></i></div>'
        '<div class="wide"><table><tr><th>fixture</th><th>verdict</th><th>hash, or why not</th></tr>'
        f"{rows}</table></div>"
    )


def _fixture(one: Mapping[str, Any]) -> str:
    name = f"{escape(one['fixture'].removesuffix('.json'))}<br><small>{escape(one.get('about', ''))}</small>"
    if one["passed"]:
        return f'<tr><td>{name}</td><td class="good">passed</td><td><code>{escape(one["locked"][:16])}</code></td></tr>'
    why = f"{escape(one['reason'])}<br><code>{escape(one['where'])}</code>"
    return f'<tr><td>{name}</td><td class="bad">failed</td><td>{why}</td></tr>'


def _worlds(report: Mapping[str, Any]) -> str:
    names = list(report["runs"][0]) if report["runs"] else []
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(run[name])}</td>" for name in names) + "</tr>"
        for run in report["runs"]
    )
    return f'<h2>The runs</h2><div class="wide"><table><tr>{head}</tr>{rows}</table></div>'
