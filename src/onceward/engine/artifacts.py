"""Artifacts: content-addressed files, written whole or not at all, verified when read (B-12)."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from onceward.errors import IntegrityFault, InvalidConfig, NotFound, OncewardError, StorageError
from onceward.kernel import faults
from onceward.kernel.limits import ARTIFACT_BYTES, ARTIFACT_INLINE_BYTES, GC_GRACE_SECONDS
from onceward.store.store import Store
from onceward.store.tables import artifacts as rows_of
from onceward.store.transaction import Transaction

_DIGEST = re.compile(r"[0-9a-f]{64}")
_PREFIX = re.compile(r"[0-9a-f]{4,64}")
_CHUNK = 1 << 18
_BATCH = 200


class Blob(msgspec.Struct, frozen=True):
    """Bytes that are safe on disk, or small enough to travel in the commit that refers to them."""

    sha256: str
    size: int
    data: bytes | None = None


class Artifacts:
    """The artifact root of a workspace."""

    def __init__(self, root: Path, store: Store, limit: int = ARTIFACT_BYTES) -> None:
        self.root, self.store, self.limit = root, store, limit

    def keep(self, data: bytes) -> Blob:
        """Make bytes durable, or ready to become so with the next commit."""
        self._require_fits(len(data))
        digest = hashlib.sha256(data).hexdigest()
        if len(data) <= ARTIFACT_INLINE_BYTES:
            return Blob(digest, len(data), data)
        self._write(digest, [data])
        return Blob(digest, len(data))

    def keep_log(self, data: bytes) -> Blob:
        """Keep what can be kept of a log: one that is too long is cut, and says so."""
        notice = b"\n[... the rest was too long to keep ...]\n"
        if len(data) > self.limit:
            data = data[: max(0, self.limit - len(notice))] + notice[: self.limit]
        return self.keep(data)

    def keep_file(self, path: Path) -> Blob:
        """Make a file's content durable, a piece at a time, whatever its size."""
        try:
            size = path.stat().st_size
            self._require_fits(size)
            if size <= ARTIFACT_INLINE_BYTES:
                return self.keep(path.read_bytes())
            total, digest = 0, hashlib.sha256()
            for piece in _pieces(path):
                digest.update(piece)
                total += len(piece)
            self._require_fits(total)
            self._write(digest.hexdigest(), _pieces(path))
        except OSError as error:
            raise StorageError(f"cannot keep {path.name}: {error.strerror}") from error
        return Blob(digest.hexdigest(), total)

    def record(self, tx: Transaction, owner: str, name: str, kind: str, blob: Blob) -> None:
        """In the commit of what made it: the artifact, and who refers to it by which name."""
        rows_of.put(tx, blob.sha256, blob.size, blob.data, tx.now)
        rows_of.refer(tx, owner, name, kind, blob.sha256, tx.now)

    def read(self, digest: str) -> Iterator[bytes]:
        """An artifact's bytes in pieces; INTEGRITY_FAULT, at the latest with the last, if they changed."""
        if not _PREFIX.fullmatch(digest):
            raise InvalidConfig(
                f"{digest[:80]!a} is not a digest or at least its first four letters", context={"field": "artifact"}
            )
        with self.store.read() as rows:
            found, size, data = rows_of.find(rows, digest)
        return self._verified(found, size, iter([data]) if data is not None else _pieces(self.path_of(found)))

    def intact(self, digest: str) -> bool:
        """Whether an artifact is there and is what it says."""
        try:
            for _ in self.read(digest):
                pass
        except OncewardError:
            return False
        return True

    def path_of(self, digest: str) -> Path:
        if not _DIGEST.fullmatch(digest):
            raise InvalidConfig(f"{digest[:80]!a} is not a digest", context={"field": "artifact"})
        return self.root / digest[:2] / digest

    def spill(self, limit: int = _BATCH) -> int:
        """Move small artifacts from their rows into files; the row copy goes only after its file is safe."""
        with self.store.read() as rows:
            waiting = rows_of.unspilled(rows, limit)
        for digest, data in waiting:
            self._write(digest, [data])
        faults.point("artifact.spilled")
        if waiting:
            self.store.write(lambda tx: rows_of.drop_copies(tx, [digest for digest, _ in waiting]))
        return len(waiting)

    def gc(self, grace: float = GC_GRACE_SECONDS) -> tuple[int, int]:
        """Remove what nobody refers to and nobody touched for a while; answers how many and how many bytes."""
        count = freed = 0
        before = self.store.sources.now() - int(grace * 1_000_000)
        after = ""
        while True:
            with self.store.read() as rows:
                page = rows_of.unreferred(rows, before, after, _BATCH)
            for digest in page:
                if self._touched(digest, grace):
                    continue
                if self.store.write(lambda tx, digest=digest: self._forget(tx, digest, grace)):  # type: ignore[misc]
                    faults.point("artifact.forgotten")
                    freed += self._remove(digest, grace)
                    count += 1
            if len(page) < _BATCH:
                break
            after = page[-1]
        for digest in self._strays(grace):
            freed += self._remove(digest, grace)
            count += 1
        return count, freed

    def _forget(self, tx: Transaction, digest: str, grace: float) -> bool:
        return not self._touched(digest, grace) and rows_of.forget(tx, digest)

    def _strays(self, grace: float) -> Iterator[str]:
        """Files without a row: written before a commit that never came."""
        for path in self.root.glob("[0-9a-f][0-9a-f]/*"):
            if _DIGEST.fullmatch(path.name) and not self._touched(path.name, grace):
                with self.store.read() as rows:
                    if not rows_of.known(rows, path.name):
                        yield path.name
        for path in self.root.glob(".new-*"):
            with suppress(OSError):
                if self._age(path) > grace:
                    path.unlink()

    def _touched(self, digest: str, grace: float) -> bool:
        """Whether somebody wrote or wanted this artifact so recently that a commit for it may still come."""
        try:
            return self._age(self.path_of(digest)) <= grace
        except OSError:
            return False

    def _age(self, path: Path) -> float:
        return self.store.sources.now() / 1_000_000 - path.stat().st_mtime

    def _remove(self, digest: str, grace: float) -> int:
        """Somebody may have wanted it again a moment ago: then its file stays for the commit that is coming."""
        path = self.path_of(digest)
        try:
            if self._touched(digest, grace):
                return 0
            size = path.stat().st_size
            path.unlink()
        except OSError:
            return 0
        return size

    def _write(self, digest: str, pieces: Sequence[bytes] | Iterator[bytes]) -> None:
        """Beside its place, synced, then moved into it, and the move synced."""
        place = self.path_of(digest)
        if self._stands(place, digest):
            return
        fresh = self.root / f".new-{os.getpid()}-{self.store.sources.new_id('tmp')}"
        try:
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                seen = hashlib.sha256()
                for piece in pieces:
                    seen.update(piece)
                    view = memoryview(piece)
                    while view:
                        view = view[os.write(descriptor, view) :]
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            if seen.hexdigest() != digest:
                raise StorageError(f"a file changed while it was kept as {digest[:12]}; try again")
            faults.point("artifact.written")
            fresh.replace(place)
            for folder in (place.parent, self.root):
                _sync(folder)
        except OSError as error:
            raise StorageError(f"cannot write an artifact into {self.root}: {error.strerror}") from error
        finally:
            with suppress(OSError):
                fresh.unlink(missing_ok=True)

    def _stands(self, place: Path, digest: str) -> bool:
        """Whether the artifact is there already, whole; wanted again, it is young again."""
        try:
            if place.is_symlink() or not place.is_file():
                return False
            os.utime(place)
            seen = hashlib.sha256()
            for piece in _pieces(place):
                seen.update(piece)
        except OSError:
            return False
        return seen.hexdigest() == digest

    def _verified(self, digest: str, size: int, pieces: Iterator[bytes]) -> Iterator[bytes]:
        seen, total = hashlib.sha256(), 0
        try:
            for piece in pieces:
                seen.update(piece)
                total += len(piece)
                yield piece
        except FileNotFoundError:
            raise NotFound(
                f"artifact {digest} is recorded, but its file is gone", context={"artifact": digest}
            ) from None
        if seen.hexdigest() != digest or total != size:
            raise IntegrityFault(
                f"artifact {digest} is not what it was: its bytes changed", context={"artifact": digest}
            )

    def _require_fits(self, size: int) -> None:
        if size > self.limit:
            raise InvalidConfig(
                f"an artifact may have {self.limit} bytes, this one has {size}; raise max_bytes under [artifacts]",
                context={"size": size, "limit": self.limit},
            )


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_CHUNK):
            yield piece


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
