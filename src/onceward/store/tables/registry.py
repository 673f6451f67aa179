"""The registry as rows: collections and their values (S-5). The schema itself refuses what must
not be."""

from __future__ import annotations

from typing import Final

import msgspec

from onceward.core.sources import Micros
from onceward.core.vocabulary import Audit, Collection, Key, Value, key_of
from onceward.errors import NotFound
from onceward.store.port import Reads, Writes
from onceward.store.table import Lifecycle, Table


class MetaRow(msgspec.Struct, frozen=True):
    """A collection's name, and whom it was given to."""

    name: str
    schema_digest: str
    root: str
    created_at: Micros


METAS: Final = Table(MetaRow, "registry_meta", key=("name",))
COLLECTIONS: Final = Table(
    Collection,
    "registry_collections",
    key=("collection_id",),
    bundle="collections.ndjson",
    bundled_with="saga",
    lifecycle=Lifecycle(machine="collection", state="status", stream="entry"),
)
VALUES: Final = Table(
    Value,
    "registry_values",
    key=("vocab_id",),
    bundle="values.ndjson",
    bundled_with="saga",
    lifecycle=Lifecycle(machine="value", state="status", stream="entry", forward=True),
)
AUDITS: Final = Table(
    Audit, "registry_audit", key=("audit_id",), bundle="audits.ndjson", bundled_with="saga"
)


class Registry:
    def __init__(self, rows: Reads) -> None:
        self._rows = rows

    def collection(self, name: str) -> Collection | None:
        """The collection in force under a name."""
        return COLLECTIONS.first(self._rows, "WHERE name = ? AND status = 'active'", (name,))

    def collections(self) -> list[Collection]:
        """Every collection that is in force, by name."""
        return COLLECTIONS.read(self._rows, "WHERE status = 'active' ORDER BY name")

    def meta(self, name: str) -> tuple[str, str] | None:
        """Schema digest and root of what a name was given to."""
        found = self._rows.read(
            "SELECT schema_digest, root FROM registry_meta WHERE name = ?", (name,)
        )
        return (found[0][0], found[0][1]) if found else None

    def value(self, key: Key) -> Value | None:
        return VALUES.first(
            self._rows,
            "WHERE operation_code = ? AND protocol_version = ?",
            (key.operation_code, key.protocol_version),
        )

    def active(self, operation_code: str, act_type: str) -> Value | None:
        """The value in force of an operation and kind of act."""
        return VALUES.first(
            self._rows,
            "WHERE operation_code = ? AND act_type = ? AND status = 'active'",
            (operation_code, act_type),
        )

    def find(self, text: str) -> Value | None:
        """The value that `code@version` or a `voc_` id means, never a code alone."""
        if not text.startswith("voc_"):
            return self.value(key_of(text))
        return VALUES.first(self._rows, "WHERE vocab_id = ?", (text,))

    def meant(self, text: str) -> Value:
        """The same, and NOT_FOUND where there is none."""
        value = self.find(text)
        if value is None:
            raise NotFound(
                f"there is no value {text[:80]} in the registry", context={"value": text[:128]}
            )
        return value

    def values(self, collection_id: str) -> list[Value]:
        """Every value of a collection, by operation and then by version as numbers."""
        return VALUES.read(
            self._rows,
            "WHERE collection_id = ? ORDER BY operation_code, major, minor, patch",
            (collection_id,),
        )

    def of_root(self, root: str) -> list[Value]:
        """The values that a run admitted, in the order of their keys."""
        return VALUES.read(
            self._rows, "WHERE root = ? ORDER BY operation_code, major, minor, patch", (root,)
        )

    def audit(self, root: str, state: str, subject: str) -> Audit | None:
        """The audit of a subject in one state of a run."""
        return AUDITS.first(
            self._rows, "WHERE root = ? AND state = ? AND subject = ?", (root, state, subject)
        )

    def audit_of(self, audit_id: str) -> Audit | None:
        return AUDITS.first(self._rows, "WHERE audit_id = ?", (audit_id,))

    def heirs_of(self, key: Key) -> list[Value]:
        """The values that name this one as their successor."""
        return VALUES.read(
            self._rows,
            "WHERE successor_code = ? AND successor_version = ?"
            " ORDER BY operation_code, major, minor, patch",
            (key.operation_code, key.protocol_version),
        )


def note_meta(tx: Writes, meta: MetaRow) -> None:
    """What a collection is to look like, before it is there; a name is given once."""
    METAS.insert(tx, meta)


def note_audit(tx: Writes, audit: Audit) -> None:
    """Beside the event that names it, in its transaction."""
    AUDITS.insert(tx, audit)
