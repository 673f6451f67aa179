"""Permits: an authority that is used once or not at all. Grants are (S-3), confirmation tokens are (B-10)."""

from __future__ import annotations

from onceward.kernel.canon import sha256_hex
from onceward.kernel.limits import PERMIT_SECONDS
from onceward.kernel.machine import Machine
from onceward.kernel.records import Permit
from onceward.kernel.sources import Micros

GRANT = Machine.parse(
    "grant",
    """
    new    -> draft     -           GRANT_DRAFTED
    draft  -> active    issued      GRANT_ISSUED
    draft  -> revoked   withdrawn   GRANT_REVOKED
    active -> consumed  used        GRANT_CONSUMED
    active -> expired   time_passed GRANT_EXPIRED
    active -> revoked   withdrawn   GRANT_REVOKED

    terminal consumed expired revoked
    """,
)


def hash_of(secret: str) -> str:
    """What is kept of a secret."""
    return sha256_hex(secret.encode("utf-8", "surrogatepass"))


def mint(permit_id: str, subject: str, bound: int, secret_hash: str, now: Micros) -> Permit:
    """A permit for one subject at one moment of its life, for a while."""
    return Permit(permit_id, subject, bound, secret_hash, now + PERMIT_SECONDS * 1_000_000)


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
