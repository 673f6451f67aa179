"""The life of the registry: collections, and versioned values that mean one thing for ever (S-5)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from onceward.core.canon import digest
from onceward.core.machine import NEW, Machine
from onceward.core.records import Move
from onceward.core.vocabulary import (
    Audit,
    Collection,
    Key,
    Value,
    key_of,
    version_of,
)

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
    """What a value means; it never changes."""

    operation_code: str
    protocol_version: str
    act_type: str
    governing_authority_ref: str
    semantics_frozen: bool = True

    @property
    def key(self) -> Key:
        return Key(self.operation_code, self.protocol_version)

    def digest(self) -> str:
        """The digest of the meaning in cser-v1."""
        return digest({**msgspec.structs.asdict(self), "cser": CSER})


def meaning_of(value: Value) -> Meaning:
    """The meaning of a stored value."""
    return Meaning(
        operation_code=value.operation_code,
        protocol_version=value.protocol_version,
        act_type=value.act_type,
        governing_authority_ref=value.governing_authority_ref,
        semantics_frozen=bool(value.semantics_frozen),
    )


def schema_digest(name: str) -> str:
    """The digest of the schema of a collection."""
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
    """The digest of a set of values: their keys and digests, and what they supersede."""
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
    """The values that are to be in a collection."""

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
        """How audit rows name the plan."""
        return f"{self.plan_id}@{self.revision}"


def create(collection_id: str, name: str, root: str, actor: str) -> Move:
    columns = {"name": name, "schema_digest": schema_digest(name), "root": root}
    return Move(
        machine=COLLECTION,
        subject=collection_id,
        source=NEW,
        target="active",
        version=0,
        actor=actor,
        detail=columns,
        columns=columns,
    )


def retire_collection(collection: Collection, reason: str, actor: str) -> Move:
    COLLECTION.follow(collection.status, "retired", reason)
    return Move(
        machine=COLLECTION,
        subject=collection.collection_id,
        source=collection.status,
        target="retired",
        version=collection.version,
        actor=actor,
        reason=reason,
        detail={"name": collection.name, "root": collection.root},
    )


def admit(vocab_id: str, collection_id: str, meaning: Meaning, root: str, actor: str) -> Move:
    """A value enters the registry, active."""
    version = version_of(meaning.protocol_version)
    said = {
        **msgspec.structs.asdict(meaning),
        "collection_id": collection_id,
        "digest": meaning.digest(),
        "root": root,
    }
    numbers = {"major": version.major, "minor": version.minor, "patch": version.patch}
    columns = {**said, **numbers, "semantics_frozen": int(meaning.semantics_frozen)}
    return Move(
        machine=VALUE,
        subject=vocab_id,
        source=NEW,
        target="active",
        version=0,
        actor=actor,
        detail=said,
        columns=columns,
    )


def supersede(value: Value, successor: Key, actor: str, audit: Audit) -> Move:
    """A value is superseded by another, which it names, with the audit row that says why."""
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
    columns["audit_id"] = audit.audit_id
    return _move(value, "superseded", "successor_named", actor, detail=said, columns=columns)


def retire(value: Value, reason: str, actor: str) -> Move:
    """A value is withdrawn; its meaning stays."""
    return _move(value, "retired", reason, actor)


def _move(
    value: Value,
    target: str,
    reason: str,
    actor: str,
    *,
    detail: Mapping[str, Any] = _NOTHING,
    columns: Mapping[str, Any] = _NOTHING,
) -> Move:
    VALUE.follow(value.status, target, reason)
    said = {**detail, "value": str(value.key), "root": value.root}
    return Move(
        machine=VALUE,
        subject=value.vocab_id,
        source=value.status,
        target=target,
        version=value.version,
        actor=actor,
        reason=reason,
        detail=said,
        columns=columns,
    )
