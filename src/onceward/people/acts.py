"""The acts on principals, their keys and their tokens."""

from __future__ import annotations

from typing import Any

import msgspec

from onceward.core.acts import Agrees, Payload, SignedEvent, act, all_of, says
from onceward.core.limits import MAX_NOTE_CHARS
from onceward.people import principals, tokens
from onceward.store.port import Reads
from onceward.store.tables.keys import keys_named
from onceward.store.transaction import Transaction


def _roles_agree(claim: SignedEvent, payload: Payload) -> bool:
    return set(claim.detail["roles"] or ()) <= set(payload["roles"])


def _key_agrees(claim: SignedEvent, payload: Payload) -> bool:
    return bool(claim.detail["public"] in payload["key"])


def _own_key(claim: SignedEvent, payload: Payload) -> bool:
    """Who adds a key adds it for themselves."""
    return bool(claim.detail["principal"] == claim.actor)


def _own_token(claim: SignedEvent, payload: Payload) -> bool:
    """A token lets act who made it, for what they said."""
    return (claim.detail["principal"], claim.detail["note"]) == (
        claim.actor,
        payload.get("note", "")[:MAX_NOTE_CHARS],
    )


_NAMED_ROLES: Agrees = all_of(says("name", "principal"), _roles_agree)


def _whole_key(rows: Reads, name: str) -> str:
    found = keys_named(rows, name)
    return found[0].fingerprint if len(found) == 1 else name


class AddPrincipal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    roles: list[str]
    key: str = ""
    """What `keys show` printed for its owner."""


@act(
    "principals.add",
    role="admin",
    makes={"PRINCIPAL_ADDED": _NAMED_ROLES},
    may_make={"KEY_ADDED": all_of(says("name", "principal"), _key_agrees)},
    path="/principals",
    operation="addPrincipal",
    summary="add a principal, or give it roles or a key",
)
def add_principal(tx: Transaction, actor: str, asked: AddPrincipal) -> dict[str, Any]:
    principals.add(tx, name=asked.name, roles=asked.roles, by=actor, offer=asked.key)
    return _principal(tx, asked.name)


class TakeRoles(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    roles: list[str]


@act(
    "principals.take",
    role="admin",
    once=True,
    makes={"ROLES_TAKEN": _NAMED_ROLES},
    path="/principals/{name}/take",
    operation="takeRoles",
    summary="remove roles from a principal",
)
def take_roles(tx: Transaction, actor: str, asked: TakeRoles) -> dict[str, Any]:
    principals.take_roles(tx, asked.name, asked.roles, actor)
    return _principal(tx, asked.name)


def _principal(tx: Transaction, name: str) -> dict[str, Any]:
    found = tx.principals.find(name)
    return {"name": name, "roles": sorted(found.roles if found else ())}


class AddKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: str


@act(
    "keys.add",
    role="",
    once=True,
    may_make={"KEY_ADDED": all_of(_own_key, _key_agrees)},
    path="/keys",
    operation="addKey",
    summary="add a key of your own",
)
def add_key(tx: Transaction, actor: str, asked: AddKey) -> dict[str, Any]:
    public, proof = principals.read_offer(asked.key)
    return {
        "principal": actor,
        "key": principals.add_key(tx, principal=actor, public=public, proof=proof, by=actor),
    }


class RevokeKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: str
    reason: str = ""


@act(
    "keys.revoke",
    role="",
    once=True,
    ids={"key": _whole_key},
    makes={"KEY_REVOKED": says("key")},
    path="/keys/{key}/revoke",
    operation="revokeKey",
    summary="revoke a key",
)
def revoke_key(tx: Transaction, actor: str, asked: RevokeKey) -> Any:
    return principals.revoke(tx, asked.key, asked.reason[:MAX_NOTE_CHARS], actor)


class NewToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    token_hash: str
    seconds: int
    note: str = ""


@act(
    "tokens.new",
    role="",
    once=True,
    makes={"TOKEN_MADE": all_of(says("token_hash"), _own_token)},
    path="/tokens",
    operation="newToken",
    summary="register an access token of your own by its hash",
)
def new_token(tx: Transaction, actor: str, asked: NewToken) -> dict[str, Any]:
    note = asked.note[:MAX_NOTE_CHARS]
    return tokens.make(
        tx, actor=actor, token_hash=asked.token_hash, seconds=asked.seconds, note=note
    )


class RevokeToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    token: str


@act(
    "tokens.revoke",
    role="",
    once=True,
    makes={"TOKEN_REVOKED": says("token", "token_id")},
    path="/tokens/{token}/revoke",
    operation="revokeToken",
    summary="revoke an access token",
)
def revoke_token(tx: Transaction, actor: str, asked: RevokeToken) -> dict[str, Any]:
    return tokens.revoke(tx, actor, asked.token)
