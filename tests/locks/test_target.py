"""The target lock: each behaviour of L-1 to L-10 as a claim of its own, on real folders."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from onceward.core import faults
from onceward.errors import InvalidConfig, StorageError
from onceward.locks import TargetLock, TargetLocked
from onceward.locks.claims import check_target, read_claim
from onceward.locks.identity import boot_id, machine_id
from planted_claims import GONE, plant


def no_such_process(pid, signal_):
    raise ProcessLookupError


def not_ours(pid, signal_):
    raise PermissionError


def odd(pid, signal_):
    raise OSError(5, "Input/output error")


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "locks"


@pytest.mark.rule("L-1a")
@pytest.mark.guarantee("G8")
def test_a_change_of_the_working_folder_gives_no_second_holder(tmp_path, monkeypatch):
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(here)
    lock = TargetLock("locks")
    claim = lock.acquire("t")
    monkeypatch.chdir(elsewhere)
    assert (lock.folder, claim.path) == (here / "locks", here / "locks" / "t.lock")
    with pytest.raises(TargetLocked):
        lock.acquire("t")
    with pytest.raises(TargetLocked):
        TargetLock("../here/locks").acquire("t")
    assert lock.release(claim) == "released"
    assert list(elsewhere.iterdir()) == []


@pytest.mark.rule("L-1a")
def test_the_folder_is_settled_before_the_first_acquire(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lock = TargetLock("locks")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert lock.acquire("t").path == tmp_path / "locks" / "t.lock"


@pytest.mark.rule("L-1", "L-9")
def test_a_claim_is_a_complete_json_line_that_says_who(folder):
    lock = TargetLock(folder, now=lambda: "then", nonce=lambda: "n1")
    claim = lock.acquire("20260115T101500-a1b2c3")
    text = claim.path.read_text()
    assert text.endswith("\n")
    said = json.loads(text)
    assert said == {
        "targetId": "20260115T101500-a1b2c3",
        "pid": os.getpid(),
        "hostname": os.uname().nodename,
        "createdAt": "then",
        "nonce": "n1",
        "owner": "onceward",
        "lockPath": str(claim.path),
        "machineId": machine_id(),
        "bootId": boot_id(),
        "processStart": said["processStart"],
    }
    assert stat.S_IMODE(claim.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert lock.release(claim) == "released"


@pytest.mark.rule("L-1")
def test_the_create_comes_before_any_look_at_the_holder(folder):
    asked = []
    TargetLock(folder, kill=lambda pid, sig: asked.append(pid)).acquire("t")
    assert asked == []


@pytest.mark.rule("L-1")
def test_a_held_target_is_refused_with_the_holders_evidence(folder):
    claim = TargetLock(folder).acquire("t")
    with pytest.raises(TargetLocked) as locked:
        TargetLock(folder).acquire("t")
    assert locked.value.reason == "target-locked"
    assert locked.value.holder.nonce == claim.nonce
    assert locked.value.path == claim.path
    wanted = rf"pid {os.getpid()} on \S+ since \S+ \(a living process has it locked; file written \d{{4}}-"
    assert re.search(wanted, locked.value.detail)
    assert locked.value.exit_status == 4
    assert "onceward locks show t" in str(locked.value.document())


@pytest.mark.rule("L-2")
@pytest.mark.parametrize(
    "target",
    [
        "",
        ".",
        "..",
        "../x",
        "a/b",
        "a\0b",
        "a b",
        "-a",
        ".a",
        "a..b",
        "x" * 129,
        "ä",
        "а",
        "a\n",
        "a\\b",
        None,
        7,
    ],
)
def test_a_bad_target_id_is_refused_before_any_path_is_built(folder, target):
    with pytest.raises(InvalidConfig):
        TargetLock(folder).acquire(target)
    assert not folder.exists()


@pytest.mark.rule("L-2")
@pytest.mark.parametrize("target", ["a", "0", "A.b_c-d", "x" * 128, "catalogue.extract.a"])
def test_good_target_ids(target):
    assert check_target(target) == target


@pytest.mark.rule("L-3")
def test_release_removes_only_what_is_still_ours(folder):
    lock = TargetLock(folder)
    claim = lock.acquire("t")
    claim.path.unlink()
    successor = TargetLock(folder).acquire("t")
    assert lock.release(claim) == "not-owned"
    assert read_claim(successor.path, "t").nonce == successor.nonce
    other = lock.acquire("u")
    other.path.unlink()
    assert lock.release(other) == "absent"


@pytest.mark.rule("L-3")
def test_release_refuses_a_file_that_names_another_target(folder):
    lock = TargetLock(folder, nonce=lambda: "same")
    claim = lock.acquire("t")
    said = json.loads(claim.path.read_text())
    claim.path.write_text(json.dumps({**said, "targetId": "u"}))
    assert lock.release(claim) == "not-owned"
    assert claim.path.exists()


@pytest.mark.rule("L-3")
def test_a_claim_is_released_at_most_once(folder):
    lock = TargetLock(folder)
    claim = lock.acquire("t")
    assert lock.release(claim) == "released"
    assert lock.release(claim) == "absent"
    with lock.hold("t") as again:
        assert again.path.exists()
    assert not again.path.exists()


@pytest.mark.rule("L-4")
def test_a_dead_holder_of_this_machine_is_replaced(folder):
    plant(folder)
    claim = TargetLock(folder).acquire("t")
    assert read_claim(claim.path, "t").nonce == claim.nonce
    assert not Path(f"{claim.path}.reclaim").exists()


@pytest.mark.rule("L-4")
@pytest.mark.parametrize(
    ("kill", "change", "words"),
    [
        (not_ours, {}, "belongs to another user"),
        (odd, {}, "cannot be judged"),
        (lambda pid, sig: None, {}, "is running"),
        (no_such_process, {"hostname": "elsewhere"}, "another machine"),
        (no_such_process, {"machineId": "other"}, "another machine of the same name"),
        (
            no_such_process,
            {"machineId": "other", "bootId": "other"},
            "another machine of the same name",
        ),
    ],
)
def test_what_is_not_provably_gone_is_not_reclaimed(folder, kill, change, words):
    path = plant(folder, **change)
    before = path.read_bytes()
    with pytest.raises(TargetLocked, match=words) as locked:
        TargetLock(folder, kill=kill).acquire("t")
    assert locked.value.holder.nonce == "dead"
    assert path.read_bytes() == before


@pytest.mark.rule("L-4", "L-9")
@pytest.mark.parametrize(
    "change",
    [
        {"bootId": "an earlier boot"},
        {"pid": os.getpid(), "bootId": boot_id(), "machineId": machine_id(), "processStart": "1"},
    ],
    ids=["another boot", "pid reused"],
)
def test_the_extra_fields_prove_death_where_the_pid_alone_could_not(folder, change):
    plant(folder, **change)
    TargetLock(folder, kill=lambda pid, sig: None).acquire("t")


@pytest.mark.rule("L-4")
def test_a_claim_without_the_extra_fields_gets_no_such_process_only(folder):
    plant(folder, pid=os.getpid(), processStart="1")
    with pytest.raises(TargetLocked, match="is running"):
        TargetLock(folder).acquire("t")


@pytest.mark.rule("L-4")
def test_a_zombie_is_dead(folder):
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), "t"], stdout=subprocess.PIPE, text=True
    )
    child.stdout.readline()
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    TargetLock(folder).acquire("t")
    child.wait()
    child.stdout.close()


@pytest.mark.rule("L-4")
def test_no_stealing_by_age_ever(folder):
    claim = TargetLock(folder).acquire("t")
    os.utime(claim.path, (1, 1))
    with pytest.raises(TargetLocked):
        TargetLock(folder).acquire("t")


HOLD = """
import sys, time
from onceward.locks import TargetLock
claim = TargetLock(sys.argv[1]).acquire(sys.argv[2])
print("held", flush=True)
time.sleep(60)
"""

HOLD_WITH_CHILD = """
import os, subprocess, sys, time
from onceward.locks import TargetLock
claim = TargetLock(sys.argv[1]).acquire(sys.argv[2])
child = subprocess.Popen(["sleep", "60"], pass_fds=[claim.descriptor])
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.rule("L-4")
@pytest.mark.guarantee("G21")
def test_a_target_stays_held_while_a_child_started_under_the_lock_lives(folder):
    dispatcher = subprocess.Popen(
        [sys.executable, "-c", HOLD_WITH_CHILD, str(folder), "t"], stdout=subprocess.PIPE, text=True
    )
    child = int(dispatcher.stdout.readline())
    dispatcher.kill()
    dispatcher.wait()
    dispatcher.stdout.close()
    lock = TargetLock(folder)
    with pytest.raises(TargetLocked, match="a living process has it locked"):
        lock.acquire("t")
    os.kill(child, signal.SIGKILL)
    deadline = threading.Event()
    for _ in range(200):
        try:
            lock.acquire("t")
            return
        except TargetLocked:
            deadline.wait(0.02)
    raise AssertionError("the target is stuck with no live holder")


@pytest.mark.rule("L-4")
def test_an_unrelated_child_does_not_inherit_the_lock(folder):
    lock = TargetLock(folder)
    claim = lock.acquire("t")
    child = subprocess.Popen(["sleep", "60"], close_fds=False)
    lock.forget(claim)
    assert lock._unheld(claim.path)
    child.kill()
    child.wait()


@pytest.mark.guarantee("G21")
def test_a_fork_without_exec_neither_keeps_nor_frees_the_lock(folder):
    lock = TargetLock(folder)
    claim = lock.acquire("t")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        lock.forget(claim)
        os.write(writer, b"forked")
        signal.pause()
        os._exit(0)
    assert os.read(reader, 100) == b"forked"
    assert claim.path.exists()
    with pytest.raises(TargetLocked):
        TargetLock(folder).acquire("t")
    assert lock.release(claim) == "released"
    TargetLock(folder).acquire("t")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reader)
    os.close(writer)


@pytest.mark.rule("L-5")
def test_a_claim_that_changed_under_the_reclaimer_is_somebodys(folder):
    path = plant(folder)
    with faults.armed(
        "target.marked", act=lambda: path.write_text(path.read_text().replace("dead", "alive"))
    ):
        with pytest.raises(TargetLocked, match="just taken") as locked:
            TargetLock(folder).acquire("t")
    assert locked.value.holder.nonce == "alive"
    assert not Path(f"{path}.reclaim").exists()


@pytest.mark.rule("L-5")
def test_whoever_wins_the_gap_between_unlink_and_create_keeps_it(folder):
    plant(folder)
    winner = TargetLock(folder)
    with faults.armed("target.unlinked", act=lambda: winner.acquire("t")):
        with pytest.raises(TargetLocked, match="just taken") as locked:
            TargetLock(folder).acquire("t")
    assert locked.value.holder.pid == os.getpid()
    assert read_claim(locked.value.path, "t").nonce == locked.value.holder.nonce


@pytest.mark.rule("L-5")
def test_a_lock_that_vanished_is_tried_once_more_and_never_again(folder, monkeypatch):
    holder = TargetLock(folder)
    lock = TargetLock(folder)
    original = lock._publish
    tries = []

    def publish(wanted):
        tries.append(1)
        if len(tries) > 1:
            return original(wanted)
        claim = holder.acquire("t")
        made = original(wanted)
        holder.release(claim)
        return made

    monkeypatch.setattr(lock, "_publish", publish)
    assert lock.acquire("t").target == "t"
    assert len(tries) == 2


@pytest.mark.rule("L-5", "L-6")
def test_a_marker_left_by_a_dead_reclaimer_blocks_nobody(folder):
    path = plant(folder)
    Path(f"{path}.reclaim").write_text("")
    TargetLock(folder).acquire("t")
    assert not Path(f"{path}.reclaim").exists()


@pytest.mark.rule("L-6")
def test_a_marker_of_a_live_reclaimer_is_a_conflict_with_its_age(folder):
    path = plant(folder)
    Path(f"{path}.reclaim").write_text("")
    busy = TargetLock(folder)
    with busy._guard("t", wait=True):
        with pytest.raises(
            TargetLocked, match=r"another process is reclaiming it \(marker written "
        ):
            TargetLock(folder).acquire("t")
    assert path.exists()


@pytest.mark.rule("L-6")
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"garbage",
        b"[]",
        b"\xff\xfe",
        b'{"targetId": "t"}',
        json.dumps({"targetId": "t", "pid": "7"}).encode(),
    ],
)
def test_a_file_that_does_not_say_who_is_a_conflict_and_never_deleted(folder, content):
    path = plant(folder)
    path.write_bytes(content)
    with pytest.raises(
        TargetLocked, match=r"empty, damaged or another program's \(written"
    ) as locked:
        TargetLock(folder, kill=no_such_process).acquire("t")
    assert locked.value.holder is None
    assert path.read_bytes() == content


@pytest.mark.rule("L-6")
@pytest.mark.parametrize("change", [{"targetId": "u"}, {"owner": "somebody"}])
def test_a_claim_of_another_target_or_owner_is_a_conflict(folder, change):
    path = plant(folder, **change)
    with pytest.raises(TargetLocked):
        TargetLock(folder, kill=no_such_process).acquire("t")
    assert path.exists()


@pytest.mark.rule("L-6")
@pytest.mark.guarantee("G20")
@pytest.mark.parametrize("kind", ["symlink", "folder", "pipe"])
def test_what_is_no_plain_file_is_a_conflict_and_never_followed(folder, tmp_path, kind):
    path = plant(folder)
    path.unlink()
    (tmp_path / "precious").write_text("mine")
    {
        "symlink": lambda: path.symlink_to(tmp_path / "precious"),
        "folder": path.mkdir,
        "pipe": lambda: os.mkfifo(path),
    }[kind]()
    with pytest.raises(TargetLocked):
        TargetLock(folder).acquire("t")
    assert (tmp_path / "precious").read_text() == "mine"


@pytest.mark.rule("L-7")
def test_a_full_disk_is_an_error_not_a_lock_and_leaves_nothing(folder):
    folder.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", str(folder)]
    ).returncode:
        pytest.skip("cannot mount a small disk here (needs root): this test did not run")
    try:
        lock = TargetLock(folder)
        lock._require_folder()
        with pytest.raises(OSError, match="No space"):
            (folder / "filler").write_bytes(b"x" * 100_000)
        with pytest.raises(StorageError, match="No space"):
            lock.acquire("t")
        assert sorted(p.name for p in folder.iterdir()) == [".guards", "filler"]
        (folder / "filler").unlink()
        lock.acquire("t")
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.rule("L-7")
def test_any_failure_but_exists_is_an_error(folder):
    lock = TargetLock(folder)
    lock._require_folder()
    (folder / ".guards").rmdir()
    folder.rmdir()
    with pytest.raises(StorageError):
        lock.acquire("t")


@pytest.mark.rule("L-7")
def test_where_unnamed_files_are_not_known_a_named_one_is_used_and_removed(folder, monkeypatch):
    monkeypatch.delattr(os, "O_TMPFILE")
    lock = TargetLock(folder)
    claim = lock.acquire("t")
    assert sorted(p.name for p in folder.iterdir()) == [".guards", "t.lock"]
    with pytest.raises(TargetLocked):
        TargetLock(folder).acquire("t")
    assert sorted(p.name for p in folder.iterdir()) == [".guards", "t.lock"]
    assert lock.release(claim) == "released"


@pytest.mark.rule("L-8")
def test_everything_a_claim_says_can_be_injected(folder):
    lock = TargetLock(
        folder, now=lambda: "T", nonce=lambda: "N", pid=GONE, hostname="H", kill=no_such_process
    )
    claim = lock.acquire("t")
    assert (claim.pid, claim.hostname, claim.created_at, claim.nonce) == (GONE, "H", "T", "N")
    assert lock.release(claim) == "released"


@pytest.mark.guarantee("G20")
def test_a_folder_others_may_write_in_is_refused(folder):
    folder.mkdir(mode=0o700)
    folder.chmod(0o777)
    with pytest.raises(InvalidConfig, match="nobody else may write"):
        TargetLock(folder).acquire("t")
    folder.chmod(0o700)
    elsewhere = folder.parent / "link"
    elsewhere.symlink_to(folder)
    with pytest.raises(InvalidConfig):
        TargetLock(elsewhere).acquire("t")


@pytest.mark.rule("L-10")
def test_clearing_needs_the_claim_that_was_seen_and_refuses_the_living(folder):
    lock = TargetLock(folder)
    claim = lock.acquire("t")
    with pytest.raises(TargetLocked, match="end it first"):
        TargetLock(folder).clear("t", claim.nonce)
    path = plant(folder, "u", hostname="elsewhere")
    assert lock.clear("u", "other nonce") == "not-owned"
    assert path.exists()
    assert lock.clear("u", "dead") == "released"
    assert lock.clear("u", "dead") == "absent"
    garbage = plant(folder, "g")
    garbage.write_text("")
    assert lock.clear("g", None) == "released"


@pytest.mark.rule("L-4", "L-5")
@pytest.mark.guarantee("G8")
def test_of_many_that_find_a_dead_claim_one_gets_it(folder):
    for number in range(20):
        plant(folder, f"t{number}")
        gate = threading.Barrier(8)

        def contend(_, target=f"t{number}", gate=gate):
            gate.wait()
            try:
                return TargetLock(folder).acquire(target).nonce
            except TargetLocked:
                return None

        with ThreadPoolExecutor(8) as pool:
            winners = [nonce for nonce in pool.map(contend, range(8)) if nonce]
        assert len(winners) == 1
        assert read_claim(folder / f"t{number}.lock", f"t{number}").nonce == winners[0]
