"""What may be asked of sagas: run, resume, give up."""

from __future__ import annotations

from typing import Any

import msgspec

from onceward.core.acts import act, ends, work
from onceward.core.canon import digest
from onceward.core.orders import Order
from onceward.sagas import lifecycle as saga_life
from onceward.store.port import Reads
from onceward.store.tables.sagas import Runs
from onceward.store.transaction import Transaction


def _whole_id(rows: Reads, name: str) -> str:
    return Runs(rows).named(name).saga_id


class RunSaga(Order, frozen=True):
    file: str
    input: Any = None
    root: str = ""
    grant: str | None = None
    budget: dict[str, Any] = {}


work(
    "sagas.run",
    RunSaga,
    role="operator",
    path="/sagas",
    operation="runSaga",
    summary="run a saga from the workspace's folder",
)


class ResumeSaga(Order, frozen=True):
    saga: str
    retry: bool = False
    budget: dict[str, Any] = {}


work(
    "sagas.resume",
    ResumeSaga,
    role="operator",
    ids={"saga": _whole_id},
    path="/sagas/{saga}/resume",
    operation="resumeSaga",
    summary="resume a saga, or retry where it is stuck",
)


class AbandonSaga(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    saga: str


@act(
    "sagas.abandon",
    role="operator",
    ids={"saga": _whole_id},
    may_make={
        "SAGA_STOPPED": ends("saga"),
        "SAGA_SETTLED": ends("saga"),
        "LEASE_RELEASED": ends("saga"),
        "WORKER_CANCEL": ends("saga"),
        "CANCEL_ASKED": ends("saga"),
    },
    path="/sagas/{saga}/abandon",
    operation="abandonSaga",
    summary="give a saga up",
)
def abandon(tx: Transaction, actor: str, asked: AbandonSaga) -> dict[str, Any]:
    request_id = digest({"actor": actor, "abandon": asked.saga})
    return saga_life.abandon(tx, actor, asked.saga, request_id)
