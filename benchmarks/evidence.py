"""How fast `verify` is, how it grows and what memory it needs (P-13): 10^4, 10^5 and 10^6 events of finished builds,
against the raw limit: the same rows read and hashed once, by hand, with nothing held against anything.

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

from onceward.evidence.verify import verify_rows
from onceward.kernel.canon import canonical, digest
from onceward.kernel.chain import body_of, link
from onceward.kernel.sources import LiveSources
from onceward.lifecycles.plan import manifest_line, result_digest
from onceward.store import migrate
from onceward.store.sqlite import SqliteDatabase
from onceward.store.store import Store

STEPS = 1000
"""Steps of each build: four events each, as the engine writes them."""


class Writer:
    """Events as the engine writes them, chained, but without a commit for each."""

    def __init__(self, connection: apsw.Connection) -> None:
        self.run = connection.execute
        self.position, self.streams, self.heads = 0, 0, {}
        self.at = 1_700_000_000_000_000

    def add(self, stream: str, source: str, name: str, context: dict[str, Any], detail: dict[str, Any]) -> None:
        if stream not in self.heads:
            self.streams += 1
            self.run("INSERT INTO streams VALUES (?, ?)", (self.streams, stream))
            self.heads[stream] = (self.streams, 0, bytes(32))
        number, seq, prev = self.heads[stream]
        self.position += 1
        self.at += 7
        body = body_of(name, context, detail)
        hash_ = link(stream, seq + 1, self.at, source, body, prev)
        row = (self.position, number, seq + 1, self.at, source, body.decode(), prev, hash_)
        self.run("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
        self.heads[stream] = (number, seq + 1, hash_)


def fill(path: Path, events: int) -> int:
    """Builds of 1,000 steps each until there are about so many events; answers how many there are."""
    database = SqliteDatabase(path, LiveSources())
    migrate.migrate(database, LiveSources())
    connection = apsw.Connection(str(path))
    for (name,) in list(connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")):
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
    writer.add(session, "session", "SESSION_OPENED", context, {"limits": {}, "max_active_children": 2})
    moved("BUILD_STARTED", **{"from": "PENDING"}, reason="build_started", to="ACTIVE", transition_seq=2)
    connection.execute("INSERT INTO sessions VALUES (?, 2, ?, ?, 1)", (build, STEPS, STEPS))
    made = hashlib.sha256()
    for step in range(1, STEPS + 1):
        child = f"chd_{build[4:]}_{step:06d}"
        target, lease, hash_ = f"t{step:06d}", digest([child, step]), digest([build, step])
        place = {"child_id": child, "dispatch_seq": step, "lease_id": lease, "parent_stream_id": session}
        ends = {"from": "started", "to": "terminal", "transition_seq": 4, "reason": "completed", "step": f"s:{target}"}
        ends |= {"context_hash": hash_, "outputs": result_digest([]), "spent": {"tokens": 3}}
        start = {"from": "leased", "to": "started", "transition_seq": 3, "phase_at_event": "started", "attempt": 1}
        for name, detail in (("WORKER_START", start), ("WORKER_PASS", ends)):
            said = {**place, **detail, "parent_seq": writer.heads[session][1] + 1}
            writer.add(session, "child", name, context, said)
            writer.add(f"child:{child}", "child", name, context, said)
        work = canonical({"context_hash": hash_, "stage": "s", "target": target}).decode()
        columns = (
            "child_id, parent_session_id, parent_stream_id, parent_seq, queue_seq, dispatch_seq, worker_run_id, phase,"
        )
        columns += " owner_host, owner_boot, owner_pid, owner_start, owner_fence, kind, work, attempt, due_at, reason,"
        columns += " version, position, created_at, updated_at"
        row = (child, build, session, 3, step, step, lease, "terminal", "h", "b", 1, "1", 1, "function", work, 1, 0)
        row += ("completed", 4, writer.position, 1, 1)
        connection.execute(f"INSERT INTO urm_dispatch_token ({columns}) VALUES ({', '.join('?' * len(row))})", row)
        connection.execute("INSERT INTO budget_debits VALUES (?, 'tokens', ?, ?, 3, 0, 1)", (build, step, child))
        checkpoint = (build, "s", target, hash_, "SUCCESS", "executed", "[]", 0, 3, 1, child, None, None, 1)
        connection.execute(f"INSERT INTO checkpoints VALUES ({', '.join('?' * 14)})", checkpoint)
        made.update(manifest_line("s", target, "[]"))
    connection.execute(
        "INSERT INTO budget_totals VALUES (?, 'tokens', 'running_total_v1', NULL, ?, 0)", (build, 3 * STEPS)
    )
    ends = {"from": "ACTIVE", "to": "SUCCESS", "reason": "normal_completion", "transition_seq": 3}
    moved("BUILD_SUCCEEDED", outputs=made.hexdigest(), **ends)
    connection.execute(
        "INSERT INTO builds (build_id, name, state, version, position, created_at, updated_at, plan_hash)"
        " VALUES (?, 'bench', 'SUCCESS', 3, ?, 1, 1, ?)",
        (build, writer.position, plan_hash),
    )


def raw(path: Path) -> float:
    """Every event read once and hashed once: what no verification can do without."""
    connection = apsw.Connection(str(path), apsw.SQLITE_OPEN_READONLY)
    begun = time.perf_counter()
    for _, seq, at, source, body, prev, hash_, stream in connection.execute(
        "SELECT e.position, e.seq, e.at, e.source, e.body, e.prev_hash, e.hash, s.stream FROM streams s"
        " JOIN events e ON e.stream_no = s.stream_no ORDER BY s.stream, e.seq"
    ):
        assert link(stream, seq, at, source, body.encode(), prev) == hash_
    return time.perf_counter() - begun


def measure(path: Path) -> None:
    """In a process of its own: seconds, events and the most memory that was needed."""
    store = Store(SqliteDatabase(path, LiveSources()), LiveSources())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = time.perf_counter()
    with store.read() as rows:
        found = verify_rows(rows)
    seconds = time.perf_counter() - begun
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert not found.faults, found.faults[:3]
    print(seconds, found.checked["events"], (most - before) / 1024)
    store.close()


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--most", type=int, default=1_000_000)
    asked.add_argument("--measure", type=Path)
    given = asked.parse_args()
    if given.measure:
        measure(given.measure)
        return
    print(f"{'events':>10} {'verify/s':>10} {'raw/s':>10} {'ratio':>6} {'MB more':>8}")
    size = 10_000
    while size <= given.most:
        with tempfile.TemporaryDirectory(prefix="onceward-bench-") as folder:
            path = Path(folder) / "onceward.db"
            events = fill(path, size)
            limit = raw(path)
            told = subprocess.run(
                [sys.executable, __file__, "--measure", path], capture_output=True, text=True, check=True
            ).stdout.split()
            seconds, memory = float(told[0]), float(told[2])
            speeds = f"{events / seconds:>10,.0f} {events / limit:>10,.0f} {limit / seconds:>6.2f}"
            print(f"{events:>10,} {speeds} {memory:>8.1f}", flush=True)
        size *= 10


if __name__ == "__main__":
    main()
