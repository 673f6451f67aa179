"""The target lock: a file that claims one target for one dispatcher. Usable on its own."""

from __future__ import annotations

import os
import shlex
import socket
import stat
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from onceward.core import faults
from onceward.core.sources import LiveSources, iso
from onceward.errors import InvalidConfig, Recovery, StorageError
from onceward.locks import files
from onceward.locks.claims import (
    SUFFIX,
    Claim,
    LockFile,
    TargetLocked,
    aged,
    check_target,
    claim_in,
    describe,
    read_lock_file,
    unreadable,
)
from onceward.locks.identity import (
    Identity,
    Kill,
    ProcessVerdict,
    boot_id,
    boot_time,
    judge,
    machine_id,
    start_of,
)

Released = Literal["released", "not-owned", "absent"]

GUARD_SECONDS: Final = 1.0
"""How long to wait for a guard that is normally held for microseconds: its holder may be
stopped."""


class TargetLock:
    """Claims targets by files in one folder. Never steals by age; never takes from the living.

    `in_workspace` says that the folder is a workspace's own: `onceward locks` finds it there."""

    def __init__(
        self,
        folder: Path | str,
        *,
        in_workspace: bool = False,
        now: Callable[[], str] | None = None,
        nonce: Callable[[], str] | None = None,
        pid: int | None = None,
        hostname: str | None = None,
        kill: Kill = os.kill,
    ) -> None:
        # Made absolute here: after a chdir a relative folder would be another one, with other
        # claims.
        self.folder = Path(folder).absolute()
        self._in_workspace = in_workspace
        self._now = now or _utc_now
        self._nonce = nonce or _random_nonce
        self._pid = pid
        self._hostname = hostname or socket.gethostname()
        self._kill = kill
        self._checked = False
        self._me: Identity | None = None

    def acquire(self, target: str, timeout: float = 0.0) -> Claim:
        """Claim a target, or raise TargetLocked with the holder's evidence.

        Without a timeout it neither waits nor loops. With one it tries again, at growing intervals,
        until the target is free or so many seconds have passed.

            claim = locks.acquire("catalogue.extract.a", timeout=30)
        """
        deadline, pauses = _deadline(timeout), files.pauses()
        while True:
            try:
                return self._acquire_now(target)
            except TargetLocked:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise
            time.sleep(min(next(pauses), left))

    async def acquire_async(self, target: str, timeout: float = 0.0) -> Claim:
        """`acquire` for a coroutine: the event loop goes on, and a cancelled wait keeps no
        claim."""
        import asyncio

        from onceward.locks.attempts import acquire_in_thread

        deadline, pauses = _deadline(timeout), files.pauses()
        while True:
            try:
                return await acquire_in_thread(lambda: self._acquire_now(target), self.release)
            except TargetLocked:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise
            await asyncio.sleep(min(next(pauses), left))

    @contextmanager
    def hold(self, target: str, timeout: float = 0.0) -> Iterator[Claim]:
        """Claim a target for a block of code."""
        claim = self.acquire(target, timeout)
        process = os.getpid()
        try:
            yield claim
        finally:
            self._end_hold(claim, process)

    @asynccontextmanager
    async def hold_async(self, target: str, timeout: float = 0.0) -> AsyncIterator[Claim]:
        """Claim a target for a block of a coroutine."""
        claim = await self.acquire_async(target, timeout)
        process = os.getpid()
        try:
            yield claim
        finally:
            # Not in a thread: a cancelled task could leave before the thread has begun.
            self._end_hold(claim, process)

    def _end_hold(self, claim: Claim, process: int) -> None:
        # A fork inside the block leaves it as well: the target belongs to whoever entered.
        if os.getpid() == process:
            self.release(claim)

    def release(self, claim: Claim) -> Released:
        """Give a target back, if its file still carries the claim's nonce; never touch a
        successor's.

        The claim is the authority: any object or process that was handed it may release it."""
        path = self.path_of(claim.target)
        try:
            outcome = self._remove_claim(path, claim)
        except FileNotFoundError:
            outcome = "absent"
        self.forget(claim)
        if outcome == "released":
            faults.point("target.released")
        return outcome

    def _remove_claim(self, path: Path, claim: Claim) -> Released:
        """Compare and unlink as one step: every removal of a claim happens under the guard."""
        if not _carries(path, claim):
            return "not-owned"
        with self._guard(claim.target, wait=True) as guarded:
            if not guarded:
                return self._surrender(path, claim)
            current = read_lock_file(path, claim.target).claim
            if current is None or current.nonce != claim.nonce:
                return "not-owned"
            _unlink(path)
        return "absent" if current.released_at else "released"

    def _surrender(self, path: Path, claim: Claim) -> Released:
        """Write into the claim's own file that it was given back: its place cannot be emptied now.

        A process that is stopped inside the guard may be about to unlink what it compared
        before, so unlinking beside it could hit a successor. Our own file can be written to at
        any time."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                current = claim_in(descriptor, path, claim.target)
                if current is None or current.nonce != claim.nonce:
                    return "not-owned"
                if current.released_at:
                    return "absent"
                # The new line only has more at its end, so nobody reads a mixture of both.
                os.pwrite(descriptor, replace(current, released_at=self._now()).line(), 0)
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StorageError(f"cannot write to {path}: {error.strerror}") from error
        return "released"

    def forget(self, claim: Claim) -> None:
        """Close our descriptor without touching the file: the lock lives on in whoever inherited
        it."""
        held = _held.pop((claim.path, claim.nonce), None)
        if held is not None:
            held.close()

    def path_of(self, target: str) -> Path:
        return self.folder / f"{check_target(target)}{SUFFIX}"

    def claim_files(self, target: str, owner: Identity) -> list[Path]:
        """The lock file of a target, where the claim in it is this process's; none otherwise."""
        try:
            claim = read_lock_file(self.path_of(target), target).claim
        except FileNotFoundError:
            return []
        mine = claim is not None and not claim.released_at and _same(claim.identity, owner)
        return [self.path_of(target)] if mine else []

    def claims(self) -> Iterator[tuple[Path, Claim | None]]:
        """Every lock file and what it says."""
        for file in self._lock_files():
            yield file.path, file.claim

    def inspect(self) -> Iterator[tuple[LockFile, ProcessVerdict | None]]:
        """Every lock file with a verdict on its holder; None where the file does not say who."""
        for file in self._lock_files():
            yield file, self._verdict(file)

    def _lock_files(self) -> Iterator[LockFile]:
        for path in sorted(self.folder.glob(f"*{SUFFIX}")):
            with suppress(FileNotFoundError):
                yield read_lock_file(path, path.name.removesuffix(SUFFIX))

    def verdict(self, holder: Claim) -> ProcessVerdict:
        """Whether a holder is provably gone, its children included."""
        return self._verdict_on(holder, held=not self._unheld(holder.path))

    def _verdict(self, file: LockFile) -> ProcessVerdict | None:
        if file.claim is not None:
            return self._verdict_on(file.claim, held=file.held)
        if file.held:
            return ProcessVerdict("alive", "a living process has its file locked")
        if file.emptied_before(boot_time()):
            return ProcessVerdict(
                "dead", "its file is empty and from before this machine was started: a power cut"
            )
        return None

    def _verdict_on(self, holder: Claim, *, held: bool) -> ProcessVerdict:
        if holder.released_at:
            return ProcessVerdict("dead", f"it was given back at {holder.released_at}")
        verdict = judge(holder.identity, self._here(), self._kill)
        if not held:
            return verdict
        if verdict.liveness == "dead":
            why = f"{verdict.why}, but a child it started under the lock still lives"
            return ProcessVerdict("alive", why)
        if not self._is_here(holder):
            # The system's locks do not reach other machines: another container, or another name.
            return ProcessVerdict("alive", "a living process of this machine has it locked")
        return verdict

    def clear(self, target: str, nonce: str | None) -> Released:
        """Remove a claim on a person's word: only the one they saw, and never one that still
        lives."""
        path = self.path_of(target)
        try:
            read_lock_file(path, target)
            with self._guard(target, wait=True) as guarded:
                if not guarded:
                    raise self._busy(path, None)
                file = read_lock_file(path, target)
                if _nonce(file) != nonce:
                    return "not-owned"
                self._require_clearable(file)
                _unlink(path)
        except FileNotFoundError:
            return "absent"
        return "released"

    def require_clearable(self, target: str) -> None:
        """TargetLocked for a claim that is not cleared on anybody's word."""
        with suppress(FileNotFoundError):
            self._require_clearable(read_lock_file(self.path_of(target), target))

    def _require_clearable(self, file: LockFile) -> None:
        if file.is_folder:
            raise self._conflict_with(file, None)
        verdict = self._verdict(file)
        if verdict is not None and not self._may_clear(file):
            raise self._conflict(file.path, file.claim, f"{verdict.why}; end it first")

    def _may_clear(self, file: LockFile) -> bool:
        """Whether a person's word counts: not against anybody whom this machine can see alive."""
        if file.claim is None:
            return not file.held and not file.is_folder
        if file.claim.released_at:
            return True
        verdict = judge(file.claim.identity, self._here(), self._kill)
        lives_here = verdict.liveness == "alive" and self._is_here(file.claim)
        return not file.held and not lives_here

    def _acquire_now(self, target: str) -> Claim:
        path = self.path_of(target)
        self._require_folder()
        self._yield_to_the_living(path, target)
        claim = self._new_claim(target, path)
        return self._publish(claim) or self._contend(claim)

    def _yield_to_the_living(self, path: Path, target: str) -> None:
        """A file that is there and locked by somebody says all that a failed create would, and
        is cheaper to ask."""
        try:
            file = read_lock_file(path, target)
        except FileNotFoundError:
            return
        if file.held and file.claim is not None and not file.claim.released_at:
            # It may be waiting for a processor that we would only use to ask again.
            os.sched_yield()
            raise self._locked_by_the_living(file)

    def _contend(self, claim: Claim) -> Claim:
        """The target has a claim already: take it from the provably dead, or say who lives."""
        try:
            file = read_lock_file(claim.path, claim.target)
        except FileNotFoundError:
            # Released between our create and our read: once more, and only once.
            return self._publish(claim) or self._lost(claim)
        given_back = file.claim is not None and file.claim.released_at
        if file.held and not given_back:
            # Only the living keep a file locked, so nobody else needs to be asked.
            raise self._locked_by_the_living(file)
        verdict = self._verdict(file)
        if verdict is not None and verdict.liveness == "dead":
            return self._reclaim(claim, file)
        raise self._conflict_with(file, verdict)

    def _reclaim(self, claim: Claim, dead: LockFile) -> Claim:
        """Remove a dead claim under the guard, then create ours: another may win the gap."""
        with self._guard(claim.target, wait=False) as guarded:
            if not guarded:
                raise self._busy(claim.path, dead.claim)
            with self._marked(claim.path, dead.claim):
                faults.point("target.marked")
                self._remove_dead(claim.path, claim.target, dead)
        # Outside the guard: a process that is stopped in the gap holds up nobody.
        faults.point("target.unlinked")
        return self._publish(claim) or self._lost(claim)

    def _remove_dead(self, path: Path, target: str, dead: LockFile) -> None:
        """Unlink the claim we judged, read again under the marker; any other is somebody's."""
        try:
            current = read_lock_file(path, target)
        except FileNotFoundError:
            # Nothing to remove; whoever takes the empty place now must not lose it to our unlink.
            return
        if current.claim is None and not current.emptied_before(boot_time()):
            raise self._conflict_with(current, None)
        if _nonce(current) != _nonce(dead):
            raise self._taken(current)
        verdict = self._verdict(current)
        if verdict is None or verdict.liveness != "dead":
            raise self._conflict_with(current, verdict)
        with suppress(FileNotFoundError):
            _unlink(path)

    @contextmanager
    def _marked(self, path: Path, dead: Claim | None) -> Iterator[None]:
        """The seed's marker, for those who look at the folder; the guard is what excludes
        others."""
        marker = Path(f"{path}.reclaim")
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
        try:
            try:
                os.close(os.open(marker, flags, 0o600))
            except FileExistsError:
                if not marker.is_symlink() and marker.is_dir():
                    raise self._folder_in_the_way(path, marker, dead) from None
                # We hold the guard, so whoever left this marker is gone.
                marker.unlink(missing_ok=True)
                os.close(os.open(marker, flags, 0o600))
        except OSError as error:
            raise StorageError(f"cannot make the marker {marker}: {error.strerror}") from error
        try:
            yield
        finally:
            with suppress(OSError):
                marker.unlink(missing_ok=True)

    def _lost(self, claim: Claim) -> Claim:
        """Another process took the target in between: report its claim."""
        with suppress(FileNotFoundError):
            raise self._taken(read_lock_file(claim.path, claim.target))
        raise self._conflict(
            claim.path, None, "another process took it and gave it back meanwhile; try again"
        )

    def _taken(self, file: LockFile) -> TargetLocked:
        if file.claim is None:
            return self._conflict_with(file, None)
        return self._conflict(file.path, file.claim, describe(file.claim, "it was just taken"))

    def _locked_by_the_living(self, file: LockFile) -> TargetLocked:
        if file.claim is None:
            return self._conflict(file.path, None, unreadable(file.path))
        detail = describe(file.claim, "a living process has it locked")
        return self._conflict(file.path, file.claim, detail)

    def _conflict_with(self, file: LockFile, verdict: ProcessVerdict | None) -> TargetLocked:
        if file.is_folder:
            return self._folder_in_the_way(file.path, file.path, None)
        if file.claim is None or verdict is None:
            detail = unreadable(file.path)
        else:
            detail = describe(file.claim, verdict.why)
        if not self._may_clear(file):
            return self._conflict(file.path, file.claim, detail)
        action = "remove it, if nobody works under it"
        clear = Recovery(action, self._command("clear", file.path), "medium")
        return self._conflict(file.path, file.claim, detail, clear)

    def _folder_in_the_way(self, path: Path, folder: Path, holder: Claim | None) -> TargetLocked:
        remove = Recovery("remove it", f"rmdir {shlex.quote(str(folder))}", "low")
        return self._conflict(path, holder, f"{folder} is a folder; Onceward made none", remove)

    def _busy(self, path: Path, holder: Claim | None) -> TargetLocked:
        marker = aged(Path(f"{path}.reclaim"))
        return self._conflict(path, holder, f"another process is reclaiming it (marker {marker})")

    def _conflict(
        self, path: Path, holder: Claim | None, detail: str, *ways: Recovery
    ) -> TargetLocked:
        show = Recovery("see the claim", self._command("show", path))
        return TargetLocked(path, holder, detail, [show, *ways])

    def _command(self, verb: str, path: Path) -> str:
        where = "" if self._in_workspace else f" --folder {shlex.quote(str(self.folder))}"
        return f"onceward locks {verb} {path.name.removesuffix(SUFFIX)}{where}"

    def _publish(self, claim: Claim) -> Claim | None:
        """Put a complete, locked claim in place in one step, or None if the place is taken."""
        try:
            descriptor = files.place(claim.path, claim.line())
        except OSError as error:
            raise StorageError(
                f"cannot write a claim into {self.folder}: {error.strerror}"
            ) from error
        if descriptor is None:
            return None
        held = replace(claim, descriptor=descriptor)
        _held[held.path, held.nonce] = _Held.of(descriptor)
        return held

    def _guard(self, target: str, *, wait: bool) -> AbstractContextManager[bool]:
        """The guard of a target; yields whether we have it."""
        return files.guard(self.folder, target, GUARD_SECONDS if wait else 0.0)

    def _unheld(self, path: Path) -> bool:
        """Whether nobody has the claim's file locked: neither its holder nor a child that
        inherited it."""
        try:
            return not read_lock_file(path, path.name.removesuffix(SUFFIX)).held
        except FileNotFoundError:
            return True

    def _require_folder(self) -> None:
        if self._checked:
            return
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self.folder / files.GUARDS).mkdir(mode=0o700, exist_ok=True)
            for folder in (self.folder, self.folder / files.GUARDS):
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
            files.sweep(self.folder)
        except OSError as error:
            raise StorageError(
                f"cannot make the lock folder {self.folder}: {error.strerror}"
            ) from error
        self._checked = True

    def _new_claim(self, target: str, path: Path) -> Claim:
        me = self._here()
        return Claim(
            target=target,
            pid=me.pid,
            hostname=me.hostname,
            created_at=self._now(),
            nonce=self._nonce(),
            path=path,
            machine_id=me.machine_id,
            boot_id=me.boot_id,
            process_start=me.process_start,
        )

    def _here(self) -> Identity:
        pid = self._own_pid()
        if self._me is None or self._me.pid != pid:
            self._me = Identity(
                hostname=self._hostname,
                machine_id=machine_id(),
                boot_id=boot_id(),
                pid=pid,
                process_start=start_of(pid),
            )
        return self._me

    def _is_here(self, holder: Claim) -> bool:
        here = self._here()
        return holder.hostname == here.hostname and holder.machine_id in ("", here.machine_id)

    def _own_pid(self) -> int:
        return os.getpid() if self._pid is None else self._pid


@dataclass(frozen=True, slots=True)
class _Held:
    """The descriptor of a claim that this process holds, and the file it was opened on."""

    descriptor: int
    status: os.stat_result

    @classmethod
    def of(cls, descriptor: int) -> _Held:
        return cls(descriptor, os.fstat(descriptor))

    def close(self) -> None:
        # Whoever was handed the descriptor may have closed it, and its number may be another's now.
        with suppress(OSError):
            if os.path.samestat(os.fstat(self.descriptor), self.status):
                os.close(self.descriptor)


def _unlink(path: Path) -> None:
    try:
        path.unlink()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StorageError(f"cannot remove {path}: {error.strerror}") from error


def _same(one: Identity, other: Identity) -> bool:
    return (one.boot_id, one.pid, one.process_start) == (
        other.boot_id,
        other.pid,
        other.process_start,
    )


def _carries(path: Path, claim: Claim) -> bool:
    current = read_lock_file(path, claim.target).claim
    return current is not None and current.nonce == claim.nonce


def _nonce(file: LockFile) -> str | None:
    return file.claim.nonce if file.claim else None


def _deadline(timeout: float) -> float:
    if not isinstance(timeout, int | float) or not timeout >= 0:
        raise InvalidConfig(
            f"timeout is a number of seconds, 0 or more; not {timeout!r}",
            context={"field": "timeout"},
        )
    return time.monotonic() + timeout


def _utc_now() -> str:
    return iso(_live.now())


def _random_nonce() -> str:
    return _live.secret()[:32]


_live = LiveSources()
_held: dict[tuple[Path, str], _Held] = {}
"""The claims of this process by path and nonce, whichever object acquired them."""


def _after_fork() -> None:
    """In a forked copy of us: the locks stay with the parent, the descriptors go."""
    for held in list(_held.values()):
        held.close()
    _held.clear()


os.register_at_fork(after_in_child=_after_fork)
