"""Runs of sagas as rows, what their actions left, and the leases they work under (S-1, S-4)."""

from __future__ import annotations

from typing import Final

from onceward.core.limits import LEASE_SECONDS
from onceward.core.sagas import Lease, Run, SagaStep
from onceward.core.sources import Micros
from onceward.errors import NotFound, Recovery
from onceward.store.port import Reads, Writes
from onceward.store.table import WHOLE_TABLE, Lifecycle, Table

RUNS: Final = Table(
    Run,
    "saga_runs",
    key=("saga_id",),
    bundle="sagas.ndjson",
    bundled_with="saga",
    lifecycle=Lifecycle(machine="saga", state="state", stream="saga"),
)
STEPS: Final = Table(
    SagaStep,
    "saga_steps",
    key=("saga_id", "step", "side"),
    bundle="saga_steps.ndjson",
    bundled_with="saga",
)
RUN_LEASES: Final = Table(
    Lease,
    "run_leases",
    key=("name",),
    not_evidence={WHOLE_TABLE: "who may write now; the events of a run name the epoch it took"},
)


class Runs:
    def __init__(self, rows: Reads) -> None:
        self._rows = rows

    def find(self, saga_id: str) -> Run | None:
        return self._one("saga_id = ?", saga_id)

    def get(self, saga_id: str) -> Run:
        found = self.find(saga_id)
        if found is None:
            raise _absent(saga_id)
        return found

    def of_root(self, root: str) -> Run | None:
        """The one run of a root: the same root is the same run for ever."""
        return self._one("idempotency_root = ?", root)

    def named(self, name: str) -> Run:
        """The run that an id, its beginning or a root means."""
        found = RUNS.begins(self._rows, name)
        if name and len(found) == 1:
            return found[0]
        by_root = self.of_root(name)
        if by_root is None:
            raise _absent(name, many=bool(found))
        return by_root

    def newest(self, limit: int = 100) -> list[tuple[Run, Micros]]:
        """The newest first, each with when it began."""
        found = self._rows.read(
            f"SELECT {RUNS.columns}, created_at FROM saga_runs"
            " ORDER BY created_at DESC, saga_id DESC LIMIT ?",
            (limit,),
        )
        return [(Run(*row[:-1]), row[-1]) for row in found]

    def steps(self, saga_id: str) -> list[SagaStep]:
        return STEPS.read(self._rows, "WHERE saga_id = ? ORDER BY step, side", (saga_id,))

    def _one(self, where: str, value: str) -> Run | None:
        return RUNS.first(self._rows, f"WHERE {where}", (value,))


def _absent(name: str, many: bool = False) -> NotFound:
    return NotFound(
        f"more than one run begins with {name[:80]}" if many else f"there is no run {name[:80]}",
        context={"saga": name[:128]},
        recovery=[Recovery("see which there are", "onceward saga list")],
    )


def put_step(tx: Writes, step: SagaStep) -> None:
    """The last word on an action or a compensation."""
    tx.write(
        f"{STEPS.insert_sql} ON CONFLICT (saga_id, step, side) DO UPDATE SET"
        " status = excluded.status, outputs = excluded.outputs, child_id = excluded.child_id,"
        " error = excluded.error",
        (step.saga_id, step.step, step.side, step.status, step.outputs, step.child_id, step.error),
    )


def find_lease(rows: Reads, name: str) -> Lease | None:
    return RUN_LEASES.first(rows, "WHERE name = ?", (name,))


def take_lease(tx: Writes, name: str, holder: str, token: str, now: Micros) -> Lease | None:
    """A lease, if nobody has it, its time has passed, or it is the same holder's who comes
    again; None if not. Every taking is an epoch of its own."""
    known = find_lease(tx, name)
    until = now + LEASE_SECONDS * 1_000_000
    if known is None:
        lease = Lease(name=name, holder=holder, token=token, fence=1, expires_at=until)
        tx.write(
            RUN_LEASES.insert_sql,
            (name, holder, token, 1, until),
        )
        return lease
    if known.holder not in ("", holder) and known.expires_at > now:
        return None
    lease = Lease(name=name, holder=holder, token=token, fence=known.fence + 1, expires_at=until)
    tx.write(
        "UPDATE run_leases SET holder = ?, token = ?, fence = ?, expires_at = ?"
        " WHERE name = ? AND fence = ?",
        (holder, token, lease.fence, until, name, known.fence),
    )
    return lease


def renew_lease(tx: Writes, lease: Lease, now: Micros) -> bool:
    """Go on holding a lease; False if it is somebody else's by now. Written only when a quarter
    of its time is gone."""
    known = find_lease(tx, lease.name)
    if known is None or (known.holder, known.token, known.fence) != (
        lease.holder,
        lease.token,
        lease.fence,
    ):
        return False
    until = now + LEASE_SECONDS * 1_000_000
    if known.expires_at < until - LEASE_SECONDS * 250_000:
        tx.write(
            "UPDATE run_leases SET expires_at = ?"
            " WHERE name = ? AND holder = ? AND token = ? AND fence = ?",
            (until, lease.name, lease.holder, lease.token, lease.fence),
        )
    return True


def release_lease(tx: Writes, name: str, holder: str, token: str) -> None:
    """Give a lease back; what somebody else holds by now is left alone."""
    tx.write(
        "UPDATE run_leases SET holder = '', token = '', expires_at = 0"
        " WHERE name = ? AND holder = ? AND token = ?",
        (name, holder, token),
    )


def note_lease(tx: Writes, saga_id: str, fence: int) -> None:
    """Under which epoch a run goes on."""
    tx.write("UPDATE saga_runs SET lease_fence = ? WHERE saga_id = ?", (fence, saga_id))
