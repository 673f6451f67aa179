"""Everything at a glance: what runs, what waits for a person, what failed, what today cost (I-4)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from onceward.changes.views import WAITS_FOR, change_list
from onceward.core.money import to_usd
from onceward.core.sources import iso
from onceward.engine import build_reading
from onceward.engine.spending import DAY_MICROS
from onceward.engine.tenure import vacant
from onceward.lifecycles.plan import step_name
from onceward.sagas.views import SagaSummary, saga_list
from onceward.store.store import Store
from onceward.store.tables.approvals import wanted_approvals
from onceward.store.tables.budgets import debits_since, workspace_lanes
from onceward.store.tables.builds import Builds
from onceward.store.tables.counts import counted
from onceward.store.tables.outbox import backlogs

_SHOWN = 20
_CHANGES = ("review_pending", "reviewed_approved", "cut_applied")
"""What an entry can only be brought on from by somebody."""


def overview(store: Store) -> dict[str, Any]:
    """What somebody wants to know who has just sat down."""
    nobody = vacant(store)
    with store.read() as rows:
        now = rows.now()
        spent = debits_since(rows, now - now % DAY_MICROS)
        limits = {lane: limit for lane, limit, *_ in workspace_lanes(rows) if limit is not None}
        counts = {
            "builds": counted(rows, "builds"),
            "children": counted(rows, "urm_dispatch_token"),
            "changes": counted(rows, "decision_backlog_entry"),
        }
        failed = [_build(build) for build in Builds(rows).newest(_SHOWN, "FAILED")]
        running = (
            [_build(build) for build in Builds(rows).newest(_SHOWN, "ACTIVE")] if not nobody else []
        )
    sagas = saga_list(store)
    running += [_saga(one) for one in sagas if one.standing == "running"]
    failed += [_saga(one) for one in sagas if one.standing in ("stopped", "given up")][:_SHOWN]
    return {
        "running": running,
        "waiting": list(_waiting(store, sagas, nobody)),
        "failed": failed,
        "counts": counts,
        "today": {"usd": to_usd(spent.get("usd_micros", 0)), "lanes": spent, "limits": limits},
        "kernel": not nobody,
    }


def _build(build: Any) -> dict[str, Any]:
    said = {"kind": "build", "id": build.build_id, "name": build.name, "state": build.state}
    return {**said, "since": iso(build.updated_at)}


def _saga(one: SagaSummary) -> dict[str, Any]:
    return {
        "kind": "saga",
        "id": one.saga_id,
        "name": f"{one.name} {one.root}",
        "state": one.standing,
        "since": one.created_at,
    }


def _waiting(store: Store, sagas: list[SagaSummary], nobody: bool) -> Iterator[dict[str, Any]]:
    """Each thing that goes no further by itself, why, and the command that brings it on."""
    with store.read() as rows:
        found = Builds(rows)
        states = ("BUDGET_PAUSE", "CRASHED", *(("ACTIVE",) if nobody else ()))
        stopped = [build for state in states for build in found.newest(_SHOWN, state)]
        approvals = [(a, found.get(a.build_id)) for a in wanted_approvals(rows)]
        parked = [backlog for backlog in backlogs(rows) if backlog.parked]
    for build in stopped:
        said = build_reading.build_summary(store, build.build_id)
        paused = build.state == "BUDGET_PAUSE"
        why = (
            build_reading.why_paused(said.get("why", {}))
            if paused
            else "it was cut off, and can go on"
        )
        yield {**_build(build), "why": why, "next": build_reading.next_command(said)}
    for approval, build in approvals:
        step = step_name(approval.stage, approval.target)
        said = {
            "kind": "approval",
            "id": build.build_id,
            "name": f"{build.name} {step}",
            "state": "undecided",
        }
        next_ = f"onceward approve {build.build_id} {step} --digest {approval.digest}"
        yield {**said, "since": iso(approval.wanted_at), "why": approval.text, "next": next_}
    for entry in change_list(store, _CHANGES, limit=_SHOWN):
        verbs = {"review_pending": "review", "reviewed_approved": "cut"}
        verb = verbs.get(entry.status, "verify")
        yield {
            "kind": "change",
            "id": entry.entry_id,
            "name": entry.reason or entry.target,
            "state": entry.status,
            "since": entry.created_at,
            "why": f"it waits for {WAITS_FOR[entry.status]}",
            "next": f"onceward change {verb} {entry.entry_id}",
        }
    for one in sagas:
        if one.standing in ("stuck", "unfinished"):
            stuck = one.standing == "stuck"
            why = (
                "it is stuck, and waits for a person" if stuck else "it was cut off, and can go on"
            )
            yield {**_saga(one), "why": why, "next": one.next}
    for backlog in parked:
        said = {"kind": "outbox", "id": backlog.sink, "name": backlog.sink, "state": "parked"}
        since = iso(backlog.oldest_at) if backlog.oldest_at is not None else ""
        yield {
            **said,
            "since": since,
            "why": f"{backlog.parked} could not be delivered",
            "next": "onceward outbox flush",
        }
