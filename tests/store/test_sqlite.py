"""What only SQLite can get wrong."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

from helpers import count, create, everything, orphan_lock, step
from onceward.core.limits import WAL_CHECKPOINT_PAGES
from onceward.errors import CorruptState, InvalidConfig, StorageError
from onceward.evidence.verify import verify_rows
from onceward.kernel.tenure import acquire
from onceward.store import migrate
from onceward.store.filesystems import filesystem_of, is_network
from onceward.store.sqlite import SqliteDatabase, require_safe_version
from onceward.store.store import Store

MOUNTS = """\
22 1 254:0 / / rw - ext4 /dev/root rw
30 22 0:30 / /mnt/share rw - nfs4 host:/x rw
31 30 0:31 / /mnt/share/local rw - tmpfs tmpfs rw
32 22 0:32 / /mnt/with\\040blank rw - fuse.sshfs x rw
"""


@pytest.fixture
def kind():
    return "sqlite"


@pytest.mark.parametrize("version", ["3.40.1", "3.51.2", "3.50.6", "3.44.5", "3.7.0"])
def test_a_sqlite_with_the_wal_reset_race_is_refused(version):
    with pytest.raises(InvalidConfig, match="WAL-reset"):
        require_safe_version(version)


@pytest.mark.parametrize(
    "version", ["3.51.3", "3.50.7", "3.44.6", "3.54.1", "4.0.0", apsw.sqlite_lib_version()]
)
def test_a_mended_sqlite_is_accepted(version):
    require_safe_version(version)


def test_durability_settings_are_read_back(store):
    session = store.writer._session
    assert session.read("PRAGMA journal_mode") == [("wal",)]
    assert session.read("PRAGMA synchronous") == [(2,)]
    assert session.read("PRAGMA foreign_keys") == [(1,)]
    assert session.read("PRAGMA wal_autocheckpoint") == [(WAL_CHECKPOINT_PAGES,)]


def test_only_the_kernel_checkpoints(store, database):
    reader = database.connect()
    assert reader.read("PRAGMA wal_autocheckpoint") == [(0,)]
    create(store)
    store.close()
    wal = database.path.with_name("onceward.db-wal")
    reader.read("SELECT count(*) FROM events")
    reader.close()
    assert wal.exists(), "the last reader must not tidy the log"


@pytest.mark.parametrize(
    ("path", "kind_", "network"),
    [
        ("/home/x", "ext4", False),
        ("/mnt/share/x", "nfs4", True),
        ("/mnt/share/local/x", "tmpfs", False),
        ("/mnt/with blank/x", "fuse.sshfs", True),
        ("/mnt/sharex", "ext4", False),
    ],
)
def test_the_filesystem_of_a_path_is_found_by_its_mount(path, kind_, network):
    assert filesystem_of(Path(path), MOUNTS) == kind_
    assert is_network(kind_) is network


def test_a_network_filesystem_is_refused_unless_told_otherwise(tmp_path, sources, monkeypatch):
    monkeypatch.setattr("onceward.store.sqlite.filesystem_of", lambda path: "nfs4")
    with pytest.raises(InvalidConfig, match="network filesystem") as refused:
        SqliteDatabase(tmp_path / "a.db", sources).connect()
    assert refused.value.recovery[-1].risk == "high"
    assert not (tmp_path / "a.db").exists()
    SqliteDatabase(tmp_path / "a.db", sources, unsafe_network_filesystem=True).connect().close()


def test_a_file_that_is_no_database_is_corrupt_state(tmp_path, sources):
    (tmp_path / "onceward.db").write_bytes(b"hello " * 1000)
    with pytest.raises(CorruptState) as refused:
        migrate.pending(SqliteDatabase(tmp_path / "onceward.db", sources))
    assert refused.value.exit_status == 5
    assert (tmp_path / "onceward.db").read_bytes() == b"hello " * 1000


def test_a_torn_database_is_found(store, database, sources):
    for _ in range(40):
        create(store)
    store.close()
    data = bytearray(database.path.read_bytes())
    for page in range(2, len(data) // 4096):
        data[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    database.path.write_bytes(data)
    broken = Store(database, sources)
    with pytest.raises(CorruptState), broken.read() as rows:
        verify_rows(rows)


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    """A tiny disk of our own, or a clear word why there is none."""
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True
    )
    if done.returncode:
        pytest.skip("cannot mount a small disk here (needs root): this test did not run")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.rule("K-11")
def test_a_folder_nobody_may_write_in_is_refused_clearly(tmp_path):
    with mounted(tmp_path / "closed", "ro"):
        run = subprocess.run(
            [sys.executable, "-m", "onceward", "init"],
            cwd=tmp_path / "closed",
            capture_output=True,
            text=True,
        )
        assert list((tmp_path / "closed").iterdir()) == []
    assert run.returncode == 2, run.stderr
    assert "INVALID_CONFIG: cannot write in" in run.stderr


@pytest.mark.guarantee("G22")
def test_a_full_disk_is_reported_truthfully_and_mending_it_is_enough(tmp_path, sources):
    disk = tmp_path / "disk"
    with mounted(disk, "size=1600k"):
        database = SqliteDatabase(disk / "onceward.db", sources)
        migrate.migrate(database, sources)
        store = Store(database, sources, ["log"])
        acquire(store, "tester")
        done = [create(store)]
        (disk / "filler").write_bytes(b"x" * (shutil.disk_usage(disk).free - 60_000))
        with pytest.raises(StorageError) as full:
            for _ in range(500):
                done.append(create(store))
        assert full.value.code == "STORAGE_ERROR_RETRY"
        assert full.value.context["outcome"] in ("failed", "unknown")
        store.close()
        (disk / "filler").unlink()
        orphan_lock(database)
        heir = Store(database, sources, ["log"])
        acquire(heir, "heir")
        with heir.read() as rows:
            assert verify_rows(rows).faults == []
        known = everything(heir)["builds"]
        assert known in (len(done), len(done) + (full.value.context["outcome"] == "unknown"))
        assert count(heir, "events") == count(heir, "event_outbox")
        step(heir, done[0])
        heir.close()


@pytest.mark.guarantee("G26")
def test_a_reader_sees_one_moment_while_the_writer_goes_on(store):
    build_id = create(store)
    with store.read() as rows:
        before = rows.read("SELECT version FROM builds")
        step(store, build_id)
        assert rows.read("SELECT version FROM builds") == before
    with store.read() as rows:
        assert rows.read("SELECT version FROM builds") == [(2,)]
