"""The writer lock's one row (L-20)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from onceward.core.records import Tenure
from onceward.errors import OncewardError
from onceward.store.port import Reads, Writes
from onceward.store.table import WHOLE_TABLE, Table

PROCESS_NAME = "dirkernel"


class LockRow(msgspec.Struct, frozen=True):
    """Who holds the workspace; an empty token means nobody."""

    token: str
    build_id: str | None
    acquired_by_pid: int
    process_name: str
    exe_sha256: str
    acquired_at: str
    last_heartbeat_at: str
    fence: int
    hostname: str
    boot_id: str
    process_start: str

    @property
    def held(self) -> bool:
        return self.token != ""


class Beat(msgspec.Struct, frozen=True):
    """The last sign of life of a kernel, and where it stands."""

    fence: int
    boot_id: str
    steady: int
    progress: int
    machine_id: str
    root_id: str
    serves: str = ""


_PRESENT: Final = "who holds the workspace now; every event names the fence it was written under"
WRITER_LOCK: Final = Table(
    LockRow, "singleton_lock", key=("lock_id",), not_evidence={WHOLE_TABLE: _PRESENT}
)
KERNEL_BEAT: Final = Table(Beat, "kernel_beat", key=("one",), not_evidence={WHOLE_TABLE: _PRESENT})


def lock_row(rows: Reads) -> LockRow | None:
    return WRITER_LOCK.first(rows, "WHERE lock_id = 1")


def holder_mark(rows: Reads) -> str:
    """The process that holds the workspace, as `pid-start`; empty if nobody does."""
    found = lock_row(rows)
    return f"{found.acquired_by_pid}-{found.process_start}" if found and found.held else ""


def take_lock(
    tx: Writes, seen: LockRow | None, taken: LockRow, lost: Callable[[], OncewardError]
) -> None:
    """Compare-and-set: `taken` replaces exactly what was seen, or `lost`."""
    values = msgspec.structs.astuple(taken)
    if seen is None:
        tx.write(
            f"INSERT INTO singleton_lock (lock_id, {WRITER_LOCK.columns})"
            " VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (lock_id) DO NOTHING",
            values,
            lost,
        )
        return
    tx.write(
        "UPDATE singleton_lock SET token = ?, build_id = ?, acquired_by_pid = ?, process_name = ?,"
        " exe_sha256 = ?,"
        " acquired_at = ?, last_heartbeat_at = ?, fence = ?, hostname = ?, boot_id = ?, process_start = ?"
        " WHERE lock_id = 1 AND token = ? AND last_heartbeat_at = ? AND fence = ?",
        (*values, seen.token, seen.last_heartbeat_at, seen.fence),
        lost,
    )


def beat(
    tx: Writes,
    tenure: Tenure,
    exe_sha256: str,
    now: str,
    shown: tuple[str, int, int],
    lost: Callable[[], OncewardError],
) -> None:
    """Show that the tenure lives: only while the lock is still ours, and still this program's."""
    tx.write(
        "UPDATE singleton_lock SET last_heartbeat_at = ?"
        " WHERE lock_id = 1 AND token = ? AND exe_sha256 = ?",
        (now, tenure.token, exe_sha256),
        lost,
    )
    show_beat(tx, tenure.fence, shown)


def show_beat(tx: Writes, fence: int, shown: tuple[str, int, int]) -> None:
    boot_id, steady, progress = shown
    tx.write(
        "INSERT INTO kernel_beat (one, fence, boot_id, steady, progress) VALUES (1, ?, ?, ?, ?)"
        " ON CONFLICT (one)"
        " DO UPDATE SET fence = excluded.fence, boot_id = excluded.boot_id,"
        " steady = excluded.steady,"
        " progress = excluded.progress",
        (fence, boot_id, steady, progress),
    )


def show_place(tx: Writes, machine_id: str, root_id: str) -> None:
    """Record the machine and the root of the kernel that just took the lock."""
    tx.write(
        "UPDATE kernel_beat SET machine_id = ?, root_id = ?, serves = '' WHERE one = 1",
        (machine_id, root_id),
    )


def show_serving(tx: Writes, url: str) -> None:
    """Record the URL at which the kernel takes work from others."""
    tx.write("UPDATE kernel_beat SET serves = ? WHERE one = 1", (url,))


def last_beat(rows: Reads) -> Beat | None:
    return KERNEL_BEAT.first(rows, "WHERE one = 1")


def show_build(tx: Writes, fence: int, build_id: str) -> None:
    """Which build the kernel carries, while it carries one in the foreground of a command."""
    tx.write(
        "UPDATE singleton_lock SET build_id = ? WHERE lock_id = 1 AND fence = ?",
        (build_id, fence),
    )


def retire_lock(tx: Writes, token: str) -> None:
    """End a tenure for good: whatever still carries its fence can no longer be committed."""
    tx.write(
        "UPDATE singleton_lock SET token = '', build_id = NULL, fence = fence + 1"
        " WHERE lock_id = 1 AND token = ?",
        (token,),
    )


def free_lock(tx: Writes, token: str) -> None:
    """Give the lock back; the fence stays, for it only grows."""
    tx.write(
        "UPDATE singleton_lock SET token = '', build_id = NULL WHERE lock_id = 1 AND token = ?",
        (token,),
    )
