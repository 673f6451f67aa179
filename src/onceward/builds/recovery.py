"""What becomes of builds when a kernel takes a workspace, and when it leaves (L-23, L-24)."""

from __future__ import annotations

from onceward.builds.machine import crash, orphan
from onceward.kernel.parts import Part
from onceward.store.transaction import Transaction


def _orphan_active(tx: Transaction, actor: str) -> None:
    for build in tx.builds.in_state("ACTIVE"):
        tx.move(orphan(build, actor))


def _crash_active(tx: Transaction, actor: str) -> None:
    for build in tx.builds.in_state("ACTIVE"):
        tx.move(crash(build, actor))


PART = Part(name="build", orphan=_orphan_active, crash=_crash_active)
