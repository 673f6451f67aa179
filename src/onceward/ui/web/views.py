"""What pages draw: pictures of time and of plans, differences side by side, text that cannot do anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from onceward.builds.views import BuildView, StepView
from onceward.core.limits import LONG_LINE
from onceward.core.money import to_usd
from onceward.core.steps import step_name
from onceward.dispatch.views import ChildView
from onceward.kernel.feed import newest_events
from onceward.kernel.logs import tail_of
from onceward.processes.spool import Spool
from onceward.ui.http import reads
from onceward.ui.http.routes import Call
from onceward.ui.web.rendering import lasting, seconds_of

_BARS: Final = 60
_NODES: Final = 48
"""How many of the things that a person is to approve are shown at once."""
_LOG: Final = 32 * 1024
_DIFF_LINES: Final = 1500
_PLACES: Final = {
    "build": "/builds/",
    "session": "/sessions/",
    "child": "/children/",
    "saga": "/sagas/",
    "grant": "/grants/",
    "change": "/changes/",
    "artifact": "/artifacts/",
    "stream": "/streams/",
}


def place_of(found: Mapping[str, Any]) -> str | None:
    """The page of something that was explained."""
    place = _PLACES.get(str(found["kind"]).split()[-1])
    return f"{place}{found['id']}" if place else None


def tally(steps: Sequence[StepView]) -> dict[str, Any]:
    """How many steps stand how, and how much of the work is done."""
    counts = Counter(step.status for step in steps)
    done = sum(counts[status] for status in ("SUCCESS", "SKIPPED", "REUSED"))
    return {
        "counts": dict(counts),
        "done": done,
        "total": len(steps),
        "share": _share(done, len(steps)),
    }


def raised(build: BuildView) -> dict[str, str]:
    """What a paused build might be let spend: twice what it was, for a person to change."""
    lane, limit = build.facts().get("lane"), build.facts().get("limit")
    if not lane or not isinstance(limit, int):
        return {}
    return {"usd": to_usd(2 * limit)} if lane == "usd_micros" else {lane: str(2 * limit)}


def _share(part: float, whole: float) -> float:
    return round(100 * part / whole, 2) if whole else 0.0


def days(groups: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Money by day, the oldest first, for a chart."""
    found = [(one["key"], one["lanes"].get("usd_micros", 0) / 1e6) for one in reversed(groups)]
    return {"at": [seconds_of(day) for day, _ in found], "usd": [usd for _, usd in found]}


def graph(build: BuildView) -> dict[str, Any]:
    """Steps and what they need; of very many, stages."""
    if len(build.steps) > _NODES:
        return _stages(build.needs, build.steps)
    targets: dict[str, list[str]] = {}
    for step in build.steps:
        targets.setdefault(step.stage, []).append(step.target)
    nodes = [{"id": s.name, "label": s.name, "status": s.status} for s in build.steps]
    edges = []
    for step in build.steps:
        for need in build.needs.get(step.stage, ()):
            whole = need in build.gathers.get(step.stage, ())
            alike = targets.get(need, []) if whole else [step.target]
            edges += [[step_name(need, target), step.name] for target in alike]
    return {"nodes": nodes, "edges": edges}


_LOUDEST: Final = (
    "running",
    "FAILED",
    "IN_DOUBT",
    "BLOCKED",
    "queued",
    "waiting",
    "SUCCESS",
    "REUSED",
    "SKIPPED",
)
"""Of the statuses of a stage's steps, the first of these is the stage's."""


def _stages(needs: Mapping[str, Sequence[str]], steps: Sequence[StepView]) -> dict[str, Any]:
    found: dict[str, Counter[str]] = {}
    for step in steps:
        found.setdefault(step.stage, Counter())[step.status] += 1
    nodes = []
    for stage, counts in found.items():
        status = next((one for one in _LOUDEST if counts[one]), "waiting")
        done = sum(counts[one] for one in ("SUCCESS", "SKIPPED", "REUSED"))
        label = f"{stage} {done:,}/{sum(counts.values()):,}"
        nodes.append({"id": stage, "label": label, "status": status})
    return {
        "nodes": nodes,
        "edges": [[need, stage] for stage, some in needs.items() for need in some],
    }


def timeline(children: Sequence[ChildView], running: bool, now: float) -> dict[str, Any]:
    """When each child ran, as shares of the whole time: the newest of very many."""
    begun = [(seconds_of(child.started_at), child) for child in children if child.started_at]
    if not begun:
        return {"bars": [], "ticks": [], "left_out": 0, "running": running}
    shown = sorted(begun, key=lambda one: str(one[1].started_at))[-_BARS:]
    first = min(start for start, _ in shown)
    ends = [seconds_of(child.ended_at) for _, child in shown if child.ended_at]
    last = max([*ends, now] if running else ends or [first])
    whole = max(last - first, 0.001)
    bars = []
    for start, child in shown:
        end = seconds_of(child.ended_at) if child.ended_at else last
        bars.append(
            {
                "child_id": child.child_id,
                "label": _label(child),
                "status": _ended(child),
                "x": _share(start - first, whole),
                "width": max(_share(end - start, whole), 0.4),
                "seconds": lasting(end - start),
            }
        )
    ticks = [{"x": 25 * n, "label": lasting(whole * n / 4)} for n in range(5)]
    return {"bars": bars, "ticks": ticks, "left_out": len(begun) - len(shown), "running": running}


def _label(child: ChildView) -> str:
    work = child.work
    if work.get("stage"):
        return step_name(work["stage"], work.get("target") or "")
    if work.get("step"):
        return f"undo {work['step']}" if work.get("side") == "compensation" else str(work["step"])
    argv = work.get("argv")
    return " ".join(map(str, argv))[:60] if argv else child.child_id


def _ended(child: ChildView) -> str:
    if not child.over:
        return "running"
    return "done" if child.passed else "failed"


def chosen_step(steps: Sequence[StepView], wanted: str) -> StepView | None:
    """The step whose log is shown: the one that was asked for, that runs, that failed, or the last."""
    with_log = [step for step in steps if step.child_id]
    for step in with_log:
        if wanted and step.name == wanted:
            return step
    for status in ("running", "FAILED", "IN_DOUBT"):
        found = [step for step in with_log if step.status == status]
        if found:
            return found[-1]
    return with_log[-1] if with_log else None


def logs_of(call: Call, child_id: str) -> dict[str, Any]:
    return tail_of(call.artifacts, Spool(call.workspace.folder / "running"), child_id, _LOG)


def files(diff: Mapping[str, Any], *, whole: bool) -> list[dict[str, Any]]:
    """Every file of a change with its lines beside each other as well as one below the other; not `whole`, its first
    lines, each as far as a page shows it."""
    found = []
    for one in diff["files"]:
        lines = list(one.get("lines", ()))
        kept = lines if whole else lines[:_DIFF_LINES]
        long = not whole and any(len(line["text"]) > LONG_LINE for line in kept)
        found.append(
            {
                "path": one["path"],
                "what": one["what"],
                "note": one.get("note", ""),
                "old_path": one.get("old_path", ""),
                "added": one.get("added", 0),
                "removed": one.get("removed", 0),
                "before": one.get("before"),
                "after": one.get("after"),
                "before_mode": one.get("before_mode"),
                "after_mode": one.get("after_mode"),
                "lines": kept,
                "pairs": _pairs(kept),
                "left_out": len(lines) - len(kept),
                "cut_off": one.get("cut_off", False) or long or len(lines) > len(kept),
            }
        )
    return found


def _pairs(lines: Sequence[Mapping[str, Any]]) -> list[tuple[Any, Any]]:
    """Lines that went beside those that came in their place."""
    found: list[tuple[Any, Any]] = []
    gone: list[Any] = []
    came: list[Any] = []

    def even() -> None:
        for number in range(max(len(gone), len(came))):
            found.append(
                (
                    gone[number] if number < len(gone) else None,
                    came[number] if number < len(came) else None,
                )
            )
        gone.clear()
        came.clear()

    for line in lines:
        if line["sign"] == "-":
            gone.append(line)
        elif line["sign"] == "+":
            came.append(line)
        else:
            even()
            found.append((line, line))
    even()
    return found


def events(store: Any, stream: str) -> dict[str, Any]:
    """The newest events of a stream, the newest first."""
    told, total = newest_events(store, stream, 200)
    return {
        "events": [msgspec.json.decode(one.line) | {"seq": one.seq} for one in told],
        "total": total,
    }


def replayed(call: Call) -> dict[str, Any]:
    return reads.replay(msgspec.structs.replace(call, query=reads.ReplayQuery()))
