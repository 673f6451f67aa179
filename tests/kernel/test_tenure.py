"""The writer lock: who may take it, and how its holder finds out (L-20 to L-23)."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from helpers import count, create, everything, get, lines, orphan_lock, processes_with
from onceward import Plan
from onceward.builds import machine as rules
from onceward.core.sources import ScriptedSources, from_iso
from onceward.dispatch.work import Command
from onceward.errors import IntegrityFault, InvalidConfig, LockConflict, LockLost, StorageError
from onceward.kernel.heartbeat import Heartbeat
from onceward.kernel.tenure import acquire, holder, vacant
from onceward.locks.identity import ProcessVerdict, own_identity
from onceward.locks.program import runs_another_program
from onceward.locks.writer import judge_tenure
from onceward.store import migrate
from onceward.store.store import Store
from onceward.store.tables.singleton import last_beat
from onceward.workspace import Workspace
from typing_in import on_its_own


def rewrite(database, sql):
    session = database.connect()
    try:
        session.begin(None)
        session.write(sql)
        session.commit()
    finally:
        session.rollback()
        session.close()


def until(true, seconds=600):
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.01)
    assert true()


@pytest.mark.rule("L-20")
def test_the_lock_table_has_the_seeds_columns_and_ours(database):
    session = database.connect()
    columns = database.columns(session, "singleton_lock")
    session.close()
    assert columns == [
        *("lock_id", "token", "build_id", "acquired_by_pid", "process_name", "exe_sha256"),
        *("acquired_at", "last_heartbeat_at", "fence", "hostname", "boot_id", "process_start"),
    ]


@pytest.mark.rule("L-20")
def test_another_process_name_is_refused(store, database):
    with pytest.raises(IntegrityFault):
        rewrite(database, "UPDATE singleton_lock SET process_name = 'other'")


@pytest.mark.rule("L-21")
@pytest.mark.parametrize(
    ("liveness", "silent", "stands"),
    [
        *(("alive", 0, True), ("alive", 600, True), ("alive", 601, False)),
        *(("denied", 0, True), ("denied", 601, False)),
        *(("dead", 0, False), ("dead", 601, False)),
    ],
)
def test_a_tenure_stands_while_its_process_may_live_and_it_is_heard_of(liveness, silent, stands):
    assert (
        judge_tenure(
            ProcessVerdict(liveness, "because"), silent * 1_000_000, 600 * 1_000_000
        ).stands
        is stands
    )


@pytest.mark.rule("L-22")
def test_the_heartbeat_moves_its_stamps_and_counts_progress(store):
    before = holder(store)
    lost = []
    heartbeat = Heartbeat(store, store.tenure, lost.append, every=0.02)
    heartbeat.progress = 7

    def moved():
        with store.read() as rows:
            return last_beat(rows).progress == 7

    until(moved)
    heartbeat.stop()
    after = holder(store)
    assert from_iso(after.last_heartbeat_at) > from_iso(before.last_heartbeat_at)
    assert (after.token, after.fence, after.acquired_at) == (
        before.token,
        before.fence,
        before.acquired_at,
    )
    assert lost == []


@pytest.mark.rule("L-22")
@pytest.mark.parametrize("change", ["token = 'stolen'", "exe_sha256 = 'another program'"])
def test_a_heartbeat_that_finds_another_token_or_program_says_so_once(store, database, change):
    lost = []
    heartbeat = Heartbeat(store, store.tenure, lost.append, every=0.02)
    rewrite(database, f"UPDATE singleton_lock SET {change}")
    until(lambda: lost)
    heartbeat.stop()
    assert lost == ["another kernel has taken this workspace"]


@pytest.mark.rule("L-22")
def test_a_store_out_of_reach_is_borne_until_the_time_to_live_is_over(store):
    class Gone:
        def connect(self, **_):
            raise StorageError("no")

    class Elsewhere:
        database = Gone()

    lost = []
    begun = time.monotonic()
    heartbeat = Heartbeat(Elsewhere(), store.tenure, lost.append, every=0.02, ttl=0.3)
    until(lambda: lost)
    heartbeat.stop()
    assert time.monotonic() - begun >= 0.3
    assert "could not be renewed" in lost[0]


@pytest.mark.rule("L-22", "K-9")
def test_a_kernel_that_loses_its_lock_stops_and_says_why(tmp_path, store_url, monkeypatch):
    monkeypatch.setattr("onceward.kernel.heartbeat.Heartbeat.__init__.__defaults__", (0.02, 600.0))
    workspace = Workspace(tmp_path / ".onceward", store_url=store_url)
    workspace.create()
    kernel = workspace.kernel()
    ended, stop, heirs = [], threading.Event(), []

    def serve():
        try:
            kernel.run(stop)
        except LockLost as lost:
            ended.append(lost)

    def taken_over():
        # A beat between looking and taking proves life, so the heir may have to try again.
        with suppress(LockConflict):
            heirs.append(workspace.kernel())
        return heirs

    serving = threading.Thread(target=serve)
    serving.start()
    try:
        orphan_lock(workspace.database)
        until(taken_over)
        until(lambda: ended)
    finally:
        stop.set()
        serving.join(600)
        for one in (kernel, *heirs):
            one.close()
    assert "another kernel has taken" in ended[0].message


@pytest.mark.rule("L-22", "L-23")
@pytest.mark.parametrize("change", ["exe_sha256 = 'another program'", "token = 'stolen'"])
def test_a_kernel_whose_beat_finds_a_mismatch_writes_nothing_more(
    tmp_path, store_url, monkeypatch, change
):
    workspace = Workspace(tmp_path / ".onceward", store_url=store_url)
    workspace.create()
    monkeypatch.setattr("onceward.kernel.heartbeat.Heartbeat.__init__.__defaults__", (0.5, 600.0))
    kernel = workspace.kernel()
    build_id = create(kernel.store)
    kernel.store.write(
        lambda tx: tx.move(rules.move(tx.builds.get(build_id), "ACTIVE", "build_started", "tester"))
    )
    children = kernel.open_session("ses_a", 1)
    nonce = f"7{time.monotonic_ns()}"
    children.spawn([Command(argv=("sleep", nonce), cwd=tmp_path)])
    until(lambda: processes_with(nonce), 60)
    # That the child started was committed before its program began; nothing more is written until it ends.
    before = (everything(kernel.store), sorted(files_in(workspace.folder)))
    rewrite(workspace.database, f"UPDATE singleton_lock SET {change}")
    assert kernel.lost.wait(600)
    until(lambda: not processes_with(nonce), 60)
    with pytest.raises(LockLost):
        create(kernel.store)
    with pytest.raises(LockLost):
        kernel.run(threading.Event())
    kernel.close()
    with workspace.reading() as store:
        assert (everything(store), sorted(files_in(workspace.folder))) == before
        assert get(store, build_id).state == "ACTIVE"
    orphan_lock(workspace.database)
    workspace.kernel().close()
    with workspace.reading() as store:
        assert get(store, build_id).state == "CRASHED"
        assert b'"reason":"orphaned_at_startup"' in lines(store, f"session:{build_id}")[-1]


@pytest.mark.rule("L-22", "K-9")
def test_a_kernel_whose_write_finds_the_fence_moved_touches_no_file_either(tmp_path, store_url):
    workspace = Workspace(tmp_path / ".onceward", store_url=store_url)
    workspace.create()
    kernel = workspace.kernel()
    create(kernel.store)
    orphan_lock(workspace.database)
    heir = workspace.kernel()
    heir.close()
    before = everything(kernel.store)
    (workspace.folder / "streams" / ".seal").unlink()
    with pytest.raises(LockLost):
        create(kernel.store)
    assert kernel.store.tenure is None
    kernel.close()
    assert not (workspace.folder / "streams" / ".seal").exists()
    with workspace.reading() as store:
        assert everything(store) == before


def files_in(folder):
    """What only the kernel may write: streams and artifacts."""
    return [
        (str(path), path.stat().st_size)
        for name in ("streams", "artifacts")
        for path in (folder / name).rglob("*")
        if path.is_file()
    ]


HOLDER = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from crashes.victim import open_store
from onceward.kernel.heartbeat import Heartbeat
from onceward.dispatch.work import Command
import onceward.catalogue
from onceward.kernel.tenure import acquire
from onceward.errors import LockLost

store = open_store(sys.argv[1])
tenure = acquire(store, "holder")
lost = []
Heartbeat(store, tenure, lost.append, every=0.05)
store.write(lambda tx: tx.append("workspace", "NOTED", "holder", {"n": 1}))
print("held", flush=True)
sys.stdin.readline()
try:
    store.write(lambda tx: tx.append("workspace", "NOTED", "holder", {"n": 2}))
    print("wrote", flush=True)
except LockLost:
    print("lost", flush=True)
"""


@pytest.mark.rule("L-21", "L-22", "K-9")
@pytest.mark.guarantee("G3")
def test_a_holder_suspended_past_its_time_to_live_wakes_up_unable_to_write(
    store_url, tmp_path, sources
):
    from crashes.victim import open_store

    place = store_url if store_url != "sqlite" else str(tmp_path / "onceward.db")
    heir = open_store(place)
    migrate.migrate(heir.database, sources)
    tests = str(Path(__file__).resolve().parents[1])
    holding = subprocess.Popen(
        [sys.executable, "-c", HOLDER, place, tests],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holding.stdout.readline() == "held\n"
    with pytest.raises(LockConflict):
        acquire(heir, "heir", ttl_seconds=1.0)
    os.kill(holding.pid, signal.SIGSTOP)
    with pytest.raises(LockConflict):
        acquire(heir, "heir", ttl_seconds=600.0)
    time.sleep(1.2)
    tenure = acquire(heir, "heir", ttl_seconds=1.0)
    assert tenure.fence == 2
    before = everything(heir)
    os.kill(holding.pid, signal.SIGCONT)
    said, _ = holding.communicate("go\n", timeout=600)
    assert said == "lost\n"
    assert everything(heir) == before
    heir.write(lambda tx: tx.append("workspace", "NOTED", "heir", {}))
    heir.close()


@pytest.mark.rule("L-21")
@pytest.mark.guarantee("G26")
@pytest.mark.parametrize("jump", [10**15, -(10**15)])
def test_setting_the_clock_neither_steals_nor_immortalises_a_lock(make_database, jump):
    sources = ScriptedSources()
    database = make_database(sources)
    migrate.migrate(database, sources)
    store = Store(database, sources)
    acquire(store, "tester")
    sources.advance(jump)
    rival = Store(database, sources)
    assert not vacant(rival)
    with pytest.raises(LockConflict):
        acquire(rival, "rival")
    create(store)
    orphan_lock(database)
    assert vacant(rival)
    acquire(rival, "rival")
    assert count(rival, "builds") == 1
    store.close()
    rival.close()


@pytest.mark.rule("L-21")
@pytest.mark.parametrize(("silent", "stands"), [(30, True), (3600, False)])
def test_a_holder_on_another_machine_is_judged_by_its_heartbeat_alone(
    make_database, silent, stands
):
    sources = ScriptedSources()
    database = make_database(sources)
    migrate.migrate(database, sources)
    store = Store(database, sources)
    acquire(store, "tester", root_id="shared")
    store.close()
    rewrite(
        database,
        "UPDATE singleton_lock SET hostname = 'elsewhere', boot_id = 'another', acquired_by_pid = 1",
    )
    rewrite(database, "UPDATE kernel_beat SET boot_id = 'another'")
    sources.advance(silent * 1_000_000)
    rival = Store(database, sources)
    assert vacant(rival) is not stands
    if stands:
        with pytest.raises(LockConflict, match="another machine"):
            acquire(rival, "rival", root_id="shared")
    else:
        assert acquire(rival, "rival", root_id="shared").fence == 2
    rival.close()


def go_elsewhere(database, hostname="another-machine"):
    """Let the lock look as if a kernel on another machine held it and had been silent for years."""
    rewrite(
        database,
        f"UPDATE singleton_lock SET hostname = '{hostname}', acquired_by_pid = 4194304,"
        " last_heartbeat_at = '2020-01-01T00:00:00.000000Z'",
    )
    rewrite(
        database, "UPDATE kernel_beat SET boot_id = 'another boot', machine_id = 'another machine'"
    )


@pytest.mark.rule("L-21")
@pytest.mark.parametrize("ours", ["", "root-b"])
def test_a_takeover_from_another_machine_needs_its_artifact_root(database, sources, ours):
    first = Store(database, sources)
    acquire(first, "first", root_id="root-a")
    first.close()
    go_elsewhere(database)
    heir = Store(database, sources)
    with pytest.raises(LockConflict, match="artifacts cannot be reached") as refused:
        acquire(heir, "heir", root_id=ours)
    assert refused.value.context["reason"] == "artifact_root"
    assert acquire(heir, "heir", root_id="root-a").fence == 2
    heir.close()


@pytest.mark.rule("L-21")
def test_a_container_of_the_same_name_is_another_machine(database, sources):
    first = Store(database, sources)
    acquire(first, "first", root_id="root-a")
    first.close()
    go_elsewhere(database, own_identity().hostname)
    heir = Store(database, sources)
    with pytest.raises(LockConflict, match="cannot be reached"):
        acquire(heir, "heir")
    heir.close()


@pytest.mark.rule("L-21")
def test_the_artifact_root_has_one_mark_for_ever(tmp_path):
    first = Workspace(tmp_path / ".onceward", principal="tester")
    first.create()
    mark = first.root_id()
    assert len(mark) == 32
    assert Workspace(tmp_path / ".onceward", principal="other").root_id() == mark


def configured(folder, store_url, text):
    """A workspace with these settings."""
    folder.mkdir(exist_ok=True)
    (folder / "onceward.toml").write_text(text)
    workspace = Workspace(folder / ".onceward", store_url=store_url, principal="tester")
    workspace.create()
    return workspace


@pytest.mark.rule("L-21")
def test_the_time_to_live_is_ten_minutes_on_sqlite_and_one_with_a_server(database, sources):
    assert Store(database, sources).lock_ttl == {"sqlite": 600.0, "postgresql": 60.0}[database.kind]


@pytest.mark.rule("L-21", "L-22")
def test_the_time_to_live_is_a_setting_that_everybody_goes_by(tmp_path, store_url):
    workspace = configured(tmp_path, store_url, "[locks]\nttl_ms = 20000\n")
    kernel = workspace.kernel()
    try:
        assert kernel._heartbeat._ttl == 20.0
        rewrite(workspace.database, "UPDATE kernel_beat SET steady = steady - 19000000")
        with pytest.raises(LockConflict), workspace.reading() as store:
            assert not vacant(store)
            workspace.kernel()
        rewrite(workspace.database, "UPDATE kernel_beat SET steady = steady - 2000000")
        with workspace.reading() as store:
            assert vacant(store)
        workspace.kernel().close()
    finally:
        kernel.close()


@pytest.mark.rule("K-11")
@pytest.mark.parametrize(
    "text",
    [
        *("[locks]\nttl_ms = 14999\n", "[locks]\nttl_ms = -1\n", '[locks]\nttl_ms = "1 h"\n'),
        *('[locks]\nfolder = "a\\u0000b"\n', "[locks]\nseconds = 1\n"),
        *("[builds]\nconfirmation_seconds = 0\n", "[builds]\nconfirmation_seconds = 9999999999\n"),
    ],
)
def test_settings_of_locks_that_make_no_sense_are_refused(tmp_path, text):
    with pytest.raises(InvalidConfig):
        configured(tmp_path, "sqlite", text)


@pytest.mark.rule("L-1a", "L-4")
def test_workspaces_with_one_lock_folder_exclude_each_other_from_a_target(tmp_path, store_url):
    text = '[locks]\nfolder = "../shared"\n'
    first = configured(tmp_path / "a", "sqlite", text)
    second = configured(tmp_path / "b", "sqlite", text)
    kernel = second.kernel()
    kernel.target_wait = 0
    with first.locks.hold("printer"):
        assert (tmp_path / "shared" / "printer.lock").exists()
        children = kernel.open_session("ses_a", 1)
        (child_id,) = children.spawn(
            [Command(argv=("true",), cwd=tmp_path, target="printer")],
        )
        assert children.wait(child_id).detail["error"] == "LOCK_CONFLICT"
    kernel.close()
    assert not (second.folder / "locks").exists()


@pytest.mark.rule("L-20", "L-23")
def test_the_lock_names_the_build_that_a_foreground_run_carries(site, store_url):
    folder, witness = site.workspace.folder, site.witness

    def look(task):
        with Workspace(folder, store_url=store_url, principal="tester").reading() as store:
            with witness.open("a") as file:
                file.write(f"{holder(store).build_id}\n")

    plan = Plan("work", folder=site.folder)
    plan.stage(name="look")(look)
    site.run(plan, reuse=False)
    assert site.lines() == [site.build_id]
    with site.workspace.reading() as store, store.read() as rows:
        assert rows.read("SELECT build_id FROM singleton_lock") == [(None,)]
    crashed = site.crash(plan, point="child.ended", nth=1, reuse=False)
    site.resume(plan, crashed, reuse=False)
    assert site.lines() == [crashed, crashed]
    kernel = site.workspace.kernel()
    with site.workspace.reading() as store:
        assert holder(store).build_id is None, "a kernel without a run carries none"
    kernel.close()


@pytest.mark.rule("L-21", "L-23")
def test_a_conflict_says_which_build_the_holder_carries(site):
    seen = []

    def look(task):
        with pytest.raises(LockConflict) as refused:
            on_its_own(site.workspace.kernel)
        seen.append(refused.value.context["build_id"])

    plan = Plan("work", folder=site.folder)
    plan.stage(name="look")(look)
    assert site.run(plan)["state"] == "SUCCESS"
    assert seen == [site.build_id]


EXECUTES = """
import os, sys
sys.path.insert(0, sys.argv[2])
from crashes.victim import open_store
import onceward.catalogue
from onceward.kernel.tenure import acquire

acquire(open_store(sys.argv[1]), "holder")
print("held", flush=True)
os.read(0, len("go!"))
os.execvp(sys.argv[3], sys.argv[3:])
"""


@pytest.mark.rule("L-21")
@pytest.mark.parametrize(
    ("program", "recorded", "stale"),
    [
        (["cat"], None, True),
        ([sys.executable, "-c", "print('new', flush=True); input(); input()"], None, False),
        (["cat"], "of another version", False),
    ],
)
def test_a_holder_that_executed_another_program_is_gone_if_that_can_be_proved(
    store_url, tmp_path, sources, program, recorded, stale
):
    from crashes.victim import open_store

    place = store_url if store_url != "sqlite" else str(tmp_path / "onceward.db")
    heir = open_store(place)
    migrate.migrate(heir.database, sources)
    tests = str(Path(__file__).resolve().parents[1])
    holding = subprocess.Popen(
        [sys.executable, "-c", EXECUTES, place, tests, *program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holding.stdout.readline() == "held\n"
        with pytest.raises(LockConflict):
            acquire(heir, "heir")
        if recorded:
            rewrite(heir.database, f"UPDATE singleton_lock SET exe_sha256 = '{recorded}'")
        # Both programs say "new" once they run: one repeats it, the other prints it by itself.
        holding.stdin.write("go!new\n")
        holding.stdin.flush()
        assert "new" in holding.stdout.readline()
        if stale:
            assert acquire(heir, "heir").fence == 2
        else:
            with pytest.raises(LockConflict) as refused:
                acquire(heir, "heir")
            assert refused.value.context["reason"] == ("exe_mismatch" if recorded else "held")
    finally:
        holding.kill()
        holding.communicate()
    heir.close()


@pytest.mark.rule("L-21")
def test_what_cannot_be_read_of_a_process_proves_nothing(tmp_path):
    code = tmp_path / "code"
    code.write_bytes(b"no interpreter")
    process = tmp_path / "77"
    process.mkdir()
    (process / "root").symlink_to("/")
    (process / "exe").symlink_to(code)

    def judged(*mapped):
        lines = [f"00-01 r-xp 00000000 08:01 5 {name}\n" for name in mapped]
        (process / "maps").write_text("".join(["00-01 r--p 0 08:01 5 /absent\n", *lines]))
        return runs_another_program(77, tmp_path)

    assert judged(code, "[vdso]")
    assert not judged(), "a process that is ending shows no code"
    assert not judged(code, ""), "code that was made at run time"
    assert not judged(code, "/absent"), "a file that is not there"
    assert not judged(f"{code} (deleted)"), "an interpreter that was upgraded since"
    (process / "maps").unlink()
    assert not runs_another_program(77, tmp_path), "a process of another user"
    code.write_bytes(f"Python {platform.python_version()}".encode())
    assert not judged(code)
    assert not runs_another_program(os.getpid())
