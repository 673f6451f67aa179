"""The short verbs every kernel takes from other processes: each one transaction, each with the role it needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from onceward.engine import principals
from onceward.errors import InvalidConfig
from onceward.locks.claims import check_target
from onceward.store.tables.outbox import backlogs, make_due
from onceward.store.transaction import Transaction

T = TypeVar("T")


class Verb(msgspec.Struct, frozen=True):
    """What may be asked: who may ask it and what it does, inside the answer's own transaction."""

    role: str
    run: Callable[[Transaction, str, Any], Any]


class AddPrincipal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    roles: list[str]


def _add_principal(tx: Transaction, actor: str, payload: Any) -> Any:
    asked = _convert(payload, AddPrincipal)
    principals.add(tx, asked.name, asked.roles, actor)
    found = tx.principals.find(asked.name)
    return {"name": asked.name, "roles": sorted(found.roles if found else ())}


def _flush_outbox(tx: Transaction, actor: str, payload: Any) -> Any:
    make_due(tx, tx.now)
    return {"due": sum(backlog.waiting for backlog in backlogs(tx))}


class ClearLock(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    target: str
    claim: dict[str, Any]


def _clear_lock(tx: Transaction, actor: str, payload: Any) -> Any:
    """Only the record of it: the claim is removed by the process that saw it, after this is durable."""
    asked = _convert(payload, ClearLock)
    check_target(asked.target)
    tx.append("workspace", "LOCK_CLEARED", actor, {"target": asked.target, "claim": asked.claim})
    return {"target": asked.target}


VERBS: dict[str, Verb] = {
    "principals.add": Verb("admin", _add_principal),
    "locks.clear": Verb("operator", _clear_lock),
    "outbox.flush": Verb("operator", _flush_outbox),
}


def _convert(payload: Any, kind: type[T]) -> T:
    try:
        return msgspec.convert(payload, kind)
    except msgspec.ValidationError as error:
        raise InvalidConfig(f"the request's payload does not fit: {error}", context={"field": "payload"}) from None
