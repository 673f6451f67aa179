"""Every machine there is, for whoever shows them."""

from __future__ import annotations

from typing import Final

from onceward.builds import machine as build
from onceward.changes import machine as change
from onceward.core.machine import Machine
from onceward.dispatch import machine as child
from onceward.grants import machine as permit
from onceward.registry import machine as registry
from onceward.sagas import machine as saga

MACHINES: Final[tuple[Machine, ...]] = (
    *(build.BUILD, child.CHILD, saga.SAGA, permit.GRANT, registry.COLLECTION, registry.VALUE),
    *(change.CHANGE, change.CHANGE_SET),
)
