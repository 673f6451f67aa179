"""A kernel whose command starts a process that hides: it leaves its session and clears its environment.

hidden_kernel.py run FOLDER COMMAND [TARGET]    run the command as a child until somebody kills this process
hidden_kernel.py heir FOLDER                    recover what it left, and print what is recorded of it
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

from onceward.dispatch.work import Command
from onceward.errors import LockConflict
from onceward.store.tables.children import last_detail_of
from onceward.workspace import Workspace


def run(workspace: Workspace, command: str, target: str | None) -> None:
    workspace.create()
    kernel = workspace.kernel()
    children = kernel.open_session("ses_a", 1)
    work = Command(argv=["sh", "-c", command], cwd=workspace.folder.parent, target=target)
    (child_id,) = children.spawn([work])
    with children.changed:
        children.changed.wait_for(lambda: child_id in children.running)
    running = children.running[child_id]
    while running.process is None or running.process.supervisor is None:
        threading.Event().wait(0.01)
    print(json.dumps([child_id, running.process.supervisor.pid]), flush=True)
    children.wait(child_id)


def heir(workspace: Workspace) -> None:
    kernel = workspace.kernel()
    with kernel.store.read() as rows:
        ((child_id,),) = rows.read("SELECT child_id FROM urm_dispatch_token")
        detail = last_detail_of(rows, child_id)
    try:
        kernel.locks.release(kernel.locks.acquire("shared"))
        free = True
    except LockConflict:
        free = False
    kernel.close()
    unconfirmed = kernel.recovered.unconfirmed
    print(json.dumps({"detail": detail, "unconfirmed": unconfirmed, "target_free": free}))


if __name__ == "__main__":
    place = Workspace(Path(sys.argv[2]) / ".onceward", principal="tester")
    if sys.argv[1] == "run":
        run(place, sys.argv[3], sys.argv[4] if len(sys.argv) > 4 else None)
    else:
        heir(place)
