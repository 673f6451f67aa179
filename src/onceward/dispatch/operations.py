"""Work that says which registered operation it is: looked up before anything of it is dispatched (S-7)."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from onceward.core.vocabulary import key_of
from onceward.errors import OperationAbsent, OperationRetired, Recovery, WrongOperation
from onceward.store.port import Reads
from onceward.store.tables.registry import Registry

_SEE = (Recovery("see which there are", "onceward registry list"),)


class Named(msgspec.Struct, frozen=True):
    """A piece of work, the operation it says it is, and what it says it does."""

    what: str
    operation: str = ""
    effect: str = ""


def require(rows: Reads, works: Iterable[Named], required: bool) -> None:
    """Refuse the first that names no operation where it must, or one that is not in force, or of another act."""
    registry = Registry(rows)
    for work in works:
        context = {"work": work.what, "operation": work.operation}
        if not work.operation:
            if required:
                raise OperationAbsent(
                    f"{work.what} names no operation (as in code@1.0.0), and this workspace requires one",
                    context=context,
                    recovery=_SEE,
                )
            continue
        value = registry.value(key_of(work.operation))
        if value is None:
            raise OperationAbsent(
                f"{work.what} names {work.operation}, which is not in the registry",
                context=context,
                recovery=_SEE,
            )
        if value.status != "active":
            after = f"; {value.successor} follows it" if value.successor else ""
            raise OperationRetired(
                f"{work.what} names {work.operation}, which is {value.status}{after}",
                context=context,
                recovery=_SEE,
            )
        if work.effect and work.effect != value.act_type:
            raise WrongOperation(
                f"{work.what} does {work.effect}, but {work.operation} is for {value.act_type}",
                context={**context, "effect": work.effect, "act_type": value.act_type},
            )
