"""Rules of the registry: every refusal of a plan, a value or a rollback, from values alone (S-2, S-5, S-6)."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from onceward.core.limits import MAX_INTEGER, MAX_PLAN_ID_CHARS
from onceward.core.records import check_name
from onceward.core.vocabulary import (
    CODE,
    Audit,
    Collection,
    Key,
    Value,
    Version,
    key_of,
    version_of,
)
from onceward.errors import IntegrityFault, InvalidConfig
from onceward.registry.machine import Meaning, Planned, RegistryPlan
from onceward.registry.rollback import (
    CODES,
    KnownValues,
    RollbackPlan,
    RollbackVerdict,
    first_broken_rule,
    values_after_each_step,
)

# What a plan says.


def require_meaning(meaning: Meaning) -> Version:
    """The version of a value that can be compared and digested."""
    if not CODE.fullmatch(meaning.operation_code):
        raise InvalidConfig(
            f"{meaning.operation_code[:60]!a} is no operation code",
            context={"field": "operation_code"},
        )
    for name in ("act_type", "governing_authority_ref"):
        text = getattr(meaning, name)
        if (
            not 1 <= len(text) <= 200
            or not text.isprintable()
            or not unicodedata.is_normalized("NFC", text)
        ):
            raise InvalidConfig(
                f"{name} must be 1 to 200 printable characters in NFC, not {text[:40]!a}",
                context={"field": name},
            )
    return version_of(meaning.protocol_version)


def digest_of(meaning: Meaning) -> str:
    """The digest of a value that can be digested."""
    require_meaning(meaning)
    return meaning.digest()


def require_plan(said: Any) -> RegistryPlan:
    """A registry plan from its words; refused where it could never be carried out."""
    try:
        plan = msgspec.convert(said, RegistryPlan)
    except msgspec.ValidationError as error:
        raise InvalidConfig(
            f"this is no registry plan: {error}", context={"field": "plan"}
        ) from None
    _require_plan_id(plan.plan_id)
    if not CODE.fullmatch(plan.collection):
        raise InvalidConfig(
            f"{plan.collection[:60]!a} is no collection's name", context={"field": "collection"}
        )
    _require_revision(plan.revision)
    if not plan.value:
        raise InvalidConfig(
            "a registry plan has at least one [[value]]", context={"field": "value"}
        )
    seen: set[Any] = set()
    for one in plan.value:
        require_meaning(one.meaning)
        act = (one.operation_code, one.act_type)
        if one.key in seen or act in seen:
            raise InvalidConfig(
                f"two values of the plan are of {one.operation_code} and the act {one.act_type}; one can be active",
                context={"field": "value", "value": str(one.key)},
            )
        seen |= {one.key, act}
        if one.supersedes:
            _require_newer(one, key_of(one.supersedes))
    return plan


def require_rollback_plan(said: Any) -> RollbackPlan:
    """A rollback plan from its words."""
    try:
        plan = msgspec.convert(said, RollbackPlan)
    except msgspec.ValidationError as error:
        raise InvalidConfig(
            f"this is no rollback plan: {error}", context={"field": "plan"}
        ) from None
    _require_plan_id(plan.plan_id)
    _require_revision(plan.revision)
    return plan


def _require_plan_id(plan_id: str) -> None:
    check_name(plan_id, "plan_id")
    if len(plan_id) > MAX_PLAN_ID_CHARS:
        raise InvalidConfig(
            f"a plan_id has at most {MAX_PLAN_ID_CHARS} characters", context={"field": "plan_id"}
        )


def _require_revision(revision: int) -> None:
    if not 1 <= revision <= MAX_INTEGER:
        raise InvalidConfig(
            "a plan's revision is a number from 1 on", context={"field": "revision"}
        )


def _require_newer(one: Planned, before: Key) -> None:
    """A value supersedes an older version of the same operation."""
    newer = version_of(before.protocol_version) < version_of(one.protocol_version)
    if before.operation_code != one.operation_code or not newer:
        raise InvalidConfig(
            f"{one.key} cannot supersede {before}: it must be a newer version of the same operation",
            context={"field": "supersedes", "value": str(one.key)},
        )


# Whether a plan can be carried out as things are.


class RegistryState(Protocol):
    """What there is in the registry."""

    def collection(self, name: str) -> Collection | None: ...

    def meta(self, name: str) -> tuple[str, str] | None: ...

    def value(self, key: Key) -> Value | None: ...

    def active(self, operation_code: str, act_type: str) -> Value | None: ...


def objections(plan: RegistryPlan, state: RegistryState, root: str) -> list[str]:
    """Why a plan cannot be carried out by a run as things are; asking changes nothing."""
    meta, collection = state.meta(plan.collection), state.collection(plan.collection)
    found = []
    if meta is not None and meta[0] != plan.schema_digest:
        found.append(f"the collection {plan.collection} has another schema")
    for one in plan.value:
        found += _objections_to(one, state, collection, root)
    return found


def _objections_to(
    one: Planned, state: RegistryState, collection: Collection | None, root: str
) -> list[str]:
    known = state.value(one.key)
    if known is not None:
        if known.root != root:
            return [
                f"{one.key} is in the registry already, {known.status}, by another run: a version is used once; give it"
                " the next one in the plan, and have that granted"
            ]
        if known.status != "active" or known.digest != one.meaning.digest():
            return [f"{one.key} is {known.status}, or not what the plan says"]
        return []
    active = state.active(one.operation_code, one.act_type)
    if active is not None and version_of(active.protocol_version) >= version_of(
        one.protocol_version
    ):
        return [f"{active.key} is active already, and {one.key} is not newer"]
    if one.supersedes:
        before = state.value(key_of(one.supersedes))
        if before is None or before != active:
            return [
                f"{one.supersedes} is not the active value of {one.operation_code} and the act {one.act_type}"
            ]
        if collection is None or before.collection_id != collection.collection_id:
            return [f"{one.supersedes} is in another collection"]
        return []
    if active is not None:
        return [
            f'{active.key} is active already; say supersedes = "{active.key}" where {one.key} is to follow it'
        ]
    return []


def require_unopposed(against: Sequence[str]) -> None:
    """Nothing stands against a plan."""
    if against:
        raise InvalidConfig("; ".join(against[:5]), context={"objections": list(against[:50])})


# What a run writes.


def require_schema(name: str, recorded: str, wanted: str) -> None:
    """A collection's name is used again only with the schema it was first used with."""
    if recorded != wanted:
        raise InvalidConfig(
            f"the collection {name} has another schema", context={"collection": name}
        )


def require_collection(name: str, collection: Collection | None) -> Collection:
    """The collection that a plan puts its values into."""
    if collection is None:
        raise InvalidConfig(f"there is no collection {name}", context={"collection": name})
    return collection


def require_own_value(key: Key, value: Value, root: str) -> None:
    """The value was admitted by this very run."""
    if value.root != root:
        raise InvalidConfig(
            f"{key} is in the registry already, by another run", context={"value": str(key)}
        )


# What a run reads back.


def require_successor(before: str, value: Value, successor: Key) -> None:
    """A superseded value names its successor."""
    if value.successor != successor:
        raise IntegrityFault(
            f"{before} did not give way to {successor}", context={"value": str(successor)}
        )


def require_evidence_kept(kept: bytes, evidence: bytes) -> None:
    """The evidence reads back as it was written."""
    if kept != evidence:
        raise IntegrityFault("the evidence differs from what was stored")


def require_evidence(audit: Audit | None) -> Audit:
    """The audit row that names a run's evidence."""
    if audit is None:
        raise IntegrityFault("the evidence of this run is missing")
    return audit


def require_superseded(audits: Sequence[Audit | None]) -> None:
    """Every value of a rollback has its audit row."""
    if any(audit is None for audit in audits):
        raise IntegrityFault("a value that this run superseded is not superseded")


# Rollbacks.


def judge_rollback(
    plan: RollbackPlan | None, known: KnownValues, executing: bool = False
) -> RollbackVerdict:
    """The first rule that does not hold, by its number; each step is judged as those before it would leave things."""
    if plan is not None and plan.execute and not executing:
        return RollbackVerdict(CODES[0], why="it asks to be executed, and is only being checked")
    if plan is None or not plan.steps:
        return RollbackVerdict(CODES[1], why="there is no plan, or no step in it")
    collection = _require_known_collection(plan.collection, known.collection(plan.collection))
    views = values_after_each_step(known, plan.steps)
    for step, view in zip(plan.steps, views, strict=True):
        if step.action != "rewrite":
            _require_known_value(step.target, view.find(step.target))
    return first_broken_rule(plan.steps, views, collection)


def _require_known_collection(name: str, collection: Collection | None) -> Collection:
    if collection is None:
        raise InvalidConfig(
            f"there is no collection {name[:60]!a}", context={"field": "collection"}
        )
    return collection


def _require_known_value(text: str, value: Value | None) -> None:
    if value is None:
        raise InvalidConfig(
            f"there is no value {text[:80]} in the registry", context={"value": text[:128]}
        )


def require_valid_rollback(verdict: RollbackVerdict) -> None:
    """A rollback is executed only where no rule stands against it."""
    if not verdict.valid:
        raise InvalidConfig(f"{verdict.code}: {verdict.why}", context={"code": verdict.code})
