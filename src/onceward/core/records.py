"""Frozen records that cross the rooms."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from onceward.core.canon import bounded, holds_nul, sha256_hex
from onceward.core.limits import MAX_NAME_CHARS, MAX_REQUEST_ID_CHARS
from onceward.core.machine import NEW, Machine
from onceward.core.sources import Micros
from onceward.errors import InvalidConfig

ROLES: Final = ("viewer", "operator", "reviewer", "executor", "verifier", "granter", "admin")

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Move(msgspec.Struct, frozen=True):
    """A decided change of one subject's state, ready to be committed by the store's `move`."""

    machine: Machine
    subject: str
    source: str
    target: str
    version: int
    """The version the subject had when the decision was made; 0 for a birth."""
    actor: str
    reason: str | None = None
    detail: Mapping[str, Any] = _NOTHING
    """Further fields of the event."""
    columns: Mapping[str, Any] = _NOTHING
    """Facts of the row that change with the state."""
    known: Mapping[str, Any] = _NOTHING
    """Facts of the row that moves without an event have set: the first event states them too."""
    session: str | None = None
    """The session of a child: its events stand in the session's stream too."""
    opens: bool = False
    """Its event is the first of the subject's own stream, as the rules know; the schema refuses
    a second first."""
    about: str = ""
    """What the event is about, for its dedupe key, where that is not the new state and its
    reason (K-6)."""

    def said(self) -> dict[str, Any]:
        """The detail of its event: what the decision says, and the move itself."""
        said = {**self.detail, "to": self.target, "transition_seq": self.version + 1}
        if self.source != NEW:
            said["from"] = self.source
        if self.reason is not None:
            said["reason"] = self.reason
        return said


class Build(msgspec.Struct, frozen=True):
    """A build as stored."""

    build_id: str
    name: str
    state: str
    version: int
    created_at: Micros
    updated_at: Micros
    plan_hash: str = ""
    plan_file: str = ""
    """Where its plan was read, relative to the workspace's own folder."""
    parent_build_id: str | None = None
    """The build it was forked from."""
    resumed_at: Micros = 0
    reuse: int = 1
    """Whether it may take over results of other builds."""
    choices: str = "{}"
    """What somebody chose of the plan, as canonical text."""


class Permit(msgspec.Struct, frozen=True):
    """A single-use authority as stored: for one subject, bound to one moment of it, under the hash of a secret."""

    permit_id: str
    subject: str
    bound: int
    secret_hash: str
    expires_at: Micros
    consumed_at: Micros | None = None
    voided_at: Micros | None = None


class Owner(msgspec.Struct, frozen=True):
    """The kernel that answers for a child: a process among all processes, and its fence."""

    host: str
    boot: str
    pid: int
    start: str
    fence: int

    def columns(self) -> dict[str, Any]:
        return {f"owner_{name}": value for name, value in msgspec.structs.asdict(self).items()}


class ChildRecord(msgspec.Struct, frozen=True):
    """What of a dispatch token is evidence; which process did the work, on which machine, is not."""

    child_id: str
    parent_session_id: str
    parent_stream_id: str
    parent_seq: int
    queue_seq: int
    dispatch_seq: int | None
    worker_run_id: str | None
    phase: str
    kind: str
    work: str
    target: str | None
    attempt: int
    predecessor: str | None
    due_at: Micros
    """Before when it was not to begin; 0 if it never had to wait."""
    started_at: Micros | None
    cancel_request_id: str | None
    """The first request to end it."""
    joined_request_ids: str | None
    """Later requests to end it, as a JSON list; the first one stands."""
    reason: str | None
    code: str | None
    version: int
    created_at: Micros
    updated_at: Micros


class Token(ChildRecord, frozen=True):
    """The dispatch token of a child as stored (C-1)."""

    slot: int | None
    owner_host: str
    owner_boot: str
    owner_pid: int
    owner_start: str
    owner_fence: int
    child_pid: int | None
    child_start: str | None
    last_seen: Micros | None
    """When its kernel, which died, was last heard of while it ran."""
    death: str | None


class Principal(msgspec.Struct, frozen=True):
    """A named actor and what it may do."""

    name: str
    roles: frozenset[str]

    def may(self, role: str) -> bool:
        """Whether it has a role, or one of several as in `operator|granter`."""
        return not self.roles.isdisjoint((*role.split("|"), "admin"))


class Tenure(msgspec.Struct, frozen=True):
    """Proof of holding the writer lock: the token written in it and the fence it was given."""

    token: str
    fence: int


class Request(msgspec.Struct, frozen=True):
    """What somebody asks the kernel to do, under an id that makes asking again safe (K-8)."""

    verb: str
    request_id: str
    payload: Any
    principal: str
    signature: bytes | None = None
    """The DSSE envelope of its statement, as canonical bytes."""
    expires_at: Micros | None = None
    """When it is refused, if no kernel has taken it before."""

    def check(self) -> bytes:
        """The payload's canonical bytes; refuses an id or payload that cannot be stored."""
        if (
            not 1 <= len(self.request_id) <= MAX_REQUEST_ID_CHARS
            or not self.request_id.isprintable()
        ):
            raise InvalidConfig(
                f"a request id has 1 to {MAX_REQUEST_ID_CHARS} printable characters",
                context={"field": "client_request_id"},
            )
        payload = bounded(self.payload, "the request payload")
        if holds_nul(payload):
            raise InvalidConfig(
                "the request payload holds a NUL, which is no text", context={"field": "payload"}
            )
        return payload

    def payload_hash(self) -> str:
        return sha256_hex(self.check())


class Answer(msgspec.Struct, frozen=True):
    """What a request came to; `replayed` when it was answered before."""

    value: Any
    replayed: bool = False


def check_name(name: str, what: str) -> str:
    """A principal's, sink's or subject's name: short, printable, no surprises in a terminal or a
    path."""
    fits = (
        isinstance(name, str)
        and 1 <= len(name) <= MAX_NAME_CHARS
        and name.isprintable()
        and name == name.strip()
    )
    if not fits:
        raise InvalidConfig(
            f"{what} must be 1 to {MAX_NAME_CHARS} printable characters without blanks around them,"
            f" not {str(name)[:40]!a}",
            context={"field": what},
        )
    return name
