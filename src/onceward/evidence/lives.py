"""A child with everything that is recorded of it."""

from __future__ import annotations

import msgspec

from onceward.core.chain import Event
from onceward.core.records import ChildRecord
from onceward.lifecycles.budget import Debited
from onceward.store.tables.budgets import Debit


def debited(debit: Debit) -> Debited:
    """A debit as the rules know it."""
    return Debited(debit.budget_lane, debit.debit_seq, debit.amount, debit.settled, debit.at)


class Life(msgspec.Struct, frozen=True):
    """A child, its own stream and what was debited for it."""

    child: ChildRecord
    events: list[Event]
    debits: list[Debited]
    """Those that came before its end."""

    def spent(self) -> dict[str, int]:
        """By lane; a lane that nothing was taken from is left out."""
        sums: dict[str, int] = {}
        for one in self.debits:
            if one.amount:
                sums[one.lane] = sums.get(one.lane, 0) + one.amount
        return sums
