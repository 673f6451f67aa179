"""Rollback plans, and the rules RBP-0 to RBP-10 that each step of one must keep (S-6). Nothing is executed here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal, Protocol

import msgspec

from onceward.core.vocabulary import Collection, Key, Value, version_of

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


class RollbackStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a plan wants of one value; only `supersede` can be executed."""

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
    steps: list[RollbackStep] = msgspec.field(name="step", default_factory=list)
    execute: bool = False
    revision: int = 1


class KnownValues(Protocol):
    """The values and collections of the registry."""

    def collection(self, name: str) -> Collection | None: ...

    def meant(self, text: str) -> Value: ...

    def find(self, text: str) -> Value | None: ...

    def heirs_of(self, key: Key) -> list[Value]: ...


class RollbackVerdict(msgspec.Struct, frozen=True):
    """The code of the first broken rule, or VALID, and the step it comes from."""

    code: str
    step: int = 0
    why: str = ""

    @property
    def valid(self) -> bool:
        return self.code == VALID


class _After:
    """The registry as it would be after some steps of a plan."""

    def __init__(self, known: KnownValues, steps: Sequence[RollbackStep]) -> None:
        self._known = known
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
        return self._known.collection(name)

    def find(self, text: str) -> Value | None:
        found = self._known.find(text)
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
        """The value that a step is about: it is known to be there."""
        found = self.find(text)
        assert found is not None
        return found

    def heirs_of(self, key: Key) -> list[Value]:
        return self._known.heirs_of(key)


def values_after_each_step(
    known: KnownValues, steps: Sequence[RollbackStep]
) -> Sequence[KnownValues]:
    """For each step the registry as the steps before it would leave it."""
    return [_After(known, steps[:number]) for number in range(len(steps))]


def first_broken_rule(
    steps: Sequence[RollbackStep], views: Sequence[KnownValues], collection: Collection
) -> RollbackVerdict:
    """The first rule, by its number, that a step breaks; valid where no step breaks one. Targets are known values."""
    for code, rule in _RULES:
        for number, (step, view) in enumerate(zip(steps, views, strict=True), 1):
            why = rule(step, view, collection)
            if why:
                return RollbackVerdict(code, number, why)
    return RollbackVerdict(VALID)


def _deletes(step: RollbackStep, known: KnownValues, collection: Collection) -> str:
    return "values are never deleted" if step.action == "delete" else ""


def _orphans(step: RollbackStep, known: KnownValues, collection: Collection) -> str:
    if step.action != "retire":
        return ""
    heirs = known.heirs_of(known.meant(step.target).key)
    return f"{heirs[0].key} would point at nothing that is in force" if heirs else ""


def _erases(step: RollbackStep, known: KnownValues, collection: Collection) -> str:
    if step.action == "rewrite":
        return f"{step.target[:60] or 'history'} is written once"
    target = known.meant(step.target)
    after = f", and {target.successor} follows it" if target.successor else ""
    return (
        ""
        if target.status == "active"
        else f"{target.key} is {target.status} already{after}; that is history"
    )


def _changes(step: RollbackStep, known: KnownValues, collection: Collection) -> str:
    return (
        f"{known.meant(step.target).key} would mean something else"
        if step.action == "change"
        else ""
    )


def _weakens(step: RollbackStep, known: KnownValues, collection: Collection) -> str:
    successor = known.find(step.successor) if step.successor else None
    if step.action != "supersede" or successor is None:
        return ""
    before, after = (
        known.meant(step.target).governing_authority_ref,
        successor.governing_authority_ref,
    )
    return f"{after} would govern instead of {before}" if before != after else ""


def _unnamed(step: RollbackStep, known: KnownValues, collection: Collection) -> str:
    if step.action != "supersede":
        return f"a value is superseded by another that is named, not by {step.action}"
    return "no successor is named" if not step.successor else ""


def _backward(step: RollbackStep, known: KnownValues, collection: Collection) -> str:
    target, successor = known.meant(step.target), known.find(step.successor)
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


def _unaudited(step: RollbackStep, known: KnownValues, collection: Collection) -> str:
    return "" if step.rollback_ref.strip() else "it names no rollback_ref for its audit row"


def _elsewhere(step: RollbackStep, known: KnownValues, collection: Collection) -> str:
    for value in filter(None, (known.meant(step.target), known.find(step.successor))):
        if value.collection_id != collection.collection_id:
            return f"{value.key} is in another collection"
    return ""


_RULES: Final[tuple[tuple[str, Callable[[RollbackStep, KnownValues, Collection], str]], ...]] = (
    tuple(
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
)
