"""Line numbers in a TOML text, so that a mistake is reported with its line."""

from __future__ import annotations

import re

_KEY = re.compile(
    r"""\s*((?:[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*="""
)

_PART = re.compile(r"""[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*'""")


class Lines:
    """The lines of tables and keys, by their path, in a TOML text that is valid."""

    def __init__(self, text: str) -> None:
        self._lines: dict[tuple[str | int, ...], int] = {}
        table: tuple[str | int, ...] = ()
        counts: dict[tuple[str | int, ...], int] = {}
        number = 0
        lines = text.split("\n")
        while number < len(lines):
            line, start = lines[number], number + 1
            number += 1
            bare = line.strip()
            if bare.startswith("["):
                table = self._table(bare, counts)
                self._lines.setdefault(table, start)
            elif found := _KEY.match(line):
                self._lines.setdefault((*table, *_parts(found[1])), start)
                number += _rest(line[found.end() :], lines[number:])

    def of(self, path: tuple[str | int, ...]) -> int:
        """The line of the nearest thing on this path; 0 if none is known."""
        while path:
            if path in self._lines:
                return self._lines[path]
            path = path[:-1]
        return 0

    def _table(
        self, header: str, counts: dict[tuple[str | int, ...], int]
    ) -> tuple[str | int, ...]:
        parts = _parts(header.split("]", 1)[0].strip("["))
        path: tuple[str | int, ...] = ()
        for part in parts[:-1]:
            path = (*path, part)
            if path in counts:
                path = (*path, counts[path])
        path = (*path, *parts[-1:])
        if header.startswith("[["):
            counts[path] = counts.get(path, -1) + 1
            path = (*path, counts[path])
        return path


def _parts(key: str) -> tuple[str, ...]:
    return tuple(part.strip("\"'") for part in _PART.findall(key))


def _rest(value: str, following: list[str]) -> int:
    """How many of the following lines still belong to a value: long strings, lists and tables."""
    used = 0
    while True:
        mark = next((m for m in ('"""', "'''") if value.count(m) % 2), None)
        open_ = _brackets(value) if mark is None else 1
        if open_ <= 0 or used >= len(following):
            return used
        value += "\n" + following[used]
        used += 1


def _brackets(value: str) -> int:
    """Brackets that are open at the end of a text, those in strings and comments left out."""
    bare = re.sub(
        r'"""(?:.|\n)*?"""|\'\'\'(?:.|\n)*?\'\'\'|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'|#[^\n]*',
        "",
        value,
    )
    return sum(bare.count(c) for c in "[{") - sum(bare.count(c) for c in "]}")
