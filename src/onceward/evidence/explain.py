"""Principals, keys, artifacts and seals in plain words."""

from __future__ import annotations

import re

from onceward.core.views import Explanation
from onceward.people.duties import ALLOWS
from onceward.people.principals import who_may
from onceward.store.port import Reads
from onceward.store.store import Store
from onceward.store.subject import Kind
from onceward.store.tables.artifacts import digests_named, owners_of
from onceward.store.tables.events import last_position
from onceward.store.tables.keys import all_seals, find_key, find_signature, keys_named, keys_of
from onceward.store.tables.principals import Principals

_HEX = re.compile(r"[0-9a-f]{8,64}")
_OWNERS_SHOWN = 5


def _find_principal(rows: Reads, name: str) -> str | None:
    bare = name.removeprefix("principal:")
    return bare if Principals(rows).find(bare) is not None else None


def _principal(store: Store, name: str) -> Explanation:
    with store.read() as rows:
        principal, keys = Principals(rows).find(name), keys_of(rows, name)
        who = who_may(rows, "admin")
    assert principal is not None
    active = [key for key in keys if key.revoked_seq is None]
    locked_out = bool(keys) and not active
    if active:
        state = "acts with a key"
    elif locked_out:
        state = "was locked out"
    else:
        state = "has not acted yet"
    return Explanation(
        id=name,
        kind="principal",
        what=[f"{role}: may {ALLOWS[role]}" for role in sorted(principal.roles)],
        state=state,
        why=["every key it had was revoked"] if locked_out else [],
        waits_for=["an admin to take a new key of its own"] if locked_out else [],
        who=who,
        made=[_said_of(key.fingerprint, key.revoked_seq is None) for key in keys],
        next=[
            f"onceward principals roles {name}",
            *(f"onceward keys show {key.fingerprint[:16]}" for key in active[-1:]),
        ],
    )


def _said_of(fingerprint: str, in_force: bool) -> str:
    return f"the key {fingerprint[:16]}, {'in force' if in_force else 'revoked'}"


def _find_key(rows: Reads, name: str) -> str | None:
    bare = name.removeprefix("key:").lower()
    found = keys_named(rows, bare) if _HEX.fullmatch(bare) else []
    return found[0].fingerprint if len(found) == 1 else None


def _key(store: Store, fingerprint: str) -> Explanation:
    with store.read() as rows:
        key = find_key(rows, fingerprint)
        assert key is not None
        ((signed,),) = rows.read(
            "SELECT count(*) FROM signatures WHERE fingerprint = ?", (fingerprint,)
        )
        who = [f"{key.principal} (its owner)", *who_may(rows, "admin")]
    in_force = key.revoked_seq is None
    why = [
        f"added by event {key.added_seq} of the workspace's stream,"
        " with proof that its owner has it"
    ]
    commands = [f"onceward keys show {fingerprint[:16]}"]
    if in_force:
        commands.append(f"onceward keys revoke {fingerprint[:16]}")
    else:
        why.append(f"revoked by event {key.revoked_seq}; what it signed before stays signed")
    return Explanation(
        id=fingerprint,
        kind="key",
        what=[f"an Ed25519 key of {key.principal}"],
        state="in force" if in_force else "revoked",
        why=why,
        who=who if in_force else [],
        made=[f"signatures: {signed:,}"],
        next=commands,
    )


def _find_artifact(rows: Reads, name: str) -> str | None:
    bare = name.removeprefix("artifact:").lower()
    found = digests_named(rows, bare) if _HEX.fullmatch(bare) else []
    return found[0] if len(found) == 1 else None


def _artifact(store: Store, sha256: str) -> Explanation:
    with store.read() as rows:
        size, owners = owners_of(rows, sha256)
    made = [f"{kind} {name} of {owner}" for owner, name, kind in owners[:_OWNERS_SHOWN]]
    if len(owners) > _OWNERS_SHOWN:
        made.append(f"and {len(owners) - _OWNERS_SHOWN:,} more")
    return Explanation(
        id=sha256,
        kind="artifact",
        what=[f"{size:,} bytes, named by their SHA-256"],
        state="kept" if owners else "nobody's",
        why=[] if owners else ["nothing refers to it any more; gc removes it"],
        made=made,
        next=[
            f"onceward artifacts cat {sha256[:12]}",
            *(f"onceward explain {owners[0][0]}" for _ in owners[:1]),
        ],
    )


def _find_seal(rows: Reads, name: str) -> str | None:
    number = name.removeprefix("seal:")
    known = {str(seal.seal_no) for seal in all_seals(rows)} if name.startswith("seal:") else set()
    return number if number in known else None


def _seal(store: Store, number: str) -> Explanation:
    with store.read() as rows:
        seal = next(seal for seal in all_seals(rows) if str(seal.seal_no) == number)
        signed = find_signature(rows, seal.statement_hash)
        key = find_key(rows, signed.fingerprint) if signed is not None else None
        since = last_position(rows) - seal.position
    why = []
    if key is not None:
        why.append(f"signed by {key.principal} with the key {key.fingerprint[:16]}")
    return Explanation(
        id=f"seal:{number}",
        kind="seal",
        what=[f"the heads of {seal.streams:,} streams after event {seal.position:,}"],
        state="signed" if key is not None else "unsigned",
        why=why,
        made=[f"root {seal.root}", f"events since then: {since:,}"],
        next=["onceward verify", "onceward seal --out FILE"],
    )


KINDS = (
    Kind("principal", _find_principal, _principal),
    Kind("key", _find_key, _key),
    Kind("artifact", _find_artifact, _artifact),
    Kind("seal", _find_seal, _seal),
)
