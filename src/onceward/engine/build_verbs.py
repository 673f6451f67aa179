"""What may be asked of a build from anywhere: a new confirmation token, a person's word on a step, giving it up."""

from __future__ import annotations

from typing import Any

import msgspec

from onceward.core.canon import canonical
from onceward.core.sources import iso
from onceward.engine import child_budget, child_dispatch
from onceward.errors import InvalidConfig, InvalidResumeState, PermitInvalid, Recovery
from onceward.lifecycles import build as rules
from onceward.lifecycles import permit as permits
from onceward.lifecycles.plan import step_name
from onceward.store.tables.approvals import Approval, approvals_of, decide_approval
from onceward.store.tables.builds import Builds
from onceward.store.tables.checkpoints import Checkpoint, put_checkpoint
from onceward.store.tables.children import Tokens
from onceward.store.tables.permits import mint_confirmation
from onceward.store.transaction import Transaction


def confirm(
    tx: Transaction, actor: str, name: str, secret_hash: str, seconds: int
) -> dict[str, Any]:
    """A new confirmation token of a paused build. Whoever asks made the secret; only its hash comes here."""
    build = Builds(tx).named(name)
    if build.state != "BUDGET_PAUSE":
        raise InvalidResumeState(
            f"build {build.build_id} is {build.state}; only a paused one needs a confirmation token",
            context={"build_id": build.build_id, "state": build.state},
        )
    if len(secret_hash) != 64:
        raise InvalidConfig("the hash of a token has 64 letters", context={"field": "token_hash"})
    lane = child_budget.lanes(tx, build.build_id).get("usd_micros")
    permit = permits.mint(
        tx.sources.new_id("prm"),
        subject=build.build_id,
        bound=build.version,
        secret_hash=secret_hash,
        expires_at=(tx.asked_at or tx.now) + seconds * 1_000_000,
    )
    spent = lane.total if lane else 0
    mint_confirmation(tx, permit, spent, tx.now, tx.statement())
    told = {**permits.told(permit, spent), "bound": permit.bound}
    tx.append(f"session:{build.build_id}", "CONFIRMATION_MINTED", actor, told)
    return {
        "build_id": build.build_id,
        "permit_id": permit.permit_id,
        "expires_at": iso(permit.expires_at),
    }


def abandon(
    tx: Transaction, actor: str, name: str, failed: bool, request_id: str
) -> dict[str, Any]:
    """Give a build up; what it has running is asked to end."""
    build = Builds(tx).named(name)
    move = rules.abandon(build, failed, actor)
    receipts = [
        child_dispatch.cancel(tx, token.child_id, request_id, actor)
        for token in Tokens(tx).open_in(build.build_id)
    ]
    tx.move(move)
    return {"build_id": build.build_id, "state": move.target, "receipts": receipts}


def approve(
    tx: Transaction, actor: str, name: str, step: str, digest: str, refuse: bool, note: str
) -> dict[str, Any]:
    """A person's word on exactly what flows into a step; on anything else it does not count (B-15)."""
    build = Builds(tx).named(name)
    if build.state not in ("ACTIVE", "CRASHED", "BUDGET_PAUSE"):
        raise InvalidConfig(
            f"build {build.build_id} is {build.state}; nothing of it waits",
            context={"step": step[:200]},
        )
    wanted = [
        a
        for a in approvals_of(tx, build.build_id)
        if step in (step_name(a.stage, a.target), a.stage)
    ]
    if not wanted:
        raise InvalidConfig(
            f"step {step[:80]!a} of {build.build_id} does not wait for an approval",
            context={"step": step[:200]},
            recovery=[Recovery("see what waits", f"onceward status {build.build_id}")],
        )
    newest = max(wanted, key=lambda a: a.wanted_at)
    if digest != newest.digest:
        raise PermitInvalid(
            f"the digest is not that of what flows into {step} now"
            + ("; it must be given whole" if newest.digest.startswith(digest) else ""),
            context={"step": step, "digest": newest.digest},
            recovery=[Recovery("look at it again", f"onceward status {build.build_id}")],
        )
    decision = "refused" if refuse else "approved"
    answer = {
        "build_id": build.build_id,
        "step": step_name(newest.stage, newest.target),
        "decision": decision,
    }
    answer |= {"state": build.state}
    if newest.decision is not None:
        if (newest.decision, newest.actor) == (decision, actor):
            return answer
        raise PermitInvalid(
            f"step {step} was {newest.decision} by {newest.actor} already", context={"step": step}
        )
    decide_approval(tx, newest, decision, actor, note, tx.now, tx.statement())
    done = msgspec.structs.replace(newest, decision=decision, actor=actor, note=note)
    put_checkpoint(tx, decided(done), tx.now)
    said = {
        **{key: value for key, value in answer.items() if key != "state"},
        "digest": digest,
        **({"note": note} if note else {}),
    }
    tx.append(
        f"session:{build.build_id}", "APPROVAL_REFUSED" if refuse else "APPROVAL_GIVEN", actor, said
    )
    return answer


def decided(approval: Approval) -> Checkpoint:
    """The checkpoint of a step that a person approved or refused."""
    place = (approval.build_id, approval.stage, approval.target)
    if approval.decision == "approved":
        return Checkpoint(
            *place, approval.digest, "SUCCESS", "approved", "[]", 0, 0, 1, None, None, None
        )
    why = f"refused by {approval.actor}{f': {approval.note}' if approval.note else ''}"
    error = canonical({"reason": "refused", "message": why}).decode()
    return Checkpoint(
        *place, approval.digest, "FAILED", "approved", "[]", 0, 0, 1, None, None, error
    )
