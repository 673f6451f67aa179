"""The typed part of an event's body that the rules look at."""

from __future__ import annotations

from typing import Any

import msgspec


class EventContext(msgspec.Struct):
    actor: str = ""
    fence: int = 0
    build_id: str = ""
    session_id: str = ""
    signed: str = ""


class Detail(msgspec.Struct):
    """The fields that the rules look at; an event may have more."""

    came_from: str | None = msgspec.field(name="from", default=None)
    to: str | None = None
    reason: str | None = None
    transition_seq: int = 0
    child_id: str = ""
    parent_seq: int = 0
    parent_stream_id: str = ""
    dispatch_seq: int | None = None
    predecessor: str | None = None
    cancel_request_id: str | None = None
    lease_id: str | None = None
    code: str | None = None
    spent: dict[str, int] | None = None
    debits: str = ""
    earlier: dict[str, int] | None = None
    origin: str | None = None
    amounts: dict[str, int] | None = None
    logs: dict[str, str] | None = None
    limits: dict[str, int] | None = None
    max_active_children: int = 0
    context_hash: str = ""
    code_version: str | None = None
    environment_hash: str | None = None
    text: str = ""
    note: str = ""
    target: str | None = None
    attempt: int = 0
    work: str = ""
    parent_build_id: str | None = None
    outputs: Any = None
    step: str = ""
    digest: str = ""
    decision: str = ""
    permit_id: str = ""
    bound: int = 0
    plan_hash: str = ""
    principal: str = ""
    roles: list[str] | None = None
    key: str = ""
    public: str = ""
    proof: str = ""
    statement: str = ""
    act: str = ""
    nonce: str = ""
    scope: str = ""
    manifest: str = ""
    token_id: str = ""
    token_hash: str = ""
    expires_at: int = 0
    spent_micros: int = 0
    why: Any = None
    idempotency_key: str = ""
    depends_on: list[str] | None = None
    child: str | None = None
    escalates: str | None = None
    sinks: Any = None
    policy: Any = None
    verb: str = ""
    request_id: str = ""
    asked: Any = None
    answer: str = ""


class EventBody(msgspec.Struct):
    context: EventContext
    detail: Detail
    event: str


decode_body = msgspec.json.Decoder(EventBody).decode
