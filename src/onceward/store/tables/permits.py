"""Permits as rows: consumed by one conditional update, or not at all (B-10; grants share the
code, not the table)."""

from __future__ import annotations

from typing import Final

import msgspec

from onceward.core.records import Permit
from onceward.core.sources import Micros
from onceward.errors import PermitInvalid
from onceward.store.port import Reads, Writes
from onceward.store.table import Table


class PermitRow(msgspec.Struct, frozen=True):
    """A confirmation token as stored: the hash of a secret, for one pause of one build."""

    permit_id: str
    build_id: str
    transition_seq: int
    token_hash: str
    spent: int
    minted_at: Micros
    expires_at: Micros
    consumed_at: Micros | None
    voided_at: Micros | None
    statement_hash: str | None
    """What asked for it; none where the pause of its build did."""


CONFIRMATIONS: Final = Table(
    PermitRow, "confirmation_tokens", key=("permit_id",), bundle="permits.ndjson"
)
_FIELDS = "permit_id, build_id, transition_seq, token_hash, expires_at, consumed_at, voided_at"


def mint_confirmation(
    tx: Writes, permit: Permit, spent: int, now: Micros, statement: str | None = None
) -> None:
    """A new confirmation token of a build; those before it are void. `statement` is what asked
    for it."""
    tx.write(
        "UPDATE confirmation_tokens SET voided_at = ?"
        " WHERE build_id = ? AND consumed_at IS NULL AND voided_at IS NULL",
        (now, permit.subject),
    )
    tx.write(
        "INSERT INTO confirmation_tokens"
        " (permit_id, build_id, transition_seq, token_hash, spent, minted_at, expires_at, statement_hash)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            permit.permit_id,
            permit.subject,
            permit.bound,
            permit.secret_hash,
            spent,
            now,
            permit.expires_at,
            statement,
        ),
    )


def statement_of(rows: Reads, permit_id: str) -> str | None:
    """The hash of what asked for a confirmation token; None where its pause did."""
    found = rows.read(
        "SELECT statement_hash FROM confirmation_tokens WHERE permit_id = ?", (permit_id,)
    )
    return found[0][0] if found else None


def newest_confirmations(rows: Reads, limit: int) -> list[Permit]:
    found = rows.read(
        f"SELECT {_FIELDS} FROM confirmation_tokens ORDER BY minted_at DESC, permit_id DESC LIMIT ?",
        (limit,),
    )
    return [Permit(*row) for row in found]


def find_confirmation(rows: Reads, secret_hash: str) -> Permit | None:
    found = rows.read(
        f"SELECT {_FIELDS} FROM confirmation_tokens WHERE token_hash = ?", (secret_hash,)
    )
    return Permit(*found[0]) if found else None


def consume(tx: Writes, table: str, permit: Permit, now: Micros) -> None:
    """Use a permit up; whoever comes second is refused by the database."""
    tx.write(
        f"UPDATE {table} SET consumed_at = ?"
        " WHERE permit_id = ? AND consumed_at IS NULL AND voided_at IS NULL",
        (now, permit.permit_id),
        lambda: PermitInvalid(
            "the permit was used a moment ago", context={"permit_id": permit.permit_id}
        ),
    )
