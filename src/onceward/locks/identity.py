"""Who a process is, and whether it is provably gone."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Final, Literal

Liveness = Literal["alive", "dead", "denied"]
Kill = Callable[[int, int], None]

UNKNOWN: Final = ""
_FIRST_PID_NAMESPACE = "pid:[4026531836]"


@dataclass(frozen=True, slots=True)
class Identity:
    """A process among all processes of all boots: a pid alone is reused. A fact nobody knows is
    empty."""

    hostname: str
    machine_id: str
    boot_id: str
    pid: int
    process_start: str

    def on_machine_of(self, other: Identity) -> bool:
        """Whether a pid means the same process to both."""
        return self.hostname == other.hostname and not _differ(self.machine_id, other.machine_id)


@dataclass(frozen=True, slots=True)
class ProcessVerdict:
    """Whether a process lives, and how we know. Only `dead` is proof; everything else counts as
    alive."""

    liveness: Liveness
    why: str


def own_identity() -> Identity:
    pid = os.getpid()
    return Identity(
        hostname=socket.gethostname(),
        machine_id=machine_id(),
        boot_id=boot_id(),
        pid=pid,
        process_start=start_of(pid),
    )


def judge(holder: Identity, here: Identity, kill: Kill = os.kill) -> ProcessVerdict:
    """Whether `holder` is provably gone, judged from `here`. What cannot be proved counts as
    alive."""
    if holder.hostname != here.hostname:
        return ProcessVerdict("alive", f"it is on another machine, {holder.hostname}")
    if not holder.on_machine_of(here):
        return ProcessVerdict(
            "alive", "it is on another machine of the same name, or in another container"
        )
    if _differ(holder.boot_id, here.boot_id):
        return ProcessVerdict("dead", "this machine was restarted since")
    try:
        kill(holder.pid, 0)
    except ProcessLookupError:
        return ProcessVerdict("dead", f"there is no process {holder.pid}")
    except PermissionError:
        return ProcessVerdict("denied", f"process {holder.pid} belongs to another user")
    except (OSError, OverflowError) as error:
        return ProcessVerdict("alive", f"process {holder.pid} cannot be judged: {error}")
    # A claim that tells no start time, or another machine's, gets the benefit of the doubt.
    if holder.process_start and holder.boot_id:
        if _differ(holder.process_start, start_of(holder.pid)):
            return ProcessVerdict("dead", f"pid {holder.pid} was reused by another process since")
        if ended(holder.pid):
            return ProcessVerdict("dead", f"process {holder.pid} has ended and waits to be reaped")
    return ProcessVerdict("alive", f"process {holder.pid} is running")


def _differ(one: str, other: str) -> bool:
    """Known on both sides and not the same."""
    return UNKNOWN not in (one, other) and one != other


@lru_cache(maxsize=1)
def machine_id() -> str:
    """This machine, or this container of it: where a pid means the same process."""
    for file in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        found = _read(file)
        if found:
            break
    try:
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        namespace = _FIRST_PID_NAMESPACE
    return found if namespace == _FIRST_PID_NAMESPACE else f"{found}/{namespace}"


@lru_cache(maxsize=1)
def boot_id() -> str:
    return _read("/proc/sys/kernel/random/boot_id")


def boot_time() -> float | None:
    """When this machine was started, in seconds since 1970; None where the system does not tell."""
    # The system derives it from its clock of today, so setting the clock moves it as well.
    for line in _read("/proc/stat").splitlines():
        name, _, value = line.partition(" ")
        if name == "btime" and value.isdecimal():
            return float(value)
    return None


def start_of(pid: int) -> str:
    """When a process started, in clock ticks since boot; empty where the system does not tell."""
    fields = stat_of(pid)
    return fields[19] if fields else UNKNOWN


def ended(pid: int) -> bool:
    """A zombie, and not only one whose first thread ended before the others."""
    fields = stat_of(pid)
    return bool(fields) and fields[0] == "Z" and int(fields[17]) <= 1


def stat_of(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on: [0] state, [1] parent, [3] session, [19]
    start."""
    # The command stands in brackets and may itself hold brackets and blanks.
    return _read(f"/proc/{pid}/stat").rpartition(")")[2].split()


def _read(file: str) -> str:
    try:
        return Path(file).read_text().strip()
    except (OSError, UnicodeDecodeError):
        return UNKNOWN


@lru_cache(maxsize=1)
def exe_sha256() -> str:
    """The digest of this program: its package's files and the interpreter's version, once per
    process."""
    root = Path(__file__).resolve().parent.parent
    total = sha256(sys.version.encode())
    for file in sorted(root.rglob("*")):
        if file.suffix in (".py", ".sql"):
            total.update(
                f"{file.relative_to(root)}\0".encode() + sha256(file.read_bytes()).digest()
            )
    return total.hexdigest()
