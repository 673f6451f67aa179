"""What a person's decision about a step becomes."""

from __future__ import annotations

from onceward.core.canon import canonical
from onceward.store.tables.approvals import Approval
from onceward.store.tables.checkpoints import Checkpoint


def decided(approval: Approval) -> Checkpoint:
    """The checkpoint of a step that a person approved or refused."""
    approved = approval.decision == "approved"
    why = f"refused by {approval.actor}{f': {approval.note}' if approval.note else ''}"
    error = canonical({"reason": "refused", "message": why}).decode()
    return Checkpoint(
        build_id=approval.build_id,
        stage=approval.stage,
        target=approval.target,
        context_hash=approval.digest,
        status="SUCCESS" if approved else "FAILED",
        how="approved",
        outputs="[]",
        cost=0,
        tokens=0,
        attempt=1,
        child_id=None,
        origin=None,
        error=None if approved else error,
    )
