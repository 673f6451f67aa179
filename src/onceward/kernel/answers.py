"""How the kernel answers: what this process asks, and what others filed, in order, once each (K-8, K-13)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from onceward.core.acts import Act, act_named, is_work
from onceward.core.canon import bounded
from onceward.core.limits import REQUEST_TAKES
from onceward.core.records import Answer, Request
from onceward.core.sources import iso
from onceward.errors import (
    ExecutionFailed,
    InvalidConfig,
    LockConflict,
    LockLost,
    OncewardError,
    RequestConflict,
    StorageError,
    StoredError,
)
from onceward.people import statements
from onceward.people.credentials import child_proof
from onceward.people.enrolment import to_sign
from onceward.people.signing import Envelope
from onceward.store.port import Reads
from onceward.store.store import answer_once, filed, record_answer
from onceward.store.tables.requests import Ledger, Requests
from onceward.store.transaction import Transaction

if TYPE_CHECKING:
    from onceward.kernel.kernel import Kernel

_TAKE = 64


class Pending(msgspec.Struct, frozen=True):
    """A request that was filed and not answered in time; asking again with its id returns the answer."""

    request_id: str


class RequestHandler(Protocol):
    """What a command talks to: the kernel itself, or a line to the one that lives."""

    def ask(self, request: Request, wait: float) -> Answer | Pending: ...

    def close(self) -> None: ...


Subject = dict[str, Any]
"""What work is called: the ids of what it makes."""
Accept = Callable[[Transaction, Subject], None]
"""Answers a request as accepted, inside the transaction that makes its resource."""


class Host(Protocol):
    """Whoever takes work for a kernel, and carries it out beside everything else: `serve`."""

    def take(self, request: Request, resource_id: str, accept: Accept) -> Subject:
        """Begin what is asked, under an id that is the same however often it is. `accept` is called in the commit that
        makes the resource; what goes wrong before is the refusal of the request, what goes wrong after is not."""
        ...


class Answers:
    """The kernel's side of the request ledger."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel, self._store = kernel, kernel.store
        self.host: Host | None = None
        self._taking = threading.Lock()
        """One piece of work is begun at a time: what is asked here is in the ledger too, where the loop finds it."""

    def ask(self, request: Request) -> Answer:
        """Carry out one request now; the same id again returns the stored answer. A refusal is an answer, too."""
        request.check()
        return told(self._ask(request))

    def refuse(self, request: Request, error: OncewardError) -> Answer:
        """Answer a request that was refused before it could be asked; one answered before keeps its answer."""
        if not final(error):
            raise error
        return told(self._refuse(request, error))

    def _ask(self, request: Request) -> Answer:
        if not is_work(request.verb):
            return self._asked(request)
        with self._taking:
            # Also while a refusal is stored: the loop must not find it open in between.
            return self._asked(request)

    def _asked(self, request: Request) -> Answer:
        asked = request
        try:
            asked = self._prepared(request)
            if is_work(asked.verb):
                return self._work(asked)
            return self._store.answer(asked, self._run(asked))
        except RequestConflict:
            # One whose names were not known was refused, and stored, with the names as they were given.
            stored = self._stored(request)
            if stored is None:
                raise
            return stored
        except OncewardError as error:
            # Bad input of a short verb stays bad, and leaves nothing (K-11); what work is refused for may change.
            bad_input = isinstance(error, InvalidConfig) and not is_work(asked.verb)
            if final(error) and not bad_input:
                answer = self._refuse(asked, error)
                if answer.replayed:
                    return answer
            raise

    def _prepared(self, request: Request) -> Request:
        """A request with whole ids, signed where its principal is ours; refused where it came too late."""
        kernel, role = self._kernel, act_named(request.verb).role
        with self._store.read() as rows:
            try:
                request = statements.named(rows, request)
            except OncewardError:
                # Whoever may not ask is not told what there is.
                kernel.authority.require(rows, request.principal, role)
                raise
            if request.expires_at is not None and Requests(rows).find(request) is None:
                require_in_time(request, rows.now())
        if (
            kernel.signer is not None
            and request.principal == kernel.principal
            and request.signature is None
        ):
            with self._store.read() as rows:
                kernel.authority.require(rows, request.principal, role)
                request = statements.sign(
                    rows, kernel.signer, to_sign(rows, kernel.keyring, request)
                )
        return request

    def carry_out(self, works: bool = True) -> int:
        """Answer what other processes asked, in order; answers how many. Who is only here for that leaves work be."""
        with self._store.read() as rows:
            now = rows.now()
            waiting = [one for one in Requests(rows).open(_TAKE) if works or not is_work(one.verb)]
        return sum([self._answer(ledger, now) for ledger in waiting])

    def _answer(self, ledger: Ledger, now: int) -> bool:
        """Whether a filed request is answered now. One that a retry can help stays where it is, for the next pass."""
        request = Request(ledger.verb, ledger.request_id, None, ledger.principal)
        try:
            request = ledger.request
            if ledger.takes == 0:
                require_in_time(request, now)
            if is_work(request.verb):
                # Whoever has it taken right now answers it.
                if not self._taking.acquire(blocking=False):
                    return False
                try:
                    self._work(request)
                finally:
                    self._taking.release()
                return True
            run = self._run(request)
            self._store.write(lambda tx: answer_once(tx, request, run))
        except (LockLost, StorageError):
            # This kernel cannot write: its loop ends, and the next kernel goes on.
            raise
        except OncewardError as error:
            if not final(error):
                return False
            self._refuse_filed(request, error)
        except (Exception, SystemExit) as bug:
            self._refuse_filed(request, bug_of(bug))
        return True

    def _run(self, request: Request) -> Callable[[Transaction, str], Any]:
        """What a request does inside its transaction: role and signature are checked there. What lies outside is
        looked at before; not for those who may not ask, nor where the answer is there."""
        declared, principal = act_named(request.verb), request.principal
        carry_out = declared.run
        assert carry_out is not None
        if declared.prepares:
            if self._answered(request):
                return lambda tx, resource_id: None
            carry_out = carry_out(self._kernel, _payload_of(declared, request), principal)

        def run(tx: Transaction, resource_id: str) -> Any:
            self._kernel.authority.require(tx, principal, declared.role)
            envelope = self._envelope(tx, request)
            with statements.acting(tx, envelope, request.verb, principal, request.request_id):
                if declared.prepares:
                    return {"ok": carry_out(tx, principal)}
                return {"ok": carry_out(tx, principal, _payload_of(declared, request))}

        return run

    def _answered(self, request: Request) -> bool:
        """Whether the answer is there; whoever may not ask, or did not sign, is refused."""
        with self._store.read() as rows:
            known = Requests(rows).find(request)
            if known is not None and known.answered_at is not None:
                return True
            self._kernel.authority.require(rows, request.principal, act_named(request.verb).role)
            self._envelope(rows, request)
        return False

    def _envelope(self, rows: Reads, request: Request) -> Envelope:
        """What a request's principal signed; for a child of theirs that asks, what this kernel signs in their name."""
        proof = child_proof(request)
        if proof is None:
            return statements.authenticate(rows, request)
        signer = self._kernel.credentials.signer_for(request, proof)
        return statements.signed_for(rows, signer, request)

    def _work(self, request: Request) -> Answer:
        """Work is begun by whoever hosts it, and answered with what it is called; a kernel that does its own work in
        the foreground takes none. Every way out but the death of this process ends with an answer, or gives the
        request back: so the ledger counts deaths."""
        ledger = self._store.take(request)
        try:
            if ledger.answered_at is None:
                self._take(request, ledger)
        except OncewardError as error:
            if not final(error):
                with suppress(OncewardError):
                    self._store.give_back(request)
            raise
        except (Exception, SystemExit) as bug:
            raise bug_of(bug) from bug
        stored = self._stored(request)
        assert stored is not None
        return msgspec.structs.replace(stored, replayed=ledger.answered_at is not None)

    def _take(self, request: Request, ledger: Ledger) -> None:
        self._answered(request)
        if ledger.takes >= REQUEST_TAKES:
            raise ExecutionFailed(
                f"the kernel crashed {ledger.takes} times while it started this request; nothing was done, and it is not"
                " retried under this id",
                context={"request_id": request.request_id, "takes": ledger.takes},
            )
        if self.host is None:
            raise LockConflict(
                "the running kernel takes no work from others; only `onceward serve` does",
                context={"verb": request.verb},
            )

        def accept(tx: Transaction, subject: Subject) -> None:
            envelope = self._envelope(tx, request)
            with statements.acting(
                tx, envelope, request.verb, request.principal, request.request_id
            ):
                detail = {"verb": request.verb, "request_id": request.request_id, **subject}
                tx.append("workspace", "WORK_TAKEN", request.principal, detail)
            record_answer(tx, filed(tx, request), {"ok": subject})

        self.host.take(request, ledger.resource_id, accept)

    def _stored(self, request: Request) -> Answer | None:
        """The answer that is in the ledger, if one is."""
        with self._store.read() as rows:
            known = Requests(rows).find(request)
        if known is None or known.answered_at is None:
            return None
        return Answer(known.value(), replayed=True)

    def _refuse(self, request: Request, error: OncewardError) -> Answer:
        """A refusal is an answer: stored, so that what was refused is never carried out later (K-8)."""
        refusal = _document(error)

        def store_refusal(tx: Transaction) -> Answer:
            known = filed(tx, request)
            if known.answered_at is not None:
                return Answer(known.value(), replayed=True)
            record_answer(tx, known, refusal)
            return Answer(refusal)

        try:
            return self._store.write(store_refusal)
        except RequestConflict:
            # The id belongs to something else, which keeps its answer.
            raise error from None

    def _refuse_filed(self, request: Request, error: OncewardError) -> None:
        """The refusal of a request that is in the ledger, whether or not its payload can be read."""
        refusal = _document(error)

        def store_refusal(tx: Transaction) -> None:
            known = tx.requests.under(request.verb, request.request_id)
            if known is not None and known.answered_at is None:
                record_answer(tx, known, refusal)

        self._store.write(store_refusal)


def final(error: OncewardError) -> bool:
    """Whether an error is an answer. What a retry can help is none, nor is what says that this kernel may not write:
    the request stays open, and is carried out by the next pass or the next kernel."""
    return not error.retryable and error.code not in (LockLost.code, RequestConflict.code)


def bug_of(error: BaseException) -> OncewardError:
    return ExecutionFailed(f"the kernel met an error of its own: {type(error).__name__}")


def require_in_time(request: Request, now: int) -> None:
    """Refuse a request that expired before any kernel took it."""
    if request.expires_at is not None and request.expires_at <= now:
        raise LockConflict(
            f"the request expired at {iso(request.expires_at)}, before any kernel took it; nothing was done",
            context={"field": "expires_at", "expires_at": iso(request.expires_at)},
        )


def _document(error: OncewardError) -> dict[str, Any]:
    """A refusal as it is stored; one too long is cut, for no request may block those behind it."""
    refusal = {"error": error.document()}
    try:
        bounded(refusal, "the refusal")
    except InvalidConfig:
        refusal["error"] |= {"message": error.message[:1000], "context": {}}
    return refusal


def _payload_of(declared: Act, request: Request) -> Any:
    try:
        return msgspec.convert(request.payload, declared.payload)
    except msgspec.ValidationError as error:
        raise InvalidConfig(
            f"the request's payload does not fit: {error}", context={"field": "payload"}
        ) from None


def told(answer: Answer) -> Answer:
    if "error" in answer.value:
        raise StoredError(answer.value["error"])
    return Answer(answer.value["ok"], answer.replayed)
