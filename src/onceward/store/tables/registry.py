"""The registry as rows: collections and their values (S-5). The schema itself refuses what must not be."""

from __future__ import annotations

from onceward.core.sources import Micros
from onceward.core.vocabulary import Audit, Collection, Key, Value, key_of
from onceward.errors import NotFound
from onceward.store.port import Reads, Writes

_COLLECTION = ", ".join(Collection.__struct_fields__)
_AUDIT = ", ".join(Audit.__struct_fields__)
_VALUE = ", ".join(Value.__struct_fields__)


class Registry:
    def __init__(self, rows: Reads) -> None:
        self._rows = rows

    def collection(self, name: str) -> Collection | None:
        """The collection in force under a name."""
        found = self._rows.read(
            f"SELECT {_COLLECTION} FROM registry_collections WHERE name = ? AND status = 'active'",
            (name,),
        )
        return Collection(*found[0]) if found else None

    def collections(self) -> list[Collection]:
        """Every collection that is in force, by name."""
        found = self._rows.read(
            f"SELECT {_COLLECTION} FROM registry_collections WHERE status = 'active' ORDER BY name"
        )
        return [Collection(*row) for row in found]

    def meta(self, name: str) -> tuple[str, str] | None:
        """Schema digest and root of what a name was given to."""
        found = self._rows.read(
            "SELECT schema_digest, root FROM registry_meta WHERE name = ?", (name,)
        )
        return (found[0][0], found[0][1]) if found else None

    def value(self, key: Key) -> Value | None:
        found = self._rows.read(
            f"SELECT {_VALUE} FROM registry_values WHERE operation_code = ? AND protocol_version = ?",
            (key.operation_code, key.protocol_version),
        )
        return Value(*found[0]) if found else None

    def active(self, operation_code: str, act_type: str) -> Value | None:
        """The value in force of an operation and kind of act."""
        found = self._rows.read(
            f"SELECT {_VALUE} FROM registry_values WHERE operation_code = ? AND act_type = ? AND status = 'active'",
            (operation_code, act_type),
        )
        return Value(*found[0]) if found else None

    def find(self, text: str) -> Value | None:
        """The value that `code@version` or a `voc_` id means, never a code alone."""
        if not text.startswith("voc_"):
            return self.value(key_of(text))
        found = self._rows.read(f"SELECT {_VALUE} FROM registry_values WHERE vocab_id = ?", (text,))
        return Value(*found[0]) if found else None

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
        found = self._rows.read(
            f"SELECT {_VALUE} FROM registry_values WHERE collection_id = ?"
            " ORDER BY operation_code, major, minor, patch",
            (collection_id,),
        )
        return [Value(*row) for row in found]

    def of_root(self, root: str) -> list[Value]:
        """What somebody's run admitted, in the order of its keys."""
        found = self._rows.read(
            f"SELECT {_VALUE} FROM registry_values WHERE root = ? ORDER BY operation_code, major, minor, patch",
            (root,),
        )
        return [Value(*row) for row in found]

    def audit(self, root: str, state: str, subject: str) -> Audit | None:
        """What was written down of a subject in a state of somebody's run."""
        found = self._rows.read(
            f"SELECT {_AUDIT} FROM registry_audit WHERE root = ? AND state = ? AND subject = ?",
            (root, state, subject),
        )
        return Audit(*found[0]) if found else None

    def audit_of(self, audit_id: str) -> Audit | None:
        found = self._rows.read(
            f"SELECT {_AUDIT} FROM registry_audit WHERE audit_id = ?", (audit_id,)
        )
        return Audit(*found[0]) if found else None

    def heirs_of(self, key: Key) -> list[Value]:
        """Those that named a value as their successor."""
        found = self._rows.read(
            f"SELECT {_VALUE} FROM registry_values WHERE successor_code = ? AND successor_version = ?"
            " ORDER BY operation_code, major, minor, patch",
            (key.operation_code, key.protocol_version),
        )
        return [Value(*row) for row in found]


def note_meta(tx: Writes, name: str, schema_digest: str, root: str, now: Micros) -> None:
    """What a collection is to look like, before it is there; a name is given once."""
    tx.write(
        "INSERT INTO registry_meta (name, schema_digest, root, created_at) VALUES (?, ?, ?, ?)",
        (name, schema_digest, root, now),
    )


def note_audit(tx: Writes, audit: Audit, now: Micros) -> None:
    """Beside the event that names it, in its transaction."""
    tx.write(
        f"INSERT INTO registry_audit ({_AUDIT}, created_at) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            audit.audit_id,
            audit.root,
            audit.state,
            audit.subject,
            audit.rollback_ref,
            audit.position,
            now,
        ),
    )
