"""A workspace whose making was cut off, by kill -9 or a full disk, is finished by the next command."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from onceward.core import faults
from onceward.core.sources import LiveSources
from onceward.errors import InvalidConfig, NotFound
from onceward.store import migrate
from onceward.workspace import Workspace
from typing_in import BIN, Typed

ROUNDS = int(os.environ.get("ONCEWARD_CRASH_ROUNDS", "8"))
SEED = int(os.environ.get("ONCEWARD_SEED", "1"))
PREFIXES = ("create.", "migrate.", "key.", "write.", "move.", "commit.", "lock.")
POINTS = [name for name in faults.POINTS if name.startswith(PREFIXES)]
PLAN = 'name = "small"\n[[stage]]\nname = "work"\nrun = ["true"]\n'


def works(cli, store_url):
    """Ordinary commands work; only where nobody can tell that a workspace was begun, reading ones find none."""
    (cli.folder / "plan.toml").write_text(PLAN)
    done = cli("--json", "list")
    began = (cli.folder / ".onceward").exists() and store_url == "sqlite"
    if done.returncode:
        error = json.loads(done.stderr.splitlines()[-1])
        assert not began and error["error"]["code"] == "NOT_FOUND", done.stderr
    cli("run", "plan.toml", check=0)
    cli("verify", check=0)
    assert (cli.folder / ".onceward" / ".gitignore").read_text() == "*\n"
    assert (cli.folder / "onceward.toml").read_text().startswith("# Settings")


ALL = len(migrate.known())
MOMENTS = [("init", point, 1) for point in POINTS]
MOMENTS += [("init", "migrate.applied", nth) for nth in (2, ALL // 2, ALL)]
MOMENTS += [("run", "create.folder", 1), ("run", "migrate.applied", 2), ("run", "write.begun", 3)]


@pytest.mark.rule("K-4")
@pytest.mark.one_in(3)
@pytest.mark.parametrize(("command", "point", "nth"), MOMENTS)
def test_a_creation_that_was_killed_anywhere_is_finished_by_the_next_command(
    tmp_path, store_url, command, point, nth
):
    cli = Typed(tmp_path, store_url)
    (tmp_path / "plan.toml").write_text(PLAN)
    cli.env["ONCEWARD_FAULT"] = f"{point}:{nth}"
    ended = cli(command, *(["plan.toml"] if command == "run" else []))
    del cli.env["ONCEWARD_FAULT"]
    if point.startswith(("create.", "migrate.", "key.", "lock.", "commit.")):
        assert ended.returncode == -signal.SIGKILL, "it came to that point"
    works(cli, store_url)


@pytest.mark.rule("K-4")
@pytest.mark.one_in(2)
def test_a_creation_that_was_killed_at_any_moment_is_finished_by_the_next_command(
    tmp_path, store_url
):
    dice = random.Random(SEED)
    began = time.monotonic()
    first = tmp_path / "whole"
    first.mkdir()
    whole = Typed(first, store_url if store_url == "sqlite" else f"{store_url}_whole")
    subprocess.run([BIN / "onceward", "init"], cwd=first, env=whole.env, check=True)
    lasts = time.monotonic() - began
    for number in range(ROUNDS):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        url = store_url if store_url == "sqlite" else f"{store_url}_{number}"
        cli = Typed(folder, url)
        victim = subprocess.Popen(
            [BIN / "onceward", "init"], cwd=folder, env=cli.env, stdout=subprocess.DEVNULL
        )
        time.sleep(dice.uniform(0.3, 1.1) * lasts)
        victim.kill()
        victim.wait()
        works(cli, url)


def limited(size):
    """Files may grow to so many bytes: the disk of a process of its own is full."""

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return limit


@pytest.mark.rule("K-4")
@pytest.mark.parametrize("size", [0, 1, 512, 4096, 50_000, 150_000])
def test_a_creation_whose_files_could_not_grow_is_finished_when_they_can(tmp_path, size):
    cli = Typed(tmp_path, "sqlite")
    tried = subprocess.run(
        [sys.executable, "-m", "onceward", "init"],
        cwd=tmp_path,
        env=cli.env,
        preexec_fn=limited(size),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in tried.stderr
    works(cli, "sqlite")


@pytest.fixture
def small_disk(tmp_path):
    """A disk of its own whose size can be set; where nobody may mount one there is none."""
    place = tmp_path / "disk"
    place.mkdir()

    def resize(size):
        how = "remount,size" if place.is_mount() else "size"
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"{how}={size}", "none", str(place)],
            check=True,
            capture_output=True,
        )
        return place

    if os.getuid() or shutil.which("mount") is None:
        pytest.skip("only root may mount a small disk")
    try:
        resize("64k")
    except subprocess.CalledProcessError:
        pytest.skip("this machine lets nobody mount a small disk")
    yield resize
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.rule("K-4")
@pytest.mark.one_in(2)
@pytest.mark.parametrize("pages", [2, 4, 8, 24, 64, 96, 120, 160])
def test_a_creation_that_filled_the_disk_is_finished_when_there_is_room(small_disk, pages):
    place = small_disk(pages * 4096)
    cli = Typed(place, "sqlite")
    tried = cli("init")
    assert "Traceback" not in tried.stderr
    small_disk("64m")
    works(cli, "sqlite")


def half_made(folder, store_url, upto):
    """A workspace with only the first migrations."""
    workspace = Workspace(folder / ".onceward", store_url=store_url, principal="tester")
    with faults.armed("migrate.applied", upto + 1, faults.crash):
        with pytest.raises(faults.SimulatedCrash):
            workspace.create()
    return workspace


@pytest.mark.parametrize("upto", range(1, len(migrate.known())))
def test_a_half_made_store_without_an_event_is_finished_by_whoever_opens_it(
    tmp_path, store_url, upto
):
    workspace = half_made(tmp_path, store_url, upto)
    assert len(workspace.pending_migrations()) == len(migrate.known()) - upto
    workspace.store().close()
    assert workspace.pending_migrations() == []


def test_an_older_store_with_events_still_asks_to_be_migrated(tmp_path, store_url, monkeypatch):
    workspace = Workspace(tmp_path / ".onceward", store_url=store_url, principal="tester")
    workspace.create()
    future = migrate.Migration(9998, "more", "CREATE TABLE more (n INTEGER PRIMARY KEY) STRICT;\n")
    known = [*migrate.known(), future]
    workspace.kernel().close()
    monkeypatch.setattr(migrate, "known", lambda: known)
    with pytest.raises(InvalidConfig, match="older schema") as refused:
        workspace.store()
    assert refused.value.recovery[0].command == "onceward migrate"
    assert migrate.migrate(workspace.database, LiveSources(), unused_only=True) == []
    assert workspace.migrate() == [future]


@pytest.mark.parametrize("content", [None, b""])
def test_a_workspace_that_lost_its_store_is_not_made_anew(tmp_path, content):
    workspace = Workspace(tmp_path / ".onceward", principal="tester")
    workspace.create()
    workspace.kernel().close()
    for file in workspace.folder.glob("onceward.db*"):
        file.unlink()
    if content is not None:
        (workspace.folder / "onceward.db").write_bytes(content)
    with pytest.raises(NotFound):
        workspace.store()


def test_no_workspace_is_made_where_nobody_began_one(tmp_path):
    folder = tmp_path / "empty"
    folder.mkdir()
    with pytest.raises(NotFound):
        Workspace(folder, principal="tester").store()
    assert list(folder.iterdir()) == []


def test_a_key_file_that_a_full_disk_cut_off_is_passed_over(tmp_path):
    workspace = Workspace(tmp_path / ".onceward", principal="tester")
    workspace.create()
    torn = workspace.folder / "keys" / f"{'0' * 64}.pem"
    torn.parent.mkdir(mode=0o700)
    torn.write_text("Onceward key of tester\n-----BEGIN PRIV")
    torn.chmod(0o600)
    workspace.kernel().close()
    assert len(list(Path(torn.parent).glob("*.pem"))) == 2
