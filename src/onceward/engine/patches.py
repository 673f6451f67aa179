"""Unified diffs, applied exactly: every line where the patch says it is, or not at all. Renames and modes as git writes
them; nothing is guessed, nothing shifted."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from onceward.errors import BaseDrift, InvalidConfig

_HUNK: Final = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@.*")
_QUOTED: Final = re.compile(rb'\\([abfnrtv"\\]|[0-7]{3})')
_ESCAPES: Final = {b"n": b"\n", b"t": b"\t", b'"': b'"', b"\\": b"\\", b"r": b"\r"}
_NOWHERE: Final = b"/dev/null"
_NEVER: Final = (b"1970-01-01 ", b"1969-12-31 ")
_SAME: Final = b"\\ No newline at end of file"


class Hunk(msgspec.Struct):
    """Lines that stand at a place, and those that are to stand there."""

    start: int
    old: list[bytes]
    new: list[bytes]


class Patched(msgspec.Struct):
    """What a patch does to one file. Paths are None where the file is made or removed."""

    old: str | None = None
    new: str | None = None
    hunks: list[Hunk] = []
    old_mode: int | None = None
    new_mode: int | None = None
    copied: bool = False

    def applied(self, data: bytes) -> bytes:
        """The file's new bytes; BASE_DRIFT where it is not what the patch was made on."""
        lines = _lines(data)
        made: list[bytes] = []
        at = 0
        for hunk in self.hunks:
            start = hunk.start - 1 if hunk.old else hunk.start
            if start < at or lines[start : start + len(hunk.old)] != hunk.old:
                path = self.old or self.new or ""
                raise BaseDrift(
                    f"{path} is not what the patch was made on, at line {hunk.start}", context={"paths": [path]}
                )
            made += lines[at:start] + hunk.new
            at = start + len(hunk.old)
        return b"".join(made + lines[at:])


def _lines(data: bytes) -> list[bytes]:
    """Lines end at newlines only: what else looks like an end is content."""
    parts = data.split(b"\n")
    return [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def read_patch(data: bytes) -> list[Patched]:
    """The files that a patch is about, in its order."""
    reader = _Reader(_lines(data))
    found = list(reader.files())
    if not found:
        raise InvalidConfig("this is no patch: it has no file with a change", context={"field": "--patch"})
    return found


class _Reader:
    """Goes through a patch once, line by line."""

    def __init__(self, lines: list[bytes]) -> None:
        self._lines, self._at = lines, 0

    def files(self) -> Iterator[Patched]:
        while self._at < len(self._lines):
            line = self._line()
            if line.startswith(b"diff --git ") or (line.startswith(b"--- ") and self._peek(1).startswith(b"+++ ")):
                yield self._file(git=line.startswith(b"diff --git "))
            elif _HUNK.fullmatch(line):
                raise self._odd("a hunk stands here without its file")
            else:
                self._at += 1

    def _file(self, git: bool) -> Patched:
        file = Patched(hunks=[])
        words: dict[bytes, Callable[[bytes], None]] = {
            b"old mode ": lambda text: setattr(file, "old_mode", _mode(text)),
            b"new mode ": lambda text: setattr(file, "new_mode", _mode(text)),
            b"new file mode ": lambda text: setattr(file, "new_mode", _mode(text)),
            b"deleted file mode ": lambda text: setattr(file, "old_mode", _mode(text)),
            b"rename from ": lambda text: setattr(file, "old", _path(text, 0)),
            b"rename to ": lambda text: setattr(file, "new", _path(text, 0)),
            b"copy from ": lambda text: setattr(file, "old", _path(text, 0)),
            b"copy to ": lambda text: setattr(file, "new", _path(text, 0)),
        }
        made = gone = False
        if git:
            file.old = file.new = _named(self._line())
            self._at += 1
            while self._at < len(self._lines):
                line = self._line()
                word = next((word for word in words if line.startswith(word)), None)
                if word is None and not line.startswith((b"index ", b"similarity index ", b"dissimilarity index ")):
                    break
                file.copied = file.copied or word == b"copy from "
                made, gone = made or word == b"new file mode ", gone or word == b"deleted file mode "
                if word is not None:
                    words[word](line[len(word) :])
                self._at += 1
            if self._peek(0).startswith((b"GIT binary patch", b"Binary files ")):
                raise self._odd("binary changes are not taken from a patch; mark them from a folder")
        if self._peek(0).startswith(b"--- "):
            (old, unborn), (new, dead) = self._path_after(b"--- "), self._path_after(b"+++ ")
            file.old, file.new = (file.old or old, file.new or new) if git else _plain(old, new)
            made, gone = made or unborn or old is None, gone or dead or new is None
            file.hunks = list(self._hunks())
        file.old, file.new = None if made else file.old, None if gone else file.new
        if file.old is None and file.new is None:
            raise self._odd("this file comes from nowhere and goes nowhere")
        return file

    def _hunks(self) -> Iterator[Hunk]:
        while head := _HUNK.fullmatch(self._line()) if self._at < len(self._lines) else None:
            start, before, _, after = (int(part) if part else 1 for part in head.groups())
            self._at += 1
            hunk = Hunk(start, [], [])
            last: tuple[list[bytes], ...] = ()
            while len(hunk.old) < before or len(hunk.new) < after or self._peek(0).startswith(_SAME):
                line = self._raw()
                if line.rstrip(b"\r\n") == _SAME:
                    for side in last:
                        side[-1] = side[-1].removesuffix(b"\n")
                    continue
                sides = {b" ": (hunk.old, hunk.new), b"-": (hunk.old,), b"+": (hunk.new,), b"\n": (hunk.old, hunk.new)}
                if line[:1] not in sides:
                    self._at -= 1
                    raise self._odd("a hunk ends before it says")
                last = sides[line[:1]]
                for side in last:
                    side.append(line if line == b"\n" else line[1:])
            if (len(hunk.old), len(hunk.new)) != (before, after):
                raise self._odd("a hunk has other lines than it says")
            yield hunk

    def _path_after(self, word: bytes) -> tuple[str | None, bool]:
        """The path that a line names, and whether there is nothing there."""
        line = self._line()
        if not line.startswith(word):
            raise self._odd(f"{word.decode()}is missing here")
        self._at += 1
        text, _, when = line[len(word) :].partition(b"\t")
        # `diff -N` names a file that is not there by the beginning of time.
        return (None if text == _NOWHERE else _path(text, 1)), when.startswith(_NEVER)

    def _line(self) -> bytes:
        return self._lines[self._at].rstrip(b"\r\n")

    def _raw(self) -> bytes:
        if self._at >= len(self._lines):
            raise self._odd("the patch ends in the middle of a hunk")
        self._at += 1
        return self._lines[self._at - 1]

    def _peek(self, ahead: int) -> bytes:
        return self._lines[self._at + ahead] if self._at + ahead < len(self._lines) else b""

    def _odd(self, why: str) -> InvalidConfig:
        return InvalidConfig(f"line {self._at + 1} of the patch: {why}", context={"line": self._at + 1})


def _named(line: bytes) -> str | None:
    """The path of `diff --git a/x b/x`, where both are the same; renames say theirs again."""
    text = line.removeprefix(b"diff --git ")
    if text.startswith(b'"'):
        return None
    half = len(text) // 2
    old, new = text[:half], text[half + 1 :]
    return _path(old, 1) if old[2:] == new[2:] and old[:2] == b"a/" and new[:2] == b"b/" else None


def _plain(old: str | None, new: str | None) -> tuple[str | None, str | None]:
    """What `diff -u` names: two folders of one file, or two names for it, of which the newer counts."""
    if old is None or new is None:
        return old, new
    one, other = old.partition("/")[2], new.partition("/")[2]
    return (one, other) if one and one == other and old != new else (new, new)


def _path(text: bytes, strip: int) -> str:
    if text.startswith(b'"') and text.endswith(b'"') and len(text) > 1:
        text = _QUOTED.sub(lambda m: _ESCAPES.get(m[1]) or bytes([int(m[1], 8) if m[1].isdigit() else 63]), text[1:-1])
    try:
        path = text.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidConfig(f"a path of the patch is no text: {text[:60]!r}", context={"field": "--patch"}) from None
    return path.split("/", 1)[1] if strip and path.startswith(("a/", "b/")) else path


def _mode(text: bytes) -> int:
    """Git knows files, programs and links; a patch of a link is not taken."""
    if text not in (b"100644", b"100755"):
        raise InvalidConfig(f"a patch can make files and programs, not mode {text.decode('ascii', 'replace')[:10]}")
    return 0o755 if text == b"100755" else 0o644
