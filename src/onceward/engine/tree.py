"""The processes of a child when no supervisor answers for them any more: found by evidence, ended, and proven gone."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from onceward.locks.identity import Identity, boot_id, ended, start_of, stat_of

MARK = "ONCEWARD_CHILD"
_AGAIN_SECONDS = 0.01


def living(name: str, leader: Identity) -> list[int]:
    """Every process that carries the child's mark or belongs to its session, zombies apart."""
    if leader.boot_id != boot_id():
        return []
    mark = f"{MARK}={name}".encode()
    session = str(leader.pid) if _session_may_be(leader) else ""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            pid = int(entry.name)
            if _belongs(pid, session, mark) and not ended(pid):
                found.append(pid)
    return found


def end(name: str, leader: Identity, seconds: float) -> list[int]:
    """Kill what is left of a child until nothing is found; answers what could not be ended in time."""
    deadline = time.monotonic() + seconds
    while True:
        left = living(name, leader)
        if not left or time.monotonic() > deadline:
            return left
        for pid in left:
            _kill(pid, name, leader)
        time.sleep(_AGAIN_SECONDS)


def _kill(pid: int, name: str, leader: Identity) -> None:
    """Through a descriptor of the process, so that a pid reused meanwhile is not struck."""
    with suppress(OSError):
        process = os.pidfd_open(pid)
        try:
            session = str(leader.pid) if _session_may_be(leader) else ""
            if _belongs(pid, session, f"{MARK}={name}".encode()):
                signal.pidfd_send_signal(process, signal.SIGKILL)
        finally:
            os.close(process)


def _session_may_be(leader: Identity) -> bool:
    """A session's number is not given again while it has members: another process of that pid means it has none."""
    return leader.pid > 0 and start_of(leader.pid) in ("", leader.process_start)


def _belongs(pid: int, session: str, mark: bytes) -> bool:
    fields = stat_of(pid)
    if fields and session and fields[3] == session:
        return True
    try:
        return mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
