"""What the kernel vouches for: the end of a build, signed with the key of whoever ran it (E-2)."""

from __future__ import annotations

from typing import Any

from onceward.engine import acts
from onceward.engine.keyring import Signer
from onceward.evidence.signing import BUILD, statement
from onceward.kernel.records import Move
from onceward.store.tables.budgets import lanes_of
from onceward.store.transaction import Transaction


def end(tx: Transaction, move: Move, plan_hash: str, signer: Signer | None) -> None:
    """The last move of a build, and with it a statement over everything that led there: its stream up to this event,
    what it made and what it spent."""
    event = tx.move(move)
    if signer is None or event is None:
        return
    predicate: dict[str, Any] = {
        "build_id": move.subject,
        "head": {"hash": event.hash.hex(), "seq": event.seq, "stream": event.stream},
        "key": signer.key.fingerprint,
        "plan_hash": plan_hash,
        "principal": signer.principal,
        "reason": move.reason,
        "state": move.target,
        "totals": {lane: total for lane, _, total, _ in lanes_of(tx, move.subject)},
        "workspace": signer.workspace,
    }
    subjects = [(event.stream, event.hash.hex())]
    if "outputs" in move.detail:
        subjects.append(("manifest.ndjson", move.detail["outputs"]))
    envelope = signer.key.sign(statement(BUILD, subjects, predicate))
    said = {"act": "build.end", "principal": signer.principal, "nonce": move.subject}
    acts.note(tx, envelope, said, signer.principal)
