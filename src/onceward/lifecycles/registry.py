"""The life of the registry: collections, and versioned values that mean one thing for ever (S-5)."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from onceward.errors import InvalidConfig
from onceward.kernel.canon import digest
from onceward.kernel.machine import NEW, Machine
from onceward.kernel.records import Move
from onceward.kernel.vocabulary import CODE, Collection, Key, Value, Version, version_of

VALUE = Machine.parse(
    "value",
    """
    new        -> active      -                          VALUE_ADMITTED
    active     -> superseded  successor_named            VALUE_SUPERSEDED
    active     -> retired     withdrawn | compensated    VALUE_RETIRED
    superseded -> retired     withdrawn                  VALUE_RETIRED

    terminal retired
    """,
)
COLLECTION = Machine.parse(
    "collection",
    """
    new    -> active   -                          COLLECTION_CREATED
    active -> retired  withdrawn | compensated    COLLECTION_RETIRED

    terminal retired
    """,
)

CSER: Final = "v1"
"""The profile by which the meaning of a value becomes bytes: K-1's canonical form, strings in NFC."""
_NOTHING: Mapping[str, Any] = MappingProxyType({})


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
                f"{self.operation_code[:60]!a} is no operation code", context={"field": "operation_code"}
            )
        for name in ("act_type", "governing_authority_ref"):
            text = getattr(self, name)
            if not 1 <= len(text) <= 200 or not text.isprintable() or not unicodedata.is_normalized("NFC", text):
                raise InvalidConfig(
                    f"{name} must be 1 to 200 printable characters in NFC, not {text[:40]!a}", context={"field": name}
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
    return digest({"collection": name, "cser": CSER, "fields": fields, "key": ["operation_code", "protocol_version"]})


def manifest_digest(meanings: Mapping[Key, str]) -> str:
    """Exactly which values: their keys and digests."""
    return digest([[str(key), made] for key, made in sorted(meanings.items())])


def create(collection_id: str, name: str, root: str, actor: str) -> Move:
    columns = {"name": name, "schema_digest": schema_digest(name), "root": root}
    return Move(COLLECTION, collection_id, NEW, "active", 0, actor, detail=columns, columns=columns)


def retire_collection(collection: Collection, reason: str, actor: str) -> Move:
    COLLECTION.follow(collection.status, "retired", reason)
    known = {"name": collection.name, "root": collection.root}
    return Move(
        *(COLLECTION, collection.collection_id, collection.status, "retired", collection.version, actor, reason, known)
    )


def admit(vocab_id: str, collection_id: str, meaning: Meaning, root: str, actor: str) -> Move:
    """A value enters the registry, active."""
    version = meaning.check()
    said = {**msgspec.structs.asdict(meaning), "collection_id": collection_id, "digest": meaning.digest(), "root": root}
    numbers = {"major": version.major, "minor": version.minor, "patch": version.patch}
    columns = {**said, **numbers, "semantics_frozen": int(meaning.semantics_frozen)}
    return Move(VALUE, vocab_id, NEW, "active", 0, actor, detail=said, columns=columns)


def supersede(value: Value, successor: Key, actor: str, detail: Mapping[str, Any] = _NOTHING) -> Move:
    """A value gives way to another, which it names."""
    columns = {"successor_code": successor.operation_code, "successor_version": successor.protocol_version}
    return _move(value, "superseded", "successor_named", actor, {**detail, "successor": str(successor)}, columns)


def retire(value: Value, reason: str, actor: str) -> Move:
    """A value is withdrawn; it stays what it was."""
    return _move(value, "retired", reason, actor, {}, {})


def _move(
    value: Value, target: str, reason: str, actor: str, detail: Mapping[str, Any], columns: Mapping[str, Any]
) -> Move:
    VALUE.follow(value.status, target, reason)
    said = {**detail, "value": str(value.key), "root": value.root}
    return Move(VALUE, value.vocab_id, value.status, target, value.version, actor, reason, said, columns)
