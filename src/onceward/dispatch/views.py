"""Views of sessions and children: list, status, explanation."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import msgspec

from onceward.core.records import Token
from onceward.core.sources import iso
from onceward.core.steps import step_name
from onceward.core.views import Explanation, LaneView, View, cost_of
from onceward.dispatch import debits, rules
from onceward.dispatch.budget import Lane
from onceward.dispatch.cut_off import step_of
from onceward.dispatch.queue import exported
from onceward.people.principals import who_may
from onceward.store.port import Reads
from onceward.store.store import Store
from onceward.store.subject import Kind, story
from onceward.store.tables.budgets import lanes_of, spent_by
from onceward.store.tables.children import Sessions, Tokens, last_detail_of, resolve

_OF_THE_END = (
    "exit",
    "message",
    "note",
    "strays",
    "unsure",
    "lane",
    "limit",
    "observed",
    "asked",
    "stopped",
)
"""What the last event of a child says for people."""


class SessionSummary(View, frozen=True, kw_only=True):
    """A session in a list."""

    session_id: str
    children: int
    open: int
    failed: int
    created_at: str


class LaneDebits(View, frozen=True, kw_only=True):
    """What was debited for a child in one lane."""

    budget_lane: str
    accounting_mode: str
    debited: int


class BudgetView(View, frozen=True, kw_only=True):
    """`budget.v1`: what was debited for a child; a projection, never above the totals of its session."""

    schema: str
    child_id: str
    parent_session_id: str
    lanes: list[LaneDebits]


class ChildView(View, frozen=True, kw_only=True):
    """A child: its `scheduler_dispatch_token@1`, what it does, how it ended and what it spent."""

    schema: str
    parent_stream_id: str
    parent_seq: int
    parent_session_id: str
    queue_seq: int
    child_id: str
    phase: str
    kind: str
    work: dict[str, Any]
    attempt: int
    spent: dict[str, int]
    budget: BudgetView
    dispatch_seq: int | None = None
    worker_run_id: str | None = None
    lease_id: str | None = None
    target: str | None = None
    predecessor: str | None = None
    reason: str | None = None
    code: str | None = None
    cancel_request_id: str | None = None
    joined_request_ids: list[str] | None = None
    started_at: str | None = None
    ended_at: str | None = None
    detail: dict[str, Any] | None = None
    """What else its last event says, once it has ended."""

    @property
    def over(self) -> bool:
        return self.phase == "terminal"

    @property
    def passed(self) -> bool:
        return self.reason in (None, "completed")

    def ending(self) -> Mapping[str, Any]:
        """What else its last event says; nothing while it has not ended."""
        return self.detail or {}


class SessionView(View, frozen=True, kw_only=True):
    """A session with its lanes and children."""

    session_id: str
    max_active_children: int
    created_at: str
    lanes: list[LaneView]
    children: list[ChildView]


def session_list(store: Store, limit: int = 50) -> list[SessionSummary]:
    """The newest sessions and how they stand."""
    with store.read() as rows:
        found = Sessions(rows).all(limit)
    return [
        SessionSummary(
            session_id=session_id, children=count, open=left, failed=failed, created_at=iso(at)
        )
        for session_id, count, left, failed, at in found
    ]


def session_view(store: Store, subject: str) -> SessionView:
    """A session with its lanes and children, or the session of one child with that child alone."""
    with store.read() as rows:
        named = Sessions(rows).named(subject)
        session = Sessions(rows).find(named[0]) if len(named) == 1 else None
        if session is not None:
            tokens = list(Tokens(rows).of_session(session.session_id))
        else:
            tokens = [Tokens(rows).get(child_id) for child_id in resolve(rows, subject)]
            session = Sessions(rows).find(tokens[0].parent_session_id)
            assert session is not None
        lanes = debits.lanes(rows, session.session_id)
        children = [_child(rows, token, lanes) for token in tokens]
        return SessionView(
            session_id=session.session_id,
            max_active_children=session.max_active_children,
            created_at=iso(session.created_at),
            lanes=_lanes(rows, session.session_id),
            children=children,
        )


def lane_list(store: Store, session_id: str) -> list[LaneView]:
    """What a session spent and may spend, by lane."""
    with store.read() as rows:
        return _lanes(rows, session_id)


def _lanes(rows: Reads, session_id: str) -> list[LaneView]:
    return [
        LaneView(lane=lane, limit=limit, total=total)
        for lane, limit, total, *_ in lanes_of(rows, session_id)
    ]


def session_named(store: Store, prefix: str) -> str:
    """The one session that an id or its beginning means."""
    with store.read() as rows:
        matches = Sessions(rows).named(prefix)
    return rules.require_one_session(prefix, matches)


def _child(rows: Reads, token: Token, lanes: Mapping[str, Lane]) -> ChildView:
    spent = dict(spent_by(rows, token.child_id))
    over = token.phase == "terminal"
    return ChildView(
        **exported(token),
        kind=token.kind,
        work=msgspec.json.decode(token.work),
        target=token.target,
        attempt=token.attempt,
        predecessor=token.predecessor,
        reason=token.reason,
        code=token.code,
        cancel_request_id=token.cancel_request_id,
        joined_request_ids=msgspec.json.decode(token.joined_request_ids or "null"),
        started_at=None if token.started_at is None else iso(token.started_at),
        ended_at=iso(token.updated_at) if over else None,
        detail=_ending(rows, token) if over else None,
        spent=spent,
        budget=_budget(token, lanes, spent),
    )


def _budget(token: Token, lanes: Mapping[str, Lane], debited: Mapping[str, int]) -> BudgetView:
    """A child's debits by lane: a projection that overrides no total (C-30)."""
    return BudgetView(
        schema="budget.v1",
        child_id=token.child_id,
        parent_session_id=token.parent_session_id,
        lanes=[
            LaneDebits(
                budget_lane=lane.lane,
                accounting_mode=lane.mode,
                debited=debited.get(lane.lane, 0),
            )
            for lane in sorted(lanes.values(), key=lambda lane: lane.lane)
        ],
    )


def _ending(rows: Reads, token: Token) -> dict[str, Any]:
    """What else its last event says: exit, message, note, processes it left."""
    detail = last_detail_of(rows, token.child_id)
    return {key: detail[key] for key in _OF_THE_END if key in detail}


def _find_child(rows: Reads, name: str) -> str | None:
    return resolve(rows, name)[0] if name.startswith("chd_") else None


def _explain_child(store: Store, child_id: str) -> Explanation:
    session = session_view(store, child_id)
    child = session.children[0]
    with store.read() as rows:
        step = step_of(Tokens(rows).get(child_id))
        moves = story(rows, f"child:{child_id}", "child")
        who = [] if child.over else who_may(rows, "operator")
    what = []
    if step is not None:
        what.append(f"attempt {child.attempt} at step {step_name(step.stage, step.target)}")
    what.append(
        f"runs {shlex.join(child.work['argv'])}"
        if "argv" in child.work
        else f"calls {child.work.get('function', 'a function')}"
    )
    what.append(f"in {'build' if step else 'session'} {session.session_id}")
    spent = [LaneView(lane=lane, limit=None, total=n) for lane, n in child.spent.items()]
    left = [lane for lane in session.lanes if lane.limit is not None]
    why = [f"{child.reason}{_ended(child.ending())}"] if child.reason else []
    if child.cancel_request_id is not None:
        why.append("somebody asked it to end")
    waits_for = {
        "queued": ["a free slot"],
        "leased": ["its process to say that it stands"],
    }
    return Explanation(
        id=child_id,
        kind="child",
        what=what,
        state=child.phase,
        why=why,
        story=moves,
        waits_for=waits_for.get(child.phase, []),
        who=who,
        cost=cost_of(spent) + (f" (its session: {cost_of(left)})" if left else ""),
        next=[
            f"onceward logs {child_id}",
            *([] if child.over else [f"onceward cancel {child_id}"]),
        ],
    )


def _ended(detail: Mapping[str, Any]) -> str:
    exit_ = f", exit {detail['exit']}" if detail.get("exit") is not None else ""
    return exit_ + (f": {detail['message']}" if detail.get("message") else "")


def _find_session(rows: Reads, name: str) -> str | None:
    found = Sessions(rows).named(name) if name else []
    return found[0] if len(found) == 1 and not found[0].startswith("bld_") else None


def _explain_session(store: Store, session_id: str) -> Explanation:
    session = session_view(store, session_id)
    count = len(session.children)
    waiting = sum(not child.over for child in session.children)
    failed = sum(not child.passed for child in session.children)
    with store.read() as rows:
        who = who_may(rows, "operator")
    return Explanation(
        id=session_id,
        kind="session",
        what=[f"children run by hand, {session.max_active_children} at once"],
        state="open" if waiting else "quiet",
        who=who,
        made=[f"children: {count:,}, open {waiting:,}, not succeeded {failed:,}"],
        cost=cost_of(session.lanes),
        next=[f"onceward status {session_id}", f"onceward export {session_id}"],
    )


KINDS = (
    Kind("child", _find_child, _explain_child),
    Kind("session", _find_session, _explain_session),
)
