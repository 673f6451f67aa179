"""Target locks as people ask about them."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from onceward.errors import InvalidConfig, LockConflict, NotFound
from onceward.locks import TargetLock
from onceward.locks.claims import SUFFIX, check_target


def lock_list(locks: TargetLock) -> list[dict[str, Any]]:
    """Every claim with its liveness in words; a file that does not say who is `unknown`."""
    entries = []
    for path, claim in locks.claims():
        target = path.name.removesuffix(SUFFIX)
        if claim is None:
            why = "its file is empty, damaged or another program's"
            entries.append(
                {
                    "target": target,
                    "liveness": "unknown",
                    "here": False,
                    "why": why,
                    "path": str(path),
                }
            )
            continue
        verdict = locks.verdict(claim)
        said = msgspec.json.decode(claim.line())
        here = claim.hostname == os.uname().nodename
        entries.append(
            {
                "target": target,
                "liveness": verdict.liveness,
                "here": here,
                "why": verdict.why,
                **said,
            }
        )
    return entries


def lock_named(locks: TargetLock, target: str) -> dict[str, Any]:
    """All that is known of one target's claim."""
    check_target(target)
    for entry in lock_list(locks):
        if entry["target"] == target:
            return entry
    raise NotFound(f"nothing has claimed {target}")


def claim_of(locks: TargetLock, target: str, nonce: str | None) -> dict[str, Any]:
    """A claim that somebody may clear: of nobody who lives here, and, where they say which, the one they looked at."""
    entry = lock_named(locks, target)
    if entry["liveness"] == "alive" and entry["here"]:
        raise LockConflict(
            f"{target} is held by a process that lives: {entry['why']}; end it first"
        )
    if nonce is not None and nonce != (entry.get("nonce") or "unreadable"):
        raise InvalidConfig(
            "the claim has another nonce; look at it again", context={"field": "nonce"}
        )
    return entry
