"""What the API answers about changes (I-3)."""

# No `from __future__ import annotations`: which keys may be missing is read when the class is made.
from typing import Any, NotRequired, TypedDict

from onceward.edges.http.shapes import Said


class Change(TypedDict):
    entry_id: str
    status: str
    author: str
    cutter: str
    target: str
    reason: str
    created_at: NotRequired[str]
    escalates: NotRequired[str]


class ChangeInFull(Change):
    manifest: str
    revision: int
    units: list[Said]
    needs: list[str]
    lacks: NotRequired[str]
    check: NotRequired[list[str]]
    origin: NotRequired[Said]
    child: NotRequired[str]
    decisions: NotRequired[list[Said]]
    change_sets: NotRequired[list[Said]]
    results: NotRequired[list[Said]]
    signatures: NotRequired[list[Said]]
    waits_for: NotRequired[str]
    next: NotRequired[str]


class Arrow(TypedDict):
    at: str
    detail: Any


class Line(TypedDict):
    sign: str
    old: int | None
    new: int | None
    text: str


class FileDiff(TypedDict):
    path: str
    what: str
    before: NotRequired[str | None]
    after: NotRequired[str | None]
    note: NotRequired[str]
    cut_off: NotRequired[bool]
    lines: NotRequired[list[Line]]
    added: NotRequired[int]
    removed: NotRequired[int]


class Diff(TypedDict):
    entry_id: str
    manifest: str
    target: str
    check: list[str]
    files: list[FileDiff]
