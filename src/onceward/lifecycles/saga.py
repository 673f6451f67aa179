"""The life of the assembly saga's run (S-2): eight states forward, a named stop for every failure."""

from __future__ import annotations

from onceward.kernel.machine import Machine

SAGA = Machine.parse(
    "saga",
    """
    new              -> S0_PREFLIGHT      -                SAGA_CREATED
    S0_PREFLIGHT     -> S1_RESERVED       state_done       SAGA_ADVANCED
    S1_RESERVED      -> S2_SCHEMA         state_done       SAGA_ADVANCED
    S2_SCHEMA        -> S3_VERIFY_SCHEMA  state_done       SAGA_ADVANCED
    S3_VERIFY_SCHEMA -> S4_VALUES         state_done       SAGA_ADVANCED
    S4_VALUES        -> S5_VERIFY_VALUES  state_done       SAGA_ADVANCED
    S5_VERIFY_VALUES -> S6_EVIDENCE       state_done       SAGA_ADVANCED
    S6_EVIDENCE      -> S7_FINALIZE       state_done       SAGA_ADVANCED
    S7_FINALIZE      -> DONE              state_done       SAGA_DONE

    S0_PREFLIGHT                 -> ABORT_PREFLIGHT  action_failed | check_failed   SAGA_STOPPED
    S1_RESERVED                  -> ABORT_NO_LEASE   action_failed | check_failed   SAGA_STOPPED
    S2_SCHEMA | S3_VERIFY_SCHEMA -> COMP_SCHEMA      action_failed | check_failed   SAGA_STOPPED
    S4_VALUES | S5_VERIFY_VALUES -> COMP_VALUES      action_failed | check_failed   SAGA_STOPPED
    S6_EVIDENCE                  -> COMP_EVIDENCE    action_failed | check_failed   SAGA_STOPPED
    S7_FINALIZE                  -> COMP_FINALIZE    action_failed | check_failed   SAGA_STOPPED
    COMP_FINALIZE                -> DONE             finished_forward               SAGA_DONE

    terminal DONE ABORT_PREFLIGHT ABORT_NO_LEASE COMP_SCHEMA COMP_VALUES COMP_EVIDENCE
    """,
)
