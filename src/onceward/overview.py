"""Everything at a glance: what runs, what waits for a person, what failed, what today cost (I-4)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from onceward.builds.rules import why_paused
from onceward.builds.views import build_summary
from onceward.changes.views import change_list
from onceward.core.money import to_usd
from onceward.core.records import Build
from onceward.core.sources import iso
from onceward.core.steps import step_name
from onceward.core.views import View
from onceward.dispatch.spending import DAY_MICROS
from onceward.kernel.tenure import vacant
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
_CUT_OFF = "it was cut off, and can go on"


class OverviewItem(View, frozen=True, kw_only=True):
    """Something that runs, waits or failed, and where it is."""

    kind: str
    id: str
    name: str
    state: str
    since: str
    why: str | None = None
    next: str | None = None
    """The command that brings it on."""


class Today(View, frozen=True, kw_only=True):
    """What was spent since midnight in UTC, by lane, and what the workspace may spend."""

    usd: str
    lanes: Mapping[str, int]
    limits: Mapping[str, int]


class Overview(View, frozen=True, kw_only=True):
    """What somebody wants to know who has just sat down."""

    running: list[OverviewItem]
    waiting: list[OverviewItem]
    failed: list[OverviewItem]
    counts: dict[str, dict[str, int]]
    today: Today
    kernel: bool
    """Whether anybody is at work."""


def overview(store: Store) -> Overview:
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
        active = [] if nobody else Builds(rows).newest(_SHOWN, "ACTIVE")
    sagas = saga_list(store)
    running = [_build(build) for build in active]
    running += [_saga(saga) for saga in sagas if saga.standing == "running"]
    failed += [_saga(saga) for saga in sagas if saga.standing in ("stopped", "given up")][:_SHOWN]
    return Overview(
        running=running,
        waiting=[
            *_waiting_builds(store, nobody),
            *_waiting_approvals(store),
            *_waiting_changes(store),
            *_waiting_sagas(sagas),
            *_waiting_events(store),
        ],
        failed=failed,
        counts=counts,
        today=Today(usd=to_usd(spent.get("usd_micros", 0)), lanes=spent, limits=limits),
        kernel=not nobody,
    )


def _build(build: Build) -> OverviewItem:
    return OverviewItem(
        kind="build",
        id=build.build_id,
        name=build.name,
        state=build.state,
        since=iso(build.updated_at),
    )


def _saga(saga: SagaSummary) -> OverviewItem:
    return OverviewItem(
        kind="saga",
        id=saga.saga_id,
        name=f"{saga.name} {saga.root}",
        state=saga.standing,
        since=saga.created_at,
    )


def _waiting_builds(store: Store, nobody: bool) -> Iterator[OverviewItem]:
    """Builds that go no further by themselves; ACTIVE ones where nobody is at work."""
    states = ("BUDGET_PAUSE", "CRASHED", *(("ACTIVE",) if nobody else ()))
    with store.read() as rows:
        stopped = [build for state in states for build in Builds(rows).newest(_SHOWN, state)]
    for build in stopped:
        summary = build_summary(store, build.build_id)
        paused = build.state == "BUDGET_PAUSE"
        why = why_paused(summary.facts()) if paused else _CUT_OFF
        yield msgspec.structs.replace(_build(build), why=why, next=summary.next)


def _waiting_approvals(store: Store) -> Iterator[OverviewItem]:
    with store.read() as rows:
        wanted = [(one, Builds(rows).get(one.build_id)) for one in wanted_approvals(rows)]
    for approval, build in wanted:
        step = step_name(approval.stage, approval.target)
        yield OverviewItem(
            kind="approval",
            id=build.build_id,
            name=f"{build.name} {step}",
            state="undecided",
            since=iso(approval.wanted_at),
            why=approval.text,
            next=f"onceward approve {build.build_id} {step} --digest {approval.digest}",
        )


def _waiting_changes(store: Store) -> Iterator[OverviewItem]:
    for entry in change_list(store, _CHANGES, limit=_SHOWN):
        yield OverviewItem(
            kind="change",
            id=entry.entry_id,
            name=entry.reason or entry.target,
            state=entry.status,
            since=entry.created_at,
            why=f"it waits for {entry.waits_for}",
            next=entry.next,
        )


def _waiting_sagas(sagas: list[SagaSummary]) -> Iterator[OverviewItem]:
    whys = {"stuck": "it is stuck, and waits for a person", "unfinished": _CUT_OFF}
    for saga in sagas:
        if saga.standing in whys:
            yield msgspec.structs.replace(_saga(saga), why=whys[saga.standing], next=saga.next)


def _waiting_events(store: Store) -> Iterator[OverviewItem]:
    """Sinks that refused events."""
    with store.read() as rows:
        parked = [backlog for backlog in backlogs(rows) if backlog.parked]
    for backlog in parked:
        yield OverviewItem(
            kind="outbox",
            id=backlog.sink,
            name=backlog.sink,
            state="parked",
            since=iso(backlog.oldest_at) if backlog.oldest_at is not None else "",
            why=f"{backlog.parked} could not be delivered",
            next="onceward outbox flush",
        )
