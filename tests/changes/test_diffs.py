"""What a change would do, as people read it."""

from __future__ import annotations

import hashlib

import pytest

from onceward.changes.diffs import compared, diffs_of
from onceward.changes.manifest import Manifest
from onceward.core.changes import LINK, Unit
from onceward.core.limits import DIFF_BYTES


class Held:
    def __init__(self):
        self.known = {}

    def put(self, data):
        digest = hashlib.sha256(data).hexdigest()
        self.known[digest] = data
        return digest

    def read(self, digest):
        return iter([self.known[digest]])


def told(before, after, **modes):
    held = Held()
    unit = Unit(
        "f",
        None if before is None else held.put(before),
        None if after is None else held.put(after),
        modes.get("was", None if before is None else 0o644),
        modes.get("is_", None if after is None else 0o644),
    )
    (diff,) = diffs_of(held, Manifest("tree", "repo", (unit,)))
    return diff


@pytest.mark.rule("H-2")
def test_lines_that_go_and_come_stand_with_their_numbers():
    before = "".join(f"{n}\n" for n in range(1, 21)).encode()
    diff = told(before, before.replace(b"5\n", b"five\n", 1).replace(b"20\n", b"20\n21\n"))
    assert (diff.what, diff.added, diff.removed) == ("changed", 2, 1)
    assert [
        (line.sign, line.old, line.new, line.text) for line in diff.lines if line.sign != " "
    ] == [
        ("-", 5, None, "5"),
        ("+", None, 5, "five"),
        ("@", None, None, ""),
        ("+", None, 21, "21"),
    ]
    assert [line.text for line in diff.lines][:4] == ["2", "3", "4", "5"], "three lines beside"


def test_the_end_of_a_file_counts():
    assert [line.sign for line in told(b"a", b"a\n").lines] == ["-", "+"]
    assert told(b"", b"a\n").added == 1 and told(None, b"").lines == []
    assert compared([""], [""]) == []


def test_what_is_no_text_is_said_to_be_none():
    assert told(b"\0", b"a").note == "not text" and told(b"\xff", b"a").note == "not text"
    assert told(b"x" * (DIFF_BYTES + 1), b"a").note.startswith("larger than")
    assert told(b"a", b"b", was=0o644, is_=LINK).lines[-1].text == "-> b"


def test_renames_and_modes_are_told_as_such():
    held = Held()
    one, two = held.put(b"1"), held.put(b"2")
    units = (
        Unit("a", one, None, 0o644),
        Unit("b", None, one, None, 0o644),
        Unit("c", two, two, 0o644, 0o755),
        Unit("d", None, two, None, 0o644),
    )
    diffs = diffs_of(held, Manifest("tree", "repo", units))
    assert [(d.path, d.what, d.old_path) for d in diffs] == [
        ("b", "renamed", "a"),
        ("c", "mode", ""),
        ("d", "added", ""),
    ]
    assert (diffs[1].before_mode, diffs[1].after_mode) == ("644", "755")
    assert [d.path for d in diffs_of(held, Manifest("tree", "repo", units), ["c"])] == ["c"]
