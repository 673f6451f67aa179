"""The life of a change: marked, reviewed, cut, verified (H-1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any, Final

import msgspec

from onceward.changes.manifest import Manifest
from onceward.core.changes import (
    Affected,
    ChangeSet,
    Decision,
    Entry,
    PairSignature,
    Policy,
)
from onceward.core.machine import NEW, Machine
from onceward.core.records import Move
from onceward.core.sources import Micros
from onceward.core.tree_paths import place_of

CHANGE = Machine.parse(
    "change",
    """
    new                -> marked                   -            ENTRY_MARKED
    marked             -> review_pending           swept        ENTRY_SWEPT
    review_pending     -> reviewed_approved        approved     ENTRY_APPROVED
    review_pending     -> reviewed_deferred        deferred     ENTRY_DEFERRED
    review_pending     -> reviewed_rejected        rejected     ENTRY_REJECTED
    reviewed_deferred  -> review_pending           swept        ENTRY_SWEPT
    reviewed_approved  -> reviewed_deferred        deferred     ENTRY_DEFERRED
    reviewed_approved  -> cut_in_progress          cut_started  ENTRY_CUT_STARTED
    cut_in_progress    -> cut_applied              cut_done     ENTRY_CUT
    cut_applied        -> verify_in_progress       verify_started  ENTRY_VERIFY_STARTED
    verify_in_progress -> verified_complete        verify_passed   ENTRY_VERIFIED
    verify_in_progress -> verify_failed_escalated  verify_failed   ENTRY_ESCALATED

    marked | review_pending | reviewed_approved | reviewed_deferred | cut_applied -> abandoned abandoned ENTRY_ABANDONED
    reviewed_rejected | verified_complete | verify_failed_escalated -> abandoned abandoned ENTRY_ABANDONED bookkeeping

    terminal reviewed_rejected verified_complete verify_failed_escalated abandoned
    transient cut_in_progress verify_in_progress
    """,
    columns="""
    idempotency_key  detail.idempotency_key  ENTRY_MARKED
    author           detail.author           ENTRY_MARKED
    cutter           detail.cutter           ENTRY_MARKED
    target           detail.target           ENTRY_MARKED
    reason           detail.why              ENTRY_MARKED
    escalates        detail.escalates        ENTRY_MARKED
    """,
)

CHANGE_SET = Machine.parse(
    "change_set",
    """
    new  -> open     -            CUT_OPENED
    open -> applied  all_there    CUT_APPLIED
    open -> undone   taken_back   CUT_UNDONE
    open -> stuck    not_ours     CUT_STUCK
    stuck -> open    retried      CUT_RETRIED
    open | stuck -> undone  given_up  CUT_UNDONE

    terminal applied undone
    """,
    columns="""
    entry_id       detail.entry_id       CUT_OPENED
    decision_id    detail.decision_id    CUT_OPENED
    kind           detail.kind           CUT_OPENED
    of_change_set  detail.of_change_set  CUT_OPENED
    executor       detail.executor       CUT_OPENED
    """,
)

WORDS: Final = {"approve": "approved", "defer": "deferred", "reject": "rejected"}


def mark(
    entry_id: str,
    key: str,
    manifest: Manifest,
    author: str,
    reason: str,
    depends_on: Sequence[str] = (),
    escalates: tuple[str, str, str] | None = None,
    child: str = "",
) -> Move:
    """Something is proposed, by a `child` in its author's name where one is given; or proposed again, because
    `escalates` names an entry that failed, who found that, and who had proposed what it says."""
    known = {
        "idempotency_key": key,
        "author": author,
        "cutter": manifest.cutter,
        "target": manifest.target,
    }
    failed, actor, proposer = escalates or (None, author, author)
    columns = {**known, "reason": reason, "escalates": failed}
    said: dict[str, Any] = {**known, "manifest": manifest.content_hash(), "why": reason}
    said |= {"depends_on": list(depends_on)} if depends_on else {}
    said |= {"escalates": failed} if failed else {}
    said |= {"child": child} if child else {}
    said |= {"proposed_by": proposer} if proposer != author else {}
    return Move(CHANGE, entry_id, NEW, "marked", 0, actor, detail=said, columns=columns)


REVISABLE: Final = ("marked", "review_pending", "reviewed_deferred")
"""Where what is proposed may still be changed: what is approved is deferred first."""


def sweep(entry: Entry, actor: str, sweep_id: str) -> Move:
    return _move(entry, "review_pending", "swept", actor, {"sweep_id": sweep_id})


def decide(entry: Entry, decision: str, actor: str, said: Mapping[str, Any]) -> Move:
    """A decision that counts."""
    word = WORDS[decision]
    return _move(entry, f"reviewed_{word}", word, actor, said)


def abandon(entry: Entry, actor: str, why: str) -> Move:
    return _move(entry, "abandoned", "abandoned", actor, {"why": why})


def start_cut(entry: Entry, actor: str, change_set_id: str) -> Move:
    return _move(entry, "cut_in_progress", "cut_started", actor, {"change_set_id": change_set_id})


def through(entry: Entry, move: Move) -> Entry:
    """An entry as an arrow leaves it, for the arrow that follows at once."""
    return msgspec.structs.replace(entry, status=move.target, version=move.version + 1)


def end_cut(entry: Entry, actor: str, said: Mapping[str, Any]) -> Move:
    return _move(entry, "cut_applied", "cut_done", actor, said)


def start_verify(entry: Entry, actor: str, change_set_id: str) -> Move:
    return _move(
        entry, "verify_in_progress", "verify_started", actor, {"change_set_id": change_set_id}
    )


def end_verify(entry: Entry, actor: str, passed: bool, said: Mapping[str, Any]) -> Move:
    if passed:
        return _move(entry, "verified_complete", "verify_passed", actor, said)
    return _move(entry, "verify_failed_escalated", "verify_failed", actor, said)


def open_set(
    change_set_id: str, entry_id: str, decision_id: str, executor: str, undoes: str | None = None
) -> Move:
    """Something is about to be carried out, or undone."""
    columns: dict[str, Any] = {
        "entry_id": entry_id,
        "decision_id": decision_id,
        "executor": executor,
    }
    columns |= {"kind": "undo" if undoes else "cut", "of_change_set": undoes}
    said = {key: value for key, value in columns.items() if value is not None}
    return Move(CHANGE_SET, change_set_id, NEW, "open", 0, executor, detail=said, columns=columns)


def move_set(
    change_set: ChangeSet, target: str, reason: str, actor: str, said: Mapping[str, Any]
) -> Move:
    CHANGE_SET.follow(change_set.status, target, reason)
    return Move(
        *(
            CHANGE_SET,
            change_set.change_set_id,
            change_set.status,
            target,
            change_set.version,
            actor,
            reason,
            said,
        )
    )


class Objection(msgspec.Struct, frozen=True):
    """Why something may not be, by its code."""

    code: str
    why: str


def approved(
    decisions: Sequence[Decision],
    content_hash: str,
    policy: Policy,
    places: Sequence[str],
    roles: Mapping[str, Set[str]],
) -> str:
    """What approvals of exactly these bytes still lack, in words; empty if they are enough. Of every reviewer the last
    word counts, as they came; `roles` says who has which."""
    last: dict[str, Decision] = {}
    for decision in decisions:
        if decision.content_hash == content_hash:
            last[decision.reviewer] = decision
    for_it = {reviewer for reviewer, decision in last.items() if decision.decision == "approve"}
    for rule in policy.rules(places):
        if len(for_it) < rule.approvals:
            return f"{rule.glob} needs {rule.approvals} approvals, and has {len(for_it)}"
        if rule.role and not any(rule.role in roles.get(reviewer, ()) for reviewer in for_it):
            return f"{rule.glob} needs an approval by somebody with the role {rule.role}"
    return ""


def units_of(manifest: Manifest, change_set_id: str, undoing: bool = False) -> list[Affected]:
    """What a change set touches: what its manifest says, or the other way round."""
    found = []
    for u in manifest.unit:
        here, there = (u.after, u.before) if undoing else (u.before, u.after)
        was, will = (u.after_mode, u.before_mode) if undoing else (u.before_mode, u.after_mode)
        found.append(
            Affected(
                change_set_id, u.path, place_of(manifest.target, u.path), here, there, was, will
            )
        )
    return found


class Approvals(msgspec.Struct, frozen=True):
    """What there is to say for an entry: who approved what, and what the workspace wants."""

    decisions: Sequence[Decision]
    """Since the entry last came up, of people whose word still counts."""
    content_hash: str
    """Of what it proposes now."""
    places: Sequence[str]
    policy: Policy
    roles: Mapping[str, Set[str]]

    def lack(self, since: Micros = 0) -> str:
        """What is missing for it to be approved, of what was said since; empty if nothing is."""
        counting = [one for one in self.decisions if one.decided_at > since]
        return approved(counting, self.content_hash, self.policy, self.places, self.roles)

    def last(self) -> Decision | None:
        """The approval that made it so."""
        found = [
            one
            for one in self.decisions
            if one.decision == "approve" and one.content_hash == self.content_hash
        ]
        return found[-1] if found else None


def cut_objection(
    entry: Entry, approvals: Approvals, open_deps: Sequence[str], now: Micros
) -> Objection | None:
    """Why an entry may not be cut (G-CUT-APPROVED, APPROVAL_EXPIRED, G-CUT-DEPS)."""
    if entry.status != "reviewed_approved":
        return Objection("G-CUT-APPROVED", f"the entry is {entry.status}, not approved")
    lack = approvals.lack()
    if lack or approvals.last() is None:
        return Objection(
            "G-CUT-APPROVED",
            f"it is not approved as it is now: {lack or 'nobody approved these bytes'}",
        )
    if approvals.lack(now - approvals.policy.approval_seconds * 1_000_000):
        return Objection("APPROVAL_EXPIRED", "its approval is too old")
    if open_deps:
        return Objection("G-CUT-DEPS", f"{', '.join(open_deps[:5])} must be verified first")
    return None


VERIFIABLE: Final = ("cut_applied", "verified_complete", "verify_failed_escalated")


def verify_objection(
    entry: Entry,
    executor: PairSignature | None,
    hands: Set[str],
    principal: str,
    fingerprint: str,
    tool_revision: str,
) -> Objection | None:
    """Why somebody may not verify a cut (G-VERIFY-CUT, G-VERIFY-SOD); `hands` are all who had one in it."""
    if executor is None or entry.status not in VERIFIABLE:
        return Objection("G-VERIFY-CUT", f"the entry is {entry.status}; there is no cut to verify")
    if principal in (executor.principal, *hands):
        return Objection(
            "G-VERIFY-SOD", f"{principal} carried it out; somebody else must verify it"
        )
    if executor.fingerprint == fingerprint:
        return Objection(
            "G-VERIFY-SOD", "the key that signed the cut must not sign its verification"
        )
    if executor.tool_revision == tool_revision:
        return Objection("G-VERIFY-SOD", "what carried it out must not be what verifies it")
    return None


def _move(entry: Entry, target: str, reason: str, actor: str, said: Mapping[str, Any]) -> Move:
    CHANGE.follow(entry.status, target, reason)
    return Move(CHANGE, entry.entry_id, entry.status, target, entry.version, actor, reason, said)
