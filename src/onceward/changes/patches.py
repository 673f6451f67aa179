"""Unified diffs, applied exactly: every line where the patch says it is, or not at all. Renames and modes are read
as git writes them; nothing is guessed or shifted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from onceward.artifacts.file_names import recorded_path
from onceward.changes import rules
from onceward.errors import InvalidConfig

_HUNK: Final = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@.*")
_QUOTED: Final = re.compile(rb'\\([abfnrtv"\\]|[0-7]{3})|\\')
_ESCAPES: Final = dict(zip(b'abfnrtv"\\', b'\a\b\f\n\r\t\v"\\', strict=True))
_STRING: Final = re.compile(rb'"((?:[^"\\]|\\.)*)"')
_NOWHERE: Final = b"/dev/null"
_NEVER: Final = (b"1970-01-01 ", b"1969-12-31 ")
_SAME: Final = b"\\ No newline at end of file"
_HEADERS: Final = (b"index ", b"similarity index ", b"dissimilarity index ")


class Hunk(msgspec.Struct):
    """The lines that a patch replaces at a place, and their replacement."""

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
            end = start + len(hunk.old)
            # Only the last line of a file may be without an end.
            open_ended = bool(hunk.new) and not hunk.new[-1].endswith(b"\n")
            fits = (
                at <= start <= len(lines)
                and lines[start:end] == hunk.old
                and not (open_ended and end < len(lines))
            )
            more = bool(hunk.new or lines[at:start])
            joined = bool(made) and not made[-1].endswith(b"\n") and more
            rules.require_fitting_hunk(self.old or self.new or "", hunk.start, fits and not joined)
            made += lines[at:start] + hunk.new
            at = end
        return b"".join(made + lines[at:])


def _lines(data: bytes) -> list[bytes]:
    """Lines end at newlines only: what else looks like an end is content."""
    parts = data.split(b"\n")
    return [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def read_patch(data: bytes) -> list[Patched]:
    """The files that a patch is about, in its order."""
    found = list(_Reader(_lines(data)).files())
    if not found:
        raise InvalidConfig(
            "this is no patch: it has no file with a change", context={"field": "--patch"}
        )
    return found


class _Reader:
    """Goes through a patch once, line by line."""

    def __init__(self, lines: list[bytes]) -> None:
        self._lines, self._at = lines, 0

    def files(self) -> Iterator[Patched]:
        while self._at < len(self._lines):
            line = self._line()
            if line.startswith(b"diff --git "):
                yield self._git()
            elif line.startswith(b"--- ") and self._peek(1).startswith(b"+++ "):
                yield self._plain()
            elif _HUNK.fullmatch(line):
                raise self._odd("this hunk has no file header")
            else:
                self._at += 1

    def _plain(self) -> Patched:
        (old, unborn), (new, dead) = self._path_after(b"--- "), self._path_after(b"+++ ")
        one, other = _one_file(old, new)
        file = Patched(None if unborn else one, None if dead else other, list(self._hunks()))
        return self._somewhere(file)

    def _git(self) -> Patched:
        """A file as git tells of it: its header, modes and renames first."""
        named, prefixes = _named(self._line())
        self._at += 1
        said: dict[bytes, bytes] = {}
        while self._at < len(self._lines):
            line = self._line()
            word = next((word for word in _WORDS if line.startswith(word)), None)
            if word is None and not line.startswith(_HEADERS):
                break
            if word is not None:
                said[word] = line[len(word) :]
            self._at += 1
        if self._peek(0).startswith((b"GIT binary patch", b"Binary files ")):
            raise self._odd("binary changes are not taken from a patch; mark them from a folder")
        came, went = (
            said.get(b"rename " + way) or said.get(b"copy " + way) for way in (b"from ", b"to ")
        )
        old, new = (
            named if path is None else recorded_path(_unquoted(path)) for path in (came, went)
        )
        file = Patched(old, new, [], copied=b"copy from " in said)
        file.new_mode = _mode(said.get(b"new mode ") or said.get(b"new file mode "))
        file.old_mode = _mode(said.get(b"old mode ") or said.get(b"deleted file mode "))
        made, gone = b"new file mode " in said, b"deleted file mode " in said
        if self._peek(0).startswith(b"--- "):
            (one, _), (other, _) = (
                self._path_after(b"--- ", prefixes[0]),
                self._path_after(b"+++ ", prefixes[1]),
            )
            for told, known in ((one, file.old), (other, file.new)):
                if told is not None and known is not None and told != known:
                    raise self._odd(f"the patch calls one file both {known} and {told}")
            file.old, file.new = file.old or one or other, file.new or other or one
            made, gone = made or one is None, gone or other is None
            file.hunks = list(self._hunks())
        if file.old is None and file.new is None:
            raise self._odd("the name of this file cannot be read")
        file.old, file.new = None if made else file.old, None if gone else file.new
        return self._somewhere(file)

    def _somewhere(self, file: Patched) -> Patched:
        if file.old is None and file.new is None:
            raise self._odd("this file has neither an old nor a new path")
        return file

    def _hunks(self) -> Iterator[Hunk]:
        while head := _HUNK.fullmatch(self._line()) if self._at < len(self._lines) else None:
            start, before, _, after = (int(part) if part else 1 for part in head.groups())
            self._at += 1
            hunk = Hunk(start, [], [])
            last: tuple[list[bytes], ...] = ()
            while (
                len(hunk.old) < before or len(hunk.new) < after or self._peek(0).startswith(_SAME)
            ):
                line = self._raw()
                if line.rstrip(b"\r\n") == _SAME:
                    for side in last:
                        side[-1] = side[-1].removesuffix(b"\n")
                    continue
                sides = {
                    b" ": (hunk.old, hunk.new),
                    b"-": (hunk.old,),
                    b"+": (hunk.new,),
                    b"\n": (hunk.old, hunk.new),
                }
                if line[:1] not in sides:
                    self._at -= 1
                    raise self._odd("a hunk has fewer lines than its header says")
                last = sides[line[:1]]
                for side in last:
                    side.append(line if line == b"\n" else line[1:])
            follows = self._peek(0)
            header = follows.startswith(b"--- ") and self._peek(1).startswith(b"+++ ")
            signature = follows.rstrip(b"\r\n ") == b"--"
            if (len(hunk.old), len(hunk.new)) != (before, after) or (
                follows[:1] in (b"+", b"-", b" ") and not header and not signature
            ):
                raise self._odd("the lines of a hunk do not match its header")
            yield hunk

    def _path_after(self, word: bytes, prefix: bytes | None = None) -> tuple[str | None, bool]:
        """The path that a line names, without a prefix; and whether there is nothing there."""
        line = self._line()
        if not line.startswith(word):
            raise self._odd(f"{word.decode()}is missing here")
        self._at += 1
        text, _, when = line[len(word) :].partition(b"\t")
        # `diff -N` names a file that is not there by the beginning of time.
        never = when.startswith(_NEVER)
        if text == _NOWHERE:
            return None, True
        text = _unquoted(text)
        known = [b"a/", b"b/"] if prefix is None else [prefix]
        return recorded_path(
            next((text[len(p) :] for p in known if p and text.startswith(p)), text)
        ), never

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
        return InvalidConfig(
            f"line {self._at + 1} of the patch: {why}", context={"line": self._at + 1}
        )


_WORDS: Final = (
    b"old mode ",
    b"new mode ",
    b"new file mode ",
    b"deleted file mode ",
    b"rename from ",
    b"rename to ",
    b"copy from ",
    b"copy to ",
)


def _named(line: bytes) -> tuple[str | None, tuple[bytes, bytes]]:
    """The path of `diff --git a/x b/x`, where both are the same, and what stands before it on either side."""
    text = line.removeprefix(b"diff --git ")
    quoted = _STRING.match(text)
    if quoted is not None or text.endswith(b'"'):
        parts = [_unquoted(b'"' + found + b'"') for found in _STRING.findall(text)]
        rest = _STRING.sub(b"", text).strip()
        if rest:
            parts = [*parts, rest] if quoted is not None else [rest, *parts]
        old, new = parts if len(parts) == 2 else (b"", b"")
    else:
        half = len(text) // 2
        old, new = text[:half], text[half + 1 :]
    if old == new and old:
        return recorded_path(old), (b"", b"")
    first, _, one = old.partition(b"/")
    second, _, other = new.partition(b"/")
    if one and one == other:
        return recorded_path(one), (first + b"/", second + b"/")
    return None, (b"a/", b"b/")


def _one_file(old: str | None, new: str | None) -> tuple[str | None, str | None]:
    """What `diff -u` names: two folders of one file, or two names for it, of which the newer counts."""
    if old is None or new is None:
        return old, new
    one, other = old.partition("/")[2], new.partition("/")[2]
    return (one, other) if one and one == other and old != new else (new, new)


def _unquoted(text: bytes) -> bytes:
    if not (text.startswith(b'"') and text.endswith(b'"') and len(text) > 1):
        return text

    def meant(found: re.Match[bytes]) -> bytes:
        escape = found[1] or b""
        if escape.isdigit():
            number = int(escape, 8)
        else:
            number = _ESCAPES.get(escape[0], 256) if escape else 256
        if number > 255:
            raise InvalidConfig(
                f"a path of the patch cannot be read: {text[:60]!r}", context={"field": "--patch"}
            )
        return bytes([number])

    return _QUOTED.sub(meant, text[1:-1])


def _mode(text: bytes | None) -> int | None:
    """Git knows files, programs and links; a patch of a link is not taken."""
    if text is None:
        return None
    if text not in (b"100644", b"100755"):
        raise InvalidConfig(
            f"a patch can make files and programs, not mode {text.decode('ascii', 'replace')[:10]}"
        )
    return 0o755 if text == b"100755" else 0o644
