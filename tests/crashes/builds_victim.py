"""A warm process that forks victims: each runs or resumes a build, and is killed somewhere.

One JSON line in: {"folder", "store", "plan", "build", "fault", "nth", "after_micros"}; one out: how the victim ended.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import onceward.running as running
from onceward.builds.jobs import BuildOptions
from onceward.builds.lifecycle import Offer
from onceward.builds.plan_file import load
from onceward.core import faults
from onceward.workspace import Workspace


def live(order: dict) -> None:
    workspace = Workspace(Path(order["folder"]), store_url=order["store"], principal="victim")
    plan = Path(order["plan"])
    if order["fault"]:
        faults.arm(order["fault"], order["nth"])
    begun = Path(order["begun"])
    nothing = SimpleNamespace(told=lambda said: None, end=lambda: None)
    options = BuildOptions(jobs=3, reuse=False)
    nothing.begun = lambda build: begun.write_text(build.build_id)
    if order["build"]:
        outcome, _ = running.resume(
            workspace, order["build"], nothing, Offer(), options, plan_file=plan
        )
    else:
        outcome, _ = running.run(workspace, load(plan), nothing, options)
    if outcome["state"] != "SUCCESS":
        print(outcome, file=sys.stderr)
        os._exit(3)


if __name__ == "__main__":
    from warm import serve

    serve(live, failed=1)
