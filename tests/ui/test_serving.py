"""A workspace that is served: work asked of its kernel over any line, done once, followed to its end (K-13)."""

from __future__ import annotations

import json
import signal
import threading

import pytest

from onceward.builds.views import build_view
from onceward.core.views import document
from onceward.errors import OncewardError
from onceward.serving import Service
from onceward.settings import FOLDER
from onceward.workspace import Workspace
from typing_in import Typed, start, until

PLAN = """
name = "catalogue"
[budget]
usd = "1.00"
[[stage]]
name = "extract"
targets = ["a", "b", "c"]
run = ["sh", "-c", "onceward report --usd 0.10 || exit 1; echo $ONCEWARD_TARGET | tee -a witness > $ONCEWARD_OUT/o"]
env = ["PATH"]
"""
SLOW = """
name = "slow"
[[stage]]
name = "wait"
targets = ["a"]
run = ["sh", "-c", "echo x >> witness; sleep 30"]
"""


@pytest.fixture
def cli(store_url, tmp_path):
    typed = Typed(tmp_path, store_url)
    (tmp_path / "plan.toml").write_text(PLAN)
    (tmp_path / "slow.toml").write_text(SLOW)
    typed("init", check=0)
    return typed


@pytest.fixture
def served(cli, store_url, monkeypatch):
    """Starts services of the same workspace, and stops what still runs."""
    monkeypatch.setenv("PATH", cli.env["PATH"])
    running = []

    def serve() -> Service:
        service = Service(Workspace(cli.folder / FOLDER, store_url=store_url, principal="tester"))
        service.start()
        running.append(service)
        return service

    yield serve
    for service in running:
        service.stop()


def witnesses(cli):
    found = [path.read_text() for path in cli.folder.rglob("witness")]
    return sorted("".join(found).split())


def ended(service, build_id):
    return until(
        lambda: (
            (found := document(build_view(service.store, build_id)))["state"]
            not in ("PENDING", "ACTIVE")
            and found
        )
    )


@pytest.mark.both_stores
@pytest.mark.rule("K-13", "K-8")
def test_a_build_asked_twice_with_one_id_runs_once(cli, served):
    service = served()
    assert service.state == "kernel"
    order = {"plan": "plan.toml"}
    said = service.ask("tester", "builds.run", order, "r1")
    build_id = said.value["build_id"]
    assert ended(service, build_id)["state"] == "SUCCESS"
    again = service.ask("tester", "builds.run", order, "r1")
    assert again.replayed and again.value["build_id"] == build_id
    assert len(json.loads(cli("list", "--json", check=0).stdout)) == 1


@pytest.mark.rule("K-13")
def test_work_asked_with_a_used_id_for_something_else_is_refused(served):
    service = served()
    service.ask("tester", "builds.run", {"plan": "plan.toml"}, "r1")
    with pytest.raises(OncewardError) as refused:
        service.ask("tester", "builds.run", {"plan": "slow.toml"}, "r1")
    assert refused.value.code == "URM_IDEMPOTENCY_KEY_CONFLICT"


@pytest.mark.rule("K-13")
@pytest.mark.parametrize(
    ("verb", "payload"),
    [
        ("builds.run", {"plan": "../elsewhere.toml"}),
        ("builds.run", {"plan": ".onceward/onceward.db"}),
        ("builds.run", {"plan": "absent.toml"}),
        ("builds.run", {"plan": "plan.toml", "colour": "blue"}),
        ("builds.resume", {"build": "bld_nothing"}),
        ("sessions.spawn", {"argv": ["true"], "folder": "/"}),
        ("sagas.run", {"file": "plan.toml"}),
        ("changes.cut", {"entry": "absent"}),
        ("changes.verify", {"entry": "absent"}),
        ("registry.apply", {"plan": {}, "grant": "absent"}),
    ],
)
def test_work_that_cannot_be_begun_is_refused_and_leaves_nothing(cli, served, verb, payload):
    service = served()
    with pytest.raises(OncewardError) as refused:
        service.ask("tester", verb, payload, "r1")
    assert refused.value.code in ("INVALID_CONFIG", "NOT_FOUND", "EXECUTION_FAILED")
    assert json.loads(cli("list", "--json", check=0).stdout) == []


@pytest.mark.both_stores
@pytest.mark.rule("K-13")
def test_a_command_finds_the_server_and_follows_its_work(cli, served):
    served()
    done = cli("run", "plan.toml", "--json", check=0)
    assert json.loads(done.stdout.splitlines()[-1])["state"] == "SUCCESS"
    assert "hello" in cli("spawn", "--", "echo", "hello", check=0).stdout
    assert cli("spawn", "--", "sh", "-c", "exit 3").returncode == 1
    cli("verify", check=0)


@pytest.mark.both_stores
@pytest.mark.rule("K-13")
def test_a_standby_forwards_and_takes_over(cli, served):
    first, second = served(), served()
    assert (first.state, second.state) == ("kernel", "standby")
    build_id = second.ask("tester", "builds.run", {"plan": "plan.toml"}, "r1").value["build_id"]
    assert ended(second, build_id)["state"] == "SUCCESS"
    first.stop()
    until(lambda: second.state == "kernel")
    again = second.ask("tester", "builds.run", {"plan": "plan.toml"}, "r1")
    assert again.value["build_id"] == build_id
    other = second.ask("tester", "builds.run", {"plan": "plan.toml", "force": True}, "r2").value[
        "build_id"
    ]
    assert ended(second, other)["state"] == "SUCCESS"


@pytest.mark.rule("K-13")
def test_a_server_that_stops_ends_its_work_so_that_it_can_be_resumed(cli, served):
    service = served()
    build_id = service.ask("tester", "builds.run", {"plan": "slow.toml"}, "r1").value["build_id"]
    until(lambda: list(cli.folder.rglob("witness")))
    stopping = threading.Thread(target=service.stop)
    stopping.start()
    stopping.join(600)
    assert not stopping.is_alive()
    found = json.loads(cli("status", build_id, "--json", check=0).stdout)
    assert found["state"] == "CRASHED"


@pytest.mark.rule("K-13")
def test_whoever_stops_following_has_not_stopped_the_work(cli, served):
    service = served()
    following = start(cli, "run", "slow.toml")
    assert following.stderr.readline()
    until(lambda: list(cli.folder.rglob("witness")))
    following.send_signal(signal.SIGINT)
    _, said = following.communicate(timeout=600)
    assert following.returncode == 130 and "continues on the server" in said
    (build,) = json.loads(cli("list", "--json", check=0).stdout)
    assert build["state"] == "ACTIVE"
    cli("cancel", build["build_id"], check=0)
    assert ended(service, build["build_id"])["state"] == "ABANDONED"
