"""The life of a child: phases of its dispatch token, and what each of its ends is called (C-3, C-6)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from onceward.core.canon import canonical, digest, sha256_hex
from onceward.core.limits import MAX_INTEGER, RETRY_FIRST_MICROS, RETRY_MAX_MICROS
from onceward.core.machine import NEW, Machine
from onceward.core.records import Move, Owner, Token
from onceward.core.sources import Micros

CHILD = Machine.parse(
    "child",
    """
    new             -> queued    -                                                    -
    queued          -> leased    -                                                    -
    leased          -> started   -                                                    WORKER_START
    started         -> terminal  completed                                            WORKER_PASS
    started         -> terminal  execution_failed | timeout | budget_exceeded         WORKER_FAIL
    started         -> terminal  terminated_on_restart | start_failed                 WORKER_FAIL
    queued | leased -> terminal  lease_orphaned | start_failed | budget_exceeded      WORKER_FAIL
    queued | leased | started -> terminal  cancelled                                  WORKER_CANCEL

    terminal terminal
    """,
    columns="""
    parent_session_id   context.session_id
    parent_stream_id    detail.parent_stream_id
    dispatch_seq        detail.dispatch_seq
    worker_run_id       detail.lease_id
    work                sha256.work
    target              detail.target
    attempt             detail.attempt
    predecessor         detail.predecessor
    started_at          at                       WORKER_START
    reason              detail.reason            WORKER_PASS | WORKER_FAIL | WORKER_CANCEL
    code                detail.code              WORKER_FAIL
    cancel_request_id   detail.cancel_request_id
    joined_request_ids  text.joined_request_ids
    kind                = "function"
    attempt             = 1
    due_at              = 0
    """,
)

CODES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "lease_orphaned": "URM_SCHEDULER_LEASE_ORPHANED",
        "terminated_on_restart": "URM_CHILD_TERMINATED_ON_RESTART",
        "budget_exceeded": "URM_CHILD_BUDGET_EXCEEDED",
        "execution_failed": "URM_CHILD_EXECUTION_FAILED",
        "timeout": "URM_CHILD_TIMEOUT",
        "start_failed": "URM_CHILD_START_FAILED",
    }
)
"""The code of each way to fail."""

_NOTHING: Mapping[str, Any] = MappingProxyType({})
_OURS = frozenset({"from", "to", "reason", "transition_seq", "parent_seq", "parent_stream_id"})
_LONG, _MANY = 2000, 50
MAX_JOINED_CANCELS: Final = 50
"""How many later requests to end a child are listed; each of them is told what it joined all the same."""


class Ended(msgspec.Struct, frozen=True):
    """How a child came to its end, as observed."""

    reason: str
    detail: Mapping[str, Any] = _NOTHING
    retryable: bool = False


class Order(msgspec.Struct, frozen=True):
    """What is known of a child when it is queued."""

    child_id: str
    session_id: str
    kind: str
    work: str
    """What it does, as canonical JSON: evidence, and what a person sees."""
    target: str | None = None
    attempt: int = 1
    predecessor: str | None = None
    due_at: Micros = 0


def plain(detail: Mapping[str, Any]) -> dict[str, Any]:
    """What a child or its error says, made fit to be recorded whatever it is: claims must not break the record."""
    return {
        key if key not in _OURS else f"said_{key}": _plain(value, 3)
        for key, value in detail.items()
        if key
    }


def _plain(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return max(-MAX_INTEGER, min(MAX_INTEGER, value))
    if isinstance(value, Mapping) and depth:
        return {
            _plain(str(key), 0): _plain(inner, depth - 1)
            for key, inner in list(value.items())[:_MANY]
        }
    if isinstance(value, list | tuple) and depth:
        return [_plain(inner, depth - 1) for inner in value[:_MANY]]
    text = value if isinstance(value, str) else repr(value)
    return (
        text[:_LONG].encode("utf-8", "replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")
    )


def spawn(order: Order, head: int, queue_seq: int, owner: Owner, actor: str) -> Move:
    """A child takes its place in the queue."""
    columns = {
        "parent_session_id": order.session_id,
        "parent_stream_id": f"session:{order.session_id}",
        "parent_seq": head,
        "queue_seq": queue_seq,
        **owner.columns(),
        "kind": order.kind,
        "work": order.work,
        "target": order.target,
        "attempt": order.attempt,
        "predecessor": order.predecessor,
        "due_at": order.due_at,
    }
    return Move(
        machine=CHILD,
        subject=order.child_id,
        source=NEW,
        target="queued",
        version=0,
        actor=actor,
        columns=columns,
        session=order.session_id,
    )


def born(move: Move, now: Micros) -> Token:
    """The token that a spawn makes."""
    known: dict[str, Any] = dict.fromkeys(Token.__struct_fields__)
    known |= {
        "child_id": move.subject,
        "phase": move.target,
        "version": 1,
        "created_at": now,
        "updated_at": now,
    }
    return Token(**{**known, **move.columns})


def moved(token: Token, move: Move) -> Token:
    """The token after a move."""
    return msgspec.structs.replace(
        token, phase=move.target, version=move.version + 1, **move.columns
    )


def lease(token: Token, dispatch_seq: int, slot: int, actor: str) -> Move:
    """A child is given a slot and its place in the order of dispatch."""
    columns = {
        "dispatch_seq": dispatch_seq,
        "worker_run_id": run_id(token.parent_session_id, dispatch_seq),
        "slot": slot,
    }
    return _move(token, "leased", None, actor, columns=columns)


def run_id(session_id: str, dispatch_seq: int) -> str:
    """The lease of a dispatch, derived from its anchors and so the same in every replay (C-2)."""
    return digest({"parent_session_id": session_id, "dispatch_seq": dispatch_seq})


def start(
    token: Token, now: Micros, actor: str, pid: int | None = None, began: str | None = None
) -> Move:
    """A child may begin: from here on a crash means that it may have done something."""
    columns = {"started_at": now, "child_pid": pid, "child_start": began}
    return _move(token, "started", None, actor, columns=columns)


def finish(token: Token, ended: Ended, actor: str, about: str = "") -> Move:
    """The one terminal event of a child whose end was observed. A cancel that came before has the last word."""
    detail, reason = plain(ended.detail), ended.reason
    if token.cancel_request_id is not None:
        detail |= {"cancel_request_id": token.cancel_request_id, "observed": reason}
        detail |= _joined(token)
        reason = "cancelled"
    return _end(token, reason, detail, actor, about)


def backoff(attempt: int, fraction: float) -> Micros:
    """The pause before the next attempt: it doubles each time, and half of it is left to chance."""
    pause: Micros = min(RETRY_FIRST_MICROS << (attempt - 1), RETRY_MAX_MICROS)
    return pause // 2 + int(pause // 2 * fraction)


def recover(token: Token, actor: str) -> Move:
    """What a new kernel writes for a child that its dead owner left (C-20): by its phase, nothing else."""
    detail: dict[str, Any] = plain(msgspec.json.decode(token.death)) if token.death else {}
    if token.cancel_request_id is not None:
        detail["cancel_request_id"] = token.cancel_request_id
        detail |= _joined(token)
    return _end(
        token,
        "terminated_on_restart" if token.phase == "started" else "lease_orphaned",
        detail,
        actor,
    )


def join_cancel(token: Token, cancel_request_id: str) -> str | None:
    """The list of later requests to end a child with one more; None where nothing is to be added (C-6)."""
    later = (
        [] if token.joined_request_ids is None else msgspec.json.decode(token.joined_request_ids)
    )
    known = (token.cancel_request_id, *later)
    if cancel_request_id in known or len(later) >= MAX_JOINED_CANCELS:
        return None
    return canonical([*later, cancel_request_id]).decode()


def _joined(token: Token) -> dict[str, Any]:
    if token.joined_request_ids is None:
        return {}
    return {"joined_request_ids": msgspec.json.decode(token.joined_request_ids)}


def end_again(token: Token, reason: str, facts: Mapping[str, Any], actor: str) -> Move:
    """The end that follows from what was observed, as `replay` makes it again."""
    asked = (
        {} if token.cancel_request_id is None else {"cancel_request_id": token.cancel_request_id}
    )
    return _end(token, reason, {**facts, **asked}, actor)


def _end(token: Token, reason: str, detail: dict[str, Any], actor: str, about: str = "") -> Move:
    columns = {"reason": reason, "slot": None}
    code = CODES.get(reason)
    if code is not None:
        detail["code"] = columns["code"] = code
    move = _move(token, "terminal", reason, actor, detail, columns=columns)
    return msgspec.structs.replace(move, about=about) if about else move


def _move(
    token: Token,
    target: str,
    reason: str | None,
    actor: str,
    detail: Mapping[str, Any] = _NOTHING,
    columns: Mapping[str, Any] = _NOTHING,
) -> Move:
    CHILD.follow(token.phase, target, reason)
    first = target != "leased" and token.phase != "started"
    facts = {**detail, **_anchors(token), "phase_at_event": target}
    if first:
        facts |= _subject(token)
    return Move(
        machine=CHILD,
        subject=token.child_id,
        source=token.phase,
        target=target,
        version=token.version,
        actor=actor,
        reason=reason,
        detail=facts,
        columns=columns,
        known=_unseen(token) if first else _NOTHING,
        session=token.parent_session_id,
        opens=first,
    )


def _unseen(token: Token) -> dict[str, Any]:
    """What was set of a child before its first event."""
    return {
        "parent_session_id": token.parent_session_id,
        "parent_stream_id": token.parent_stream_id,
        "parent_seq": token.parent_seq,
        "queue_seq": token.queue_seq,
        "dispatch_seq": token.dispatch_seq,
        "worker_run_id": token.worker_run_id,
        "kind": token.kind,
        "work": token.work,
        "target": token.target,
        "attempt": token.attempt,
        "predecessor": token.predecessor,
        "due_at": token.due_at,
        "created_at": token.created_at,
    }


def _subject(token: Token) -> dict[str, Any]:
    """What a child is, as its first event says it."""
    facts: dict[str, Any] = {"attempt": token.attempt, "work": sha256_hex(token.work.encode())}
    if token.predecessor is not None:
        facts["predecessor"] = token.predecessor
    if token.target is not None:
        facts["target"] = token.target
    return facts


def _anchors(token: Token) -> dict[str, Any]:
    """Where a child stands in its session's order; one that was never leased has only its place in the queue."""
    if token.dispatch_seq is None:
        return {"child_id": token.child_id, "queue_seq": token.queue_seq}
    return {
        "child_id": token.child_id,
        "dispatch_seq": token.dispatch_seq,
        "lease_id": token.worker_run_id,
    }
