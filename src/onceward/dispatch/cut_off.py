"""Which step a child carries out, and the checkpoint that its end leaves: done, not done, or a person is asked (B-8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from onceward.artifacts.outputs import written
from onceward.core.canon import canonical
from onceward.core.records import Token
from onceward.core.steps import Output, step_name
from onceward.store.tables.checkpoints import Checkpoint, find_checkpoint, put_checkpoint
from onceward.store.transaction import Transaction


class StepOf(msgspec.Struct, frozen=True):
    """The step that a child carries out, as its token says."""

    stage: str
    target: str
    context_hash: str
    on_crash: str = "rerun"
    code_version: str | None = None
    environment_hash: str | None = None

    def said(self) -> dict[str, str]:
        ask = {"on_crash": self.on_crash} if self.on_crash != "rerun" else {}
        code = {"code_version": self.code_version, "environment_hash": self.environment_hash}
        return {
            "stage": self.stage,
            "target": self.target,
            "context_hash": self.context_hash,
            **ask,
            **{name: value for name, value in code.items() if value},
        }


def step_of(token: Token) -> StepOf | None:
    """The step of a child; None for one that belongs to no build."""
    work = msgspec.json.decode(token.work)
    return msgspec.convert(work, StepOf) if "context_hash" in work else None


def done(
    step: StepOf, token: Token, outputs: Sequence[Output], spent: Mapping[str, int]
) -> Checkpoint:
    """The checkpoint of an attempt that succeeded."""
    return Checkpoint(
        build_id=token.parent_session_id,
        stage=step.stage,
        target=step.target,
        context_hash=step.context_hash,
        status="SUCCESS",
        how="executed",
        outputs=written(outputs),
        cost=spent.get("usd_micros", 0),
        tokens=spent.get("tokens", 0),
        attempt=token.attempt,
        child_id=token.child_id,
        origin=None,
        error=None,
        code_version=step.code_version,
        environment_hash=step.environment_hash,
    )


def carried_on(token: Token, before: Checkpoint | None) -> dict[str, Any]:
    """What the last event of a step's child says of the attempts before it: their number, and what they cost."""
    said: dict[str, Any] = {}
    if token.attempt > 1:
        said["attempt"] = token.attempt
    if before is not None and before.status != "SUCCESS":
        spent = {"usd_micros": before.cost, "tokens": before.tokens}
        earlier = {lane: amount for lane, amount in spent.items() if amount}
        if earlier:
            said["earlier"] = earlier
    return said


def earlier_of(tx: Transaction, token: Token) -> dict[str, Any]:
    """The same of a child that was cut off, by the record."""
    step = step_of(token)
    if step is None:
        return {}
    before = find_checkpoint(tx, token.parent_session_id, step.stage, step.target)
    return carried_on(token, before)


def not_done(
    step: StepOf, token: Token, reason: str, spent: Mapping[str, int], before: Checkpoint | None
) -> Checkpoint:
    """The checkpoint of an attempt that did not succeed; what earlier ones cost is carried on."""
    doubt = step.on_crash == "ask" and reason == "terminated_on_restart"
    error = canonical({"reason": reason}).decode()
    cost, tokens = (
        (before.cost, before.tokens)
        if before is not None and before.status != "SUCCESS"
        else (0, 0)
    )
    return msgspec.structs.replace(
        done(step, token, (), spent),
        status="IN_DOUBT" if doubt else "FAILED",
        cost=cost + spent.get("usd_micros", 0),
        tokens=tokens + spent.get("tokens", 0),
        error=error,
    )


def note_cut_off(
    tx: Transaction, token: Token, reason: str, spent: Mapping[str, int], actor: str
) -> None:
    """With the terminal event that recovery writes for a child: how its step stands now."""
    step = step_of(token)
    if step is not None:
        before = find_checkpoint(tx, token.parent_session_id, step.stage, step.target)
        checkpoint = not_done(step, token, reason, spent, before)
        put_checkpoint(tx, checkpoint, tx.now)
        if checkpoint.status == "IN_DOUBT":
            said = {"step": step_name(step.stage, step.target), "child_id": token.child_id}
            tx.append(f"session:{token.parent_session_id}", "STEP_IN_DOUBT", actor, said)
