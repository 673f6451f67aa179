"""The life of a saga's run (S-1, S-2): states forward, a named stop for every failure, compensations as moves.

Each saga has a table of its own states. The table of the assembly saga is SAGA."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec

from onceward.core.canon import canonical, digest
from onceward.core.fold import Stated
from onceward.core.machine import NEW, Arrow, Machine
from onceward.core.records import Move
from onceward.core.sagas import Run

DONE: Final = "DONE"
FAILURES: Final = ("action_failed", "check_failed", "guard_failed", "abandoned")


class SagaState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One state of a saga, the stop that a failure there leads to, and what is undone at that stop, in order."""

    name: str
    stop: str
    undo: tuple[str, ...] = ()
    forward: bool = False
    """Whether its stop is not undone but finished."""
    again: bool = False
    """Whether its stop undoes nothing that was done before: a person has the state itself tried again."""


class Shape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A saga without its code: everything that its table follows from."""

    name: str
    places: tuple[SagaState, ...]

    def text(self) -> str:
        return canonical(msgspec.to_builtins(self)).decode()

    def digest(self) -> str:
        return digest(msgspec.to_builtins(self))

    def place(self, state: str) -> SagaState | None:
        return next((place for place in self.places if place.name == state), None)

    def after(self, state: str) -> str:
        names = [place.name for place in self.places] + [DONE]
        return names[names.index(state) + 1]

    def stop(self, state: str) -> SagaState:
        """The place whose failure stops in a state; of several that do, what is undone is the same."""
        return next(place for place in self.places if place.stop == state)


def shape_of(run: Run) -> Shape:
    return msgspec.json.decode(run.shape, type=Shape)


def given_of(run: Run) -> Any:
    """The input of a run."""
    return msgspec.json.decode(run.input)


@lru_cache(maxsize=64)
def machine_of(shape: Shape) -> Machine:
    """The table of a saga."""
    stops = {place.stop: place for place in reversed(shape.places)}
    settling = [stop for stop, place in stops.items() if not (place.forward or place.again)]
    return Machine("saga", _arrows(shape, stops), [DONE, *settling], stated=_STATED)


_STATED: Final = Stated.parse(
    """
    name              detail.name              SAGA_CREATED
    idempotency_root  detail.idempotency_root  SAGA_CREATED
    shape             detail.shape             SAGA_CREATED
    input             detail.input             SAGA_CREATED
    file              detail.file              SAGA_CREATED
    lease             detail.lease             SAGA_CREATED
    digests           detail.digests           SAGA_CREATED
    grant_id          detail.grant_id          SAGA_CREATED
    lease_fence       detail.epoch             LEASE_TAKEN
    last_ok_state     detail.from              SAGA_ADVANCED
    undone            detail.undone
    stuck             text.why                 SAGA_STUCK
    lease_fence       = 0
    undone            = 0
    settled           = 0
    """
)


def _arrows(shape: Shape, stops: Mapping[str, SagaState]) -> Iterator[Arrow]:
    yield Arrow(NEW, shape.places[0].name, None, "SAGA_CREATED")
    for place in shape.places:
        after = shape.after(place.name)
        yield Arrow(
            place.name, after, "state_done", "SAGA_DONE" if after == DONE else "SAGA_ADVANCED"
        )
        for why in FAILURES:
            yield Arrow(place.name, place.stop, why, "SAGA_STOPPED")
    for stop, place in stops.items():
        for reason, event in (
            ("compensated", "SAGA_COMPENSATED"),
            ("compensation_failed", "SAGA_STUCK"),
            ("retried", "SAGA_RETRIED"),
            ("settled", "SAGA_SETTLED"),
            ("given_up", "SAGA_SETTLED"),
        ):
            yield Arrow(stop, stop, reason, event, bookkeeping=True)
        if place.forward:
            yield Arrow(stop, DONE, "finished_forward", "SAGA_DONE")
        if place.again:
            yield Arrow(stop, stop, "to_be_tried_again", "SAGA_STUCK", bookkeeping=True)
            yield Arrow(stop, place.name, "tried_again", "SAGA_RETRIED")


ASSEMBLY: Final = Shape(
    "assembly",
    (
        SagaState("S0_PREFLIGHT", "ABORT_PREFLIGHT"),
        SagaState("S1_RESERVED", "ABORT_NO_LEASE"),
        SagaState("S2_SCHEMA", "COMP_SCHEMA", ("S2_SCHEMA",)),
        SagaState("S3_VERIFY_SCHEMA", "COMP_SCHEMA", ("S2_SCHEMA",)),
        SagaState("S4_VALUES", "COMP_VALUES", ("S4_VALUES",)),
        SagaState("S5_VERIFY_VALUES", "COMP_VALUES", ("S4_VALUES",)),
        SagaState("S6_EVIDENCE", "COMP_EVIDENCE", ("S6_EVIDENCE",), again=True),
        SagaState("S7_FINALIZE", "COMP_FINALIZE", ("S7_FINALIZE",), forward=True),
    ),
)
"""The saga by which values enter the registry (S-2)."""
ROLLBACK: Final = Shape(
    "rollback",
    (
        SagaState("R0_CHECK", "ABORT_CHECK"),
        SagaState("R1_RESERVED", "ABORT_NO_LEASE"),
        SagaState("R2_SUPERSEDE", "ABORT_SUPERSEDE"),
        SagaState("R3_FINALIZE", "COMP_FINALIZE", ("R3_FINALIZE",), forward=True),
    ),
)
"""The saga by which values are superseded (S-6): all of its writing is one transaction, so there is nothing to undo."""
CUT: Final = Shape(
    "cut",
    (
        SagaState("C0_CHECK", "ABORT_DRIFT"),
        SagaState("C1_KEEP", "ABORT_KEEP"),
        SagaState("C2_STAGE", "COMP_STAGE", ("C2_STAGE",)),
        SagaState("C3_APPLY", "COMP_APPLY", ("C3_APPLY", "C2_STAGE")),
        SagaState("C4_RECORD", "COMP_RECORD", ("C4_RECORD",), forward=True),
    ),
)
"""The saga by which an approved change reaches a file tree (H-5): from `C4_RECORD` on it is only finished."""
UNDO: Final = Shape(
    "undo",
    (
        SagaState("U0_RESTORE", "ABORT_RESTORE"),
        SagaState("U1_RECORD", "COMP_RECORD", ("U1_RECORD",), forward=True),
    ),
)
"""The saga by which a cut that failed its verification is taken back (H-6): nothing of it needs undoing."""
CARRIED: Final = {CUT.name: "cut", UNDO.name: "verify"}
"""Sagas that changes are carried out by, and the word that goes on with each."""
SAGA: Final = machine_of(ASSEMBLY)


def create(
    saga_id: str,
    shape: Shape,
    root: str,
    actor: str,
    *,
    given: str = "null",
    file: str = "",
    grant_id: str | None = None,
    lease: str,
    digests: Mapping[str, str],
) -> Move:
    """A run is created; nothing of it has happened."""
    known = {
        "name": shape.name,
        "idempotency_root": root,
        "shape": shape.text(),
        "input": given,
        "file": file,
        "lease": lease,
        "digests": canonical(dict(digests)).decode(),
    }
    columns = {
        **known,
        "grant_id": grant_id,
        "lease_fence": 0,
        "last_ok_state": None,
        "undone": 0,
        "stuck": None,
        "settled": 0,
    }
    said = {**known, **({"grant_id": grant_id} if grant_id else {})}
    return Move(
        machine=machine_of(shape),
        subject=saga_id,
        source=NEW,
        target=shape.places[0].name,
        version=0,
        actor=actor,
        detail=said,
        columns=columns,
    )


def advance(run: Run, actor: str, said: Mapping[str, Any]) -> Move:
    """A state is done and checked: on to the next."""
    after = shape_of(run).after(run.state)
    return _move(run, after, "state_done", actor, detail=said, columns={"last_ok_state": run.state})


def stop(run: Run, reason: str, actor: str, why: Mapping[str, Any]) -> Move:
    """A state failed: its named stop. What had not begun needs no undoing."""
    place = shape_of(run).place(run.state)
    if place is None:
        machine_of(shape_of(run)).follow(run.state, run.state, reason)
        raise AssertionError("a stop leads nowhere but on")
    begun = 1 if reason == "guard_failed" and place.undo[:1] == (run.state,) else 0
    return _move(
        run,
        place.stop,
        reason,
        actor,
        detail={"why": why, "undone": begun, "failed": run.state},
        columns={"undone": begun},
    )


def compensated(run: Run, actor: str, said: Mapping[str, Any]) -> Move:
    """One more compensation of a stop is done; one that finishes forward ends the run."""
    columns = {"undone": run.undone + 1}
    detail = {**said, **columns}
    if shape_of(run).stop(run.state).forward:
        return _move(run, DONE, "finished_forward", actor, detail=detail, columns=columns)
    return _move(run, run.state, "compensated", actor, detail=detail, columns=columns)


def stick(run: Run, actor: str, why: Mapping[str, Any]) -> Move:
    """A compensation failed: the run waits where it is for a person."""
    return _move(
        run,
        run.state,
        "compensation_failed",
        actor,
        detail={"why": why},
        columns={"stuck": canonical(dict(why)).decode()},
    )


def wait_for_person(run: Run, actor: str, why: Mapping[str, Any]) -> Move:
    """Everything is undone at the stop of a state that can be retried: the run waits until a person retries it."""
    stuck = canonical(dict(why)).decode()
    return _move(
        run, run.state, "to_be_tried_again", actor, detail={"why": why}, columns={"stuck": stuck}
    )


def retry(run: Run, actor: str) -> Move:
    """A person retries the compensation; or the state itself, where it has no compensation left."""
    place = shape_of(run).stop(run.state)
    if place.again and not remaining(run):
        columns = {"stuck": None, "undone": 0}
        return _move(run, place.name, "tried_again", actor, detail={"undone": 0}, columns=columns)
    return _move(run, run.state, "retried", actor, detail={}, columns={"stuck": None})


def settle(run: Run, actor: str, said: Mapping[str, Any], given_up: bool = False) -> Move:
    """The run is over at its stop: everything is undone, or a person takes it as it is."""
    reason = "given_up" if given_up else "settled"
    detail = {**said, "undone": run.undone}
    return _move(run, run.state, reason, actor, detail=detail, columns={"settled": 1})


def failure(reason: str, detail: Mapping[str, Any]) -> dict[str, Any]:
    """What people are told of a child that did not succeed."""
    names = ("error", "message", "exit", "last_line", "lane", "limit", "observed", "asked", "code")
    return {
        "reason": reason,
        **{name: detail[name] for name in names if detail.get(name) is not None},
    }


def remaining(run: Run) -> tuple[str, ...]:
    """The compensations that the stop of a run has not done."""
    shape = shape_of(run)
    if run.state == DONE or shape.place(run.state) is not None:
        return ()
    return shape.stop(run.state).undo[run.undone :]


def pending(run: Run) -> str | None:
    """The compensation that is to be done next, if the run is at a stop and one is left."""
    left = remaining(run)
    return left[0] if left and not run.over else None


def _move(
    run: Run,
    target: str,
    reason: str,
    actor: str,
    *,
    detail: Mapping[str, Any],
    columns: Mapping[str, Any],
) -> Move:
    machine = machine_of(shape_of(run))
    machine.follow(run.state, target, reason)
    return Move(
        machine=machine,
        subject=run.saga_id,
        source=run.state,
        target=target,
        version=run.version,
        actor=actor,
        reason=reason,
        detail=detail,
        columns=columns,
    )
