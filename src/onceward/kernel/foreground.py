"""Work in the foreground of a command: until it has ended, or somebody asks to stop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from onceward.dispatch import queue
from onceward.dispatch.machine import Ended
from onceward.dispatch.work import Work
from onceward.errors import OncewardError
from onceward.kernel.kernel import Kernel

Told = Callable[[str, Ended], None]


@contextmanager
def serving(kernel: Kernel, stop: threading.Event, on_stop: Callable[[], None]) -> Iterator[None]:
    """While work goes on, the kernel answers what others ask; `on_stop` is called once somebody asks to stop. One that
    is served already is left to it."""
    answered = kernel.served
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
        on_stop()

    threads = [threading.Thread(target=heed_stop, name="stop")]
    threads += [] if answered else [threading.Thread(target=serve, name="serve")]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        stop.set()
        for thread in threads:
            thread.join()
    if failure:
        raise failure[0]


def run(
    kernel: Kernel,
    session_id: str,
    jobs: int | None,
    limits: Mapping[str, int],
    works: Sequence[Work],
    stop: threading.Event,
    begun: Callable[[list[str]], None],
    told: Told,
    held: Callable[[str, str], None] | None = None,
) -> dict[str, Ended]:
    """Run works as children of a session; answers how each ended. `held` is told of those that wait for a target."""
    kernel.streams.look_over()
    cap = queue.chosen_cap(jobs, cap_of(kernel, session_id))
    children = kernel.open_session(session_id, cap, limits)
    children.on_held = held
    ended: dict[str, Ended] = {}
    with serving(kernel, stop, children.stop):
        ids = children.spawn(works)
        begun(ids)
        for child_id in ids:
            ended[child_id] = children.wait(child_id, told)
    return ended


def cap_of(kernel: Kernel, session_id: str) -> int:
    """The cap a session has, or the usual one."""
    with kernel.store.read() as rows:
        return queue.cap_of(rows, session_id)
