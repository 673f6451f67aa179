"""PostgreSQL by psycopg: one schema a workspace, row locks, the database's clock."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import psycopg

from onceward.core import faults
from onceward.core.records import Tenure
from onceward.core.sources import Micros, Sources, steady_micros
from onceward.errors import InvalidConfig, LockLost, OncewardError, Recovery, StorageError
from onceward.store.pipeline import Disconnected, Pipeline, StatementRefused
from onceward.store.port import (
    CommitFailed,
    DatabaseSession,
    Otherwise,
    Reads,
    Row,
    Transient,
    Value,
    Write,
    refused,
    require_own,
)

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_REPEAT = ("40001", "40P01")
_CLOCK = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
# Statements are prepared while the tables are still empty; without these the plans of that moment,
# sequential scans among them, would be kept.
_OPTIONS = (
    "-c synchronous_commit=on -c idle_in_transaction_session_timeout=60000 -c client_min_messages=warning"
    " -c enable_seqscan=off -c plan_cache_mode=force_generic_plan -c jit=off"
)


class PostgresDatabase:
    """One workspace's rows in one schema."""

    kind = "postgresql"

    def __init__(self, url: str, sources: Sources) -> None:
        self.url, self.schema = split_schema(url)
        self._sources = sources

    def connect(self, *, kernel: bool = False) -> PostgresSession:
        return PostgresSession(self._dial(), self._sources)

    def script(self, session: DatabaseSession, sql: str) -> None:
        assert isinstance(session, PostgresSession)
        session.script(_in_postgres(sql))

    def exclusive(self, session: DatabaseSession) -> None:
        """Excludes other migrators before any table exists, by a transaction-scoped lock on the
        schema's name."""
        session.begin(None)
        session.read(
            "SELECT pg_advisory_xact_lock(hashtextextended(?, 0))", (f"onceward:{self.schema}",)
        )
        session.write(f"CREATE SCHEMA IF NOT EXISTS {self.schema}")

    def tables(self, session: Reads) -> list[str]:
        rows = session.read(
            "SELECT table_name::text FROM information_schema.tables WHERE table_schema = ?"
            " AND table_type = 'BASE TABLE' ORDER BY 1",
            (self.schema,),
        )
        return [name for (name,) in rows]

    def columns(self, session: Reads, table: str) -> list[str]:
        rows = session.read(
            "SELECT column_name::text FROM information_schema.columns"
            " WHERE table_schema = ? AND table_name = ? ORDER BY ordinal_position",
            (self.schema, table),
        )
        return [name for (name,) in rows]

    def filled(self, session: Reads) -> None:
        session.read(
            "SELECT setval(pg_get_serial_sequence('requests', 'request_no'), max(request_no))"
            " FROM requests"
            " HAVING max(request_no) IS NOT NULL"
        )

    def health(self) -> list[tuple[str, str, str, str]]:
        session = self.connect()
        try:
            settings: dict[str, str] = dict(
                session.read(
                    "SELECT name, setting FROM pg_settings"
                    " WHERE name IN ('fsync', 'full_page_writes',"
                    " 'synchronous_commit', 'server_version', 'data_checksums')"
                )
            )
            standby = session.read("SELECT pg_is_in_recovery()")[0][0]
        finally:
            session.close()
        return [
            ("postgresql", "ok", f"{settings['server_version']}, schema {self.schema}", ""),
            _on(
                "fsync", settings, "a crash of the machine can lose or tear commits: set fsync = on"
            ),
            _on(
                "full_page_writes",
                settings,
                "a crash of the machine can tear pages: set full_page_writes = on",
            ),
            (
                "synchronous_commit",
                "ok" if settings["synchronous_commit"] != "off" else "fail",
                settings["synchronous_commit"],
                "set synchronous_commit = on",
            ),
            (
                "primary",
                "fail" if standby else "ok",
                "standby" if standby else "yes",
                "point the URL at the primary",
            ),
        ]

    def _dial(self) -> psycopg.Connection[Any]:
        try:
            return psycopg.connect(
                self.url,
                autocommit=True,
                connect_timeout=10,
                application_name="onceward",
                options=f"-c search_path={self.schema} {_OPTIONS}",
                tcp_user_timeout=30_000,
            )
        except psycopg.ProgrammingError:
            raise _bad_url("libpq cannot read it") from None
        except psycopg.OperationalError as error:
            # A URL that was read right puts no part of its password into these words.
            raise StorageError(
                f"cannot reach PostgreSQL: {str(error).strip().splitlines()[0]}",
                context={"outcome": "failed"},
                recovery=[Recovery("start the server, or correct the store URL")],
            ) from None


class PostgresSession:
    """One connection; writes travel together with the next read or the commit."""

    def __init__(self, connection: psycopg.Connection[Any], sources: Sources) -> None:
        self._connection = connection
        self._pid = os.getpid()
        self._pipeline = Pipeline(connection)
        self._sources = sources
        self._told = (0, 0)
        self._begun = False
        self._expected: list[Otherwise] = []
        self._open = False
        self.lost = False

    @property
    def open(self) -> bool:
        return self._open

    def begin(self, tenure: Tenure | None) -> None:
        require_own(self._pid)
        self._open, self._begun = True, True
        self._send("BEGIN ISOLATION LEVEL READ COMMITTED")
        if tenure is None:
            self._send(_CLOCK)
        else:
            self._send("SELECT onceward_fence(?, ?)", (tenure.token, tenure.fence))

    def hold(self) -> None:
        self._flush()

    def snapshot(self) -> None:
        require_own(self._pid)
        self._open, self._begun = True, True
        self._send("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        self._send(_CLOCK)

    def now(self) -> Micros:
        """The database's clock: as it told us with the last fence, carried on by our own steady
        one."""
        if not self._sources.live:
            return self._sources.now()
        if self._begun and not self._told[1]:
            self._flush()
        return self._told[0] + steady_micros() - self._told[1]

    def read(self, sql: str, params: Sequence[Value] = ()) -> list[Row]:
        self._send(sql, params)
        return self._flush()[-1]

    def write(
        self, sql: str, params: Sequence[Value] = (), otherwise: Otherwise | None = None
    ) -> None:
        if otherwise is None:
            self._send(sql, params)
            return
        self._expected.append(otherwise)
        self._send(
            f"WITH done AS ({sql} RETURNING 1) SELECT onceward_one(count(*), ?) FROM done",
            (*params, len(self._expected) - 1),
        )

    def write_together(self, writes: Sequence[Write]) -> None:
        """One statement: each write a part of it, none seeing the others, their triggers fired
        after all."""
        params: list[Value] = []
        counted: list[str] = []
        for number, write in enumerate(writes):
            params += write.params
            if write.otherwise is not None:
                counted.append(
                    f"onceward_one((SELECT count(*) FROM w{number}), {len(self._expected)})"
                )
                self._expected.append(write.otherwise)
            faults.point(write.fault)
        self._send(_folded(tuple(write.sql for write in writes), tuple(counted)), params)

    def savepoint(self) -> None:
        self._send("SAVEPOINT one")

    def release(self) -> None:
        self._send("RELEASE one")
        self._flush()

    def undo(self) -> None:
        self._settle()
        self._send("ROLLBACK TO one")
        self._send("RELEASE one")
        self._flush()

    def keep_promises(self) -> None:
        self._send("SET CONSTRAINTS ALL IMMEDIATE")
        self._send("SET CONSTRAINTS ALL DEFERRED")
        self._flush()

    def commit(self) -> None:
        try:
            self._send("COMMIT")
            self._flush()
        except _Lost as error:
            raise CommitFailed(error.message) from error
        except (OncewardError, Transient):
            raise
        except BaseException:
            # The COMMIT may be on its way: only a fresh connection can tell what became of it.
            self.lost = True
            raise
        if self._pipeline.last_tag != b"COMMIT":
            self._open = False
            raise StorageError("the transaction had failed before its commit; nothing was written")
        self._open = False

    def rollback(self) -> None:
        if self._open and not self.lost:
            self._settle()
        if self._open and not self.lost:
            self._send("ROLLBACK")
            self._settle()
        self._open = False

    def close(self) -> None:
        # In a forked copy, closing would hang up on the server in the parent's name.
        if os.getpid() == self._pid:
            self._pipeline.close()

    def script(self, sql: str) -> None:
        """Several statements at once, which pipeline mode cannot carry."""
        self._flush()
        pg = self._connection.pgconn
        pg.exit_pipeline_mode()
        try:
            result = pg.exec_(sql.encode())
            if result.status not in (1, 2):
                raise StorageError(f"the migration was refused: {result.get_error_message()}")
        finally:
            pg.enter_pipeline_mode()

    def _flush(self) -> list[list[Row]]:
        expected, self._expected = self._expected, []
        begun, self._begun = self._begun, False
        try:
            rows = self._pipeline.results()
        except Disconnected as error:
            raise self._gone(error) from error
        except StatementRefused as refusal:
            raise _translate(refusal, expected) from refusal
        except BaseException:
            # Interrupted between question and answer: nobody can tell any more which answer is
            # whose.
            self.lost = True
            raise
        if begun:
            self._told = (rows[1][0][0], steady_micros())
        return rows

    def _settle(self) -> None:
        """Hear out what is still under way, refused or not, so that what follows is not skipped
        with it."""
        with suppress(OncewardError, Transient):
            self._flush()

    def _send(self, sql: str, params: Sequence[Value] = ()) -> None:
        try:
            self._pipeline.send(sql, params)
        except Disconnected as error:
            raise self._gone(error) from error
        except BaseException:
            self.lost = True
            raise

    def _gone(self, error: Disconnected) -> _Lost:
        self._open, self.lost = False, True
        return _Lost(
            f"the connection to PostgreSQL was lost: {error}",
            context={"outcome": "failed"},
            recovery=[Recovery("run the same command again")],
        )


class _Lost(StorageError):
    """The connection is gone; whatever was under way on it ended with it."""


def _translate(refusal: StatementRefused, expected: list[Otherwise]) -> Exception:
    if refusal.sqlstate == "OW001":
        return expected[int(refusal.message)]()
    if refusal.sqlstate == "OW002":
        return LockLost("another kernel has taken this workspace; nothing was written")
    if refusal.sqlstate in _REPEAT:
        return Transient(refusal.message)
    if refusal.sqlstate == "OW003" or refusal.sqlstate.startswith("23"):
        return refused(refusal.constraint or refusal.message)
    if refusal.sqlstate.startswith("22") or refusal.sqlstate in (
        "42501",
        "3D000",
        "42P01",
        "3F000",
    ):
        return InvalidConfig(
            f"PostgreSQL refused: {refusal.message}", context={"sqlstate": refusal.sqlstate}
        )
    return StorageError(
        f"PostgreSQL refused: {refusal.message}",
        context={"outcome": "failed", "sqlstate": refusal.sqlstate},
    )


@lru_cache(maxsize=1024)
def _folded(statements: tuple[str, ...], counted: tuple[str, ...]) -> str:
    parts = ", ".join(f"w{number} AS ({sql} RETURNING 1)" for number, sql in enumerate(statements))
    return f"WITH {parts} SELECT {', '.join(counted) or '1::bigint'}"


def split_schema(url: str) -> tuple[str, str]:
    """Our URL is libpq's plus `schema=`; the schema is the workspace."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - reading it checks it
        query = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
    except ValueError:
        raise _bad_url("host, port or options cannot be read") from None
    if parts.netloc.count("@") > 1 or parts.fragment or not (parts.hostname or "host" in query):
        raise _bad_url("it needs a host, and @ : / ? # in a password must be percent-encoded")
    schema = query.pop("schema", "onceward")
    if not _SCHEMA.fullmatch(schema):
        raise InvalidConfig(
            f"schema={schema!r} in the store URL must be lower-case letters, digits and _",
            context={"field": "store"},
        )
    return urlunsplit(parts._replace(query=urlencode(query, quote_via=quote))), schema


def _bad_url(why: str) -> InvalidConfig:
    """Says what is wrong without repeating a URL that may hold a password."""
    return InvalidConfig(
        f"the store URL is not postgresql://user@host/database?schema=name: {why}",
        context={"field": "store.url"},
    )


def _on(name: str, settings: dict[str, str], advice: str) -> tuple[str, str, str, str]:
    return (name, "ok" if settings[name] == "on" else "fail", settings[name], advice)


def _in_postgres(sql: str) -> str:
    sql = re.sub(r"\) STRICT(, WITHOUT ROWID)?;", ");", sql)
    # Text is ordered by its bytes, as in SQLite.
    sql = re.sub(r"(?m)(^  \w+ TEXT|\bADD COLUMN \w+ TEXT)\b", r'\1 COLLATE "C"', sql)
    return re.sub(r"\bBLOB\b", "BYTEA", re.sub(r"\bINTEGER\b", "BIGINT", sql))
