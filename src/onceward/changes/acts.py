"""What may be asked of changes: marked, swept, reviewed, applied, verified, given up. What lies outside the store is
looked at before the transaction."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from onceward.artifacts.bases import base_of
from onceward.artifacts.file_names import os_path, recorded_path
from onceward.artifacts.tree_state import rules_of
from onceward.changes import cut as cutting
from onceward.changes import lifecycle as changes
from onceward.changes import rules
from onceward.changes.lifecycle import Proposed
from onceward.changes.manifest import Manifest
from onceward.core.acts import Agrees, Payload, SignedEvent, act, all_of, anything, on, says, work
from onceward.core.canon import parse
from onceward.core.changes import DECISIONS, LINK, ChangeSet
from onceward.core.limits import MAX_NOTE_CHARS
from onceward.core.orders import Order, Seconds
from onceward.core.tree_paths import REGISTRY, TREE, check_link, is_machinery
from onceward.registry.rules import require_plan
from onceward.store.port import Reads
from onceward.store.tables.builds import Builds
from onceward.store.tables.changes import Changes
from onceward.store.transaction import Transaction

if TYPE_CHECKING:
    from onceward.kernel.kernel import Kernel

Run = Callable[[Transaction, str], Any]


def _whole_id(rows: Reads, name: str) -> str:
    return Changes(rows).named(name).entry_id


def _reason_agrees(claim: SignedEvent, payload: Payload) -> bool:
    return bool(payload.get("reason", "")[:MAX_NOTE_CHARS] == (claim.detail["why"] or ""))


def _mark_agrees(claim: SignedEvent, payload: Payload) -> bool:
    needs = sorted(set(payload.get("depends_on", ())))
    by_child = payload.get("child", "") == (claim.detail["child"] or "")
    return by_child and needs == (claim.detail["depends_on"] or [])


_MARKED: Agrees = all_of(
    says("manifest"), says("key", "idempotency_key"), _mark_agrees, _reason_agrees
)
_REVISED: Agrees = all_of(on("revises"), says("manifest"), _reason_agrees)


def _decision_agrees(claim: SignedEvent, payload: Payload) -> bool:
    decision = DECISIONS.get(claim.event, claim.detail["decision"])
    return bool(payload["decision"] == decision)


_REVIEWED: Agrees = all_of(
    on("entry"), says("digest", "manifest"), _decision_agrees, _reason_agrees
)


class Mark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    manifest: str
    """The digest of a manifest that was brought, with every content that it names."""
    key: str = ""
    reason: str = ""
    depends_on: list[str] = []
    revises: str = ""
    """The entry in whose place it is proposed."""
    child: str = ""
    """The child that proposes it, which has shown that it is that."""


@act(
    "changes.mark",
    role="operator",
    prepares=True,
    once=True,
    for_children=True,
    ids={"entry": _whole_id, "revises": _whole_id, "depends_on": _whole_id},
    makes={"ENTRY_MARKED": _MARKED, "ENTRY_REVISED": _REVISED},
    path="/changes",
    operation="markChange",
    summary="propose a change whose contents were uploaded",
)
def mark(kernel: Kernel, asked: Mark, principal: str) -> Run:
    what = _proposed(kernel, asked.manifest)
    reason = asked.reason[:MAX_NOTE_CHARS]

    def run(tx: Transaction, actor: str) -> Any:
        if asked.revises:
            entry, known = changes.revise(tx, actor, asked.revises, what, reason), False
        else:
            entry, known = changes.mark(
                tx,
                actor,
                asked.key,
                what,
                reason,
                depends_on=asked.depends_on,
                child=asked.child,
            )
        said = {"entry_id": entry.entry_id, "status": entry.status, "manifest": asked.manifest}
        return {**said, **({"known": True} if known else {})}

    return run


def _proposed(kernel: Kernel, digest: str) -> Proposed:
    """A manifest that somebody brought, in its one form, and all its contents, looked at."""
    artifacts = kernel.artifacts
    text = _bytes(kernel, digest)
    manifest = rules.require_manifest_text(text)
    digests = {
        digest
        for unit in manifest.unit
        for digest in (unit.before, unit.after)
        if digest is not None
    }
    blobs = {digest: artifacts.adopt(digest) for digest in sorted(digests)}
    _require_sound(kernel, manifest)
    return Proposed(manifest, artifacts, blobs)


def _require_sound(kernel: Kernel, manifest: Manifest) -> None:
    """What only its contents show: that links stay inside, that a plan for the registry is one."""
    if manifest.cutter == REGISTRY:
        (unit,) = manifest.unit if len(manifest.unit) == 1 else (None,)
        plan = (
            require_plan(parse(_bytes(kernel, unit.after)))
            if unit is not None and unit.after
            else None
        )
        rules.require_one_plan(manifest, None if plan is None else (plan.ref, plan.collection))
    elif manifest.cutter == TREE:
        _require_tree(kernel, manifest.target)
        _require_ignores(kernel, manifest)
        _require_origin(kernel, manifest)
    else:
        rules.require_known_cutter(manifest.cutter, kernel.cutters)
    for unit in manifest.unit:
        if unit.after_mode == LINK and unit.after is not None:
            check_link(unit.path, recorded_path(_bytes(kernel, unit.after)))


def _require_ignores(kernel: Kernel, manifest: Manifest) -> None:
    """What a proposal says of the tree's `.gitignore` files is so."""
    root = kernel.home / os_path(manifest.target)
    rules.require_same_ignores(manifest, rules_of(root, kernel.policy.ignore).digest())


def _require_origin(kernel: Kernel, manifest: Manifest) -> None:
    """What a proposal says of its base is what the build kept, and of what was changed since, all of it."""
    origin = manifest.origin
    if origin is None:
        return
    with kernel.store.read() as rows:
        base = base_of(rows, kernel.artifacts, Builds(rows).get(origin.build).build_id)
    kept = None if base is None else (base.build_id, base.sha256, base.tree)
    rules.require_kept_base(manifest.target, origin, kept)
    assert base is not None
    drift = base.drift(kernel.home / os_path(manifest.target))
    rules.require_same_drift(manifest.target, origin, drift)


def _require_tree(kernel: Kernel, target: str) -> None:
    """A tree by its one name: as seen from the workspace's folder if it lies there, with no link on the way, and not
    the workspace itself."""
    named = os_path(target)
    home, real = kernel.home.resolve(), (kernel.home / named).resolve()
    inside = real.is_relative_to(home)
    parts = real.relative_to(home).parts if inside else real.parts
    ours = real.is_relative_to(kernel.folder.resolve())
    rules.require_not_machinery(target, ours or any(is_machinery(part) for part in parts))
    absolute = target.startswith("/")
    own = real == (Path(named) if absolute else home / named) and not (absolute and inside)
    rules.require_own_name(target, str(real), own)
    rules.require_folder(target, real.is_dir())


def _bytes(kernel: Kernel, digest: str) -> bytes:
    blob = kernel.artifacts.adopt(digest)
    return blob.data if blob.data is not None else kernel.artifacts.path_of(digest).read_bytes()


class Sweep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


@act(
    "changes.sweep",
    role="operator",
    prepares=True,
    makes={"ENTRY_SWEPT": anything, "BACKLOG_SWEPT": anything},
    may_make={"REVIEW_WANTED": anything},
    path="/sweep",
    operation="sweepChanges",
    summary="queue marked and deferred changes for review",
)
def sweep(kernel: Kernel, asked: Sweep, principal: str) -> Run:
    return changes.sweep


class Review(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    entry: str
    decision: str
    digest: str
    """Of exactly what is proposed."""
    reason: str = ""


@act(
    "changes.review",
    role="reviewer",
    prepares=True,
    once=True,
    ids={"entry": _whole_id},
    makes=dict.fromkeys((*DECISIONS, "ENTRY_REVIEWED"), _REVIEWED),
    path="/changes/{entry}/review",
    operation="reviewChange",
    summary="approve, defer or reject a change",
)
def review(kernel: Kernel, asked: Review, principal: str) -> Run:
    if asked.decision == "defer":
        with kernel.store.read() as rows:
            changes.require_reviewable(
                rows,
                principal,
                asked.entry,
                decision=asked.decision,
                content_hash=asked.digest,
                policy=kernel.policy,
            )
        _close_cut(kernel, asked.entry)
    return lambda tx, actor: changes.review(
        tx,
        actor,
        asked.entry,
        decision=asked.decision,
        content_hash=asked.digest,
        reason=asked.reason[:MAX_NOTE_CHARS],
        policy=kernel.policy,
    )


class CutChange(Order, frozen=True):
    entry: str
    grant: str | None = None
    commit: bool = False


work(
    "changes.cut",
    CutChange,
    role="executor",
    ids={"entry": _whole_id},
    path="/changes/{entry}/cut",
    operation="cutChange",
    summary="apply an approved change",
)


class VerifyChange(Order, frozen=True):
    entry: str
    again: bool = False
    timeout: Seconds | None = None
    commit: bool = False
    accept_drift: str = ""
    """The digest of what else was changed in the tree since the cut, to be accepted."""


work(
    "changes.verify",
    VerifyChange,
    role="verifier",
    ids={"entry": _whole_id},
    path="/changes/{entry}/verify",
    operation="verifyChange",
    summary="verify an applied change",
)


class AbandonChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    entry: str
    reason: str


@act(
    "changes.abandon",
    role="admin",
    prepares=True,
    once=True,
    ids={"entry": _whole_id},
    makes={"ENTRY_ABANDONED": all_of(on("entry"), _reason_agrees)},
    path="/changes/{entry}/abandon",
    operation="abandonChange",
    summary="give a change up",
)
def abandon(kernel: Kernel, asked: AbandonChange, principal: str) -> Run:
    if asked.reason.strip():
        closed = _close_cut(kernel, asked.entry)
        if closed is not None and closed.status == "stuck":
            # Whoever gives a change up takes it as it is.
            give_up(kernel, closed)
    return lambda tx, actor: changes.abandon(tx, actor, asked.entry, asked.reason[:MAX_NOTE_CHARS])


def _close_cut(kernel: Kernel, entry_id: str) -> ChangeSet | None:
    """A cut whose kernel died half-way is first finished or undone (H-5)."""
    with kernel.store.read() as rows:
        open_ = Changes(rows).live_set(entry_id)
    return (
        cutting.close(kernel, kernel.actor, open_)
        if open_ is not None and open_.status != "applied"
        else None
    )


def give_up(kernel: Kernel, change_set: ChangeSet) -> None:
    """A cut that cannot be undone is taken as it is."""
    cutting.give_up(kernel, kernel.actor, change_set)
