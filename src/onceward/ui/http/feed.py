"""Events as they come, to however many listen: read and encoded once, sent to all, resumed by id without gap or repeat
(I-3)."""

from __future__ import annotations

import asyncio
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncIterator, Callable
from itertools import accumulate
from typing import Any, Final

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from onceward.core.limits import FEED_SECONDS, FEED_SHARE
from onceward.errors import OncewardError
from onceward.kernel.feed import Fed, Feeding, events_after
from onceward.kernel.views import stream_named
from onceward.serving import Service

_BEHIND: Final = 100
"""How many pieces somebody may be behind who listens; further, and they come again, with their last id."""
_SLICE: Final = 64 * 1024
"""How much is put into a line at a time: no more is ever copied for one who listens."""
_TOGETHER: Final = 100
_BEAT_SECONDS: Final = 15.0
BEAT: Final = b": beat\n\n"
HELLO: Final = b"retry: 1000\n\n"


class Piece(msgspec.Struct, frozen=True):
    """What came at one time for those who listen to one stream, or to all: the same bytes for everybody, ready to be
    sent."""

    ids: list[int]
    starts: list[int]
    """Where each event begins."""
    told: bytes
    sent: bytes

    def after(self, last: int) -> bytes:
        """What of it comes after an id: almost always all of it."""
        if last < self.ids[0]:
            return self.sent
        left = bisect_right(self.ids, last)
        return _framed(self.told[self.starts[left] :]) if left < len(self.ids) else b""


class Listener:
    """Somebody who listens to one stream, or to all. Lives on the loop."""

    def __init__(self, stream: str | None, line: Any) -> None:
        self.stream, self._line = stream, line
        self.pieces: deque[Piece] = deque()
        self.over = asyncio.Event()
        self._last: int | None = None
        self._rest = memoryview(b"")
        self._flushing = False

    def begin(self, last: int) -> None:
        """All that was there before an id has been told: what comes goes straight into the line."""
        self._last, self._line = last, self._line.take(self.flush)
        self.flush()

    def offer(self, piece: Piece) -> None:
        """Who is too far behind is let go of rather than held in memory: their browser asks for the rest."""
        if len(self.pieces) >= _BEHIND:
            self.end()
        else:
            self.pieces.append(piece)
            self.flush()

    def flush(self) -> None:
        """As much as the line takes now; it says when it takes more."""
        if self._flushing:
            return
        self._flushing = True
        try:
            self._fill()
        finally:
            self._flushing = False

    def _fill(self) -> None:
        while self._last is not None and not self._line.get_write_buffer_size():
            if self._line.is_closing():
                return
            if not self._rest:
                if not self.pieces:
                    return
                piece = self.pieces.popleft()
                self._rest = memoryview(piece.after(self._last))
                self._last = max(self._last, piece.ids[-1])
            # Taken out before it is written: a line may ask for more while it is given something.
            part, self._rest = self._rest[:_SLICE], self._rest[_SLICE:]
            self._line.write(part)

    def beat(self) -> None:
        free = self._last is not None and not self._rest and not self._line.get_write_buffer_size()
        if free and not self._line.is_closing():
            self._line.write(_framed(BEAT))

    def end(self) -> None:
        self.pieces.clear()
        self.over.set()


class Feed:
    """One thread that looks for what is new while anybody listens."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._feeding = Feeding()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listeners: set[Listener] = set()
        self._mutex = threading.Lock()
        self._wake, self._stop = threading.Event(), threading.Event()
        self.catching_up = asyncio.Semaphore(64)
        """How many are told at once what was there before: what they hold is theirs alone."""
        self._looking = threading.Event()
        """Set while it is known from where on events are offered."""
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

    async def join(self, listener: Listener) -> None:
        """From here on whatever comes is offered; what was there before must be read after this."""
        with self._mutex:
            self._loop = asyncio.get_running_loop()
            self._listeners.add(listener)
        self._wake.set()
        if not self._looking.is_set():
            await asyncio.to_thread(self._looking.wait, 30)

    def leave(self, listener: Listener) -> None:
        with self._mutex:
            self._listeners.discard(listener)

    async def before(self, stream: str | None, after: int) -> AsyncIterator[tuple[int, bytes]]:
        """What came since an id, page by page, each with the last id in it."""
        while some := await asyncio.to_thread(
            events_after, self._service.store, stream, after, _TOGETHER
        ):
            after, page = some[-1].id_in(stream), b"".join(event.sent(stream) for event in some)
            del some
            yield after, page

    @property
    def listeners(self) -> int:
        with self._mutex:
            return len(self._listeners)

    def _run(self) -> None:
        beaten = time.monotonic()
        while not self._stop.is_set():
            if self._idle():
                self._wake.wait()
                self._wake.clear()
                continue
            busy = time.thread_time()
            try:
                events, more = self._feeding.look(self._service.store)
                self._looking.set()
            except OncewardError:
                events, more = [], False
            everybody = self._everybody()
            pieces = _pieces({listener.stream for listener in everybody}, events) if events else {}
            beat = time.monotonic() - beaten >= _BEAT_SECONDS
            if beat:
                beaten = time.monotonic()
            busy = time.thread_time() - busy
            if pieces or beat:
                busy += self._on_loop(
                    lambda some=everybody, new=pieces, beat=beat: _hand_out(some, new, beat)
                )
            # With very many who listen, and very much to tell, they are behind rather than in the way of who works.
            self._stop.wait(max(0.0 if more else FEED_SECONDS, busy * FEED_SHARE))
        self._looking.set()
        self._on_loop(lambda: _let_go(self._everybody()))

    def _idle(self) -> bool:
        """Whether nobody listens; then how far it had looked is forgotten: who comes next waits for a first look."""
        with self._mutex:
            if not self._listeners:
                self._looking.clear()
                self._feeding.forget()
            return not self._listeners

    def _on_loop(self, act: Any) -> float:
        """Have something done on the loop, and wait for it; answers how long the loop was at it."""
        if self._loop is None or self._loop.is_closed():
            return 0.0
        done, spent = threading.Event(), [0.0]

        def timed() -> None:
            at = time.thread_time()
            act()
            spent[0] = time.thread_time() - at
            done.set()

        self._loop.call_soon_threadsafe(timed)
        done.wait(5)
        return spent[0]

    def _everybody(self) -> list[Listener]:
        with self._mutex:
            return list(self._listeners)


class Listening(Response):
    """The answer to somebody who listens: it ends when they go, or are let go of."""

    def __init__(
        self, feed: Feed, stream: str | None, after: int, allowed: Callable[[], bool]
    ) -> None:
        super().__init__(media_type="text/event-stream")
        del self.headers["content-length"]
        self._feed, self._stream, self._after, self._allowed = feed, stream, after, allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        line = scope["onceward.line"]
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        if scope["method"] == "HEAD":
            await send({"type": "http.response.body", "body": b""})
            return
        listener = Listener(self._stream, line)
        try:
            # Who comes listens before what was there is read: what both tell of is told once.
            await self._feed.join(listener)
            gone = asyncio.ensure_future(_gone(receive))
            telling = asyncio.ensure_future(self._tell(listener, send))
            over = asyncio.ensure_future(listener.over.wait())
            watching = asyncio.ensure_future(self._watch(listener))
            await asyncio.wait((gone, telling), return_when=asyncio.FIRST_COMPLETED)
            if telling.done() and telling.exception() is None:
                await asyncio.wait((gone, over), return_when=asyncio.FIRST_COMPLETED)
            for task in (gone, telling, over, watching):
                task.cancel()
        finally:
            self._feed.leave(listener)
            line.transport.close()

    async def _watch(self, listener: Listener) -> None:
        """Who may not come any more hears no more."""
        while await asyncio.to_thread(self._allowed):
            await asyncio.sleep(_BEAT_SECONDS)
        listener.end()

    async def _tell(self, listener: Listener, send: Send) -> None:
        """All that was there before; then, on this very turn of the loop, what has come meanwhile."""
        told = self._after
        await send({"type": "http.response.body", "body": HELLO, "more_body": True})
        async with self._feed.catching_up:
            async for last, page in self._feed.before(self._stream, self._after):
                async with asyncio.timeout(30):
                    await send({"type": "http.response.body", "body": page, "more_body": True})
                told = last
        listener.begin(told)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _pieces(streams: set[str | None], events: list[Fed]) -> dict[str | None, Piece]:
    """What is new for each who listens to something, made once."""
    found = {}
    for stream in streams:
        own = events if stream is None else [event for event in events if event.stream == stream]
        if own:
            parts = [event.sent(stream) for event in own]
            starts = [0, *accumulate(map(len, parts))][:-1]
            told = b"".join(parts)
            found[stream] = Piece(
                [event.id_in(stream) for event in own], starts, told, _framed(told)
            )
    return found


def _hand_out(listeners: list[Listener], pieces: dict[str | None, Piece], beat: bool) -> None:
    for listener in listeners:
        if listener.stream in pieces:
            listener.offer(pieces[listener.stream])
        elif beat:
            listener.beat()


def _let_go(listeners: list[Listener]) -> None:
    for listener in listeners:
        listener.end()


def _framed(data: bytes) -> bytes:
    """As a chunk of an answer whose length nobody knows: made once for all lines it goes into."""
    return b"%x\r\n%b\r\n" % (len(data), data)
