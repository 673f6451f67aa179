"""Who may do what, by what was signed: rows are only the way to find an event, and an event counts
only where a genuine statement asked for it (H-5).

The workspace's stream is folded into keys and roles, place by place. A change of either that
nobody who might has signed is passed over: whoever can write rows without a trusted key gains
nothing by it."""

from __future__ import annotations

import threading
from typing import Any

import msgspec

from onceward.core.acts import SignedEvent, disagreement, find_act, misfit
from onceward.core.bodies import EventBody, decode_body
from onceward.core.canon import ZERO_HASH, digest
from onceward.core.chain import Event, first_break
from onceward.core.changes import Policy, recorded_policy
from onceward.core.machine import NEW, Machine
from onceward.core.records import Principal
from onceward.errors import IntegrityFault, InvalidConfig, NotFound, Recovery
from onceward.people.principals import authorize
from onceward.people.signing import ACT, STATEMENT, Envelope, fingerprint, genuine
from onceward.people.trust import Root
from onceward.store.port import Reads
from onceward.store.tables.events import events_of, hash_at
from onceward.store.tables.keys import find_signature, keys_of, workspace_id
from onceward.store.tables.principals import Principals
from onceward.store.tables.tokens import BearerToken

_WITHDRAWING = {
    "changes.review": "entry",
    "changes.abandon": "entry",
    "changes.mark": "revises",
    "grants.revoke": "grant",
    "builds.confirm": "build",
}
"""Acts that may take back what was allowed before, and the field that names what they are about."""
UNREADABLE = (InvalidConfig, KeyError, TypeError, ValueError, IndexError, AttributeError)
"""The exceptions that reading an incomplete statement raises."""


class _Key(msgspec.Struct):
    principal: str
    public: bytes
    added: int
    revoked: int | None = None

    def in_force(self, seq: int) -> bool:
        return self.added <= seq and (self.revoked is None or seq < self.revoked)


class SignedRequest(msgspec.Struct, frozen=True):
    """The request of a genuine statement, and its seq in the workspace's stream."""

    seq: int
    told: dict[str, Any]

    @property
    def act(self) -> str:
        return str(self.told["act"])

    @property
    def payload(self) -> dict[str, Any]:
        return dict(self.told["payload"])

    @property
    def at(self) -> int:
        """When its asker signed it, by the store's clock."""
        return int(self.told["asked_at"])


class Doubt(Exception):
    """Why a statement, or what follows from it, is not to be believed."""


def require_life(machine: Machine, events: list[Event]) -> None:
    """A subject's moves follow one another as its machine allows, and none follows twice from
    the same statement."""
    state, version = NEW, 0
    followed: set[tuple[str, str]] = set()
    for event in events:
        body = decode_body(event.body)
        if body.context.signed:
            once = (body.context.signed, body.event)
            if once in followed:
                raise Doubt(f"{body.event} follows twice from what was signed once")
            followed.add(once)
        if event.source != machine.name:
            continue
        detail = body.detail
        arrow = machine.find(state, detail.to or "", detail.reason)
        follows = (detail.came_from or NEW, detail.transition_seq) == (state, version + 1)
        if arrow is None or arrow.event != body.event or not follows:
            raise Doubt(f"its history does not lead to {body.event}")
        state, version = detail.to or "", detail.transition_seq


class Authority:
    """Keys and roles of a workspace as its own stream gave them, up to the place that was read
    last."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._root: Root | None = None
        """The root when the history was first read here; it must never be another one."""
        self._forget()

    def _forget(self) -> None:
        self._head = (0, ZERO_HASH)
        self._keys: dict[str, _Key] = {}
        self._roles: dict[str, list[tuple[int, frozenset[str]]]] = {}
        """By principal: from which place on it had which roles."""
        self._acts: dict[str, int] = {}
        """The seq of each statement in the workspace's stream."""
        self._policy: Any = recorded_policy(Policy())
        """The policy for changes, as last signed."""
        self._sinks: Any = {}
        """The sinks, as last recorded."""
        self._tokens: dict[str, tuple[str, str, int]] = {}
        """Bearer tokens that are not revoked: whose, the hash, and until when."""
        self._withdrawals: list[tuple[int, str]] = []
        """Statements by which somebody may have taken back what was allowed before."""
        self._hashes: list[bytes] = []
        """The hash of every event that was read; a statement names the one it was signed after."""
        self._followed: set[tuple[str, str]] = set()
        """Statements that were followed, each with the event that did: the same one is not done
        twice."""

    def require(self, rows: Reads, name: str, role: str) -> Principal:
        """The principal, if its rows are what signed acts made them, and it may act in this
        role."""
        self.vouch(rows, name)
        return authorize(rows, name, role)

    def root(self, rows: Reads) -> Root | None:
        """The root of the workspace's history; None while nobody has a key."""
        with self._mutex:
            self._advance(rows)
            first = next(iter(self._keys), None)
        return Root(workspace_id(rows), first) if first is not None else None

    def vouch(self, rows: Reads, name: str) -> None:
        """Roles and keys of a principal are those that signed acts gave it; else nothing is done
        in its name."""
        what = self.edited(rows, name)
        if what:
            raise IntegrityFault(
                f"the {what} of {name} in the database are not those that signed acts gave: somebody edited the rows,"
                f" and nothing is done in the name of {name}",
                context={"rule": what.removesuffix("s"), "principal": name},
                recovery=[Recovery("see what was edited", "onceward verify")],
            )

    def edited(self, rows: Reads, name: str) -> str:
        """Whether roles or keys of a principal are not those that signed acts gave it; empty if
        neither."""
        with self._mutex:
            self._advance(rows)
            roles = self._roles_at(name, self._head[0])
            keys = {
                (hash_, key.public, key.added, key.revoked)
                for hash_, key in self._keys.items()
                if key.principal == name
            }
        principal = Principals(rows).find(name)
        stored_roles = principal.roles if principal else frozenset()
        if stored_roles != roles:
            return "roles"
        stored = {
            (key.fingerprint, bytes(key.public_key), key.added_seq, key.revoked_seq)
            for key in keys_of(rows, name)
        }
        return "keys" if stored != keys else ""

    def require_kept(
        self, rows: Reads, asked: SignedRequest, subject: str, events: list[Event]
    ) -> None:
        """Every withdrawal signed since is in the subject's history: no event was removed."""
        known = {event.facts()["context"].get("signed") for event in events}
        for hash_ in self.withdrawals(asked.seq):
            if hash_ in known:
                continue
            signature = find_signature(rows, hash_)
            if signature is None:
                raise Doubt("something that was signed since is gone")
            predicate = msgspec.json.decode(signature.statement)["predicate"]
            if predicate["payload"].get(_WITHDRAWING[predicate["act"]]) == subject:
                raise Doubt("what was signed about it since is not in its history")

    def holder(self, rows: Reads, token: BearerToken) -> str | None:
        """Whose a bearer token is, by what they signed; None where nobody who has a role did."""
        with self._mutex:
            self._advance(rows)
            known = self._tokens.get(token.token_id)
            if known != (token.principal, token.token_hash, token.expires_at):
                return None
            return token.principal if self._roles_at(token.principal, self._head[0]) else None

    def policy(self, rows: Reads) -> Any:
        """The policy for changes, as last signed."""
        with self._mutex:
            self._advance(rows)
            return self._policy

    def sinks(self, rows: Reads) -> Any:
        """The sinks, as the workspace's stream last states."""
        with self._mutex:
            self._advance(rows)
            return self._sinks

    def roles(self, rows: Reads, name: str) -> frozenset[str]:
        """The roles of a principal, by signed acts."""
        with self._mutex:
            self._advance(rows)
            return self._roles_at(name, self._head[0])

    def believe(self, rows: Reads, event: Event, *, now: bool = True) -> SignedRequest:
        """The signed request that an event follows from; Doubt if its signer had no role then, or,
        with `now`, has none."""
        with self._mutex:
            self._advance(rows)
            return self._require_asked(rows, event, decode_body(event.body), now=now)

    def statement(self, rows: Reads, hash_: str | None, *, now: bool) -> SignedRequest:
        """The request of a genuine statement; Doubt if its signer had no role then, or, with `now`,
        has none."""
        with self._mutex:
            self._advance(rows)
            return self._genuine(rows, hash_, now=now)

    def history(self, rows: Reads, stream: str, machine: Machine | None = None) -> list[Event]:
        """A stream that holds together, and whose moves are those of a machine."""
        try:
            events = list(events_of(rows, stream))
        except NotFound:
            raise Doubt("no event tells of it") from None
        broken = first_break(events)
        if broken:
            raise Doubt(f"its history does not hold: {broken}")
        if machine is not None:
            require_life(machine, events)
        return events

    def envelope(self, rows: Reads, hash_: str, role: str) -> tuple[str, Envelope]:
        """A statement that a key in force signed, and whose it is: of somebody who had a role
        then."""
        with self._mutex:
            self._advance(rows)
            seq, key, envelope = self._envelope(rows, hash_)
            if not self._may(key.principal, role, seq):
                raise Doubt(f"{key.principal} had no role that allows it")
        return key.principal, envelope

    def withdrawals(self, seq: int) -> list[str]:
        """Statements since a place of the workspace's stream that may take back what was allowed
        before."""
        with self._mutex:
            return [hash_ for place, hash_ in self._withdrawals if place > seq]

    def _advance(self, rows: Reads) -> None:
        seq, hash_ = self._head
        if hash_at(rows, "workspace", seq) != hash_:
            # What was read in a transaction that was not committed is none of the history: from the
            # beginning.
            self._forget()
        broken = self._read_on(rows)
        if broken:
            self._forget()
            raise IntegrityFault(
                f"the history of the workspace does not hold: {broken}", context={"rule": "chain"}
            )
        self._require_same_root(rows)

    def _require_same_root(self, rows: Reads) -> None:
        """A history that was replaced under us begins with another key."""
        first = next(iter(self._keys), None)
        if first is None:
            return
        if self._root is None:
            self._root = Root(workspace_id(rows), first)
        if self._root.key != first:
            self._forget()
            raise IntegrityFault(
                f"the history of this workspace begins with the key {first[:16]}, and began with"
                f" {self._root.key[:16]} when this process first read it: it was replaced",
                context={"rule": "key"},
                recovery=[Recovery("see what was edited", "onceward verify")],
            )

    def _read_on(self, rows: Reads) -> str | None:
        if self._head[0] == 0 and hash_at(rows, "workspace", 1) is None:
            return None
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
            if detail.act in _WITHDRAWING:
                self._withdrawals.append((event.seq, detail.statement))
        elif body.event == "KEY_ADDED":
            founding = not self._keys and detail.principal in self._roles
            if founding or self._asked_for(rows, event, body):
                self._add_key(event.seq, detail.key, detail.principal, detail.public)
        elif body.event == "KEY_REVOKED":
            key = self._keys.get(detail.key)
            if key is None or not self._asked_for(rows, event, body):
                return
            if self._is_or_administers(body.context.actor, key.principal, event.seq):
                key.revoked = event.seq
        elif body.event == "SETTINGS_NOTED":
            if self._asked_for(rows, event, body):
                self._policy = detail.policy
        elif body.event == "SINKS_CHANGED":
            self._sinks = detail.sinks
        elif body.event == "TOKEN_MADE":
            if self._asked_for(rows, event, body) and detail.token_id not in self._tokens:
                made = (detail.principal, detail.token_hash, detail.expires_at)
                self._tokens[detail.token_id] = made
        elif body.event == "TOKEN_REVOKED" and detail.token_id in self._tokens:
            owner = self._tokens[detail.token_id][0]
            if self._asked_for(rows, event, body) and self._is_or_administers(
                body.context.actor, owner, event.seq
            ):
                del self._tokens[detail.token_id]
        elif body.event in ("PRINCIPAL_ADDED", "ROLES_TAKEN"):
            if not self._roles:
                self._hold(event.seq, detail.principal, frozenset(detail.roles or ()))
            elif (asked := self._followed_once(rows, event, body)) is not None:
                held = self._roles_at(detail.principal, event.seq)
                named = frozenset(asked.payload["roles"])
                # The roles are those that were signed for, whatever the event says of them.
                after = held | named if body.event == "PRINCIPAL_ADDED" else held - named
                self._hold(event.seq, detail.principal, after)

    def _is_or_administers(self, actor: str, owner: str, seq: int) -> bool:
        return actor == owner or self._may(actor, "admin", seq)

    def _hold(self, seq: int, principal: str, roles: frozenset[str]) -> None:
        self._roles.setdefault(principal, []).append((seq, roles))

    def _add_key(self, seq: int, name: str, principal: str, public: str) -> None:
        data = bytes.fromhex(public)
        if name not in self._keys and fingerprint(data) == name:
            self._keys[name] = _Key(principal, data, seq)

    def _roles_at(self, principal: str, seq: int) -> frozenset[str]:
        earlier = [roles for since, roles in self._roles.get(principal, ()) if since <= seq]
        return earlier[-1] if earlier else frozenset()

    def _asked_for(self, rows: Reads, event: Event, body: EventBody) -> bool:
        return self._followed_once(rows, event, body) is not None

    def _followed_once(self, rows: Reads, event: Event, body: EventBody) -> SignedRequest | None:
        """The signed request that an event follows from, for the first time; None otherwise."""
        followed = (body.context.signed, body.event)
        if followed in self._followed:
            return None
        try:
            asked = self._require_asked(rows, event, body, now=False)
        except Doubt:
            return None
        self._followed.add(followed)
        return asked

    def _require_asked(
        self, rows: Reads, event: Event, body: EventBody, *, now: bool
    ) -> SignedRequest:
        """The signed request that an event follows from; Doubt otherwise."""
        asked = self._genuine(rows, body.context.signed, now=now)
        claim = SignedEvent(
            place=f"{event.stream}#{event.seq}",
            actor=body.context.actor,
            event=body.event,
            subject=event.stream.partition(":")[2],
            session=body.context.session_id,
            detail=msgspec.structs.asdict(body.detail),
        )
        try:
            why = disagreement(claim, asked.told)
        except UNREADABLE:
            why = "its statement lacks something"
        if why:
            raise Doubt(why)
        return asked

    def _genuine(self, rows: Reads, hash_: str | None, *, now: bool) -> SignedRequest:
        """The statement of that hash, if a key in force signed it for this workspace and this
        history, of somebody who might ask that then, and, where `now` matters, may now."""
        seq, key, envelope = self._envelope(rows, hash_)
        try:
            statement = envelope.said()
            predicate = statement["predicate"]
            why = self._unlike(rows, statement, key, envelope.fingerprint)
            declared = find_act(predicate["act"])
        except UNREADABLE:
            raise Doubt("its statement lacks something") from None
        why = why or misfit(predicate) or ""
        if why:
            raise Doubt(why)
        places = (seq, self._head[0] + 1) if now else (seq,)
        for place in places:
            if declared is None or not declared.allows(self._roles_at(key.principal, place)):
                then = "had" if place == seq else "has"
                raise Doubt(f"{key.principal} {then} no role that allows it")
        if now and not key.in_force(self._head[0] + 1):
            raise Doubt("the key that signed it was revoked")
        return SignedRequest(seq, predicate)

    def _envelope(self, rows: Reads, hash_: str | None) -> tuple[int, _Key, Envelope]:
        """A statement that a key in force signed, where the workspace's stream tells of it, and
        that key."""
        row = find_signature(rows, hash_) if hash_ else None
        seq = self._acts.get(hash_ or "")
        if row is None or seq is None or row.seq != seq:
            raise Doubt("nobody signed it")
        envelope = Envelope(row.statement.encode(), row.fingerprint, row.signature)
        key = self._keys.get(row.fingerprint)
        if key is None or not key.in_force(seq):
            raise Doubt("the key that signed it was not in force")
        if envelope.statement_hash != hash_ or not genuine(key.public, envelope):
            raise Doubt("its signature is not genuine")
        return seq, key, envelope

    def _may(self, principal: str, role: str, seq: int) -> bool:
        return not self._roles_at(principal, seq).isdisjoint((*role.split("|"), "admin"))

    def _unlike(self, rows: Reads, statement: dict[str, Any], key: _Key, name: str) -> str:
        """Why a genuine statement is not one for this workspace by this key; empty if it is."""
        predicate = statement["predicate"]
        kind = (statement["_type"], statement["predicateType"])
        signer = (predicate["principal"], predicate["key"])
        if kind != (STATEMENT, ACT) or signer != (key.principal, name):
            return "it is signed for somebody or something else"
        if predicate["workspace"] != workspace_id(rows):
            return "it is signed for another workspace"
        head = predicate["head"]
        known = self._hashes[head["seq"] - 1].hex() if head["seq"] else ZERO_HASH.hex()
        if head["stream"] != "workspace" or known != head["hash"]:
            return "it was signed after another history than this one"
        (subject,) = statement["subject"]
        if subject["digest"]["sha256"] != digest(predicate["payload"]):
            return "what was asked is not what its digest says"
        return ""
