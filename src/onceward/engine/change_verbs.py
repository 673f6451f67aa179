"""What may be asked of changes from anywhere: marked, swept, reviewed, given up. What lies outside the store is looked
at before the transaction."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from onceward.engine import changes
from onceward.engine.changes import Proposed
from onceward.errors import InvalidConfig
from onceward.kernel.canon import parse
from onceward.kernel.changes import LINK
from onceward.kernel.limits import MAX_NOTE_CHARS
from onceward.lifecycles.manifest import REGISTRY, TREE, Manifest, check_link, checked, manifest_of
from onceward.lifecycles.registry import plan_of
from onceward.store.tables.changes import Changes
from onceward.store.transaction import Transaction

if TYPE_CHECKING:
    from onceward.engine.kernel import Kernel

Run = Callable[[Transaction, str], Any]


class Mark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    manifest: str
    """The digest of a manifest that was brought, with every content that it names."""
    key: str = ""
    reason: str = ""
    depends_on: list[str] = []
    revises: str = ""
    """The entry in whose place it is proposed."""


def mark(kernel: Kernel, asked: Mark) -> Run:
    what = _proposed(kernel, asked.manifest)
    reason = asked.reason[:MAX_NOTE_CHARS]

    def run(tx: Transaction, actor: str) -> Any:
        if asked.revises:
            entry, known = changes.revise(tx, actor, asked.revises, what, reason), False
        else:
            entry, known = changes.mark(tx, actor, asked.key, what, reason, asked.depends_on)
        said = {"entry_id": entry.entry_id, "status": entry.status, "manifest": asked.manifest}
        return {**said, **({"known": True} if known else {})}

    return run


def _proposed(kernel: Kernel, digest: str) -> Proposed:
    """A manifest that somebody brought, in its one form, and all its contents, looked at."""
    artifacts = kernel.artifacts
    text = _bytes(kernel, digest)
    try:
        manifest = manifest_of(text)
    except msgspec.MsgspecError as error:
        raise InvalidConfig(f"this is no manifest: {error}", context={"field": "manifest"}) from None
    if checked(manifest).text().encode() != text:
        raise InvalidConfig("the manifest is not in its one form", context={"field": "manifest"})
    digests = {digest for unit in manifest.unit for digest in (unit.before, unit.after) if digest is not None}
    blobs = {digest: artifacts.adopt(digest) for digest in sorted(digests)}
    _require_sound(kernel, manifest)
    return Proposed(manifest, artifacts, blobs)


def _require_sound(kernel: Kernel, manifest: Manifest) -> None:
    """What only its contents show: that links stay inside, that a plan for the registry is one."""
    if manifest.cutter == REGISTRY:
        (unit,) = manifest.unit if len(manifest.unit) == 1 else (None,)
        plan = plan_of(parse(_bytes(kernel, unit.after))) if unit is not None and unit.after else None
        if plan is None or unit is None or (plan.ref, plan.collection) != (unit.path, manifest.target):
            raise InvalidConfig("a change of the registry is one plan, under its own name", context={"field": "unit"})
    elif manifest.cutter not in (TREE, *kernel.cutters):
        raise InvalidConfig(f"there is no cutter {manifest.cutter[:60]!a} here", context={"field": "cutter"})
    for unit in manifest.unit:
        if unit.after_mode == LINK and unit.after is not None:
            check_link(unit.path, os.fsdecode(_bytes(kernel, unit.after)))


def _bytes(kernel: Kernel, digest: str) -> bytes:
    blob = kernel.artifacts.adopt(digest)
    return blob.data if blob.data is not None else kernel.artifacts.path_of(digest).read_bytes()


class Review(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    entry: str
    decision: str
    digest: str
    """Of exactly what is proposed."""
    reason: str = ""


def review(kernel: Kernel, asked: Review) -> Run:
    if asked.decision == "defer":
        _close_cut(kernel, asked.entry)
    said = (asked.entry, asked.decision, asked.digest, asked.reason[:MAX_NOTE_CHARS], kernel.policy)
    return lambda tx, actor: changes.review(tx, actor, *said)


class Abandon(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    entry: str
    reason: str


def abandon(kernel: Kernel, asked: Abandon) -> Run:
    if asked.reason.strip():
        _close_cut(kernel, asked.entry)
    return lambda tx, actor: changes.abandon(tx, actor, asked.entry, asked.reason[:MAX_NOTE_CHARS])


def _close_cut(kernel: Kernel, entry_id: str) -> None:
    """A cut whose kernel died half-way is first finished or undone (H-5)."""
    from onceward.engine.cutting import close

    with kernel.store.read() as rows:
        open_ = Changes(rows).live_set(entry_id)
    if open_ is not None and open_.status != "applied":
        close(kernel, open_)


class Sweep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


def sweep(kernel: Kernel, asked: Sweep) -> Run:
    return changes.sweep
