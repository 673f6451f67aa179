"""The life of the registry: collections, and versioned values that mean one thing for ever (S-5)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from onceward.errors import InvalidConfig
from onceward.kernel.canon import digest
from onceward.kernel.machine import NEW, Machine
from onceward.kernel.records import Move

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
_VERSION: Final = re.compile(r"(0|[1-9]\d{0,8})\.(0|[1-9]\d{0,8})\.(0|[1-9]\d{0,8})")
_CODE: Final = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,127}")
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Version(msgspec.Struct, frozen=True, order=True):
    """A version, compared as numbers: 1.10.0 is above 1.9.0."""

    major: int
    minor: int
    patch: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


def version_of(text: str) -> Version:
    found = _VERSION.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise InvalidConfig(
            f"{str(text)[:40]!a} is no version; one has three numbers, as in 1.10.0",
            context={"field": "protocol_version"},
        )
    return Version(*map(int, found.groups()))


class Key(msgspec.Struct, frozen=True, order=True):
    """What a value goes by."""

    operation_code: str
    protocol_version: str

    def __str__(self) -> str:
        return f"{self.operation_code}@{self.protocol_version}"


def key_of(text: str) -> Key:
    """A value's key as people write it, `code@1.2.0`; never a code alone."""
    code, at, version = text.partition("@")
    if not at or not _CODE.fullmatch(code):
        raise InvalidConfig(f"{text[:80]!a} is no value; write code@1.2.0", context={"field": "operation"})
    return Key(code, str(version_of(version)))


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
        if not _CODE.fullmatch(self.operation_code):
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


class Value(msgspec.Struct, frozen=True):
    """A value as stored."""

    vocab_id: str
    collection_id: str
    operation_code: str
    protocol_version: str
    act_type: str
    governing_authority_ref: str
    semantics_frozen: int
    digest: str
    root: str
    successor_code: str | None
    successor_version: str | None
    status: str
    version: int

    @property
    def key(self) -> Key:
        return Key(self.operation_code, self.protocol_version)

    @property
    def meaning(self) -> Meaning:
        return Meaning(
            *(self.operation_code, self.protocol_version, self.act_type),
            *(self.governing_authority_ref, bool(self.semantics_frozen)),
        )

    @property
    def successor(self) -> Key | None:
        if self.successor_code is None or self.successor_version is None:
            return None
        return Key(self.successor_code, self.successor_version)


class Collection(msgspec.Struct, frozen=True):
    """A collection as stored; `root` is whose it is."""

    collection_id: str
    name: str
    schema_digest: str
    root: str
    status: str
    version: int


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
