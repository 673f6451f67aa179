"""Debits of a session's lanes: check and increment in one transaction (C-30)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onceward.core.records import Token
from onceward.dispatch import rules
from onceward.dispatch.budget import (
    ASKED,
    LATE,
    MODE,
    SETTLED,
    Debited,
    Estimated,
    Lane,
    Refusal,
    charge,
    check_mode,
    countable,
    debits_digest,
    judge,
)
from onceward.dispatch.machine import plain
from onceward.store.port import Reads, Row
from onceward.store.tables.budgets import (
    add_debit,
    add_to_workspace,
    carry,
    debits_of_child,
    lanes_of,
    set_limit,
    spent_by,
    workspace_lanes,
)
from onceward.store.tables.children import is_terminal
from onceward.store.transaction import Transaction


def lanes(rows: Reads, session_id: str) -> dict[str, Lane]:
    """A session's lanes, to be looked at."""
    return {row[0]: Lane(*row) for row in lanes_of(rows, session_id)}


def lanes_to_write(tx: Transaction, session_id: str) -> dict[str, Lane]:
    """A session's lanes, to be counted in; refused where they are counted in a way we do not know (C-30)."""
    by_name = lanes(tx, session_id)
    for lane in by_name.values():
        check_mode(lane.mode)
    return by_name


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


def debit(tx: Transaction, token: Token, asked: Mapping[str, int]) -> Refusal | None:
    """Take amounts out of lanes before they are spent: they fit in every lane, or nothing changes."""
    rules.require_debitable(is_terminal(tx, token.child_id))
    before, whole = lanes_to_write(tx, token.parent_session_id), workspace(tx)
    for lane, amount in asked.items():
        rules.require_countable(lane, amount, countable(before.get(lane), amount))
    refusal = judge(before, asked) or judge(whole, asked, scope="workspace")
    if refusal is None:
        _add(tx, token, asked, ASKED)
    return refusal


def settle(
    tx: Transaction, token: Token, spent: Estimated, actor: str, *, late_id: str = ""
) -> None:
    """Record money that is gone. No limit, phase or wrong form refuses it (C-30). `late_id` names a report that came
    by another way than the child's own, so that it is recorded once."""
    before = lanes_to_write(tx, token.parent_session_id)
    amounts = {lane: countable(before.get(lane), amount) for lane, amount in spent.amounts.items()}
    ended = is_terminal(tx, token.child_id)
    _add(tx, token, amounts, LATE if ended else SETTLED)
    detail: dict[str, Any] = {"child_id": token.child_id, "amounts": amounts}
    if late_id:
        detail["late_id"] = late_id
    if spent.mistake:
        detail |= {"estimated": True, "mistake": plain({"said": spent.mistake})["said"]}
    if ended:
        tx.append(token.parent_stream_id, "DEBIT_LATE", actor, detail)
    elif spent.mistake:
        tx.append(token.parent_stream_id, "DEBIT_ESTIMATED", actor, detail)


def _add(tx: Transaction, token: Token, amounts: Mapping[str, int], settled: int) -> None:
    session = token.parent_session_id
    before, whole = lanes_to_write(tx, session), workspace(tx)
    for lane, amount in sorted(amounts.items()):
        if lane not in before:
            set_limit(tx, session, lane, None, MODE)
        carried = before[lane].carried if lane in before else 0
        add_debit(
            tx,
            session,
            lane,
            token.child_id,
            amount=amount,
            carried=carried,
            settled=settled,
            at=tx.now,
        )
        if lane in whole:
            add_to_workspace(tx, lane, amount)


def spent(rows: Reads, child_id: str) -> dict[str, int]:
    """What was debited for a child, by lane."""
    return {lane: amount for lane, amount in spent_by(rows, child_id).items() if amount}


def told(rows: Reads, child_id: str) -> tuple[dict[str, int], dict[str, str]]:
    """What was debited for a child, by lane, and what its last event says of the debits themselves."""
    sums: dict[str, int] = {}
    debits = [Debited(*row) for row in debits_of_child(rows, child_id)]
    for debited in debits:
        if debited.amount:
            sums[debited.lane] = sums.get(debited.lane, 0) + debited.amount
    digest = debits_digest(debits)
    return sums, ({"debits": digest} if digest else {})


def lane_of(row: Row) -> Lane | None:
    """A lane as read beside something else; None where the session has none yet."""
    return None if row[0] is None else Lane(*row)


def charge_time(tx: Transaction, token: Token, known: Lane | None, micros: int) -> int:
    """Charge a run's time, measured by us, when its end is observed; always settled. Answers the whole seconds."""
    session = token.parent_session_id
    if known is None:
        set_limit(tx, session, "duration_secs", None, MODE)
    lane = known or Lane("duration_secs", None, 0)
    check_mode(lane.mode)
    seconds, carried = charge(lane, micros)
    if seconds:
        add_debit(
            tx,
            session,
            lane.lane,
            token.child_id,
            amount=seconds,
            carried=carried,
            settled=SETTLED,
            at=tx.now,
        )
    else:
        carry(tx, session, lane.lane, carried)
    return seconds
