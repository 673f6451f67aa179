"""Artifacts: content-addressed files, written whole or not at all, verified when read (B-12)."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from onceward.artifacts.redaction import Redactor
from onceward.core import faults
from onceward.core.durable import sync_all, sync_folder
from onceward.core.limits import (
    ARTIFACT_BYTES,
    ARTIFACT_INLINE_BYTES,
    GC_GRACE_SECONDS,
    SPILL_BYTES,
)
from onceward.errors import IntegrityFault, InvalidConfig, NotFound, OncewardError, StorageError
from onceward.store.port import Row
from onceward.store.store import Store
from onceward.store.tables import artifacts as rows_of
from onceward.store.transaction import Transaction

_DIGEST = re.compile(r"[0-9a-f]{64}")
_PREFIX = re.compile(r"[0-9a-f]{4,64}")
_CHUNK = 1 << 18
_BATCH = 500
_SPILL = 1000


class Blob(msgspec.Struct, frozen=True):
    """Bytes that are safe on disk, or small enough to travel in the commit that refers to them."""

    sha256: str
    size: int
    data: bytes | None = None
    mark: str | None = None
    """The metadata of its file when its content was verified."""
    fileless: bool = False
    """Whether there is no file of it."""


class Artifacts:
    """The artifact root of a workspace."""

    def __init__(self, root: Path, store: Store, limit: int = ARTIFACT_BYTES) -> None:
        self.root, self.store, self.limit = root, store, limit
        self._root = str(root)
        self.added = 0
        """Bytes that went into rows since somebody last looked."""

    def keep(self, data: bytes, *, limited: bool = True) -> Blob:
        """Make bytes durable, or ready to become so with the next commit."""
        if limited:
            self._require_fits(len(data))
        digest = hashlib.sha256(data).hexdigest()
        if len(data) <= ARTIFACT_INLINE_BYTES:
            return Blob(digest, len(data), data, fileless=not os.path.exists(self._place(digest)))  # noqa: PTH110
        return self._write([data], limited=limited)

    def keep_log(self, data: bytes) -> Blob:
        """Keep what can be kept of a log: one that is too long is cut, and says so."""
        notice = b"\n[... the rest was too long to keep ...]\n"
        if len(data) > self.limit:
            data = data[: max(0, self.limit - len(notice))] + notice[: self.limit]
        return self.keep(data)

    def keep_file(
        self, path: Path, redactor: Redactor | None = None, *, limited: bool = True
    ) -> Blob:
        """Make a file's content durable, a piece at a time, whatever its size; without the
        secrets of a redactor."""
        try:
            size = path.stat().st_size
            if limited:
                self._require_fits(size)
            if size <= ARTIFACT_INLINE_BYTES:
                data = b"".join(_readable(path))
                return self.keep(redactor.clean(data) if redactor else data, limited=limited)
            pieces = _cleaned(path, redactor) if redactor else _readable(path)
            return self._write(pieces, limited=limited)
        except OSError as error:
            raise StorageError(f"cannot keep {path.name}: {error.strerror}") from error

    def record(self, tx: Transaction, owner: str, name: str, kind: str, blob: Blob) -> None:
        """In the commit of what made it: the artifact, and who refers to it by which name."""
        self.added += len(blob.data) if blob.data is not None else 0
        rows_of.put(
            tx,
            sha256=blob.sha256,
            size=blob.size,
            data=blob.data,
            mark=blob.mark,
            now=tx.now,
            fileless=blob.fileless,
        )
        rows_of.refer(tx, owner=owner, name=name, kind=kind, sha256=blob.sha256, now=tx.now)

    def read(self, digest: str) -> Iterator[bytes]:
        """An artifact's bytes in pieces; INTEGRITY_FAULT, at the latest with the last, if they
        changed."""
        if not _PREFIX.fullmatch(digest):
            raise InvalidConfig(
                f"{digest[:80]!a} is not a digest or at least its first four letters",
                context={"field": "artifact"},
            )
        with self.store.read() as rows:
            found, size, data = rows_of.find(rows, digest)
        return self._verified(
            found, size, iter([data]) if data is not None else _pieces(self.path_of(found))
        )

    def found(self, digest: str) -> tuple[str, int]:
        """The whole digest of the one artifact that is meant, and how many bytes it has."""
        if not _PREFIX.fullmatch(digest):
            raise InvalidConfig(
                f"{digest[:80]!a} is not a digest or at least its first four letters",
                context={"field": "artifact"},
            )
        with self.store.read() as rows:
            return rows_of.find(rows, digest)[:2]

    def intact(self, digest: str) -> bool:
        """Whether an artifact is there and is what it says."""
        try:
            for _ in self.read(digest):
                pass
        except OncewardError:
            return False
        return True

    def broken(self, digests: Sequence[str], *, note: bool = True) -> set[str]:
        """Those of many artifacts that are not there or not what they say. A file that nobody
        touched since it was last verified is not read again (B-4); one that was read, and is
        whole, is marked so."""
        found: set[str] = set()
        marks: dict[str, str] = {}
        for start in range(0, len(digests), _BATCH):
            batch = digests[start : start + _BATCH]
            with self.store.read() as rows:
                known = rows_of.find_many(rows, batch)
            for digest in batch:
                row = known.get(digest)
                if row is None or not self._whole(digest, row, marks):
                    found.add(digest)
        if note and (found or marks):
            self.store.write(
                lambda tx: rows_of.set_marks(tx, {**dict.fromkeys(found, rows_of.BAD), **marks})
            )
        return found

    def _whole(self, digest: str, row: Row, marks: dict[str, str]) -> bool:
        _, _, data, mark = row
        if data is not None:
            return hashlib.sha256(data).hexdigest() == digest
        try:
            now = _mark(self._place(digest))
        except OSError:
            return False
        if now == mark:
            return True
        if not self.intact(digest):
            return False
        marks[digest] = now
        return True

    def _place(self, digest: str) -> str:
        """The path of a digest that we made, or that a row holds."""
        return f"{self._root}/{digest[:2]}/{digest}"

    def path_of(self, digest: str) -> Path:
        if not _DIGEST.fullmatch(digest):
            raise InvalidConfig(f"{digest[:80]!a} is not a digest", context={"field": "artifact"})
        return self.root / digest[:2] / digest

    def make_room(self, most: int = SPILL_BYTES) -> int:
        """Move small artifacts into files if their rows hold more bytes than they should."""
        self.added = 0
        with self.store.read() as rows:
            held = rows_of.bytes_in_rows(rows)
        return self.spill() if held > most else 0

    def spill(self) -> int:
        """Move every small artifact from its row into a file; the row copy goes only after its
        file is safe. One sync serves many."""
        moved = 0
        while True:
            with self.store.read() as rows:
                waiting = rows_of.unspilled(rows, _SPILL)
            if not waiting:
                return moved
            self._spill(waiting)
            moved += len(waiting)

    def _spill(self, waiting: Sequence[Row]) -> None:
        marks = self._place_all((digest, [data]) for digest, data in waiting)
        faults.point("artifact.spilled")
        self.store.write(lambda tx: rows_of.drop_copies(tx, marks))

    def _place_all(self, contents: Iterable[tuple[str, Iterable[bytes]]]) -> dict[str, str]:
        """Contents by their digests, each in its file; answers the marks of the files. One sync
        serves many."""
        fresh: dict[str, Path] = {}
        try:
            for digest, pieces in contents:
                fresh[digest] = self._aside(pieces)
            sync_all(self.root)
            faults.point("artifact.written")
            for digest, path in fresh.items():
                place = self.path_of(digest)
                place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                path.replace(place)
                faults.point("artifact.placed")
            sync_all(self.root)
            return {digest: _mark(self.path_of(digest)) for digest in fresh}
        except OSError as error:
            raise StorageError(
                f"cannot write artifacts into {self.root}: {error.strerror}"
            ) from error

    def offer(self, contents: Mapping[str, Iterable[bytes]]) -> None:
        """Put contents into files by their digests, for the kernel to adopt: what another
        process may do. What nobody adopts is collected some day."""
        self._place_all(
            (digest, self._verified(digest, None, iter(pieces)))
            for digest, pieces in contents.items()
        )

    def adopt(self, digest: str) -> Blob:
        """The blob of content that was offered before, checked again; NOT_FOUND where there is
        none."""
        place = self.path_of(digest)
        if self._stands(place, digest):
            return Blob(digest, place.stat().st_size, None, _mark(place))
        with self.store.read() as rows:
            known = rows_of.find_many(rows, [digest]).get(digest)
        if known is None or known[2] is None:
            raise NotFound(
                f"nobody has brought the content {digest[:16]}", context={"artifact": digest}
            )
        return Blob(digest, known[1], known[2])

    def _aside(self, pieces: Iterable[bytes]) -> Path:
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = self._fresh()
        with open(
            fresh, "xb", opener=lambda path, flags: os.open(path, flags | os.O_CLOEXEC, 0o600)
        ) as file:
            for piece in pieces:
                file.write(piece)
        return fresh

    def _fresh(self) -> Path:
        return self.root / f".new-{os.getpid()}-{self.store.sources.new_id('tmp')}"

    def gc(self, grace: float = GC_GRACE_SECONDS) -> tuple[int, int]:
        """Remove what nobody refers to and nobody touched for a while; answers how many and how
        many bytes."""
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
        """Whether somebody wrote or wanted this artifact so recently that a commit for it may
        still come."""
        try:
            return self._age(self.path_of(digest)) <= grace
        except OSError:
            return False

    def _age(self, path: Path) -> float:
        return self.store.sources.now() / 1_000_000 - path.stat().st_mtime

    def _remove(self, digest: str, grace: float) -> int:
        """Somebody may have offered it again just now: then its file stays for the coming
        commit."""
        path = self.path_of(digest)
        try:
            if self._touched(digest, grace):
                return 0
            size = path.stat().st_size
            path.unlink()
        except OSError:
            return 0
        return size

    def _write(self, pieces: Iterable[bytes], *, limited: bool = True) -> Blob:
        """Beside its place, synced, then moved into it, and the move synced; its name is what
        was really written."""
        fresh = self._fresh()
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                seen, size = hashlib.sha256(), 0
                for piece in pieces:
                    seen.update(piece)
                    size += len(piece)
                    if limited:
                        self._require_fits(size)
                    view = memoryview(piece)
                    while view:
                        view = view[os.write(descriptor, view) :]
                digest = seen.hexdigest()
                place = self.path_of(digest)
                if self._stands(place, digest):
                    return Blob(digest, size, None, _mark(place))
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            faults.point("artifact.written")
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            fresh.replace(place)
            for folder in (place.parent, self.root):
                sync_folder(folder)
            return Blob(digest, size, None, _mark(place))
        except OSError as error:
            raise StorageError(
                f"cannot write an artifact into {self.root}: {error.strerror}"
            ) from error
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

    def _verified(self, digest: str, size: int | None, pieces: Iterator[bytes]) -> Iterator[bytes]:
        seen, total = hashlib.sha256(), 0
        try:
            for piece in pieces:
                seen.update(piece)
                total += len(piece)
                self._require_fits(total if size is None else 0)
                yield piece
        except FileNotFoundError:
            raise NotFound(
                f"artifact {digest} is recorded, but its file is gone", context={"artifact": digest}
            ) from None
        if seen.hexdigest() != digest or total != (total if size is None else size):
            raise IntegrityFault(
                f"artifact {digest} is not what it was: its bytes changed",
                context={"artifact": digest},
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


def _readable(path: Path) -> Iterator[bytes]:
    """The pieces of a file that somebody else made: that it cannot be read is its own fault, not
    our disk's."""
    try:
        yield from _pieces(path)
    except OSError as error:
        raise InvalidConfig(
            f"it cannot be read: {error.strerror}", context={"file": path.name}
        ) from None


def _cleaned(path: Path, redactor: Redactor) -> Iterator[bytes]:
    for piece in _readable(path):
        yield redactor.piece(str(path), piece)
    yield redactor.rest(str(path))


def _mark(path: Path | str) -> str:
    """The metadata that changes when a file is touched."""
    found = os.lstat(path)
    return f"{found.st_size}:{found.st_mtime_ns}:{found.st_ctime_ns}:{found.st_ino}"
