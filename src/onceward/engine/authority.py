"""Who may do what, by what was signed: rows are only the way to find an event, and an event counts only where a genuine
statement asked for it (H-5).

The workspace's stream is folded into keys and roles, place by place. A change of either that nobody who might has signed is
passed over: whoever can write rows without a trusted key gains nothing by it."""

from __future__ import annotations

import threading
from typing import Any

import msgspec

from onceward.errors import IntegrityFault, OncewardError
from onceward.evidence.asked import Claim, unlike
from onceward.evidence.bodies import Body, decode_body
from onceward.evidence.signing import ACT, STATEMENT, Envelope, fingerprint, genuine
from onceward.kernel.canon import ZERO_HASH, digest
from onceward.kernel.chain import Event, first_break
from onceward.kernel.changes import Decision
from onceward.lifecycles.duties import ROLE_OF
from onceward.store.port import Reads
from onceward.store.tables.events import events_of
from onceward.store.tables.keys import find_signature, workspace_id

_DECIDED = {"ENTRY_APPROVED": "approve", "ENTRY_DEFERRED": "defer", "ENTRY_REJECTED": "reject"}


class _Key(msgspec.Struct):
    principal: str
    public: bytes
    added: int
    revoked: int | None = None

    def in_force(self, seq: int) -> bool:
        return self.added <= seq and (self.revoked is None or seq < self.revoked)


class Authority:
    """Keys and roles of a workspace as its own stream gave them, up to the place that was read last."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._head = (0, ZERO_HASH)
        self._keys: dict[str, _Key] = {}
        self._roles: dict[str, list[tuple[int, frozenset[str]]]] = {}
        """By principal: from which place on it had which roles."""
        self._acts: dict[str, int] = {}
        """Where each statement is told of."""
        self._hashes: list[bytes] = []
        """Of every event that was read, in order: a statement names the one it was signed after."""

    def objection_to(self, rows: Reads, decision: Decision) -> str:
        """Why a decision about a change is not to be believed; empty where its reviewer signed exactly that, might
        then, and may now."""
        events = list(events_of(rows, f"entry:{decision.entry_id}"))
        broken = first_break(events)
        if broken:
            return f"the history of the entry does not hold: {broken}"
        for event in events:
            said = event.facts()
            if said["detail"].get("decision_id") != decision.decision_id:
                continue
            told = (
                said["detail"].get("manifest"),
                said["context"].get("actor"),
                _DECIDED.get(said["event"], said["detail"].get("decision")),
                said["context"].get("signed"),
            )
            stored = (
                decision.content_hash,
                decision.reviewer,
                decision.decision,
                decision.statement_hash,
            )
            if told != stored:
                return "it is not what its event says"
            return self.objection(rows, event)
        return "no event tells of it"

    def objection(self, rows: Reads, event: Event) -> str:
        """Why an event is not what somebody who may has signed; empty where it is."""
        with self._mutex:
            self._advance(rows)
            return self._objection(rows, event, now=True)

    def _advance(self, rows: Reads) -> None:
        broken = self._read_on(rows)
        if broken:
            # What was read in a transaction that was not committed is none of the history: from the beginning.
            self._forget()
            broken = self._read_on(rows)
        if broken:
            self._forget()
            raise IntegrityFault(
                f"the history of the workspace does not hold: {broken}", context={"rule": "chain"}
            )

    def _read_on(self, rows: Reads) -> str | None:
        for event in events_of(rows, "workspace", self._head[0]):
            broken = first_break([event], self._head)
            if broken:
                return broken
            self._follow(rows, event)
            self._head = (event.seq, event.hash)
            self._hashes.append(event.hash)
        return None

    def _follow(self, rows: Reads, event: Event) -> None:
        body = decode_body(event.body)
        detail = body.detail
        if body.event == "ACT_SIGNED":
            self._acts.setdefault(detail.statement, event.seq)
        elif body.event == "KEY_ADDED":
            first = all(key.principal != detail.principal for key in self._keys.values())
            if first or not self._objection(rows, event, body):
                self._add_key(event.seq, detail.key, detail.principal, detail.public)
        elif body.event == "KEY_REVOKED":
            key = self._keys.get(detail.key)
            if key is None or self._objection(rows, event, body):
                return
            if body.context.actor == key.principal or self._may(
                body.context.actor, "admin", event.seq
            ):
                key.revoked = event.seq
        elif body.event in ("PRINCIPAL_ADDED", "ROLES_TAKEN"):
            founding = not self._roles
            if founding or not self._objection(rows, event, body):
                held = self._roles_at(detail.principal, event.seq)
                named = frozenset(detail.roles or ())
                after = held | named if body.event == "PRINCIPAL_ADDED" else held - named
                self._roles.setdefault(detail.principal, []).append((event.seq, after))

    def _add_key(self, seq: int, name: str, principal: str, public: str) -> None:
        data = bytes.fromhex(public)
        if name not in self._keys and fingerprint(data) == name:
            self._keys[name] = _Key(principal, data, seq)

    def _roles_at(self, principal: str, seq: int) -> frozenset[str]:
        found = [roles for since, roles in self._roles.get(principal, ()) if since <= seq]
        return found[-1] if found else frozenset()

    def _objection(
        self, rows: Reads, event: Event, body: Body | None = None, *, now: bool = False
    ) -> str:
        body = body or decode_body(event.body)
        hash_ = body.context.signed
        found = find_signature(rows, hash_) if hash_ else None
        seq = self._acts.get(hash_ or "")
        if found is None or seq is None or found.seq != seq:
            return "nobody signed it"
        envelope = Envelope(found.statement.encode(), found.fingerprint, found.signature)
        key = self._keys.get(found.fingerprint)
        if key is None or not key.in_force(seq):
            return "the key that signed it was not in force"
        if envelope.statement_hash != hash_ or not genuine(key.public, envelope):
            return "its signature is not genuine"
        try:
            said = envelope.said()
            told = said["predicate"]
            why = self._unlike(rows, said, told, key, found.fingerprint)
        except (OncewardError, KeyError, TypeError, ValueError, IndexError, AttributeError):
            return "its statement lacks something"
        if why:
            return why
        role = ROLE_OF.get(told["act"])
        places = (seq, self._head[0] + 1) if now else (seq,)
        for place in places:
            if role is None or (role and not self._may(key.principal, role, place)):
                then = "had" if place == seq else "has"
                return f"{key.principal} {then} no role that allows it"
        if now and not key.in_force(self._head[0] + 1):
            return "the key that signed it was revoked"
        claim = Claim(
            place=f"{event.stream}#{event.seq}",
            actor=body.context.actor,
            event=body.event,
            subject=event.stream.partition(":")[2],
            session=body.context.session_id,
            detail=msgspec.structs.asdict(body.detail),
        )
        return unlike(claim, told) or ""

    def _may(self, principal: str, role: str, seq: int) -> bool:
        return not self._roles_at(principal, seq).isdisjoint((*role.split("|"), "admin"))

    def _unlike(
        self, rows: Reads, said: dict[str, Any], told: dict[str, Any], key: _Key, name: str
    ) -> str:
        """How a genuine statement is not one for this workspace by this key."""
        names = (said["_type"], said["predicateType"], told["principal"], told["key"])
        if names != (STATEMENT, ACT, key.principal, name):
            return "it is signed for somebody or something else"
        if told["workspace"] != workspace_id(rows):
            return "it is signed for another workspace"
        head = told["head"]
        known = self._hashes[head["seq"] - 1].hex() if head["seq"] else ZERO_HASH.hex()
        if head["stream"] != "workspace" or known != head["hash"]:
            return "it was signed after another history than this one"
        (subject,) = said["subject"]
        if subject["digest"]["sha256"] != digest(told["payload"]):
            return "what was asked is not what its digest says"
        return ""
