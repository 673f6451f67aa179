"""A change before it touches anything: marked, swept, reviewed, abandoned; each one transaction (H-2 to H-4, H-7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onceward.errors import IllegalTransition, InvalidConfig, PermissionDenied, PermitInvalid, Recovery, RequestConflict
from onceward.kernel.canon import canonical
from onceward.kernel.changes import Decision, Entry, Envelope, History
from onceward.kernel.machine import NEW
from onceward.kernel.records import Move, check_name
from onceward.kernel.sources import Micros
from onceward.lifecycles import change as rules
from onceward.lifecycles.change import Manifest, Policy
from onceward.store.tables.changes import Changes, add_dependency, add_row, add_sweep, add_units
from onceward.store.tables.principals import Principals
from onceward.store.transaction import Transaction

_SWEPT = 1000
"""How many entries one pass brings up."""


def step(tx: Transaction, moves: Sequence[Move], signature: str | None = None) -> Entry:
    """Arrows of an entry's life, each with its history row, in one transaction (A-1)."""
    for move in moves:
        said = move.said()
        row = History(
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


def mark(
    tx: Transaction,
    author: str,
    key: str,
    manifest: Manifest,
    reason: str,
    depends_on: Sequence[str] = (),
    escalates: str | None = None,
) -> Entry:
    """Propose something; the same key again is the same entry (H-2)."""
    check_name(key, "idempotency_key")
    manifest = rules.checked(manifest)
    changes = Changes(tx)
    needed = sorted({changes.named(name).entry_id for name in depends_on})
    known = changes.by_key(key)
    if known is not None:
        same = changes.envelope(known.entry_id).content_hash == manifest.content_hash()
        if not same or (known.author, [e.entry_id for e in changes.depends_on(known.entry_id)]) != (author, needed):
            raise RequestConflict(
                f"the key {key[:80]} is that of {known.entry_id}, which proposes something else",
                context={"entry_id": known.entry_id},
            )
        return known
    entry_id = tx.sources.new_id("ent")
    entry = step(tx, [rules.mark(entry_id, key, manifest, author, reason, escalates)])
    for other in needed:
        add_dependency(tx, entry_id, other)
    propose(tx, entry, author, manifest, 1)
    return entry


def propose(tx: Transaction, entry: Entry, author: str, manifest: Manifest, revision: int) -> Envelope:
    """What exactly is proposed, as one more row."""
    envelope = Envelope(
        *(tx.sources.new_id("man"), entry.entry_id, revision, manifest.content_hash(), manifest.text(), author, tx.now)
    )
    add_row(tx, envelope)
    add_units(tx, envelope.manifest_id, manifest.unit)
    return envelope


def sweep(tx: Transaction, actor: str) -> dict[str, Any]:
    """Bring up what waits, as a pass of its own that is itself on the record (H-3)."""
    changes = Changes(tx)
    sweep_id = tx.sources.new_id("swp")
    entries = changes.promotable(_SWEPT)
    for entry in entries:
        step(tx, [rules.sweep(entry, actor, sweep_id)])
    waiting = changes.counts().get("review_pending", 0)
    said = {"sweep_id": sweep_id, "promoted": len(entries), "waiting": waiting}
    event = tx.append("workspace", "BACKLOG_SWEPT", actor, said)
    add_sweep(tx, sweep_id, actor, tx.now, len(entries), waiting, event.position)
    return {**said, "entries": [entry.entry_id for entry in entries]}


def review(
    tx: Transaction, reviewer: str, entry_id: str, decision: str, content_hash: str, reason: str, policy: Policy
) -> dict[str, Any]:
    """A person's word on exactly these bytes (H-4)."""
    if decision not in rules.WORDS:
        raise InvalidConfig("a review is approve, defer or reject", context={"field": "decision"})
    changes = Changes(tx)
    entry, envelope = changes.get(entry_id), changes.envelope(entry_id)
    if envelope.content_hash != content_hash:
        raise PermitInvalid(
            "this is not the digest of what the entry proposes now",
            context={"entry_id": entry_id, "manifest": envelope.content_hash},
            recovery=[Recovery("look at it again", f"onceward change show {entry_id}")],
        )
    if reviewer in (entry.author, envelope.author) and decision == "approve" and not policy.authors_may_review:
        raise PermissionDenied(
            f"{reviewer} proposed it, and authors do not approve their own changes here",
            context={"entry_id": entry_id},
            recovery=[Recovery("have somebody else review it, or set authors_may_review under [changes]")],
        )
    decisions = changes.decisions(entry_id, since=_came_up(changes, entry_id))
    mine = [one for one in decisions if one.reviewer == reviewer and one.content_hash == content_hash]
    if mine and mine[-1].decision == decision and _stands(entry, decision):
        return _said(entry, mine[-1], "")
    arrow = "reviewed_approved" if decision == "approve" else f"reviewed_{rules.WORDS[decision]}"
    if not (entry.status == "reviewed_approved" == arrow or rules.CHANGE.allows(entry.status, arrow)):
        raise IllegalTransition(
            f"the entry is {entry.status}; it cannot be {rules.WORDS[decision]} now",
            context={"entry_id": entry_id, "state": entry.status},
        )
    made = Decision(
        *(tx.sources.new_id("dec"), entry_id, content_hash, reviewer, decision, reason, tx.statement(), tx.now)
    )
    add_row(tx, made)
    lacks = ""
    if decision == "approve":
        roles = {one.name: one.roles for one in Principals(tx).all()}
        paths = rules.manifest_of(envelope.body).paths()
        lacks = rules.approved([*decisions, made], content_hash, policy, paths, roles)
    said = {"decision_id": made.decision_id, "manifest": content_hash, **({"why": reason} if reason else {})}
    if lacks or (decision == "approve" and entry.status == "reviewed_approved"):
        tx.append(f"entry:{entry_id}", "ENTRY_REVIEWED", reviewer, {**said, "decision": decision, "lacks": lacks})
    else:
        entry = step(tx, [rules.decide(entry, decision, reviewer, said)])
    return _said(entry, made, lacks)


def _came_up(changes: Changes, entry_id: str) -> Micros:
    """When an entry last came up for review: what was said before that is past."""
    return max((row.at for row in changes.history(entry_id) if row.to_state == "review_pending"), default=0)


def _stands(entry: Entry, decision: str) -> bool:
    """Whether a decision that was made is still what the entry says, or waits for others to say the same."""
    return entry.status == f"reviewed_{rules.WORDS[decision]}" or decision == "approve"


def _said(entry: Entry, decision: Decision, lacks: str) -> dict[str, Any]:
    said = {"entry_id": entry.entry_id, "status": entry.status, "decision_id": decision.decision_id}
    return {**said, "decision": decision.decision, **({"lacks": lacks} if lacks else {})}


def abandon(tx: Transaction, actor: str, entry_id: str, why: str) -> dict[str, Any]:
    """Give an entry up, from wherever it is; what is given up already stays so (H-7)."""
    entry = Changes(tx).get(entry_id)
    if not why.strip():
        raise InvalidConfig("whoever gives a change up says why", context={"field": "reason"})
    if entry.status != "abandoned":
        entry = step(tx, [rules.abandon(entry, actor, why)])
    return {"entry_id": entry_id, "status": entry.status}
