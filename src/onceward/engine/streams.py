"""Streams as files: one canonical line per event, a projection of the rows that can be made again at any time (C-7)."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from onceward.errors import AtomicityViolation, Recovery, StorageError
from onceward.kernel import faults
from onceward.kernel.chain import check_stream
from onceward.kernel.limits import MAX_PAYLOAD_BYTES
from onceward.store.store import Store
from onceward.store.tables.events import events_after, events_of, last_position, streams
from onceward.store.transaction import Transaction

_WATERMARK = ".watermark"
_TAIL = 2 * MAX_PAYLOAD_BYTES + 4096


class Streams:
    """The folder of stream files. Only the kernel writes there; readers ignore an unfinished last line."""

    def __init__(self, folder: Path, store: Store, actor: str) -> None:
        self.folder, self.store, self.actor = folder, store, actor
        self._done: int | None = None
        self._known: dict[str, tuple[int, int]] = {}
        """Size and last seq of the files that this process has looked at or written."""

    def path_of(self, stream: str) -> Path:
        return self.folder / f"{check_stream(stream)}.ndjson"

    def project(self) -> int:
        """Append what the files lack; answers how many lines. Fails closed on any file that says something else."""
        if self._done is None:
            self._done = self._watermark()
        with self.store.read() as rows:
            newest = last_position(rows)
            if newest == self._done:
                return 0
            if newest < self._done:
                # These are other rows than the files were made from.
                self._done = 0
            fresh: dict[str, int] = {}
            newest = self._done
            for stream, seq, position in events_after(rows, self._done):
                fresh.setdefault(stream, seq)
                newest = position
        count = sum(self._catch_up(stream) for stream in fresh)
        self._mark(newest)
        return count

    def look_over(self) -> int:
        """Before work begins: unless the folder is as the last kernel left it, compare every stream's file with its
        rows and catch up; answers how many lines were missing."""
        try:
            if self._seal_path().read_bytes() == self._listing().encode():
                return self.project()
        except OSError:
            # A hint that cannot be read is no hint.
            pass
        with self.store.read() as rows:
            names = [name for name, count in streams(rows) if count]
            newest = last_position(rows)
        self._known.clear()
        count = sum(self._catch_up(name) for name in names)
        self._mark(newest)
        return count + self.project()

    def seal(self) -> None:
        """Remember how the folder looks, so that whoever comes next need not look into every file."""
        self.project()
        if self.folder.is_dir():
            fresh = self.folder / ".seal.new"
            fresh.write_text(self._listing(), "ascii")
            fresh.replace(self._seal_path())

    def _seal_path(self) -> Path:
        return self.folder / ".seal"

    def _listing(self) -> str:
        """A digest of the names, sizes and times of all files."""
        if not self.folder.is_dir():
            return ""
        found = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if entry.name.endswith(".ndjson"):
                    told = entry.stat(follow_symlinks=False)
                    found.append(f"{entry.name}\0{told.st_size}\0{told.st_mtime_ns}\0{told.st_ino}")
        return hashlib.sha256("\n".join(sorted(found)).encode("utf-8", "surrogateescape")).hexdigest()

    def rebuilt(self, stream: str) -> Iterator[bytes]:
        """The bytes that a stream's file should have."""
        with self.store.read() as rows:
            for event in events_of(rows, stream):
                yield event.line() + b"\n"

    def compare(self, stream: str) -> str | None:
        """The first difference between a stream's file and its rows, every byte looked at; None if there is none."""
        try:
            file = self.path_of(stream).open("rb")
        except FileNotFoundError:
            return "the file is not there"
        with file:
            for number, line in enumerate(self.rebuilt(stream), 1):
                if file.readline() != line:
                    return f"line {number} is not what was recorded"
            return "the file goes on after the last event" if file.read(1) else None

    def _catch_up(self, stream: str) -> int:
        path = self.path_of(stream)
        try:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            with _locked(path) as descriptor:
                after = self._end_of(stream, path, descriptor)
                count = 0
                with self.store.read() as rows:
                    for event in events_of(rows, stream, after):
                        _write_all(descriptor, event.line() + b"\n")
                        faults.point("stream.appended")
                        count += 1
                if count:
                    os.fsync(descriptor)
                self._known[stream] = (os.fstat(descriptor).st_size, after + count)
        except OSError as error:
            raise StorageError(f"cannot write the stream file {path}: {error.strerror}") from error
        return count

    def _end_of(self, stream: str, path: Path, descriptor: int) -> int:
        """The seq of a file's last whole line. Its tail must be what the rows say; an unfinished line is cut off."""
        size = os.fstat(descriptor).st_size
        known = self._known.get(stream)
        if known is not None and known[0] == size:
            return known[1]
        begin = max(0, size - _TAIL)
        tail = os.pread(descriptor, size - begin, begin)
        whole, newline, fragment = tail.rpartition(b"\n")
        if fragment:
            self._cut(stream, fragment)
            os.ftruncate(descriptor, size - len(fragment))
            os.fsync(descriptor)
        lines = (whole + newline).splitlines(keepends=True)
        if begin:
            # The first of them began before the part that was read.
            lines = lines[1:]
        if not lines and begin:
            raise self._differs(stream, path, "its last line is longer than any event")
        return self._match(stream, path, lines, begin == 0)

    def _match(self, stream: str, path: Path, lines: list[bytes], from_start: bool) -> int:
        """Compare a file's last lines with the rows, one by one."""
        if not lines:
            return 0
        try:
            first = 1 if from_start else int(msgspec.json.decode(lines[0])["seq"])
        except (msgspec.DecodeError, KeyError, TypeError, ValueError):
            raise self._differs(stream, path, "a line is no event") from None
        with self.store.read() as rows:
            recorded = events_of(rows, stream, first - 1)
            for number, line in enumerate(lines, first):
                event = next(recorded, None)
                if event is None or event.line() + b"\n" != line:
                    raise self._differs(stream, path, f"line {number} is not what was recorded")
        return first + len(lines) - 1

    def _cut(self, stream: str, fragment: bytes) -> None:
        """A crash left part of a line: what it was is recorded before it goes."""
        detail = {"stream": stream, "length": len(fragment), "sha256": hashlib.sha256(fragment).hexdigest()}

        def note(tx: Transaction) -> None:
            tx.append("workspace", "STREAM_REPAIRED", self.actor, detail)

        self.store.write(note)

    def _differs(self, stream: str, path: Path, why: str) -> AtomicityViolation:
        copy = path.with_name(f"{path.name}.quarantine")
        with suppress(OSError):
            copy.write_bytes(path.read_bytes())
        return AtomicityViolation(
            f"the file of stream {stream} disagrees with the records: {why}",
            context={"stream": stream, "file": str(path), "copy": str(copy)},
            recovery=[Recovery("look at the copy, then remove the file: it is made again", f"rm '{path}'", "medium")],
        )

    def _watermark(self) -> int:
        """Up to where the files were complete: a hint that saves looking, never believed against a file."""
        try:
            return int((self.folder / _WATERMARK).read_text("ascii"))
        except (OSError, ValueError):
            return 0

    def _mark(self, position: int) -> None:
        self._done = position
        fresh = self.folder / f"{_WATERMARK}.new"
        with suppress(OSError):
            fresh.write_text(str(position), "ascii")
            fresh.replace(self.folder / _WATERMARK)


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
