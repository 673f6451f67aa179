"""What may be asked of builds: run, resume, confirm, give up, a person's word on a step; and cancelled, with their
sessions and children."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from onceward.builds import machine, rules
from onceward.builds.approvals import decided
from onceward.core.acts import Payload, SignedEvent, act, all_of, ends, on, own, says, work
from onceward.core.canon import digest
from onceward.core.limits import MAX_NOTE_CHARS
from onceward.core.orders import Jobs, Order
from onceward.core.records import Build, check_name
from onceward.core.sources import iso
from onceward.core.steps import step_name
from onceward.dispatch import debits, queue
from onceward.people import permits
from onceward.store.port import Reads
from onceward.store.tables.approvals import Approval, approvals_of, decide_approval
from onceward.store.tables.builds import Builds
from onceward.store.tables.checkpoints import put_checkpoint
from onceward.store.tables.children import Sessions, Tokens, resolve
from onceward.store.tables.permits import mint_confirmation
from onceward.store.transaction import Transaction

if TYPE_CHECKING:
    from collections.abc import Callable

    from onceward.kernel.kernel import Kernel


def _whole_id(rows: Reads, name: str) -> str:
    return Builds(rows).named(name).build_id


class Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file that was brought: its name, and the digest of what is in it."""

    name: str
    sha256: str


class RunBuild(Order, frozen=True):
    plan: str
    """The plan's file, as seen from the workspace's own folder."""
    only: tuple[str, ...] = ()
    force: bool = False
    config: dict[str, Any] = {}
    jobs: Jobs | None = None
    budget: dict[str, Any] = {}
    keep_going: bool = False
    reuse: bool = True


work(
    "builds.run",
    RunBuild,
    role="operator",
    path="/builds",
    operation="runBuild",
    summary="run a plan from the workspace's folder",
)


class ResumeBuild(Order, frozen=True):
    build: str
    proof: str = ""
    """Shows that whoever asks has the confirmation token, without being it."""
    fork: bool = False
    strict_code: bool = False
    rerun: tuple[str, ...] = ()
    accept: dict[str, Kept] = {}
    plan: str = ""
    jobs: Jobs | None = None
    budget: dict[str, Any] = {}
    keep_going: bool = False
    reuse: bool = True


work(
    "builds.resume",
    ResumeBuild,
    role="operator",
    ids={"build": _whole_id},
    path="/builds/{build}/resume",
    operation="resumeBuild",
    summary="resume a build",
)


_PAUSE_FIELDS = ("permit_id", "token_hash", "expires_at", "spent_micros")


def _pause_agrees(claim: SignedEvent, payload: Payload) -> bool:
    if (claim.subject, claim.detail["transition_seq"]) != (payload["build"], payload["bound"]):
        return False
    return all(payload[name] == claim.detail[name] for name in _PAUSE_FIELDS)


own("builds.pause", role="operator", once=True, makes={"BUILD_PAUSED": _pause_agrees})


class Confirm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    build: str
    token_hash: str


@act(
    "builds.confirm",
    role="operator",
    prepares=True,
    once=True,
    ids={"build": _whole_id},
    makes={"CONFIRMATION_MINTED": all_of(on("build"), says("token_hash"))},
    path="/builds/{build}/confirm",
    operation="confirmBuild",
    summary="register a confirmation token by its hash",
)
def confirm(
    kernel: Kernel, asked: Confirm, principal: str
) -> Callable[[Transaction, str], dict[str, Any]]:
    """A new confirmation token of a paused build. Whoever asks made the secret; only its hash comes here."""
    seconds = kernel.confirmation_seconds
    return lambda tx, actor: _mint(tx, actor, asked, seconds)


def _mint(tx: Transaction, actor: str, asked: Confirm, seconds: int) -> dict[str, Any]:
    build = Builds(tx).named(asked.build)
    rules.require_paused(build)
    rules.require_token_hash(asked.token_hash)
    lane = debits.lanes(tx, build.build_id).get("usd_micros")
    permit = permits.mint(
        tx.sources.new_id("prm"),
        subject=build.build_id,
        bound=build.version,
        secret_hash=asked.token_hash,
        expires_at=(tx.asked_at or tx.now) + seconds * 1_000_000,
    )
    spent = lane.total if lane else 0
    mint_confirmation(tx, permit, spent, tx.now, tx.statement())
    detail = {**permits.told(permit, spent), "bound": permit.bound}
    tx.append(f"session:{build.build_id}", "CONFIRMATION_MINTED", actor, detail)
    return {
        "build_id": build.build_id,
        "permit_id": permit.permit_id,
        "expires_at": iso(permit.expires_at),
    }


class Abandon(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    build: str
    failed: bool = False


@act(
    "builds.abandon",
    role="operator",
    ids={"build": _whole_id},
    makes={"BUILD_ABANDONED": ends("build")},
    may_make={
        "BUILD_FAILED": ends("build"),
        "WORKER_CANCEL": ends("build"),
        "CANCEL_ASKED": ends("build"),
        "STEP_IN_DOUBT": ends("build"),
    },
    path="/builds/{build}/abandon",
    operation="abandonBuild",
    summary="give a build up",
)
def abandon(tx: Transaction, actor: str, asked: Abandon) -> dict[str, Any]:
    """Give a build up; what it has running is asked to end."""
    request_id = digest({"actor": actor, "abandon": asked.build})
    return _abandon(tx, actor, Builds(tx).named(asked.build), request_id, failed=asked.failed)


def _abandon(
    tx: Transaction, actor: str, build: Build, request_id: str, *, failed: bool = False
) -> dict[str, Any]:
    move = machine.abandon(build, failed, actor)
    receipts = [
        queue.cancel(tx, token.child_id, request_id, actor)
        for token in Tokens(tx).open_in(build.build_id)
    ]
    tx.move(move)
    return {"build_id": build.build_id, "state": move.target, "receipts": receipts}


class Approve(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    build: str
    step: str
    digest: str
    refuse: bool = False
    note: str = ""


def _decision_agrees(claim: SignedEvent, payload: Payload) -> bool:
    step = claim.detail["step"]
    return (
        (payload["build"], payload["digest"]) == (claim.subject, claim.detail["digest"])
        and payload["step"] in (step, step.partition(":")[0])
        and bool(payload.get("refuse")) == (claim.event == "APPROVAL_REFUSED")
        and payload.get("note", "")[:MAX_NOTE_CHARS] == claim.detail["note"]
    )


@act(
    "builds.approve",
    role="reviewer",
    once=True,
    ids={"build": _whole_id},
    makes={"APPROVAL_GIVEN": _decision_agrees, "APPROVAL_REFUSED": _decision_agrees},
    path="/builds/{build}/approve",
    operation="approveStep",
    summary="approve or refuse a step",
)
def approve(tx: Transaction, actor: str, asked: Approve) -> dict[str, Any]:
    """A person's word on exactly what flows into a step; on anything else it does not count (B-15)."""
    build = Builds(tx).named(asked.build)
    newest = _waiting_approval(tx, build, asked.step)
    rules.require_whole_digest(build.build_id, asked.step, newest.digest, asked.digest)
    decision = "refused" if asked.refuse else "approved"
    detail = {
        "build_id": build.build_id,
        "step": step_name(newest.stage, newest.target),
        "decision": decision,
    }
    answer = {**detail, "state": build.state}
    if newest.decision is not None:
        decided_before = (newest.decision, newest.actor)
        rules.require_same_decision(asked.step, decided_before, (decision, actor))
        return answer
    note = asked.note[:MAX_NOTE_CHARS]
    decide_approval(tx, newest, decision, actor, note=note, now=tx.now, statement=tx.statement())
    done = msgspec.structs.replace(newest, decision=decision, actor=actor, note=note)
    put_checkpoint(tx, decided(done), tx.now)
    detail["digest"] = asked.digest
    if note:
        detail["note"] = note
    event = "APPROVAL_REFUSED" if asked.refuse else "APPROVAL_GIVEN"
    tx.append(f"session:{build.build_id}", event, actor, detail)
    return answer


def _waiting_approval(tx: Transaction, build: Build, step: str) -> Approval:
    """The newest approval that a step asks for, decided or not."""
    rules.require_open(build, step)
    wanted = [
        approval
        for approval in approvals_of(tx, build.build_id)
        if step in (step_name(approval.stage, approval.target), approval.stage)
    ]
    rules.require_waiting(build.build_id, step, bool(wanted))
    return max(wanted, key=lambda approval: approval.wanted_at)


class Cancel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    subject: str
    """A child, or a session with all its children."""
    cancel_request_id: str = ""


def _whole_subject(rows: Reads, name: str) -> str:
    if name.startswith("bld_"):
        return _whole_id(rows, name)
    sessions = Sessions(rows).named(name)
    if len(sessions) == 1:
        return sessions[0]
    children = resolve(rows, name)
    return children[0] if len(children) == 1 else name


@act(
    "children.cancel",
    role="operator",
    for_children=True,
    ids={"subject": _whole_subject},
    makes={"BUILD_ABANDONED": ends("subject")},
    may_make={
        "BUILD_FAILED": ends("subject"),
        "WORKER_CANCEL": ends("subject"),
        "CANCEL_ASKED": ends("subject"),
        "STEP_IN_DOUBT": ends("subject"),
    },
    path="/cancel/{subject}",
    operation="cancel",
    summary="stop a build, a session or a child",
)
def cancel(tx: Transaction, actor: str, asked: Cancel) -> dict[str, Any]:
    """One receipt per child, in the order of the queue."""
    request_id = asked.cancel_request_id or digest({"actor": actor, "subject": asked.subject})
    check_name(request_id, "cancel_request_id")
    if asked.subject.startswith("bld_"):
        build = tx.builds.named(asked.subject)
        if build.state in ("PENDING", "ACTIVE"):
            # A build that may run none of its steps is given up.
            return {"cancel_request_id": request_id, **_abandon(tx, actor, build, request_id)}
        rules.require_running(build, asked.subject)
    children = resolve(tx, asked.subject)
    receipts = [queue.cancel(tx, child_id, request_id, actor) for child_id in children]
    return {"cancel_request_id": request_id, "receipts": receipts}
