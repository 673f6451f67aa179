"""Credentials of children: with one a child asks in its own name for the few things that children
may ask for (K-14).

A child has no key. Its kernel gives it a secret, keeps that in memory for as long as the child
runs, and signs for what the child asks with the key of whoever runs it."""

from __future__ import annotations

import hashlib
import hmac
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from onceward.core.acts import children_may
from onceward.core.canon import canonical, parse
from onceward.core.records import Request
from onceward.errors import InvalidConfig, PermissionDenied, Recovery
from onceward.people.keyring import Signer

VARIABLE: Final = "ONCEWARD_CREDENTIAL"


class Credential(msgspec.Struct, frozen=True):
    """The identity of a child, and the secret that proves it."""

    child_id: str
    principal: str
    """The principal in whose name its requests are carried out."""
    secret: str

    def text(self) -> str:
        return f"{self.child_id}:{self.secret}:{self.principal}"

    def request(self, request: Request) -> Request:
        """A request as this child asks it: with its own id where that is recorded, and the proof
        that it is the child's."""
        payload = request.payload
        if request.verb == "changes.mark" and isinstance(payload, dict):
            payload = {**payload, "child": self.child_id}
        asked = msgspec.structs.replace(request, payload=payload, principal=self.principal)
        proof = {"child": self.child_id, "proof": proof_of(self.secret, asked)}
        return msgspec.structs.replace(asked, signature=canonical(proof))


def credential_in(text: str) -> Credential | None:
    child_id, _, rest = text.partition(":")
    secret, _, principal = rest.partition(":")
    return Credential(child_id, principal, secret) if child_id and secret and principal else None


def own_credential() -> Credential | None:
    """The credential that this process was started with."""
    return credential_in(os.environ.get(VARIABLE, ""))


def proof_of(secret: str, request: Request) -> str:
    """The code that only the holder of the secret can compute for a request."""
    said: dict[str, Any] = {
        "verb": request.verb,
        "request_id": request.request_id,
        "principal": request.principal,
        "payload": request.payload_hash(),
    }
    if request.expires_at is not None:
        said["expires_at"] = request.expires_at
    return hmac.new(secret.encode(), canonical(said), hashlib.sha256).hexdigest()


class ChildProof(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a child's request carries instead of a signature."""

    child: str
    proof: str


def child_proof(request: Request) -> ChildProof | None:
    """The proof of a request that a child asks; None where it is none, and is signed or not."""
    if request.signature is None:
        return None
    try:
        return msgspec.convert(parse(request.signature), ChildProof)
    except (InvalidConfig, msgspec.ValidationError):
        return None


class _Known(msgspec.Struct, frozen=True):
    credential: Credential
    signer: Signer | None


class Credentials:
    """The kernel's side: every child that runs, with its secret and who signs for it. Any thread
    may ask."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._mutex = threading.Lock()

    def issue(
        self, child_id: str, principal: str, signer: Signer | None, secret: str
    ) -> Credential:
        """The credential of a child from its start on; asked again while it runs, the same."""
        with self._mutex:
            if child_id not in self._known:
                credential = Credential(child_id, principal, secret)
                self._known[child_id] = _Known(credential, signer)
            return self._known[child_id].credential

    def end(self, child_id: str) -> None:
        with self._mutex:
            self._known.pop(child_id, None)

    def signer_for(self, request: Request, proof: ChildProof) -> Signer:
        """The signer for a child's request; PERMISSION_DENIED for what no child may ask."""
        with self._mutex:
            known = self._known.get(proof.child)
        if known is None or known.credential.principal != request.principal:
            raise _denied(request, proof.child, "no such child runs here for them")
        if not hmac.compare_digest(proof_of(known.credential.secret, request), proof.proof):
            raise _denied(request, proof.child, "its proof is not the child's")
        if not children_may(request.verb):
            raise not_for_children(request.verb, proof.child)
        payload = request.payload if isinstance(request.payload, dict) else {}
        if request.verb == "children.cancel" and payload.get("subject") != proof.child:
            raise _denied(request, proof.child, "a child cancels only itself")
        if request.verb == "changes.mark" and payload.get("child") != proof.child:
            raise _denied(request, proof.child, "it names another child")
        if known.signer is None:
            raise _denied(request, proof.child, f"{request.principal} has no key here")
        return known.signer


class Issuer:
    """Gives the children of one session their credentials, in the name of whoever runs it."""

    def __init__(
        self,
        known: Credentials,
        principal: str,
        signer: Signer | None,
        secret: Callable[[], str],
    ) -> None:
        self._known, self._principal, self._signer, self._secret = known, principal, signer, secret

    def of(self, child_id: str) -> Credential:
        return self._known.issue(child_id, self._principal, self._signer, self._secret())

    def end(self, child_id: str) -> None:
        self._known.end(child_id)


def not_for_children(verb: str, child_id: str, able: Sequence[str] = ()) -> PermissionDenied:
    """`able` are people who may do it."""
    who = f"by {' or '.join(able[:3])}" if able else "by a person"
    return PermissionDenied(
        f"{verb} is not for the child {child_id}: a child may report, propose changes and cancel itself; it"
        " approves, reviews, grants, confirms and begins nothing",
        context={"verb": verb, "child_id": child_id},
        recovery=[Recovery(f"have it done {who}, in a terminal outside of the build")],
    )


def _denied(request: Request, child_id: str, why: str) -> PermissionDenied:
    return PermissionDenied(
        f"the request {request.request_id[:80]} of the child {child_id[:80]} is refused: {why}",
        context={"verb": request.verb, "child_id": child_id[:128]},
    )
