"""The kinds of bundles, and the file of a bundle for each kind of record."""

from __future__ import annotations

from typing import Any, Final

from onceward.store.schema import TABLES, table_of

KINDS: Final = ("build", "session", "saga", "entry")
"""The kinds of subjects that have bundles."""
BUNDLED: Final = frozenset(table.proven() for table in TABLES if table.bundle)
"""The records that bundles have."""


def file_of(record: type[Any]) -> str:
    """The file of a bundle that has these records."""
    return table_of(record).bundle


def stream_of(kind: str, subject: str) -> str:
    """The one stream of a subject whose head stands for all of it."""
    return f"{'entry' if kind == 'entry' else 'session'}:{subject}"
