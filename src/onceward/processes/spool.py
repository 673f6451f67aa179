"""The files of children that run: their output as far as it has come, and the witness that they
live.

What a kernel that dies leaves for the next: the output to keep, the witness to ask whether
anything survived."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from onceward.core.limits import OUTPUT_BYTES
from onceward.locks.claims import is_locked

# The folder is the user's, and so are the children: what stands there may be anything.
_SAFELY = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_NAMES = {"out": "stdout", "err": "stderr"}
_WITNESS = "witness"


class Spool:
    """One file per stream of a running child. Secrets are replaced before anything comes here."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, child_id: str, stream: str, data: bytes) -> None:
        """Append what just came, up to a bound. A disk that is full takes nothing from the
        child."""
        if not data:
            return
        with suppress(OSError):
            self.folder.mkdir(mode=0o700, exist_ok=True)
            descriptor = os.open(
                self._file(child_id, stream),
                os.O_WRONLY | os.O_CREAT | os.O_APPEND | _SAFELY,
                0o600,
            )
            try:
                found = os.fstat(descriptor)
                if stat.S_ISREG(found.st_mode) and found.st_size < OUTPUT_BYTES:
                    os.write(descriptor, data)
            finally:
                os.close(descriptor)

    def left(self, child_id: str) -> dict[str, bytes]:
        """The output of a child of a dead kernel, by the name of its log."""
        found = {}
        for stream, name in _NAMES.items():
            with suppress(OSError):
                descriptor = os.open(self._file(child_id, stream), os.O_RDONLY | _SAFELY)
                with os.fdopen(descriptor, "rb") as file:
                    if stat.S_ISREG(os.fstat(descriptor).st_mode):
                        found[name] = file.read(2 * OUTPUT_BYTES)
        return found

    def witness(self, child_id: str) -> Path:
        """The file that is locked while any process of a child has the descriptor it inherited."""
        return self._file(child_id, _WITNESS)

    def forget(self, child_id: str) -> None:
        """Its logs are kept elsewhere now, and it is gone."""
        for stream in (*_NAMES, _WITNESS):
            with suppress(OSError):
                self._file(child_id, stream).unlink()

    def clear(self) -> None:
        """Nobody runs: what is still here was kept and not cleared away. A witness that is still
        held stays: it tells a person which processes to look for."""
        for path in self.folder.glob("chd_*.*"):
            if path.suffix == f".{_WITNESS}" and is_locked(path):
                continue
            with suppress(OSError):
                path.unlink()

    def _file(self, child_id: str, stream: str) -> Path:
        return self.folder / f"{child_id}.{stream}"
