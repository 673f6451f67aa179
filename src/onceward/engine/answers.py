"""How the kernel answers: what this process asks, and what others filed, in order, once each (K-8, K-13)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from onceward.engine import acts
from onceward.engine.principals import authorize, refuse_admin
from onceward.engine.verbs import VERBS, Verb
from onceward.errors import ExecutionFailed, InvalidConfig, LockConflict, OncewardError, StoredError
from onceward.kernel.canon import bounded
from onceward.kernel.records import Answer, Request
from onceward.lifecycles.duties import ROLE_OF, WORKS
from onceward.store.store import answer_once
from onceward.store.tables.keys import keys_of
from onceward.store.tables.requests import Ledger, Requests, answer_request
from onceward.store.transaction import Transaction

if TYPE_CHECKING:
    from onceward.engine.kernel import Kernel

_TAKE = 64


class Pending(msgspec.Struct, frozen=True):
    """A request that was filed and not answered in time; asking again with its id returns the answer."""

    request_id: str


class Engine(Protocol):
    """What a command talks to: the kernel itself, or a line to the one that lives."""

    def ask(self, request: Request, wait: float) -> Answer | Pending: ...

    def close(self) -> None: ...


class Host(Protocol):
    """Whoever takes work for a kernel, and carries it out beside everything else: `serve`."""

    def take(self, request: Request, resource_id: str) -> dict[str, Any]:
        """Begin what is asked, under an id that is the same however often it is; answers what it is called."""
        ...


class Answers:
    """The kernel's side of the request ledger."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel, self._store = kernel, kernel.store
        self.host: Host | None = None
        self._taking = threading.Lock()
        """One piece of work is begun at a time: what is asked here is in the ledger too, where the loop finds it."""

    def ask(self, request: Request) -> Answer:
        """Carry out one request now; the same id again returns the stored answer."""
        kernel = self._kernel
        request.check()
        role = role_of(request.verb)
        with self._store.read() as rows:
            try:
                request = acts.named(rows, request)
            except OncewardError:
                # Whoever may not ask is not told what there is.
                authorize(rows, request.principal, role)
                raise
        if (
            kernel.signer is not None
            and request.principal == kernel.principal
            and request.signature is None
        ):
            if kernel.signer.fresh:
                kernel.require(role)
            with self._store.read() as rows:
                request = acts.sign(rows, kernel.signer, request)
        if request.verb in WORKS:
            with self._taking:
                return told(self._work(request, self._store.reserve(request, "req")))
        return told(self._store.answer(request, self._run(request)))

    def carry_out(self, works: bool = True) -> int:
        """Answer what other processes asked, in order; answers how many. Who is only here for that leaves work be."""
        with self._store.read() as rows:
            waiting = [one for one in Requests(rows).open(_TAKE) if works or one.verb not in WORKS]
        for ledger in waiting:
            self._answer(ledger)
        return len(waiting)

    def _answer(self, ledger: Ledger) -> None:
        request = Request(ledger.verb, ledger.request_id, None, ledger.principal)
        try:
            request = ledger.request
            if request.verb in WORKS:
                if self._taking.acquire(blocking=False):
                    try:
                        self._work(request, ledger.resource_id)
                    finally:
                        self._taking.release()
                return
            run = self._run(request, filed=True)
            self._store.write(lambda tx: answer_once(tx, request, run))
        except OncewardError as error:
            if error.retryable or error.code == "LOCK_LOST":
                raise
            self._refuse(request, error)
        except (Exception, SystemExit) as bug:
            self._refuse(
                request,
                ExecutionFailed(f"the kernel met an error of its own: {type(bug).__name__}"),
            )

    def _run(self, request: Request, *, filed: bool = False) -> Callable[[Transaction, str], Any]:
        """What a request does inside its transaction: role and signature are checked there. What lies outside is
        looked at before; not for those who may not ask, nor where the answer is there."""
        verb, principal = verb_named(request.verb), request.principal
        if verb.outside and self._answered(request):
            return lambda tx, resource_id: None
        act = verb.ready(self._kernel, request.payload, principal)

        def run(tx: Transaction, resource_id: str) -> Any:
            authorize(tx, principal, verb.role)
            if request.verb == "keys.add" and not keys_of(tx, principal):
                # There is no key yet that could vouch for the first; it vouches for itself. Not for an admin's, though:
                # whoever may only file requests must not become one.
                if filed:
                    refuse_admin(tx, principal)
                return {"ok": act(tx, principal)}
            envelope = acts.authenticate(tx, request)
            with acts.acting(tx, envelope, request.verb, principal, request.request_id):
                return {"ok": act(tx, principal)}

        return run

    def _answered(self, request: Request) -> bool:
        """Whether the answer is there; whoever may not ask, or did not sign, is refused."""
        with self._store.read() as rows:
            known = Requests(rows).find(request)
            if known is not None and known.answered_at is not None:
                return True
            authorize(rows, request.principal, role_of(request.verb))
            acts.authenticate(rows, request)
        return False

    def _work(self, request: Request, resource_id: str) -> Answer:
        """Work is begun by whoever hosts it, and answered with what it is called; a kernel that does its own work in
        the foreground takes none."""
        if not self._answered(request):
            if self.host is None:
                raise LockConflict(
                    "the kernel that lives does its own work and takes no other; `onceward serve` would",
                    context={"verb": request.verb},
                )
            begun = self.host.take(request, resource_id)

            def answer(tx: Transaction, resource_id: str) -> Any:
                envelope = acts.authenticate(tx, request)
                with acts.acting(tx, envelope, request.verb, request.principal, request.request_id):
                    said = {"verb": request.verb, "request_id": request.request_id, **begun}
                    tx.append("workspace", "WORK_TAKEN", request.principal, said)
                return {"ok": begun}

            return self._store.write(lambda tx: answer_once(tx, request, answer))
        return self._store.write(lambda tx: answer_once(tx, request, lambda tx, resource_id: None))

    def _refuse(self, request: Request, error: OncewardError) -> None:
        """A refusal is an answer; one too long to store is cut, for no request may block those behind it."""
        refusal = {"error": error.document()}
        try:
            bounded(refusal, "the refusal")
        except InvalidConfig:
            refusal["error"] |= {"message": error.message[:1000], "context": {}}
        self._store.write(lambda tx: answer_request(tx, request, refusal, tx.now))


def role_of(verb: str) -> str:
    """Who may ask for it."""
    return ROLE_OF[verb] if verb in WORKS else verb_named(verb).role


def verb_named(name: str) -> Verb:
    if name not in VERBS:
        raise InvalidConfig(f"there is no verb {name!r}", context={"field": "verb"})
    return VERBS[name]


def told(answer: Answer) -> Answer:
    if "error" in answer.value:
        raise StoredError(answer.value["error"])
    return Answer(answer.value["ok"], answer.replayed)
