"""What may be asked of the registry: a plan applied or rolled back, each under a grant."""

from __future__ import annotations

from typing import Any

from onceward.core.acts import work
from onceward.core.orders import Order


class ApplyPlan(Order, frozen=True):
    plan: dict[str, Any]
    grant: str


work(
    "registry.apply",
    ApplyPlan,
    role="operator",
    path="/registry/apply",
    operation="applyPlan",
    summary="apply a plan",
)
work(
    "registry.rollback",
    ApplyPlan,
    role="operator",
    path="/registry/rollback",
    operation="rollBack",
    summary="roll a plan back",
)
