"""Bearer tokens: whoever shows one acts as the principal it is bound to, until it expires or is
revoked (I-3)."""

from __future__ import annotations

import re
from typing import Any, Final

from onceward.core.limits import TOKEN_SECONDS
from onceward.core.sources import Micros, iso
from onceward.errors import InvalidConfig, NotFound, Recovery
from onceward.people.authority import Authority
from onceward.people.permits import hash_of
from onceward.people.principals import authorize
from onceward.store.port import Reads
from onceward.store.store import Store
from onceward.store.tables.tokens import (
    BearerToken,
    all_tokens,
    put_token,
    revoke_token,
    token_of,
    tokens_named,
)
from onceward.store.transaction import Transaction

_HASH: Final = re.compile(r"[0-9a-f]{64}")


def make(tx: Transaction, actor: str, token_hash: str, seconds: int, note: str) -> dict[str, Any]:
    """A token of one's own. Only its hash is asked for: the token itself is in no request, no
    answer and no log."""
    if not _HASH.fullmatch(token_hash):
        raise InvalidConfig(
            "a token is made known by the SHA-256 of it", context={"field": "token_hash"}
        )
    if not 1 <= seconds <= TOKEN_SECONDS:
        raise InvalidConfig(
            f"a token lasts between 1 and {TOKEN_SECONDS} seconds", context={"field": "seconds"}
        )
    if token_of(tx, token_hash) is not None:
        raise InvalidConfig(
            "this token is known already; make another one", context={"field": "token_hash"}
        )
    token_id = tx.sources.new_id("tok")
    expires_at = (tx.asked_at or tx.now) + seconds * 1_000_000
    detail = {
        "token_id": token_id,
        "principal": actor,
        "token_hash": token_hash,
        "note": note,
        "expires_at": expires_at,
    }
    event = tx.append("workspace", "TOKEN_MADE", actor, detail)
    token = BearerToken(
        token_id=token_id,
        principal=actor,
        token_hash=token_hash,
        note=note,
        made_seq=event.seq,
        revoked_seq=None,
        expires_at=expires_at,
    )
    put_token(tx, token)
    return {"token_id": token_id, "principal": actor, "expires_at": iso(expires_at)}


def revoke(tx: Transaction, actor: str, name: str) -> dict[str, Any]:
    """A token is good for nothing any more; one's own, or, for an admin, anybody's."""
    found = tokens_named(tx, name)
    if len(found) != 1:
        raise NotFound(
            f"more than one token begins with {name[:64]}"
            if found
            else f"there is no token {name[:64]!a}",
            context={"token_id": name[:64]},
            recovery=[Recovery("see which there are", "onceward tokens list")],
        )
    (token,) = found
    if token.principal != actor:
        authorize(tx, actor, "admin")
    if token.revoked_seq is None:
        event = tx.append("workspace", "TOKEN_REVOKED", actor, {"token_id": token.token_id})
        revoke_token(tx, token.token_id, event.seq)
    return {"token_id": token.token_id, "principal": token.principal}


def bearer(rows: Reads, secret: str, now: Micros) -> BearerToken | None:
    """Whose token this is, if it is one that is still good."""
    found = token_of(rows, hash_of(secret))
    good = found is not None and found.revoked_seq is None and found.expires_at > now
    return found if good else None


def token_list(store: Store) -> list[dict[str, Any]]:
    """Every token and how it stands; none of them itself."""
    with store.read() as rows:
        now = rows.now()
        tokens = all_tokens(rows)
    return [
        {
            "token_id": token.token_id,
            "principal": token.principal,
            "note": token.note,
            "expires_at": iso(token.expires_at),
            "state": _state(token, now),
        }
        for token in tokens
    ]


def _state(token: BearerToken, now: Micros) -> str:
    if token.revoked_seq is not None:
        return "revoked"
    return "expired" if token.expires_at <= now else "good"


def bearer_of(store: Store, authority: Authority, secret: str) -> str | None:
    """Whom a token lets act, by what they signed; None if it is not good."""
    with store.read() as rows:
        found = bearer(rows, secret, rows.now())
        return authority.holder(rows, found) if found is not None else None
