"""Runs of sagas as jobs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from onceward.core.sagas import Lease, Run
from onceward.dispatch.budget import limits_of_budget
from onceward.kernel.answers import Subject
from onceward.kernel.jobs import Job, Taking, begins
from onceward.kernel.kernel import Kernel
from onceward.people.actor import Actor
from onceward.sagas import rules
from onceward.sagas.acts import ResumeSaga, RunSaga
from onceward.sagas.declaration import Saga
from onceward.sagas.lifecycle import Wanted, begin, take_up
from onceward.sagas.run import SagaRun, Told, run_saga
from onceward.store.tables.grants import Grants
from onceward.store.tables.sagas import Runs
from onceward.store.transaction import Transaction

SHIPPED: list[Callable[[Run], Saga | None]] = []
"""Which saga of ours a run is of, where it is of one; filled by whoever ships sagas."""


class SagaJob:
    """A run that was begun or taken up."""

    def __init__(
        self,
        kernel: Kernel,
        actor: Actor,
        saga: Saga,
        run: Run,
        lease: Lease | None,
        told: Told = lambda said: None,
    ) -> None:
        self.kernel, self.actor, self.saga = kernel, actor, saga
        self.found, self._lease = run, lease
        self.told = told

    @property
    def subject(self) -> Subject:
        return subject_of(self.found)

    @property
    def over(self) -> bool:
        return self.found.over or self.found.stuck is not None

    def run(self, stop: threading.Event) -> None:
        """Until it is done, stopped or stuck."""
        if not self.over:
            carrying = SagaRun(
                self.kernel, self.actor, self.saga, self.found.saga_id, self._lease, self.told
            )
            run_saga(self.kernel, carrying, stop)


@begins(RunSaga)
def run_for(taking: Taking, order: RunSaga) -> Job:
    """The run of a root as a job."""
    kernel = taking.kernel
    saga = taking.host.loader.saga(taking.host.inside(order.file))
    wanted = Wanted(
        saga=saga,
        root=order.root or f"root_{taking.ident}",
        given=order.input,
        executor=taking.actor.principal,
        environment=kernel.environment,
        grant_id=_whole_grant(kernel, order.grant) if order.grant else None,
    )
    place = kernel.recorded_place(saga.file)
    run, lease = begin(
        kernel,
        taking.actor,
        wanted,
        place,
        limits_of_budget(order.budget),
        accept=accept_run(taking),
    )
    return SagaJob(kernel, taking.actor, saga, run, lease)


@begins(ResumeSaga)
def resume_for(taking: Taking, order: ResumeSaga) -> Job:
    """A run that is resumed as a job."""
    kernel = taking.kernel
    with kernel.store.read() as rows:
        known = Runs(rows).named(order.saga)
    saga = shipped_saga(known) or taking.host.loader.saga(saga_file_of(known, kernel.home))
    run, lease = take_up(
        kernel,
        taking.actor,
        saga,
        known.saga_id,
        kernel.environment,
        limits_of_budget(order.budget),
        retry=order.retry,
        accept=accept_run(taking),
    )
    return SagaJob(kernel, taking.actor, saga, run, lease)


def shipped_saga(run: Run) -> Saga | None:
    """The saga of a run, where Onceward ships it."""
    return next((saga for find in SHIPPED if (saga := find(run)) is not None), None)


def saga_file_of(known: Run, home: Path, file: Path | None = None) -> Path:
    """The file that the saga of a run was read from, or the one that is named instead."""
    file = file or home / known.file
    rules.require_saga_file(known, file.is_file())
    return file


def subject_of(run: Run) -> Subject:
    return {"saga_id": run.saga_id, "root": run.idempotency_root}


def accept_run(taking: Taking) -> Callable[[Transaction, Run], None]:
    return lambda tx, run: taking.accept(tx, subject_of(run))


def _whole_grant(kernel: Kernel, prefix: str) -> str:
    with kernel.store.read() as rows:
        return Grants(rows).named(prefix).grant_id
