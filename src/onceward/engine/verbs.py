"""The short verbs every kernel takes from other processes: each one transaction, each with the role it needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from onceward.engine import principals
from onceward.errors import InvalidConfig
from onceward.store.tables.outbox import backlogs, make_due
from onceward.store.transaction import Transaction


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


VERBS: dict[str, Verb] = {
    "principals.add": Verb("admin", _add_principal),
    "outbox.flush": Verb("operator", _flush_outbox),
}


def _convert(payload: Any, kind: type[AddPrincipal]) -> AddPrincipal:
    try:
        return msgspec.convert(payload, kind)
    except msgspec.ValidationError as error:
        raise InvalidConfig(f"the request's payload does not fit: {error}", context={"field": "payload"}) from None
