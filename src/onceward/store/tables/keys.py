"""Keys, what was signed with them, and seals, as rows."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from onceward.errors import InvalidConfig
from onceward.store.port import Reads, Writes
from onceward.store.table import Table


class KeyRow(msgspec.Struct, frozen=True):
    """A public key as stored, in force from one place of the workspace's stream to another."""

    fingerprint: str
    public_key: bytes
    principal: str
    proof: bytes
    added_seq: int
    revoked_seq: int | None


class Signature(msgspec.Struct, frozen=True):
    """What was signed, exactly, by which key, and where the workspace's stream says so."""

    statement_hash: str
    statement: str
    fingerprint: str
    signature: bytes
    seq: int


class SealRow(msgspec.Struct, frozen=True):
    """The heads of all streams up to a position, as one root that was signed."""

    seal_no: int
    position: int
    streams: int
    root: str
    statement_hash: str


WORKSPACE: Final[Table[Any]] = Table(
    None,
    "workspace",
    key=("one",),
    not_evidence={
        "one": "there is a single row",
        "created_at": "when it was made; its first events have their own times",
    },
)
KEYS: Final = Table(KeyRow, "keys", key=("fingerprint",), bundle="keys.ndjson")
SIGNATURES: Final = Table(
    Signature,
    "signatures",
    key=("statement_hash",),
    order=("seq",),
    bundle="signatures.ndjson",
)
SEALS: Final = Table(SealRow, "seals", key=("seal_no",))
_SHORTEST = 8


def workspace_id(rows: Reads) -> str:
    ((found,),) = rows.read("SELECT workspace_id FROM workspace")
    return str(found)


def all_keys(rows: Reads) -> list[KeyRow]:
    return KEYS.read(rows, "ORDER BY added_seq, fingerprint")


def keys_of(rows: Reads, principal: str) -> list[KeyRow]:
    return KEYS.read(rows, "WHERE principal = ? ORDER BY added_seq", (principal,))


def find_key(rows: Reads, fingerprint: str) -> KeyRow | None:
    return KEYS.first(rows, "WHERE fingerprint = ?", (fingerprint,))


def keys_named(rows: Reads, prefix: str) -> list[KeyRow]:
    """The keys whose fingerprint begins so; a prefix under eight letters matches none."""
    if len(prefix) < _SHORTEST:
        return []
    return KEYS.read(
        rows,
        "WHERE fingerprint >= ? AND fingerprint < ? ORDER BY fingerprint LIMIT 2",
        (prefix, prefix + "g"),
    )


def put_key(tx: Writes, key: KeyRow) -> None:
    KEYS.insert(tx, key)


def revoke_key(tx: Writes, fingerprint: str, seq: int) -> None:
    tx.write(
        "UPDATE keys SET revoked_seq = ? WHERE fingerprint = ? AND revoked_seq IS NULL",
        (seq, fingerprint),
        lambda: InvalidConfig("the key was revoked a moment ago", context={"key": fingerprint}),
    )


def put_signature(tx: Writes, signature: Signature) -> None:
    SIGNATURES.insert(tx, signature)


def find_signature(rows: Reads, statement_hash: str) -> Signature | None:
    return SIGNATURES.first(rows, "WHERE statement_hash = ?", (statement_hash,))


def signatures_about(rows: Reads, subject: str) -> list[Signature]:
    """Statements on how a build or a saga's run ended."""
    name = "saga_id" if subject.startswith("sga_") else "build_id"
    return SIGNATURES.read(
        rows, "WHERE statement LIKE ? ORDER BY seq", (f'%"{name}":"{subject}"%',)
    )


def put_seal(tx: Writes, seal: SealRow) -> None:
    SEALS.insert(tx, seal)


def all_seals(rows: Reads) -> list[SealRow]:
    return SEALS.read(rows, "ORDER BY seal_no")


def newest_seal(rows: Reads) -> SealRow | None:
    return SEALS.first(rows, "ORDER BY seal_no DESC LIMIT 1")
