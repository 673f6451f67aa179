"""Delivery beside a kernel's work: one thread per sink, and a bounded flush when the kernel leaves (K-6)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence

from onceward.core.faults import SimulatedCrash
from onceward.core.limits import LEAVING_SECONDS, REQUEST_POLL_SECONDS
from onceward.kernel.outbox import Delivery, deliver_to
from onceward.kernel.sinks import Sink
from onceward.store.store import Store

_RETRY_SECONDS = 1.0
"""How long a thread waits after the store refused it."""

_LOOK_SECONDS = 0.02
"""How often a leaving kernel looks whether somebody interrupts it."""


class SinkThread:
    """Delivers to one sink, so that no sink waits for another.

    Its thread is a daemon: a sink that never returns keeps neither the kernel nor the process. The kernel's thread
    calls `leave`, `cancel` and `abandon`; each only sets flags that the delivering thread looks at."""

    def __init__(self, store: Store, sink: Sink, *, once: bool = False) -> None:
        """With `once` it makes a single pass, over everything that is due."""
        self._store, self._sink, self._once = store, sink, once
        self._leaving = threading.Event()
        if once:
            self._leaving.set()
        self._abandoned = threading.Event()
        self.result = Delivery(sink.name, delivered=0, failed=0)
        """What the last pass came to."""
        self.error: BaseException | None = None
        """Why the last pass could not be made."""
        self._thread = threading.Thread(target=self._run, name=f"sink {sink.name}", daemon=True)
        self._thread.start()

    @property
    def local(self) -> bool:
        return self._sink.deadline is None

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def leave(self) -> None:
        """Make one more pass, over everything that is committed now, and end."""
        if self._sink.deadline is not None:
            self._sink.deadline.leave()
        self._leaving.set()

    def cancel(self) -> None:
        """End a call to a remote sink at once; what it accepted before is still settled."""
        if self._sink.deadline is not None:
            self._sink.deadline.cancel()

    def abandon(self) -> None:
        """Settle nothing more: the writer lock is about to be another's, or is already."""
        self.cancel()
        self._abandoned.set()
        self._leaving.set()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def _run(self) -> None:
        while not self._abandoned.is_set():
            # Looked at before the pass: a pass that begins after `leave` sees every event committed before it.
            leaving = self._leaving.wait(REQUEST_POLL_SECONDS)
            self._pass(again=self._once or self.local or not leaving)
            if leaving or isinstance(self.error, SimulatedCrash):
                return
            if self.error is not None:
                # A kernel that may no longer write, or cannot, is stopped by its own loop; this one only waits.
                self._leaving.wait(_RETRY_SECONDS)

    def _pass(self, *, again: bool) -> None:
        self.error = None
        try:
            self.result = deliver_to(
                self._store, self._sink, again=again, abandoned=self._abandoned.is_set
            )
        except BaseException as error:
            self.error = error


class DeliveryThreads:
    """The delivery threads of one kernel."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._threads: dict[str, SinkThread] = {}

    def start(self, sinks: Iterable[Sink]) -> None:
        """Deliver to these from now on, beside those that are served already."""
        for sink in sinks:
            if sink.name not in self._threads:
                self._threads[sink.name] = SinkThread(self._store, sink)

    def flush(self, interrupted: threading.Event) -> None:
        """Tell every sink what is committed now, and end delivery.

        A local sink is waited for until it has everything, a remote one until its deadline. Once `interrupted`, no
        remote sink is waited for, and a local one only for as long as a disk may take."""
        threads = list(self._threads.values())
        try:
            for thread in threads:
                thread.leave()
            while any(thread.alive for thread in threads) and not interrupted.is_set():
                interrupted.wait(_LOOK_SECONDS)
            for thread in threads:
                thread.cancel()
            _join(threads, LEAVING_SECONDS)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """End delivery here and now; what is under way is repeated by the next kernel."""
        for thread in list(self._threads.values()):
            thread.abandon()


def deliver_at_once(
    store: Store, sinks: Sequence[Sink], meanwhile: Callable[[], object]
) -> list[Delivery]:
    """One pass over all sinks at the same time; `meanwhile` is called again and again until all are done."""
    threads = [SinkThread(store, sink, once=True) for sink in sinks]
    try:
        while any(thread.alive for thread in threads):
            meanwhile()
            _join(threads, REQUEST_POLL_SECONDS)
    finally:
        for thread in threads:
            if thread.alive:
                thread.abandon()
    for thread in threads:
        if thread.error is not None:
            raise thread.error
    return [thread.result for thread in threads]


def _join(threads: Sequence[SinkThread], seconds: float) -> None:
    """Wait for all of them, for so long together."""
    until = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
