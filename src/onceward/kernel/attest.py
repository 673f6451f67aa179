"""What the kernel vouches for: the end of a build or a saga, signed with the key of whoever ran it (E-2)."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from onceward.core.chain import Event
from onceward.core.changes import ChangeSet, Entry, PairSignature, VerifyResult, said_of_pair
from onceward.core.records import Move
from onceward.core.sagas import Run
from onceward.errors import PermissionDenied
from onceward.people import statements
from onceward.people.keyring import Signer
from onceward.people.signing import BUILD, CHANGE, SAGA, statement
from onceward.store.tables.budgets import lanes_of
from onceward.store.tables.events import head_of
from onceward.store.tables.keys import find_key
from onceward.store.transaction import Transaction


def end(tx: Transaction, move: Move, plan_hash: str, signer: Signer | None) -> None:
    """The last move of a build, and with it a statement over everything that led there: its stream up to this event,
    what it made and what it spent."""
    event = tx.move(move)
    if signer is None or event is None:
        return
    also = [("manifest.ndjson", move.detail["outputs"])] if "outputs" in move.detail else []
    _vouch(tx, move, event, signer, BUILD, {"build_id": move.subject, "plan_hash": plan_hash}, also)


def end_of_saga(tx: Transaction, move: Move, run: Run, signer: Signer | None) -> None:
    """The same of a saga's run: that it is done, or stopped at this place with its compensation done."""
    event = tx.move(move)
    if signer is None or event is None:
        return
    said = {"saga_id": run.saga_id, "root": run.idempotency_root}
    _vouch(
        tx,
        move,
        event,
        signer,
        SAGA,
        said | ({"grant_id": run.grant_id} if run.grant_id else {}),
        [],
    )


def _vouch(
    tx: Transaction,
    move: Move,
    event: Event,
    signer: Signer,
    kind: str,
    told: dict[str, Any],
    also: list[tuple[str, str]],
) -> None:
    predicate: dict[str, Any] = {
        **told,
        "head": {"hash": event.hash.hex(), "seq": event.seq, "stream": event.stream},
        "key": signer.key.fingerprint,
        "principal": signer.principal,
        "reason": move.reason,
        "state": move.target,
        "totals": {lane: total for lane, _, total, *_ in lanes_of(tx, move.subject)},
        "workspace": signer.workspace,
    }
    envelope = signer.key.sign(
        statement(kind, [(event.stream, event.hash.hex()), *also], predicate)
    )
    said = {"act": f"{move.machine.name}.end", "principal": signer.principal, "nonce": move.subject}
    statements.note(tx, envelope, said, signer.principal)


ROLES: Final = {"change.cut": "executor", "change.verify": "verifier", "change.undo": "verifier"}
"""Who may sign what of a change."""


class Pair(msgspec.Struct, frozen=True):
    """One half of the pair that signs a change: that it was carried out, or taken back; or what was found there."""

    act: str
    entry: Entry
    to: str
    """What the entry becomes with it."""
    manifest: str
    change_set: ChangeSet
    result: VerifyResult | None = None


def pair(tx: Transaction, told: Pair, tool: str, signer: Signer | None) -> PairSignature:
    """Somebody's word on a change: over the whole act, so that it fits no other (X54); with a key that is in force."""
    assert signer is not None
    key = find_key(tx, signer.key.fingerprint)
    if key is None or key.revoked_seq is not None:
        raise PermissionDenied(
            f"the key {signer.key.fingerprint[:16]} of {signer.principal} is not in force any more",
            context={"principal": signer.principal},
        )
    stream = f"entry:{told.entry.entry_id}"
    seq, hash_ = head_of(tx, stream)
    nonce = tx.sources.secret()[:32]
    row = PairSignature(
        signature_id=tx.sources.new_id("sig"),
        entry_id=told.entry.entry_id,
        role="executor" if told.result is None else "verifier",
        change_set_id=told.change_set.change_set_id if told.result is None else None,
        verify_result_id=None if told.result is None else told.result.verify_result_id,
        principal=signer.principal,
        fingerprint=signer.key.fingerprint,
        tool_revision=tool,
        statement_hash="",
    )
    predicate = {
        **said_of_pair(row, told.change_set, told.result),
        **{
            "act": told.act,
            "from": told.entry.status,
            "to": told.to,
            "manifest": told.manifest,
            "nonce": nonce,
        },
        "head": {"hash": hash_.hex(), "seq": seq, "stream": stream},
        "workspace": signer.workspace,
    }
    envelope = signer.key.sign(statement(CHANGE, [(stream, hash_.hex())], predicate))
    statements.note(
        tx,
        envelope,
        {"act": told.act, "principal": signer.principal, "nonce": nonce},
        signer.principal,
    )
    return msgspec.structs.replace(row, statement_hash=envelope.statement_hash)
