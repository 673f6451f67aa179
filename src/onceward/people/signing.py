"""Ed25519 keys and what is signed with them: in-toto statements in DSSE envelopes, exact bytes
(X53, X54)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Protocol

import msgspec

from onceward.core.canon import canonical, parse, sha256_hex
from onceward.errors import InvalidConfig

PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
STATEMENT: Final = "https://in-toto.io/Statement/v1"
ACT: Final = "urn:onceward:act@1"
BUILD: Final = "urn:onceward:build@1"
SAGA: Final = "urn:onceward:saga@1"
CHANGE: Final = "urn:onceward:change@1"
SEAL: Final = "urn:onceward:seal@1"
POSSESSION: Final = "urn:onceward:possession@1"

_PKCS8: Final = bytes.fromhex("302e020100300506032b657004220420")
_BEGIN: Final = b"-----BEGIN PRIVATE KEY-----"
_END: Final = b"-----END PRIVATE KEY-----"
_LOCKED: Final = b"-----BEGIN ENCRYPTED PRIVATE KEY-----"
_P = 2**255 - 19
_D = -121665 * pow(121666, -1, _P) % _P


class Envelope(msgspec.Struct, frozen=True):
    """A statement's exact bytes, the fingerprint of the key that signed them, and the signature."""

    statement: bytes
    fingerprint: str
    signature: bytes

    @property
    def statement_hash(self) -> str:
        return sha256_hex(self.statement)

    def document(self) -> dict[str, Any]:
        """The DSSE envelope of it."""
        return {
            "payload": base64.b64encode(self.statement).decode(),
            "payloadType": PAYLOAD_TYPE,
            "signatures": [
                {"keyid": self.fingerprint, "sig": base64.b64encode(self.signature).decode()}
            ],
        }

    def said(self) -> dict[str, Any]:
        """The decoded statement; only for an envelope whose signature was checked."""
        said = parse(self.statement)
        if not isinstance(said, dict) or canonical(said) != self.statement:
            raise InvalidConfig(
                "a signed statement is not in canonical form", context={"field": "payload"}
            )
        return said


def read_envelope(document: Any) -> Envelope:
    """A DSSE envelope with exactly one signature, in the one form that we write."""
    try:
        (signed,) = document["signatures"]
        found = Envelope(
            _unpacked(document["payload"]), str(signed["keyid"]), _unpacked(signed["sig"])
        )
    except (KeyError, TypeError, ValueError, AttributeError, binascii.Error):
        raise InvalidConfig(
            "this is not an envelope of one signature", context={"field": "signature"}
        ) from None
    if found.document() != document:
        raise InvalidConfig("an envelope holds more than it should", context={"field": "signature"})
    return found


def _unpacked(text: str) -> bytes:
    return base64.b64decode(text.encode("ascii"), validate=True)


def encoded(payload_type: str, payload: bytes) -> bytes:
    """DSSE's pre-authentication encoding: what the signature is really over."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def statement(
    kind: str, subjects: Sequence[tuple[str, str]], predicate: Mapping[str, Any]
) -> bytes:
    """An in-toto statement as canonical bytes: subjects are names with SHA-256 digests."""
    return canonical(
        {
            "_type": STATEMENT,
            "predicate": dict(predicate),
            "predicateType": kind,
            "subject": [{"digest": {"sha256": digest}, "name": name} for name, digest in subjects],
        }
    )


class SigningKey:
    """A private key in memory. It signs, and never shows itself."""

    def __init__(self, private: Any) -> None:
        self._private = private
        self.public: bytes = private.public_key().public_bytes_raw()
        self.fingerprint = fingerprint(self.public)

    @classmethod
    def generate(cls) -> SigningKey:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def read(cls, pem: bytes, passphrase: str = "") -> SigningKey:
        """A key from its PKCS #8 file (RFC 8410), in the one form without attributes; with its
        passphrase, if it has one."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        if is_locked(pem):
            return cls(_unlocked(pem, passphrase))
        body = pem.strip().removeprefix(_BEGIN).removesuffix(_END)
        try:
            data = base64.b64decode(b"".join(body.split()), validate=True)
        except binascii.Error:
            data = b""
        if data[:16] != _PKCS8 or len(data) != 48 or not pem.strip().startswith(_BEGIN):
            raise InvalidConfig("this is not the file of an Ed25519 key without a passphrase")
        return cls(Ed25519PrivateKey.from_private_bytes(data[16:]))

    def pem(self, passphrase: str = "") -> bytes:
        """Its file; encrypted where it has a passphrase."""
        if passphrase:
            return _locked(self._private, passphrase)
        text = base64.b64encode(_PKCS8 + self._private.private_bytes_raw())
        return _BEGIN + b"\n" + text + b"\n" + _END + b"\n"

    def sign(self, payload: bytes) -> Envelope:
        return Envelope(
            payload, self.fingerprint, self._private.sign(encoded(PAYLOAD_TYPE, payload))
        )

    def proof(self, workspace: str, principal: str) -> bytes:
        """That whoever names this key in this workspace has it."""
        return self.sign(possession(workspace, principal, self.public)).signature


class KeyHandle(Protocol):
    """A key that signs, wherever it is."""

    public: bytes
    fingerprint: str

    def sign(self, payload: bytes) -> Envelope: ...

    def proof(self, workspace: str, principal: str) -> bytes: ...


def is_locked(pem: bytes) -> bool:
    """Whether a key file has a passphrase."""
    return _LOCKED in pem


def _locked(private: Any, passphrase: str) -> bytes:
    from cryptography.hazmat.primitives import serialization

    locked: bytes = private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(passphrase.encode()),
    )
    return locked


def _unlocked(pem: bytes, passphrase: str) -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    try:
        private = serialization.load_pem_private_key(pem, passphrase.encode())
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InvalidConfig(
            "the passphrase is not that of this key, or its file is damaged"
        ) from None
    if not isinstance(private, Ed25519PrivateKey):
        raise InvalidConfig("this is not the file of an Ed25519 key")
    return private


def possession(workspace: str, principal: str, public: bytes) -> bytes:
    """What a key signs to show that it is there: made anew by whoever checks it."""
    said = {"key": fingerprint(public), "principal": principal, "workspace": workspace}
    return statement(POSSESSION, [(f"principal:{principal}", fingerprint(public))], said)


def fingerprint(public: bytes) -> str:
    return sha256_hex(public)


def genuine(public: bytes, envelope: Envelope) -> bool:
    """Whether this key signed these bytes."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if envelope.fingerprint != fingerprint(public) or objection(public):
        return False
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(
            envelope.signature, encoded(PAYLOAD_TYPE, envelope.statement)
        )
    except (InvalidSignature, ValueError):
        return False
    return True


@lru_cache(maxsize=1024)
def objection(public: bytes) -> str | None:
    """Why these bytes are no key to rely on: each point has one encoding, and weak ones sign
    anything (X53)."""
    if len(public) != 32:
        return f"a public key has 32 bytes, not {len(public)}"
    y = int.from_bytes(public, "little") & (2**255 - 1)
    if y >= _P:
        return "its encoding is not the canonical one"
    square = (y * y - 1) * pow(_D * y * y + 1, -1, _P) % _P
    if square and pow(square, (_P - 1) // 2, _P) != 1:
        return "it is no point of the curve"
    if not square and public[31] & 0x80:
        return "its encoding is not the canonical one"
    # The points of order 1, 2, 4 and 8 have y = 1, -1, 0 and the roots of d y^4 + 2 y^2 - 1.
    if y in (0, 1, _P - 1) or (_D * y**4 + 2 * y * y - 1) % _P == 0:
        return "it is of small order: it would accept what nobody signed"
    return None


def require_sound(public: bytes) -> bytes:
    why = objection(public)
    if why:
        raise InvalidConfig(f"this is not a key to rely on: {why}", context={"field": "key"})
    return public
