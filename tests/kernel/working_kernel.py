"""A kernel at work, to be signalled: holds a workspace, runs a build with a stubborn child, writes without pause.

working_kernel.py FOLDER STORE NONCE
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from onceward.builds import machine as rules
from onceward.kernel.signals import Signals
from onceward.processes.launcher import ProcessOrder, environment
from onceward.workspace import Workspace


def main() -> int:
    folder, nonce = Path(sys.argv[1]), sys.argv[3]
    workspace = Workspace(folder, store_url=sys.argv[2], principal="tester")
    workspace.create()
    stop = threading.Event()
    with Signals(stop, leaving=True) as signals:
        kernel = workspace.kernel()
        kernel.processes.grace = 0.3
        build_id = kernel.store.sources.new_id("bld")

        def begin(tx):
            tx.move(rules.create(build_id, "work", "tester"))
            tx.move(rules.move(tx.builds.get(build_id), "ACTIVE", "build_started", "tester"))

        kernel.store.write(begin)
        text = f"(setsid sh -c 'sleep 1000 # {nonce}' &); trap '' TERM; while :; do sleep 1; done # {nonce}"
        order = ProcessOrder(f"chd_{nonce}", ["sh", "-c", text], folder, environment((), {}))
        kernel.processes.start(order, lambda who: None)

        def write_on():
            while not stop.is_set():
                kernel.store.write(lambda tx: tx.append("workspace", "NOTED", "tester", {}))

        writing = threading.Thread(target=write_on)
        writing.start()
        print(f"working {build_id}", flush=True)
        kernel.run(stop)
        writing.join()
        kernel.close()
    return signals.exit_status


if __name__ == "__main__":
    sys.exit(main())
