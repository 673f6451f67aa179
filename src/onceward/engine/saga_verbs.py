"""What may be asked of a saga's run from anywhere: giving it up (S-8)."""

from __future__ import annotations

from typing import Any

from onceward.engine import child_dispatch
from onceward.errors import InvalidResumeState, Recovery
from onceward.lifecycles import saga as rules
from onceward.store.tables.children import Tokens
from onceward.store.tables.sagas import Runs, find_lease, release_lease
from onceward.store.transaction import Transaction


def abandon(tx: Transaction, actor: str, name: str, request_id: str) -> dict[str, Any]:
    """Give a run up. One on its way stops where it is, and what it did is to be undone; one that is stuck is taken as
    it is."""
    run = Runs(tx).named(name)
    if run.over:
        raise InvalidResumeState(f"run {run.saga_id} is over: it is {run.state}", context={"saga_id": run.saga_id})
    if rules.shape_of(run).place(run.state) is not None:
        tx.move(rules.stop(run, "abandoned", actor, {"reason": "abandoned", "by": actor}))
        for token in Tokens(tx).open_in(run.saga_id):
            child_dispatch.cancel(tx, token.child_id, request_id, actor)
    elif run.stuck is not None:
        lease = find_lease(tx, run.lease)
        if lease is not None and lease.holder == run.idempotency_root:
            release_lease(tx, lease.name, lease.holder, lease.token)
            tx.append(f"saga:{run.saga_id}", "LEASE_RELEASED", actor, {"lease": lease.name, "epoch": lease.fence})
        tx.move(rules.settle(run, actor, {"left": rules.pending(run)}, given_up=True))
    else:
        raise InvalidResumeState(
            f"run {run.saga_id} is at {run.state} already, and is being undone",
            context={"saga_id": run.saga_id},
            recovery=[Recovery("go on with that", f"onceward saga resume {run.saga_id}")],
        )
    now = Runs(tx).get(run.saga_id)
    return {"saga_id": now.saga_id, "state": now.state, "settled": bool(now.settled), "undo": rules.pending(now)}
