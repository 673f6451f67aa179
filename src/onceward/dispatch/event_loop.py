"""The one event loop of a process on which `async def` functions run, whoever waits for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Protocol

from onceward.errors import ChildCancelled


class Cancellable(Protocol):
    """A function that runs, as far as its coroutine is concerned."""

    asked: Any
    abort: Callable[[], object] | None


class EventLoop:
    """A loop on a thread of its own, begun when first needed."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, coroutine: Any, running: Cancellable) -> Any:
        """Run a coroutine, and wait for it on this thread; whoever asks the function to end cancels it."""
        with self._mutex:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(
                    target=_run_loop, args=(self._loop,), name="children-loop", daemon=True
                ).start()
            loop = self._loop
        value, error = asyncio.run_coroutine_threadsafe(_watched(coroutine, running), loop).result()
        if error is not None:
            raise error
        return value

    def close(self) -> None:
        with self._mutex:
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)


async def _watched(coroutine: Any, running: Cancellable) -> tuple[Any, BaseException | None]:
    """A coroutine to its real end: asked to end it is cancelled, and what it does then is waited for."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(_contained(coroutine))
    running.abort = lambda: loop.call_soon_threadsafe(task.cancel)
    if running.asked:
        task.cancel()
    try:
        return await task
    except asyncio.CancelledError:
        # Cancelled before it had begun.
        return None, ChildCancelled("this child was asked to end")
    finally:
        running.abort = None


async def _contained(coroutine: Any) -> tuple[Any, BaseException | None]:
    """Whatever a coroutine raises is its own end, never the loop's."""
    try:
        return await coroutine, None
    except asyncio.CancelledError:
        return None, ChildCancelled("this child was asked to end")
    except BaseException as error:
        return None, error


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()
