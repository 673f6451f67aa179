"""The databases that a store URL may name, beside SQLite."""

from __future__ import annotations

from onceward.core.sources import Sources
from onceward.errors import InvalidConfig, Recovery
from onceward.store.port import Database


def postgres(url: str, sources: Sources) -> Database:
    try:
        from onceward.store.postgres import PostgresDatabase
    except ImportError:
        raise InvalidConfig(
            "the PostgreSQL driver is not installed",
            recovery=[Recovery("install it", "pip install 'psycopg[binary]'")],
        ) from None
    return PostgresDatabase(url, sources)
