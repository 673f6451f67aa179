"""A warm process that forks victims: each cuts a change, or verifies one, and is killed somewhere.

One JSON line in: {"folder", "store", "act", "entry", "counted", "fault", "nth"}.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from onceward.changes.cut import cut
from onceward.changes.verify import verify
from onceward.core import faults
from onceward.workspace import Workspace

WHO = {"cut": "max", "verify": "vic"}


def live(order: dict) -> None:
    workspace = Workspace(
        Path(order["folder"]), store_url=order["store"], principal=WHO[order["act"]]
    )
    counts: Counter = Counter()
    kernel = workspace.kernel()
    if order["counted"]:
        faults._armed = lambda name: counts.update([name])
    elif order["fault"]:
        faults.arm(order["fault"], order["nth"])
    try:
        (cut if order["act"] == "cut" else verify)(kernel, kernel.actor, order["entry"])
    finally:
        kernel.close()
    if order["counted"]:
        (workspace.folder.parent / "counts").write_text(json.dumps(counts))


if __name__ == "__main__":
    from warm import serve

    serve(live, failed=1)
