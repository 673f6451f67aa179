"""A workspace's store: one writer, any number of readers, over either database."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import Any, TypeVar

from onceward.core import faults
from onceward.core.limits import LOCK_TTL_MS, POSTGRES_LOCK_TTL_MS
from onceward.core.records import Answer, Request, Tenure
from onceward.core.sources import Sources
from onceward.errors import InvalidConfig, NotFound, Recovery, StorageError
from onceward.store import migrate
from onceward.store.port import Database, DatabaseSession
from onceward.store.tables.requests import (
    UNTOLD,
    Ledger,
    Requests,
    answer_request,
    count_take,
    file_request,
)
from onceward.store.transaction import Transaction
from onceward.store.writer import Work, Writer, commit_plainly

T = TypeVar("T")


class Store:
    """The one door to the rows. Reads never wait for the writer; writes go through `write` and
    the fence."""

    def __init__(
        self,
        database: Database,
        sources: Sources,
        sinks: Sequence[str] = (),
        notices: Mapping[str, Set[str]] | None = None,
        lock_ttl_ms: int | None = None,
    ) -> None:
        """`sinks` are told of every event, each of `notices` of those it names."""
        self.database = database
        usual = LOCK_TTL_MS if database.kind == "sqlite" else POSTGRES_LOCK_TTL_MS
        self.lock_ttl = (lock_ttl_ms or usual) / 1000
        """Seconds of silence after which the writer lock may be taken from a process that may
        still live."""
        self.sources = sources
        self._sinks: dict[str, Set[str] | None] = {**dict.fromkeys(sinks), **(notices or {})}
        self._writer: Writer | None = None
        self._idle: list[DatabaseSession] = []
        self._closed = False
        self._mutex = threading.Lock()

    @property
    def sinks(self) -> dict[str, list[str] | None]:
        """By sink, the names of the events it gets; None means all."""
        return {
            name: None if wanted is None else sorted(wanted) for name, wanted in self._sinks.items()
        }

    def require_schema(self, waiting: Sequence[migrate.Migration] | None = None) -> None:
        """Refuse a store that is absent, older or newer than this code. `waiting` is what
        `migrate.pending` said."""
        waiting = migrate.pending(self.database) if waiting is None else waiting
        if len(waiting) == len(migrate.known()):
            raise NotFound(
                "there is no store here yet", recovery=[Recovery("make one", "onceward init")]
            )
        if waiting:
            raise InvalidConfig(
                f"the store has an older schema; {len(waiting)} migrations wait",
                recovery=[Recovery("bring it up to date", "onceward migrate", "low")],
            )

    @property
    def writer(self) -> Writer:
        with self._mutex:
            if self._closed:
                # A thread that outlived its kernel: nobody would close the connection that this
                # would open.
                raise StorageError("this store was closed; nothing more is written through it")
            if self._writer is None:
                self._writer = Writer(self.database, self.sources, self._sinks)
            return self._writer

    @property
    def tenure(self) -> Tenure | None:
        return self._writer.tenure if self._writer else None

    def forfeit(self, why: str) -> None:
        """Write nothing more under the tenure that this process had."""
        if self._writer is not None:
            self._writer.forfeit(why)

    def write(self, work: Work[T]) -> T:
        """Run `work` in one durable, fenced transaction; it must not act outside, for it may be
        run again."""
        return self.writer.write(work)

    def answer(
        self,
        request: Request,
        work: Callable[[Transaction, str], dict[str, Any]],
        prefix: str = "req",
    ) -> Answer:
        """Carry out a request at most once: the effect and its answer are one transaction (K-8)."""

        def once(tx: Transaction) -> Answer:
            return answer_once(tx, request, work, prefix)

        answer = self.write(once)
        faults.point("write.answered")
        return answer

    def take(self, request: Request, prefix: str = "req") -> Ledger:
        """Begin to take a request whose work outlasts one transaction; answers the ledger's row
        as it was before. It fixes the resource id, and counts how often this was begun (K-8)."""

        def once(tx: Transaction) -> Ledger:
            found = filed(tx, request, prefix)
            count_take(tx, request, 1)
            return found

        return self.write(once)

    def give_back(self, request: Request) -> None:
        """A request that was not taken after all: this kernel lives, so its taking does not
        count."""
        self.write(lambda tx: count_take(tx, request, -1))

    def file(self, request: Request) -> None:
        """Append a request for the live kernel: the only write outside the fence (K-13)."""
        session = self.database.connect()
        try:
            session.begin(None)
            if Requests(session).find(request) is None:
                file_request(session, request, self.sources.new_id("req"), session.now())
            commit_plainly(session, f"filing request {request.request_id}")
            faults.point("request.filed")
        finally:
            session.rollback()
            session.close()

    @contextmanager
    def read(self) -> Iterator[DatabaseSession]:
        """Rows as of one moment, on a connection of its own."""
        with self._mutex:
            session = self._idle.pop() if self._idle else None
        session = session or self.database.connect()
        try:
            session.snapshot()
            yield session
            session.rollback()
        except BaseException:
            self._discard(session)
            raise
        with self._mutex:
            closed = self._closed
            if not closed:
                self._idle.append(session)
        if closed:
            session.close()

    def _discard(self, session: DatabaseSession) -> None:
        """Close a connection that met an error and, if its server went away, those that slept
        through it."""
        with self._mutex:
            sleeping, self._idle = (self._idle, []) if session.lost else ([], self._idle)
        for stale in (session, *sleeping):
            stale.close()

    def close_for_good(self) -> None:
        """Close every connection; whoever writes later is refused, whoever reads leaves nothing
        open."""
        with self._mutex:
            self._closed = True
        self.close()

    def close(self) -> None:
        """Close every connection; the writer's last, so that it is the one that tidies the log."""
        with self._mutex:
            sessions, self._idle = self._idle, []
            writer, self._writer = self._writer, None
        for session in sessions:
            session.close()
        if writer is not None:
            writer.close()


def answer_once(
    tx: Transaction,
    request: Request,
    work: Callable[[Transaction, str], dict[str, Any]],
    prefix: str = "req",
) -> Answer:
    """Inside a transaction: the stored answer of a request, or its work done now and recorded."""
    found = tx.requests.find(request)
    if found is not None and found.answered_at is not None:
        return Answer(found.value(), replayed=True)
    found = found or filed(tx, request, prefix)
    value = work(tx, found.resource_id)
    faults.point("request.worked")
    record_answer(tx, found, value)
    return Answer(value)


def record_answer(tx: Transaction, asked: Ledger, value: dict[str, Any]) -> None:
    """Record a request's answer or refusal, and its event, in the transaction that did it."""
    answered = answer_request(tx, asked, value, tx.now)
    if asked.verb in UNTOLD:
        return
    refusal = value.get("error")
    code = {"code": refusal["code"]} if refusal is not None else {}
    event = "REQUEST_REFUSED" if refusal is not None else "REQUEST_ANSWERED"
    tx.append("workspace", event, "kernel", {**answered.told(), **code})


def filed(tx: Transaction, request: Request, prefix: str = "req") -> Ledger:
    """Inside a transaction: the ledger's row of a request, made now where there is none."""
    found = tx.requests.find(request)
    if found is None:
        # Another process may have filed the same id a moment ago: what stands in the ledger counts.
        file_request(tx, request, tx.sources.new_id(prefix), tx.now)
        found = tx.requests.find(request)
        assert found is not None
    return found
