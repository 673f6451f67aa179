"""Views of principals and keys."""

from __future__ import annotations

import base64

import msgspec

from onceward.core.views import View
from onceward.errors import NotFound, Recovery
from onceward.people.duties import unseparated
from onceward.people.keyring import Keyring, inside_child
from onceward.store.store import Store
from onceward.store.tables.keys import KeyRow, all_keys, keys_named, keys_of, workspace_id
from onceward.store.tables.principals import Principals


class PrincipalView(View, frozen=True, kw_only=True):
    """Somebody who may act here, and as what."""

    name: str
    roles: list[str]
    key: str | None = None
    """The newest key that is in force."""


class KeyView(View, frozen=True, kw_only=True):
    """A key that was ever in force here."""

    key: str
    principal: str
    added_seq: int
    here: bool
    """Whether its file is on this machine."""
    revoked_seq: int | None = None

    @property
    def in_force(self) -> bool:
        return self.revoked_seq is None


class KeyDetail(KeyView, frozen=True, kw_only=True):
    """A key with its public part and what an admin elsewhere needs to accept it."""

    state: str
    public: str
    offer: str
    workspace: str
    file: str | None = None


def principal_list(store: Store) -> list[PrincipalView]:
    """Everybody, with the newest key that is in force."""
    with store.read() as rows:
        keys = {key.principal: key.fingerprint for key in all_keys(rows) if key.revoked_seq is None}
        found = Principals(rows).all()
    return [
        PrincipalView(
            name=principal.name, roles=sorted(principal.roles), key=keys.get(principal.name)
        )
        for principal in found
    ]


def principal_named(store: Store, name: str) -> PrincipalView:
    for found in principal_list(store):
        if found.name == name:
            return found
    raise NotFound(
        f"there is no principal {name[:80]!a}",
        recovery=[Recovery("see who there is", "onceward principals list")],
    )


def duties_left(store: Store) -> str:
    """Which duties are not separated, in words; empty where each could be somebody else's."""
    with store.read() as rows:
        duties, people = unseparated({p.name: p.roles for p in Principals(rows).all()})
    if not duties:
        return ""
    who = f"only {' and '.join(people)} may" if people else "nobody may"
    return (
        f"Not separated yet: {who} act as {', '.join(duties[:-1])} and {duties[-1]}."
        f" Somebody else may with: onceward principals add NAME --role {duties[-1]}"
    )


class KeyStanding(msgspec.Struct, frozen=True):
    """Whether a principal ever had a key, and whether it can act here."""

    workspace: str
    known: bool
    able: bool


def standing_of(store: Store, keyring: Keyring, principal: str) -> KeyStanding:
    with store.read() as rows:
        inside = keyring.child_around(rows)
        if inside:
            raise inside_child(principal, inside)
        here = Principals(rows).find(principal) is not None
        keys = keys_of(rows, principal)
        able = here and any(k.revoked_seq is None and keyring.has(k.fingerprint) for k in keys)
        return KeyStanding(workspace_id(rows), bool(keys), able)


def own_key_files(store: Store, keyring: Keyring, principal: str) -> list[str]:
    """The keys in force of a principal whose files are here; for nobody inside a child."""
    with store.read() as rows:
        inside = keyring.child_around(rows)
        if inside:
            raise inside_child(principal, inside)
        return [
            key.fingerprint
            for key in keys_of(rows, principal)
            if key.revoked_seq is None and keyring.has(key.fingerprint)
        ]


def key_list(store: Store, keyring: Keyring) -> list[KeyView]:
    """Every key that was ever in force here."""
    with store.read() as rows:
        return [
            KeyView(
                key=key.fingerprint,
                principal=key.principal,
                added_seq=key.added_seq,
                here=keyring.has(key.fingerprint),
                revoked_seq=key.revoked_seq,
            )
            for key in all_keys(rows)
        ]


def key_shown(store: Store, keyring: Keyring, principal: str, prefix: str | None) -> KeyDetail:
    """The one key that begins so, or the newest of a principal."""
    with store.read() as rows:
        found = keys_named(rows, prefix.lower()) if prefix else keys_of(rows, principal)[-1:]
        workspace = workspace_id(rows)
    if len(found) != 1:
        problem = (
            f"more than one key begins with {prefix}"
            if found
            else f"there is no key {prefix or f'of {principal} yet'}"
        )
        raise NotFound(
            problem,
            recovery=[
                Recovery("see which there are", "onceward keys list"),
                Recovery("make one", "onceward keys new"),
            ],
        )
    return _detail(found[0], keyring, workspace)


def _detail(key: KeyRow, keyring: Keyring, workspace: str) -> KeyDetail:
    here = keyring.has(key.fingerprint)
    return KeyDetail(
        key=key.fingerprint,
        principal=key.principal,
        added_seq=key.added_seq,
        here=here,
        revoked_seq=key.revoked_seq,
        state="in force" if key.revoked_seq is None else "revoked",
        public=base64.b64encode(key.public_key).decode(),
        offer=f"ed25519:{key.public_key.hex()}:{key.proof.hex()}",
        workspace=workspace,
        file=str(keyring.path_of(key.fingerprint)) if here else None,
    )
