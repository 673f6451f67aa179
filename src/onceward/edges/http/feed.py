"""Events as they come, to however many listen: read and encoded once, sent to all, resumed by id without gap or repeat
(I-3)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Final

import msgspec

from onceward.engine.feeding import Fed, Feeding, events_after
from onceward.engine.reading import stream_named
from onceward.errors import OncewardError
from onceward.kernel.limits import FEED_SECONDS, FEED_SHARE
from onceward.serving import Service

_BEHIND: Final = 100
"""How many pieces somebody may be behind who listens; further, and they come again, with their last id."""
BEAT: Final = b": beat\n\n"


class Piece(msgspec.Struct, frozen=True):
    """What came at one time for those who listen to one stream, or to all: the same bytes for everybody."""

    first: int
    last: int
    events: list[Fed]
    sent: bytes

    def after(self, stream: str | None, last: int) -> bytes:
        """What of it comes after an id."""
        if last < self.first:
            return self.sent
        return b"".join(event.sent(stream) for event in self.events if event.id_in(stream) > last)


class Listener:
    """Somebody who listens to one stream, or to all."""

    def __init__(self, stream: str | None) -> None:
        self.stream = stream
        self.pieces: deque[Piece] = deque()
        self.came = asyncio.Event()
        self.over = False

    def offer(self, piece: Piece | None) -> None:
        """Called on the loop. Who is too far behind is let go of rather than held in memory: their browser asks for the
        rest."""
        if piece is None or len(self.pieces) >= _BEHIND:
            self.over = True
            self.pieces.clear()
        else:
            self.pieces.append(piece)
        self.came.set()


class Feed:
    """One thread that looks for what is new while anybody listens."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._feeding = Feeding()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listeners: set[Listener] = set()
        self._mutex = threading.Lock()
        self._wake, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._wake.set()
        self._thread.join()

    def require(self, stream: str) -> str:
        """The stream that a name or an id means; NOT_FOUND where there is none."""
        found = stream_named(self._service.store, stream)
        events_after(self._service.store, found, 10**18)
        return found

    async def listen(self, stream: str | None, after: int) -> AsyncIterator[bytes]:
        """What came since an id, and then whatever comes, as server-sent events; a beat where nothing does."""
        listener = Listener(stream)
        with self._mutex:
            self._loop = asyncio.get_running_loop()
            self._listeners.add(listener)
        self._wake.set()
        try:
            yield b"retry: 1000\n\n"
            # Whoever came was already listening when this is read: what both tell of is told once.
            last = after
            while some := await asyncio.to_thread(events_after, self._service.store, stream, last):
                last = some[-1].id_in(stream)
                yield b"".join(event.sent(stream) for event in some)
            while not listener.over:
                try:
                    async with asyncio.timeout(15):
                        await listener.came.wait()
                except TimeoutError:
                    yield BEAT
                    continue
                listener.came.clear()
                while listener.pieces:
                    piece = listener.pieces.popleft()
                    told = piece.after(stream, last)
                    last = max(last, piece.last)
                    if told:
                        yield told
        finally:
            with self._mutex:
                self._listeners.discard(listener)

    @property
    def listeners(self) -> int:
        with self._mutex:
            return len(self._listeners)

    def _run(self) -> None:
        busy = 0.0
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
                busy = self._tell(events)
            self._stop.wait(max(FEED_SECONDS, busy * FEED_SHARE))
        self._offer([(None, listener) for listener in self._everybody()])

    def _tell(self, events: list[Fed]) -> float:
        """Hand everybody what is theirs; answers how long sending it took."""
        everybody = self._everybody()
        pieces: dict[str | None, Piece] = {None: _piece(None, events)}
        streams = {listener.stream for listener in everybody} - {None}
        for stream in streams:
            own = [event for event in events if event.stream == stream]
            if own:
                pieces[stream] = _piece(stream, own)
        return self._offer([(pieces[one.stream], one) for one in everybody if one.stream in pieces])

    def _offer(self, told: list[tuple[Piece | None, Listener]]) -> float:
        if self._loop is None or self._loop.is_closed() or not told:
            return 0.0
        began, done = time.thread_time(), threading.Event()
        spent = [0.0]

        def hand_out() -> None:
            at = time.thread_time()
            for piece, listener in told:
                listener.offer(piece)
            assert self._loop is not None
            # Those who were woken have run before this is called.
            self._loop.call_soon(finished, at)

        def finished(at: float) -> None:
            spent[0] = time.thread_time() - at
            done.set()

        self._loop.call_soon_threadsafe(hand_out)
        done.wait(5)
        return spent[0] + time.thread_time() - began

    def _everybody(self) -> list[Listener]:
        with self._mutex:
            return list(self._listeners)


def _piece(stream: str | None, events: list[Fed]) -> Piece:
    return Piece(
        events[0].id_in(stream),
        events[-1].id_in(stream),
        events,
        b"".join(event.sent(stream) for event in events),
    )
