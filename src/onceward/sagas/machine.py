"""The life of a saga's run (S-1, S-2): states forward, a named stop for every failure, compensation as moves too.

A run brings its own table: every saga has states of its own. The assembly saga's is SAGA."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec

from onceward.core.canon import canonical, digest
from onceward.core.fold import Stated
from onceward.core.limits import MAX_ACTIONS
from onceward.core.machine import NEW, Arrow, Machine, MachineError
from onceward.core.records import Move, check_name
from onceward.core.sagas import Run
from onceward.errors import InvalidConfig

DONE: Final = "DONE"
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
FAILURES: Final = ("action_failed", "check_failed", "guard_failed", "abandoned")


class Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One state of a saga: where a failure there stops, and what is then to be undone, in this order."""

    name: str
    stop: str
    undo: tuple[str, ...] = ()
    forward: bool = False
    """Whether its stop is not undone but finished."""
    again: bool = False
    """Whether its stop undoes nothing that was done before: a person has the state itself tried again."""


class Shape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A saga without its code: all that its table follows from."""

    name: str
    places: tuple[Place, ...]

    def check(self) -> Shape:
        """Refuse what makes no table."""
        check_name(self.name, "name")
        if not 1 <= len(self.places) <= MAX_ACTIONS:
            raise InvalidConfig(
                f"a saga has 1 to {MAX_ACTIONS} actions", context={"saga": self.name}
            )
        names = [place.name for place in self.places]
        for name in names:
            if not _NAME.fullmatch(name):
                raise InvalidConfig(
                    f"{name[:60]!a} is no action's name: letters, digits and _, beginning with a letter",
                    context={"saga": self.name, "action": name[:60]},
                )
        twice = [name for name in names if names.count(name) > 1]
        taken = [*twice, *({*names} & {*(place.stop for place in self.places), DONE, NEW})]
        if taken:
            raise InvalidConfig(
                f"{taken[0]} stands for two things in saga {self.name}", context={"saga": self.name}
            )
        if len({(place.stop, place.undo, place.forward) for place in self.places}) != len(
            {p.stop for p in self.places}
        ):
            raise InvalidConfig(
                f"two states of saga {self.name} share a stop and no more",
                context={"saga": self.name},
            )
        try:
            machine_of(self)
        except MachineError as error:
            raise InvalidConfig(
                f"this saga has no table: {error}", context={"saga": self.name}
            ) from None
        return self

    def text(self) -> str:
        return canonical(msgspec.to_builtins(self)).decode()

    def digest(self) -> str:
        return digest(msgspec.to_builtins(self))

    def place(self, state: str) -> Place | None:
        return next((place for place in self.places if place.name == state), None)

    def after(self, state: str) -> str:
        names = [place.name for place in self.places] + [DONE]
        return names[names.index(state) + 1]

    def stop(self, state: str) -> Place:
        """The place whose failure stops in a state; of several that do, what is undone is the same."""
        return next(place for place in self.places if place.stop == state)


def shape_of(run: Run) -> Shape:
    return msgspec.json.decode(run.shape, type=Shape)


def given_of(run: Run) -> Any:
    """What a run was given."""
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


def _arrows(shape: Shape, stops: Mapping[str, Place]) -> Iterator[Arrow]:
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
        Place("S0_PREFLIGHT", "ABORT_PREFLIGHT"),
        Place("S1_RESERVED", "ABORT_NO_LEASE"),
        Place("S2_SCHEMA", "COMP_SCHEMA", ("S2_SCHEMA",)),
        Place("S3_VERIFY_SCHEMA", "COMP_SCHEMA", ("S2_SCHEMA",)),
        Place("S4_VALUES", "COMP_VALUES", ("S4_VALUES",)),
        Place("S5_VERIFY_VALUES", "COMP_VALUES", ("S4_VALUES",)),
        Place("S6_EVIDENCE", "COMP_EVIDENCE", ("S6_EVIDENCE",), again=True),
        Place("S7_FINALIZE", "COMP_FINALIZE", ("S7_FINALIZE",), forward=True),
    ),
)
"""The saga by which values enter the registry (S-2)."""
ROLLBACK: Final = Shape(
    "rollback",
    (
        Place("R0_CHECK", "ABORT_CHECK"),
        Place("R1_RESERVED", "ABORT_NO_LEASE"),
        Place("R2_SUPERSEDE", "ABORT_SUPERSEDE"),
        Place("R3_FINALIZE", "COMP_FINALIZE", ("R3_FINALIZE",), forward=True),
    ),
)
"""The saga by which values are superseded (S-6): all of its writing is one transaction, so there is nothing to undo."""
CUT: Final = Shape(
    "cut",
    (
        Place("C0_CHECK", "ABORT_DRIFT"),
        Place("C1_KEEP", "ABORT_KEEP"),
        Place("C2_STAGE", "COMP_STAGE", ("C2_STAGE",)),
        Place("C3_APPLY", "COMP_APPLY", ("C3_APPLY", "C2_STAGE")),
        Place("C4_RECORD", "COMP_RECORD", ("C4_RECORD",), forward=True),
    ),
)
"""The saga by which an approved change reaches a file tree (H-5): from `C4_RECORD` on it is only finished."""
UNDO: Final = Shape(
    "undo",
    (
        Place("U0_RESTORE", "ABORT_RESTORE"),
        Place("U1_RECORD", "COMP_RECORD", ("U1_RECORD",), forward=True),
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
    """A run begins to be; nothing of it has happened."""
    known = {
        **{
            "name": shape.name,
            "idempotency_root": root,
            "shape": shape.text(),
            "input": given,
            "file": file,
        },
        **{"lease": lease, "digests": canonical(dict(digests)).decode()},
    }
    columns = {
        **known,
        "grant_id": grant_id,
        "lease_fence": 0,
        "last_ok_state": None,
        "undone": 0,
        "stuck": None,
    }
    said = {**known, **({"grant_id": grant_id} if grant_id else {})}
    first = shape.places[0].name
    return Move(
        machine_of(shape),
        saga_id,
        NEW,
        first,
        0,
        actor,
        detail=said,
        columns={**columns, "settled": 0},
    )


def advance(run: Run, actor: str, said: Mapping[str, Any]) -> Move:
    """A state is done and checked: on to the next."""
    return _move(
        run, shape_of(run).after(run.state), "state_done", actor, said, {"last_ok_state": run.state}
    )


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
        {"why": why, "undone": begun, "failed": run.state},
        {"undone": begun},
    )


def compensated(run: Run, actor: str, said: Mapping[str, Any]) -> Move:
    """One more compensation of a stop is done; one that finishes forward ends the run."""
    undone = run.undone + 1
    if shape_of(run).stop(run.state).forward:
        return _move(
            run, DONE, "finished_forward", actor, {**said, "undone": undone}, {"undone": undone}
        )
    return _move(
        run, run.state, "compensated", actor, {**said, "undone": undone}, {"undone": undone}
    )


def stick(run: Run, actor: str, why: Mapping[str, Any]) -> Move:
    """A compensation failed: the run waits where it is for a person."""
    return _move(
        run,
        run.state,
        "compensation_failed",
        actor,
        {"why": why},
        {"stuck": canonical(dict(why)).decode()},
    )


def wait_for_person(run: Run, actor: str, why: Mapping[str, Any]) -> Move:
    """The stop of a state that can be tried again is dealt with: what was done before is in force, and a person says
    when the cause is gone."""
    stuck = canonical(dict(why)).decode()
    return _move(run, run.state, "to_be_tried_again", actor, {"why": why}, {"stuck": stuck})


def retry(run: Run, actor: str) -> Move:
    """A person says that the compensation is to be tried again, or the state itself, where nothing is left of its
    compensation."""
    place = shape_of(run).stop(run.state)
    if place.again and not remaining(run):
        columns = {"stuck": None, "undone": 0}
        return _move(run, place.name, "tried_again", actor, {"undone": 0}, columns)
    return _move(run, run.state, "retried", actor, {}, {"stuck": None})


def settle(run: Run, actor: str, said: Mapping[str, Any], given_up: bool = False) -> Move:
    """Nothing more will happen: all is undone, or a person took it as it is."""
    reason = "given_up" if given_up else "settled"
    return _move(run, run.state, reason, actor, {**said, "undone": run.undone}, {"settled": 1})


def failure(reason: str, detail: Mapping[str, Any]) -> dict[str, Any]:
    """What a person wants to know of a child that did not succeed."""
    names = ("error", "message", "exit", "last_line", "lane", "limit", "observed", "asked", "code")
    return {
        "reason": reason,
        **{name: detail[name] for name in names if detail.get(name) is not None},
    }


def remaining(run: Run) -> tuple[str, ...]:
    """What the stop of a run has not undone."""
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
    detail: Mapping[str, Any],
    columns: Mapping[str, Any],
) -> Move:
    machine = machine_of(shape_of(run))
    machine.follow(run.state, target, reason)
    return Move(
        machine, run.saga_id, run.state, target, run.version, actor, reason, detail, columns
    )
