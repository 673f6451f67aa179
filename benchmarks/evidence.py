"""How fast `verify` and `replay` are, how they grow and what memory they need (P-13): 10^4, 10^5
and 10^6 events, of finished builds, against the raw limit: the same rows read and hashed once, by
hand, with nothing compared.

python benchmarks/evidence.py [--most 1000000]
"""

from __future__ import annotations

import argparse
import hashlib
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import apsw
import msgspec

from onceward.core.canon import canonical, digest
from onceward.core.chain import body_of, link
from onceward.core.records import Owner
from onceward.core.sources import LiveSources
from onceward.core.steps import manifest_line, result_digest
from onceward.dispatch import machine as rules
from onceward.evidence.records import StoreRecords
from onceward.evidence.replay import replay
from onceward.evidence.verify import verify_rows
from onceward.store import migrate
from onceward.store.sqlite import SqliteDatabase
from onceward.store.store import Store

WHAT = ("verify", "replay")
STEPS = 1000
"""Steps of each build: four events each, as the engine writes them."""


class Writer:
    """Events as the engine writes them, chained, but without a commit for each."""

    def __init__(self, connection: apsw.Connection) -> None:
        self.run = connection.execute
        self.position, self.streams, self.heads = 0, 0, {}
        self.at = 1_700_000_000_000_000

    def add(
        self, stream: str, source: str, name: str, context: dict[str, Any], detail: dict[str, Any]
    ) -> None:
        if stream not in self.heads:
            self.streams += 1
            self.run("INSERT INTO streams VALUES (?, ?)", (self.streams, stream))
            self.heads[stream] = (self.streams, 0, bytes(32))
        number, seq, prev = self.heads[stream]
        self.position += 1
        body = body_of(name, context, detail)
        hash_ = link(
            stream=stream, seq=seq + 1, at=self.at, source=source, body=body, prev_hash=prev
        )
        row = (self.position, number, seq + 1, self.at, source, body.decode(), prev, hash_)
        self.run("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
        self.heads[stream] = (number, seq + 1, hash_)


def fill(path: Path, events: int) -> int:
    """Builds of 1,000 steps each until there are about so many events; answers how many there
    are."""
    database = SqliteDatabase(path, LiveSources())
    migrate.migrate(database, LiveSources())
    connection = apsw.Connection(str(path))
    for (name,) in list(
        connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")
    ):
        connection.execute(f"DROP TRIGGER {name}")
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("BEGIN")
    writer = Writer(connection)
    plan = canonical({"stages": []}).decode()
    plan_hash = hashlib.sha256(plan.encode()).hexdigest()
    connection.execute("INSERT INTO plans VALUES (?, ?)", (plan_hash, plan))
    number = 0
    while writer.position < events:
        number += 1
        _build(connection, writer, f"bld_{number:08d}", plan_hash)
    connection.execute("COMMIT")
    connection.close()
    return writer.position


def _build(connection: apsw.Connection, writer: Writer, build: str, plan_hash: str) -> None:
    session = f"session:{build}"
    context = {"actor": "bench", "build_id": build, "fence": 1, "session_id": build}

    def moved(name: str, **detail: Any) -> None:
        writer.add(session, "build", name, context, detail)

    moved("BUILD_CREATED", plan_hash=plan_hash, to="PENDING", transition_seq=1)
    writer.add(
        session, "session", "SESSION_OPENED", context, {"limits": {}, "max_active_children": 2}
    )
    moved(
        "BUILD_STARTED",
        **{"from": "PENDING"},
        reason="build_started",
        to="ACTIVE",
        transition_seq=2,
    )
    connection.execute("INSERT INTO sessions VALUES (?, 2, ?, ?, 1)", (build, STEPS, STEPS))
    made = hashlib.sha256()
    for step in range(1, STEPS + 1):
        child = f"chd_{build[4:]}_{step:06d}"
        target, hash_ = f"t{step:06d}", digest([build, step])
        work = canonical({"context_hash": hash_, "stage": "s", "target": target}).decode()
        order = rules.Order(child, build, "function", work)
        token = rules.born(
            rules.spawn(
                order, 3, step, Owner(host="h", boot="b", pid=1, start="1", fence=1), "bench"
            ),
            writer.at,
        )
        token = rules.moved(token, rules.lease(token, step, 1, "bench"))
        ended = rules.Ended(
            "completed",
            {"context_hash": hash_, "outputs": result_digest([]), "spent": {"tokens": 3}},
        )
        for name in ("WORKER_START", "WORKER_PASS"):
            writer.at += 7
            begins = name == "WORKER_START"
            move = (
                rules.start(token, writer.at, "bench")
                if begins
                else rules.finish(token, ended, "bench")
            )
            said = {
                **move.said(),
                "parent_stream_id": session,
                "parent_seq": writer.heads[session][1] + 1,
            }
            writer.add(session, "child", name, context, said)
            writer.add(f"child:{child}", "child", name, context, said)
            token = msgspec.structs.replace(rules.moved(token, move), updated_at=writer.at)
        row = {**msgspec.structs.asdict(token), "position": writer.position}
        marks = ", ".join("?" * len(row))
        connection.execute(
            f"INSERT INTO urm_dispatch_token ({', '.join(row)}) VALUES ({marks})",
            tuple(row.values()),
        )
        connection.execute(
            "INSERT INTO budget_debits VALUES (?, 'tokens', ?, ?, 3, 0, 1)", (build, step, child)
        )
        checkpoint = (
            build,
            "s",
            target,
            hash_,
            "SUCCESS",
            "executed",
            "[]",
            0,
            3,
            1,
            child,
            None,
            None,
            1,
        )
        connection.execute(f"INSERT INTO checkpoints VALUES ({', '.join('?' * 14)})", checkpoint)
        made.update(manifest_line("s", target, "[]"))
    connection.execute(
        "INSERT INTO budget_totals VALUES (?, 'tokens', 'running_total_v1', NULL, ?, 0)",
        (build, 3 * STEPS),
    )
    ends = {"from": "ACTIVE", "to": "SUCCESS", "reason": "normal_completion", "transition_seq": 3}
    moved("BUILD_SUCCEEDED", outputs=made.hexdigest(), **ends)
    connection.execute(
        "INSERT INTO builds (build_id, name, state, version, position, created_at, updated_at,"
        " plan_hash)"
        " VALUES (?, 'bench', 'SUCCESS', 3, ?, 1, 1, ?)",
        (build, writer.position, plan_hash),
    )


def raw(path: Path) -> float:
    """Every event read once and hashed once: what no verification can do without."""
    connection = apsw.Connection(str(path), apsw.SQLITE_OPEN_READONLY)
    begun = time.perf_counter()
    for _, seq, at, source, body, prev, hash_, stream in connection.execute(
        "SELECT e.position, e.seq, e.at, e.source, e.body, e.prev_hash, e.hash, s.stream"
        " FROM streams s"
        " JOIN events e ON e.stream_no = s.stream_no ORDER BY s.stream, e.seq"
    ):
        made = link(
            stream=stream, seq=seq, at=at, source=source, body=body.encode(), prev_hash=prev
        )
        assert made == hash_
    return time.perf_counter() - begun


def measure(path: Path, what: str) -> None:
    """In a process of its own: seconds, events and the most memory that was needed."""
    store = Store(SqliteDatabase(path, LiveSources()), LiveSources())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = time.perf_counter()
    with store.read() as rows:
        if what == "verify":
            found = verify_rows(rows)
            assert not found.faults, found.faults[:3]
        else:
            again = replay(StoreRecords(rows))
            assert again.difference is None, again.difference
    seconds = time.perf_counter() - begun
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(seconds, (most - before) / 1024)
    store.close()


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--most", type=int, default=1_000_000)
    asked.add_argument("--measure", type=Path)
    asked.add_argument("--what", choices=WHAT)
    given = asked.parse_args()
    if given.measure:
        measure(given.measure, given.what)
        return
    heads = "".join(f" {what + '/s':>10} {'ratio':>6} {'MB more':>8}" for what in WHAT)
    print(f"{'events':>10} {'raw/s':>10}{heads}")
    size = 10_000
    while size <= given.most:
        with tempfile.TemporaryDirectory(prefix="onceward-bench-") as folder:
            path = Path(folder) / "onceward.db"
            events = fill(path, size)
            limit = raw(path)
            line = f"{events:>10,} {events / limit:>10,.0f}"
            for what in WHAT:
                words = [sys.executable, __file__, "--measure", path, "--what", what]
                told = subprocess.run(
                    words, capture_output=True, text=True, check=True
                ).stdout.split()
                seconds, memory = float(told[0]), float(told[1])
                line += f" {events / seconds:>10,.0f} {limit / seconds:>6.2f} {memory:>8.1f}"
            print(line, flush=True)
        size *= 10


if __name__ == "__main__":
    main()
