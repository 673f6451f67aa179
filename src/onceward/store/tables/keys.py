"""Keys, what was signed with them, and seals, as rows."""

from __future__ import annotations

import msgspec

from onceward.errors import InvalidConfig
from onceward.store.port import Reads, Writes


class Key(msgspec.Struct, frozen=True):
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


class Seal(msgspec.Struct, frozen=True):
    """The heads of all streams up to a position, as one root that was signed."""

    seal_no: int
    position: int
    streams: int
    root: str
    statement_hash: str


_SHORTEST = 8
_KEY, _SIGNATURE, _SEAL = (", ".join(kind.__struct_fields__) for kind in (Key, Signature, Seal))


def workspace_id(rows: Reads) -> str:
    ((found,),) = rows.read("SELECT workspace_id FROM workspace")
    return str(found)


def all_keys(rows: Reads) -> list[Key]:
    return [
        Key(*row) for row in rows.read(f"SELECT {_KEY} FROM keys ORDER BY added_seq, fingerprint")
    ]


def keys_of(rows: Reads, principal: str) -> list[Key]:
    found = rows.read(
        f"SELECT {_KEY} FROM keys WHERE principal = ? ORDER BY added_seq", (principal,)
    )
    return [Key(*row) for row in found]


def find_key(rows: Reads, fingerprint: str) -> Key | None:
    found = rows.read(f"SELECT {_KEY} FROM keys WHERE fingerprint = ?", (fingerprint,))
    return Key(*found[0]) if found else None


def keys_named(rows: Reads, prefix: str) -> list[Key]:
    """Those whose fingerprint begins so; fewer letters than eight mean none."""
    if len(prefix) < _SHORTEST:
        return []
    found = rows.read(
        f"SELECT {_KEY} FROM keys WHERE fingerprint >= ? AND fingerprint < ? ORDER BY fingerprint LIMIT 2",
        (prefix, prefix + "g"),
    )
    return [Key(*row) for row in found]


def put_key(tx: Writes, key: Key) -> None:
    _insert(tx, "keys", _KEY, key)


def revoke_key(tx: Writes, fingerprint: str, seq: int) -> None:
    tx.write(
        "UPDATE keys SET revoked_seq = ? WHERE fingerprint = ? AND revoked_seq IS NULL",
        (seq, fingerprint),
        lambda: InvalidConfig("the key was revoked a moment ago", context={"key": fingerprint}),
    )


def put_signature(tx: Writes, signature: Signature) -> None:
    _insert(tx, "signatures", _SIGNATURE, signature)


def find_signature(rows: Reads, statement_hash: str) -> Signature | None:
    found = rows.read(
        f"SELECT {_SIGNATURE} FROM signatures WHERE statement_hash = ?", (statement_hash,)
    )
    return Signature(*found[0]) if found else None


def signatures_about(rows: Reads, subject: str) -> list[Signature]:
    """Statements on how a build or a saga's run ended."""
    name = "saga_id" if subject.startswith("sga_") else "build_id"
    found = rows.read(
        f"SELECT {_SIGNATURE} FROM signatures WHERE statement LIKE ? ORDER BY seq",
        (f'%"{name}":"{subject}"%',),
    )
    return [Signature(*row) for row in found]


def put_seal(tx: Writes, seal: Seal) -> None:
    _insert(tx, "seals", _SEAL, seal)


def all_seals(rows: Reads) -> list[Seal]:
    return [Seal(*row) for row in rows.read(f"SELECT {_SEAL} FROM seals ORDER BY seal_no")]


def newest_seal(rows: Reads) -> Seal | None:
    found = rows.read(f"SELECT {_SEAL} FROM seals ORDER BY seal_no DESC LIMIT 1")
    return Seal(*found[0]) if found else None


def _insert(tx: Writes, table: str, fields: str, record: msgspec.Struct) -> None:
    values = msgspec.structs.astuple(record)
    tx.write(f"INSERT INTO {table} ({fields}) VALUES ({', '.join('?' * len(values))})", values)
