"""SQLite by apsw: WAL, synchronous=FULL, one writer, one checkpointer."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import apsw

from onceward.core import faults
from onceward.core.limits import BUSY_MILLIS, WAL_ALARM_BYTES, WAL_CHECKPOINT_PAGES
from onceward.core.records import Tenure
from onceward.core.sources import Micros, Sources
from onceward.errors import (
    CorruptState,
    InvalidConfig,
    LockLost,
    Recovery,
    StorageError,
)
from onceward.store.filesystems import filesystem_of, is_network
from onceward.store.port import (
    CommitFailed,
    DatabaseSession,
    Otherwise,
    Reads,
    Row,
    Value,
    Write,
    refused,
    require_own,
)

_SAFE = "3.51.3"
_UNIQUE = re.compile(r"(UNIQUE|CHECK) constraint failed: (.*)")
# SQLite names the columns of a broken UNIQUE, not the constraint.
_BY_COLUMNS = {
    "events.stream_no, events.seq": "events_stream_seq",
    "events.stream_no, events.prev_hash": "events_stream_prev",
    "event_outbox.sink, event_outbox.dedupe_key": "event_outbox_dedupe",
    "requests.verb, requests.request_id": "requests_verb_id",
    "streams.stream": "streams_name",
    "urm_dispatch_token.parent_session_id, urm_dispatch_token.dispatch_seq": "urm_dispatch_token_dispatch_seq",
    "urm_dispatch_token.parent_session_id, urm_dispatch_token.queue_seq": "urm_dispatch_token_queue_seq",
    "urm_dispatch_token.parent_session_id, urm_dispatch_token.worker_run_id": "urm_dispatch_token_worker_run_id",
    "urm_dispatch_token.parent_session_id, urm_dispatch_token.slot": "urm_dispatch_token_slot",
    "budget_debits.child_id": "budget_debits_duration_once",
    "registry_values.operation_code, registry_values.protocol_version": "registry_values_key",
    "registry_values.operation_code, registry_values.act_type": "registry_values_active",
    "registry_collections.name": "registry_collections_name",
    "registry_values.audit_id": "registry_values_audit",
    "saga_runs.idempotency_root": "saga_runs_root",
    "tokens.token_hash": "tokens_hash",
    "cut_change_set.entry_id, cut_change_set.decision_id": "cut_change_set_live",
    "cut_change_set.of_change_set": "cut_change_set_undo",
    "decision_backlog_entry.idempotency_key": "decision_backlog_entry_key",
    "decision_backlog_entry.escalates": "decision_backlog_entry_escalates",
    "decision_backlog_history.entry_id, decision_backlog_history.seq": "decision_backlog_history_seq",
    "manifest_envelope.entry_id, manifest_envelope.revision": "manifest_envelope_revision",
    "verify_result.change_set_id": "verify_result_first",
    "verify_result.prior_verify_result_id": "verify_result_chain",
    "dot_pair_signature.change_set_id": "dot_pair_signature_cut",
    "dot_pair_signature.verify_result_id": "dot_pair_signature_result",
}


class SqliteDatabase:
    """One workspace's rows in one file."""

    kind = "sqlite"

    def __init__(
        self,
        path: Path,
        sources: Sources,
        *,
        unsafe_network_filesystem: bool = False,
        read_only: bool = False,
    ) -> None:
        self.path = path
        self._sources = sources
        self._unsafe = unsafe_network_filesystem
        self._read_only = read_only

    def connect(self, *, kernel: bool = False) -> SqliteSession:
        require_safe_version(apsw.sqlite_lib_version())
        self._require_local()
        try:
            if self._read_only:
                # A sealed file that nobody writes: no log, no lock file, nothing left beside it.
                name = f"file:{quote(str(self.path))}?immutable=1"
                connection = apsw.Connection(name, apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
            else:
                connection = apsw.Connection(str(self.path))
                _prepare(connection, kernel)
        except apsw.Error as error:
            raise _translate(error, self.path) from error
        return SqliteSession(connection, self._sources, self.path)

    def seal(self) -> None:
        """Make the database one file, complete without the log beside it, or fail."""
        try:
            connection = apsw.Connection(str(self.path))
            try:
                ((busy, _, _),) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
                ((mode,),) = connection.execute("PRAGMA journal_mode = DELETE").fetchall()
            finally:
                connection.close()
        except apsw.Error as error:
            raise _translate(error, self.path) from error
        if busy or mode != "delete" or self.path.with_name(self.path.name + "-wal").exists():
            raise StorageError(f"{self.path} could not be made one file")

    def script(self, session: DatabaseSession, sql: str) -> None:
        assert isinstance(session, SqliteSession)
        session.execute(sql)

    def exclusive(self, session: DatabaseSession) -> None:
        session.begin(None)

    def tables(self, session: Reads) -> list[str]:
        rows = session.read(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
            " ORDER BY name"
        )
        return [name for (name,) in rows]

    def columns(self, session: Reads, table: str) -> list[str]:
        return [
            name
            for (name,) in session.read(
                "SELECT name FROM pragma_table_info(?) ORDER BY cid", (table,)
            )
        ]

    def filled(self, session: Reads) -> None:
        """SQLite follows the largest number by itself."""

    def health(self) -> list[tuple[str, str, str, str]]:
        session = self.connect()
        try:
            verdict = session.read("PRAGMA quick_check(1)")[0][0]
            journal = session.read("PRAGMA journal_mode")[0][0]
            synchronous = session.read("PRAGMA synchronous")[0][0]
        finally:
            session.close()
        wal = self.path.with_name(self.path.name + "-wal")
        wal_bytes = wal.stat().st_size if wal.exists() else 0
        kind = filesystem_of(self.path)
        return [
            ("sqlite", "ok", apsw.sqlite_lib_version(), ""),
            (
                "store health",
                "ok" if verdict == "ok" else "fail",
                f"quick check: {verdict}",
                "restore the last backup: onceward restore FILE",
            ),
            (
                "durability",
                "ok" if (journal, synchronous) == ("wal", 2) else "fail",
                f"journal_mode={journal} synchronous={synchronous} (2 is FULL)",
                "",
            ),
            (
                "write-ahead log",
                "ok" if wal_bytes < WAL_ALARM_BYTES else "warn",
                f"{wal_bytes:,} bytes",
                "a reader holds an old snapshot open; end it",
            ),
            (
                "filesystem",
                "warn" if is_network(kind) else "ok",
                kind,
                "move the workspace to a local disk; locks are not safe on a network",
            ),
        ]

    def _require_local(self) -> None:
        kind = filesystem_of(self.path)
        if is_network(kind) and not self._unsafe:
            raise InvalidConfig(
                f"{self.path.parent} is on a network filesystem ({kind}), where SQLite's locks cannot be trusted",
                context={"filesystem": kind},
                recovery=[
                    Recovery("put the workspace on a local disk"),
                    Recovery("or use PostgreSQL: set [store] url in onceward.toml"),
                    Recovery(
                        "or, knowing that data may be lost, set unsafe_network_filesystem = true under [store]",
                        risk="high",
                    ),
                ],
            )


class SqliteSession:
    """One connection; writes happen at once."""

    lost = False

    def __init__(self, connection: apsw.Connection, sources: Sources, path: Path) -> None:
        self._connection = connection
        self._sources = sources
        self._path = path
        self._pid = os.getpid()

    @property
    def open(self) -> bool:
        return not self._connection.get_autocommit()

    def begin(self, tenure: Tenure | None) -> None:
        require_own(self._pid)
        self.execute("BEGIN IMMEDIATE")
        if tenure is not None:
            held = self.execute("SELECT token, fence FROM singleton_lock WHERE lock_id = 1")
            if held != [(tenure.token, tenure.fence)]:
                self.rollback()
                raise LockLost("another kernel has taken this workspace; nothing was written")

    def hold(self) -> None:
        """`begin` has already looked."""

    def snapshot(self) -> None:
        require_own(self._pid)
        self.execute("BEGIN")

    def now(self) -> Micros:
        return self._sources.now()

    def read(self, sql: str, params: Sequence[Value] = ()) -> list[Row]:
        return self.execute(sql, params)

    def write(
        self, sql: str, params: Sequence[Value] = (), otherwise: Otherwise | None = None
    ) -> None:
        try:
            self._connection.execute(sql, params)
        except apsw.Error as error:
            raise _translate(error, self._path) from error
        if otherwise is not None and self._connection.changes() != 1:
            raise otherwise()

    def write_together(self, writes: Sequence[Write]) -> None:
        for write in writes:
            self.write(write.sql, write.params, write.otherwise)
            faults.point(write.fault)

    def savepoint(self) -> None:
        self.execute("SAVEPOINT one")

    def release(self) -> None:
        self.execute("RELEASE one")

    def undo(self) -> None:
        self.execute("ROLLBACK TO one")
        self.execute("RELEASE one")

    def keep_promises(self) -> None:
        if self._connection.status(apsw.SQLITE_DBSTATUS_DEFERRED_FKS)[0]:
            raise refused("references")

    def commit(self) -> None:
        try:
            self._connection.execute("COMMIT")
        except apsw.Error as error:
            raise CommitFailed(str(error)) from error

    def rollback(self) -> None:
        if self.open:
            self._connection.execute("ROLLBACK")

    def close(self) -> None:
        # A forked copy leaves the files to the process that opened them.
        if os.getpid() == self._pid:
            self._connection.close()

    def execute(self, sql: str, params: Sequence[Value] = ()) -> list[Row]:
        try:
            return self._connection.execute(sql, params).fetchall()
        except apsw.Error as error:
            raise _translate(error, self._path) from error


def require_safe_version(version: str) -> None:
    """Refuse the SQLite versions whose WAL can lose a commit when several processes checkpoint."""
    number = tuple(int(part) for part in version.split("."))
    patched = (
        number[:2] in ((3, 50), (3, 44)) and number >= {50: (3, 50, 7), 44: (3, 44, 6)}[number[1]]
    )
    if number < (3, 51, 3) and not patched:
        raise InvalidConfig(
            f"SQLite {version} has the WAL-reset race; {_SAFE} or newer is needed",
            context={"version": version},
            recovery=[Recovery("upgrade the driver", "pip install --upgrade apsw")],
        )


def _prepare(connection: apsw.Connection, kernel: bool) -> None:
    connection.set_busy_timeout(BUSY_MILLIS)
    settings: list[tuple[str, Any]] = [
        ("journal_mode = WAL", "wal"),
        ("synchronous = FULL", 2),
        ("foreign_keys = ON", 1),
        ("trusted_schema = OFF", 0),
        ("cell_size_check = ON", 1),
        ("mmap_size = 0", 0),
        (
            f"wal_autocheckpoint = {WAL_CHECKPOINT_PAGES if kernel else 0}",
            WAL_CHECKPOINT_PAGES if kernel else 0,
        ),
    ]
    for setting, wanted in settings:
        name = setting.split(" ", 1)[0]
        connection.execute(f"PRAGMA {setting}")
        found = connection.execute(f"PRAGMA {name}").fetchall()
        if found and found[0][0] != wanted:
            raise StorageError(f"SQLite did not take {setting}: it reads back {found[0][0]!r}")
    if not kernel:
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)


def _translate(error: apsw.Error, path: Path) -> Exception:
    if isinstance(error, apsw.ConstraintError):
        if getattr(error, "extendedresult", 0) == apsw.SQLITE_CONSTRAINT_TRIGGER:
            return refused(str(error))
        broken = _UNIQUE.fullmatch(str(error))
        named = broken.group(2) if broken else str(error)
        return refused(_BY_COLUMNS.get(named, named))
    if isinstance(error, apsw.CorruptError | apsw.NotADBError):
        return CorruptState(
            f"{path} is not a healthy database: {error}",
            context={"file": path.name},
            recovery=[
                Recovery(
                    "move the damaged file away and restore the last backup",
                    "onceward restore FILE",
                    "medium",
                )
            ],
        )
    if isinstance(
        error, apsw.CantOpenError | apsw.ReadOnlyError | apsw.PermissionsError | apsw.AuthError
    ):
        return InvalidConfig(
            f"cannot write in {path.parent}: {error}",
            context={"folder": str(path.parent)},
            recovery=[Recovery("make the folder writable, or choose another with --workspace")],
        )
    if isinstance(error, apsw.FullError):
        return StorageError(
            f"the disk of {path.parent} is full; nothing was written",
            context={"outcome": "failed"},
            recovery=[Recovery("free some space and run the same command again")],
        )
    if isinstance(error, apsw.BusyError):
        return StorageError(
            "another process kept the database busy for too long; nothing was written",
            context={"outcome": "failed"},
            recovery=[Recovery("run the same command again")],
        )
    if isinstance(error, apsw.IOError):
        return StorageError(
            f"reading or writing {path} failed: {error}", context={"outcome": "failed"}
        )
    return StorageError(f"SQLite refused: {error}", context={"outcome": "failed"})
