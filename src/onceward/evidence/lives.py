"""A child with everything that is recorded of it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from onceward.core.canon import canonical
from onceward.core.chain import Event
from onceward.core.records import ChildRecord
from onceward.dispatch.budget import Debited
from onceward.store.tables.budgets import DebitRow


def debited(debit: DebitRow) -> Debited:
    """A debit as the rules know it."""
    return Debited(
        lane=debit.budget_lane,
        debit_seq=debit.debit_seq,
        amount=debit.amount,
        settled=debit.settled,
        at=debit.at,
    )


def cancel_mismatch(child: ChildRecord, asked: Sequence[str]) -> str | None:
    """How a dispatched child's row differs from the requests to end it that its session's stream
    tells of.

    A child that was only queued ends in the commit of the request, and its last event names it."""
    first, later = (asked[0], asked[1:]) if asked else (None, ())
    joined = canonical(list(later)).decode() if later else None
    if child.dispatch_seq is None or (child.cancel_request_id, child.joined_request_ids) == (
        first,
        joined,
    ):
        return None
    return "who asked it to end is not what its session's events say"


class Life(msgspec.Struct, frozen=True):
    """A child, its own stream and what was debited for it."""

    child: ChildRecord
    events: list[Event]
    debits: list[Debited]
    """The debits that came before the child's end."""

    def spent(self) -> dict[str, int]:
        """By lane; a lane that nothing was taken from is left out."""
        sums: dict[str, int] = {}
        for debit in self.debits:
            if debit.amount:
                sums[debit.lane] = sums.get(debit.lane, 0) + debit.amount
        return sums
