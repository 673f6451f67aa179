"""Interrupts, swallowed refusals and lost answers: nobody hangs, nothing runs twice, every word is true."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from helpers import count, create, get, step
from onceward.builds import machine as rules
from onceward.core import faults
from onceward.core.records import Move, Request
from onceward.errors import OncewardError, RequestConflict, StaleVersion, StorageError
from onceward.evidence.verify import verify_rows
from onceward.kernel.tenure import acquire
from onceward.store import writer
from onceward.store.port import Transient
from onceward.store.store import Store


def interrupt():
    raise KeyboardInterrupt


def note(name):
    return lambda tx: tx.append("workspace", "NOTED", "tester", {"who": name}).seq


def notes(store) -> list[str]:
    with store.read() as rows:
        bodies = rows.read("SELECT body FROM events ORDER BY position")
    return sorted(json.loads(body)["detail"]["who"] for (body,) in bodies)


def meet(store, works):
    """Let several callers queue while the first holds the lead, so that they share the next commit."""
    begun, go = threading.Event(), threading.Event()

    def hold(tx):
        begun.set()
        go.wait(600)

    def caller(work):
        try:
            return ("ok", store.write(work))
        except BaseException as error:
            return (type(error).__name__, str(error))

    with ThreadPoolExecutor(len(works) + 1) as pool:
        first = pool.submit(caller, hold)
        begun.wait(600)
        others = []
        for number, work in enumerate(works, 1):
            others.append(pool.submit(caller, work))
            while len(store.writer._waiting) < number:
                time.sleep(0.001)
        go.set()
        assert first.result(20)[0] == "ok"
        return [other.result(20) for other in others]


@pytest.mark.guarantee("G4")
@pytest.mark.parametrize("point", ["write.begun", "write.worked", "commit.before", "commit.after"])
def test_an_interrupt_at_any_point_of_a_lone_write_leaves_the_store_usable(store, point):
    with faults.armed(point, act=interrupt), pytest.raises(KeyboardInterrupt):
        store.write(note("first"))
    assert notes(store) == (["first"] if point == "commit.after" else [])
    for name in ("a", "b", "c"):
        store.write(note(name))
    with store.read() as rows:
        assert verify_rows(rows).faults == []


@pytest.mark.guarantee("G4")
@pytest.mark.parametrize("point", ["write.worked", "commit.after"])
def test_an_interrupted_leader_neither_repeats_nor_loses_its_companions_work(store, point):
    faults.arm(point, nth=2, act=interrupt)
    leader, *others = meet(store, [note(name) for name in "abc"])
    faults.disarm()
    assert leader[0] == "KeyboardInterrupt"
    if point == "commit.after":
        assert [word for word, _ in others] == ["ok", "ok"]
        assert notes(store) == ["a", "b", "c"]
    else:
        assert [word for word, _ in others] == ["StorageError", "StorageError"]
        assert notes(store) == []
    store.write(note("next"))


def test_an_exit_raised_by_one_work_is_its_own(store):
    def leave(tx):
        raise SystemExit(3)

    outcomes = meet(store, [note("a"), leave, note("b")])
    assert [word for word, _ in outcomes] == ["ok", "SystemExit", "ok"]
    assert notes(store) == ["a", "b"]


def test_work_that_fails_on_the_last_try_is_not_called_done(store):
    """Four transient refusals, then one work fails for good: the others must still be really committed."""
    tries = []

    def shaky(tx):
        tries.append(1)
        if len(tries) < 5:
            raise Transient("40001")
        raise RuntimeError("mine")

    outcomes = meet(store, [note("a"), shaky, note("b")])
    assert [word for word, _ in outcomes] == ["ok", "RuntimeError", "ok"]
    assert notes(store) == ["a", "b"]


@pytest.mark.rule("K-12")
def test_work_that_swallows_a_refusal_is_refused_itself(store):
    def careless(tx):
        tx.append("workspace", "NOTED", "tester", {"who": "before"})
        try:
            tx.read("SELECT nope FROM builds")
        except OncewardError:
            pass
        return "done"

    with pytest.raises(StorageError):
        store.write(careless)
    assert notes(store) == []
    store.write(note("next"))


@pytest.mark.rule("K-12")
def test_a_refused_write_that_was_held_back_hurts_nobody_else(store):
    build_id = create(store)

    def guilty(tx):
        tx.move(Move(rules.BUILD, build_id, "PENDING", "ACTIVE", 7, "tester", "build_started"))
        raise ValueError("my own")

    for _ in range(2):
        with pytest.raises((ValueError, StaleVersion)):
            store.write(guilty)
    assert step(store, build_id).version == 2
    outcomes = meet(store, [note("a"), guilty, note("b")])
    assert [outcomes[0][0], outcomes[2][0]] == ["ok", "ok"]
    assert outcomes[1][0] in ("ValueError", "StaleVersion")


def test_a_write_inside_a_write_is_refused_and_does_not_hang(store):
    with pytest.raises(RuntimeError, match="inside a write"):
        store.write(lambda tx: store.write(note("inner")))
    store.write(note("next"))


@pytest.mark.rule("K-8")
@pytest.mark.parametrize("payload", ["A", "B"])
def test_a_request_filed_by_another_process_at_the_same_moment_counts(
    make_database, sources, kind, payload
):
    from onceward.store import migrate

    database = make_database(sources)
    migrate.migrate(database, sources)
    theirs = Store(database, sources)

    class Slow(type(sources)):
        armed = False

        def new_id(self, prefix):
            made = super().new_id(prefix)
            if Slow.armed and kind == "postgresql":
                Slow.armed = False
                theirs.file(Request("work", "r1", {"x": payload}, "tester"))
            return made

    ours = Store(database, Slow())
    acquire(ours, "tester")
    Slow.armed = True
    request = Request("work", "r1", {"x": "A"}, "tester")
    if kind == "postgresql" and payload == "B":
        with pytest.raises(RequestConflict):
            ours.answer(request, lambda tx, resource: {"did": "A", "resource": resource})
    else:
        answer = ours.answer(request, lambda tx, resource: {"did": "A", "resource": resource})
        with ours.read() as rows:
            ((stored,),) = rows.read("SELECT resource_id FROM requests")
        assert answer.value["resource"] == stored
    ours.close()
    theirs.close()


@pytest.mark.guarantee("G4")
# Only a server can go on committing after we are gone.
@pytest.mark.parametrize("kind", ["postgresql"])
def test_a_commit_still_under_way_when_the_connection_breaks_is_waited_for(store):
    store.write(note("first"))
    with psycopg.connect(store.database.url, autocommit=True) as admin:
        admin.execute(f"SET search_path = {store.database.schema}")
        admin.execute(
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN PERFORM pg_sleep(1.5); RETURN NULL; END $$"
        )
        admin.execute(
            "CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON events DEFERRABLE INITIALLY DEFERRED"
            " FOR EACH ROW EXECUTE FUNCTION slow()"
        )
    descriptor = os.dup(store.writer._session._pipeline._pg.socket)
    line = socket.socket(fileno=descriptor)
    cut = threading.Timer(0.4, lambda: line.shutdown(socket.SHUT_RDWR))
    cut.start()
    try:
        told = ("ok", store.write(note("second")))
    except StorageError as error:
        told = (error.context["outcome"], None)
    cut.join()
    line.close()
    assert told[0] in ("ok", "failed")
    assert notes(store) == (["first", "second"] if told[0] == "ok" else ["first"])
    # The kernel gave its tenure up with its word, so opening again works in the same process.
    with pytest.raises(OncewardError):
        store.write(note("third"))
    heir = Store(store.database, store.sources, ["log"])
    acquire(heir, "heir")
    assert notes(heir) == (["first", "second"] if told[0] == "ok" else ["first"])
    heir.close()


FAILING_SYNC = """
import os, sys, apsw
from pathlib import Path
import onceward.catalogue
from onceward.kernel.tenure import acquire
from onceward.core.sources import LiveSources
from onceward.store import migrate
from onceward.store.sqlite import SqliteDatabase
from onceward.store.store import Store

class File(apsw.VFSFile):
    fail = False
    def __init__(self, inherit, name, flags):
        super().__init__(inherit, name, flags)
        self.log = bool(flags[0] & apsw.SQLITE_OPEN_WAL)
    def xSync(self, flags):
        if self.log and File.fail:
            File.fail = False
            raise apsw.IOError("injected")
        return super().xSync(flags)

class Disk(apsw.VFS):
    def __init__(self):
        super().__init__("failing", "unix", makedefault=True)
    def xOpen(self, name, flags):
        return File("unix", name, flags)

disk, sources = Disk(), LiveSources()
database = SqliteDatabase(Path(sys.argv[1]), sources)
migrate.migrate(database, sources)
store = Store(database, sources)
acquire(store, "tester")
store.write(lambda tx: tx.append("workspace", "NOTED", "t", {"who": "first"}))
File.fail = True
try:
    store.write(lambda tx: tx.append("workspace", "NOTED", "t", {"who": "second"}))
    print("ok", flush=True)
except Exception as error:
    print(error.context["outcome"], flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.guarantee("G4")
@pytest.mark.guarantee("G22")
def test_a_failed_sync_called_failed_is_not_found_applied_after_a_crash(tmp_path, sources):
    from onceward.store.sqlite import SqliteDatabase

    done = subprocess.run(
        [sys.executable, "-c", FAILING_SYNC, str(tmp_path / "onceward.db")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    told = done.stdout.strip()
    heir = Store(SqliteDatabase(tmp_path / "onceward.db", sources), sources)
    acquire(heir, "heir")
    assert told in ("ok", "failed")
    assert notes(heir) == (["first", "second"] if told == "ok" else ["first"])
    heir.close()


SIGINTS = """
import os, random, signal, sys, threading, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from crashes.victim import open_store
import onceward.catalogue
from onceward.kernel.tenure import acquire
from onceward.errors import OncewardError
from onceward.store import migrate

store = open_store(sys.argv[1])
migrate.migrate(store.database, store.sources)
acquire(store, "tester")
told, rounds = {}, 400
signal.alarm(60)

def write(name):
    try:
        store.write(lambda tx: tx.append("workspace", "NOTED", "t", {"who": name}))
        told[name] = "ok"
    except OncewardError as error:
        told[name] = error.context.get("outcome", error.code)

stop = threading.Event()
def worker(n):
    i = 0
    while not stop.is_set():
        write(f"{n}-{i}")
        i += 1
workers = [threading.Thread(target=worker, args=(n,)) for n in range(3)]
for thread in workers:
    thread.start()
aimed = threading.Event()
shots = [0]
def interrupt(*_):
    # An interrupt, also on top of an interrupt, but only while the main thread writes.
    if shots[0] > 0:
        shots[0] -= 1
        raise KeyboardInterrupt
signal.signal(signal.SIGINT, interrupt)
dice = random.Random(1)
def shoot():
    aimed.wait()
    for _ in range(100):
        time.sleep(dice.uniform(0.001, 0.01))
        os.kill(os.getpid(), signal.SIGINT)
    stop.set()
threading.Thread(target=shoot).start()
interrupted = number = 0
while not stop.is_set():
    number += 1
    try:
        try:
            shots[0] = 2
            aimed.set()
            write(f"main-{number}")
            shots[0] = 0
        except KeyboardInterrupt:
            interrupted += 1
            shots[0] = 0
    except KeyboardInterrupt:
        pass
for thread in workers:
    thread.join()
import json
print(json.dumps({"told": told, "interrupted": interrupted}), flush=True)
os._exit(0)
"""


def test_a_hundred_real_interrupts_leave_nobody_waiting_and_no_false_word(store_url, tmp_path):
    from crashes.victim import open_store

    place = store_url if store_url != "sqlite" else str(tmp_path / "onceward.db")
    tests = str(Path(__file__).resolve().parents[1])
    done = subprocess.run(
        [sys.executable, "-c", SIGINTS, place, tests], capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout)
    assert said["interrupted"] > 5
    store = open_store(place)
    found = notes(store)
    assert len(found) == len(set(found)), "something was written twice"
    assert [name for name, word in said["told"].items() if word == "ok" and name not in found] == []
    assert [name for name, word in said["told"].items() if word == "failed" and name in found] == []
    with store.read() as rows:
        assert verify_rows(rows).faults == []
    store.close()


@pytest.mark.guarantee("G3")
def test_a_forked_copy_may_neither_read_nor_write(store):
    read_end, write_end = os.pipe()
    build_id = create(store)
    assert get(store, build_id).version == 1
    child = os.fork()
    if child == 0:
        told = []
        for attempt in (lambda: step(store, build_id), lambda: get(store, build_id)):
            try:
                attempt()
                told.append("allowed")
            except StorageError:
                told.append("refused")
        os.write(write_end, json.dumps(told).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write_end)
    assert json.loads(os.read(read_end, 1000)) == ["refused", "refused"]
    os.close(read_end)
    assert step(store, build_id).version == 2
    assert count(store, "events") == 2


@pytest.mark.rule("K-9")
@pytest.mark.parametrize("nth", [1, 2])
def test_an_interrupt_at_the_door_of_what_must_be_done_after_one_leaves_the_lead_to_nobody(
    store, monkeypatch, nth
):
    """The second interrupt comes before the first instruction of the very call that clears up after the first."""
    through, calls = writer._through, []

    def interrupted(work):
        calls.append(work)
        if len(calls) == nth:
            raise KeyboardInterrupt
        through(work)

    def work(tx):
        tx.append("workspace", "NOTED", "t", {"who": "interrupted"})
        raise KeyboardInterrupt

    monkeypatch.setattr(writer, "_through", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.write(work)
    monkeypatch.setattr(writer, "_through", through)

    def note(who):
        store.write(lambda tx: tx.append("workspace", "NOTED", "t", {"who": who}))

    other = threading.Thread(target=note, args=("other",), daemon=True)
    other.start()
    other.join(600)
    assert not other.is_alive()
    note("main")
    assert notes(store) == ["main", "other"]
