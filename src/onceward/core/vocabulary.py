"""The registry's words: versions that are numbers, keys, collections and values as stored (S-5)."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from onceward.core.sources import Micros
from onceward.errors import InvalidConfig

_VERSION: Final = re.compile(r"(0|[1-9]\d{0,8})\.(0|[1-9]\d{0,8})\.(0|[1-9]\d{0,8})")
CODE: Final = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,127}")


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
    if not at or not CODE.fullmatch(code):
        raise InvalidConfig(
            f"{text[:80]!a} is no value; write code@1.2.0", context={"field": "operation"}
        )
    return Key(code, str(version_of(version)))


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
    audit_id: str | None
    """The audit row that says for what it was superseded."""
    status: str
    version: int
    major: int = 0
    minor: int = 0
    patch: int = 0
    created_at: Micros = 0
    updated_at: Micros = 0

    @property
    def key(self) -> Key:
        return Key(self.operation_code, self.protocol_version)

    @property
    def successor(self) -> Key | None:
        if self.successor_code is None or self.successor_version is None:
            return None
        return Key(self.successor_code, self.successor_version)


class Audit(msgspec.Struct, frozen=True):
    """For what a value was superseded, or a run's evidence taken, as stored."""

    audit_id: str
    root: str
    state: str
    subject: str
    rollback_ref: str
    position: int
    created_at: Micros


class Collection(msgspec.Struct, frozen=True):
    """A collection as stored; `root` is whose it is."""

    collection_id: str
    name: str
    schema_digest: str
    root: str
    status: str
    version: int
    created_at: Micros = 0
    updated_at: Micros = 0
