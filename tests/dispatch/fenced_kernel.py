"""A kernel with a child that runs until a line comes in, and then finds that another has taken its place."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from onceward.dispatch.work import Function
from onceward.errors import OncewardError
from onceward.workspace import Workspace


def main() -> None:
    kernel = Workspace(Path(sys.argv[1]), store_url=sys.argv[2], principal="first").kernel()
    children = kernel.open_session("ses_a", 1)
    (child_id,) = children.spawn([Function(call=lambda task: sys.stdin.readline(), name="wait")])
    while child_id not in children.running:
        pass
    print(json.dumps(child_id), flush=True)
    try:
        children.wait(child_id)
        print("it went on", flush=True)
    except OncewardError as error:
        print(error.code, flush=True)
    kernel.close()


if __name__ == "__main__":
    main()
