"""What the kernel vouches for: the end of a build or a saga, signed with the key of whoever ran it (E-2)."""

from __future__ import annotations

from typing import Any

from onceward.engine import acts
from onceward.engine.keyring import Signer
from onceward.evidence.signing import BUILD, CUT, SAGA, statement
from onceward.kernel.chain import Event
from onceward.kernel.changes import ChangeSet, Entry, PairSignature
from onceward.kernel.records import Move
from onceward.kernel.sagas import Run
from onceward.store.tables.budgets import lanes_of
from onceward.store.tables.events import head_of
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
    _vouch(tx, move, event, signer, SAGA, said | ({"grant_id": run.grant_id} if run.grant_id else {}), [])


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
        "totals": {lane: total for lane, _, total, _ in lanes_of(tx, move.subject)},
        "workspace": signer.workspace,
    }
    envelope = signer.key.sign(statement(kind, [(event.stream, event.hash.hex()), *also], predicate))
    said = {"act": f"{move.machine.name}.end", "principal": signer.principal, "nonce": move.subject}
    acts.note(tx, envelope, said, signer.principal)


def cut(
    tx: Transaction, entry: Entry, end: Move, change_set: ChangeSet, manifest: str, tool: str, signer: Signer | None
) -> PairSignature:
    """The executor's word on a cut: over the whole act, so that it fits no other (X54)."""
    assert signer is not None
    seq, hash_ = head_of(tx, f"entry:{entry.entry_id}")
    nonce = tx.sources.secret()[:32]
    predicate: dict[str, Any] = {
        **{"act": "change.cut", "entry_id": entry.entry_id, "from": entry.status, "to": end.target},
        **{"manifest": manifest, "decision_id": change_set.decision_id, "change_set_id": change_set.change_set_id},
        "head": {"hash": hash_.hex(), "seq": seq, "stream": f"entry:{entry.entry_id}"},
        **{"key": signer.key.fingerprint, "nonce": nonce, "principal": signer.principal, "tool_revision": tool},
        "workspace": signer.workspace,
    }
    envelope = signer.key.sign(statement(CUT, [(f"entry:{entry.entry_id}", hash_.hex())], predicate))
    acts.note(tx, envelope, {"act": "change.cut", "principal": signer.principal, "nonce": nonce}, signer.principal)
    return PairSignature(
        *(tx.sources.new_id("sig"), entry.entry_id, "executor", change_set.change_set_id, None, signer.principal),
        *(signer.key.fingerprint, tool, envelope.statement_hash),
    )
