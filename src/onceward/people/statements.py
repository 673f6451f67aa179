"""Signed acts: whoever asks signs exactly what is asked, and nothing is done that was not signed
so (K-13, X54)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec

from onceward.core.acts import find_act
from onceward.core.canon import canonical, parse
from onceward.core.records import Request
from onceward.core.sources import Micros
from onceward.errors import InvalidConfig, PermissionDenied, Recovery
from onceward.people.keyring import Signer
from onceward.people.signing import ACT, Envelope, genuine, read_envelope, statement
from onceward.store.port import Reads, moment_of
from onceward.store.tables.events import hash_at, head_of
from onceward.store.tables.keys import Signature, find_key, put_signature, workspace_id
from onceward.store.transaction import Transaction


def named(rows: Reads, request: Request) -> Request:
    """The request with whole ids for what somebody named by a beginning or a word: that is what
    gets signed."""
    declared = find_act(request.verb)
    if declared is None or not declared.ids or not isinstance(request.payload, dict):
        return request
    payload = dict(request.payload)
    for field, complete in declared.ids.items():
        given = payload.get(field)
        if isinstance(given, str) and given:
            payload[field] = complete(rows, given)
        elif isinstance(given, list):
            payload[field] = [complete(rows, str(name)) for name in given]
    return msgspec.structs.replace(request, payload=payload)


def sign(rows: Reads, signer: Signer, request: Request) -> Request:
    """The request with its statement signed: what, by whom, where, once, and after which moment
    of the history."""
    envelope = signed_for(rows, signer, request)
    return msgspec.structs.replace(request, signature=canonical(envelope.document()))


def signed_for(rows: Reads, signer: Signer, request: Request) -> Envelope:
    """The envelope that a principal signs for a request, now."""
    after = _After(*head_of(rows, "workspace"), moment_of(rows))
    return signer.key.sign(_said(request, signer.workspace, signer.key.fingerprint, after))


class _After(NamedTuple):
    """When something was signed: after which event of the workspace, and at what time by the
    store's clock."""

    seq: int
    hash: bytes
    at: Micros


def _said(request: Request, workspace: str, fingerprint: str, after: _After) -> bytes:
    predicate = {
        "act": request.verb,
        "asked_at": after.at,
        "head": {"hash": after.hash.hex(), "seq": after.seq, "stream": "workspace"},
        "key": fingerprint,
        "nonce": request.request_id,
        "payload": request.payload,
        "principal": request.principal,
        "workspace": workspace,
    }
    if request.expires_at is not None:
        # Nobody but the asker may have it done later than the asker wanted.
        predicate["expires_at"] = request.expires_at
    return statement(ACT, [(request.verb, request.payload_hash())], predicate)


def authenticate(rows: Reads, request: Request) -> Envelope:
    """The envelope of a request that its principal really signed, for this workspace and this
    history; else refused."""
    if request.signature is None:
        raise _refused(request, "it is not signed")
    try:
        envelope = read_envelope(parse(request.signature))
    except InvalidConfig as error:
        raise _refused(request, error.message) from None
    key = find_key(rows, envelope.fingerprint)
    if key is None or key.principal != request.principal:
        raise _refused(request, f"it is signed with a key that is not one of {request.principal}")
    if key.revoked_seq is not None:
        raise _refused(request, f"its key {key.fingerprint[:16]} was revoked")
    if not genuine(key.public_key, envelope):
        raise _refused(request, "its signature is not genuine")
    after = _after(envelope)
    if after is None or hash_at(rows, "workspace", after.seq) != after.hash:
        raise _refused(request, "it was signed for another history than this one")
    if envelope.statement != _said(request, workspace_id(rows), key.fingerprint, after):
        raise _refused(request, "it is not what was signed")
    return envelope


def asked_at(tx: Transaction, envelope: Envelope) -> Micros:
    """When something was signed; never later than now, whatever the asker's clock says."""
    after = _after(envelope)
    assert after is not None
    return min(after.at, tx.now)


def _after(envelope: Envelope) -> _After | None:
    try:
        said = envelope.said()["predicate"]
        head = said["head"]
        return _After(int(head["seq"]), bytes.fromhex(head["hash"]), int(said["asked_at"]))
    except (InvalidConfig, KeyError, TypeError, ValueError):
        return None


def _refused(request: Request, why: str) -> PermissionDenied:
    return PermissionDenied(
        f"the request {request.request_id[:80]} of {request.principal} is refused: {why}",
        context={"principal": request.principal, "verb": request.verb},
        recovery=[Recovery("ask again with this Onceward, which signs what it asks")],
    )


@contextmanager
def acting(
    tx: Transaction, envelope: Envelope, act: str, principal: str, nonce: str
) -> Iterator[None]:
    """While this lasts, every event names the statement it follows, which is kept with its place
    in the order."""

    def announce() -> None:
        note(tx, envelope, {"act": act, "principal": principal, "nonce": nonce}, principal)
        tx.signed = envelope.statement_hash

    tx.announce, tx.asked_at = announce, asked_at(tx, envelope)
    try:
        yield
    finally:
        tx.announce = tx.signed = tx.asked_at = None


@contextmanager
def own_act(
    tx: Transaction, signer: Signer | None, act: str, payload: dict[str, Any], nonce: str
) -> Iterator[None]:
    """While this lasts, every event follows what the principal of this very kernel signs now. A
    kernel without a key signs nothing, and nobody who has one believes it."""
    if signer is None:
        yield
        return
    request = Request(act, nonce, payload, signer.principal)
    with acting(
        tx,
        envelope=signed_for(tx, signer, request),
        act=act,
        principal=signer.principal,
        nonce=nonce,
    ):
        yield


def note(tx: Transaction, envelope: Envelope, detail: dict[str, Any], actor: str) -> None:
    """Keep what was signed; the workspace's stream says where among the comings and goings of
    keys."""
    said = {**detail, "key": envelope.fingerprint, "statement": envelope.statement_hash}
    event = tx.append("workspace", "ACT_SIGNED", actor, said)
    put_signature(
        tx,
        Signature(
            statement_hash=envelope.statement_hash,
            statement=envelope.statement.decode(),
            fingerprint=envelope.fingerprint,
            signature=envelope.signature,
            seq=event.seq,
        ),
    )
