"""The life of a child: phases of its dispatch token (C-3, C-6)."""

from __future__ import annotations

from onceward.kernel.machine import Machine

CHILD = Machine.parse(
    "child",
    """
    new             -> queued    -                                                    -
    queued          -> leased    -                                                    -
    leased          -> started   -                                                    WORKER_START
    started         -> terminal  completed                                            WORKER_PASS
    started         -> terminal  execution_failed | timeout | budget_exceeded         WORKER_FAIL
    started         -> terminal  terminated_on_restart                                WORKER_FAIL
    queued | leased -> terminal  lease_orphaned | start_failed | budget_exceeded      WORKER_FAIL
    queued | leased | started -> terminal  cancelled                                  WORKER_CANCEL

    terminal terminal
    """,
)
