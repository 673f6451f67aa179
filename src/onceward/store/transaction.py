"""The one write path: `move` is the only code that writes a state column (K-4)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence, Set
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeVar

from onceward.core.canon import check, sha256_hex
from onceward.core.chain import Event, body_of, check_event, check_stream, link
from onceward.core.fold import EventFacts, carry
from onceward.core.machine import NEW
from onceward.core.records import Move, check_name
from onceward.core.sources import Micros, Sources
from onceward.errors import InvalidConfig, OncewardError, StaleVersion
from onceward.store.heads import Heads, StreamHead
from onceward.store.port import DatabaseSession, Otherwise, Row, Value, Write
from onceward.store.schema import LIFECYCLES, context_of
from onceward.store.table import Table
from onceward.store.tables.builds import Builds
from onceward.store.tables.principals import Principals
from onceward.store.tables.requests import Requests

T = TypeVar("T")
_INSERT_EVENT = "INSERT INTO events (position, stream_no, seq, at, source, body, prev_hash, hash) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_INSERT_PARCEL = (
    "INSERT INTO event_outbox (sink, position, dedupe_key, attempts, due_at) SELECT ?, ?, ?, 0, 0"
    " WHERE NOT EXISTS (SELECT 1 FROM outbox_used WHERE sink = ? AND dedupe_key = ?)"
    " ON CONFLICT (sink, dedupe_key) DO NOTHING"
)
# An event stands two levels deep in what a webhook is sent, and its detail one more.
_DETAIL_DEPTH = 3
_RESERVED = frozenset({"from", "to", "reason", "transition_seq"})


class Transaction:
    """What a unit of work may do inside its commit. Work may be run again, so it must not act
    outside."""

    def __init__(
        self,
        session: DatabaseSession,
        heads: Heads,
        fence: int,
        sinks: Mapping[str, Set[str] | None],
        sources: Sources,
    ) -> None:
        self._session = session
        self._heads = heads
        self._sinks = sinks
        self.fence = fence
        self.sources = sources
        self.last_event: Event | None = None
        self.signed: str | None = None
        """The hash of the signed statement that asks for what is being done."""
        self.announce: Callable[[], None] | None = None
        """Called before the next event, once; an act that changes nothing leaves nothing."""
        self.asked_at: Micros | None = None
        """When that statement was signed."""
        self._now: Micros | None = None
        self._failed: OncewardError | None = None
        self._promised = False
        """Whether a row may refer to one that is still to come."""

    @property
    def now(self) -> Micros:
        """The time of this transaction, the same for all that it writes."""
        if self._now is None:
            self._now = self._session.now()
        return self._now

    @property
    def builds(self) -> Builds:
        return Builds(self)

    @property
    def principals(self) -> Principals:
        return Principals(self)

    @property
    def requests(self) -> Requests:
        return Requests(self)

    def read(self, sql: str, params: Sequence[Value] = ()) -> list[Row]:
        try:
            return self._session.read(sql, params)
        except OncewardError as error:
            self._failed = error
            raise

    def write(
        self, sql: str, params: Sequence[Value] = (), otherwise: Otherwise | None = None
    ) -> None:
        try:
            self._session.write(sql, params, otherwise)
        except OncewardError as error:
            self._failed = error
            raise

    def write_together(self, writes: Sequence[Write]) -> None:
        try:
            self._session.write_together(writes)
        except OncewardError as error:
            self._failed = error
            raise

    def head(self, stream: str) -> int:
        """The seq of a stream's last event; 0 where there is none."""
        return self._heads.head(check_stream(stream), self).seq

    def require_sound(self) -> None:
        """Work that swallowed a refusal of the database is refused itself, on either store
        alike; so is work that has not written what its rows refer to, before it can spoil the
        commit of others."""
        if self._failed is not None:
            raise self._failed
        if self._promised:
            self._session.keep_promises()

    def attempt(self, work: Callable[[], T]) -> T:
        """Do something that may be refused: if it is, nothing of it is left, and the rest of
        this transaction can go on."""
        before = (
            self._heads,
            self.last_event,
            self.announce,
            self.signed,
            self._failed,
            self._promised,
        )
        self._session.savepoint()
        self._heads = Heads(self._heads)
        try:
            result = work()
            self.require_sound()
            self._session.release()
        except BaseException:
            (
                self._heads,
                self.last_event,
                self.announce,
                self.signed,
                self._failed,
                self._promised,
            ) = before
            if self._session.open:
                self._session.undo()
            raise
        self._heads.keep()
        self._heads = before[0]
        return result

    def move(self, move: Move) -> Event | None:
        """One arrow of a lifecycle's table: the state, its event and its outbox rows, or none of
        them."""
        return self._move(move, ())

    def bear(self, moves: Sequence[Move]) -> None:
        """A birth and what follows it at once, arrow by arrow: one row for all of them, written
        with the last event."""
        for before, after in pairwise(moves):
            if (before.subject, before.target, before.version + 1) != (
                after.subject,
                after.source,
                after.version,
            ):
                raise InvalidConfig(
                    "these moves do not follow each other", context={"subject": after.subject}
                )
            if before.machine.follow(before.source, before.target, before.reason).event is not None:
                raise InvalidConfig(
                    "only the last of them may have an event", context={"subject": after.subject}
                )
        self._move(moves[-1], moves[:-1])

    def through(self, moves: Sequence[Move]) -> Event | None:
        """Arrows that lead through states nobody may find: every event is there, the row only
        knows the last."""
        for before, after in pairwise(moves):
            if (before.subject, before.target, before.version + 1) != (
                after.subject,
                after.source,
                after.version,
            ):
                raise InvalidConfig(
                    "these moves do not follow each other", context={"subject": after.subject}
                )
            if before.target not in before.machine.transient:
                raise InvalidConfig(
                    f"{before.target} is not passed through", context={"subject": after.subject}
                )
            self._tell(before)
        return self._move(moves[-1], moves[:-1])

    def _tell(self, move: Move) -> None:
        """The event of an arrow, without its state."""
        arrow = move.machine.follow(move.source, move.target, move.reason)
        assert arrow.event is not None and move.session is None
        stream = check_stream(LIFECYCLES[move.machine.name].stream_of(move.subject))
        context = self._context(context_of(move.subject), move.actor)
        event, linked = self._link(
            stream=stream,
            source=move.machine.name,
            name=arrow.event,
            context=context,
            detail=_detail(move),
        )
        target = f"{move.target}:{move.reason or ''}"
        self.write_together(
            [linked, *self._posts(event, arrow.event, move.subject, move.version + 1, target)]
        )

    def _move(self, move: Move, before: Sequence[Move]) -> Event | None:
        arrow = move.machine.follow(move.source, move.target, move.reason)
        table = LIFECYCLES[move.machine.name]
        assert table.lifecycle is not None
        self._promised |= table.lifecycle.forward
        version = move.version + 1
        if arrow.event is None:
            self.write_together([self._state(table, move, version, None, before)])
            return None
        stream = check_stream(table.stream_of(move.subject))
        check_name(move.actor, "actor")
        context = self._context(context_of(move.session or move.subject), move.actor)
        detail = _detail(move)
        posted = None
        if move.session is not None:
            # The session's copy comes first: both say where it stands there.
            parent = check_stream(f"session:{move.session}")
            detail |= {
                "parent_stream_id": parent,
                "parent_seq": self._heads.head(parent, self).seq + 1,
            }
            detail |= self._carried(
                table, move, before, event=arrow.event, context=context, detail=detail
            )
            posted, linked = self._link(
                stream=parent,
                source=move.machine.name,
                name=arrow.event,
                context=context,
                detail=detail,
            )
            self.write_together([linked])
        else:
            detail |= self._carried(
                table, move, before, event=arrow.event, context=context, detail=detail
            )
        if move.opens:
            self._heads.begin(stream, self)
        event, linked = self._link(
            stream=stream,
            source=move.machine.name,
            name=arrow.event,
            context=context,
            detail=detail,
        )
        target = move.about or f"{move.target}:{move.reason or ''}"
        posts = self._posts(posted or event, arrow.event, move.subject, version, target)
        self.write_together(
            [linked, self._state(table, move, version, event.position, before), *posts]
        )
        return event

    def _carried(
        self,
        table: Table[Any],
        move: Move,
        before: Sequence[Move],
        event: str,
        context: Mapping[str, Any],
        detail: Mapping[str, Any],
    ) -> dict[str, Any]:
        """The columns that the event of a move has to carry, because the rest of it does not
        state them."""
        columns: dict[str, Any] = {}
        for step in (*before, move):
            columns |= step.columns
        return carry(
            move.machine.stated,
            EventFacts(event, self.now, context, detail),
            columns,
            move.known,
            first=move.opens or move.source == NEW,
            skipped=table.skips,
        )

    def append(self, stream: str, name: str, actor: str, detail: Mapping[str, Any]) -> Event:
        """A fact that is no change of state."""
        check_stream(stream)
        check_name(actor, "actor")
        check_event(name)
        checked = dict(detail)
        check(checked, _DETAIL_DEPTH)
        kind, _, subject = stream.partition(":")
        context = self._context(context_of(subject) if kind == "session" else {}, actor)
        event, linked = self._link(
            stream=stream, source=kind, name=name, context=context, detail=checked
        )
        self.write_together([linked, *self._posts(event, name, stream, event.seq, name)])
        return event

    def statement(self) -> str | None:
        """The hash of the signed statement that asks for what is being done, kept before
        anything names it."""
        if self.announce is not None:
            announce, self.announce = self.announce, None
            announce()
        return self.signed

    def _context(self, of: dict[str, str], actor: str) -> dict[str, Any]:
        statement = self.statement()
        signed = {"signed": statement} if statement else {}
        return {**of, "actor": actor, "fence": self.fence, **signed}

    def _link(
        self, stream: str, source: str, name: str, context: dict[str, Any], detail: dict[str, Any]
    ) -> tuple[Event, Write]:
        """The next event of a stream and the write that makes it so."""
        body = body_of(name, context, detail)
        head = self._heads.head(stream, self)
        seq, at, position = head.seq + 1, self.now, self._heads.next_position(self)
        hash_ = link(stream=stream, seq=seq, at=at, source=source, body=body, prev_hash=head.hash)
        self._heads.put(stream, StreamHead(head.stream_no, seq, hash_), position)
        self.last_event = event = Event(
            stream=stream,
            seq=seq,
            at=at,
            source=source,
            body=body,
            prev_hash=head.hash,
            hash=hash_,
            position=position,
        )
        row = (position, head.stream_no, seq, at, source, body.decode(), head.hash, hash_)
        return event, Write("move.event", _INSERT_EVENT, row)

    def _state(
        self,
        table: Table[Any],
        move: Move,
        version: int,
        position: int | None,
        before: Sequence[Move],
    ) -> Write:
        """The write of a state column: the only one there is. Without an event the row keeps its
        last one's place."""
        if before:
            merged: dict[str, Any] = {}
            for step in (*before, move):
                merged |= step.columns
            columns, values = tuple(merged), tuple(merged.values())
        else:
            columns, values = tuple(move.columns), tuple(move.columns.values())
        if (before[0] if before else move).source == NEW:
            row = (move.subject, move.target, version, position or 0, self.now, self.now, *values)
            return Write("move.state", _insert_sql(table, columns), row)
        if position is not None:
            columns, values = ("position", *columns), (position, *values)
        # Without an event the row also keeps the time of its last one.
        times = () if position is None else (self.now, self.now)
        first = before[0] if before else move
        return Write(
            "move.state",
            _update_sql(table, columns, timed=position is not None),
            (move.target, version, *times, *values, move.subject, first.source, first.version),
            lambda: StaleVersion(
                f"{move.machine.name} {move.subject} is no longer {first.source} at version {first.version};"
                " read it again",
                context={"subject": move.subject, "state": first.source, "version": first.version},
            ),
        )

    def _posts(self, event: Event, name: str, subject: str, seq: int, target: str) -> list[Write]:
        """The outbox rows of an event, one a sink; a key that was used before makes none."""
        if not self._sinks:
            return []
        key = dedupe_key(name, subject, seq, target)
        sinks = [sink for sink, wanted in self._sinks.items() if wanted is None or name in wanted]
        return [
            Write("move.outbox", _INSERT_PARCEL, (sink, event.position, key, sink, key))
            for sink in sinks
        ]


def dedupe_key(event: str, subject: str, seq: int, target: str) -> bytes:
    """K-6's key: the same event has the same key for ever, and no other event has it."""
    return hashlib.sha256(f"{event}|{subject}|{seq}|{_target_hash(target)}".encode()).digest()


@lru_cache(maxsize=1024)
def _target_hash(target: str) -> str:
    return sha256_hex(target.encode())


def _detail(move: Move) -> dict[str, Any]:
    if move.detail:
        check(dict(move.detail), _DETAIL_DEPTH)
        if not _RESERVED.isdisjoint(move.detail):
            raise InvalidConfig(
                f"an event's detail may not set {sorted(_RESERVED & set(move.detail))}",
                context={"field": "detail"},
            )
    return move.said()


@lru_cache(maxsize=256)
def _insert_sql(table: Table[Any], columns: tuple[str, ...]) -> str:
    assert table.lifecycle is not None
    names = (
        *table.key,
        table.lifecycle.state,
        "version",
        "position",
        "created_at",
        "updated_at",
        *columns,
    )
    return f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"


@lru_cache(maxsize=256)
def _update_sql(table: Table[Any], columns: tuple[str, ...], timed: bool) -> str:
    assert table.lifecycle is not None
    also = "".join(f", {column} = ?" for column in columns)
    (key,), state = table.key, table.lifecycle.state
    time = ", updated_at = CASE WHEN updated_at > ? THEN updated_at ELSE ? END" if timed else ""
    return (
        f"UPDATE {table.name} SET {state} = ?, version = ?{time}{also}"
        f" WHERE {key} = ? AND {state} = ? AND version = ?"
    )
