"""Runs of sagas as stored: where one stands, what its actions left, and the lease it works under
(S-1, S-4)."""

from __future__ import annotations

from typing import Literal

import msgspec

from onceward.core.sources import Micros

Side = Literal["action", "compensation"]


class Run(msgspec.Struct, frozen=True):
    """A run as stored. Its shape came with it, so that what it may do is known without the code that defined it."""

    saga_id: str
    name: str
    idempotency_root: str
    shape: str
    """Its states and stops, as canonical text."""
    input: str
    """What it was given, as canonical text."""
    file: str
    """Where its code was read, relative to the workspace's own folder; empty for what is
    shipped."""
    grant_id: str | None
    lease: str
    """The name of the lease that it works under."""
    lease_fence: int
    """The epoch it last took; 0 if it has none yet."""
    digests: str
    """What its grant must name, as canonical text."""
    last_ok_state: str | None
    undone: int
    """How many compensations of its stop are done."""
    stuck: str | None
    """Why a compensation could not be done, if one could not."""
    settled: int
    """Whether nothing more will happen: 1 at the end of a stop's compensations."""
    state: str
    version: int
    created_at: Micros = 0
    updated_at: Micros = 0

    @property
    def over(self) -> bool:
        """Whether it came to its end: DONE, or a named stop with its compensation done."""
        return self.state == "DONE" or bool(self.settled)


class Lease(msgspec.Struct, frozen=True):
    """Who may write under a name, and until when; the fence grows with every holder."""

    name: str
    holder: str
    token: str
    fence: int
    expires_at: Micros


class SagaStep(msgspec.Struct, frozen=True):
    """What came of an action or a compensation of a run."""

    saga_id: str
    step: str
    side: Side
    status: Literal["done", "failed"]
    outputs: str
    child_id: str
    error: str | None
