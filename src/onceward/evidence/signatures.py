"""Keys, roles and signatures, followed through the workspace's stream: who could sign what at
which place (X52-X54)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from onceward.core.acts import SignedEvent, disagreement, find_act, misfit
from onceward.core.canon import digest, sha256_hex
from onceward.core.chain import Event
from onceward.core.merkle import MerkleTree
from onceward.errors import OncewardError
from onceward.evidence.findings import Findings
from onceward.evidence.records import Records
from onceward.people.signing import (
    ACT,
    BUILD,
    CHANGE,
    SAGA,
    SEAL,
    STATEMENT,
    Envelope,
    genuine,
    objection,
    possession,
)
from onceward.store.tables.keys import KeyRow, SealRow, Signature
from onceward.store.tables.principals import PrincipalRow, RoleRow
from onceward.store.tables.tokens import BearerToken

if TYPE_CHECKING:
    from onceward.core.bodies import Detail, EventBody


_PAIR_ROLES: Final = {
    "change.cut": "executor",
    "change.verify": "verifier",
    "change.undo": "verifier",
}


def _is_once(statement: Mapping[str, Any]) -> bool:
    declared = find_act(statement["act"])
    return declared is not None and declared.once


class _SignedAct(NamedTuple):
    """An act that was signed, and how often it was done."""

    statement_hash: str
    predicate: dict[str, Any]
    times: int


class SignatureCheck:
    """Follows keys as they come and go, and holds every signature against them."""

    def __init__(self, records: Records, findings: Findings) -> None:
        self._records, self._findings = records, findings
        self._workspace = records.workspace()
        self._keys = {key.fingerprint: key for key in records.all(KeyRow)}
        self._told: dict[str, tuple[int, int | None]] = {}
        """From which event of the workspace's stream to which each key was in force."""
        self._signatures = records.all(Signature)
        self._claims: dict[str, list[SignedEvent]] = {}
        self._newest: _SignedAct | None = None
        """The act that was read last."""
        self._roles: dict[str, set[str]] = {}
        self._added: dict[str, tuple[int, str]] = {}
        """When each principal was made known, and by whom."""
        self._seals: list[tuple[str, dict[str, Any]]] = []
        """The genuine seals in order: the hash of the statement, and its predicate."""
        self.spent: dict[str, dict[str, int]] = {}
        """By build and lane, what was spent when its end was signed."""
        self._pairs: dict[str, Mapping[str, Any]] = {}
        """By the hash of a statement, the fields that a change says were signed."""
        self._tokens: dict[str, BearerToken] = {}
        """Tokens as the events tell of them."""
        self._position = 0
        """The position of the act that is read now."""
        self._begun = records.first_key()
        """The place of the first key among all events: nobody could sign before."""

    def expect(self, statement: str, said: Mapping[str, Any]) -> None:
        """A change names a statement, and what it must say."""
        if statement in self._pairs:
            self._findings.fault("signature", statement[:16], "two changes name it")
        self._pairs[statement] = said

    def look_at(self, event: Event, body: EventBody) -> None:
        """An event that somebody asked for names the statement; one that names a statement is
        what it asked for."""
        context, place = body.context, f"{event.stream}#{event.seq}"
        if not context.signed:
            if body.event == "ENTRY_MARKED" and body.detail.escalates:
                # Nobody asked for it: it came with a verification that failed, and that one is
                # signed.
                return
            if self._begun is not None and event.position >= self._begun:
                self._findings.fault("signature", place, f"nobody signed for {body.event}")
            return
        subject = event.stream.partition(":")[2]
        claim = SignedEvent(
            place=place,
            actor=context.actor,
            event=body.event,
            subject=subject,
            session=context.session_id,
            detail=msgspec.structs.asdict(body.detail),
            position=event.position,
        )
        newest = self._newest
        if newest is not None and newest.statement_hash == context.signed:
            # The workspace's stream says what was signed before it says what was done about it.
            times = newest.times + 1
            self._newest = newest._replace(times=times)
            why = disagreement(claim, newest.predicate)
            if times > 1 and _is_once(newest.predicate):
                why = f"what was signed was done {times} times"
            if why:
                self._findings.fault("signature", place, why)
            return
        self._claims.setdefault(context.signed, []).append(claim)

    def follow(self, event: Event, body: EventBody) -> None:
        """One event of the workspace's stream."""
        detail, place = body.detail, f"workspace#{event.seq}"
        if body.event == "KEY_ADDED":
            if self._told and not body.context.signed and self._records.whole:
                self._findings.fault(
                    "signature", place, f"nobody signed for the key of {detail.principal}"
                )
            self._add(event.seq, detail)
        elif body.event == "KEY_REVOKED":
            begun = self._told.get(detail.key, (0, None))[0]
            self._told[detail.key] = (begun, event.seq)
        elif body.event == "PRINCIPAL_ADDED":
            held = self._roles.setdefault(detail.principal, set())
            self._require_roles(place, detail, lambda named: named - held)
            held.update(detail.roles or ())
            self._added.setdefault(detail.principal, (event.at, body.context.actor))
        elif body.event == "ROLES_TAKEN":
            held = self._roles.setdefault(detail.principal, set())
            self._require_roles(place, detail, lambda named: named & held)
            held.difference_update(detail.roles or ())
        elif body.event == "ACT_SIGNED":
            self._act(event, detail, place)
        elif body.event == "TOKEN_MADE":
            self._tokens[detail.token_id] = BearerToken(
                token_id=detail.token_id,
                principal=detail.principal,
                token_hash=detail.token_hash,
                note=detail.note,
                made_seq=event.seq,
                revoked_seq=None,
                expires_at=detail.expires_at,
            )
        elif body.event == "TOKEN_REVOKED" and detail.token_id in self._tokens:
            made = self._tokens[detail.token_id]
            self._tokens[detail.token_id] = msgspec.structs.replace(made, revoked_seq=event.seq)

    def _require_roles(
        self, place: str, detail: Detail, changed: Callable[[set[str]], set[str]]
    ) -> None:
        """An event names exactly the roles that what was signed changes."""
        if self._newest is None or not self._records.whole:
            return
        payload = self._newest.predicate["payload"]
        named = payload.get("roles") if isinstance(payload, dict) else None
        if named is not None and set(detail.roles or ()) != changed(set(named)):
            self._findings.fault("role", place, "the roles are not those that were signed for")

    def _add(self, seq: int, detail: Detail) -> None:
        if detail.key in self._told:
            self._findings.fault("key", detail.key[:16], f"it came a second time, with event {seq}")
        self._told[detail.key] = (seq, None)
        key = self._keys.get(detail.key)
        if key is None:
            self._findings.fault(
                "key", detail.key[:16], "the events tell of a key that is not there"
            )
            return
        stated = (detail.principal, detail.public, detail.proof)
        if stated != (key.principal, key.public_key.hex(), key.proof.hex()):
            self._findings.fault(
                "key", key.fingerprint[:16], "it is not the key that its event tells of"
            )

    def _act(self, event: Event, detail: Detail, place: str) -> None:
        seq = event.seq
        signature = next(self._signatures, None)
        while signature is not None and signature.seq < seq:
            self._findings.fault("signature", signature.statement_hash[:16], "no event tells of it")
            signature = next(self._signatures, None)
        if signature is None or signature.seq != seq:
            self._findings.fault("signature", place, "the signature that it tells of is not there")
            if signature is not None:
                self._findings.fault(
                    "signature",
                    signature.statement_hash[:16],
                    "it is not where the events tell of it",
                )
            return
        self._findings.count("signatures")
        self._position = event.position
        why = self._objection(signature, detail)
        if why:
            self._findings.fault("signature", place, why)

    def _objection(self, row: Signature, detail: Detail) -> str | None:
        """What is wrong with a signature at its place."""
        envelope = Envelope(row.statement.encode(), row.fingerprint, row.signature)
        if row.statement_hash != envelope.statement_hash:
            return "its statement is not what its hash says"
        if (row.statement_hash, row.fingerprint) != (detail.statement, detail.key):
            return "it is another signature than the event tells of"
        key, force = self._keys.get(row.fingerprint), self._told.get(row.fingerprint)
        if key is None or force is None or force[0] > row.seq or force[1] is not None:
            return f"the key {row.fingerprint[:16]} was not in force there"
        if not genuine(key.public_key, envelope):
            return "it is not genuine"
        try:
            statement = envelope.said()
        except OncewardError as error:
            return error.message
        return self._read(statement, key, detail, row)

    def _read(
        self, statement: dict[str, Any], key: KeyRow, detail: Detail, row: Signature
    ) -> str | None:
        """The bytes are genuine: hold what they say against what the records say, field by
        field."""
        try:
            predicate = statement["predicate"]
            signed_for = (
                statement["_type"],
                predicate["principal"],
                predicate["key"],
                predicate["workspace"],
            )
            expected = (STATEMENT, key.principal, key.fingerprint, self._workspace)
            if signed_for != expected or detail.principal != key.principal:
                return "it is signed for somebody or something else"
            if statement["predicateType"] == ACT:
                return self._read_act(statement, predicate, detail, row)
            if statement["predicateType"] == BUILD:
                return self._read_end(predicate, predicate["build_id"], "session")
            if statement["predicateType"] == SAGA:
                return self._read_end(predicate, predicate["saga_id"], "saga")
            if statement["predicateType"] == CHANGE:
                return self._read_pair(predicate, detail, row)
            if statement["predicateType"] == SEAL:
                self._seals.append((row.statement_hash, predicate))
                return None
        except (KeyError, TypeError, IndexError, ValueError, AttributeError):
            return "its statement lacks something"
        return "its statement is of no known kind"

    def _read_act(
        self,
        statement: dict[str, Any],
        predicate: dict[str, Any],
        detail: Detail,
        row: Signature,
    ) -> str | None:
        principal, act = predicate["principal"], predicate["act"]
        if (act, predicate["nonce"]) != (detail.act, detail.nonce):
            return "it is signed for another act"
        unfit = misfit(predicate)
        if unfit:
            return unfit
        if not self._stands(predicate["head"]):
            return "it was signed after another history than this one"
        (subject,) = statement["subject"]
        if subject["digest"]["sha256"] != digest(predicate["payload"]):
            return "what is asked is not what its digest says"
        declared = find_act(act)
        own = declared is not None and declared.own
        request = None if own else self._records.asked(act, predicate["nonce"])
        if request not in (None, subject["digest"]["sha256"]):
            return "the request that was signed is not there"
        held = self._roles.get(principal, set())
        if declared is None or (self._records.whole and not declared.allows(held)):
            return f"{principal} had no role that allows {act}"
        claims = self._claims.pop(row.statement_hash, [])
        self._require_done()
        self._newest = _SignedAct(row.statement_hash, predicate, times=len(claims))
        if len(claims) > 1 and declared.once:
            return f"what was signed was done {len(claims)} times"
        for claim in claims:
            if self._records.whole and claim.position < self._position:
                return f"{claim.place} stands before it in the order of all events"
        disagreements = (disagreement(claim, predicate) for claim in claims)
        return next(filter(None, disagreements), None)

    def _require_done(self) -> None:
        """The newest signed act has an event: an act that changes nothing is not recorded."""
        newest = self._newest
        if newest is not None and newest.times == 0 and self._records.whole:
            self._findings.fault(
                "signature",
                newest.statement_hash[:16],
                f"no event tells of what {newest.predicate['act']} did",
            )
        self._newest = None

    def _read_pair(self, predicate: dict[str, Any], detail: Detail, row: Signature) -> str | None:
        """A signature on a change: exactly what its rows and events say, by somebody who might."""
        expected = self._pairs.pop(row.statement_hash, None)
        if expected is None:
            return "no change names it"
        principal, act = predicate["principal"], predicate["act"]
        if (act, predicate["nonce"]) != (detail.act, detail.nonce):
            return "it is signed for another act"
        differs = any(predicate.get(name) != value for name, value in expected.items())
        if differs or "verify_result_id" in predicate.keys() - expected:
            return "it is signed for another change than the one that names it"
        head = predicate["head"]
        if not self._stands(head) or head["stream"] != f"entry:{predicate['entry_id']}":
            return "it was signed after another history than this one"
        held = self._roles.get(principal, set())
        if self._records.whole and held.isdisjoint((_PAIR_ROLES[act], "admin")):
            return f"{principal} had no role that allows {act}"
        return None

    def _read_end(self, predicate: dict[str, Any], subject: str, kind: str) -> str | None:
        head = predicate["head"]
        if not self._stands(head) or head["stream"] != f"{kind}:{subject}":
            return f"the {'build' if kind == 'session' else kind}'s stream is not what was signed"
        self.spent[subject] = predicate["totals"]
        return None

    def _stands(self, head: dict[str, Any]) -> bool:
        """Whether the history that was signed after is this one."""
        if not self._records.whole and head["stream"] == "workspace":
            return True
        hash_ = self._records.hash_at(head["stream"], head["seq"])
        return hash_ is not None and hash_.hex() == head["hash"]

    def finish(self) -> None:
        """What is left over when every event was seen."""
        self._require_done()
        for left in self._signatures:
            self._findings.fault("signature", left.statement_hash[:16], "no event tells of it")
        for statement, claims in sorted(self._claims.items()):
            self._findings.fault(
                "signature", claims[0].place, f"nobody signed {statement[:16]}, which it names"
            )
        for statement in sorted(self._pairs):
            self._findings.fault(
                "signature", statement[:16], "a change names it, and nobody signed it"
            )
        self._check_keys()
        if self._records.whole:
            self._check_seals()
            self._check_tokens()
            self._check_principals()

    def _check_principals(self) -> None:
        """Every principal was made known by an event, and has the roles that events gave it."""
        held: dict[str, set[str]] = {}
        for role in self._records.all(RoleRow):
            held.setdefault(role.name, set()).add(role.role)
        rows = {row.name: row for row in self._records.all(PrincipalRow)}
        known = rows.keys()
        for name in sorted(known & self._added.keys()):
            if (rows[name].added_at, rows[name].added_by) != self._added[name]:
                self._findings.fault("role", name, "it was not added then, or by them")
        for name in sorted(known ^ self._roles.keys()):
            self._findings.fault(
                "role", name, "no event made it known" if name in known else "it is not there"
            )
        for name in sorted(held.keys() | self._roles.keys()):
            if held.get(name, set()) != self._roles.get(name, set()):
                self._findings.fault(
                    "role", name, "it does not have the roles that the events gave it"
                )

    def _check_seals(self) -> None:
        """Every seal that was signed is there, says what was signed, and knows of those before
        it."""
        rows = list(self._records.all(SealRow))
        log = MerkleTree()
        for number, (row, signed) in enumerate(zip_longest(rows, self._seals), 1):
            if row is None or signed is None:
                why = "it was signed, and is not there" if row is None else "nobody signed it"
                self._findings.fault("seal", f"seal {number}", why)
                continue
            hash_, predicate = signed
            stated = SealRow(
                seal_no=number,
                position=predicate["position"],
                streams=predicate["streams"],
                root=predicate["root"],
                statement_hash=hash_,
            )
            if stated != row:
                self._findings.fault("seal", f"seal {number}", "it is not what was signed")
            elif predicate["log"] != {"root": log.root().hex(), "size": log.size}:
                self._findings.fault(
                    "seal", f"seal {number}", "it does not know the seals before it"
                )
            log.add(bytes.fromhex(hash_))

    def _check_tokens(self) -> None:
        for row in self._records.all(BearerToken):
            self._findings.count("tokens")
            if self._tokens.pop(row.token_id, None) != row:
                self._findings.fault("token", row.token_id, "it is not what the events say")
        for token_id in sorted(self._tokens):
            self._findings.fault("token", token_id, "the events tell of it, and it is not there")

    def _check_keys(self) -> None:
        owners: dict[bytes, str] = {}
        for key in self._keys.values():
            self._findings.count("keys")
            name = key.fingerprint[:16]
            if self._told.get(key.fingerprint) != (key.added_seq, key.revoked_seq):
                self._findings.fault(
                    "key", name, "it was added or revoked elsewhere than the events say"
                )
            why = objection(key.public_key)
            if why or sha256_hex(key.public_key) != key.fingerprint:
                self._findings.fault(
                    "key", name, why or "its bytes are not what its fingerprint says"
                )
                continue
            proof = Envelope(
                possession(self._workspace, key.principal, key.public_key),
                key.fingerprint,
                key.proof,
            )
            if not genuine(key.public_key, proof):
                self._findings.fault("key", name, f"nothing shows that {key.principal} had it")
            other = owners.setdefault(key.public_key, key.principal)
            if other != key.principal:
                self._findings.fault("duty", name, f"both {other} and {key.principal} have it")
