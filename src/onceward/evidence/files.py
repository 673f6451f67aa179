"""The files of a workspace: streams must repeat the rows, artifacts must match their digests."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from onceward.core.chain import Event
from onceward.evidence.findings import Findings
from onceward.locks.identity import boot_id
from onceward.store.copy import pages
from onceward.store.port import Reads

_CHUNK = 1 << 20
_DIGEST = re.compile(r"[0-9a-f]{64}")


class StreamFiles:
    """Holds the files of streams against their events as these come by. Made before the rows are
    read: whatever a file has by then was committed, and what a kernel at work adds later is not
    looked at."""

    def __init__(self, folder: Path, findings: Findings) -> None:
        self._folder, self._findings = folder, findings
        # First up to where they are complete, then how long they are: a kernel at work writes in
        # the other order.
        self._complete = self._watermark()
        self._sizes = (
            {path.stem: path.lstat().st_size for path in folder.glob("*.ndjson")}
            if folder.is_dir()
            else {}
        )
        self._name = ""
        self._file: BinaryIO | None = None
        self._left = 0
        self._wrong = False

    def line(self, event: Event) -> None:
        if event.stream != self._name:
            self._turn_to(event.stream)
        if self._wrong:
            return
        if self._left <= 0 or self._file is None:
            if event.position <= self._complete:
                self._fault(f"it lacks event {event.seq}, which was written there")
            return
        line = event.line() + b"\n"
        found = self._file.read(min(len(line), self._left))
        self._left -= len(found)
        whole = found == line
        torn = event.position > self._complete and self._torn(line, found)
        if not whole and not torn:
            self._fault(f"line {event.seq} is not what was recorded")

    def _torn(self, line: bytes, found: bytes) -> bool:
        """Whether a file ends within a line, as a kill or a power cut leaves it: with a part of
        the line, and maybe with zeros, where the disk had made room for bytes that never came."""
        assert self._file is not None
        if not line.startswith(found.rstrip(b"\0")):
            return False
        while self._left > 0:
            rest = self._file.read(min(_CHUNK, self._left))
            self._left -= len(rest)
            if rest.count(0) != len(rest) or not rest:
                return False
        return True

    def finish(self) -> None:
        self._turn_to("")
        for name in sorted(self._sizes):
            self._findings.fault("file", name, "there is no such stream")

    def _turn_to(self, stream: str) -> None:
        if self._file is not None:
            if self._left > 0 and not self._wrong:
                self._fault("it goes on after the last event")
            self._file.close()
            self._file = None
        self._name, self._wrong = stream, False
        self._left = self._sizes.pop(stream, 0)
        if stream and self._left:
            try:
                self._file = open_plain(self._folder / f"{stream}.ndjson")
                self._findings.count("files")
            except OSError as error:
                self._fault(f"it cannot be read: {error.strerror}")

    def _fault(self, why: str) -> None:
        self._wrong = True
        self._findings.fault("file", self._name, why)

    def _watermark(self) -> int:
        """Up to where the files are known to be complete: as the last kernel left them, synced,
        or as one at work wrote them since this machine started. Files are not synced while a
        kernel works, so after a power cut they may lack what was written; the rows have it, and
        the next kernel appends it."""
        mark, seal = self._folder / ".watermark", self._folder / ".seal"
        try:
            position, *boot = mark.read_text("ascii").split()
            synced = seal.exists() and seal.stat().st_mtime_ns >= mark.stat().st_mtime_ns
            return int(position) if synced or boot == [boot_id()] else 0
        except (OSError, ValueError):
            return 0


def verify_artifacts(
    rows: Reads, root: Path, findings: Findings, progress: Callable[[int], None] | None
) -> None:
    """Every artifact's bytes, in its row or in its file."""
    for number, (sha256, size, data) in enumerate(
        pages(rows, "artifacts", ("sha256",), ("sha256", "size", "data"))
    ):
        findings.count("artifacts")
        if progress is not None and not number & 63:
            progress(number)
        why = (
            None
            if data is None
            else _unlike(sha256, size, len(data), hashlib.sha256(data).hexdigest())
        )
        if data is None:
            why = (
                _look_at(root / sha256[:2] / sha256, sha256, size)
                if _DIGEST.fullmatch(sha256)
                else "it has no digest"
            )
        if why:
            findings.fault("artifact", sha256[:16], why)


def _look_at(path: Path, sha256: str, size: int) -> str | None:
    made, found = hashlib.sha256(), 0
    try:
        with open_plain(path) as file:
            while found <= size and (piece := file.read(_CHUNK)):
                made.update(piece)
                found += len(piece)
    except FileNotFoundError:
        return "it is gone"
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    return _unlike(sha256, size, found, made.hexdigest())


def open_plain(path: Path) -> BinaryIO:
    """A regular file to read, and nothing else that could stand in its place."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file")
    return os.fdopen(descriptor, "rb")


def _unlike(sha256: str, size: int, found: int, made: str) -> str | None:
    if made != sha256:
        return "its bytes are not what its digest says"
    return None if found == size else f"it has {found:,} bytes, not {size:,}"
