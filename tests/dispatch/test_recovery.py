"""Recovery: before anything new, in order, provable, restartable (C-20)."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from helpers import count_in_another_mode, orphan_lock, processes_with
from onceward.core import faults
from onceward.core.records import Owner
from onceward.core.sources import ScriptedSources
from onceward.dispatch import queue
from onceward.dispatch.budget import MODE
from onceward.dispatch.machine import Order
from onceward.dispatch.recovery import Recovered, recover
from onceward.errors import AtomicityViolation, LockLost
from onceward.kernel.tenure import acquire
from onceward.locks.identity import own_identity, start_of
from onceward.store import migrate
from onceward.store.sqlite import SqliteDatabase
from onceward.store.store import Store
from onceward.store.tables.budgets import lanes_of
from onceward.store.tables.children import (
    Tokens,
    checked_position,
    ended_after,
    recovery_done,
)
from onceward.store.tables.events import events_by_name
from onceward.workspace import Workspace

HERE = own_identity()
pytestmark = pytest.mark.rule("C-20")


def leave_behind(store: Store, fence: int = 1, **owner) -> list[str]:
    """Two sessions with children in every phase, as a kernel that died left them."""
    who = Owner(
        HERE.hostname, HERE.boot_id, owner.get("pid", 4194304), owner.get("start", "1"), fence
    )
    ids = []

    def make(tx):
        for session in ("ses_b", "ses_a"):
            queue.open_(tx, session, 3, {"tokens": 50}, "dead")
            orders = [Order(f"chd_{session}_{n}", session, "function", "{}") for n in range(5)]
            tokens = queue.spawn(tx, orders, who, "dead")
            for slot, token in ((1, tokens[0]), (2, tokens[1]), (3, tokens[2])):
                move = queue.machine.lease(token, slot, slot, "dead")
                tx.move(move)
                if slot != 2:
                    queue.start(tx, queue.machine.moved(token, move), "dead")
            queue.cancel(tx, tokens[2].child_id, "c-9", "dead")
            queue.cancel(tx, tokens[2].child_id, "c-10", "dead")
            ids.extend(order.child_id for order in orders)

    store.write(make)
    return ids


def story(store: Store) -> list[tuple[str, str, dict]]:
    """What the streams say, without what names the kernel that wrote it."""
    with store.read() as rows:
        return [(e.stream, e.facts()["event"], e.facts()["detail"]) for e in events_by_name(rows)]


def die(database, sources) -> list[str]:
    """A kernel takes the workspace, begins, and is gone."""
    migrate.migrate(database, sources)
    store = Store(database, sources)
    acquire(store, "dead")
    ids = leave_behind(store)
    store.close()
    orphan_lock(database)
    return ids


@pytest.fixture
def dead(make_database):
    """A store whose kernel died with children in every phase; scripted time and ids."""
    sources = ScriptedSources()
    database = make_database(sources)
    return database, sources, die(database, sources)


def heir_of(database, sources) -> Store:
    store = Store(database, sources)
    acquire(store, "heir")
    return store


def test_each_child_ends_by_its_phase_alone_in_the_order_of_dispatch(dead):
    database, sources, _ = dead
    store = heir_of(database, sources)
    assert recover(store, "heir", HERE).recovered == 10
    with store.read() as rows:
        written = sorted(
            (e for e in events_by_name(rows) if e.stream.startswith("child:")),
            key=lambda e: e.position,
        )
    ends = [
        (e.stream[6:], e.facts()["detail"]) for e in written if e.facts()["event"] == "WORKER_FAIL"
    ]
    # Session after session; the dispatched by their order, then the queued by theirs.
    assert [child for child, _ in ends] == [
        f"chd_{s}_{n}" for s in ("ses_a", "ses_b") for n in range(5)
    ]
    for number, (_, detail) in enumerate(ends):
        began = number % 5 in (0, 2)
        assert detail["reason"] == ("terminated_on_restart" if began else "lease_orphaned")
        assert ("dispatch_seq" in detail) == (number % 5 < 3)
        assert detail.get("cancel_request_id") == ("c-9" if number % 5 == 2 else None)
        assert detail.get("joined_request_ids") == (["c-10"] if number % 5 == 2 else None)
        assert "death_unconfirmed" not in detail
    with store.read() as rows:
        assert recovery_done(rows, 2)
    store.close()


@pytest.mark.guarantee("G10")
def test_recovering_twice_changes_no_byte(dead):
    database, sources, _ = dead
    store = heir_of(database, sources)
    recover(store, "heir", HERE)
    with store.read() as rows:
        before = [e.line() for e in events_by_name(rows)]
    assert recover(store, "heir", HERE).recovered == 0
    with store.read() as rows:
        assert [e.line() for e in events_by_name(rows)] == before
    store.close()


@pytest.mark.guarantee("G10")
@pytest.mark.parametrize(
    "point", ["child.recovering", "child.pronounced", "move.state", "commit.before", "commit.after"]
)
def test_a_recovery_that_is_killed_and_gone_on_with_tells_the_same_story(dead, point):
    database, sources, _ = dead
    for nth in (1, 3, 6, 9):
        store = Store(database, sources)
        with faults.armed(point, nth, faults.crash):
            try:
                acquire(store, "heir")
                recover(store, "heir", HERE)
            except faults.SimulatedCrash:
                pass
        store.close()
        orphan_lock(database)
    store = heir_of(database, sources)
    recover(store, "heir", HERE)
    told = [entry for entry in story(store) if entry[0] != "workspace"]
    store.close()
    assert told == undisturbed()


def undisturbed() -> list[tuple[str, str, dict]]:
    """The same story from a recovery that nobody disturbed."""
    with TemporaryDirectory() as folder:
        sources = ScriptedSources()
        database = SqliteDatabase(Path(folder) / "onceward.db", sources)
        die(database, sources)
        store = heir_of(database, sources)
        recover(store, "heir", HERE)
        told = [entry for entry in story(store) if entry[0] != "workspace"]
        store.close()
    return told


@pytest.mark.guarantee("G11")
def test_what_a_dead_kernel_left_running_is_ended_before_its_end_is_written(store, tmp_path):
    nonce = f"owr{time.monotonic_ns()}"
    left = subprocess.Popen(
        ["sh", "-c", f"(setsid sh -c 'sleep 1000 # {nonce}' &); sleep 1000 # {nonce}"],
        env={"PATH": "/usr/bin:/bin", "ONCEWARD_CHILD": "chd_left"},
        start_new_session=True,
    )
    who = Owner(HERE.hostname, HERE.boot_id, 4194304, "1", 0)

    def make(tx):
        queue.open_(tx, "ses_a", 1, {}, "dead")
        (token,) = queue.spawn(tx, [Order("chd_left", "ses_a", "process", "{}")], who, "dead")
        move = queue.machine.lease(token, 1, 1, "dead")
        tx.move(move)
        queue.start(tx, queue.machine.moved(token, move), "dead", left.pid, start_of(left.pid))

    store.write(make)
    time.sleep(0.2)
    assert recover(store, "heir", HERE).unconfirmed == 0
    left.wait()
    assert processes_with(nonce) == []


def test_a_child_of_another_machine_ends_unconfirmed(store):
    who = Owner("another-machine", "another-boot", 77, "1", 0)

    def make(tx):
        queue.open_(tx, "ses_a", 1, {}, "dead")
        (token,) = queue.spawn(tx, [Order("chd_far", "ses_a", "process", "{}")], who, "dead")
        move = queue.machine.lease(token, 1, 1, "dead")
        tx.move(move)
        queue.start(tx, queue.machine.moved(token, move), "dead", 78, "1")

    store.write(make)
    assert recover(store, "heir", HERE).unconfirmed == 1
    detail = story(store)[-2][2]
    assert "another-machine" in detail["death_unconfirmed"]


def test_the_verdict_is_kept_before_it_is_used_and_nobody_looks_again(dead, monkeypatch):
    database, sources, ids = dead
    store = heir_of(database, sources)
    with faults.armed("child.pronounced", 1, faults.crash), pytest.raises(faults.SimulatedCrash):
        recover(store, "heir", HERE)
    with store.read() as rows:
        assert all(Tokens(rows).get(child_id).death is not None for child_id in ids)

    def never(*_):
        raise AssertionError("looked again")

    monkeypatch.setattr("onceward.dispatch.recovery._doubts", never)
    assert recover(store, "heir", HERE).recovered == 10
    store.close()


@pytest.mark.rule("C-4")
def test_a_token_and_a_stream_that_disagree_stop_everything(dead):
    database, sources, _ = dead
    store = heir_of(database, sources)
    store.write(
        lambda tx: tx.append(
            "child:chd_ses_a_4", "WORKER_START", "somebody", {"child_id": "chd_ses_a_4"}
        )
    )
    with pytest.raises(
        AtomicityViolation, match="chd_ses_a_4 is queued, but its stream ends with WORKER_START"
    ):
        recover(store, "heir", HERE)
    store.close()


def unguarded(database, sql: str) -> None:
    """A write that the schema would refuse: what somebody with the database's password can do."""
    session = database.connect()
    session.begin(None)
    if isinstance(database, SqliteDatabase):
        session.write("DROP TRIGGER urm_dispatch_token_move")
        session.write("DROP TRIGGER events_delete")
    else:
        session.write("SET LOCAL session_replication_role = replica")
    session.write(sql)
    session.commit()
    session.close()


FLIPPED = "UPDATE urm_dispatch_token SET phase = 'terminal', slot = NULL WHERE child_id = '{}'"


@pytest.mark.rule("C-4")
@pytest.mark.parametrize("number", [0, 1, 4], ids=["started", "leased", "queued"])
def test_a_terminal_token_without_its_terminal_event_stops_everything(dead, number):
    database, sources, _ = dead
    unguarded(database, FLIPPED.format(f"chd_ses_a_{number}"))
    store = heir_of(database, sources)
    before = story(store)
    with pytest.raises(AtomicityViolation, match=f"chd_ses_a_{number} is terminal") as refused:
        recover(store, "heir", HERE)
    assert refused.value.code == "URM_SCHEDULER_PHASE_EVENT_ATOMICITY_VIOLATION"
    assert story(store) == before
    with store.read() as rows:
        assert not recovery_done(rows, 2)
    store.close()


@pytest.mark.rule("C-4")
def test_only_children_that_ended_since_the_last_recovery_are_checked_again(dead):
    database, sources, _ = dead
    store = heir_of(database, sources)
    recover(store, "heir", HERE)
    recover(store, "heir", HERE)
    store.close()
    orphan_lock(database)
    store = heir_of(database, sources)
    recover(store, "heir", HERE)
    with store.read() as rows:
        assert list(ended_after(rows, checked_position(rows))) == []
        assert len(list(ended_after(rows, 0))) == 10
    store.close()


@pytest.mark.rule("C-4")
def test_a_terminal_event_that_is_gone_is_noticed_at_the_next_start(dead):
    database, sources, _ = dead
    store = heir_of(database, sources)
    recover(store, "heir", HERE)
    store.close()
    orphan_lock(database)
    gone = "(SELECT position FROM urm_dispatch_token WHERE child_id = 'chd_ses_b_3')"
    unguarded(database, f"DELETE FROM events WHERE position = {gone}")
    store = heir_of(database, sources)
    with pytest.raises(AtomicityViolation, match="chd_ses_b_3"):
        recover(store, "heir", HERE)
    store.close()


@pytest.mark.rule("C-30")
def test_the_time_of_a_child_that_died_with_its_kernel_is_charged_as_far_as_it_is_known(dead):
    database, sources, _ = dead
    session = database.connect()
    session.begin(None)
    session.write(
        "UPDATE urm_dispatch_token SET started_at = 1000000, last_seen = 6500000 WHERE phase = 'started'"
    )
    session.commit()
    session.close()
    store = heir_of(database, sources)
    recover(store, "heir", HERE)
    with store.read() as rows:
        ((total, carried),) = rows.read(
            "SELECT total, carried FROM budget_totals WHERE budget_lane = 'duration_secs'"
            " AND parent_session_id = 'ses_a'"
        )
    assert (total, carried) == (11, 0)
    store.close()


@pytest.mark.rule("C-30")
def test_a_child_counted_in_another_mode_is_brought_to_its_end_and_charged_nothing(dead):
    """A dead kernel's children must not keep the next one from starting."""
    database, sources, _ = dead
    count_in_another_mode(database, "ses_a")
    store = heir_of(database, sources)
    with store.read() as rows:
        before = lanes_of(rows, "ses_a")
    assert recover(store, "heir", HERE).recovered == 10
    with store.read() as rows:
        assert [row[2:] for row in lanes_of(rows, "ses_a") if row[4] != MODE] == [
            row[2:] for row in before
        ]
    store.close()


def test_nothing_is_dispatched_before_recovery_is_done(store, tmp_path):
    from onceward.artifacts.blobs import Artifacts
    from onceward.dispatch.children import Children
    from onceward.locks import TargetLock
    from onceward.processes.launcher import Processes
    from onceward.processes.spool import Spool

    parts = (
        store,
        Processes(),
        Artifacts(tmp_path / "a", store),
        TargetLock(tmp_path / "l"),
        Spool(tmp_path / "r"),
    )
    with pytest.raises(LockLost, match="before recovery"):
        Children(*parts, session_id="ses_a", actor="tester", jobs=1)


@pytest.mark.guarantee("G3")
def test_a_kernel_that_was_fenced_out_writes_nothing_more(store_url, tmp_path):
    """One workspace, two kernels: the first is suspended past its time; its child's end is written by the second."""
    program = Path(__file__).with_name("fenced_kernel.py")
    folder = tmp_path / ".onceward"
    Workspace(folder, store_url=store_url, principal="tester").create()
    first = subprocess.Popen(
        [sys.executable, str(program), str(folder), store_url],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
    )
    child_id = json.loads(first.stdout.readline())
    workspace = Workspace(folder, store_url=store_url, principal="heir")
    session = workspace.database.connect()
    session.begin(None)
    session.write("UPDATE kernel_beat SET steady = 0, boot_id = 'x'")
    session.write("UPDATE singleton_lock SET last_heartbeat_at = '2020-01-01T00:00:00.000000Z'")
    session.commit()
    session.close()
    heir = workspace.kernel()
    before = story(heir.store)
    # Its kernel could not be proved gone, so what it ran as a thread may still run: the record says so.
    assert "death_unconfirmed" in [d for s, e, d in before if s == f"child:{child_id}"][-1]
    first.stdin.write("go on\n")
    first.stdin.flush()
    assert first.stdout.readline().strip() == "LOCK_LOST"
    assert first.wait(600) == 0
    first.stdin.close()
    first.stdout.close()
    assert story(heir.store) == before
    heir.close()


def test_two_workspaces_on_one_server_leave_each_other_alone(postgres_url, tmp_path):
    import threading

    from conftest import schema_url
    from onceward.dispatch.work import Function

    kernels = []
    gate = threading.Event()
    for name in ("left", "right"):
        url = schema_url(postgres_url, f"two_{name}_{time.monotonic_ns()}")
        workspace = Workspace(tmp_path / name / ".onceward", store_url=url, principal="tester")
        (tmp_path / name).mkdir()
        workspace.create()
        kernel = workspace.kernel()
        children = kernel.open_session("ses_a", 1)
        (child_id,) = children.spawn([Function(call=lambda task: gate.wait(600), name="wait")])
        kernels.append((kernel, children, child_id))
    assert recover(kernels[1][0].store, "tester", HERE).recovered == 0
    gate.set()
    for kernel, children, child_id in kernels:
        assert children.wait(child_id).reason == "completed"
        kernel.close()


def test_thousands_of_open_tokens_are_recovered(tmp_path):
    """Bounded return to service: one transaction each, and no more work per token than for the first."""
    from onceward.core.sources import LiveSources

    count = 2_000
    sources = LiveSources()
    database = SqliteDatabase(tmp_path / "onceward.db", sources)
    migrate.migrate(database, sources)
    store = Store(database, sources)
    acquire(store, "dead")
    who = Owner(HERE.hostname, HERE.boot_id, 4194304, "1", 0)

    def make(tx):
        queue.open_(tx, "ses_a", 1, {}, "dead")
        queue.spawn(
            tx,
            [Order(f"chd_{n:05d}", "ses_a", "function", "{}") for n in range(count)],
            who,
            "dead",
        )

    store.write(make)
    assert recover(store, "heir", HERE) == Recovered(count, 0)
    store.close()


def leave_in_flight(store: Store, kind: str, count: int) -> None:
    """Started children of one kind, of a kernel that is gone."""
    who = Owner(HERE.hostname, HERE.boot_id, 4194304, "1", 0)

    def make(tx):
        queue.open_(tx, "ses_a", count, {}, "dead")
        orders = [Order(f"chd_{n:03d}", "ses_a", kind, "{}") for n in range(count)]
        for slot, token in enumerate(queue.spawn(tx, orders, who, "dead"), 1):
            move = queue.machine.lease(token, slot, slot, "dead")
            tx.move(move)
            pid = (4194305 + slot, "1") if kind == "process" else ()
            queue.start(tx, queue.machine.moved(token, move), "dead", *pid)

    store.write(make)


@pytest.fixture
def looks(monkeypatch):
    """How often the process table was listed."""
    listed = []
    iterdir = Path.iterdir

    def counted(folder):
        if folder == Path("/proc"):
            listed.append(folder)
        return iterdir(folder)

    monkeypatch.setattr(Path, "iterdir", counted)
    return listed


@pytest.mark.parametrize(("kind", "most"), [("function", 3), ("process", 3)])
def test_the_process_table_is_looked_at_for_all_children_together(store, looks, kind, most):
    leave_in_flight(store, kind, 100)
    assert recover(store, "heir", HERE) == Recovered(100, 0)
    assert len(looks) <= most


def test_a_recovery_that_takes_long_says_how_far_it_is(store, monkeypatch):
    from onceward.dispatch import recovery_progress
    from typing_in import until

    leave_in_flight(store, "function", 3)
    monkeypatch.setattr(recovery_progress, "FIRST_SECONDS", 0.0)
    notes = io.StringIO()

    def slowly():
        assert until(lambda: "of 3 children" in notes.getvalue())

    with recovery_progress.RecoveryProgress(notes) as progress:
        with faults.armed("child.pronounced", 1, slowly):
            recover(store, "heir", HERE, progress=progress.note)
    assert notes.getvalue().startswith("recovering after a crash: 0 of 3 children\n")


def test_a_start_with_nothing_to_recover_says_nothing(monkeypatch):
    from onceward.dispatch import recovery_progress

    monkeypatch.setattr(recovery_progress, "FIRST_SECONDS", 0.0)
    notes = io.StringIO()
    with recovery_progress.RecoveryProgress(notes) as progress:
        progress.note(0, 0)
    assert notes.getvalue() == ""
