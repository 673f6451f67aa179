"""Whether a rollback may be: supersession forward, or exactly one reason why not (S-6). Nothing is executed here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, Protocol

import msgspec

from onceward.core.limits import MAX_INTEGER, MAX_PLAN_ID_CHARS
from onceward.core.records import check_name
from onceward.core.vocabulary import Collection, Key, Value, version_of
from onceward.errors import InvalidConfig

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
        raise InvalidConfig(
            f"this is no rollback plan: {error}", context={"field": "plan"}
        ) from None
    check_name(plan.plan_id, "plan_id")
    if len(plan.plan_id) > MAX_PLAN_ID_CHARS:
        raise InvalidConfig(
            f"a plan_id has at most {MAX_PLAN_ID_CHARS} characters", context={"field": "plan_id"}
        )
    if not 1 <= plan.revision <= MAX_INTEGER:
        raise InvalidConfig(
            "a plan's revision is a number from 1 on", context={"field": "revision"}
        )
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


class _After:
    """The registry as it would be after some steps of a plan."""

    def __init__(self, facts: Facts, steps: Sequence[Step]) -> None:
        self._facts = facts
        self._gone: dict[str, tuple[str, Key | None]] = {}
        for step in steps:
            target = self.find(step.target) if step.action in ("supersede", "retire") else None
            successor = self.find(step.successor) if step.successor else None
            if target is not None and target.status == "active":
                how = "superseded" if step.action == "supersede" else "retired"
                self._gone[target.vocab_id] = (
                    how,
                    successor.key if successor is not None else None,
                )

    def collection(self, name: str) -> Collection | None:
        return self._facts.collection(name)

    def find(self, text: str) -> Value | None:
        found = self._facts.find(text)
        if found is None or found.vocab_id not in self._gone:
            return found
        status, successor = self._gone[found.vocab_id]
        named = (
            (successor.operation_code, successor.protocol_version) if successor else (None, None)
        )
        return msgspec.structs.replace(
            found, status=status, successor_code=named[0], successor_version=named[1]
        )

    def meant(self, text: str) -> Value:
        found = self.find(text)
        if found is None:
            raise InvalidConfig(
                f"there is no value {text[:80]} in the registry", context={"value": text[:128]}
            )
        return found

    def heirs_of(self, key: Key) -> list[Value]:
        return self._facts.heirs_of(key)


def judge(plan: RollbackPlan | None, facts: Facts, executing: bool = False) -> Verdict:
    """The first rule that does not hold, by its number; each step is judged as those before it would leave things."""
    if plan is not None and plan.execute and not executing:
        return Verdict(CODES[0], why="it asks to be executed, and is only being checked")
    if plan is None or not plan.steps:
        return Verdict(CODES[1], why="there is no plan, or no step in it")
    collection = facts.collection(plan.collection)
    if collection is None:
        raise InvalidConfig(
            f"there is no collection {plan.collection[:60]!a}", context={"field": "collection"}
        )
    views = [_After(facts, plan.steps[:number]) for number in range(len(plan.steps))]
    for step, view in zip(plan.steps, views, strict=True):
        if step.action != "rewrite":
            view.meant(step.target)
    for code, rule in _RULES:
        for number, (step, view) in enumerate(zip(plan.steps, views, strict=True), 1):
            why = rule(step, view, collection)
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
    if step.action == "rewrite":
        return f"{step.target[:60] or 'history'} is written once"
    target = facts.meant(step.target)
    after = f", and {target.successor} follows it" if target.successor else ""
    return (
        ""
        if target.status == "active"
        else f"{target.key} is {target.status} already{after}; that is history"
    )


def _changes(step: Step, facts: Facts, collection: Collection) -> str:
    return (
        f"{facts.meant(step.target).key} would mean something else"
        if step.action == "change"
        else ""
    )


def _weakens(step: Step, facts: Facts, collection: Collection) -> str:
    successor = facts.find(step.successor) if step.successor else None
    if step.action != "supersede" or successor is None:
        return ""
    before, after = (
        facts.meant(step.target).governing_authority_ref,
        successor.governing_authority_ref,
    )
    return f"{after} would govern instead of {before}" if before != after else ""


def _unnamed(step: Step, facts: Facts, collection: Collection) -> str:
    if step.action != "supersede":
        return f"a value is superseded by another that is named, not by {step.action}"
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
    return (
        f"{successor.key} is not newer"
        if older and successor.operation_code == target.operation_code
        else ""
    )


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
        (
            _deletes,
            _orphans,
            _erases,
            _changes,
            _weakens,
            _unnamed,
            _backward,
            _unaudited,
            _elsewhere,
        ),
        strict=True,
    )
)
