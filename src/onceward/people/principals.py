"""Who may do what: roles and keys are checked here, not at the edges (H-9)."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from onceward.core.records import ROLES, Principal, check_name
from onceward.errors import InvalidConfig, NotFound, PermissionDenied, Recovery
from onceward.people.signing import Envelope, fingerprint, genuine, possession, require_sound
from onceward.store.port import Reads
from onceward.store.tables.keys import (
    KeyRow,
    all_keys,
    find_key,
    keys_named,
    keys_of,
    put_key,
    revoke_key,
    workspace_id,
)
from onceward.store.tables.principals import Principals, add_principal, remove_roles
from onceward.store.transaction import Transaction


def authorize(rows: Reads, name: str, role: str) -> Principal:
    """The principal, if it may act in this role, or in any; else PERMISSION_DENIED saying who
    could help."""
    known = Principals(rows)
    principal = known.find(name)
    if principal is not None and (principal.may(role) or not role):
        return principal
    admins = [p.name for p in known.all() if p.may("admin")]
    why = f"has {_only(principal)}" if principal else "is not known here"
    wanted = f"the role {role.replace('|', ' or ')}" if role else "somebody who is"
    able = [p.name for p in known.all() if role and p.may(role) and not p.may("admin")]
    give = Recovery(
        f"ask {' or '.join(admins)}",
        f"onceward principals add {shlex.quote(name)} --role {role.partition('|')[0] or 'viewer'}",
        "high" if role == "admin" else "low",
    )
    # Where somebody else has the role, it is theirs to do.
    delegate = [Recovery(f"have it done by {' or '.join(able[:3])}, who may")] if able else []
    raise PermissionDenied(
        f"{name} {why}; this needs {wanted}",
        context={"principal": name, "needs": role, "admins": admins},
        recovery=[*delegate, give],
    )


def _only(principal: Principal) -> str:
    return f"only {', '.join(sorted(principal.roles))}" if principal.roles else "no role"


def add(tx: Transaction, name: str, roles: Sequence[str], by: str, offer: str = "") -> None:
    """Make a principal known, or give it more roles, or a key that it offered; recorded in the
    workspace's stream."""
    check_name(name, "principal")
    _check_roles(roles)
    known = tx.principals.find(name)
    if not roles and (known is None or not offer):
        raise InvalidConfig(
            f"roles must be among {', '.join(ROLES)}, not none", context={"field": "role"}
        )
    if not offer and by != name and not keys_of(tx, name):
        raise InvalidConfig(
            f"{name} has no key yet, and comes with one: nobody gets a key by being the first to act under a name",
            context={"field": "key"},
            recovery=[
                Recovery(
                    "let its owner make one and send you the offer that it prints",
                    f"onceward --as {shlex.quote(name)} keys new",
                )
            ],
        )
    new = sorted(set(roles) - (known.roles if known else frozenset()))
    if new:
        add_principal(tx, name, new, by, tx.now)
        tx.append("workspace", "PRINCIPAL_ADDED", by, {"principal": name, "roles": new})
    if offer:
        add_key(tx, name, *read_offer(offer), by)


def take_roles(tx: Transaction, name: str, roles: Sequence[str], by: str) -> None:
    """Take roles away; somebody stays admin."""
    _check_roles(roles)
    known = tx.principals.find(name)
    if known is None:
        raise NotFound(f"there is no principal {name[:80]!a}", context={"principal": name[:128]})
    gone = sorted(set(roles) & known.roles)
    if "admin" in gone and not _admins(tx, but=name):
        raise PermissionDenied(
            f"{name} is the last admin here; make somebody else one first",
            recovery=[
                Recovery(
                    "make somebody else one", "onceward principals add NAME --role admin", "high"
                )
            ],
        )
    if gone:
        remove_roles(tx, name, gone)
        tx.append("workspace", "ROLES_TAKEN", by, {"principal": name, "roles": gone})


def add_key(tx: Transaction, principal: str, public: bytes, proof: bytes, by: str) -> str:
    """A key for a principal who showed to have it; no key ever belongs to two."""
    require_sound(public)
    key_name = fingerprint(public)
    envelope = Envelope(possession(workspace_id(tx), principal, public), key_name, proof)
    if not genuine(public, envelope):
        raise PermissionDenied(
            f"nothing shows that {principal} has the key {key_name[:16]}: its proof is for another key, name or workspace",
            context={"principal": principal, "key": key_name},
        )
    known = find_key(tx, key_name)
    if known is not None and (known.principal, known.revoked_seq) == (principal, None):
        return key_name
    detail = {"principal": principal, "key": key_name, "public": public.hex(), "proof": proof.hex()}
    event = tx.append("workspace", "KEY_ADDED", by, detail)
    key = KeyRow(
        fingerprint=key_name,
        public_key=public,
        principal=principal,
        proof=proof,
        added_seq=event.seq,
        revoked_seq=None,
    )
    put_key(tx, key)
    return key_name


def revoke(tx: Transaction, prefix: str, reason: str, by: str) -> dict[str, Any]:
    """A key is in force no more. What it signed before stays signed."""
    found = keys_named(tx, prefix)
    if len(found) != 1:
        raise NotFound(
            f"more than one key begins with {prefix[:64]}"
            if found
            else f"there is no key {prefix[:64]!a}",
            context={"key": prefix[:64]},
            recovery=[Recovery("see which there are", "onceward keys list")],
        )
    key = found[0]
    if key.principal != by:
        authorize(tx, by, "admin")
    if key.revoked_seq is not None:
        raise InvalidConfig(
            f"the key {key.fingerprint[:16]} was revoked before", context={"key": key.fingerprint}
        )
    left = [
        other for other in keys_of(tx, key.principal) if other.revoked_seq is None and other != key
    ]
    if not left and _admins(tx, but="") == [key.principal]:
        raise PermissionDenied(
            f"{key.principal} is the only admin, and this is their only key: nobody could act any more",
            recovery=[Recovery("make another key first", "onceward keys new")],
        )
    said = {
        "principal": key.principal,
        "key": key.fingerprint,
        **({"reason": reason} if reason else {}),
    }
    event = tx.append("workspace", "KEY_REVOKED", by, said)
    revoke_key(tx, key.fingerprint, event.seq)
    return {"key": key.fingerprint, "principal": key.principal, "revoked_seq": event.seq}


def read_offer(offer: str) -> tuple[bytes, bytes]:
    """Public key and proof, from what `keys new` or `keys show` printed."""
    kind, _, rest = offer.strip().partition(":")
    public, _, proof = rest.partition(":")
    try:
        found = bytes.fromhex(public), bytes.fromhex(proof)
    except ValueError:
        found = b"", b""
    if kind != "ed25519" or len(found[0]) != 32 or len(found[1]) != 64:
        raise InvalidConfig(
            "this is no key that was offered; it looks like ed25519:PUBLIC:PROOF",
            context={"field": "key"},
            recovery=[Recovery("let its owner print it", "onceward keys show")],
        )
    return found


def welcome(tx: Transaction, name: str) -> None:
    """The first person to open a workspace is its admin."""
    if not tx.principals.all():
        add(tx, name, ["admin"], name)


def _check_roles(roles: Sequence[str]) -> None:
    unknown = [role for role in roles if role not in ROLES]
    if unknown:
        raise InvalidConfig(
            f"roles must be among {', '.join(ROLES)}, not {', '.join(unknown)}",
            context={"field": "role"},
        )


def _admins(rows: Reads, but: str) -> list[str]:
    """The admins, but for one, who can still act: with a key in force, or never with a key."""
    keys = all_keys(rows)
    able = {key.principal for key in keys if key.revoked_seq is None}
    had = {key.principal for key in keys}
    admins = [p.name for p in Principals(rows).all() if p.may("admin") and p.name != but]
    return [name for name in admins if name in able or name not in had]


def who_may(rows: Reads, role: str) -> list[str]:
    """Everybody who may act in a role."""
    named = [
        f"{principal.name} ({role if role in principal.roles else 'admin'})"
        for principal in Principals(rows).all()
        if principal.may(role)
    ]
    return named or [f"nobody: no principal has the role {role}"]
