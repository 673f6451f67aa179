"""The process that holds the writer lock, and the one that asks it (K-13)."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from onceward.engine import tenure
from onceward.engine.outbox import Delivery, deliver
from onceward.engine.principals import authorize, welcome
from onceward.engine.sinks import Sink
from onceward.engine.verbs import VERBS, Verb
from onceward.errors import InvalidConfig, LockLost, OncewardError, StoredError
from onceward.kernel.limits import REQUEST_POLL_SECONDS
from onceward.kernel.records import Answer, Request
from onceward.store.store import Store, answer_once
from onceward.store.tables.principals import Principals
from onceward.store.tables.requests import Ledger, Requests, answer_request
from onceward.store.transaction import Transaction

_TAKE = 64


class Pending(msgspec.Struct, frozen=True):
    """A request that was filed and not answered in time; asking again with its id returns the answer."""

    request_id: str


class Engine(Protocol):
    """What a command talks to: the kernel itself, or a line to the one that lives."""

    def ask(self, request: Request, wait: float) -> Answer | Pending: ...

    def close(self) -> None: ...


class Kernel:
    """Holds the workspace: carries out requests in order, delivers the outbox."""

    def __init__(self, store: Store, principal: str, sinks: Sequence[Sink]) -> None:
        self.store = store
        self.principal = principal
        self.sinks = sinks
        self.fence = tenure.acquire(store, principal).fence
        with store.read() as rows:
            nobody = not Principals(rows).all()
        if nobody:
            store.write(lambda tx: welcome(tx, principal))

    def ask(self, request: Request, wait: float = 0) -> Answer:
        """Carry out one request now; the same id again returns the stored answer."""
        verb = _verb(request.verb)

        def run(tx: Transaction, resource_id: str) -> Any:
            authorize(tx, request.principal, verb.role)
            return {"ok": verb.run(tx, request.principal, request.payload)}

        return _told(self.store.answer(request, run))

    def carry_out(self) -> int:
        """Answer what other processes asked, in the order they asked; answers how many."""
        with self.store.read() as rows:
            waiting = Requests(rows).open(_TAKE)
        for ledger in waiting:
            self._answer(ledger)
        return len(waiting)

    def deliver(self) -> list[Delivery]:
        return deliver(self.store, self.sinks)

    def run(self, stop: threading.Event) -> None:
        """Serve until told to stop. Delivery has its own thread, so that a slow sink delays no answer."""
        delivering = threading.Thread(target=self._deliver_until, args=(stop,), name="outbox")
        delivering.start()
        try:
            while not stop.is_set():
                if not self.carry_out():
                    stop.wait(REQUEST_POLL_SECONDS)
        finally:
            stop.set()
            delivering.join()

    def close(self) -> None:
        """Give the workspace back."""
        try:
            tenure.release(self.store)
        except LockLost:
            pass
        finally:
            self.store.close()

    def _answer(self, ledger: Ledger) -> None:
        request = ledger.request

        def run(tx: Transaction, resource_id: str) -> Any:
            verb = _verb(request.verb)
            authorize(tx, request.principal, verb.role)
            return {"ok": verb.run(tx, request.principal, request.payload)}

        try:
            self.store.write(lambda tx: answer_once(tx, request, run))
        except OncewardError as error:
            if error.retryable or error.code == "LOCK_LOST":
                raise
            refusal = {"error": error.document()}
            self.store.write(lambda tx: answer_request(tx, request, refusal, tx.now))

    def _deliver_until(self, stop: threading.Event) -> None:
        while not stop.wait(REQUEST_POLL_SECONDS):
            try:
                self.deliver()
            except OncewardError:
                # A kernel that may no longer write, or cannot, is stopped by its own loop; this one only waits.
                stop.wait(1.0)


class Asker:
    """Files a request for the live kernel and waits for its answer."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def ask(self, request: Request, wait: float) -> Answer | Pending:
        with self.store.read() as rows:
            authorize(rows, request.principal, _verb(request.verb).role)
        self.store.file(request)
        deadline = time.monotonic() + wait
        while True:
            with self.store.read() as rows:
                found = Requests(rows).find(request)
            if found is not None and found.answered_at is not None:
                return _told(Answer(found.value()))
            if time.monotonic() >= deadline:
                return Pending(request.request_id)
            time.sleep(REQUEST_POLL_SECONDS)

    def close(self) -> None:
        self.store.close()


def _verb(name: str) -> Verb:
    if name not in VERBS:
        raise InvalidConfig(f"there is no verb {name!r}", context={"field": "verb"})
    return VERBS[name]


def _told(answer: Answer) -> Answer:
    if "error" in answer.value:
        raise StoredError(answer.value["error"])
    return Answer(answer.value["ok"], answer.replayed)
