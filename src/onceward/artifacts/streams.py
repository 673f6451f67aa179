"""Streams as files: one canonical line per event, a projection of the rows that can be made
again at any time (C-7)."""

from __future__ import annotations

import fcntl
import hashlib
import math
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from onceward.core import faults
from onceward.core.chain import Event, check_stream
from onceward.core.durable import sync_all
from onceward.core.limits import HEAD_CACHE, MAX_PAYLOAD_BYTES
from onceward.errors import AtomicityViolation, Recovery, StorageError
from onceward.locks.identity import boot_id
from onceward.store.store import Store
from onceward.store.tables.events import events_after, events_of, last_position, streams
from onceward.store.transaction import Transaction

_WATERMARK = ".watermark"
_PAGE = 200
_CATCH_UP_SECONDS = 0.25
"""How long a leaving kernel brings files up to date; the next one continues."""
_TAIL = 2 * MAX_PAYLOAD_BYTES + 4096


class Streams:
    """The folder of stream files. Only the kernel writes there; readers ignore an unfinished
    last line."""

    def __init__(self, folder: Path, store: Store, actor: str) -> None:
        self.folder, self.store, self.actor = folder, store, actor
        self._done: int | None = None
        self._looked = False
        """Whether this process has looked at every file once."""
        self._known: dict[str, tuple[int, int]] = {}
        """Size and last seq of the files that this process has looked at or written."""

    def path_of(self, stream: str) -> Path:
        return self.folder / f"{check_stream(stream)}.ndjson"

    def project(self, seconds: float = math.inf) -> int:
        """Append what the files lack, for about so long; answers how many lines. Fails closed on
        any file that says something else."""
        until = time.monotonic() + seconds
        if self._done is None:
            self._done = self._watermark()
        with self.store.read() as rows:
            newest = last_position(rows)
            if newest == self._done:
                return 0
            if newest < self._done:
                # These are other rows than the files were made from.
                self._done = 0
        count = 0
        while True:
            with self.store.read() as rows:
                page = events_after(rows, self._done, _PAGE)
            if not page or time.monotonic() > until:
                return count
            fresh: dict[str, list[Event]] = {}
            for event in page:
                fresh.setdefault(event.stream, []).append(event)
            count += sum(self._append(stream, events) for stream, events in fresh.items())
            self._mark(page[-1].position)

    def look_over(self) -> int:
        """Before work begins: unless the folder is as the last kernel left it, compare every
        stream's file with its rows and catch up; answers how many lines were missing."""
        if self._looked:
            return 0
        self._looked = True
        as_left = self._as_left()
        # From here on a kernel is at work, and may die: what it has written then stands without a
        # seal.
        with suppress(OSError):
            self._seal_path().unlink()
        if as_left:
            # What they lack is appended in the background.
            return 0
        with self.store.read() as rows:
            names = [name for name, count in streams(rows) if count]
            newest = last_position(rows)
        self._known.clear()
        count = sum(self._catch_up(name) for name in names)
        self._mark(newest)
        return count + self.project()

    def seal(self) -> None:
        """Remember how the folder looks, so that whoever comes next need not look into every
        file."""
        self.project(_CATCH_UP_SECONDS)
        if self.folder.is_dir():
            sync_all(self.folder)
            fresh = self.folder / ".seal.new"
            fresh.write_text(self._listing(), "ascii")
            fresh.replace(self._seal_path())

    def _as_left(self) -> bool:
        """Whether the files are what the last kernel wrote: as it sealed them, or, if it died at
        work, not since this machine started."""
        try:
            return self._seal_path().read_bytes() == self._listing().encode()
        except FileNotFoundError:
            return self._same_boot()
        except OSError:
            # A hint that cannot be read is no hint.
            return False

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
                    status = entry.stat(follow_symlinks=False)
                    found.append(
                        f"{entry.name}\0{status.st_size}\0{status.st_mtime_ns}\0{status.st_ino}"
                    )
        return hashlib.sha256(
            "\n".join(sorted(found)).encode("utf-8", "surrogateescape")
        ).hexdigest()

    def rebuilt(self, stream: str) -> Iterator[bytes]:
        """The bytes that a stream's file should have."""
        with self.store.read() as rows:
            for event in events_of(rows, stream):
                yield event.line() + b"\n"

    def compare(self, stream: str) -> str | None:
        """The first difference between a stream's file and its rows, every byte looked at; None
        if there is none."""
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
        """Append what one file lacks, whatever it has."""
        with self._open(stream) as (descriptor, after):
            with self.store.read() as rows:
                return self._write(stream, descriptor, after, events_of(rows, stream, after))

    def _append(self, stream: str, events: list[Event]) -> int:
        """Append events that were read with others; what came before them and is not there comes
        first."""
        with self._open(stream) as (descriptor, after):
            lacking = [event for event in events if event.seq > after]
            if not lacking or lacking[0].seq == after + 1:
                return self._write(stream, descriptor, after, lacking)
            with self.store.read() as rows:
                return self._write(stream, descriptor, after, events_of(rows, stream, after))

    @contextmanager
    def _open(self, stream: str) -> Iterator[tuple[int, int]]:
        """A stream's file to append to, and the seq of its last line."""
        path = self.path_of(stream)
        try:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            with _locked(path) as descriptor:
                yield descriptor, self._end_of(stream, path, descriptor)
        except OSError as error:
            raise StorageError(f"cannot write the stream file {path}: {error.strerror}") from error

    def _write(self, stream: str, descriptor: int, after: int, events: Iterable[Event]) -> int:
        """Not synced: the rows are the truth, and files that a power cut shortened are found by
        their boot."""
        count = 0
        for event in events:
            _write_all(descriptor, event.line() + b"\n")
            faults.point("stream.appended")
            count += 1
        self._known.pop(stream, None)
        self._known[stream] = (os.fstat(descriptor).st_size, after + count)
        while len(self._known) > HEAD_CACHE:
            del self._known[next(iter(self._known))]
        return count

    def _end_of(self, stream: str, path: Path, descriptor: int) -> int:
        """The seq of a file's last whole line. Its tail must be what the rows say; an unfinished
        line is cut off."""
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
        detail = {
            "stream": stream,
            "length": len(fragment),
            "sha256": hashlib.sha256(fragment).hexdigest(),
        }

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
            recovery=[
                Recovery(
                    "look at the copy, then remove the file: it is made again",
                    f"rm '{path}'",
                    "medium",
                )
            ],
        )

    def _watermark(self) -> int:
        """Up to where the files were complete: a hint that saves looking, never believed against
        a file."""
        try:
            return int((self.folder / _WATERMARK).read_text("ascii").split()[0])
        except (OSError, ValueError, IndexError):
            return 0

    def _same_boot(self) -> bool:
        """Whether the files were last written since this machine started."""
        try:
            return (self.folder / _WATERMARK).read_text("ascii").split()[1:] == [boot_id()]
        except OSError:
            return False

    def _mark(self, position: int) -> None:
        self._done = position
        fresh = self.folder / f"{_WATERMARK}.new"
        with suppress(OSError):
            fresh.write_text(f"{position} {boot_id()}", "ascii")
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
