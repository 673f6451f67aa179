"""Numbers for whoever watches from afar, in the text form that Prometheus reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from onceward.kernel.tenure import vacant
from onceward.store.store import Store
from onceward.store.tables.budgets import lane_totals
from onceward.store.tables.counts import counted
from onceward.store.tables.events import last_position
from onceward.store.tables.outbox import backlogs

_COUNTED = {
    "builds": "builds",
    "children": "urm_dispatch_token",
    "changes": "decision_backlog_entry",
}


def metrics(store: Store, serving: Mapping[str, float]) -> str:
    """Every number with what it means; `serving` is what the server knows of itself."""
    with store.read() as rows:
        lines = [
            *_series(
                "kernel_alive",
                "whether a kernel holds the workspace",
                {"": float(not vacant(store))},
            )
        ]
        lines += _series(
            "events_total", "events ever recorded", {"": last_position(rows)}, "counter"
        )
        for noun, table in _COUNTED.items():
            found = {f'state="{state}"': count for state, count in counted(rows, table).items()}
            lines += _series(noun, f"{noun} by state", found)
        spent = {f'lane="{lane}"': total for lane, total in lane_totals(rows)}
        lines += _series(
            "spent_total", "what was spent, by lane; money in millionths", spent, "counter"
        )
        waiting = {(b.sink, b.waiting, b.parked) for b in backlogs(rows)}
        lines += _series(
            "outbox_waiting", "not delivered yet", {f'sink="{_text(s)}"': n for s, n, _ in waiting}
        )
        lines += _series(
            "outbox_parked", "given up for now", {f'sink="{_text(s)}"': n for s, _, n in waiting}
        )
    for name, value in serving.items():
        lines += _series(name, "of this server", {"": value})
    return "\n".join(lines) + "\n"


def _series(
    name: str, about: str, values: Mapping[str, float], kind: str = "gauge"
) -> Iterator[str]:
    yield f"# HELP onceward_{name} {about}"
    yield f"# TYPE onceward_{name} {kind}"
    for labels, value in sorted(values.items()):
        yield f"onceward_{name}{f'{{{labels}}}' if labels else ''} {value:.15g}"


def _text(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
