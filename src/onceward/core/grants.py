"""Grants as stored, and exactly what each is for (S-3)."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from onceward.core.canon import digest
from onceward.core.limits import MAX_INTEGER
from onceward.core.records import check_name
from onceward.core.sources import Micros
from onceward.errors import InvalidConfig

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_ACTION: Final = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,63}")


class Scope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Exactly what a grant allows, and to whom; two scopes are the same or they are not."""

    plan_id: str
    revision: int
    manifest_digest: str
    schema_digest: str
    environment: str
    executor: str
    actions: tuple[str, ...]
    """A set: in order, each once."""

    def check(self) -> Scope:
        """The scope in its one form; refused where it says nothing, or nothing exact."""
        for name in ("plan_id", "environment", "executor"):
            check_name(getattr(self, name), name)
        for name in ("manifest_digest", "schema_digest"):
            if not _DIGEST.fullmatch(getattr(self, name)):
                raise InvalidConfig(f"{name} must be a SHA-256 in hex", context={"field": name})
        if not 1 <= self.revision <= MAX_INTEGER:
            raise InvalidConfig(
                "a plan's revision is a number from 1 on", context={"field": "revision"}
            )
        if not self.actions or not all(_ACTION.fullmatch(action) for action in self.actions):
            raise InvalidConfig("a grant names the actions it allows", context={"field": "actions"})
        return msgspec.structs.replace(self, actions=tuple(sorted(set(self.actions))))

    def digest(self) -> str:
        return digest(msgspec.to_builtins(self.check()))


class Grant(msgspec.Struct, frozen=True):
    """A grant as stored."""

    grant_id: str
    plan_id: str
    revision: int
    manifest_digest: str
    schema_digest: str
    environment: str
    executor: str
    actions: str
    expires_at: Micros
    granter: str | None
    statement_hash: str | None
    consumed_by_root: str | None
    finalized_at: Micros | None
    status: str
    version: int
    created_at: Micros = 0
    updated_at: Micros = 0

    @property
    def scope(self) -> Scope:
        return Scope(
            plan_id=self.plan_id,
            revision=self.revision,
            manifest_digest=self.manifest_digest,
            schema_digest=self.schema_digest,
            environment=self.environment,
            executor=self.executor,
            actions=tuple(msgspec.json.decode(self.actions, type=list[str])),
        )
