"""Making a seal: whoever asks computes the heads and signs them; the kernel computes them again
before it believes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from onceward.core.canon import canonical
from onceward.core.durable import replace
from onceward.core.merkle import MerkleTree
from onceward.errors import InvalidConfig, PermissionDenied, Recovery, StaleVersion
from onceward.evidence.seal import Receipt, heads_at, seal_statement, since
from onceward.people import statements
from onceward.people.keyring import Signer
from onceward.people.signing import genuine, read_envelope
from onceward.store.port import Reads
from onceward.store.tables.events import head_of, last_position
from onceward.store.tables.keys import (
    SealRow,
    all_seals,
    find_key,
    find_signature,
    newest_seal,
    put_seal,
    workspace_id,
)
from onceward.store.transaction import Transaction


def prepare(rows: Reads, signer: Signer, older: Receipt | None = None) -> Receipt:
    """The seal of everything there is now, signed but not yet recorded; with the way from an
    older one that it is to take the place of."""
    position = last_position(rows)
    before = [seal.statement_hash for seal in all_seals(rows)]
    heads = list(heads_at(rows, position))
    tree = MerkleTree()
    for head in heads:
        tree.add(head.leaf())
    fingerprint = signer.key.fingerprint
    statement = seal_statement(
        workspace=signer.workspace,
        principal=signer.principal,
        key=fingerprint,
        position=position,
        size=tree.size,
        root=tree.root(),
        before=before,
    )
    return Receipt(
        signer.key.sign(statement),
        signer.key.public,
        heads,
        since(older, before) if older else None,
    )


def add(tx: Transaction, actor: str, document: Any) -> dict[str, Any]:
    """Record a seal that is genuine, by the principal who asks, and true."""
    envelope = read_envelope(document)
    key = find_key(tx, envelope.fingerprint)
    if (
        key is None
        or (key.principal, key.revoked_seq) != (actor, None)
        or not genuine(key.public_key, envelope)
    ):
        raise PermissionDenied(f"the seal is not signed by {actor}", context={"principal": actor})
    try:
        position = int(envelope.said()["predicate"]["position"])
    except (KeyError, TypeError, ValueError):
        raise InvalidConfig("this is not a seal", context={"field": "envelope"}) from None
    if not 0 < position <= last_position(tx):
        raise InvalidConfig(
            "the seal is of events that are not here", context={"position": position}
        )
    before = [seal.statement_hash for seal in all_seals(tx)]
    tree = MerkleTree()
    for head in heads_at(tx, position):
        tree.add(head.leaf())
    root = tree.root()
    expected = seal_statement(
        workspace=workspace_id(tx),
        principal=actor,
        key=key.fingerprint,
        position=position,
        size=tree.size,
        root=root,
        before=before,
    )
    if envelope.statement != expected:
        raise StaleVersion(
            "another seal came first, or the seal is not of this history",
            recovery=[Recovery("seal again", "onceward seal")],
        )
    statements.note(tx, envelope, {"act": "seal", "principal": actor, "nonce": root.hex()}, actor)
    number = len(before) + 1
    seal = SealRow(
        seal_no=number,
        position=position,
        streams=tree.size,
        root=root.hex(),
        statement_hash=envelope.statement_hash,
    )
    put_seal(tx, seal)
    return {
        "seal": number,
        "position": position,
        "streams": tree.size,
        "root": root.hex(),
        "key": key.fingerprint,
    }


def needed(rows: Reads) -> bool:
    """Whether something happened since the last seal, beside the seal itself."""
    newest = newest_seal(rows)
    if newest is None:
        return last_position(rows) > 0
    signed = find_signature(rows, newest.statement_hash)
    seq, _ = head_of(rows, "workspace")
    # The seal itself is two signed acts and an answer.
    return signed is None or signed.seq + 1 != seq or last_position(rows) > newest.position + 3


def write(path: Path, receipt: Receipt) -> None:
    """Put a seal where it is safe from whoever changes the store: whole, or not at all."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        replace(path, canonical(receipt.document()) + b"\n", aside=fresh, mode=0o644)
    except OSError as error:
        raise InvalidConfig(
            f"cannot write the seal {path}: {error.strerror}", context={"file": str(path)}
        ) from error
