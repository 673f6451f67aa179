"""What a lock file says, and how it is read: a claim is believed only where it is whole."""

from __future__ import annotations

import os
import re
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from onceward.errors import InvalidConfig, LockConflict, Recovery
from onceward.locks.identity import Identity

OWNER: Final = "onceward"
SUFFIX: Final = ".lock"
_TARGET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_EXTRA = ("machineId", "bootId", "processStart")
_FIELDS = {
    "targetId": str,
    "pid": int,
    "hostname": str,
    "createdAt": str,
    "nonce": str,
    "owner": str,
    "lockPath": str,
}


@dataclass(frozen=True)
class Claim:
    """What a lock file says. `nonce` is the authority to release it; the rest tells who to ask."""

    target: str
    pid: int
    hostname: str
    created_at: str
    nonce: str
    path: Path
    machine_id: str = ""
    boot_id: str = ""
    process_start: str = ""
    descriptor: int = -1
    """The open, locked file of a claim we hold; hand it to the child that works under it."""

    def line(self) -> bytes:
        said = {
            "targetId": self.target,
            "pid": self.pid,
            "hostname": self.hostname,
            "createdAt": self.created_at,
            "nonce": self.nonce,
            "owner": OWNER,
            "lockPath": str(self.path),
            "machineId": self.machine_id,
            "bootId": self.boot_id,
            "processStart": self.process_start,
        }
        return (
            msgspec.json.encode({key: value for key, value in said.items() if value != ""}) + b"\n"
        )

    @property
    def identity(self) -> Identity:
        return Identity(self.hostname, self.machine_id, self.boot_id, self.pid, self.process_start)


class TargetLocked(LockConflict):
    """Somebody else has the target. `holder` is None where the file does not say who."""

    reason = "target-locked"

    def __init__(self, path: Path, holder: Claim | None, detail: str) -> None:
        self.path, self.holder, self.detail = path, holder, detail
        super().__init__(
            f"{path.name.removesuffix(SUFFIX)} is locked: {detail}",
            context={
                "reason": self.reason,
                "path": str(path),
                "holder": msgspec.json.decode(holder.line()) if holder else None,
            },
            recovery=[
                Recovery(
                    "see who holds it", f"onceward locks show {path.name.removesuffix(SUFFIX)}"
                ),
            ],
        )


def check_target(target: str) -> str:
    """A target's id, refused before any path is built of it."""
    if not isinstance(target, str) or not _TARGET.fullmatch(target) or ".." in target:
        raise InvalidConfig(
            f"{str(target)[:60]!r} is not a target id: 1 to 128 letters, digits, '.', '_' or '-',"
            " beginning with a letter or digit, without '..'",
            context={"field": "target"},
        )
    return target


def read_claim(path: Path, target: str) -> Claim | None:
    """What a lock file says, or None where it is empty, damaged, another's, or no plain file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except OSError:
        return None
    try:
        return claim_in(descriptor, path, target)
    finally:
        os.close(descriptor)


def claim_in(descriptor: int, path: Path, target: str) -> Claim | None:
    """What an open lock file says."""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        said: Any = msgspec.json.decode(os.pread(descriptor, 65_536, 0))
    except (msgspec.DecodeError, ValueError, OSError):
        return None
    if not isinstance(said, dict) or any(
        type(said.get(key)) is not kind for key, kind in _FIELDS.items()
    ):
        return None
    if said["owner"] != OWNER or said["targetId"] != target:
        return None
    machine, boot, start = (said[key] if type(said.get(key)) is str else "" for key in _EXTRA)
    return Claim(
        *(target, said["pid"], said["hostname"], said["createdAt"], said["nonce"], path),
        machine,
        boot,
        start,
    )


def describe(holder: Claim, why: str) -> str:
    return f"held by pid {holder.pid} on {holder.hostname} since {holder.created_at} ({why}; file {aged(holder.path)})"


def unreadable(path: Path) -> str:
    return f"its file is empty, damaged or another program's ({aged(path)}); it is never removed by itself"


def aged(path: Path) -> str:
    try:
        written = path.lstat().st_mtime
    except OSError:
        return "gone"
    return f"written {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(written))}"
