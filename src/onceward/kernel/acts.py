"""What may be asked of the kernel itself: claims cleared, deliveries made due, settings noted."""

from __future__ import annotations

from typing import Any

import msgspec

from onceward.core.acts import act, own, says
from onceward.locks.claims import check_target
from onceward.store.tables.outbox import backlogs, make_due
from onceward.store.transaction import Transaction

own("settings.note", role="operator", once=True, makes={"SETTINGS_NOTED": says("policy")})


class ClearLock(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    target: str
    claim: dict[str, Any]


@act("locks.clear", role="operator", once=True, makes={"LOCK_CLEARED": says("target")})
def clear_lock(tx: Transaction, actor: str, asked: ClearLock) -> dict[str, Any]:
    """Only the record of it: the claim is removed by the process that saw it, after this is durable."""
    check_target(asked.target)
    tx.append("workspace", "LOCK_CLEARED", actor, {"target": asked.target, "claim": asked.claim})
    return {"target": asked.target}


class Flush(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


@act(
    "outbox.flush",
    role="operator",
    path="/outbox/flush",
    operation="flushOutbox",
    summary="deliver all waiting events now",
)
def flush_outbox(tx: Transaction, actor: str, asked: Flush) -> dict[str, Any]:
    make_due(tx, tx.now)
    return {"due": sum(backlog.waiting for backlog in backlogs(tx))}
