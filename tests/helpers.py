"""Small things many tests need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from onceward import catalogue as _catalogue  # noqa: F401
from onceward.builds import machine as rules
from onceward.core.records import Build
from onceward.errors import StorageError
from onceward.evidence.records import StoreRecords
from onceward.evidence.replay import replay
from onceward.evidence.verify import verify_rows
from onceward.store.port import Database, Reads
from onceward.store.sqlite import SqliteDatabase
from onceward.store.store import Store
from onceward.store.tables.builds import Builds
from onceward.store.tables.events import events_of

ONWARD = {
    "PENDING": ("ACTIVE", "build_started"),
    "ACTIVE": ("CRASHED", "crash_detected"),
    "CRASHED": ("ACTIVE", "operator_resume"),
}


def create(store: Store, name: str = "demo") -> str:
    build_id = store.sources.new_id("bld")
    store.write(lambda tx: tx.move(rules.create(build_id, name, "tester")))
    return build_id


def step(store: Store, build_id: str) -> Build:
    """One legal move of a build, whatever its state."""

    def onward(tx: Any) -> Build:
        build = tx.builds.get(build_id)
        tx.move(rules.move(build, *ONWARD[build.state], "tester"))
        return tx.builds.get(build_id)

    return store.write(onward)


def get(store: Store, build_id: str) -> Build:
    with store.read() as rows:
        return Builds(rows).get(build_id)


def lines(store: Store, stream: str) -> list[bytes]:
    with store.read() as rows:
        return [event.line() for event in events_of(rows, stream)]


def assert_sound(rows: Reads, *sessions: str) -> None:
    """Everything recorded agrees, and follows from the rest by the rules: of these sessions, or of all."""
    faults = verify_rows(rows).faults
    assert faults == [], faults
    found = replay(StoreRecords(rows), sessions or None).difference
    assert found is None, found


def count(store: Store, table: str) -> int:
    with store.read() as rows:
        return int(rows.read(f"SELECT count(*) FROM {table}")[0][0])


def everything(store: Store) -> dict[str, int]:
    tables = (
        "builds",
        "events",
        "event_outbox",
        "outbox_used",
        "requests",
        "streams",
        "principals",
    )
    return {table: count(store, table) for table in tables}


def orphan_lock(database: Database) -> None:
    """Let the writer lock look as if its holder had died: this process is its own undead predecessor."""
    session = database.connect()
    session.begin(None)
    session.write("UPDATE singleton_lock SET acquired_by_pid = 4194304, process_start = '0'")
    session.commit()
    session.close()


def fail_store(task) -> None:
    """In a step: as if the store had refused what it spends, which ends its kernel."""
    task.running.store_failed = StorageError("the disk is full")
    raise task.running.store_failed


def count_in_another_mode(database: Database, session_id: str) -> None:
    """What a program of another make, or somebody with the database's password, may have left."""
    session = database.connect()
    if isinstance(database, SqliteDatabase):
        session.read("PRAGMA ignore_check_constraints = 1")
        session.begin(None)
    else:
        session.begin(None)
        session.write("ALTER TABLE budget_totals DROP CONSTRAINT budget_totals_mode")
    session.write(
        "UPDATE budget_totals SET accounting_mode = 'reservation_v1' WHERE parent_session_id = ?",
        (session_id,),
    )
    session.commit()
    session.close()


def processes_with(word: str) -> list[int]:
    """Every living process with a word in its command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                named = word.encode() in (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if named:
                found.append(int(entry.name))
    return found
