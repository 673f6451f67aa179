"""Plans for the registry as jobs: applied or rolled back under a grant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onceward.kernel.jobs import Job, Taking, begins
from onceward.registry.acts import ApplyPlan
from onceward.registry.assembly import Assembly, Rollback, Shipped, shipped
from onceward.registry.machine import schema_digest
from onceward.registry.rules import require_plan, require_rollback_plan
from onceward.sagas.jobs import SHIPPED, SagaJob, accept_run
from onceward.sagas.lifecycle import Wanted, begin
from onceward.store.port import Reads
from onceward.store.tables.grants import Grants
from onceward.store.tables.sagas import Runs

SHIPPED.append(shipped)


@begins(ApplyPlan)
def apply_for(taking: Taking, order: ApplyPlan) -> Job:
    """A plan to apply or to roll back, for whoever asked."""
    kernel = taking.kernel
    make = to_apply if taking.verb == "registry.apply" else to_roll_back
    saga = make(order.plan, kernel.environment)
    with kernel.store.read() as rows:
        grant, root = root_under(rows, saga, order.grant)
    wanted = Wanted(
        saga=saga,
        root=root,
        given=saga.given(),
        executor=taking.actor.principal,
        environment=kernel.environment,
        grant_id=grant,
    )
    run, lease = begin(kernel, taking.actor, wanted, accept=accept_run(taking))
    return SagaJob(kernel, taking.actor, saga, run, lease)


def to_apply(words: Mapping[str, Any], environment: str) -> Assembly:
    return Assembly(require_plan(words), environment)


def to_roll_back(words: Mapping[str, Any], environment: str) -> Rollback:
    plan = require_rollback_plan(words)
    return Rollback(plan, schema_digest(plan.collection), environment)


def root_under(rows: Reads, saga: Shipped, prefix: str) -> tuple[str, str]:
    """The whole id of a grant, and the root of the run of a plan under it: the one that used it, or the next. The same
    plan under the same grant is the same run; one that ended before it used the grant is past, and the grant is still
    good for another."""
    granted = Grants(rows).named(prefix)
    grant, used = granted.grant_id, granted.consumed_by_root or ""
    root, attempt = saga.root(grant), 1
    if used == root or used.startswith(f"{root}#"):
        root = used
    while not used and (known := Runs(rows).of_root(root)) is not None and known.over:
        attempt += 1
        root = f"{saga.root(grant)}#{attempt}"
    return grant, root
