"""Events as they come, to however many listen: read once, sent to all, resumed by id without gap or repeat (I-3)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Final

from onceward.engine.feeding import Fed, Feeding, events_after
from onceward.errors import OncewardError
from onceward.kernel.limits import FEED_SECONDS
from onceward.serving import Service

_QUEUE: Final = 2000
"""How far behind somebody may be who listens; further, and they come again by themselves, with the last id they had."""
BEAT: Final = b": beat\n\n"


class Listener:
    """Somebody who listens to one stream, or to all."""

    def __init__(self, stream: str | None) -> None:
        self.stream = stream
        self.queue: asyncio.Queue[Fed | None] = asyncio.Queue(_QUEUE)
        self.gone = False

    def offer(self, events: list[Fed]) -> None:
        """Called on the loop: what is new, as far as it is for them."""
        for event in events:
            if self.gone or (self.stream is not None and event.stream != self.stream):
                continue
            try:
                self.queue.put_nowait(event)
            except asyncio.QueueFull:
                # They are let go of rather than held in memory; their browser asks for the rest.
                self.gone = True
                self.queue.get_nowait()
                self.queue.put_nowait(None)


class Feed:
    """One thread that looks for what is new while anybody listens."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._feeding = Feeding()
        self._listeners: dict[asyncio.AbstractEventLoop, set[Listener]] = {}
        self._mutex = threading.Lock()
        self._wake, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._wake.set()
        self._thread.join()
        with self._mutex:
            everybody = [(loop, set(some)) for loop, some in self._listeners.items()]
        for loop, some in everybody:
            for listener in some:
                loop.call_soon_threadsafe(_end, listener)

    async def listen(self, stream: str | None, after: int) -> AsyncIterator[bytes]:
        """What came since an id, and then whatever comes, as server-sent events; a beat where nothing does."""
        loop = asyncio.get_running_loop()
        listener = Listener(stream)
        with self._mutex:
            self._listeners.setdefault(loop, set()).add(listener)
        self._wake.set()
        try:
            yield b"retry: 1000\n\n"
            # Whoever came was already listening when this is read: what both tell of is told once.
            last = after
            while True:
                some = await asyncio.to_thread(events_after, self._service.store, stream, last)
                for event in some:
                    last = event.id_in(stream)
                    yield event.sent(stream)
                if not some:
                    break
            while True:
                try:
                    came: Fed | None = await asyncio.wait_for(listener.queue.get(), 15)
                except TimeoutError:
                    yield BEAT
                    continue
                if came is None:
                    return
                if came.id_in(stream) > last:
                    last = came.id_in(stream)
                    yield came.sent(stream)
        finally:
            listener.gone = True
            with self._mutex:
                self._listeners.get(loop, set()).discard(listener)

    @property
    def listeners(self) -> int:
        with self._mutex:
            return sum(len(some) for some in self._listeners.values())

    def _run(self) -> None:
        while not self._stop.is_set():
            if not self.listeners:
                self._feeding.forget()
                self._wake.wait()
                self._wake.clear()
                continue
            try:
                events = self._feeding.look(self._service.store)
            except OncewardError:
                events = []
            if events:
                with self._mutex:
                    everybody = [(loop, list(some)) for loop, some in self._listeners.items()]
                for loop, some in everybody:
                    loop.call_soon_threadsafe(_offer, some, events)
            self._stop.wait(FEED_SECONDS)


def _offer(listeners: list[Listener], events: list[Fed]) -> None:
    for listener in listeners:
        listener.offer(events)


def _end(listener: Listener) -> None:
    listener.gone = True
    if listener.queue.full():
        listener.queue.get_nowait()
    listener.queue.put_nowait(None)
