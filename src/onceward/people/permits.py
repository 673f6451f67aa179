"""Permits: a secret that allows one thing once, kept only as its hash. Confirmation tokens are
permits (B-10), bearer tokens are kept the same way."""

from __future__ import annotations

from typing import Any

from onceward.core.canon import sha256_hex
from onceward.core.records import Permit
from onceward.core.sources import Micros


def hash_of(secret: str) -> str:
    """The digest of a secret that is stored."""
    return hash_of_proof(proof_of(secret))


def proof_of(secret: str) -> str:
    """A proof of having a secret that does not contain it; requests carry only this."""
    return sha256_hex(b"onceward|" + secret.encode("utf-8", "surrogatepass"))


def hash_of_proof(proof: str) -> str:
    return sha256_hex(proof.encode("utf-8", "surrogatepass"))


def mint(permit_id: str, subject: str, bound: int, secret_hash: str, expires_at: Micros) -> Permit:
    """A permit for one subject at one moment of its life, for a while."""
    return Permit(
        permit_id=permit_id,
        subject=subject,
        bound=bound,
        secret_hash=secret_hash,
        expires_at=expires_at,
    )


def told(permit: Permit, spent: int) -> dict[str, Any]:
    """The fields of a permit in the event that mints it."""
    return {
        "expires_at": permit.expires_at,
        "permit_id": permit.permit_id,
        "spent_micros": spent,
        "token_hash": permit.secret_hash,
    }


def objection(permit: Permit | None, subject: str, bound: int, now: Micros) -> str:
    """Why a permit does not allow this, in words; empty if it does. Asking uses nothing up."""
    if permit is None:
        return "is not one of this workspace"
    if permit.subject != subject:
        return "is for something else"
    if permit.consumed_at is not None:
        return "was used already"
    if permit.voided_at is not None or permit.bound != bound:
        return "is void: a newer one was made"
    if permit.expires_at <= now:
        return "has expired"
    return ""
