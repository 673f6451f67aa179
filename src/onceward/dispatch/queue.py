"""Who runs next: queueing, leasing and ending children, each inside one transaction (C-2 to C-5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from onceward.core import faults
from onceward.core.limits import MAX_ACTIVE_CHILDREN, MAX_JOBS
from onceward.core.records import Owner, Token
from onceward.dispatch import debits, machine, rules
from onceward.dispatch.budget import Refusal
from onceward.dispatch.cut_off import earlier_of, note_cut_off
from onceward.dispatch.machine import Ended, Order
from onceward.dispatch.stage_words import whole
from onceward.dispatch.work import StepEnd
from onceward.store.port import Reads
from onceward.store.tables.children import (
    Sessions,
    Standing,
    Tokens,
    ask_to_end,
    join_request_to_end,
    last_queued,
    open_session,
    set_high,
    set_highs,
)
from onceward.store.transaction import Transaction

Facts = Callable[[Transaction, Ended, Mapping[str, int], str], Sequence[Order]]
"""What belongs into the commit of an end. It is told how it ended, what was spent and how its build stands, and answers
whom to queue."""


class Closing(msgspec.Struct, frozen=True):
    """A child that ended, and what its last commit must hold beside the event."""

    token: Token
    ended: Ended
    micros: int | None = None
    """How long it ran, if it began."""
    facts: Facts | None = None
    attempts: int = 1
    spending: Callable[[], bool] = bool
    """Whether anything was ever debited for it."""
    about: str = ""
    """What its last event is about, where that is a step."""
    step: StepEnd | None = None
    bare: Facts | None = None
    """What still belongs into the commit where `facts` cannot be recorded."""

    def whose(self) -> dict[str, Any]:
        """Whose step it was, without what it made."""
        step = self.step.detail if self.step is not None else {}
        return {key: value for key, value in step.items() if key != "outputs"}


class Turn(msgspec.Struct, frozen=True):
    """What came of one turn of a slot: how the last child ended, its successor if it is tried again, and the next."""

    ended: Ended | None = None
    successor: Token | None = None
    next: Token | None = None
    unstarted: Sequence[tuple[Token, Ended]] = ()
    """Queued children that the budget left no room for."""
    unclaimed: Token | None = None
    """The child whose turn it is, where its target has to be claimed first."""


def open_(
    tx: Transaction, session_id: str, cap: int, limits: Mapping[str, int], actor: str
) -> None:
    """Open a session, or go on with one under a new cap and new limits; its stream says which."""
    rules.require_cap(cap)
    known = Sessions(tx).find(session_id)
    before = {
        name: lane.limit
        for name, lane in debits.lanes_to_write(tx, session_id).items()
        if lane.limit is not None
    }
    if known is not None and known.max_active_children == cap and {**before, **limits} == before:
        return
    open_session(tx, session_id, cap, tx.now)
    debits.set_limits(tx, session_id, limits)
    detail = {"max_active_children": cap, "limits": {**before, **limits}}
    tx.append(
        f"session:{session_id}",
        "SESSION_OPENED" if known is None else "SESSION_CHANGED",
        actor,
        detail,
    )


def cap_of(rows: Reads, session_id: str) -> int:
    """How many children of a session run at once where nobody says: as many as before, or the default (C-5)."""
    known = Sessions(rows).find(session_id)
    return known.max_active_children if known is not None else MAX_ACTIVE_CHILDREN


def chosen_cap(jobs: int | None, otherwise: int) -> int:
    """How many run at once, where somebody may have said so; 0 is no way to say nothing."""
    return otherwise if jobs is None else whole("jobs", jobs, 1, MAX_JOBS)


def spawn(tx: Transaction, orders: Sequence[Order], owner: Owner, actor: str) -> list[Token]:
    """Queue children of one session, in this order, at the end of its queue."""
    if not orders:
        return []
    session = orders[0].session_id
    mark, last = last_queued(tx, session)
    head = tx.head(f"session:{session}")
    moves = [
        machine.spawn(order, head, last + n, owner, actor) for n, order in enumerate(orders, 1)
    ]
    for move in moves:
        tx.move(move)
    set_high(tx, session, "queue", mark, last + len(orders))
    faults.point("child.queued")
    return [machine.born(move, tx.now) for move in moves]


def turn(
    tx: Transaction,
    *,
    session_id: str,
    slot: int,
    owner: Owner,
    actor: str,
    closing: Closing | None,
    starts: bool,
    refusal: Callable[[Reads, Token], Refusal | None] | None = None,
    claimed: Callable[[Token], bool] | None = None,
) -> Turn:
    """End the child that had this slot and lease the slot to the next: one commit for both.

    `starts` says whether more may be dispatched; `refusal` why a child must not, which ends it; `claimed` whether the
    target of one is claimed, without which it is not leased. A function is started in the same commit; a process when
    it stands."""
    ended = successor = None
    if closing is not None:
        standing = Tokens(tx).closing(closing.token.child_id)
        ended, follow, again = end(tx, closing, standing, actor)
        if (
            starts
            and not again
            and not standing.waiting
            and len(follow) == 1
            and follow[0].kind == "function"
        ):
            launched = launch(tx, follow[0], standing, slot=slot, owner=owner, actor=actor)
            return Turn(ended, None, launched)
        spawn(tx, follow, owner, actor)
        if again:
            (successor,) = spawn(tx, [_again(tx, closing.token)], owner, actor)
    unstarted: list[tuple[Token, Ended]] = []
    while True:
        next_queued = Tokens(tx).next_queued(session_id, slot, tx.now) if starts else None
        if next_queued is None:
            return Turn(ended, successor, unstarted=unstarted)
        token, mark, dispatch_seq = next_queued
        refused = refusal(tx, token) if refusal is not None else None
        if refused is None:
            break
        end_unstarted = Ended("budget_exceeded", refused.detail())
        fail_queued(tx, token, end_unstarted, actor)
        unstarted.append((token, end_unstarted))
    if token.target is not None and claimed is not None and not claimed(token):
        return Turn(ended, successor, unstarted=unstarted, unclaimed=token)
    move = machine.lease(token, dispatch_seq, slot, actor)
    tx.move(move)
    set_high(tx, session_id, "dispatch", mark, dispatch_seq)
    faults.point("child.leased")
    token = machine.moved(token, move)
    if token.kind == "function":
        token = start(tx, token, actor)
    return Turn(ended, successor, token, unstarted)


def launch(
    tx: Transaction, order: Order, standing: Standing, *, slot: int, owner: Owner, actor: str
) -> Token:
    """Queue a function, lease it the slot and start it at once, where nobody else waits: three arrows, one row."""
    queue_seq, dispatch_seq = standing.last[0] + 1, standing.last[1] + 1
    queued = machine.spawn(order, tx.head(f"session:{order.session_id}"), queue_seq, owner, actor)
    token = machine.born(queued, tx.now)
    leased = machine.lease(token, dispatch_seq, slot, actor)
    token = machine.moved(token, leased)
    started = machine.start(token, tx.now, actor)
    tx.bear([queued, leased, started])
    set_highs(tx, order.session_id, standing.marks, (queue_seq, dispatch_seq))
    faults.point("child.launched")
    return machine.moved(token, started)


def start(
    tx: Transaction, token: Token, actor: str, pid: int | None = None, began: str | None = None
) -> Token:
    move = machine.start(token, tx.now, actor, pid, began)
    tx.move(move)
    return machine.moved(token, move)


def end(
    tx: Transaction, closing: Closing, standing: Standing, actor: str
) -> tuple[Ended, Sequence[Order], bool]:
    """The one terminal event of a child, with its time charged. Answers how it ended, who is to be queued because of
    it, and whether it is to be tried again."""
    token = msgspec.structs.replace(
        closing.token,
        cancel_request_id=standing.cancel_request_id,
        joined_request_ids=standing.joined_request_ids,
    )
    ended = closing.ended
    # Its own threads may have spent until now: what counts is what is committed.
    spent, debits_told = debits.told(tx, token.child_id) if closing.spending() else ({}, {})
    if closing.micros is not None:
        # Whatever its time does to the lane, what it made is kept (B-9, C-30).
        seconds = debits.charge_time(tx, token, debits.lane_of(standing.lane), closing.micros)
        spent |= {"duration_secs": seconds} if seconds else {}
    detail = {**ended.detail, **({"spent": spent} if spent else {}), **debits_told}
    move = machine.finish(
        token, msgspec.structs.replace(ended, detail=detail), actor, closing.about
    )
    ended = msgspec.structs.replace(ended, reason=move.reason or ended.reason, detail=move.detail)
    follow = closing.facts(tx, ended, spent, standing.state) if closing.facts is not None else ()
    tx.move(move)
    faults.point("child.ended")
    again = ended.retryable and move.reason != "cancelled" and token.attempt < closing.attempts
    return ended, follow, again


def fail_queued(tx: Transaction, token: Token, ended: Ended, actor: str) -> None:
    """End a child that never began; the one place where that is done."""
    tx.move(machine.finish(token, ended, actor))


def cancel(tx: Transaction, child_id: str, cancel_request_id: str, actor: str) -> dict[str, Any]:
    """Ask a child to end: a queued one ends now, a running one when its end is observed (C-40).

    Answers a receipt; one that came later names the request it joined."""
    token = Tokens(tx).get(child_id)
    receipt: dict[str, Any] = {"child_id": child_id}
    if token.phase == "terminal":
        return receipt | {"outcome": "already_terminal"}
    if token.cancel_request_id is not None:
        later = machine.join_cancel(token, cancel_request_id)
        if later is not None:
            join_request_to_end(tx, child_id, later)
            _note_cancel(tx, token, cancel_request_id, actor)
        receipt |= {"outcome": "cancelling"}
        if cancel_request_id != token.cancel_request_id:
            receipt |= {"joined_request_id": token.cancel_request_id}
        return receipt
    ask_to_end(tx, child_id, cancel_request_id)
    if token.phase == "queued":
        earlier = earlier_of(tx, token)
        note_cut_off(tx, token, "cancelled", {}, actor)
        asked = msgspec.structs.replace(token, cancel_request_id=cancel_request_id)
        fail_queued(tx, asked, Ended("cancelled", earlier), actor)
        return receipt | {"outcome": "cancelled"}
    _note_cancel(tx, token, cancel_request_id, actor)
    return receipt | {"outcome": "cancelling"}


def _note_cancel(tx: Transaction, token: Token, cancel_request_id: str, actor: str) -> None:
    """Record who asked a running child to end; its last event comes when the end is observed."""
    detail = {"child_id": token.child_id, "cancel_request_id": cancel_request_id}
    tx.append(token.parent_stream_id, "CANCEL_ASKED", actor, detail)


def _again(tx: Transaction, token: Token) -> Order:
    """The next attempt: a child of its own that names its predecessor, after a pause that grows, with jitter."""
    due = tx.now + machine.backoff(token.attempt, tx.sources.fraction())
    return Order(
        child_id=tx.sources.new_id("chd"),
        session_id=token.parent_session_id,
        kind=token.kind,
        work=token.work,
        target=token.target,
        attempt=token.attempt + 1,
        predecessor=token.child_id,
        due_at=due,
    )


def exported(token: Token) -> dict[str, Any]:
    """`scheduler_dispatch_token@1`: a token as it is shown to others; a queued one has no place in the order yet."""
    fields = {
        "schema": "scheduler_dispatch_token@1",
        "parent_stream_id": token.parent_stream_id,
        "parent_seq": token.parent_seq,
        "parent_session_id": token.parent_session_id,
        "queue_seq": token.queue_seq,
        "dispatch_seq": token.dispatch_seq,
        "child_id": token.child_id,
        "worker_run_id": token.worker_run_id,
        "lease_id": token.worker_run_id,
        "phase": token.phase,
    }
    return {key: value for key, value in fields.items() if value is not None}
