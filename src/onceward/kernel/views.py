"""Views of streams and of the outbox."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from onceward.core.chain import STREAM, check_stream
from onceward.core.limits import FOLLOW_SECONDS
from onceward.core.sources import iso
from onceward.core.views import View
from onceward.errors import NotFound
from onceward.store.store import Store
from onceward.store.tables.children import Sessions, resolve
from onceward.store.tables.events import events_of, streams
from onceward.store.tables.outbox import SinkBacklog, backlogs


class StreamView(View, frozen=True, kw_only=True):
    """A stream and how long it is."""

    stream: str
    events: int


class SinkView(View, frozen=True, kw_only=True):
    """What a sink has still to be told."""

    sink: str
    configured: bool
    waiting: int
    parked: int
    oldest: str | None = None
    last_error: str | None = None


def stream_list(store: Store) -> list[StreamView]:
    with store.read() as rows:
        return [StreamView(stream=stream, events=count) for stream, count in streams(rows)]


def stream_named(store: Store, name: str) -> str:
    """A stream's name, or the stream of the one session or child that an id means."""
    if STREAM.fullmatch(name):
        return name
    with store.read() as rows:
        sessions = Sessions(rows).named(name)
        if len(sessions) == 1:
            return f"session:{sessions[0]}"
        try:
            return f"child:{resolve(rows, name)[0]}"
        except NotFound:
            return check_stream(name)


def stream_lines(store: Store, stream: str, *, follow: bool = False) -> Iterator[bytes]:
    """A stream's `urm-events@1` lines in order; when following, for ever, those that come too."""
    check_stream(stream)
    after = 0
    while True:
        try:
            with store.read() as rows:
                for event in events_of(rows, stream, after):
                    after = event.seq
                    yield event.line()
        except NotFound:
            if not follow:
                raise
        if not follow:
            return
        time.sleep(FOLLOW_SECONDS)


def outbox_status(store: Store, sinks: Sequence[str]) -> list[SinkView]:
    """The backlog of every sink, configured or only remembered by rows that still wait for it."""
    with store.read() as rows:
        waiting = {backlog.sink: backlog for backlog in backlogs(rows)}
    names = (*sinks, *(name for name in waiting if name not in sinks))
    return [_sink(name, name in sinks, waiting) for name in names]


def _sink(name: str, configured: bool, waiting: Mapping[str, SinkBacklog]) -> SinkView:
    backlog = waiting.get(name)
    if backlog is None:
        return SinkView(sink=name, configured=configured, waiting=0, parked=0)
    return SinkView(
        sink=name,
        configured=configured,
        waiting=backlog.waiting,
        parked=backlog.parked,
        oldest=iso(backlog.oldest_at) if backlog.oldest_at is not None else None,
        last_error=backlog.last_error or None,
    )
