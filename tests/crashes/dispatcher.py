"""A dispatcher to be killed: starts children under target locks, each start made durable before it runs.

dispatcher.py FOLDER NONCE FAULT NTH
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from onceward.core import faults
from onceward.locks import TargetLock
from onceward.processes.launcher import Processes, ProcessOrder, environment

WORK = """
echo "$ONCEWARD_CHILD" >> {folder}/witness
(setsid sh -c 'sleep 1000 # {nonce}' &)
(setsid env -i sh -c 'trap "" TERM; sleep 1000 # {nonce}' </dev/null >/dev/null 2>&1 &)
trap '' TERM
exec sleep 1000.{number}
"""


def main() -> None:
    folder, nonce, fault, nth = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
    started = os.open(folder / "started", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    locks = TargetLock(folder / "locks")
    processes = Processes(grace=0.3)
    if fault != "-":
        faults.arm(fault, nth)
    running = []
    for number in range(4):
        name = f"chd_{nonce}_{number}"
        claim = locks.acquire(f"t{number}")

        def commit(who, name=name):
            os.write(started, f"{name} {who.pid} {who.process_start}\n".encode())
            os.fsync(started)

        text = WORK.format(folder=folder, nonce=nonce, number=number)
        order = ProcessOrder(
            name, ["sh", "-c", text], folder, environment((), {}), lock=claim.descriptor
        )
        running.append(processes.start(order, commit))
    print("all running", flush=True)
    running[0].seen(60)


if __name__ == "__main__":
    main()
