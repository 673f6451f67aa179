"""What the ways in may look at without holding the writer lock."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from onceward.core.chain import STREAM, check_stream
from onceward.core.limits import FOLLOW_SECONDS
from onceward.core.records import Token
from onceward.core.sources import iso
from onceward.engine import child_budget
from onceward.engine.child_dispatch import exported
from onceward.errors import NotFound, Recovery
from onceward.lifecycles.budget import Lane
from onceward.lifecycles.duties import unseparated
from onceward.people.keyring import Keyring, inside_child
from onceward.store.port import Reads
from onceward.store.store import Store
from onceward.store.tables.artifacts import Link, Ref, links_of, newest_refs, refs_of
from onceward.store.tables.budgets import lanes_of, spent_by
from onceward.store.tables.builds import Builds
from onceward.store.tables.changes import Changes
from onceward.store.tables.children import Sessions, Tokens, last_detail_of, resolve
from onceward.store.tables.events import events_of, streams
from onceward.store.tables.keys import Key, all_keys, keys_named, keys_of, workspace_id
from onceward.store.tables.outbox import backlogs
from onceward.store.tables.principals import Principals
from onceward.store.tables.sagas import Runs


def stream_list(store: Store) -> list[dict[str, Any]]:
    with store.read() as rows:
        return [{"stream": stream, "events": count} for stream, count in streams(rows)]


def stream_named(store: Store, name: str) -> str:
    """A stream's name, or the stream of the one session or child that an id means."""
    if STREAM.fullmatch(name):
        return name
    with store.read() as rows:
        sessions = Sessions(rows).named(name)
        if len(sessions) == 1:
            return f"session:{sessions[0]}"
        try:
            return f"child:{resolve(rows, name)[0]}"
        except NotFound:
            return check_stream(name)


def stream_lines(store: Store, stream: str, *, follow: bool = False) -> Iterator[bytes]:
    """A stream's `urm-events@1` lines in order; when following, for ever, those that come too."""
    check_stream(stream)
    after = 0
    while True:
        try:
            with store.read() as rows:
                for event in events_of(rows, stream, after):
                    after = event.seq
                    yield event.line()
        except NotFound:
            if not follow:
                raise
        if not follow:
            return
        time.sleep(FOLLOW_SECONDS)


def outbox_status(store: Store, sinks: Sequence[str]) -> list[dict[str, Any]]:
    """The backlog of every sink, configured or only remembered by rows that still wait for it."""
    with store.read() as rows:
        waiting = {backlog.sink: backlog for backlog in backlogs(rows)}
    status = []
    for name in (*sinks, *(name for name in waiting if name not in sinks)):
        backlog = waiting.get(name)
        entry: dict[str, Any] = {
            "sink": name,
            "configured": name in sinks,
            "waiting": backlog.waiting if backlog else 0,
            "parked": backlog.parked if backlog else 0,
        }
        if backlog and backlog.oldest_at is not None:
            entry["oldest"] = iso(backlog.oldest_at)
        if backlog and backlog.last_error:
            entry["last_error"] = backlog.last_error
        status.append(entry)
    return status


def principal_list(store: Store) -> list[dict[str, Any]]:
    """Everybody, with the newest key that is in force."""
    with store.read() as rows:
        keys = {key.principal: key.fingerprint for key in all_keys(rows) if key.revoked_seq is None}
        found = Principals(rows).all()
    return [
        {
            "name": p.name,
            "roles": sorted(p.roles),
            **({"key": keys[p.name]} if p.name in keys else {}),
        }
        for p in found
    ]


def principal_named(store: Store, name: str) -> dict[str, Any]:
    for found in principal_list(store):
        if found["name"] == name:
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
    """How a principal stands with its keys: whether it ever had one, and whether it can act here."""

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


def key_list(store: Store, keyring: Keyring) -> list[dict[str, Any]]:
    with store.read() as rows:
        return [_key(key, keyring) for key in all_keys(rows)]


def key_shown(store: Store, keyring: Keyring, principal: str, prefix: str | None) -> dict[str, Any]:
    """One key with its public part and, where its file is here, what an admin elsewhere needs to accept it."""
    with store.read() as rows:
        found = keys_named(rows, prefix.lower()) if prefix else keys_of(rows, principal)[-1:]
        workspace = workspace_id(rows)
    if len(found) != 1:
        raise NotFound(
            f"more than one key begins with {prefix}"
            if found
            else f"there is no key {prefix or f'of {principal} yet'}",
            recovery=[
                Recovery("see which there are", "onceward keys list"),
                Recovery("make one", "onceward keys new"),
            ],
        )
    key = found[0]
    public = base64.b64encode(key.public_key).decode()
    said = {
        **_key(key, keyring),
        "state": "in force" if key.revoked_seq is None else "revoked",
        "public": public,
    }
    said["offer"] = f"ed25519:{key.public_key.hex()}:{key.proof.hex()}"
    if keyring.has(key.fingerprint):
        said["file"] = str(keyring.path_of(key.fingerprint))
    return {**said, "workspace": workspace}


def _key(key: Key, keyring: Keyring) -> dict[str, Any]:
    said = {"key": key.fingerprint, "principal": key.principal, "added_seq": key.added_seq}
    if key.revoked_seq is not None:
        said["revoked_seq"] = key.revoked_seq
    return {**said, "here": keyring.has(key.fingerprint)}


def lane_list(store: Store, session_id: str) -> list[dict[str, Any]]:
    """What a session spent and may spend, by lane."""
    with store.read() as rows:
        found = lanes_of(rows, session_id)
    return [{"lane": lane, "limit": limit, "total": total} for lane, limit, total, *_ in found]


def session_named(store: Store, prefix: str) -> str:
    """The one session that an id or its beginning means."""
    with store.read() as rows:
        found = Sessions(rows).named(prefix)
    if len(found) == 1:
        return found[0]
    raise NotFound(
        f"more than one session begins with {prefix}" if found else f"there is no session {prefix}",
        context={"session_id": prefix},
        recovery=[
            Recovery("see which there are", "onceward status"),
            Recovery("open a new one of that id with --new"),
        ],
    )


def subject_named(store: Store, name: str) -> str:
    """The session of the build, saga or session that a name means, or a change; `latest` is the newest build,
    `change:latest` the newest change."""
    with store.read() as rows:
        if name == "change:latest":
            return Changes(rows).named("latest").entry_id
        if name.startswith("ent_"):
            return Changes(rows).named(name).entry_id
        saga = Runs(rows).of_root(name)
    if saga is not None:
        return saga.saga_id
    if name != "latest" and not name.startswith("bld_"):
        try:
            return session_named(store, name)
        except NotFound as error:
            error.recovery = (Recovery("see which there are", "onceward status"),)
            raise
    with store.read() as rows:
        return Builds(rows).named(name).build_id


def session_list(store: Store, limit: int = 50) -> list[dict[str, Any]]:
    """The newest sessions and how they stand."""
    with store.read() as rows:
        found = Sessions(rows).all(limit)
    return [
        {"session_id": s, "children": count, "open": left, "failed": failed, "created_at": iso(at)}
        for s, count, left, failed, at in found
    ]


def session_status(store: Store, subject: str) -> dict[str, Any]:
    """A session with its lanes and children, or the session of one child with that child alone."""
    with store.read() as rows:
        named = Sessions(rows).named(subject)
        session = Sessions(rows).find(named[0]) if len(named) == 1 else None
        if session is not None:
            tokens = list(Tokens(rows).of_session(session.session_id))
        else:
            tokens = [Tokens(rows).get(child_id) for child_id in resolve(rows, subject)]
            session = Sessions(rows).find(tokens[0].parent_session_id)
            assert session is not None
        lanes = child_budget.lanes(rows, session.session_id)
        children = [_child(rows, token, lanes) for token in tokens]
    return {
        "session_id": session.session_id,
        "max_active_children": session.max_active_children,
        "created_at": iso(session.created_at),
        "lanes": lane_list(store, session.session_id),
        "children": children,
    }


def _child(rows: Reads, token: Token, lanes: Mapping[str, Lane]) -> dict[str, Any]:
    spent = dict(spent_by(rows, token.child_id))
    said = {
        **exported(token),
        "kind": token.kind,
        "work": msgspec.json.decode(token.work),
        "target": token.target,
        "attempt": token.attempt,
        "predecessor": token.predecessor,
        "reason": token.reason,
        "code": token.code,
        "cancel_request_id": token.cancel_request_id,
        "joined_request_ids": msgspec.json.decode(token.joined_request_ids or "null"),
        "started_at": None if token.started_at is None else iso(token.started_at),
        "ended_at": iso(token.updated_at) if token.phase == "terminal" else None,
        "detail": _told(rows, token) if token.phase == "terminal" else None,
        "spent": spent,
        "budget": child_budget.snapshot(token, lanes, spent),
    }
    return {key: value for key, value in said.items() if value is not None}


def _told(rows: Reads, token: Token) -> dict[str, Any]:
    """What else its last event says: exit, message, note, processes it left."""
    wanted = (
        "exit",
        "message",
        "note",
        "strays",
        "unsure",
        "lane",
        "limit",
        "observed",
        "asked",
        "stopped",
    )
    said = last_detail_of(rows, token.child_id)
    return {key: said[key] for key in wanted if key in said}


def artifact_list(store: Store, owner: str | None, limit: int = 100) -> list[dict[str, Any]]:
    """An owner's artifacts, or the newest of all; of a build, with the step each belongs to."""
    found: Sequence[Ref]
    with store.read() as rows:
        sessions = [] if owner is None else Sessions(rows).named(owner)
        if owner is None:
            found = newest_refs(rows, limit)
        elif len(sessions) == 1 and Builds(rows).find(sessions[0]) is not None:
            found = links_of(rows, sessions[0])
        elif len(sessions) == 1:
            found = [
                ref
                for token in Tokens(rows).of_session(sessions[0])
                for ref in refs_of(rows, token.child_id)
            ]
        else:
            found = refs_of(rows, owner) or refs_of(rows, resolve(rows, owner)[0])
    return [
        {
            "owner": ref.owner,
            "name": ref.name,
            "kind": ref.kind,
            "sha256": ref.sha256,
            "size": ref.size,
            "created_at": iso(ref.created_at),
            **_step_of(ref),
        }
        for ref in found
    ]


def _step_of(ref: Ref) -> dict[str, str]:
    if not isinstance(ref, Link):
        return {}
    return {"build_id": ref.build_id, "stage": ref.stage, "target": ref.target}
