"""The content of a lock file and how it is read: only a complete claim counts."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from onceward.errors import InvalidConfig, LockConflict, Recovery, StorageError
from onceward.locks.identity import Identity

OWNER: Final = "onceward"
SUFFIX: Final = ".lock"
_TARGET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_FIELDS = {
    "targetId": str,
    "pid": int,
    "hostname": str,
    "createdAt": str,
    "nonce": str,
    "owner": str,
    "lockPath": str,
}
_NOT_READABLE = (errno.ELOOP, errno.EACCES, errno.EPERM, errno.ENXIO, errno.ENODEV)
"""Errors of opening that say something about the file; every other one is the system's own
trouble."""


@dataclass(frozen=True)
class Claim:
    """The content of a lock file. `nonce` is the authority to release it; the rest says who
    holds it."""

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
    released_at: str = ""
    """When it was given back by a holder who could not remove the file; empty while it is held."""

    def line(self) -> bytes:
        fields = {
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
            "releasedAt": self.released_at,
        }
        present = {key: value for key, value in fields.items() if value != ""}
        return msgspec.json.encode(present) + b"\n"

    @property
    def identity(self) -> Identity:
        return Identity(
            hostname=self.hostname,
            machine_id=self.machine_id,
            boot_id=self.boot_id,
            pid=self.pid,
            process_start=self.process_start,
        )


@dataclass(frozen=True)
class LockFile:
    """A lock file as it was found. Claim, lock and status belong to the same file."""

    path: Path
    claim: Claim | None
    """None where the file is empty, damaged, another's, or no plain file."""
    held: bool
    """Whether somebody has it locked: its holder, or a child that inherited the descriptor."""
    status: os.stat_result | None
    """None where the file cannot be opened."""

    @property
    def is_folder(self) -> bool:
        return self.status is not None and stat.S_ISDIR(self.status.st_mode)

    def emptied_before(self, boot: float | None) -> bool:
        """Whether it can only be what a power cut left: an empty, unlocked file of an earlier boot.

        A claim is complete before it has its name, so no living process has an empty one."""
        if boot is None or self.status is None or self.held:
            return False
        empty = stat.S_ISREG(self.status.st_mode) and self.status.st_size == 0
        return empty and self.status.st_mtime < boot


class TargetLocked(LockConflict):
    """Somebody else has the target. `holder` is None where the file does not say who."""

    reason = "target-locked"

    def __init__(
        self, path: Path, holder: Claim | None, detail: str, recovery: Sequence[Recovery] = ()
    ) -> None:
        self.path, self.holder, self.detail = path, holder, detail
        # A step's record keeps the message alone, so it says what to type as well.
        advice = "".join(f". To {way.action}: {way.command}" for way in recovery if way.command)
        super().__init__(
            f"{path.name.removesuffix(SUFFIX)} is locked: {detail}{advice}",
            context={
                "reason": self.reason,
                "path": str(path),
                "holder": msgspec.json.decode(holder.line()) if holder else None,
            },
            recovery=recovery,
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
    """The claim in a lock file, or None where it is empty, damaged, another's, or no plain file."""
    return read_lock_file(path, target).claim


def read_lock_file(path: Path, target: str) -> LockFile:
    """A lock file with its claim and whether it is held; FileNotFoundError where there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno not in _NOT_READABLE:
            raise StorageError(f"cannot read {path}: {error.strerror}") from error
        return LockFile(path=path, claim=None, held=False, status=None)
    try:
        return LockFile(
            path=path,
            claim=claim_in(descriptor, path, target),
            held=_locked_by_somebody(descriptor),
            status=os.fstat(descriptor),
        )
    finally:
        os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Whether a process has a file locked; what cannot be looked at counts as locked."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        return _locked_by_somebody(descriptor)
    finally:
        os.close(descriptor)


def _locked_by_somebody(descriptor: int) -> bool:
    try:
        # Shared, so that two who look at the same time do not take each other for the holder.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def claim_in(descriptor: int, path: Path, target: str) -> Claim | None:
    """The claim in an open lock file."""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        fields: Any = msgspec.json.decode(os.pread(descriptor, 65_536, 0))
    except (msgspec.DecodeError, ValueError, OSError):
        return None
    if not isinstance(fields, dict) or any(
        type(fields.get(key)) is not kind for key, kind in _FIELDS.items()
    ):
        return None
    if fields["owner"] != OWNER or fields["targetId"] != target:
        return None

    def optional(key: str) -> str:
        value = fields.get(key)
        return value if isinstance(value, str) else ""

    return Claim(
        target=target,
        pid=fields["pid"],
        hostname=fields["hostname"],
        created_at=fields["createdAt"],
        nonce=fields["nonce"],
        path=path,
        machine_id=optional("machineId"),
        boot_id=optional("bootId"),
        process_start=optional("processStart"),
        released_at=optional("releasedAt"),
    )


def describe(holder: Claim, why: str) -> str:
    return (
        f"held by pid {holder.pid} on {holder.hostname} since {holder.created_at}"
        f" ({why}; file {aged(holder.path)})"
    )


def unreadable(path: Path) -> str:
    return (
        f"its file is empty, damaged or another program's ({aged(path)});"
        " it is never removed by itself"
    )


def aged(path: Path) -> str:
    try:
        written = path.lstat().st_mtime
    except OSError:
        return "gone"
    return f"written {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(written))}"
