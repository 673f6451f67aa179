"""How a queue of changes grows, and what a cut costs: ratios in one run.

python benchmarks/changes.py [--entries 10000]

- listing, filtering and sweeping with 10,000 entries against 100: the cost of one entry, and of one
  page
- a cut of 1, 10 and 100 MB: the cost of a byte, against a bare copy with a sync
- the same cut in a tree of 1,000 and of 20,000 other files
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onceward.changes import lifecycle as changes
from onceward.changes.cutters import TreeCutter
from onceward.changes.lifecycle import Proposed
from onceward.changes.manifest import Manifest
from onceward.changes.proposals import Wish, from_folder
from onceward.changes.views import change_counts, change_list
from onceward.core.canon import sha256_hex
from onceward.core.changes import Unit
from onceward.workspace import Workspace


def timed(act: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun


def queue(folder: Path, entries: int) -> dict[str, float]:
    workspace = Workspace(folder / ".onceward", store_url="sqlite", principal="bench")
    workspace.create()
    kernel = workspace.kernel()
    blob = kernel.artifacts.keep(b"x")
    what = Proposed(
        Manifest(
            "tree",
            "repo",
            (
                Unit(
                    path="a",
                    before=None,
                    after=sha256_hex(b"x"),
                    before_mode=None,
                    after_mode=0o644,
                ),
            ),
        ),
        kernel.artifacts,
        {blob.sha256: blob},
    )

    def mark(tx: Any) -> None:
        for _ in range(500):
            changes.mark(tx, author="bench", key=uuid.uuid4().hex, what=what, reason="why not")

    kernel.require("operator")
    marking = sum(timed(lambda: kernel.store.write(mark)) for _ in range(max(1, entries // 500)))
    total = max(1, entries // 500) * 500
    sweeping = 0.0
    while change_counts(kernel.store).get("marked"):
        sweeping += timed(lambda: kernel.store.write(lambda tx: changes.sweep(tx, "bench")))
    page = min(timed(lambda: change_list(kernel.store, ("review_pending",))) for _ in range(5))
    last = change_list(kernel.store, limit=total)[-2].entry_id
    deep = min(timed(lambda: change_list(kernel.store, before=last)) for _ in range(5))
    kernel.close()
    return {"mark": marking / total, "sweep": sweeping / total, "page": page, "last page": deep}


def cutting(folder: Path, size: int, others: int) -> tuple[float, float]:
    """Seconds to cut so many bytes, and to copy them with a sync."""
    workspace = Workspace(folder / ".onceward", store_url="sqlite", principal="bench")
    workspace.create()
    kernel = workspace.kernel()
    tree, wanted = folder / "repo", folder / "wanted"
    for number in range(others):
        place = tree / f"d{number % 100}" / f"f{number}"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(b"same")
    shutil.copytree(tree, wanted) if others else (tree.mkdir(), wanted.mkdir())
    for number in range(size >> 20):
        (wanted / f"new{number}").write_bytes(os.urandom(1 << 20))
    proposal = from_folder(Wish(tree, "repo"), wanted)
    proposal.bring(kernel.artifacts)
    for unit in proposal.manifest.unit:
        adopted = kernel.artifacts.adopt(unit.after or "")
        kernel.store.write(
            lambda tx, b=adopted, p=unit.path: kernel.artifacts.record(tx, "bench", p, "after", b)
        )
    cutter = TreeCutter(tree, kernel.artifacts, proposal.manifest, "cst_bench")

    def cut() -> None:
        cutter.check()
        cutter.keep()
        cutter.stage()
        cutter.apply()
        cutter.clear()

    def copy() -> None:
        for unit in proposal.manifest.unit:
            shutil.copyfile(wanted / unit.path, folder / "copied")
        os.sync()

    found = timed(cut), timed(copy)
    kernel.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--entries", type=int, default=10_000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        few = queue(Path(place) / "few", 500)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        many = queue(Path(place) / "many", asked.entries)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(f"{asked.entries:,} entries against 500, the cost of one:")
        for name, seconds in many.items():
            print(f"  {name:10s} {seconds * 1000:8.3f} ms   {seconds / few[name]:5.2f} x")
        print(f"  memory more {max(0, after - before) / 1024:.0f} MB")
        rates = {}
        for megabytes in (1, 10, 100):
            seconds, copied = cutting(Path(place) / f"b{megabytes}", megabytes << 20, 0)
            rates[megabytes] = seconds / megabytes
            print(
                f"cut of {megabytes:3d} MB: {seconds:6.3f} s, {seconds / copied:5.2f} x a copy with a sync"
            )
        print(f"  the cost of a byte, 100 MB against 10 MB: {rates[100] / rates[10]:.2f} x")
        small, _ = cutting(Path(place) / "t1", 1 << 20, 1_000)
        large, _ = cutting(Path(place) / "t20", 1 << 20, 20_000)
        print(
            f"1 MB in a tree of 20,000 other files against 1,000: {large / small:.2f} x ({large:.3f} s)"
        )


if __name__ == "__main__":
    main()
