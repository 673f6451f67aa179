"""Becoming and ceasing to be the kernel of a workspace (L-20, L-21, L-23)."""

from __future__ import annotations

from onceward.core import faults
from onceward.core.records import Tenure
from onceward.core.sources import Micros, from_iso, iso, steady_micros
from onceward.errors import LockConflict, Recovery
from onceward.kernel.parts import PARTS
from onceward.locks.identity import (
    Identity,
    ProcessVerdict,
    boot_id,
    exe_sha256,
    judge,
    own_identity,
)
from onceward.locks.program import runs_another_program
from onceward.locks.writer import TenureStatus, judge_tenure
from onceward.store.port import Reads
from onceward.store.store import Store
from onceward.store.tables.children import note_last_seen
from onceward.store.tables.singleton import (
    PROCESS_NAME,
    Beat,
    LockRow,
    free_lock,
    last_beat,
    lock_row,
    show_beat,
    show_place,
    show_serving,
    take_lock,
)
from onceward.store.transaction import Transaction


def acquire(
    store: Store,
    actor: str,
    ttl_seconds: float | None = None,
    root_id: str = "",
    here: Identity | None = None,
) -> Tenure:
    """Take the writer lock and, in the same transaction, mark what its dead holder left running.

    `root_id` is the mark of our artifact root: taking over from another machine needs the root of its kernel."""
    here = here or own_identity()
    ttl = store.lock_ttl if ttl_seconds is None else ttl_seconds

    def take(tx: Transaction) -> Tenure:
        seen = lock_row(tx)
        if seen is not None and seen.held:
            _require_gone(seen, standing(tx, seen, tx.now, ttl, here))
            _require_root(seen, last_beat(tx), here, root_id)
        fence = (seen.fence if seen else 0) + 1
        token = f"{fence}.{tx.sources.secret()}"
        now = iso(tx.now)
        mine = LockRow(
            *(token, None, here.pid, PROCESS_NAME, exe_sha256(), now, now, fence),
            *(here.hostname, here.boot_id, here.process_start),
        )
        take_lock(
            tx,
            seen,
            mine,
            lambda: LockConflict("another kernel took this workspace a moment earlier"),
        )
        show_beat(tx, fence, (here.boot_id, steady_micros(), 0))
        show_place(tx, here.machine_id, root_id)
        faults.point("lock.acquired")
        tx.fence = fence
        if seen is not None:
            note_last_seen(tx, fence, from_iso(seen.last_heartbeat_at))
        PARTS.orphan(tx, actor)
        faults.point("lock.recovered")
        return Tenure(token, fence)

    return store.writer.take(take)


def crash_active(store: Store, actor: str) -> None:
    """Move what was not brought to its end to CRASHED, with the lock still held; a lost tenure moves nothing."""
    if store.tenure is not None:
        store.write(lambda tx: PARTS.crash(tx, actor))


def release(store: Store, actor: str) -> None:
    """Give the writer lock back, and with it what was not brought to its end; a lost tenure has nothing to give."""
    tenure = store.tenure
    if tenure is None:
        return

    def give(tx: Transaction) -> None:
        PARTS.crash(tx, actor)
        free_lock(tx, tenure.token)

    store.write(give)


def require_nobody(store: Store) -> None:
    """LOCK_CONFLICT if a kernel may live: its schema must not change under it. Works on older schemas too."""
    with store.read() as rows:
        seen = lock_row(rows) if "singleton_lock" in store.database.tables(rows) else None
    if seen is not None and seen.held:
        verdict = _judge(seen, None, own_identity())
        _require_gone(seen, TenureStatus(verdict.liveness != "dead", verdict.why))


def holder(store: Store) -> LockRow | None:
    """Who holds the workspace now, if anybody."""
    with store.read() as rows:
        found = lock_row(rows)
    return found if found is not None and found.held else None


def vacant(store: Store) -> bool:
    """Whether nobody holds the workspace, or only somebody who is provably gone."""
    with store.read() as rows:
        held = lock_row(rows)
        return (
            held is None
            or not held.held
            or not standing(rows, held, rows.now(), store.lock_ttl).stands
        )


def show_where(tx: Transaction, url: str) -> None:
    """Where this kernel takes work from others."""
    show_serving(tx, url)


def serving(store: Store) -> str:
    """Where the kernel that lives takes work from others; empty if none does."""
    with store.read() as rows:
        held, shown = lock_row(rows), last_beat(rows)
        if (
            held is None
            or not held.held
            or shown is None
            or shown.fence != held.fence
            or not shown.serves
        ):
            return ""
        stands = standing(rows, held, rows.now(), store.lock_ttl).stands
        return shown.serves if stands else ""


def standing(
    rows: Reads,
    held: LockRow,
    now: Micros,
    ttl_seconds: float,
    here: Identity | None = None,
) -> TenureStatus:
    """Whether a holder's tenure stands. Its silence is measured on the machine's steady clock where both are of one
    boot, so that setting the wall clock moves nothing; elsewhere on the store's clock."""
    shown = last_beat(rows)
    if (
        shown is not None
        and shown.fence == held.fence
        and shown.boot_id
        and shown.boot_id == boot_id()
    ):
        silent = steady_micros() - shown.steady
    else:
        silent = now - from_iso(held.last_heartbeat_at)
    here = here or own_identity()
    return judge_tenure(_judge(held, shown, here), silent, int(ttl_seconds * 1_000_000))


def _judge(held: LockRow, shown: Beat | None, here: Identity) -> ProcessVerdict:
    """Whether a holder is provably gone: its process is, or it executed another program since."""
    who = identity_of(held, shown)
    verdict = judge(who, here)
    here_and_known = who.boot_id and who.process_start and who.on_machine_of(here)
    # What another version of this program looks like from outside is not known here, so it proves nothing.
    comparable = here_and_known and held.exe_sha256 == exe_sha256()
    if verdict.liveness == "alive" and comparable and runs_another_program(who.pid):
        return ProcessVerdict("dead", f"process {who.pid} runs another program now")
    return verdict


def identity_of(row: LockRow, shown: Beat | None = None) -> Identity:
    """Who wrote the lock row; its machine id stands beside it."""
    machine = shown.machine_id if shown is not None and shown.fence == row.fence else ""
    return Identity(row.hostname, machine, row.boot_id, row.acquired_by_pid, row.process_start)


def _require_root(seen: LockRow, shown: Beat | None, here: Identity, root_id: str) -> None:
    """What a kernel elsewhere left in its artifact root must be in reach of its heir."""
    there = identity_of(seen, shown)
    if there.on_machine_of(here):
        return
    if not root_id or shown is None or shown.root_id != root_id:
        raise LockConflict(
            f"the kernel on {seen.hostname} sends no heartbeat, but its artifacts cannot be reached: this workspace's folder"
            " here is not the one it used",
            context={
                "reason": "artifact_root",
                "hostname": seen.hostname,
                "acquired_at": seen.acquired_at,
            },
            recovery=[Recovery("run it where that folder is mounted, or on that machine")],
        )


def _require_gone(seen: LockRow, standing: TenureStatus) -> None:
    if standing.stands:
        raise LockConflict(
            f"another kernel holds this workspace: pid {seen.acquired_by_pid} on {seen.hostname}"
            f" since {seen.acquired_at} ({standing.why})",
            context={
                "pid": seen.acquired_by_pid,
                "hostname": seen.hostname,
                "acquired_at": seen.acquired_at,
                "last_heartbeat_at": seen.last_heartbeat_at,
                "why": standing.why,
                "build_id": seen.build_id,
                "reason": "held" if seen.exe_sha256 == exe_sha256() else "exe_mismatch",
            },
            recovery=[
                Recovery("see what it runs", "onceward status"),
                Recovery(
                    "wait for it to finish, or end it", f"kill {seen.acquired_by_pid}", "medium"
                ),
            ],
        )
