"""Many processes that want the same grant, each for its own run: exit status 0 for who got it, 7 for who did not."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from onceward import saga_running
from onceward.errors import OncewardError, PermitInvalid
from onceward.sagas.declaration import Saga
from onceward.workspace import Workspace


def saga(folder: Path) -> Saga:
    made = Saga("race", granted=True, folder=folder)

    @made.action
    def write(task):
        with (folder / "effects").open("a") as file:
            file.write(f"{task.root}\n")

    return made


def want(workspace: Workspace, number: int, grant: str) -> int:
    while True:
        try:
            given = {"root": f"r{number}", "given": [1], "grant": grant}
            outcome, _ = saga_running.run(workspace, saga(workspace.folder.parent), **given)
            return 0 if outcome.standing == "done" else 8
        except PermitInvalid:
            return 7
        except OncewardError as error:
            # Not its turn, or not in time for it: coming again with the same root is safe.
            if not error.retryable and error.code not in ("LOCK_CONFLICT", "LOCK_LOST"):
                raise
            time.sleep(0.05 + 0.005 * number)


def main() -> None:
    folder, store, grant, count = sys.argv[1:]
    children = []
    for number in range(int(count)):
        child = os.fork()
        if child == 0:
            status = 9
            try:
                status = want(
                    Workspace(Path(folder), store_url=store, principal="tester"), number, grant
                )
            except BaseException as error:
                print(f"racer {number}: {error!r}", file=sys.stderr, flush=True)
            finally:
                os._exit(status)
        children.append(child)
    endings = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    print(json.dumps(endings))


if __name__ == "__main__":
    main()
