"""Work that says which registered operation it is: looked up before anything of it is dispatched (S-7)."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from onceward.core.vocabulary import key_of
from onceward.dispatch import rules
from onceward.store.port import Reads
from onceward.store.tables.registry import Registry


class Named(msgspec.Struct, frozen=True):
    """A piece of work, the operation it says it is, and what it says it does."""

    what: str
    operation: str = ""
    effect: str = ""


def require(rows: Reads, works: Iterable[Named], required: bool) -> None:
    """Refuse the first that names no operation where it must, or one that is not in force, or of another act."""
    registry = Registry(rows)
    for work in works:
        rules.require_operation_named(work.what, work.operation, required)
        if work.operation:
            value = registry.value(key_of(work.operation))
            rules.require_operation_usable(work.what, work.operation, work.effect, value)
