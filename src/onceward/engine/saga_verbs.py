"""What may be asked of a saga's run from anywhere: giving it up (S-8)."""

from __future__ import annotations

from typing import Any

from onceward.engine import child_dispatch
from onceward.errors import InvalidResumeState
from onceward.lifecycles import saga as rules
from onceward.store.tables.children import Tokens
from onceward.store.tables.sagas import Runs, find_lease, release_lease
from onceward.store.transaction import Transaction


def abandon(tx: Transaction, actor: str, name: str, request_id: str) -> dict[str, Any]:
    """Give a run up. One on its way stops where it is, and what it did is to be undone; one at its stop is taken as it
    is, with what is not undone."""
    run = Runs(tx).named(name)
    if run.over:
        raise InvalidResumeState(
            f"run {run.saga_id} is over: it is {run.state}", context={"saga_id": run.saga_id}
        )
    working = [token.child_id for token in Tokens(tx).open_in(run.saga_id)]
    if rules.shape_of(run).place(run.state) is not None:
        tx.move(
            rules.stop(
                run, "abandoned", actor, {"reason": "abandoned", "message": f"{actor} gave it up"}
            )
        )
    else:
        lease = find_lease(tx, run.lease)
        if lease is not None and lease.holder == run.idempotency_root:
            release_lease(tx, lease.name, lease.holder, lease.token)
            tx.append(
                f"saga:{run.saga_id}",
                "LEASE_RELEASED",
                actor,
                {"lease": lease.name, "epoch": lease.fence},
            )
        tx.move(rules.settle(run, actor, {"not_undone": list(rules.remaining(run))}, given_up=True))
    for child_id in working:
        child_dispatch.cancel(tx, child_id, request_id, actor)
    now = Runs(tx).get(run.saga_id)
    said = {
        "saga_id": now.saga_id,
        "state": now.state,
        "settled": bool(now.settled),
        "at_work": bool(working),
    }
    return {**said, "undo": rules.pending(now), "not_undone": list(rules.remaining(now))}
