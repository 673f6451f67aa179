"""Target locks as people ask about them."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from onceward.locks import TargetLock
from onceward.locks.claims import SUFFIX


def lock_list(locks: TargetLock) -> list[dict[str, Any]]:
    """Every claim with its liveness in words; a file that does not say who is `unknown`."""
    entries = []
    for path, claim in locks.claims():
        target = path.name.removesuffix(SUFFIX)
        if claim is None:
            why = "its file is empty, damaged or another program's"
            entries.append({"target": target, "liveness": "unknown", "here": False, "why": why, "path": str(path)})
            continue
        verdict = locks.verdict(claim)
        said = msgspec.json.decode(claim.line())
        here = claim.hostname == os.uname().nodename
        entries.append({"target": target, "liveness": verdict.liveness, "here": here, "why": verdict.why, **said})
    return entries
