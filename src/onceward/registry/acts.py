"""What may be asked of the registry: a plan applied or rolled back, each under a grant."""

from __future__ import annotations

from typing import Any

from onceward.core.acts import work
from onceward.core.canon import digest
from onceward.core.orders import Order
from onceward.grants.acts import DIGESTS
from onceward.registry.machine import schema_digest
from onceward.registry.rules import require_plan


def _digests_of_plan(about: Any) -> tuple[str, str]:
    plan = require_plan(about["plan"])
    return plan.manifest_digest, plan.schema_digest


def _digests_of_rollback(about: Any) -> tuple[str, str]:
    return digest(about["plan"]), schema_digest(about["plan"]["collection"])


DIGESTS["assembly"] = _digests_of_plan
DIGESTS["rollback"] = _digests_of_rollback


class ApplyPlan(Order, frozen=True):
    plan: dict[str, Any]
    grant: str


work(
    "registry.apply",
    ApplyPlan,
    role="operator",
    path="/registry/apply",
    operation="applyPlan",
    summary="apply a registry plan",
)
work(
    "registry.rollback",
    ApplyPlan,
    role="operator",
    path="/registry/rollback",
    operation="rollBack",
    summary="run a rollback plan",
)
