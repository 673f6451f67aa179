"""Who a process is, and whether it is provably gone."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Literal

Liveness = Literal["alive", "dead", "denied"]


@dataclass(frozen=True, slots=True)
class Identity:
    """A process among all processes of all boots: a pid alone is reused."""

    hostname: str
    boot_id: str
    pid: int
    process_start: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a process lives, and how we know. Only `dead` is proof; everything else counts as alive."""

    liveness: Liveness
    why: str


def own_identity() -> Identity:
    pid = os.getpid()
    return Identity(socket.gethostname(), boot_id(), pid, start_of(pid) or "unknown")


def judge(holder: Identity, here: Identity) -> Verdict:
    """Whether `holder` is provably gone, judged from this machine."""
    if holder.hostname != here.hostname:
        return Verdict("alive", f"it is on another machine, {holder.hostname}")
    if "unknown" not in (holder.boot_id, here.boot_id) and holder.boot_id != here.boot_id:
        return Verdict("dead", "this machine was restarted since")
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return Verdict("dead", f"there is no process {holder.pid}")
    except PermissionError:
        return Verdict("denied", f"process {holder.pid} belongs to another user")
    except OSError as error:
        return Verdict("alive", f"process {holder.pid} cannot be judged: {error.strerror}")
    if state_of(holder.pid) == "Z":
        return Verdict("dead", f"process {holder.pid} has ended and waits to be reaped")
    started = start_of(holder.pid)
    if started is not None and "unknown" not in (holder.process_start,) and started != holder.process_start:
        return Verdict("dead", f"pid {holder.pid} was reused by another process since")
    return Verdict("alive", f"process {holder.pid} is running")


@lru_cache(maxsize=1)
def boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


def start_of(pid: int) -> str | None:
    """When a process started, in clock ticks since boot; None where the system does not tell."""
    fields = _stat(pid)
    return fields[19] if fields else None


def state_of(pid: int) -> str | None:
    fields = _stat(pid)
    return fields[0] if fields else None


def _stat(pid: int) -> list[str] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The command stands in brackets and may itself hold brackets and blanks.
    return text.rpartition(")")[2].split()


@lru_cache(maxsize=1)
def exe_sha256() -> str:
    """The digest of this program: its package's files and the interpreter's version, once per process."""
    root = Path(__file__).resolve().parent.parent
    total = sha256(sys.version.encode())
    for file in sorted(root.rglob("*")):
        if file.suffix in (".py", ".sql"):
            total.update(f"{file.relative_to(root)}\0".encode() + sha256(file.read_bytes()).digest())
    return total.hexdigest()
