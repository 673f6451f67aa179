"""Lock files as a dead, foreign or broken holder would have left them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from onceward.locks import TargetLock

GONE = 4_194_304
"""One more than the largest pid Linux gives out."""


def plant(folder: Path, target: str = "t", **change: Any) -> Path:
    """A claim as a dead holder of this machine would have left it: nobody has its file locked."""
    fields = {
        "targetId": target,
        "pid": GONE,
        "hostname": os.uname().nodename,
        "createdAt": "2026-01-01T00:00:00Z",
        "nonce": "dead",
        "owner": "onceward",
        "lockPath": str(folder / f"{target}.lock"),
        **change,
    }
    TargetLock(folder)._require_folder()
    path = folder / f"{target}.lock"
    path.write_text(json.dumps({k: v for k, v in fields.items() if v is not None}) + "\n")
    return path
