"""Work in the foreground of a command: until it has ended, or somebody asks to stop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from onceward.core.sagas import Run
from onceward.engine import child_dispatch
from onceward.engine.build_run import BuildRun
from onceward.engine.kernel import Kernel
from onceward.engine.saga_run import SagaRun
from onceward.engine.work import Work
from onceward.errors import OncewardError
from onceward.lifecycles.child import Ended
from onceward.processes.prints import overheard

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
    cap = child_dispatch.chosen_cap(jobs, cap_of(kernel, session_id))
    children = kernel.open_session(session_id, cap, limits)
    children.on_held = held
    ended: dict[str, Ended] = {}
    with serving(kernel, stop, children.stop):
        ids = children.spawn(works)
        begun(ids)
        for child_id in ids:
            ended[child_id] = children.wait(child_id, told)
    return ended


def run_build(
    kernel: Kernel, build: BuildRun, stop: threading.Event, leaving: bool = False
) -> None:
    """Run a build until it has come to its end, or to a pause. `leaving` says that the process ends after this."""

    def on_stop() -> None:
        build.stop()
        build.children.stop()

    kernel.streams.look_over()
    with overheard(), serving(kernel, stop, on_stop):
        build.run()
        if leaving:
            build.wait_for_threads(stop)


def run_saga(kernel: Kernel, saga: SagaRun, stop: threading.Event | None = None) -> Run:
    """Run a saga until it is over or stuck; answers how it stands."""

    def on_stop() -> None:
        saga.stop()
        saga.children.stop()

    kernel.streams.look_over()
    try:
        with overheard(), serving(kernel, stop or threading.Event(), on_stop):
            return saga.run()
    finally:
        saga.children.close()


def cap_of(kernel: Kernel, session_id: str) -> int:
    """The cap a session has, or the usual one."""
    with kernel.store.read() as rows:
        return child_dispatch.cap_of(rows, session_id)
