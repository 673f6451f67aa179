"""The life of the registry: collections, and versioned values that mean one thing for ever (S-5)."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Protocol

import msgspec

from onceward.core.canon import digest
from onceward.core.limits import MAX_INTEGER, MAX_PLAN_ID_CHARS
from onceward.core.machine import NEW, Machine
from onceward.core.records import Move, check_name
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
from onceward.errors import InvalidConfig

VALUE = Machine.parse(
    "value",
    """
    new        -> active      -                          VALUE_ADMITTED
    active     -> superseded  successor_named            VALUE_SUPERSEDED
    active     -> retired     withdrawn | compensated    VALUE_RETIRED
    superseded -> retired     withdrawn                  VALUE_RETIRED

    terminal retired
    """,
    columns="""
    collection_id            detail.collection_id            VALUE_ADMITTED
    operation_code           detail.operation_code           VALUE_ADMITTED
    protocol_version         detail.protocol_version         VALUE_ADMITTED
    act_type                 detail.act_type                 VALUE_ADMITTED
    governing_authority_ref  detail.governing_authority_ref  VALUE_ADMITTED
    semantics_frozen         detail.semantics_frozen         VALUE_ADMITTED
    digest                   detail.digest                   VALUE_ADMITTED
    root                     detail.root                     VALUE_ADMITTED
    audit_id                 detail.audit_id                 VALUE_SUPERSEDED
    """,
)
COLLECTION = Machine.parse(
    "collection",
    """
    new    -> active   -                          COLLECTION_CREATED
    active -> retired  withdrawn | compensated    COLLECTION_RETIRED

    terminal retired
    """,
    columns="""
    name           detail.name           COLLECTION_CREATED
    schema_digest  detail.schema_digest  COLLECTION_CREATED
    root           detail.root           COLLECTION_CREATED
    """,
)

_NOTHING: Final[Mapping[Any, str]] = MappingProxyType({})
CSER: Final = "v1"
"""The profile by which the meaning of a value becomes bytes: K-1's canonical form, strings in NFC."""


class Meaning(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a value says, written once."""

    operation_code: str
    protocol_version: str
    act_type: str
    governing_authority_ref: str
    semantics_frozen: bool = True

    @property
    def key(self) -> Key:
        return Key(self.operation_code, self.protocol_version)

    def check(self) -> Version:
        """Refuse what could not be compared or digested; answers its version."""
        if not CODE.fullmatch(self.operation_code):
            raise InvalidConfig(
                f"{self.operation_code[:60]!a} is no operation code",
                context={"field": "operation_code"},
            )
        for name in ("act_type", "governing_authority_ref"):
            text = getattr(self, name)
            if (
                not 1 <= len(text) <= 200
                or not text.isprintable()
                or not unicodedata.is_normalized("NFC", text)
            ):
                raise InvalidConfig(
                    f"{name} must be 1 to 200 printable characters in NFC, not {text[:40]!a}",
                    context={"field": name},
                )
        return version_of(self.protocol_version)

    def digest(self) -> str:
        """By cser-v1."""
        self.check()
        return digest({**msgspec.structs.asdict(self), "cser": CSER})


def meaning_of(value: Value) -> Meaning:
    """What a stored value says."""
    return Meaning(
        *(value.operation_code, value.protocol_version, value.act_type),
        *(value.governing_authority_ref, bool(value.semantics_frozen)),
    )


def schema_digest(name: str) -> str:
    """What a collection of this name is to look like."""
    fields = sorted(Meaning.__struct_fields__)
    return digest(
        {
            "collection": name,
            "cser": CSER,
            "fields": fields,
            "key": ["operation_code", "protocol_version"],
        }
    )


def manifest_digest(meanings: Mapping[Key, str], gives_way: Mapping[Key, str] = _NOTHING) -> str:
    """Exactly which values: their keys and digests, and what gives way to them."""
    also = {key: [before] for key, before in gives_way.items()}
    return digest([[str(key), made, *also.get(key, [])] for key, made in sorted(meanings.items())])


class Planned(Meaning, frozen=True, forbid_unknown_fields=True):
    """A value that a plan wants in the registry."""

    supersedes: str = ""
    """The value that gives way to it, as code@version."""

    @property
    def meaning(self) -> Meaning:
        return Meaning(**{name: getattr(self, name) for name in Meaning.__struct_fields__})


class RegistryPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be in a collection."""

    plan_id: str
    revision: int
    collection: str
    value: tuple[Planned, ...]

    @property
    def manifest_digest(self) -> str:
        gives_way = {one.key: str(key_of(one.supersedes)) for one in self.value if one.supersedes}
        return manifest_digest({one.key: one.meaning.digest() for one in self.value}, gives_way)

    @property
    def schema_digest(self) -> str:
        return schema_digest(self.collection)

    @property
    def ref(self) -> str:
        """What an audit row says of it."""
        return f"{self.plan_id}@{self.revision}"


def plan_of(said: Any) -> RegistryPlan:
    """A plan from its words; refused where it could never be carried out."""
    try:
        plan = msgspec.convert(said, RegistryPlan)
    except msgspec.ValidationError as error:
        raise InvalidConfig(
            f"this is no registry plan: {error}", context={"field": "plan"}
        ) from None
    check_name(plan.plan_id, "plan_id")
    if len(plan.plan_id) > MAX_PLAN_ID_CHARS:
        raise InvalidConfig(
            f"a plan_id has at most {MAX_PLAN_ID_CHARS} characters", context={"field": "plan_id"}
        )
    if not CODE.fullmatch(plan.collection):
        raise InvalidConfig(
            f"{plan.collection[:60]!a} is no collection's name", context={"field": "collection"}
        )
    if not 1 <= plan.revision <= MAX_INTEGER:
        raise InvalidConfig(
            "a plan's revision is a number from 1 on", context={"field": "revision"}
        )
    if not plan.value:
        raise InvalidConfig(
            "a registry plan has at least one [[value]]", context={"field": "value"}
        )
    seen: set[Any] = set()
    for one in plan.value:
        one.meaning.check()
        act = (one.operation_code, one.act_type)
        if one.key in seen or act in seen:
            raise InvalidConfig(
                f"two values of the plan are of {one.operation_code} and the act {one.act_type}; one can be active",
                context={"field": "value", "value": str(one.key)},
            )
        seen |= {one.key, act}
        if one.supersedes:
            before = key_of(one.supersedes)
            newer = version_of(before.protocol_version) < version_of(one.protocol_version)
            if before.operation_code != one.operation_code or not newer:
                raise InvalidConfig(
                    f"{one.key} cannot supersede {before}: it must be a newer version of the same operation",
                    context={"field": "supersedes", "value": str(one.key)},
                )
    return plan


class Facts(Protocol):
    """What there is in the registry."""

    def collection(self, name: str) -> Collection | None: ...

    def meta(self, name: str) -> tuple[str, str] | None: ...

    def value(self, key: Key) -> Value | None: ...

    def active(self, operation_code: str, act_type: str) -> Value | None: ...


def objections(plan: RegistryPlan, facts: Facts, root: str) -> list[str]:
    """Why a plan cannot be carried out by a run as things are; none of it is changed by asking."""
    meta, collection = facts.meta(plan.collection), facts.collection(plan.collection)
    found = []
    if meta is not None and meta[0] != plan.schema_digest:
        found.append(f"the collection {plan.collection} has another schema")
    for one in plan.value:
        found += _objections_to(one, facts, collection, root)
    return found


def _objections_to(
    one: Planned, facts: Facts, collection: Collection | None, root: str
) -> list[str]:
    known = facts.value(one.key)
    if known is not None:
        if known.root != root:
            return [
                f"{one.key} is in the registry already, {known.status}, by another run: a version is used once; give it"
                " the next one in the plan, and have that granted"
            ]
        if known.status != "active" or known.digest != one.meaning.digest():
            return [f"{one.key} is {known.status}, or not what the plan says"]
        return []
    active = facts.active(one.operation_code, one.act_type)
    if active is not None and version_of(active.protocol_version) >= version_of(
        one.protocol_version
    ):
        return [f"{active.key} is active already, and {one.key} is not newer"]
    if one.supersedes:
        before = facts.value(key_of(one.supersedes))
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


def create(collection_id: str, name: str, root: str, actor: str) -> Move:
    columns = {"name": name, "schema_digest": schema_digest(name), "root": root}
    return Move(COLLECTION, collection_id, NEW, "active", 0, actor, detail=columns, columns=columns)


def retire_collection(collection: Collection, reason: str, actor: str) -> Move:
    COLLECTION.follow(collection.status, "retired", reason)
    known = {"name": collection.name, "root": collection.root}
    return Move(
        *(
            COLLECTION,
            collection.collection_id,
            collection.status,
            "retired",
            collection.version,
            actor,
            reason,
            known,
        )
    )


def admit(vocab_id: str, collection_id: str, meaning: Meaning, root: str, actor: str) -> Move:
    """A value enters the registry, active."""
    version = meaning.check()
    said = {
        **msgspec.structs.asdict(meaning),
        "collection_id": collection_id,
        "digest": meaning.digest(),
        "root": root,
    }
    numbers = {"major": version.major, "minor": version.minor, "patch": version.patch}
    columns = {**said, **numbers, "semantics_frozen": int(meaning.semantics_frozen)}
    return Move(VALUE, vocab_id, NEW, "active", 0, actor, detail=said, columns=columns)


def supersede(value: Value, successor: Key, actor: str, audit: Audit) -> Move:
    """A value gives way to another, which it names, and the audit row that says for what."""
    columns = {
        "successor_code": successor.operation_code,
        "successor_version": successor.protocol_version,
    }
    said = {
        "successor": str(successor),
        "audit_id": audit.audit_id,
        "rollback_ref": audit.rollback_ref,
    }
    said |= {"audit_root": audit.root, "audit_state": audit.state}
    return _move(
        value, "superseded", "successor_named", actor, said, {**columns, "audit_id": audit.audit_id}
    )


def retire(value: Value, reason: str, actor: str) -> Move:
    """A value is withdrawn; it stays what it was."""
    return _move(value, "retired", reason, actor, {}, {})


def _move(
    value: Value,
    target: str,
    reason: str,
    actor: str,
    detail: Mapping[str, Any],
    columns: Mapping[str, Any],
) -> Move:
    VALUE.follow(value.status, target, reason)
    said = {**detail, "value": str(value.key), "root": value.root}
    return Move(
        VALUE, value.vocab_id, value.status, target, value.version, actor, reason, said, columns
    )
