"""A warm process that forks victims: each runs or resumes a build, and is killed somewhere.

One JSON line in: {"folder", "store", "plan", "build", "fault", "nth", "after"}; one out: how the victim ended.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import onceward.running as running
from onceward.engine.builds import Offer
from onceward.engine.plan_file import load
from onceward.kernel import faults
from onceward.wiring import Workspace


def live(order: dict) -> None:
    workspace = Workspace(Path(order["folder"]), store_url=order["store"], principal="victim")
    resolved = load(Path(order["plan"]))
    if order["fault"]:
        faults.arm(order["fault"], order["nth"])
    begun = Path(order["begun"])
    nothing = SimpleNamespace(
        begun=lambda build_id, *_: begun.write_text(build_id), told=lambda said: None, output=lambda *_: None
    )
    if order["build"]:
        outcome, _ = running.resume(workspace, order["build"], nothing, Offer(), resolved=resolved, jobs=3, reuse=False)
    else:
        outcome, _ = running.run(workspace, resolved, nothing, jobs=3, reuse=False)
    if outcome["state"] != "SUCCESS":
        print(outcome, file=sys.stderr)
        os._exit(3)


def main() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        victim = os.fork()
        if victim == 0:
            try:
                live(order)
                os._exit(0)
            except BaseException as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr)
                os._exit(1)
        if order["after"]:
            time.sleep(order["after"])
            os.kill(victim, signal.SIGKILL)
        _, status = os.waitpid(victim, 0)
        print(json.dumps(os.waitstatus_to_exitcode(status)), flush=True)


if __name__ == "__main__":
    main()
