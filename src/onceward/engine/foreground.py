"""Children run in the foreground of a command: until all have ended, or somebody asks to stop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from onceward.engine.kernel import Kernel
from onceward.engine.work import Work
from onceward.errors import OncewardError
from onceward.kernel.limits import MAX_ACTIVE_CHILDREN
from onceward.lifecycles.child import Ended
from onceward.store.tables.children import Sessions

Told = Callable[[str, Ended], None]


def run(
    kernel: Kernel,
    session_id: str,
    jobs: int | None,
    limits: Mapping[str, int],
    works: Sequence[Work],
    stop: threading.Event,
    begun: Callable[[list[str]], None],
    told: Told,
) -> dict[str, Ended]:
    """Run works as children of a session while the kernel answers what others ask; answers how each ended."""
    kernel.streams.look_over()
    children = kernel.open_session(session_id, jobs or _cap_of(kernel, session_id), limits)
    done = threading.Event()
    failure: list[OncewardError] = []

    def serve() -> None:
        try:
            kernel.run(done)
        except OncewardError as error:
            failure.append(error)
            stop.set()

    def heed_stop() -> None:
        stop.wait()
        children.stop()

    threads = [threading.Thread(target=serve, name="serve"), threading.Thread(target=heed_stop, name="stop")]
    for thread in threads:
        thread.start()
    ended: dict[str, Ended] = {}
    try:
        ids = children.spawn(works)
        begun(ids)
        for child_id in ids:
            ended[child_id] = children.wait(child_id, told)
    finally:
        done.set()
        stop.set()
        for thread in threads:
            thread.join()
    if failure:
        raise failure[0]
    return ended


def _cap_of(kernel: Kernel, session_id: str) -> int:
    """The cap a session has, or the usual one."""
    with kernel.store.read() as rows:
        known = Sessions(rows).find(session_id)
    return known.max_active_children if known else MAX_ACTIVE_CHILDREN
