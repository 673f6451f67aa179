"""What the API answers about sagas, grants, the registry and changes (I-3)."""

# No `from __future__ import annotations`: which keys may be missing is read when the class is made.
from typing import Any, NotRequired, TypedDict

from onceward.edges.http.shapes import Lane, Said


class Saga(TypedDict):
    saga_id: str
    name: str
    root: str
    state: str
    standing: str
    created_at: NotRequired[str]


class Action(TypedDict):
    step: str
    side: str
    status: str
    child_id: NotRequired[str]
    error: NotRequired[Said]


class SagaInFull(Saga):
    steps: list[Action]
    lanes: list[Lane]
    lease_held: bool
    input: NotRequired[Any]
    stuck: NotRequired[Said]
    why: NotRequired[Said]
    next: NotRequired[str]


class Grant(TypedDict):
    grant_id: str
    status: str
    scope: Said
    scope_digest: str
    expires_at: NotRequired[str]
    granter: NotRequired[str]
    consumed_by_root: NotRequired[str]
    finalized_at: NotRequired[str]
    about: NotRequired[Any]


class Value(TypedDict):
    value: str
    vocab_id: str
    status: str
    digest: str
    semantics_frozen: bool
    successor: NotRequired[str]


class Collection(TypedDict):
    collection: str
    collection_id: str
    status: str
    values: list[Value]


class Foreseen(TypedDict):
    plan: str
    collection: str
    scope: Said
    scope_digest: str
    objections: list[Any]


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
