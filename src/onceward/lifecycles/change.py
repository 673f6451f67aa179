"""The life of a change: marked, reviewed, cut, verified (H-1)."""

from __future__ import annotations

from onceward.kernel.machine import Machine

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
)
