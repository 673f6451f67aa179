"""A run whose webhook does not answer, with all the time in the world to wait for it: only a signal ends it.

leaving_kernel.py FOLDER STORE
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

from onceward import Plan, running
from onceward.builds.choices import Choices
from onceward.builds.jobs import BuildOptions
from onceward.builds.plans import Resolved
from onceward.kernel import sinks
from onceward.workspace import Workspace


def main() -> int:
    sinks.WEBHOOK_TIMEOUT_SECONDS = sinks.FLUSH_SECONDS = 3600.0
    folder = Path(sys.argv[1])
    workspace = Workspace(folder, store_url=sys.argv[2], principal="tester")
    plan = Plan("quick", folder=folder.parent)
    plan.stage(name="work")(lambda task: 1)
    silent = SimpleNamespace(
        begun=lambda begun: None, told=lambda said: None, end=lambda: print("over", flush=True)
    )
    outcome, status = running.run(
        workspace, Resolved(plan, Choices()), silent, BuildOptions(leaving=True)
    )
    print(outcome["state"], outcome["untold"], flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
