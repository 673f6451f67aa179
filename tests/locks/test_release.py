"""Release: by whoever has the claim, at most once, never blind, and without waiting for a stopped process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from onceward.core import faults
from onceward.errors import StorageError
from onceward.locks import TargetLock, TargetLocked, files
from onceward.locks import target as target_module
from onceward.locks.claims import read_claim
from planted_claims import plant
from typing_in import until


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "locks"


@pytest.mark.rule("L-3")
def test_a_second_release_says_absent(folder):
    lock = TargetLock(folder)
    claim = lock.acquire("t")
    assert lock.release(claim) == "released"
    assert lock.release(claim) == "absent"
    assert TargetLock(folder).release(claim) == "absent"


@pytest.mark.rule("L-3")
def test_a_second_release_leaves_a_successor_alone(folder):
    lock = TargetLock(folder)
    claim = lock.acquire("t")
    assert lock.release(claim) == "released"
    successor = lock.acquire("t")
    assert lock.release(claim) == "not-owned"
    assert read_claim(successor.path, "t").nonce == successor.nonce
    assert lock.release(successor) == "released"


@pytest.mark.rule("L-3")
def test_another_object_that_was_handed_the_claim_releases_it(folder):
    lock = TargetLock(folder)
    claim = lock.acquire("t")
    assert TargetLock(folder).release(claim) == "released"
    assert not claim.path.exists()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(claim.descriptor)
    with lock.hold("t"):
        assert lock.release(claim) == "not-owned"


RELEASE = """
import sys
from pathlib import Path
from onceward.locks import TargetLock
from onceward.locks.claims import read_claim
folder = Path(sys.argv[1])
print(TargetLock(folder).release(read_claim(folder / "t.lock", "t")))
"""


@pytest.mark.rule("L-3")
def test_another_process_that_was_handed_the_claim_releases_it(folder):
    lock = TargetLock(folder)
    claim = lock.acquire("t")
    done = subprocess.run(
        [sys.executable, "-c", RELEASE, str(folder)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "released\n"
    successor = TargetLock(folder).acquire("t")
    assert lock.release(claim) == "not-owned"
    assert read_claim(successor.path, "t").nonce == successor.nonce


@pytest.mark.rule("L-3")
def test_a_claim_with_another_nonce_releases_nothing(folder):
    claim = TargetLock(folder).acquire("t")
    assert TargetLock(folder).release(replace(claim, nonce="guessed")) == "not-owned"
    assert claim.path.exists()


def in_a_fork(work):
    """What a forked copy of this process says; it ends as a program does that leaves by an exception."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            os.write(writer, work().encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answers:
        answer = answers.read()
    os.waitpid(child, 0)
    return answer


@pytest.mark.rule("L-3")
@pytest.mark.guarantee("G21")
def test_a_fork_that_leaves_the_block_of_its_parent_releases_nothing(folder):
    lock = TargetLock(folder)
    child = None
    try:
        with lock.hold("t") as claim:
            child = os.fork()
            if child == 0:
                raise SystemExit
            os.waitpid(child, 0)
            assert claim.path.exists()
            with pytest.raises(TargetLocked):
                TargetLock(folder).acquire("t")
    finally:
        if child == 0:
            os._exit(0)
    assert not claim.path.exists()


@pytest.mark.rule("L-3")
def test_a_fork_that_releases_the_claim_by_name_releases_it(folder):
    lock = TargetLock(folder)
    claim = lock.acquire("t")
    assert in_a_fork(lambda: lock.release(claim)) == "released"
    assert lock.release(claim) == "absent"


RECLAIM = """
import os, signal, sys
from onceward.core import faults
from onceward.locks import TargetLock, TargetLocked
lock = TargetLock(sys.argv[1])
with faults.armed(sys.argv[2], act=lambda: os.kill(os.getpid(), signal.SIGSTOP)):
    try:
        print(lock.acquire("t").nonce)
    except TargetLocked as locked:
        print(locked.detail)
"""


def stopped_reclaimer(folder, point):
    """A process that is stopped while it reclaims the target from the dead."""
    process = subprocess.Popen(
        [sys.executable, "-c", RECLAIM, str(folder), point], stdout=subprocess.PIPE, text=True
    )
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    return process


def released_within_a_minute(lock, claim):
    """What release says; a release that hangs is a failure, not a test that never ends."""
    outcomes = []
    thread = threading.Thread(target=lambda: outcomes.append(lock.release(claim)), daemon=True)
    thread.start()
    thread.join(600)
    assert not thread.is_alive(), "release hangs"
    return outcomes[0]


@pytest.mark.rule("L-3", "L-5", "L-9")
@pytest.mark.guarantee("G8")
@pytest.mark.parametrize("point", ["target.marked", "target.unlinked"])
def test_release_does_not_wait_for_a_stopped_reclaimer(folder, point):
    path = plant(folder)
    reclaimer = stopped_reclaimer(folder, point)
    try:
        if point == "target.marked":
            # A person removes the dead claim while the reclaimer stands still.
            path.unlink()
        lock = TargetLock(folder)
        claim = lock.acquire("t")
        assert released_within_a_minute(lock, claim) == "released"
        assert lock.release(claim) == "absent"
    finally:
        reclaimer.send_signal(signal.SIGCONT)
        said, _ = reclaimer.communicate(timeout=600)
    if point == "target.marked":
        # The claim it judged dead has changed: an honest conflict, and the target is free.
        assert "it was just taken" in said
        lock.acquire("t")
    else:
        assert said.strip() == read_claim(path, "t").nonce


@pytest.mark.rule("L-3", "L-9")
@pytest.mark.guarantee("G21")
def test_a_target_released_beside_a_stopped_reclaimer_is_free_when_that_is_killed(folder):
    path = plant(folder)
    reclaimer = stopped_reclaimer(folder, "target.marked")
    path.unlink()
    lock = TargetLock(folder)
    claim = lock.acquire("t")
    # A child that is ready and lives on keeps the file locked; the target was given back all the same.
    child = subprocess.Popen(["sleep", "600"], pass_fds=[claim.descriptor])
    try:
        assert released_within_a_minute(lock, claim) == "released"
        if path.exists():
            assert json.loads(path.read_text())["releasedAt"]
            with pytest.raises(TargetLocked, match="another process is reclaiming"):
                lock.acquire("t")
        reclaimer.kill()
        reclaimer.communicate()
        successor = lock.acquire("t")
        assert lock.release(claim) == "not-owned"
        assert read_claim(path, "t").nonce == successor.nonce
    finally:
        child.kill()
        child.wait()


@pytest.mark.rule("L-3", "L-10")
def test_clearing_does_not_wait_for_a_stopped_process(folder, monkeypatch):
    path = plant(folder)
    monkeypatch.setattr(target_module, "GUARD_SECONDS", 0.05)
    with TargetLock(folder)._guard("t", wait=True):
        with pytest.raises(TargetLocked, match="another process"):
            TargetLock(folder).clear("t", "dead")
    assert path.exists()
    assert TargetLock(folder).clear("t", "dead") == "released"


@pytest.mark.rule("L-3")
def test_a_claim_given_back_under_a_busy_guard_is_released_once(folder, monkeypatch):
    monkeypatch.setattr(target_module, "GUARD_SECONDS", 0.05)
    lock = TargetLock(folder)
    claim = lock.acquire("t")
    with TargetLock(folder)._guard("t", wait=True):
        assert lock.release(claim) == "released"
        assert lock.release(claim) == "absent"
    assert lock.release(claim) == "absent"
    assert not claim.path.exists(), "the guard is free again, so the file goes"


@pytest.mark.rule("L-3")
@pytest.mark.guarantee("G8")
def test_of_many_that_release_the_same_claim_one_is_told_released(folder, monkeypatch):
    monkeypatch.setattr(target_module, "GUARD_SECONDS", 60)
    lock = TargetLock(folder)
    for _ in range(20):
        claim = lock.acquire("t")
        outcomes, gate = [], threading.Barrier(4)

        def give_back(claim=claim, outcomes=outcomes, gate=gate):
            gate.wait()
            outcomes.append(TargetLock(folder).release(claim))

        threads = [threading.Thread(target=give_back) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outcomes) == ["absent"] * 3 + ["released"]


@pytest.mark.rule("L-3", "L-10")
def test_a_claim_that_a_process_here_has_locked_is_not_cleared_whatever_it_says(folder):
    """A container of the same machine: another host name, the same system and the same locks."""
    claim = TargetLock(folder, hostname="elsewhere").acquire("t")
    with pytest.raises(TargetLocked, match="end it first"):
        TargetLock(folder).clear("t", claim.nonce)
    assert claim.path.exists()


@pytest.mark.rule("L-3")
def test_a_release_that_cannot_unlink_is_an_error_and_can_be_tried_again(folder, monkeypatch):
    lock = TargetLock(folder)
    claim = lock.acquire("t")

    def read_only(path, missing_ok=False):
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as broken:
        broken.setattr(type(claim.path), "unlink", read_only)
        with pytest.raises(StorageError, match="Read-only"):
            lock.release(claim)
    with pytest.raises(TargetLocked, match="a living process has it locked"):
        TargetLock(folder).acquire("t")
    assert lock.release(claim) == "released"


def test_the_fault_points_of_the_lock_are_outside_the_guard_but_the_marked_one(folder):
    """A process that is stopped or killed at any other point holds up nobody."""
    for point in ("target.written", "target.unlinked", "target.released"):
        plant(folder)
        free = []

        def look(free=free):
            with TargetLock(folder)._guard("t", wait=False) as guarded:
                free.append(guarded)

        lock = TargetLock(folder)
        with faults.armed(point, act=look):
            lock.release(lock.acquire("t"))
        assert free == [True], point


@pytest.mark.rule("L-3", "L-9")
@pytest.mark.guarantee("G21")
@pytest.mark.parametrize("freed", [True, False], ids=["guard freed", "guard kept"])
def test_a_release_that_waited_for_the_guard_leaves_a_successor_alone(folder, freed):
    """Two have the claim, and both give it back: while one waits for the guard, the other is through with it."""
    lock = TargetLock(folder)
    claim = lock.acquire("t")
    guard = folder / files.GUARDS / "t"
    outcomes = []
    waiting = threading.Thread(target=lambda: outcomes.append(TargetLock(folder).release(claim)))
    with files.guard(folder, "t", 0) as guarded:
        assert guarded
        waiting.start()
        # It opens the guard after it has seen that the file carries its claim.
        until(lambda: openings(guard) == 2)
        claim.path.unlink()
        successor = lock.acquire("t")
        if not freed:
            waiting.join()
    waiting.join()
    assert outcomes == ["not-owned"]
    left = read_claim(successor.path, "t")
    assert (left.nonce, left.released_at) == (successor.nonce, "")
    assert lock.release(successor) == "released"


def openings(path):
    """How many descriptors of this process are open on a file."""
    links = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            links.append(descriptor.readlink())
    return links.count(path)
