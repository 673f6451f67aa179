"""What came of running a build, for whoever ran it: the last line of `run` and `resume`, and a result in Python."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from onceward.builds import rules
from onceward.builds.ready_queue import At
from onceward.builds.run import BuildRun
from onceward.builds.views import build_summary, next_command
from onceward.core.money import to_usd
from onceward.dispatch import debits
from onceward.dispatch.budget import Lane
from onceward.kernel.views import outbox_status
from onceward.store.store import Store


class Carried(msgspec.Struct, frozen=True):
    """A build as it was run here, until it ended, paused or was stopped."""

    run: BuildRun
    paid: int
    """What was spent meanwhile, in micro-dollars."""
    seconds: int

    def outcome(
        self, store: Store, *, sinks: Sequence[str], confirmation_seconds: int
    ) -> dict[str, Any]:
        """How the build stands now, and what came of it here."""
        run = self.run
        summary = build_summary(store, run.build_id)
        with store.read() as rows:
            lanes = debits.lanes(rows, run.build_id)
        blocked = run.ready.counts[At.BLOCKED]
        steps = {"total": len(run.steps), **run.counts}
        if blocked:
            steps["blocked"] = blocked
        result: dict[str, Any] = {
            "build_id": summary.build_id,
            "state": summary.state,
            "reason": summary.reason,
            "cost_usd": summary.cost_usd,
            "tokens": summary.tokens,
            "steps": steps,
            "saved_usd": to_usd(run.saved),
            "paid_usd": to_usd(self.paid),
            "seconds": self.seconds,
        }
        if run.pausing is not None and summary.state == "BUDGET_PAUSE":
            result["confirmation_token"] = run.pausing[2]
            result["confirmation_seconds"] = confirmation_seconds
            result["why"] = rules.why_paused(rules.with_total(run.pausing[1], lanes))
            summary = msgspec.structs.replace(summary, enough=_enough(run, lanes) or summary.enough)
            if run.doubts:
                result["why"] += f"; {_why_in_doubt(run.doubts)}"
        elif run.doubts and summary.state == "CRASHED":
            result["in_doubt"] = run.doubts
            result["why"] = _why_in_doubt(run.doubts)
            if run.failures:
                result["why"] += f"; {_why_failed(run.failures, run.counts['failed'])}"
        elif run.failures:
            result["why"] = _why_failed(run.failures, run.counts["failed"])
        stopped = run.halted == "stopped" and summary.state in ("CRASHED", "ACTIVE")
        result["stopped"] = True if stopped and "in_doubt" not in result else None
        result["untold"] = _undelivered(store, sinks) or None
        result["unread"] = _unread(run.unread) or None
        result["next"] = next_command(summary)
        return {key: value for key, value in result.items() if value is not None}


def _unread(reports: Mapping[str, str]) -> str:
    """Steps of whose reports something could not be read: what is said of their cost may be too little."""
    if not reports:
        return ""
    step, mistake = next(iter(reports.items()))
    more = f", and {len(reports) - 1} more steps" if len(reports) > 1 else ""
    return f"{step} ({mistake}){more}"


def _undelivered(store: Store, sinks: Sequence[str]) -> str:
    """Which sinks have not accepted everything yet, and why; what waits is delivered by the next kernel."""
    lines = []
    for sink in outbox_status(store, sinks):
        if sink.configured and sink.waiting:
            error = f": {sink.last_error}" if sink.last_error is not None else ""
            plural = "s" if sink.waiting > 1 else ""
            lines.append(f"{sink.waiting} event{plural} to {sink.sink}{error}")
    return "; ".join(lines)


def _enough(run: BuildRun, lanes: Mapping[str, Lane]) -> str:
    """A budget that would last to the end, in the lane that ran out, as far as anybody can tell. It counts what was
    in flight when the build paused and has ended since: less than that would be refused."""
    assert run.pausing is not None
    detail = run.pausing[1]
    name = str(detail.get("lane", ""))
    lane = lanes.get(name)
    if lane is None or detail.get("scope"):
        return ""
    wanted = max(
        run.admissions.to_finish(run.ready.left()).get(name, 0), int(detail.get("asked") or 0)
    )
    if name == "duration_secs":
        wanted = max(wanted, _time_to_finish(run, lane))
    enough = lane.total + wanted if wanted else 0
    if not enough:
        return ""
    return to_usd(enough) if name == "usd_micros" else str(enough)


def _time_to_finish(run: BuildRun, lane: Lane) -> int:
    """Seconds that the steps that are left will take if they take as long as those before."""
    executed, left = run.counts["executed"], sum(run.ready.left().values())
    return max(1, -(-lane.total * left // executed) if executed else lane.total * left or left)


def _why_in_doubt(steps: Sequence[str]) -> str:
    more = f" and {len(steps) - 1} more" if len(steps) > 1 else ""
    return (
        f"{steps[0]}{more} ended well, but what it left cannot be recorded as its result; it is kept"
        " among the artifacts of its child (kind in_doubt), and a person decides"
    )


def _why_failed(failures: Sequence[tuple[str, Mapping[str, Any]]], count: int) -> str:
    step, error = failures[0]
    exit_ = f", exit {error['exit']}" if error.get("exit") is not None else ""
    line = f"{step}: {error.get('message') or error.get('last_line') or error.get('reason')}{exit_}"
    log = f" (onceward logs {shlex.quote(step)})" if error.get("child_id") else ""
    return f"{line}{log}{f'; {count - 1} more failed' if count > 1 else ''}"
