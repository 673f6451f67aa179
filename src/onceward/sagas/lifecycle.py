"""The transactions of a run: begun, resumed, retried, abandoned (S-1, S-3, S-4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from onceward.core.canon import digest
from onceward.core.grants import Scope
from onceward.core.records import check_name
from onceward.core.sagas import Lease, Run
from onceward.dispatch import operations, queue
from onceward.grants import lifecycle as grants
from onceward.kernel.kernel import Kernel
from onceward.people.actor import Actor
from onceward.sagas import machine, rules
from onceward.sagas.declaration import Saga, given_text
from onceward.sagas.run import reserve
from onceward.store.port import Reads
from onceward.store.tables.children import Tokens
from onceward.store.tables.sagas import Runs, find_lease, release_lease
from onceward.store.transaction import Transaction


class Wanted:
    """The run that somebody wants: a saga, its root, its input and its grant."""

    def __init__(
        self,
        saga: Saga,
        root: str,
        given: Any,
        executor: str,
        environment: str,
        grant_id: str | None = None,
    ) -> None:
        self.saga, self.root, self.given = saga, check_name(root, "root"), given
        self.text = given_text(given)
        self.environment = environment
        self.scope: Scope | None = (
            saga.scope(given, environment, executor) if grant_id or saga.granted else None
        )
        self.grant_id = grant_id
        rules.require_grant(saga.name, saga.granted, grant_id)

    def digests(self) -> dict[str, str]:
        if self.scope is not None:
            return {
                "manifest_digest": self.scope.manifest_digest,
                "schema_digest": self.scope.schema_digest,
            }
        return {"manifest_digest": digest(self.given), "schema_digest": self.saga.shape.digest()}


def begin(
    kernel: Kernel,
    actor: Actor,
    wanted: Wanted,
    file: str = "",
    limits: Mapping[str, int] | None = None,
    accept: Callable[[Transaction, Run], None] = lambda tx, run: None,
) -> tuple[Run, Lease | None]:
    """Begin the run of a root, or resume the one there is. The lease is taken, the grant is used and `accept` is
    called in the same transaction."""
    kernel.require(wanted.saga.role, actor)
    saga, principal = wanted.saga, actor.principal
    fresh = kernel.store.sources.new_id("sga")
    lanes = {**saga.limits, **(limits or {})}

    def work(tx: Transaction) -> tuple[Run, Lease | None]:
        run = Runs(tx).of_root(wanted.root)
        if run is not None:
            _require_same(run, wanted)
            accept(tx, run)
            return _enter(
                tx, kernel, actor, run, saga, limits=limits or {}, environment=wanted.environment
            )
        grants.expire(tx, principal)
        require_operations(tx, saga, kernel.registered)
        tx.move(
            machine.create(
                fresh,
                saga.shape,
                wanted.root,
                principal,
                given=wanted.text,
                file=file,
                grant_id=wanted.grant_id,
                lease=saga.lease(wanted.root),
                digests=wanted.digests(),
            )
        )
        queue.open_(tx, fresh, 1, lanes, principal)
        run = Runs(tx).get(fresh)
        lease = None if saga.reserves else reserve(tx, kernel, actor, run, wanted.scope)
        accept(tx, run)
        return Runs(tx).get(fresh), lease

    return kernel.store.write(work)


def take_up(
    kernel: Kernel,
    actor: Actor,
    saga: Saga,
    saga_id: str,
    environment: str,
    limits: Mapping[str, int] | None = None,
    *,
    retry: bool = False,
    accept: Callable[[Transaction, Run], None] = lambda tx, run: None,
) -> tuple[Run, Lease | None]:
    """Resume a run whose kernel died, or retry the compensation at which it is stuck; `accept` is called in the
    same transaction."""
    kernel.require(saga.role, actor)

    def work(tx: Transaction) -> tuple[Run, Lease | None]:
        run = Runs(tx).get(saga_id)
        _require_shape(run, saga)
        rules.require_unfinished(run)
        if retry:
            rules.require_stuck(run)
            tx.move(machine.retry(run, actor.principal))
        else:
            rules.require_not_stuck(run)
        accept(tx, run)
        run = Runs(tx).get(saga_id)
        return _enter(tx, kernel, actor, run, saga, limits=limits or {}, environment=environment)

    return kernel.store.write(work)


def _enter(
    tx: Transaction,
    kernel: Kernel,
    actor: Actor,
    run: Run,
    saga: Saga,
    *,
    limits: Mapping[str, int],
    environment: str,
) -> tuple[Run, Lease | None]:
    """Take the lease with a new epoch, under the same root. A saga that reserves by an action of its own takes it
    there."""
    if run.over or run.stuck is not None:
        return run, None
    if run.grant_id is not None:
        scope = saga.scope(machine.given_of(run), environment, actor.principal)
        grants.require_again(tx, kernel.authority, run.grant_id, scope, run.idempotency_root)
    queue.open_(tx, run.saga_id, 1, limits, actor.principal)
    if saga.reserves and run.lease_fence == 0:
        return run, None
    lease = reserve(tx, kernel, actor, run, None)
    return Runs(tx).get(run.saga_id), lease


def require_operations(rows: Reads, saga: Saga, required: bool) -> None:
    """Check that every action is the operation it names, before any is dispatched (S-7); shipped sagas need no
    operation."""
    named = [
        operations.Named(f"action {n}", a.do.operation, a.do.effect)
        for n, a in saga.actions.items()
    ]
    operations.require(rows, named, required and not saga.reserves)


def _require_same(run: Run, wanted: Wanted) -> None:
    """Check that the run of a root is of the same saga, with the same input, under the same grant."""
    rules.require_same_run(
        run,
        saga=wanted.saga.name,
        text=wanted.text,
        grant_id=wanted.grant_id,
        root=wanted.root,
    )
    _require_shape(run, wanted.saga)


def _require_shape(run: Run, saga: Saga) -> None:
    rules.require_same_shape(run, saga.shape, list(saga.actions))


def abandon(tx: Transaction, actor: str, name: str, request_id: str) -> dict[str, Any]:
    """Abandon a run. A run on its way stops where it is, and what it did is undone; a run at its stop is settled as
    it is."""
    run = Runs(tx).named(name)
    rules.require_unfinished(run)
    working = [token.child_id for token in Tokens(tx).open_in(run.saga_id)]
    if machine.shape_of(run).place(run.state) is not None:
        tx.move(
            machine.stop(
                run, "abandoned", actor, {"reason": "abandoned", "message": f"{actor} gave it up"}
            )
        )
    else:
        lease = find_lease(tx, run.lease)
        if lease is not None and lease.holder == run.idempotency_root:
            release_lease(tx, lease.name, lease.holder, lease.token)
            tx.append(
                f"saga:{run.saga_id}",
                "LEASE_RELEASED",
                actor,
                {"lease": lease.name, "epoch": lease.fence},
            )
        tx.move(
            machine.settle(run, actor, {"not_undone": list(machine.remaining(run))}, given_up=True)
        )
    for child_id in working:
        queue.cancel(tx, child_id, request_id, actor)
    now = Runs(tx).get(run.saga_id)
    said = {
        "saga_id": now.saga_id,
        "state": now.state,
        "settled": bool(now.settled),
        "at_work": bool(working),
    }
    return {**said, "undo": machine.pending(now), "not_undone": list(machine.remaining(now))}
