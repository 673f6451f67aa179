"""What a power cut leaves: a claim is on the disk before it has its name; an empty one of an earlier boot is dead."""

from __future__ import annotations

import fcntl
import os

import pytest

from onceward.core import faults
from onceward.errors import StorageError
from onceward.locks import TargetLock, TargetLocked
from onceward.locks.claims import read_claim
from onceward.locks.identity import boot_time
from planted_claims import plant


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "locks"


@pytest.fixture
def calls(monkeypatch):
    """The calls of fsync and link in their order; each still does what it does."""
    recorded = []
    fsync, link = os.fsync, os.link

    def recording_fsync(descriptor):
        fsync(descriptor)
        recorded.append(("fsync", os.fstat(descriptor).st_ino, os.fstat(descriptor).st_size))

    def recording_link(source, place, **options):
        link(source, place, **options)
        status = place.stat()
        recorded.append(("link", status.st_ino, status.st_size))

    monkeypatch.setattr(os, "fsync", recording_fsync)
    monkeypatch.setattr(os, "link", recording_link)
    return recorded


@pytest.mark.rule("L-1")
@pytest.mark.parametrize("unnamed", [True, False], ids=["unnamed file", "named file"])
def test_a_complete_claim_is_synced_before_it_is_linked_into_place(
    folder, calls, monkeypatch, unnamed
):
    if not unnamed:
        monkeypatch.delattr(os, "O_TMPFILE")
    claim = TargetLock(folder).acquire("t")
    status = claim.path.stat()
    claim_calls = [call for call in calls if call[1] == status.st_ino]
    assert status.st_size == len(claim.line()) > 0
    assert claim_calls == [
        ("fsync", status.st_ino, status.st_size),
        ("link", status.st_ino, status.st_size),
    ]


@pytest.mark.rule("L-7")
@pytest.mark.parametrize("unnamed", [True, False], ids=["unnamed file", "named file"])
def test_a_claim_that_cannot_be_synced_is_an_error_and_leaves_nothing(folder, monkeypatch, unnamed):
    def failing(descriptor):
        raise OSError(5, "Input/output error")

    if not unnamed:
        monkeypatch.delattr(os, "O_TMPFILE")
    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(StorageError, match="Input/output"):
        TargetLock(folder).acquire("t")
    assert [path.name for path in folder.iterdir()] == [".guards"]


def empty_claim(folder, written):
    path = plant(folder)
    path.write_bytes(b"")
    os.utime(path, (written, written))
    return path


@pytest.mark.rule("L-4", "L-6")
@pytest.mark.guarantee("G21")
def test_an_empty_claim_from_before_this_boot_is_reclaimed(folder):
    path = empty_claim(folder, boot_time() - 60)
    lock = TargetLock(folder)
    (_, verdict), *rest = lock.inspect()
    assert verdict.liveness == "dead" and "before this machine was started" in verdict.why
    assert rest == []
    claim = lock.acquire("t")
    assert read_claim(path, "t").nonce == claim.nonce
    assert not path.with_name("t.lock.reclaim").exists()


@pytest.mark.rule("L-6")
def test_an_empty_claim_of_this_boot_is_a_conflict_that_names_the_commands(folder):
    path = empty_claim(folder, boot_time() + 60)
    with pytest.raises(TargetLocked, match="empty, damaged") as locked:
        TargetLock(folder, in_workspace=True).acquire("t")
    assert "onceward locks show t" in locked.value.message
    assert "onceward locks clear t" in locked.value.message
    assert path.read_bytes() == b""


@pytest.mark.rule("L-4", "L-6")
def test_an_empty_claim_that_somebody_has_locked_is_a_conflict(folder):
    path = empty_claim(folder, boot_time() - 60)
    with path.open() as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with pytest.raises(TargetLocked):
            TargetLock(folder).acquire("t")
        assert path.exists()
    TargetLock(folder).acquire("t")


@pytest.mark.rule("L-6")
@pytest.mark.parametrize("content", [b"garbage", b"{}", b"\0" * 300])
def test_a_damaged_claim_from_before_this_boot_is_never_deleted(folder, content):
    path = plant(folder)
    path.write_bytes(content)
    os.utime(path, (1, 1))
    with pytest.raises(TargetLocked, match="empty, damaged"):
        TargetLock(folder).acquire("t")
    assert path.read_bytes() == content


@pytest.mark.rule("L-6")
def test_where_the_time_of_the_boot_is_unknown_an_empty_claim_is_a_conflict(folder, monkeypatch):
    path = empty_claim(folder, 1)
    monkeypatch.setattr("onceward.locks.target.boot_time", lambda: None)
    with pytest.raises(TargetLocked, match="empty, damaged"):
        TargetLock(folder).acquire("t")
    assert path.exists()


@pytest.mark.rule("L-5", "L-6")
def test_an_empty_claim_that_was_replaced_under_the_reclaimer_is_somebodys(folder):
    path = empty_claim(folder, boot_time() - 60)

    def replace():
        path.unlink()
        TargetLock(folder).acquire("t")

    with faults.armed("target.marked", act=replace):
        with pytest.raises(TargetLocked, match="just taken"):
            TargetLock(folder).acquire("t")
    assert read_claim(path, "t") is not None
