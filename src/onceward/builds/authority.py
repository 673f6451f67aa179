"""Whether what people allowed a build was signed: confirmation tokens after a pause, approvals of steps (B-10, B-15)."""

from __future__ import annotations

import msgspec

from onceward.builds.machine import BUILD
from onceward.core.limits import MAX_INTEGER
from onceward.core.records import Permit
from onceward.core.steps import step_name
from onceward.people.authority import UNREADABLE, Authority, Doubt, require_life
from onceward.store.port import Reads
from onceward.store.tables.approvals import Approval
from onceward.store.tables.events import newest_of
from onceward.store.tables.keys import find_signature
from onceward.store.tables.permits import statement_of


def objection_to_confirmation(
    authority: Authority, rows: Reads, permit: Permit, seconds: int
) -> str:
    """Why a confirmation token is not to be believed; empty where whoever ran the build, or asked for another
    token since it paused, signed for exactly this one."""
    try:
        moves = newest_of(rows, f"session:{permit.subject}", BUILD.name, MAX_INTEGER)
        require_life(BUILD, moves)
        if not moves or moves[-1].facts()["event"] != "BUILD_PAUSED":
            return "was not made by a pause that its history tells of"
        pause = moves[-1]
        paused = authority.believe(rows, pause, now=False)
        minted = pause.facts()["detail"]
        if minted.get("permit_id") == permit.permit_id:
            signed = (paused.payload["token_hash"], paused.payload["expires_at"])
            if signed != (permit.secret_hash, permit.expires_at):
                return "is not the one that was signed for"
            return _voided(authority, rows, permit.subject, paused.seq)
        asked = authority.statement(rows, statement_of(rows, permit.permit_id), now=True)
        wanted = ("builds.confirm", permit.subject, permit.secret_hash)
        if (asked.act, asked.payload["build"], asked.payload["token_hash"]) != wanted:
            return "is not the one that was signed for"
        if asked.seq < paused.seq:
            return "is of an earlier pause"
        if permit.expires_at > asked.at + seconds * 1_000_000:
            return "is to last longer than was signed"
        return _voided(authority, rows, permit.subject, asked.seq)
    except Doubt as doubt:
        return f"does not count: {doubt}"
    except UNREADABLE:
        return "does not count: its statement lacks something"


def _voided(authority: Authority, rows: Reads, build_id: str, seq: int) -> str:
    """That a newer token of a build took the place of one that was signed for there; empty if none did."""
    for hash_ in authority.withdrawals(seq):
        signature = find_signature(rows, hash_)
        if signature is None:
            return "is not the newest: something that was signed since is gone"
        predicate = msgspec.json.decode(signature.statement)["predicate"]
        if predicate["act"] == "builds.confirm" and predicate["payload"]["build"] == build_id:
            return "is void: a newer one was asked for"
    return ""


def objection_to_approval(authority: Authority, rows: Reads, approval: Approval) -> str:
    """Why what a person is said to have decided about a step is not to be believed; empty where they signed it
    and might. Work that goes on from it long since does not stop with their role."""
    try:
        asked = authority.statement(rows, approval.statement_hash, now=False)
        payload = asked.payload
        signed = (
            asked.act,
            asked.told["principal"],
            payload["build"],
            payload["digest"],
            "refused" if payload.get("refuse") else "approved",
        )
        stored = (
            "builds.approve",
            approval.actor,
            approval.build_id,
            approval.digest,
            approval.decision,
        )
        step = step_name(approval.stage, approval.target)
        if signed != stored or payload["step"] not in (step, approval.stage):
            return "it is not what was signed"
        return ""
    except Doubt as doubt:
        return str(doubt)
    except UNREADABLE:
        return "its statement lacks something"
