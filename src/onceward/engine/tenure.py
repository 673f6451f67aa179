"""Becoming and ceasing to be the kernel of a workspace (L-20, L-21, L-23)."""

from __future__ import annotations

from onceward.errors import LockConflict, Recovery
from onceward.kernel import faults
from onceward.kernel.records import Tenure
from onceward.kernel.sources import iso
from onceward.lifecycles.build import orphan
from onceward.locks.identity import Identity, exe_sha256, judge, own_identity
from onceward.store.store import Store
from onceward.store.tables.singleton import PROCESS_NAME, LockRow, free_lock, lock_row, take_lock
from onceward.store.transaction import Transaction


def acquire(store: Store, actor: str) -> Tenure:
    """Take the writer lock and, in the same transaction, mark what its dead holder left running."""
    here = own_identity()

    def take(tx: Transaction) -> Tenure:
        seen = lock_row(tx)
        if seen is not None and seen.held:
            _require_gone(seen, here)
        fence = (seen.fence if seen else 0) + 1
        token = f"{fence}.{tx.sources.secret()}"
        now = iso(tx.now)
        mine = LockRow(
            *(token, None, here.pid, PROCESS_NAME, exe_sha256(), now, now, fence),
            *(here.hostname, here.boot_id, here.process_start),
        )
        take_lock(tx, seen, mine, lambda: LockConflict("another kernel took this workspace a moment earlier"))
        faults.point("lock.acquired")
        tx.fence = fence
        for build in tx.builds.in_state("ACTIVE"):
            tx.move(orphan(build, actor))
        faults.point("lock.recovered")
        return Tenure(token, fence)

    return store.writer.take(take)


def release(store: Store) -> None:
    """Give the writer lock back; a tenure that was lost meanwhile has nothing to give."""
    tenure = store.tenure
    if tenure is not None:
        store.write(lambda tx: free_lock(tx, tenure.token))


def holder(store: Store) -> LockRow | None:
    """Who holds the workspace now, if anybody."""
    with store.read() as rows:
        found = lock_row(rows)
    return found if found is not None and found.held else None


def vacant(store: Store) -> bool:
    """Whether nobody holds the workspace, or only somebody who is provably gone."""
    held = holder(store)
    return held is None or judge(identity_of(held), own_identity()).liveness == "dead"


def identity_of(row: LockRow) -> Identity:
    """Who wrote the lock row; it has no place for a machine id, so name and boot stand for it."""
    return Identity(row.hostname, "", row.boot_id, row.acquired_by_pid, row.process_start)


def _require_gone(seen: LockRow, here: Identity) -> None:
    verdict = judge(identity_of(seen), here)
    if verdict.liveness != "dead":
        raise LockConflict(
            f"another kernel holds this workspace: pid {seen.acquired_by_pid} on {seen.hostname}"
            f" since {seen.acquired_at} ({verdict.why})",
            context={
                "pid": seen.acquired_by_pid,
                "hostname": seen.hostname,
                "acquired_at": seen.acquired_at,
                "last_heartbeat_at": seen.last_heartbeat_at,
                "why": verdict.why,
                "reason": "held" if seen.exe_sha256 == exe_sha256() else "exe_mismatch",
            },
            recovery=[Recovery("wait for it to finish, or end it", f"kill {seen.acquired_by_pid}", "medium")],
        )
