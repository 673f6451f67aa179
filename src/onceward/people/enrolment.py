"""A new principal comes with a key, in the same signed act as its first role: nobody gets one by
being the first to act under a name."""

from __future__ import annotations

from typing import Any

import msgspec

from onceward.core.records import Request, check_name
from onceward.errors import OncewardError
from onceward.people import statements
from onceward.people.keyring import Keyring
from onceward.store.port import Reads
from onceward.store.tables.keys import keys_of, workspace_id
from onceward.store.tables.requests import Requests


def to_sign(rows: Reads, keyring: Keyring, request: Request) -> Request:
    """A request as it gets signed: with whole ids, and with a key for somebody new."""
    return _enrolling(rows, keyring, statements.named(rows, request))


def _enrolling(rows: Reads, keyring: Keyring, request: Request) -> Request:
    """Whoever adds a principal that has no key brings one: its owner's, or, if they bring none,
    one that is made here. Asked again it is the same."""
    payload = request.payload
    if request.verb != "principals.add" or not isinstance(payload, dict) or payload.get("key"):
        return request
    asked = Requests(rows).under(request.verb, request.request_id)
    key = asked.request.payload.get("key") if asked is not None else _new(rows, keyring, payload)
    if not key:
        return request
    return msgspec.structs.replace(request, payload={**payload, "key": key})


def _new(rows: Reads, keyring: Keyring, payload: dict[str, Any]) -> str:
    name = payload.get("name")
    if not isinstance(name, str) or keys_of(rows, name):
        return ""
    try:
        check_name(name, "principal")
    except OncewardError:
        # Whoever answers the request says so.
        return ""
    return keyring.make(name, workspace_id(rows)).offer()
