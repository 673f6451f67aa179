"""The difference that a change makes, as the API answers it (I-3)."""

# No `from __future__ import annotations`: which keys may be missing is read when the class is made.
from typing import NotRequired, TypedDict


class DiffLine(TypedDict):
    sign: str
    old: int | None
    new: int | None
    text: str


class ChangedFile(TypedDict):
    path: str
    what: str
    before: NotRequired[str | None]
    after: NotRequired[str | None]
    note: NotRequired[str]
    cut_off: NotRequired[bool]
    lines: NotRequired[list[DiffLine]]
    added: NotRequired[int]
    removed: NotRequired[int]


class Diff(TypedDict):
    entry_id: str
    manifest: str
    target: str
    check: list[str]
    files: list[ChangedFile]
