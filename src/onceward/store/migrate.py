"""Numbered migrations: each in its own transaction, with a checksum, never past what this code
knows."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from importlib import resources
from typing import NamedTuple

from onceward.core import faults
from onceward.core.sources import Sources
from onceward.errors import CorruptState, Recovery, SchemaTooNew
from onceward.store.port import Database, DatabaseSession
from onceward.store.writer import commit_plainly

_PART = re.compile(r"^\s*--\[(\w+)\n(.*?)^\s*--\]\n", re.DOTALL | re.MULTILINE)


class Migration(NamedTuple):
    """One numbered step of the schema."""

    number: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    def sql_for(self, kind: str) -> str:
        """The statements for one kind of database: the common ones and its own parts."""
        return _PART.sub(lambda part: part.group(2) if part.group(1) == kind else "", self.text)


def known() -> list[Migration]:
    """The migrations that ship with this version, in order."""
    return list(_shipped())


@lru_cache(maxsize=1)
def _shipped() -> tuple[Migration, ...]:
    found = []
    for file in resources.files("onceward.store").joinpath("migrations").iterdir():
        if file.name.endswith(".sql"):
            number, _, name = file.name.removesuffix(".sql").partition("_")
            found.append(Migration(int(number), name, file.read_text("utf-8")))
    return tuple(sorted(found))


def applied(database: Database, session: DatabaseSession) -> list[tuple[int, str]]:
    """Number and checksum of what the store already has; refuses a newer or altered history."""
    if "schema_migrations" not in database.tables(session):
        return []
    rows = [
        (n, c)
        for n, c in session.read("SELECT number, checksum FROM schema_migrations ORDER BY number")
    ]
    ours = {m.number: m for m in known()}
    newest = max(ours)
    for number, checksum in rows:
        if number > newest:
            raise SchemaTooNew(
                f"the store has schema {rows[-1][0]}; this Onceward knows schemas up to {newest}",
                context={"found": rows[-1][0], "known": newest},
                recovery=[
                    Recovery(
                        "use the newer Onceward that wrote it", "pip install --upgrade onceward"
                    )
                ],
            )
        if ours[number].checksum != checksum:
            raise CorruptState(
                f"migration {number} was applied with other statements than this Onceward has",
                context={"migration": number},
            )
    return rows


def migrate(database: Database, sources: Sources, *, unused_only: bool = False) -> list[Migration]:
    """Bring the store to this version's schema; answers what was applied now. With `unused_only`
    a store that has events is left as it is."""
    session = database.connect(kernel=True)
    done: list[Migration] = []
    try:
        for migration in known():
            if _apply(database, session, migration, sources, unused_only):
                done.append(migration)
    finally:
        session.close()
    return done


def pending(database: Database) -> list[Migration]:
    """The migrations that `migrate` would apply."""
    session = database.connect()
    try:
        have = {number for number, _ in applied(database, session)}
    finally:
        session.close()
    return [m for m in known() if m.number not in have]


def used(database: Database) -> bool:
    """Whether the store has events."""
    session = database.connect()
    try:
        return _has_events(database, session)
    finally:
        session.close()


def _has_events(database: Database, session: DatabaseSession) -> bool:
    return "events" in database.tables(session) and bool(
        session.read("SELECT 1 FROM events LIMIT 1")
    )


def _apply(
    database: Database,
    session: DatabaseSession,
    migration: Migration,
    sources: Sources,
    unused_only: bool,
) -> bool:
    database.exclusive(session)
    try:
        done = migration.number in {number for number, _ in applied(database, session)}
        # Looked at in the transaction of the migration: nobody can begin to use the store between
        # the two.
        if done or (unused_only and _has_events(database, session)):
            session.rollback()
            return False
        if migration.number == 1:
            database.script(
                session,
                "CREATE TABLE schema_migrations (number INTEGER PRIMARY KEY, name TEXT NOT NULL,"
                " checksum TEXT NOT NULL, applied_at INTEGER NOT NULL) STRICT;",
            )
        database.script(session, migration.sql_for(database.kind))
        if migration.number == 1:
            session.write(
                "INSERT INTO workspace (one, workspace_id, created_at) VALUES (1, ?, ?)",
                (sources.new_id("wsp"), sources.now()),
            )
        session.write(
            "INSERT INTO schema_migrations (number, name, checksum, applied_at) VALUES (?, ?, ?, ?)",
            (migration.number, migration.name, migration.checksum, sources.now()),
        )
        faults.point("migrate.applied")
        commit_plainly(session, f"migration {migration.number}")
    except BaseException:
        session.rollback()
        raise
    return True
