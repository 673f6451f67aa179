"""Tokens as rows: who may act by showing one, until when; only their hashes."""

from __future__ import annotations

from typing import Final

import msgspec

from onceward.core.sources import Micros
from onceward.store.port import Reads, Writes
from onceward.store.table import Table


class BearerToken(msgspec.Struct, frozen=True):
    """A bearer token as stored: what it is bound to, never what it is."""

    token_id: str
    principal: str
    token_hash: str
    note: str
    made_seq: int
    """Where in the workspace's stream it was made, and revoked."""
    revoked_seq: int | None
    expires_at: Micros


BEARER_TOKENS: Final = Table(BearerToken, "tokens", key=("token_id",))


def all_tokens(rows: Reads) -> list[BearerToken]:
    return BEARER_TOKENS.read(rows, "ORDER BY token_id")


def token_of(rows: Reads, token_hash: str) -> BearerToken | None:
    return BEARER_TOKENS.first(rows, "WHERE token_hash = ?", (token_hash,))


def tokens_named(rows: Reads, prefix: str) -> list[BearerToken]:
    return BEARER_TOKENS.begins(rows, prefix)


def put_token(tx: Writes, token: BearerToken) -> None:
    BEARER_TOKENS.insert(tx, token)


def revoke_token(tx: Writes, token_id: str, seq: int) -> None:
    tx.write(
        "UPDATE tokens SET revoked_seq = ? WHERE token_id = ? AND revoked_seq IS NULL",
        (seq, token_id),
    )
