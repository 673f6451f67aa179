"""The processes of a child when no supervisor answers for them any more: found by evidence, ended, and proven gone."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from onceward.locks.identity import Identity, boot_id, ended, start_of, stat_of

MARK = "ONCEWARD_CHILD"
"""In the environment of everything a child starts: whose it is."""
KERNEL = "ONCEWARD_KERNEL"
"""In the environment of a supervisor: whose it is."""
_AGAIN_SECONDS = 0.01
_LOOKS = 3


def kernel_mark(kernel: Identity) -> str:
    return f"{kernel.pid}-{kernel.process_start}"


def end_supervisors(kernel: Identity, seconds: float) -> list[int]:
    """Kill the supervisors that a dead kernel left, stuck or stopped, so that they hold nothing any more."""
    nobody = Identity(kernel.hostname, kernel.machine_id, kernel.boot_id, 0, "")
    return end(kernel_mark(kernel), nobody, seconds, KERNEL)


def living(name: str, leader: Identity, kind: str = MARK) -> list[int]:
    """Every process that carries the mark or belongs to the leader's session, zombies apart."""
    if leader.boot_id != boot_id():
        return []
    mark = f"{kind}={name}".encode()
    session = str(leader.pid) if _session_may_be(leader) else ""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            pid = int(entry.name)
            if _belongs(pid, session, mark) and not ended(pid):
                found.append(pid)
    return found


def end(name: str, leader: Identity, seconds: float, kind: str = MARK) -> list[int]:
    """Kill what is left until nothing is found; answers what could not be ended in time.

    One look is no proof: a process can start after the list was made, or be between two programs and show no mark."""
    deadline = time.monotonic() + seconds
    empty = 0
    while True:
        left = living(name, leader, kind)
        empty = 0 if left else empty + 1
        if empty == _LOOKS or (left and time.monotonic() > deadline):
            return left
        for pid in left:
            _kill(pid, f"{kind}={name}".encode(), leader)
        time.sleep(_AGAIN_SECONDS)


def _kill(pid: int, mark: bytes, leader: Identity) -> None:
    """Through a descriptor of the process, so that a pid reused meanwhile is not struck."""
    with suppress(OSError):
        process = os.pidfd_open(pid)
        try:
            session = str(leader.pid) if _session_may_be(leader) else ""
            if _belongs(pid, session, mark):
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
