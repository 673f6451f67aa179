"""Tokens as rows: who may act by showing one, until when; only their hashes."""

from __future__ import annotations

import msgspec

from onceward.core.sources import Micros
from onceward.store.port import Reads, Writes


class Token(msgspec.Struct, frozen=True):
    """A bearer token as stored: what it is bound to, never what it is."""

    token_id: str
    principal: str
    token_hash: str
    note: str
    made_seq: int
    """Where in the workspace's stream it was made, and revoked."""
    revoked_seq: int | None
    expires_at: Micros


_COLUMNS = ", ".join(Token.__struct_fields__)


def all_tokens(rows: Reads) -> list[Token]:
    return [Token(*row) for row in rows.read(f"SELECT {_COLUMNS} FROM tokens ORDER BY token_id")]


def token_of(rows: Reads, token_hash: str) -> Token | None:
    found = rows.read(f"SELECT {_COLUMNS} FROM tokens WHERE token_hash = ?", (token_hash,))
    return Token(*found[0]) if found else None


def tokens_named(rows: Reads, prefix: str) -> list[Token]:
    found = rows.read(
        f"SELECT {_COLUMNS} FROM tokens WHERE token_id >= ? AND token_id < ? ORDER BY token_id LIMIT 2",
        (prefix, prefix + "\U0010ffff"),
    )
    exact = [Token(*row) for row in found if row[0] == prefix]
    return exact or [Token(*row) for row in found]


def put_token(tx: Writes, token: Token) -> None:
    tx.write(
        f"INSERT INTO tokens ({_COLUMNS}) VALUES ({', '.join('?' * len(Token.__struct_fields__))})",
        msgspec.structs.astuple(token),
    )


def revoke_token(tx: Writes, token_id: str, seq: int) -> None:
    tx.write(
        "UPDATE tokens SET revoked_seq = ? WHERE token_id = ? AND revoked_seq IS NULL",
        (seq, token_id),
    )
