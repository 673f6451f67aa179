"""Rules of sagas: every refusal of a saga and of its runs, from values alone (S-1 to S-4, S-8)."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Sequence
from typing import Any, Final

from onceward.core.limits import MAX_ACTIONS
from onceward.core.machine import NEW, MachineError
from onceward.core.records import check_name
from onceward.core.sagas import Lease, Run, SagaStep
from onceward.core.sources import Micros
from onceward.errors import (
    InvalidConfig,
    InvalidResumeState,
    LeaseLost,
    LockConflict,
    NotFound,
    PermitInvalid,
    Recovery,
    RequestConflict,
)
from onceward.sagas.machine import DONE, Shape, machine_of, shape_of

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")


# What an author declares.


def require_shape(shape: Shape) -> Shape:
    """A shape that makes a table."""
    check_name(shape.name, "name")
    if not 1 <= len(shape.places) <= MAX_ACTIONS:
        raise InvalidConfig(f"a saga has 1 to {MAX_ACTIONS} actions", context={"saga": shape.name})
    names = [place.name for place in shape.places]
    for name in names:
        if not _NAME.fullmatch(name):
            raise InvalidConfig(
                f"{name[:60]!a} is no action's name: letters, digits and _, beginning with a letter",
                context={"saga": shape.name, "action": name[:60]},
            )
    stops = {place.stop for place in shape.places}
    twice = [name for name in names if names.count(name) > 1]
    taken = [*twice, *({*names} & {*stops, DONE, NEW})]
    if taken:
        raise InvalidConfig(
            f"{taken[0]} stands for two things in saga {shape.name}", context={"saga": shape.name}
        )
    if len({(place.stop, place.undo, place.forward) for place in shape.places}) != len(stops):
        raise InvalidConfig(
            f"two states of saga {shape.name} share a stop and no more",
            context={"saga": shape.name},
        )
    try:
        machine_of(shape)
    except MachineError as error:
        raise InvalidConfig(
            f"this saga has no table: {error}", context={"saga": shape.name}
        ) from None
    return shape


def require_function(call: Any) -> None:
    """An action is made of a function."""
    if not callable(call):
        raise InvalidConfig(
            f"an action is made of a function, not of {call!r}", context={"field": "action"}
        )


def require_known_words(words: Collection[str], known: Collection[str]) -> None:
    """An action has no other words than these."""
    odd = set(words) - set(known)
    if odd:
        raise InvalidConfig(f"an action has no {sorted(odd)[0]}", context={"field": sorted(odd)[0]})


def require_new_action(name: str, actions: Collection[str]) -> None:
    """Every action of a saga has its own name."""
    if name in actions:
        raise InvalidConfig(f"there are two actions {name}", context={"field": "name"})


def require_command(name: str, run: Any) -> None:
    """A command is a list of words: no shell takes a text apart."""
    if isinstance(run, str):
        raise InvalidConfig(
            f"the command of {name} is a list of words, no text", context={"field": "run"}
        )


def require_compensation(name: str, compensate: Any) -> None:
    """A compensation is a function or a command."""
    if callable(compensate):
        return
    if isinstance(compensate, str) or not isinstance(compensate, Sequence):
        raise InvalidConfig(
            f"the compensation of {name} is a function or a list of words, not {compensate!r}",
            context={"field": "compensate"},
        )


def require_judge(judge: Any) -> None:
    """A check or guard is a function of one argument that answers at once: a coroutine is no answer."""
    if judge is None:
        return
    if not callable(judge):
        raise InvalidConfig(
            f"a check or guard is a function, not {judge!r}", context={"field": "check"}
        )
    if inspect.iscoroutinefunction(judge):
        raise InvalidConfig(
            "a check or guard cannot be async: it runs inside a transaction",
            context={"field": "check"},
        )
    try:
        inspect.signature(judge).bind(None)
    except TypeError:
        raise InvalidConfig(
            "a check or guard takes one argument, what is seen", context={"field": "check"}
        ) from None
    except ValueError:
        return


# Beginning, resuming, retrying and abandoning a run.


def require_grant(saga: str, granted: bool, grant_id: str | None) -> None:
    """A saga that is declared to run under a grant has one."""
    if granted and not grant_id:
        raise PermitInvalid(
            f"saga {saga} runs only under a grant",
            context={"saga": saga},
            recovery=[Recovery("ask for one", "onceward grant draft FILE")],
        )


def require_same_run(run: Run, *, saga: str, text: str, grant_id: str | None, root: str) -> None:
    """One root is one run: of the same saga, with the same input, under the same grant."""
    for what, mine, theirs in (
        ("saga", saga, run.name),
        ("input", text, run.input),
        ("grant", grant_id, run.grant_id),
    ):
        if mine != theirs:
            raise RequestConflict(
                f"the root {root[:100]} is that of run {run.saga_id}, which has another {what}",
                context={"saga_id": run.saga_id, "root": root, "differs": what},
                recovery=[
                    Recovery(
                        "resume that run",
                        f"onceward saga resume {run.saga_id}",
                    ),
                    Recovery("or see what it is", f"onceward saga show {run.saga_id}"),
                ],
            )


def require_same_shape(run: Run, shape: Shape, actions: Sequence[str]) -> None:
    """A run goes on with the actions it began with."""
    if run.shape != shape.text():
        before = [place.name for place in shape_of(run).places]
        raise InvalidResumeState(
            f"saga {run.name} has other actions now than when {run.saga_id} began: {', '.join(before)}",
            context={"saga_id": run.saga_id, "actions": before, "now": list(actions)},
            recovery=[Recovery("put them back as they were, then go on")],
        )


def require_unfinished(run: Run) -> None:
    """The run is not over."""
    if run.over:
        raise InvalidResumeState(
            f"run {run.saga_id} is over: it is {run.state}", context={"saga_id": run.saga_id}
        )


def require_not_stuck(run: Run) -> None:
    """A run that is stuck waits for a person, and is not resumed."""
    if run.stuck is not None:
        raise InvalidResumeState(
            f"run {run.saga_id} is stuck at {run.state}, and waits for a person",
            context={"saga_id": run.saga_id, "state": run.state},
            recovery=[
                Recovery("see why", f"onceward saga show {run.saga_id}"),
                Recovery(
                    "when the cause is gone, try it again",
                    f"onceward saga retry {run.saga_id}",
                    "low",
                ),
                Recovery("or close it as it is", f"onceward saga abandon {run.saga_id}", "medium"),
            ],
        )


def require_stuck(run: Run) -> None:
    """Only a run that is stuck is retried."""
    if run.stuck is None:
        raise InvalidResumeState(
            f"run {run.saga_id} is not stuck",
            context={"saga_id": run.saga_id},
            recovery=[Recovery("go on with it", f"onceward saga resume {run.saga_id}")],
        )


def require_saga_file(run: Run, there: bool) -> None:
    """The file that the saga of a run was read from is there."""
    if not there:
        where = f"is not at {run.file} any more" if run.file else "was in no file"
        raise InvalidResumeState(
            f"the saga of {run.saga_id} {where}",
            context={"saga_id": run.saga_id, "file": run.file},
            recovery=[
                Recovery("say where it is", f"onceward saga resume {run.saga_id} --file FILE")
            ],
        )


# The lease of a run.


def require_free_lease(name: str, held: Lease | None, root: str, now: Micros) -> None:
    """A run takes a lease that nobody holds, that has expired, or that it holds itself."""
    if held is not None and held.holder not in ("", root) and held.expires_at > now:
        seconds = (held.expires_at - now) // 1_000_000
        raise LockConflict(
            f"the lease {name} is held by run {held.holder[:100]}, for up to {seconds} s more",
            context={"lease": name, "holder": held.holder[:200]},
        )


def require_held(saga_id: str, held: bool) -> None:
    """A run writes under its lease only."""
    if not held:
        raise LeaseLost(f"run {saga_id} lost its lease; another holds it")


def require_not_lost(saga_id: str, lost: bool) -> None:
    """A run goes on under its lease only."""
    if lost:
        raise LeaseLost(
            f"run {saga_id} lost its lease: it was not renewed in time, and another run has it now;"
            " nothing more was written",
            context={"saga_id": saga_id},
        )


# What a run left.


def require_result(saga_id: str, action: str, steps: Sequence[SagaStep]) -> SagaStep:
    """The step of an action that is done."""
    for step in steps:
        if (step.step, step.side, step.status) == (action, "action", "done"):
            return step
    raise NotFound(
        f"run {saga_id} has no result of {action[:80]!a}", context={"action": action[:80]}
    )
