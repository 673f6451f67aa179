"""A warm process that forks victims: one JSON order a line in, one line out that says how the victim ended."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable


def serve(live: Callable[[dict], None], failed: int = 70) -> None:
    """Let a forked copy live each order; one with `after_micros` is killed then. `failed`: how an error ends it."""
    for line in sys.stdin:
        order = json.loads(line)
        victim = os.fork()
        if victim == 0:
            try:
                live(order)
            except BaseException as error:
                print(f"victim: {error!r}", file=sys.stderr, flush=True)
                os._exit(failed)
            os._exit(0)
        if order.get("after_micros"):
            time.sleep(order["after_micros"] / 1e6)
            os.kill(victim, signal.SIGKILL)
        _, status = os.waitpid(victim, 0)
        print(json.dumps(os.waitstatus_to_exitcode(status)), flush=True)
