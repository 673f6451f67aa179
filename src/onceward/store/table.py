"""The declaration of a table: record, key, file in bundles, columns that are no evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Generic, TypeVar

import msgspec

from onceward.store.port import Reads, Value, Writes

R = TypeVar("R", bound=msgspec.Struct)
WHOLE_TABLE: Final = "*"
"""In `not_evidence`: every column."""


@dataclass(frozen=True, slots=True, eq=False)
class Lifecycle:
    """The lifecycle of a table's rows: the machine, the state's column and the streams.

    Such a table also has the columns `version`, `position`, `created_at` and `updated_at`.
    """

    machine: str
    state: str
    stream: str
    silent: tuple[str, ...] = ()
    """States that are entered without an event."""
    forward: bool = False
    """Whether its rows may refer to rows that come later in the same commit."""


@dataclass(frozen=True, eq=False)
class Table(Generic[R]):
    """One table. Its columns are the fields of its record; the migrations have its types and
    constraints."""

    record: type[R] | None
    """The type of a row; None where nothing reads whole rows."""
    name: str
    key: tuple[str, ...]
    order: tuple[str, ...] = ()
    """The order of its rows in evidence, where that is not the order of its key."""
    bundle: str = ""
    """The file of a bundle that has its rows; empty where bundles have none."""
    bundled_with: str = ""
    """The one kind of subject whose bundles have that file; empty where all have it."""
    evidence: type[msgspec.Struct] | None = None
    """The part of a row that is evidence, where that is less than the record."""
    lifecycle: Lifecycle | None = None
    not_evidence: Mapping[str, str] = field(default_factory=dict)
    """Columns that `verify` does not hold against anything, each with the reason why nothing
    depends on it."""

    @cached_property
    def columns(self) -> str:
        """The columns of the record, as SQL."""
        assert self.record is not None
        return ", ".join(self.record.__struct_fields__)

    def columns_of(self, alias: str) -> str:
        """The columns of the record, as SQL in which the table goes by another name."""
        assert self.record is not None
        return ", ".join(f"{alias}.{name}" for name in self.record.__struct_fields__)

    @cached_property
    def insert_sql(self) -> str:
        assert self.record is not None
        if self.lifecycle is not None:
            raise ValueError(f"a row of {self.name} is made only by a move")
        marks = ", ".join("?" * len(self.record.__struct_fields__))
        return f"INSERT INTO {self.name} ({self.columns}) VALUES ({marks})"

    def read(self, rows: Reads, rest: str = "", params: Sequence[Value] = ()) -> list[R]:
        """The rows that the rest of a SELECT (`WHERE …`, `ORDER BY …`) means, as records."""
        assert self.record is not None
        found = rows.read(f"SELECT {self.columns} FROM {self.name} {rest}", params)
        return [self.record(*row) for row in found]

    def first(self, rows: Reads, rest: str, params: Sequence[Value] = ()) -> R | None:
        """The first of those rows, or None."""
        found = self.read(rows, rest, params)
        return found[0] if found else None

    def begins(self, rows: Reads, prefix: str) -> list[R]:
        """The row of that id, or else up to two whose ids begin so; of an empty prefix, any two."""
        (key,) = self.key
        found = self.read(
            rows,
            f"WHERE {key} >= ? AND {key} < ? ORDER BY {key} LIMIT 2",
            (prefix, prefix + "\U0010ffff"),
        )
        exact = [row for row in found if getattr(row, key) == prefix]
        return exact or found

    def insert(self, tx: Writes, row: R) -> None:
        tx.write(self.insert_sql, msgspec.structs.astuple(row))

    def stream_of(self, subject: str) -> str:
        """The stream of one subject's events."""
        assert self.lifecycle is not None
        return f"{self.lifecycle.stream}:{subject}"

    def skips(self, column: str) -> bool:
        """Whether a column is no evidence."""
        return column in self.not_evidence or WHOLE_TABLE in self.not_evidence

    @property
    def in_order(self) -> tuple[str, ...]:
        """The columns that its rows are ordered by in evidence."""
        return self.order or self.key

    def proven(self) -> type[Any]:
        """The record of what is evidence of a row."""
        found = self.evidence or self.record
        assert found is not None
        return found
