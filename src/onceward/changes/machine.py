"""The life of a change: marked, reviewed, cut, verified (H-1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from onceward.changes.manifest import Manifest
from onceward.core.changes import Affected, ChangeSet, Entry
from onceward.core.machine import NEW, Machine
from onceward.core.records import Move
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
    """An entry is proposed, by a `child` in its author's name where one is given. `escalates` is the entry whose
    verification failed, who found that, and who had proposed it."""
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
    return Move(
        machine=CHANGE,
        subject=entry_id,
        source=NEW,
        target="marked",
        version=0,
        actor=actor,
        detail=said,
        columns=columns,
    )


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
    """The entry after an arrow, for the arrow that follows in the same transaction."""
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
    """A change set is opened: a cut, or the undoing of one."""
    columns: dict[str, Any] = {
        "entry_id": entry_id,
        "decision_id": decision_id,
        "executor": executor,
    }
    columns |= {"kind": "undo" if undoes else "cut", "of_change_set": undoes}
    said = {key: value for key, value in columns.items() if value is not None}
    return Move(
        machine=CHANGE_SET,
        subject=change_set_id,
        source=NEW,
        target="open",
        version=0,
        actor=executor,
        detail=said,
        columns=columns,
    )


def move_set(
    change_set: ChangeSet, target: str, reason: str, actor: str, said: Mapping[str, Any]
) -> Move:
    CHANGE_SET.follow(change_set.status, target, reason)
    return Move(
        machine=CHANGE_SET,
        subject=change_set.change_set_id,
        source=change_set.status,
        target=target,
        version=change_set.version,
        actor=actor,
        reason=reason,
        detail=said,
    )


def units_of(manifest: Manifest, change_set_id: str, undoing: bool = False) -> list[Affected]:
    """What a change set touches: the units of its manifest, reversed for an undo."""
    found = []
    for u in manifest.unit:
        here, there = (u.after, u.before) if undoing else (u.before, u.after)
        was, will = (u.after_mode, u.before_mode) if undoing else (u.before_mode, u.after_mode)
        found.append(
            Affected(
                change_set_id=change_set_id,
                path=u.path,
                place=place_of(manifest.target, u.path),
                before=here,
                after=there,
                before_mode=was,
                after_mode=will,
            )
        )
    return found


VERIFIABLE: Final = ("cut_applied", "verified_complete", "verify_failed_escalated")
"""Where there is a cut to verify."""


def _move(entry: Entry, target: str, reason: str, actor: str, said: Mapping[str, Any]) -> Move:
    CHANGE.follow(entry.status, target, reason)
    return Move(
        machine=CHANGE,
        subject=entry.entry_id,
        source=entry.status,
        target=target,
        version=entry.version,
        actor=actor,
        reason=reason,
        detail=said,
    )
