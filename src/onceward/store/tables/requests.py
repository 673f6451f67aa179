"""The request ledger: what was asked under which id, and what it came to (K-8, K-13)."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from onceward.core.canon import bounded, digest, sha256_hex
from onceward.core.records import Request
from onceward.errors import RequestConflict
from onceward.store.port import Reads, Writes
from onceward.store.table import Table

UNTOLD: Final = frozenset({"outbox.flush"})
"""What may be asked without an event that tells of the answer: it says nothing that anything
depends on, and an event would only be one more to deliver."""


class Ledger(msgspec.Struct, frozen=True):
    """One request as stored."""

    request_no: int
    verb: str
    request_id: str
    payload: str
    payload_hash: str
    principal: str
    signature: bytes | None
    resource_id: str
    asked_at: int
    answered_at: int | None
    answer: str | None
    takes: int
    """How often a kernel took it without answering it or giving it back."""
    expires_at: int | None

    def told(self) -> dict[str, str]:
        """What the event of its answer says of it: who asked, and digests of what was asked and
        answered."""
        signature = sha256_hex(self.signature) if self.signature is not None else None
        terms = (self.resource_id, self.asked_at, self.expires_at)
        return {
            "answer": sha256_hex((self.answer or "").encode()),
            "asked": digest([self.payload_hash, signature, *terms]),
            "principal": self.principal,
            "request_id": self.request_id,
            "verb": self.verb,
        }

    @property
    def request(self) -> Request:
        return Request(
            verb=self.verb,
            request_id=self.request_id,
            payload=msgspec.json.decode(self.payload),
            principal=self.principal,
            signature=self.signature,
            expires_at=self.expires_at,
        )

    def expired(self, now: int) -> bool:
        """Whether it may no longer be taken for the first time."""
        return self.expires_at is not None and self.takes == 0 and self.expires_at <= now

    def value(self) -> Any:
        return msgspec.json.decode(self.answer or "null")


REQUESTS: Final = Table(
    Ledger,
    "requests",
    key=("request_no",),
    not_evidence={
        "request_no": "in which order unanswered requests are looked at",
        "takes": "how often a kernel died while it began it",
    },
)


class Requests:
    def __init__(self, rows: Reads) -> None:
        self._rows = rows

    def find(self, request: Request) -> Ledger | None:
        """The ledger's row of this id; URM_IDEMPOTENCY_KEY_CONFLICT if it was for another
        payload."""
        found = self.under(request.verb, request.request_id)
        if found is None:
            return None
        ours = request.payload_hash()
        if found.payload_hash != ours or found.principal != request.principal:
            raise RequestConflict(
                f"request id {request.request_id!r} was already used for another {request.verb}",
                context={
                    "stored": found.payload_hash,
                    "given": ours,
                    "request_id": request.request_id,
                },
            )
        return found

    def under(self, verb: str, request_id: str) -> Ledger | None:
        """The ledger's row of this id, whatever it was for."""
        return REQUESTS.first(self._rows, "WHERE verb = ? AND request_id = ?", (verb, request_id))

    def open(self, limit: int) -> list[Ledger]:
        """Requests that wait for an answer, in the order they were filed."""
        return REQUESTS.read(
            self._rows, "WHERE answered_at IS NULL ORDER BY request_no LIMIT ?", (limit,)
        )


def file_request(tx: Writes, request: Request, resource_id: str, now: int) -> None:
    """Put a request into the ledger, still unanswered; one already there stays as it is."""
    payload = request.check().decode()
    tx.write(
        "INSERT INTO requests (verb, request_id, payload, payload_hash, principal, signature,"
        " resource_id, asked_at,"
        " expires_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (verb, request_id) DO NOTHING",
        (
            request.verb,
            request.request_id,
            payload,
            request.payload_hash(),
            request.principal,
            request.signature,
            resource_id,
            now,
            request.expires_at,
        ),
    )


def answer_request(tx: Writes, asked: Ledger, value: Any, now: int) -> Ledger:
    """Record what a request came to, in the transaction that did it; answers its row as it is
    then."""
    answer = bounded(value, "the answer").decode()
    tx.write(
        "UPDATE requests SET answered_at = ?, answer = ?"
        " WHERE verb = ? AND request_id = ? AND answered_at IS NULL",
        (now, answer, asked.verb, asked.request_id),
    )
    return msgspec.structs.replace(asked, answered_at=now, answer=answer)


def count_take(tx: Writes, request: Request, change: int) -> None:
    """A kernel begins to take a request (1), or gives it back without an answer (-1)."""
    tx.write(
        "UPDATE requests SET takes = takes + ?"
        " WHERE verb = ? AND request_id = ? AND answered_at IS NULL",
        (change, request.verb, request.request_id),
    )
