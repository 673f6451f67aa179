"""What a killed process leaves in the lock folder, and what should not be there: removed, or an honest error."""

from __future__ import annotations

import fcntl
import os
import signal

import pytest

from onceward.core import faults
from onceward.errors import StorageError
from onceward.locks import TargetLock, TargetLocked
from onceward.locks.claims import read_claim
from planted_claims import plant


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "locks"


@pytest.fixture
def no_unnamed_files(monkeypatch):
    """A system without O_TMPFILE: claims are written into a named file first."""
    monkeypatch.delattr(os, "O_TMPFILE")


def names(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != ".guards")


def killed_at(point, folder, target):
    """A process that is killed at a fault point of its acquire."""
    child = os.fork()
    if child == 0:
        faults.arm(point)
        TargetLock(folder).acquire(target)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL


@pytest.mark.rule("L-7")
@pytest.mark.usefixtures("no_unnamed_files")
def test_what_killed_processes_wrote_aside_does_not_accumulate(folder):
    lock = TargetLock(folder)
    lock.release(lock.acquire("t"))
    for _ in range(3):
        killed_at("target.written", folder, "t")
    assert len(names(folder)) == 1, "each removes what the one before it left"
    claim = lock.acquire("u")
    assert names(folder) == ["u.lock"]
    lock.release(claim)


@pytest.mark.rule("L-7")
def test_leftovers_go_also_where_files_need_no_name(folder):
    path = plant(folder)
    path.with_name("t.lock.4711.abc.new").write_text("half a cl")
    TargetLock(folder).acquire("u")
    assert names(folder) == ["t.lock", "u.lock"]


@pytest.mark.rule("L-7")
@pytest.mark.usefixtures("no_unnamed_files")
def test_a_file_that_a_living_process_writes_is_left_alone(folder):
    other = TargetLock(folder)
    with faults.armed("target.written", act=lambda: other.acquire("u")):
        claim = TargetLock(folder).acquire("t")
    assert names(folder) == ["t.lock", "u.lock"]
    assert read_claim(claim.path, "t").nonce == claim.nonce


@pytest.mark.rule("L-7")
@pytest.mark.usefixtures("no_unnamed_files")
def test_a_file_swept_before_it_was_locked_is_written_again(folder, monkeypatch):
    """The writer is stopped between making its file and locking it, while another acquire sweeps."""
    flock, swept = fcntl.flock, []

    def late(descriptor, how):
        if how & fcntl.LOCK_EX and not swept:
            swept.append(True)
            TargetLock(folder).acquire("u")
            assert names(folder) == ["u.lock"], "the sweep took the file nobody had locked yet"
        flock(descriptor, how)

    lock = TargetLock(folder)
    monkeypatch.setattr(fcntl, "flock", late)
    claim = lock.acquire("t")
    assert swept and names(folder) == ["t.lock", "u.lock"]
    assert read_claim(claim.path, "t").nonce == claim.nonce


@pytest.mark.rule("L-7")
def test_what_is_no_file_of_ours_is_not_swept(folder):
    lock = TargetLock(folder)
    lock._require_folder()
    (folder / "t.lock.1.abc.new").mkdir()
    (folder / "precious.new").write_text("mine")
    TargetLock(folder).acquire("t")
    assert names(folder) == ["precious.new", "t.lock", "t.lock.1.abc.new"]


@pytest.mark.rule("L-5", "L-6")
def test_a_marker_that_is_a_folder_is_a_conflict(folder):
    path = plant(folder)
    path.with_name("t.lock.reclaim").mkdir()
    with pytest.raises(TargetLocked, match=r"t\.lock\.reclaim is a folder") as locked:
        TargetLock(folder).acquire("t")
    assert locked.value.holder.nonce == "dead"
    assert "rmdir" in str(locked.value.document())
    path.with_name("t.lock.reclaim").rmdir()
    TargetLock(folder).acquire("t")


@pytest.mark.rule("L-7")
@pytest.mark.parametrize("verb", ["acquire", "clear", "release"])
def test_a_guard_that_is_a_folder_is_an_error_with_a_code(folder, verb):
    plant(folder)
    lock = TargetLock(folder)
    dead = read_claim(folder / "t.lock", "t")
    (folder / ".guards" / "t").mkdir()
    with pytest.raises(StorageError, match=r"guard file .*/t: "):
        {
            "acquire": lambda: lock.acquire("t"),
            "clear": lambda: lock.clear("t", "dead"),
            "release": lambda: lock.release(dead),
        }[verb]()
    assert (folder / "t.lock").exists()


@pytest.mark.rule("L-6", "L-10")
def test_a_claim_that_is_a_folder_cannot_be_cleared_and_says_so(folder):
    path = plant(folder)
    path.unlink()
    path.mkdir()
    with pytest.raises(TargetLocked, match="is a folder"):
        TargetLock(folder).clear("t", None)
    assert path.is_dir()


@pytest.mark.rule("L-10")
def test_clearing_in_a_folder_that_was_never_used_finds_nothing(folder):
    assert TargetLock(folder).clear("t", None) == "absent"
    assert not folder.exists()


@pytest.mark.rule("L-5")
@pytest.mark.guarantee("G8")
def test_a_reclaimer_that_finds_the_place_empty_removes_nothing(folder, monkeypatch):
    """The dead claim went, and somebody takes the place just before the late reclaimer would unlink."""
    path = plant(folder)
    lock, winner = TargetLock(folder), TargetLock(folder)
    unlink, winners = type(path).unlink, []

    def late(place, missing_ok=False):
        if place == path and not winners:
            winners.append(winner.acquire("t"))
        return unlink(place, missing_ok)

    with faults.armed("target.marked", act=path.unlink):
        monkeypatch.setattr(type(path), "unlink", late)
        claim = None
        try:
            claim = lock.acquire("t")
        except TargetLocked:
            pass
    holders = [held for held in (claim, *winners) if held]
    assert len(holders) == 1, "two holders of one target"
    assert read_claim(path, "t").nonce == holders[0].nonce


@pytest.mark.rule("L-7")
def test_running_out_of_descriptors_is_an_error_not_a_lost_claim(folder, monkeypatch):
    lock = TargetLock(folder)
    claim = lock.acquire("t")
    real = os.open

    def exhausted(path, *args, **options):
        if str(path).endswith("t.lock"):
            raise OSError(24, "Too many open files")
        return real(path, *args, **options)

    with monkeypatch.context() as scarce:
        scarce.setattr(os, "open", exhausted)
        with pytest.raises(StorageError, match="Too many open files"):
            lock.release(claim)
    assert lock.release(claim) == "released"
