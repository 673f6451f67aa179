"""Cutting and verifying a change as jobs."""

from __future__ import annotations

import threading
from collections.abc import Callable

from onceward.changes.acts import CutChange, VerifyChange
from onceward.changes.cut import cut, own_code, require_cuttable
from onceward.changes.outcome import carried_out, checked, require_commit
from onceward.changes.verify import require_verifiable, verify
from onceward.core.orders import seconds_of
from onceward.kernel.answers import Subject
from onceward.kernel.jobs import Job, Taking, begins
from onceward.store.tables.changes import Changes


class ChangeJob:
    """An entry that is to be cut, or verified."""

    over = False

    def __init__(self, subject: Subject, work: Callable[[threading.Event], object]) -> None:
        self.subject, self._work = subject, work

    def run(self, stop: threading.Event) -> None:
        """Until it is done or taken back."""
        self._work(stop)


@begins(CutChange)
def cut_for(taking: Taking, order: CutChange) -> Job:
    """Cut an approved entry as a job."""
    kernel = taking.kernel
    _probe_place(taking, order.entry)
    entry_id = require_cuttable(kernel, taking.actor, order.entry, order.grant)
    if order.commit:
        require_commit(kernel, entry_id)

    def work(stop: threading.Event) -> None:
        carried_out(
            kernel, cut(kernel, taking.actor, entry_id, order.grant, stop=stop), order.commit
        )

    return ChangeJob(taking.accept_now({"entry_id": entry_id}), work)


@begins(VerifyChange)
def verify_for(taking: Taking, order: VerifyChange) -> Job:
    """Verify a cut as a job."""
    kernel = taking.kernel
    with kernel.store.read() as rows:
        entry_id = Changes(rows).named(order.entry).entry_id
    _probe_place(taking, entry_id)
    require_verifiable(kernel, taking.actor, entry_id, order.accept_drift)
    result_id, timeout = f"vrf_{taking.ident}", seconds_of(order.timeout, "timeout")

    def work(stop: threading.Event) -> None:
        done = verify(
            kernel,
            taking.actor,
            entry_id,
            again=order.again,
            timeout=timeout,
            stop=stop,
            result_id=result_id,
            accept_drift=order.accept_drift,
        )
        checked(kernel, done, order.commit)

    return ChangeJob(taking.accept_now({"entry_id": entry_id}), work)


def _probe_place(taking: Taking, name: str) -> None:
    """A user's own place is code too, and is imported in a process of its own first."""
    kernel = taking.kernel
    with kernel.store.read() as rows:
        entry_id = Changes(rows).named(name).entry_id
    code = own_code(kernel, entry_id)
    if code:
        taking.host.loader.probe_name(code, kernel.home)
