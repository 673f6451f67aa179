"""Whether a rollback may be: supersession forward, or exactly one reason why not (S-6). Nothing is executed here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, Protocol

import msgspec

from onceward.errors import InvalidConfig
from onceward.kernel.limits import MAX_INTEGER
from onceward.kernel.records import check_name
from onceward.kernel.vocabulary import Collection, Key, Value, version_of

VALID: Final = "ROLLBACK_CONTRACT_VALID_FOR_REVIEW"
CODES: Final = (
    "RUNTIME_MUTATION_REJECTED",
    "ROLLBACK_PLAN_ABSENT",
    "ROLLBACK_DELETES_REFERENCED_IDENTITY",
    "ROLLBACK_ORPHANS_DEPENDENCY",
    "ROLLBACK_ERASES_HISTORY",
    "ROLLBACK_CHANGES_HISTORICAL_SEMANTICS",
    "ROLLBACK_WEAKENS_AUTHORITY",
    "ROLLBACK_SUCCESSOR_RULE_ABSENT",
    "ROLLBACK_FORWARD_FAIL_CLOSED_VIOLATED",
    "ROLLBACK_AUDIT_TRAIL_ABSENT",
    "ROLLBACK_NOT_LOCAL",
)
"""Why not, by number: RBP-0 to RBP-10, in the order in which they are looked for."""


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a plan wants of one value; only `supersede` can be had."""

    action: Literal["supersede", "retire", "delete", "change", "rewrite"]
    target: str = ""
    """A value, as code@version or by its id; for `rewrite` a table."""
    successor: str = ""
    rollback_ref: str = ""
    """What the audit row is to say it was done for."""
    fields: list[str] = []
    """For `change`: which."""


class RollbackPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    plan_id: str
    collection: str
    steps: list[Step] = msgspec.field(name="step", default_factory=list)
    execute: bool = False
    revision: int = 1


def plan_of(said: Any) -> RollbackPlan:
    """A plan from its words."""
    try:
        plan = msgspec.convert(said, RollbackPlan)
    except msgspec.ValidationError as error:
        raise InvalidConfig(f"this is no rollback plan: {error}", context={"field": "plan"}) from None
    check_name(plan.plan_id, "plan_id")
    if not 1 <= plan.revision <= MAX_INTEGER:
        raise InvalidConfig("a plan's revision is a number from 1 on", context={"field": "revision"})
    return plan


class Facts(Protocol):
    """What there is in the registry."""

    def collection(self, name: str) -> Collection | None: ...

    def meant(self, text: str) -> Value: ...

    def find(self, text: str) -> Value | None: ...

    def heirs_of(self, key: Key) -> list[Value]: ...


class Verdict(msgspec.Struct, frozen=True):
    """The one answer, and where in the plan it comes from."""

    code: str
    step: int = 0
    why: str = ""

    @property
    def valid(self) -> bool:
        return self.code == VALID


def judge(plan: RollbackPlan | None, facts: Facts, executing: bool = False) -> Verdict:
    """The first rule that does not hold, by its number."""
    if plan is not None and plan.execute and not executing:
        return Verdict(CODES[0], why="it asks to be executed, and is only being checked")
    if plan is None or not plan.steps:
        return Verdict(CODES[1], why="there is no plan, or no step in it")
    collection = facts.collection(plan.collection)
    if collection is None:
        raise InvalidConfig(f"there is no collection {plan.collection[:60]!a}", context={"field": "collection"})
    for code, rule in _RULES:
        for number, step in enumerate(plan.steps, 1):
            why = rule(step, facts, collection)
            if why:
                return Verdict(code, number, why)
    return Verdict(VALID)


def _deletes(step: Step, facts: Facts, collection: Collection) -> str:
    return "values are never deleted" if step.action == "delete" else ""


def _orphans(step: Step, facts: Facts, collection: Collection) -> str:
    if step.action != "retire":
        return ""
    heirs = facts.heirs_of(facts.meant(step.target).key)
    return f"{heirs[0].key} would point at nothing that is in force" if heirs else ""


def _erases(step: Step, facts: Facts, collection: Collection) -> str:
    return f"{step.target[:60] or 'history'} is written once" if step.action == "rewrite" else ""


def _changes(step: Step, facts: Facts, collection: Collection) -> str:
    return f"{facts.meant(step.target).key} would mean something else" if step.action == "change" else ""


def _weakens(step: Step, facts: Facts, collection: Collection) -> str:
    successor = facts.find(step.successor) if step.successor else None
    if step.action != "supersede" or successor is None:
        return ""
    before, after = facts.meant(step.target).governing_authority_ref, successor.governing_authority_ref
    return f"{after} would govern instead of {before}" if before != after else ""


def _unnamed(step: Step, facts: Facts, collection: Collection) -> str:
    return "no successor is named" if not step.successor else ""


def _backward(step: Step, facts: Facts, collection: Collection) -> str:
    target, successor = facts.meant(step.target), facts.find(step.successor)
    if successor is None:
        return f"there is no {step.successor[:80]}"
    if successor.status != "active":
        return f"{successor.key} is {successor.status}"
    if successor.act_type != target.act_type:
        return f"{successor.key} is a {successor.act_type}, not a {target.act_type}"
    older = version_of(successor.protocol_version) <= version_of(target.protocol_version)
    return f"{successor.key} is not newer" if older and successor.operation_code == target.operation_code else ""


def _unaudited(step: Step, facts: Facts, collection: Collection) -> str:
    return "" if step.rollback_ref.strip() else "it names no rollback_ref for its audit row"


def _elsewhere(step: Step, facts: Facts, collection: Collection) -> str:
    for value in filter(None, (facts.meant(step.target), facts.find(step.successor))):
        if value.collection_id != collection.collection_id:
            return f"{value.key} is in another collection"
    return ""


_RULES: Final[tuple[tuple[str, Callable[[Step, Facts, Collection], str]], ...]] = tuple(
    zip(
        CODES[2:],
        (_deletes, _orphans, _erases, _changes, _weakens, _unnamed, _backward, _unaudited, _elsewhere),
        strict=True,
    )
)
