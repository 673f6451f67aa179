"""The target lock: a file that claims one target for one dispatcher. Usable on its own."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from onceward.errors import InvalidConfig, Recovery, StorageError
from onceward.kernel import faults
from onceward.kernel.sources import LiveSources, iso
from onceward.locks.claims import (
    SUFFIX,
    Claim,
    TargetLocked,
    aged,
    check_target,
    claim_in,
    describe,
    read_claim,
    unreadable,
)
from onceward.locks.identity import Identity, Kill, Verdict, boot_id, judge, machine_id, start_of

Released = Literal["released", "not-owned", "absent"]

_GUARDS = ".guards"


class TargetLock:
    """Claims targets by files in one folder. Never steals by age; never takes from the living."""

    def __init__(
        self,
        folder: Path | str,
        *,
        now: Callable[[], str] | None = None,
        nonce: Callable[[], str] | None = None,
        pid: int | None = None,
        hostname: str | None = None,
        kill: Kill = os.kill,
    ) -> None:
        # Made absolute here: after a chdir a relative folder would be another one, with other claims.
        self.folder = Path(folder).absolute()
        self._now = now or _utc_now
        self._nonce = nonce or _random_nonce
        self._pid = pid
        self._hostname = hostname or socket.gethostname()
        self._kill = kill
        self._descriptors: dict[str, int] = {}
        self._checked = False
        self._me: Identity | None = None
        _living.add(self)

    def acquire(self, target: str) -> Claim:
        """Claim a target now, or TargetLocked with the holder's evidence. Never waits, never loops."""
        path = self.path_of(target)
        self._require_folder()
        self._yield_to_the_living(path, target)
        claim = self._new_claim(target, path)
        held = self._publish(claim)
        if held is None:
            held = self._contend(claim)
        self._descriptors[held.nonce] = held.descriptor
        return held

    def release(self, claim: Claim) -> Released:
        """Unlink our claim, if it is still ours: a successor's is never touched."""
        if claim.nonce not in self._descriptors or claim.pid != self._own_pid():
            return "not-owned"
        with self._guard(claim.target, wait=True):
            outcome = self._standing(claim)
            if outcome == "released":
                claim.path.unlink()
                faults.point("target.released")
        self.forget(claim)
        return outcome

    def _standing(self, claim: Claim) -> Released:
        """Whether the file in its place is still the one we made, and still says what we wrote."""
        try:
            there = claim.path.lstat()
        except FileNotFoundError:
            return "absent"
        descriptor = self._descriptors[claim.nonce]
        if not os.path.samestat(there, os.fstat(descriptor)):
            return "not-owned"
        found = claim_in(descriptor, claim.path, claim.target)
        return "released" if found is not None and found.nonce == claim.nonce else "not-owned"

    def forget(self, claim: Claim) -> None:
        """Close our descriptor without touching the file: the lock lives on in whoever inherited it."""
        descriptor = self._descriptors.pop(claim.nonce, None)
        if descriptor is not None:
            os.close(descriptor)

    @contextmanager
    def hold(self, target: str) -> Iterator[Claim]:
        claim = self.acquire(target)
        try:
            yield claim
        finally:
            self.release(claim)

    def path_of(self, target: str) -> Path:
        return self.folder / f"{check_target(target)}{SUFFIX}"

    def claims(self) -> Iterator[tuple[Path, Claim | None]]:
        """Every lock file and what it says."""
        for path in sorted(self.folder.glob(f"*{SUFFIX}")):
            with suppress(FileNotFoundError):
                yield path, read_claim(path, path.name.removesuffix(SUFFIX))

    def verdict(self, holder: Claim) -> Verdict:
        """Whether a holder is provably gone, its children included."""
        verdict = judge(holder.identity, self._here(), self._kill)
        if verdict.liveness == "dead" and not self._unheld(holder.path):
            return Verdict(
                "alive", f"{verdict.why}, but a child it started under the lock still lives"
            )
        return verdict

    def clear(self, target: str, nonce: str | None) -> Released:
        """Remove a claim on a person's word: only the one they saw, and never one that still lives."""
        path = self.path_of(target)
        with self._guard(target, wait=True):
            try:
                found = read_claim(path, target)
            except FileNotFoundError:
                return "absent"
            if (found.nonce if found else None) != nonce:
                return "not-owned"
            if (
                found is not None
                and self._is_here(found)
                and self.verdict(found).liveness == "alive"
            ):
                raise TargetLocked(path, found, f"{self.verdict(found).why}; end it first")
            path.unlink()
        return "released"

    def _yield_to_the_living(self, path: Path, target: str) -> None:
        """A file that is there and locked by somebody says all that a failed create would, and is cheaper to ask."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = claim_in(descriptor, path, target)
            if holder is not None:
                # It may be waiting for a processor that we would only use to ask again.
                os.sched_yield()
                raise TargetLocked(
                    path, holder, describe(holder, "a living process has it locked")
                ) from None
        finally:
            os.close(descriptor)

    def _contend(self, claim: Claim) -> Claim:
        """The target has a claim already: take it from the provably dead, or say who lives."""
        try:
            holder = read_claim(claim.path, claim.target)
        except FileNotFoundError:
            # Released between our create and our read: once more, and only once.
            return self._publish(claim) or self._lost(claim)
        if holder is None:
            raise TargetLocked(claim.path, None, unreadable(claim.path))
        if not self._unheld(claim.path):
            # Only the living keep a file locked, so nobody else needs to be asked.
            raise TargetLocked(
                claim.path, holder, describe(holder, "a living process has it locked")
            )
        verdict = judge(holder.identity, self._here(), self._kill)
        if verdict.liveness != "dead":
            raise TargetLocked(claim.path, holder, describe(holder, verdict.why))
        return self._reclaim(claim, holder)

    def _reclaim(self, claim: Claim, dead: Claim) -> Claim:
        marker = Path(f"{claim.path}.reclaim")
        with self._guard(claim.target, wait=False) as guarded:
            if not guarded:
                raise TargetLocked(
                    claim.path, dead, f"another process is reclaiming it (marker {aged(marker)})"
                )
            self._mark(marker)
            try:
                faults.point("target.marked")
                current = self._still(claim, dead)
                if not self._unheld(claim.path):
                    why = f"process {dead.pid} is gone, but a child it started under the lock still lives"
                    raise TargetLocked(claim.path, current, describe(dead, why))
                claim.path.unlink(missing_ok=True)
                faults.point("target.unlinked")
                return self._publish(claim) or self._lost(claim)
            finally:
                marker.unlink(missing_ok=True)

    def _still(self, claim: Claim, dead: Claim) -> Claim:
        """The claim we judged, read again under the marker; any other is somebody's."""
        try:
            current = read_claim(claim.path, claim.target)
        except FileNotFoundError:
            return dead
        if current is None or current.nonce != dead.nonce:
            raise TargetLocked(
                claim.path,
                current,
                describe(current, "it was just taken") if current else unreadable(claim.path),
            )
        return current

    def _lost(self, claim: Claim) -> Claim:
        """Somebody else won the gap: report the winner, honestly."""
        with suppress(FileNotFoundError):
            winner = read_claim(claim.path, claim.target)
            detail = describe(winner, "it was just taken") if winner else unreadable(claim.path)
            raise TargetLocked(claim.path, winner, detail)
        raise TargetLocked(
            claim.path, None, "another process took it and gave it back meanwhile; try again"
        )

    def _mark(self, marker: Path) -> None:
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
        with suppress(FileExistsError):
            os.close(os.open(marker, flags, 0o600))
            return
        # We hold the guard, so whoever left this marker is gone.
        marker.unlink(missing_ok=True)
        os.close(os.open(marker, flags, 0o600))

    def _publish(self, claim: Claim) -> Claim | None:
        """Put a complete, locked claim in place in one step, or None if the place is taken."""
        try:
            descriptor, name = self._fresh_file(claim)
            try:
                _write_all(descriptor, claim.line())
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                faults.point("target.written")
                # With a folder descriptor Python calls linkat, which follows the link of /proc to the file itself.
                os.link(name, claim.path, src_dir_fd=descriptor, follow_symlinks=True)
            except FileExistsError:
                os.close(descriptor)
                return None
            except BaseException:
                os.close(descriptor)
                raise
            finally:
                if not name.startswith("/proc/"):
                    Path(name).unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(
                f"cannot write a claim into {self.folder}: {error.strerror}"
            ) from error
        return Claim(**{**claim.__dict__, "descriptor": descriptor})

    def _fresh_file(self, claim: Claim) -> tuple[int, str]:
        """A file nobody sees yet, and the name to link it from."""
        try:
            descriptor = os.open(self.folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
            return descriptor, f"/proc/self/fd/{descriptor}"
        except (OSError, AttributeError) as error:
            if isinstance(error, OSError) and error.errno not in _NO_TMPFILE:
                raise
        name = f"{claim.path}.{os.getpid()}.{claim.nonce}.new"
        return os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600), name

    @contextmanager
    def _guard(self, target: str, *, wait: bool) -> Iterator[bool]:
        """The permanent guard file of a target, locked by the system: a process that dies inside frees it."""
        descriptor = os.open(
            f"{self.folder}/{_GUARDS}/{target}",
            os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW,
            0o600,
        )
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(descriptor)

    def _unheld(self, path: Path) -> bool:
        """Whether nobody has the claim's file locked: neither its holder nor a child that inherited it."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return True
        try:
            # Shared, so that two who look at the same time do not take each other for the holder.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        else:
            return True
        finally:
            os.close(descriptor)

    def _require_folder(self) -> None:
        if self._checked:
            return
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self.folder / _GUARDS).mkdir(mode=0o700, exist_ok=True)
            for folder in (self.folder, self.folder / _GUARDS):
                found = folder.lstat()
                if (
                    not stat.S_ISDIR(found.st_mode)
                    or found.st_uid != os.geteuid()
                    or found.st_mode & 0o022
                ):
                    raise InvalidConfig(
                        f"{folder} must be a folder of yours that nobody else may write in",
                        context={"folder": str(folder)},
                        recovery=[Recovery("close it to others", f"chmod 700 {folder}", "low")],
                    )
        except OSError as error:
            raise StorageError(
                f"cannot make the lock folder {self.folder}: {error.strerror}"
            ) from error
        self._checked = True

    def _new_claim(self, target: str, path: Path) -> Claim:
        me = self._here()
        return Claim(
            *(target, me.pid, me.hostname, self._now(), self._nonce(), path),
            *(me.machine_id, me.boot_id, me.process_start),
        )

    def _here(self) -> Identity:
        pid = self._own_pid()
        if self._me is None or self._me.pid != pid:
            self._me = Identity(self._hostname, machine_id(), boot_id(), pid, start_of(pid))
        return self._me

    def _is_here(self, holder: Claim) -> bool:
        here = self._here()
        return holder.hostname == here.hostname and holder.machine_id in ("", here.machine_id)

    def _own_pid(self) -> int:
        return os.getpid() if self._pid is None else self._pid

    def _disown(self) -> None:
        """In a forked copy of us: the locks stay with the parent, the descriptors go."""
        for descriptor in self._descriptors.values():
            with suppress(OSError):
                os.close(descriptor)
        self._descriptors = {}


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _utc_now() -> str:
    return iso(_live.now())


def _random_nonce() -> str:
    return _live.secret()[:32]


_NO_TMPFILE = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL)
_live = LiveSources()
_living: weakref.WeakSet[TargetLock] = weakref.WeakSet()


def _after_fork() -> None:
    for lock in list(_living):
        lock._disown()


os.register_at_fork(after_in_child=_after_fork)
