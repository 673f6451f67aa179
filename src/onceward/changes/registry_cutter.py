"""A change of the registry: the approved plan, executed by the assembly saga under its own grant (S-2, H-5)."""

from __future__ import annotations

from onceward.changes import rules
from onceward.changes.cutters import Listing, PriorState
from onceward.changes.manifest import Manifest
from onceward.core.canon import parse
from onceward.grants import lifecycle as grants
from onceward.kernel.kernel import Kernel
from onceward.people.actor import Actor
from onceward.registry import lifecycle as registry
from onceward.registry.assembly import Assembly
from onceward.registry.machine import RegistryPlan
from onceward.registry.rules import objections, require_plan
from onceward.sagas.lifecycle import Wanted, begin
from onceward.sagas.run import SagaRun
from onceward.store.tables.grants import Grants
from onceward.store.tables.registry import Registry
from onceward.store.tables.sagas import Runs


class RegistryCutter:
    """Admits the values of the plan with the cut, and retires them where it is undone."""

    module = __file__

    def __init__(
        self,
        kernel: Kernel,
        actor: Actor,
        manifest: Manifest,
        change_set_id: str,
        grant: str | None,
    ) -> None:
        self._kernel, self._actor, self._grant = kernel, actor, grant
        self._plan = plan_in(kernel, manifest)
        self._root = root_of(change_set_id)

    def check(self) -> None:
        with self._kernel.store.read() as rows:
            against = objections(self._plan, Registry(rows), self._root)
            if Runs(rows).of_root(self._root) is None:
                rules.require_unopposed(against)
            self._granted()

    def keep(self) -> PriorState:
        return PriorState({}, Listing())

    def stage(self) -> None:
        """The assembly saga stages by itself."""

    def apply(self) -> None:
        kernel = self._kernel
        assembly = Assembly(self._plan, kernel.environment)
        grant = self._granted()
        run, lease = begin(
            kernel,
            self._actor,
            Wanted(
                assembly,
                self._root,
                assembly.given(),
                executor=self._actor.principal,
                environment=kernel.environment,
                grant_id=grant,
            ),
        )
        if not run.over and run.stuck is None:
            carrying = SagaRun(kernel, self._actor, assembly, run.saga_id, lease, lambda said: None)
            try:
                run = carrying.run()
            finally:
                carrying.children.close()
        rules.require_carried_out(self._plan.ref, run)

    def restore(self) -> list[str]:
        kernel = self._kernel
        return kernel.store.write(
            lambda tx: registry.undo_values(tx, self._root, self._actor.principal)
        )

    def clear(self) -> None:
        """There is nothing beside it."""

    def _granted(self) -> str:
        """The grant for exactly this plan: a valid one, or the one that this change used."""
        kernel = self._kernel
        with kernel.store.read() as rows:
            run = Runs(rows).of_root(self._root)
            if run is not None and run.grant_id is not None:
                return run.grant_id
            grant = Grants(rows).named(rules.require_grant(self._grant))
            scope = Assembly(self._plan, kernel.environment).scope(
                None, kernel.environment, self._actor.principal
            )
            grants.require(rows, kernel.authority, grant.grant_id, scope, self._actor.principal)
            return grant.grant_id


def root_of(change_set_id: str) -> str:
    """The root of a change set's run in the registry."""
    return f"registry:{change_set_id}"


def plan_in(kernel: Kernel, manifest: Manifest) -> RegistryPlan:
    """The plan that was approved, from its own bytes."""
    (unit,) = manifest.unit
    data = b"".join(kernel.artifacts.read(unit.after or ""))
    return require_plan(parse(data))
