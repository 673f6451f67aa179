"""Every machine there is, for whoever shows them."""

from __future__ import annotations

from typing import Final

from onceward.core.machine import Machine
from onceward.lifecycles import build, change, child, permit, registry, saga

MACHINES: Final[tuple[Machine, ...]] = (
    *(build.BUILD, child.CHILD, saga.SAGA, permit.GRANT, registry.COLLECTION, registry.VALUE),
    *(change.CHANGE, change.CHANGE_SET),
)
