"""Target locks as people ask about them."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from onceward.dispatch import rules
from onceward.locks import TargetLock
from onceward.locks.claims import SUFFIX, check_target


def lock_list(locks: TargetLock) -> list[dict[str, Any]]:
    """Every claim with its liveness in words; a file that does not say who is `unknown`."""
    entries: list[dict[str, Any]] = []
    for file, verdict in locks.inspect():
        claim = file.claim
        fields = msgspec.json.decode(claim.line()) if claim else {"path": str(file.path)}
        named_here = claim is not None and claim.hostname == os.uname().nodename
        why = "its file is empty, damaged or another program's"
        entries.append(
            {
                "target": file.path.name.removesuffix(SUFFIX),
                "liveness": verdict.liveness if verdict else "unknown",
                # Whoever has the file locked is on this machine, whatever the claim says.
                "here": named_here or file.held,
                "why": verdict.why if verdict else why,
                **fields,
            }
        )
    return entries


def lock_named(locks: TargetLock, target: str) -> dict[str, Any]:
    """All that is known of one target's claim."""
    check_target(target)
    return dict(rules.require_claim(target, lock_list(locks)))


def claim_of(locks: TargetLock, target: str, nonce: str | None) -> dict[str, Any]:
    """A claim that somebody may clear: of nobody who lives here, and, where they say which, the one they looked at."""
    entry = lock_named(locks, target)
    locks.require_clearable(target)
    rules.require_same_claim(nonce, entry.get("nonce"))
    return entry
