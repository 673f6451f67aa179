"""What the ways in may look at without holding the writer lock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from onceward.kernel.chain import check_stream
from onceward.kernel.sources import iso
from onceward.store.store import Store
from onceward.store.tables.artifacts import newest_refs, refs_of
from onceward.store.tables.budgets import lanes_of
from onceward.store.tables.children import Sessions, Tokens, resolve
from onceward.store.tables.events import events_of, streams
from onceward.store.tables.outbox import backlogs
from onceward.store.tables.principals import Principals


def stream_list(store: Store) -> list[dict[str, Any]]:
    with store.read() as rows:
        return [{"stream": stream, "events": count} for stream, count in streams(rows)]


def stream_lines(store: Store, stream: str) -> Iterator[bytes]:
    """A stream's `urm-events@1` lines in order."""
    check_stream(stream)
    with store.read() as rows:
        for event in events_of(rows, stream):
            yield event.line()


def outbox_status(store: Store, sinks: Sequence[str]) -> list[dict[str, Any]]:
    """The backlog of every sink, configured or only remembered by rows that still wait for it."""
    with store.read() as rows:
        waiting = {backlog.sink: backlog for backlog in backlogs(rows)}
    status = []
    for name in (*sinks, *(name for name in waiting if name not in sinks)):
        backlog = waiting.get(name)
        entry: dict[str, Any] = {
            "sink": name,
            "configured": name in sinks,
            "waiting": backlog.waiting if backlog else 0,
            "parked": backlog.parked if backlog else 0,
        }
        if backlog and backlog.oldest_at is not None:
            entry["oldest"] = iso(backlog.oldest_at)
        if backlog and backlog.last_error:
            entry["last_error"] = backlog.last_error
        status.append(entry)
    return status


def principal_list(store: Store) -> list[dict[str, Any]]:
    with store.read() as rows:
        return [{"name": p.name, "roles": sorted(p.roles)} for p in Principals(rows).all()]


def lane_list(store: Store, session_id: str) -> list[dict[str, Any]]:
    """What a session spent and may spend, by lane."""
    with store.read() as rows:
        found = lanes_of(rows, session_id)
    return [{"lane": lane, "limit": limit, "total": total} for lane, limit, total, _ in found]


def artifact_list(store: Store, owner: str | None, limit: int = 100) -> list[dict[str, Any]]:
    """An owner's artifacts, or the newest of all."""
    with store.read() as rows:
        if owner is not None and not refs_of(rows, owner) and Sessions(rows).find(owner) is None:
            (owner,) = resolve(rows, owner)
        if owner is not None and Sessions(rows).find(owner) is not None:
            found = [ref for token in Tokens(rows).of_session(owner) for ref in refs_of(rows, token.child_id)]
        else:
            found = newest_refs(rows, limit) if owner is None else refs_of(rows, owner)
    return [
        {
            "owner": ref.owner,
            "name": ref.name,
            "kind": ref.kind,
            "sha256": ref.sha256,
            "size": ref.size,
            "created_at": iso(ref.created_at),
        }
        for ref in found
    ]
