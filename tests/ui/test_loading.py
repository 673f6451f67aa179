"""Code that exits, hangs, crashes or eats memory when it is loaded: a coded refusal, never the server's end (K-15)."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path

import pytest

from onceward.client import Client
from onceward.code.hosts import CodeHosts
from onceward.core.sources import LiveSources
from onceward.errors import OncewardError
from onceward.loading import Loader
from onceward.processes.launcher import Processes
from onceward.settings import FOLDER
from onceward.store.tables.requests import Requests
from onceward.workspace import Workspace
from typing_in import Typed, start, until

GOOD = """
from onceward import Plan

plan = Plan("good")


@plan.stage(targets=["a"])
def work(task):
    return {"pid": 1}
"""
SAGA = """
from onceward import Saga

saga = Saga("good")


@saga.action
def act(task):
    return {}
"""
SETTINGS = "[serve]\nimport_seconds = 5\nimport_memory = 536870912\n"
BAD = {
    "exits": ("import os\nos._exit(7)\n", "exit status 7"),
    "leaves": ("import sys\nsys.exit(3)\n", "SystemExit"),
    "hangs": ("import time\ntime.sleep(3600)\n", "within 5 s"),
    "spins": ("while True:\n    pass\n", "within 5 s"),
    "crashes": ("import ctypes\nctypes.string_at(0)\n", "SIGSEGV"),
    "eats": ("found = []\nwhile True:\n    found.append(bytearray(1 << 20))\n", "memory"),
    "raises": ("1 / 0\n", "ZeroDivisionError"),
}


@pytest.fixture
def cli(store_url, tmp_path):
    typed = Typed(tmp_path, store_url)
    typed("init", check=0)
    (tmp_path / "onceward.toml").write_text(SETTINGS)
    (tmp_path / "good.py").write_text(GOOD)
    (tmp_path / "good_saga.py").write_text(SAGA)
    return typed


@pytest.fixture
def serve(cli):
    def serve():
        process = start(cli, "serve", "--port", "0", "--json")
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        return process

    return serve


def client_of(cli):
    return Client.here(cli.folder / FOLDER)


def ends(process, number):
    process.send_signal(number)
    process.communicate(timeout=100)
    return process.returncode


@pytest.mark.rule("K-15", "K-8")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(one, marks=pytest.mark.thorough) if one in ("spins", "hangs", "eats") else one
        for one in BAD
    ],
)
def test_what_cannot_be_loaded_is_refused_and_the_server_goes_on(cli, serve, name):
    code, said = BAD[name]
    (cli.folder / "bad.py").write_text(code)
    (cli.folder / "bad.toml").write_text(
        'name = "bad"\n[[stage]]\nname = "a"\npython = "bad:work"\n'
    )
    process = serve()
    with client_of(cli) as client:
        for act in (
            lambda: client.run_build(plan="bad.py"),
            lambda: client.run_build(plan="bad.toml"),
            lambda: client.run_saga(file="bad.py"),
        ):
            with pytest.raises(OncewardError) as refused:
                act()
            assert refused.value.code == "INVALID_CONFIG" and said in refused.value.message
        assert process.poll() is None
        build_id = client.run_build(plan="good.py")["build_id"]
        until(lambda: client.show_build(build_id)["state"] == "SUCCESS")
        assert client.run_saga(file="good_saga.py")["saga_id"]
    assert ends(process, signal.SIGTERM) == 0


@pytest.mark.rule("K-15")
def test_a_server_ends_on_sigterm_while_a_plan_is_loaded(cli, serve):
    (cli.folder / "onceward.toml").write_text("[serve]\nimport_seconds = 3000\n")
    (cli.folder / "hangs.py").write_text(
        "import pathlib, time\n"
        "pathlib.Path(__file__).with_name('hanging').touch()\n"
        "time.sleep(3600)\n" + GOOD
    )
    process = serve()
    asking = threading.Thread(target=_asked, args=(cli, "hangs.py"), daemon=True)
    asking.start()
    until((cli.folder / "hanging").exists)
    assert ends(process, signal.SIGTERM) == 0
    # It was not refused: nobody knows yet what it would have come to.
    workspace = Workspace(
        cli.folder / FOLDER, store_url=cli.env["ONCEWARD_STORE"], principal="tester"
    )
    with workspace.reading() as store, store.read() as rows:
        left = Requests(rows).under("builds.run", "r1")
    assert left.answered_at is None and left.takes == 0


def _asked(cli, plan):
    with client_of(cli) as client:
        client._patience = 0
        try:
            if "bad" in plan:
                client.run_saga(file=plan, client_request_id="r1")
            else:
                client.run_build(plan=plan, client_request_id="r1")
        except (OncewardError, OSError):
            pass


@pytest.mark.rule("K-8", "K-15")
@pytest.mark.both_stores
@pytest.mark.one_in(2)
def test_what_ends_the_server_itself_is_given_up_after_three_takes(cli, serve):
    """A saga's code runs in the server. It behaves in its host, and ends only the server: so often as K-8 says, and not
    for ever."""
    (cli.folder / "bad.py").write_text(
        "import os, sys\n"
        "if not any('code_host' in word for word in sys.orig_argv):\n"
        "    os._exit(9)\n" + SAGA
    )
    process = serve()
    _asked(cli, "bad.py")
    for _ in range(2):
        process.communicate(timeout=100)
        assert process.returncode == 9
        process = serve()
    process.communicate(timeout=100)
    assert process.returncode == 9
    process = serve()
    workspace = Workspace(
        cli.folder / FOLDER, store_url=cli.env["ONCEWARD_STORE"], principal="tester"
    )

    def answer():
        with workspace.reading() as store, store.read() as rows:
            ((text,),) = rows.read("SELECT answer FROM requests WHERE verb = 'sagas.run'")
        return text and json.loads(text)

    said = until(answer)["error"]
    assert said["code"] == "EXECUTION_FAILED" and "3 times" in said["message"]
    with client_of(cli) as client:
        assert client.run_build(plan="good.py")["build_id"]
    assert ends(process, signal.SIGTERM) == 0


@pytest.fixture
def loader(tmp_path):
    """A loader as a server has one, with hosts of its own."""
    processes = Processes(grace=0.5)
    loaders = []

    def loader(seconds=100):
        hosts = CodeHosts(
            processes, tmp_path, seconds=seconds, memory=1 << 30, new_id=LiveSources().new_id
        )
        loaders.append(Loader(tmp_path, seconds, hosts))
        return loaders[-1]

    yield loader
    for each in loaders:
        each.hosts.close()
    processes.close()


@pytest.mark.rule("K-15")
def test_what_a_plan_started_while_it_was_loaded_ends_with_its_host(tmp_path, loader):
    plan = tmp_path / "starts.py"
    plan.write_text(
        "import pathlib, subprocess\n"
        "started = subprocess.Popen(['sleep', '3600'])\n"
        "pathlib.Path(__file__).with_name('pid').write_text(str(started.pid))\n"
        "import os\nos._exit(1)\n"
    )
    with pytest.raises(OncewardError):
        loader().plan(plan)
    pid = int((tmp_path / "pid").read_text())
    until(lambda: not _lives(pid))


def _lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.rule("K-15")
def test_a_plan_without_code_needs_no_host(tmp_path, loader, monkeypatch):
    monkeypatch.setattr(CodeHosts, "host", lambda *_: pytest.fail("a host was started"))
    (tmp_path / "plan.toml").write_text('name = "plain"\n[[stage]]\nname = "a"\nrun = ["true"]\n')
    assert loader().plan(tmp_path / "plan.toml").plan.name == "plain"


@pytest.mark.rule("K-15")
@pytest.mark.thorough
def test_a_load_that_hangs_here_is_given_up_and_others_go_on(tmp_path, loader):
    (tmp_path / "hangs.py").write_text(
        "import sys, threading\n"
        "if not any('code_host' in word for word in sys.orig_argv):\n"
        "    threading.Event().wait()\n" + SAGA
    )
    (tmp_path / "good.py").write_text(SAGA)
    with pytest.raises(OncewardError) as refused:
        loader(5).saga(tmp_path / "hangs.py")
    assert refused.value.code == "INVALID_CONFIG" and "hangs.py" in refused.value.message
    assert loader().saga(tmp_path / "good.py").name == "good"


@pytest.mark.rule("K-15")
@pytest.mark.parametrize("setting", ["import_seconds = 0", "import_memory = 1000"])
def test_limits_under_which_nothing_could_be_loaded_are_refused(cli, setting):
    (cli.folder / "onceward.toml").write_text(f"[serve]\n{setting}\n")
    done = cli("status")
    assert done.returncode == 2 and setting.partition(" ")[0] in done.stderr
