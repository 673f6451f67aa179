"""Debits of a session's lanes: check and increment in one transaction (C-30)."""

from __future__ import annotations

from collections.abc import Mapping

from onceward.errors import BudgetExceeded, ChildCancelled, InvalidConfig
from onceward.kernel.limits import MAX_INTEGER
from onceward.kernel.money import to_usd
from onceward.kernel.records import Token
from onceward.lifecycles.budget import MODE, Lane, Refusal, charge, check_mode, fits, judge
from onceward.store.port import Reads, Row
from onceward.store.tables.budgets import (
    add_debit,
    add_to_workspace,
    carry,
    lanes_of,
    set_limit,
    spent_by,
    workspace_lanes,
)
from onceward.store.tables.children import is_terminal
from onceward.store.transaction import Transaction


def lanes(rows: Reads, session_id: str) -> dict[str, Lane]:
    return {row[0]: Lane(*row) for row in lanes_of(rows, session_id)}


def workspace(rows: Reads) -> dict[str, Lane]:
    """The lanes of the whole workspace that have a limit."""
    return {row[0]: Lane(*row) for row in workspace_lanes(rows)}


def set_limits(
    tx: Transaction, session_id: str, limits: Mapping[str, int], mode: str = MODE
) -> None:
    """Give lanes their limits; what is spent already stays spent."""
    check_mode(mode)
    for lane, limit in sorted(limits.items()):
        set_limit(tx, session_id, lane, limit, mode)


def debit(tx: Transaction, token: Token, asked: Mapping[str, int], settled: bool) -> Refusal | None:
    """Take amounts out of lanes. An asked debit fits in every lane or changes nothing; a settled one is always added,
    for the money is gone, and answers the first lane that is over its limit then."""
    session = token.parent_session_id
    if is_terminal(tx, token.child_id):
        raise ChildCancelled("this child has ended; nothing more can be debited for it")
    before = lanes(tx, session)
    for lane, amount in asked.items():
        if not fits(before.get(lane), amount):
            raise InvalidConfig(
                f"{lane} cannot count beyond {MAX_INTEGER}", context={"field": lane}
            )
    whole = workspace(tx)
    refusal = judge(before, asked) or judge(whole, asked, scope="workspace")
    if refusal is not None and not settled:
        return refusal
    for lane, amount in sorted(asked.items()):
        if lane not in before:
            set_limit(tx, session, lane, None, MODE)
        carried = before[lane].carried if lane in before else 0
        add_debit(tx, session, lane, token.child_id, amount, carried, settled, tx.now)
        if lane in whole:
            add_to_workspace(tx, lane, amount)
    # What is gone is not asked any more: the refusal says where the lane stands with it.
    return refusal and Refusal(
        refusal.lane, refusal.limit, refusal.observed + refusal.asked, 0, refusal.scope
    )


def spent(rows: Reads, child_id: str) -> dict[str, int]:
    """What was debited for a child, by lane."""
    return {lane: amount for lane, amount in spent_by(rows, child_id).items() if amount}


def lane_of(row: Row) -> Lane | None:
    """A lane as read beside something else; None where the session has none yet."""
    return None if row[0] is None else Lane(*row)


def charge_time(
    tx: Transaction, token: Token, known: Lane | None, micros: int
) -> tuple[int, Refusal | None]:
    """Charge a run's time, measured by us, when its end is observed; always settled. Answers the whole seconds."""
    session = token.parent_session_id
    if known is None:
        set_limit(tx, session, "duration_secs", None, MODE)
    lane = known or Lane("duration_secs", None, 0)
    seconds, carried = charge(lane, micros)
    if seconds:
        add_debit(tx, session, lane.lane, token.child_id, seconds, carried, True, tx.now)
    else:
        carry(tx, session, lane.lane, carried)
    return seconds, judge({lane.lane: lane}, {lane.lane: seconds})


def exceeded(refusal: Refusal) -> BudgetExceeded:
    money = refusal.lane == "usd_micros"
    at, limit, asked = (
        to_usd(n) if money else str(n) for n in (refusal.observed, refusal.limit, refusal.asked)
    )
    whose = f"{refusal.scope}'s " if refusal.scope else ""
    lane = "usd" if money else refusal.lane
    more = f", {asked} more asked" if refusal.asked else ""
    return BudgetExceeded(
        f"the {whose}budget has no room: {lane} is at {at} of {limit}{more}",
        context=refusal.detail(),
    )
