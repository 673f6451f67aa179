"""The transactions of a change before it is cut: marked, revised, swept, reviewed, abandoned (H-2 to H-4, H-7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onceward.artifacts.blobs import Artifacts, Blob
from onceward.changes import machine, rules
from onceward.changes.manifest import Manifest, manifest_of
from onceward.changes.rules import Approvals
from onceward.core.canon import canonical
from onceward.core.changes import Decision, Entry, HistoryRow, ManifestEnvelope, Policy
from onceward.core.machine import NEW
from onceward.core.records import Move, check_name
from onceward.store.port import Reads, moment_of
from onceward.store.tables.changes import Changes, add_dependency, add_row, add_sweep, add_units
from onceward.store.tables.keys import find_key, find_signature
from onceward.store.tables.principals import Principals
from onceward.store.transaction import Transaction

_SWEPT = 1000
"""How many entries one pass brings up."""


def step(tx: Transaction, moves: Sequence[Move], signature: str | None = None) -> Entry:
    """Arrows of an entry, each with its history row, in one transaction (A-1)."""
    for move in moves:
        said = move.said()
        row = HistoryRow(
            history_id=tx.sources.new_id("his"),
            entry_id=move.subject,
            from_state=None if move.source == NEW else move.source,
            to_state=move.target,
            actor=move.actor,
            reason=move.reason or "marked",
            at=tx.now,
            detail=canonical(said).decode(),
            signature_ref=signature,
            seq=move.version + 1,
        )
        add_row(tx, row)
    tx.through(moves)
    return Changes(tx).get(moves[-1].subject)


class Proposed:
    """A manifest, and where each content that it names is stored."""

    def __init__(self, manifest: Manifest, artifacts: Artifacts, blobs: Mapping[str, Blob]) -> None:
        self.manifest, self.artifacts, self.blobs = manifest, artifacts, blobs


def mark(
    tx: Transaction,
    author: str,
    key: str,
    what: Proposed,
    reason: str,
    *,
    depends_on: Sequence[str] = (),
    child: str = "",
) -> tuple[Entry, bool]:
    """Propose a change; the same key is the same entry (H-2). Answers the entry, and whether it was there. `child`
    is the child that proposes it in its author's name."""
    check_name(key, "idempotency_key")
    changes, manifest = Changes(tx), what.manifest
    needed = sorted({changes.named(name).entry_id for name in depends_on})
    known = changes.by_key(key)
    if known is not None:
        rules.require_same_mark(
            known,
            key,
            author=author,
            manifest=manifest.content_hash(),
            proposed={one.content_hash for one in changes.envelopes(known.entry_id)},
            needs=needed,
            known_needs=[one.entry_id for one in changes.depends_on(known.entry_id)],
        )
        return known, True
    entry_id = tx.sources.new_id("ent")
    marked = machine.mark(entry_id, key, manifest, author, reason, depends_on=needed, child=child)
    entry = step(tx, [marked])
    for other in needed:
        add_dependency(tx, entry_id, other)
    propose(tx, entry, author, what, 1)
    return entry, False


def revise(tx: Transaction, author: str, entry_id: str, what: Proposed, reason: str) -> Entry:
    """Replace what an entry proposes: earlier approvals no longer count (H-4)."""
    changes = Changes(tx)
    entry, last = changes.get(entry_id), changes.envelope(entry_id)
    rules.require_revisable(entry)
    rules.require_same_place(entry, what.manifest)
    if last.content_hash != what.manifest.content_hash():
        made = propose(tx, entry, author, what, last.revision + 1)
        said = {
            "manifest": made.content_hash,
            "revision": made.revision,
            "author": author,
            "why": reason,
        }
        tx.append(f"entry:{entry_id}", "ENTRY_REVISED", author, said)
    return entry


def propose(
    tx: Transaction, entry: Entry, author: str, what: Proposed, revision: int
) -> ManifestEnvelope:
    """Record a manifest as the entry's next revision, with its contents."""
    manifest = what.manifest
    envelope = ManifestEnvelope(
        manifest_id=tx.sources.new_id("man"),
        entry_id=entry.entry_id,
        revision=revision,
        content_hash=manifest.content_hash(),
        body=manifest.text(),
        author=author,
        made_at=tx.now,
    )
    add_row(tx, envelope)
    add_units(tx, envelope.manifest_id, manifest.unit)
    for unit in manifest.unit:
        for side, digest in (("before", unit.before), ("after", unit.after)):
            if digest is not None:
                what.artifacts.record(tx, envelope.manifest_id, unit.path, side, what.blobs[digest])
    return envelope


def sweep(tx: Transaction, actor: str) -> dict[str, Any]:
    """Put waiting entries up for review, and record the pass (H-3)."""
    changes = Changes(tx)
    sweep_id = tx.sources.new_id("swp")
    entries = changes.promotable(_SWEPT)
    for entry in entries:
        step(tx, [machine.sweep(entry, actor, sweep_id)])
    waiting = changes.counts().get("review_pending", 0)
    said = {"sweep_id": sweep_id, "promoted": len(entries), "waiting": waiting}
    event = tx.append("workspace", "BACKLOG_SWEPT", actor, said)
    if entries:
        tx.append("workspace", "REVIEW_WANTED", actor, said)
    add_sweep(
        tx,
        sweep_id,
        actor,
        tx.now,
        promoted=len(entries),
        waiting=waiting,
        position=event.position,
    )
    return {**said, "entries": [entry.entry_id for entry in entries]}


def require_reviewable(
    rows: Reads, reviewer: str, entry_id: str, *, decision: str, content_hash: str, policy: Policy
) -> tuple[Entry, bool]:
    """The entry, if this reviewer can decide so about exactly this manifest now; and whether they are one of its
    authors."""
    rules.require_decision(decision)
    changes = Changes(rows)
    entry, envelope = changes.get(entry_id), changes.envelope(entry_id)
    rules.require_current_manifest(entry_id, envelope.content_hash, content_hash)
    authors = authors_of(changes, entry)
    rules.require_other_author(entry_id, reviewer, decision, authors, policy)
    said = _said_so(
        rows, entry, reviewer, decision=decision, content_hash=content_hash, policy=policy
    )
    rules.require_decidable(entry, decision, said is not None)
    return entry, reviewer in authors


def review(
    tx: Transaction,
    reviewer: str,
    entry_id: str,
    *,
    decision: str,
    content_hash: str,
    reason: str,
    policy: Policy,
) -> dict[str, Any]:
    """Record a reviewer's decision about exactly this manifest (H-4)."""
    entry, own = require_reviewable(
        tx, reviewer, entry_id, decision=decision, content_hash=content_hash, policy=policy
    )
    known = _said_so(
        tx, entry, reviewer, decision=decision, content_hash=content_hash, policy=policy
    )
    if known is not None:
        return _said(
            entry, known, approvals_of(tx, entry, policy).lack() if decision == "approve" else ""
        )
    if decision == "defer":
        require_no_cut(tx, entry_id)
    made = Decision(
        decision_id=tx.sources.new_id("dec"),
        entry_id=entry_id,
        content_hash=content_hash,
        reviewer=reviewer,
        decision=decision,
        reason=reason,
        statement_hash=tx.statement(),
        decided_at=tx.now,
        entry_version=entry.version,
    )
    add_row(tx, made)
    approvals = approvals_of(tx, entry, policy)
    lacks = approvals.lack() if decision == "approve" else ""
    said: dict[str, Any] = {"decision_id": made.decision_id, "manifest": content_hash}
    said |= {"why": reason} if reason else {}
    said |= {"own": True} if own and decision == "approve" else {}
    if decision == "approve":
        # What was asked for, at the time: a rule that is changed later says nothing of what was decided before.
        said["needs"] = [
            [rule.glob, rule.approvals, rule.role] for rule in policy.rules(approvals.places)
        ]
    if lacks or (decision == "approve" and entry.status == "reviewed_approved"):
        tx.append(
            f"entry:{entry_id}",
            "ENTRY_REVIEWED",
            reviewer,
            {**said, "decision": decision, "lacks": lacks},
        )
    else:
        entry = step(tx, [machine.decide(entry, decision, reviewer, said)])
    return _said(entry, made, lacks)


def authors_of(changes: Changes, entry: Entry) -> set[str]:
    """Everybody who wrote a revision of an entry."""
    return {entry.author, *(one.author for one in changes.envelopes(entry.entry_id))}


def require_no_cut(rows: Reads, entry_id: str) -> None:
    """LOCK_CONFLICT while a cut is under way or stuck: it is finished or undone first."""
    rules.require_no_cut(entry_id, Changes(rows).live_set(entry_id))


def _said_so(
    rows: Reads, entry: Entry, reviewer: str, *, decision: str, content_hash: str, policy: Policy
) -> Decision | None:
    """The reviewer's own last decision, if it is the same, still stands and has not expired."""
    mine = [
        one
        for one in _since(rows, entry)
        if one.reviewer == reviewer and one.content_hash == content_hash
    ]
    if not mine or mine[-1].decision != decision or not _stands(entry, decision):
        return None
    fresh = mine[-1].decided_at + policy.approval_seconds * 1_000_000 > moment_of(rows)
    return (
        mine[-1] if fresh or entry.status not in ("review_pending", "reviewed_approved") else None
    )


def _since(rows: Reads, entry: Entry) -> list[Decision]:
    """The decisions since an entry was last put up for review."""
    changes = Changes(rows)
    since = max(
        (row.seq for row in changes.history(entry.entry_id) if row.to_state == "review_pending"),
        default=0,
    )
    return changes.decisions(entry.entry_id, since=since)


def approvals_of(rows: Reads, entry: Entry, policy: Policy) -> Approvals:
    """The decisions since an entry was last put up for review that count now: of people who are reviewers still,
    whose keys are in force, and who are no authors where those may not review."""
    changes = Changes(rows)
    envelope = changes.envelope(entry.entry_id)
    roles = {one.name: one.roles for one in Principals(rows).all()}
    authors = set() if policy.authors_may_review else authors_of(changes, entry)
    counting = [
        one
        for one in _since(rows, entry)
        if not roles.get(one.reviewer, frozenset()).isdisjoint(("reviewer", "admin"))
        and one.reviewer not in authors
        and _in_force(rows, one)
    ]
    return Approvals(
        counting, envelope.content_hash, manifest_of(envelope.body).places(), policy, roles
    )


def _in_force(rows: Reads, decision: Decision) -> bool:
    signed = find_signature(rows, decision.statement_hash or "")
    key = find_key(rows, signed.fingerprint) if signed is not None else None
    return key is not None and key.revoked_seq is None


def _stands(entry: Entry, decision: str) -> bool:
    """Whether a decision is still in force, or waits for further approvals."""
    return entry.status == f"reviewed_{machine.WORDS[decision]}" or decision == "approve"


def _said(entry: Entry, decision: Decision, lacks: str) -> dict[str, Any]:
    said = {"entry_id": entry.entry_id, "status": entry.status, "decision_id": decision.decision_id}
    return {**said, "decision": decision.decision, **({"lacks": lacks} if lacks else {})}


def abandon(tx: Transaction, actor: str, entry_id: str, why: str) -> dict[str, Any]:
    """Abandon an entry, from any state; an abandoned entry stays so (H-7)."""
    entry = Changes(tx).get(entry_id)
    rules.require_reason(why)
    if entry.status != "abandoned":
        require_no_cut(tx, entry_id)
        entry = step(tx, [machine.abandon(entry, actor, why)])
    return {"entry_id": entry_id, "status": entry.status}
