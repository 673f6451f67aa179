"""Rules of children, sessions and budgets: every refusal, from values alone. A rule returns nothing where it holds."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from onceward.core.limits import MAX_INTEGER, MAX_JOBS
from onceward.core.money import to_usd
from onceward.core.vocabulary import Value
from onceward.dispatch.budget import Refusal
from onceward.errors import (
    AtomicityViolation,
    BudgetExceeded,
    ChildCancelled,
    ChildStartFailed,
    InvalidConfig,
    LockLost,
    NotFound,
    OperationAbsent,
    OperationRetired,
    Recovery,
    WrongOperation,
)

_LIST_OPERATIONS: Final = (Recovery("see which there are", "onceward registry list"),)
_TERMINAL: Final = '"to":"terminal"'


# Sessions.


def require_cap(cap: int) -> None:
    """A session runs at least one child at once, and not more than the limit."""
    if not 1 <= cap <= MAX_JOBS:
        raise InvalidConfig(
            f"a session runs between 1 and {MAX_JOBS} children at once, not {cap}",
            context={"field": "jobs"},
        )


def require_tenure(holds: bool) -> None:
    """Only the kernel that holds a workspace runs children."""
    if not holds:
        raise LockLost("only the kernel of a workspace runs children")


def require_recovered(recovered: bool) -> None:
    """A kernel dispatches only after it has recovered what the one before left."""
    if not recovered:
        raise LockLost("nothing is dispatched before recovery is done")


def require_open(session_id: str, closed: bool) -> None:
    """A closed session takes no more children."""
    if closed:
        raise InvalidConfig(f"session {session_id} is closed", context={"session_id": session_id})


def require_one_session(prefix: str, matches: Sequence[str]) -> str:
    """The one session that an id or its beginning means."""
    if len(matches) == 1:
        return matches[0]
    many = f"more than one session begins with {prefix}"
    raise NotFound(
        many if matches else f"there is no session {prefix}",
        context={"session_id": prefix},
        recovery=[
            Recovery("see which there are", "onceward status"),
            Recovery("open a new one of that id with --new"),
        ],
    )


# What a child is asked to do.


def require_timeout(seconds: float | None) -> None:
    """A time limit is more than nothing."""
    if seconds is not None and not seconds > 0:
        raise InvalidConfig(
            f"timeout is a time of more than 0 seconds, not {seconds}", context={"field": "timeout"}
        )


def require_findable(function: str) -> None:
    """A function that another process is to call has a name in its module."""
    if "<" in function:
        raise InvalidConfig(f"{function} has no name by which another process could find it")


def require_program(argv: Sequence[str]) -> None:
    """A command names a program."""
    if not argv or not argv[0]:
        raise InvalidConfig("a command has a program", context={"field": "argv"})


def require_place_for_values(argv: Iterable[str], values: Sequence[str]) -> None:
    """The values of --each need a {} in the command."""
    if values and not any("{}" in word for word in argv):
        raise InvalidConfig(
            "--each puts its values in for {}, and the command has none",
            context={"field": "--each"},
        )


def require_targets_apart(target: str | None, commands: int) -> None:
    """Several commands have each a target of its own."""
    if target is not None and commands > 1 and "{}" not in target:
        raise InvalidConfig(
            "one target cannot be held by several; put {} into its name",
            context={"field": "--target"},
        )


def require_variables(names: Iterable[str], known: Collection[str], *, of_server: bool) -> None:
    """Every variable that a command asks for is set; `of_server` says that its value comes with an HTTP request."""
    for name in names:
        if name in known:
            continue
        context = {"field": "--env", "variable": name[:200]}
        if not of_server:
            raise InvalidConfig(
                f"{name[:60]!a} is not set, so it cannot be passed on", context=context
            )
        raise InvalidConfig(
            f"the server has no value of {name[:60]!a} for this request: values come over its HTTP connection and stay"
            " in its memory, so they do not come with a request that is only filed, and do not outlive a restart",
            context=context,
            recovery=[Recovery("ask again, on the machine of the server, while it runs")],
        )


def require_needed(stage: object, needed: Iterable[str]) -> None:
    """A step reads only the stages that it needs."""
    names = list(needed)
    if stage not in names:
        raise InvalidConfig(
            f"this step does not need {stage!r}; it needs {', '.join(names) or 'nothing'}",
            context={"field": "needs"},
        )


# Registered operations (S-7).


def require_operation_named(work: str, operation: str, required: bool) -> None:
    """Where a workspace requires it, work names a registered operation."""
    if required and not operation:
        raise OperationAbsent(
            f"{work} names no operation (as in code@1.0.0), and this workspace requires one",
            context={"work": work, "operation": operation},
            recovery=_LIST_OPERATIONS,
        )


def require_operation_usable(work: str, operation: str, effect: str, value: Value | None) -> None:
    """The operation that work names is in force, and is for what the work does; `effect` is empty where it does not
    say."""
    context = {"work": work, "operation": operation}
    if value is None:
        raise OperationAbsent(
            f"{work} names {operation}, which is not in the registry",
            context=context,
            recovery=_LIST_OPERATIONS,
        )
    if value.status != "active":
        after = f"; {value.successor} follows it" if value.successor else ""
        raise OperationRetired(
            f"{work} names {operation}, which is {value.status}{after}",
            context=context,
            recovery=_LIST_OPERATIONS,
        )
    if effect and effect != value.act_type:
        raise WrongOperation(
            f"{work} does {effect}, but {operation} is for {value.act_type}",
            context={**context, "effect": effect, "act_type": value.act_type},
        )


# Running children.


def require_wanted(asked: str) -> None:
    """A child that was asked to end is not begun; `asked` is why, or empty."""
    if asked:
        raise ChildStartFailed(f"the child was asked to end before it began: {asked}")


def require_not_asked_to_end(asked: str) -> None:
    """A child that was asked to end does not go on; `asked` is why, or empty."""
    if asked:
        raise ChildCancelled(f"this child was asked to end: {asked}")


def require_debitable(ended: bool) -> None:
    """Nothing is spent in the name of a child that has ended."""
    if ended:
        raise ChildCancelled("this child has ended; nothing more can be debited for it")


def require_countable(lane: str, amount: int, countable: int) -> None:
    """A lane can count the whole amount; `countable` is how much of it it can."""
    if countable < amount:
        raise InvalidConfig(f"{lane} cannot count beyond {MAX_INTEGER}", context={"field": lane})


def require_budget(refusal: Refusal | None) -> None:
    """A debit fits into its lanes; `refusal` is the first that it does not fit into."""
    if refusal is None:
        return
    money = refusal.lane == "usd_micros"
    at, limit, asked = (
        to_usd(n) if money else str(n) for n in (refusal.observed, refusal.limit, refusal.asked)
    )
    whose = f"{refusal.scope}'s " if refusal.scope else ""
    lane = "usd" if money else refusal.lane
    more = f", {asked} more asked" if refusal.asked else ""
    raise BudgetExceeded(
        f"the {whose}budget has no room: {lane} is at {at} of {limit}{more}",
        context=refusal.detail(),
    )


# What a dead kernel left: a token and its stream are one truth, and two truths stop everything (C-4).


def require_phase_of_stream(child_id: str, phase: str, last_event: str | None) -> None:
    """The stream of a child that has not ended ends with the start of one that began, and is empty otherwise."""
    if last_event != ("WORKER_START" if phase == "started" else None):
        raise AtomicityViolation(
            f"child {child_id} is {phase}, but its stream ends with {last_event or 'nothing'}",
            context={"child_id": child_id, "phase": phase},
        )


def require_terminal_event(child_id: str, body: str | None) -> None:
    """A child that has ended has its terminal event; `body` is the event that its token names."""
    # The body is canonical, so what it says of itself can be looked for without taking it apart.
    if body is None or f'"child_id":"{child_id}"' not in body or _TERMINAL not in body:
        raise AtomicityViolation(
            f"child {child_id} is terminal, but its stream has no terminal event",
            context={"child_id": child_id, "phase": "terminal"},
        )


# Target locks.


def require_claim(target: str, entries: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The claim on a target, among those that there are."""
    for entry in entries:
        if entry["target"] == target:
            return entry
    raise NotFound(f"nothing has claimed {target}")


def require_same_claim(nonce: str | None, current: str | None) -> None:
    """The claim is the one that somebody looked at, where they say which; a claim that cannot be read has no nonce."""
    if nonce is not None and nonce != (current or "unreadable"):
        raise InvalidConfig(
            "the claim has another nonce; look at it again", context={"field": "nonce"}
        )
