"""A refusal is an answer: stored with its request, and never followed by the work (K-8)."""

from __future__ import annotations

import json

import msgspec
import pytest

from onceward.core.limits import REQUEST_TAKES
from onceward.core.records import Request
from onceward.errors import ExecutionFailed, LockLost, OncewardError, StorageError
from onceward.hosting import Hosted
from onceward.kernel.answers import Answers, Pending
from onceward.kernel.asker import sign_for
from onceward.kernel.jobs import Jobs
from onceward.serving import Service
from onceward.settings import FOLDER
from onceward.store.tables.requests import Requests
from onceward.workspace import Workspace
from typing_in import Typed, until

PLAN = """
name = "late"
[[stage]]
name = "work"
targets = ["a"]
run = ["sh", "-c", "echo x >> $ONCEWARD_OUT/o"]
"""


@pytest.fixture
def cli(store_url, tmp_path):
    typed = Typed(tmp_path, store_url)
    typed("init", check=0)
    return typed


@pytest.fixture
def workspace(cli, store_url):
    return Workspace(cli.folder / FOLDER, store_url=store_url, principal="tester")


@pytest.fixture
def served(workspace):
    """Starts services of the same workspace, and stops what still runs."""
    running = []

    def serve() -> Service:
        service = Service(workspace)
        service.start()
        running.append(service)
        return service

    yield serve
    for service in running:
        service.stop()


def refused(act):
    with pytest.raises(OncewardError) as error:
        act()
    return error.value.document()


def row(workspace, verb, request_id):
    with workspace.reading() as store, store.read() as rows:
        return Requests(rows).under(verb, request_id)


def passes(service, count=5):
    """Wait until the kernel's loop has looked at the ledger so many times."""
    seen = service._kernel._heartbeat.progress
    until(lambda: service._kernel._heartbeat.progress >= seen + count)


@pytest.mark.both_stores
@pytest.mark.rule("K-8")
def test_a_build_that_was_refused_is_not_run_when_its_plan_appears(cli, served):
    service = served()
    answers = {}
    for number in range(12):
        order = {"plan": f"late-{number}.toml"}
        answers[number] = refused(
            lambda order=order, number=number: service.ask(
                "tester", "builds.run", order, f"r{number}"
            )
        )
        (cli.folder / order["plan"]).write_text(PLAN)
    passes(service)
    assert json.loads(cli("list", "--json", check=0).stdout) == []
    for number, first in answers.items():
        order = {"plan": f"late-{number}.toml"}
        again = refused(
            lambda order=order, number=number: service.ask(
                "tester", "builds.run", order, f"r{number}"
            )
        )
        assert again == first
    assert json.loads(cli("list", "--json", check=0).stdout) == []


@pytest.mark.both_stores
@pytest.mark.rule("K-8")
def test_a_spawn_that_was_refused_is_not_run_when_its_folder_appears(cli, served, workspace):
    service = served()
    order = {"argv": ["touch", "ran"], "folder": "late/../../elsewhere"}
    first = refused(lambda: service.ask("tester", "sessions.spawn", order, "r1"))
    assert row(workspace, "sessions.spawn", "r1").value() == {"error": first}
    passes(service)
    assert refused(lambda: service.ask("tester", "sessions.spawn", order, "r1")) == first
    assert not list(cli.folder.parent.rglob("ran"))


@pytest.mark.both_stores
@pytest.mark.rule("K-8")
@pytest.mark.parametrize(
    ("verb", "payload"),
    [
        ("builds.abandon", {"build": "bld_absent"}),
        ("builds.resume", {"build": "bld_absent"}),
        ("tokens.revoke", {"token": "absent"}),
        ("changes.verify", {"entry": "absent"}),
    ],
)
def test_the_refusal_of_every_kind_of_verb_is_stored(served, workspace, verb, payload):
    service = served()
    first = refused(lambda: service.ask("tester", verb, payload, "r1"))
    assert row(workspace, verb, "r1").value() == {"error": first}
    assert refused(lambda: service.ask("tester", verb, payload, "r1")) == first


@pytest.mark.rule("K-8")
def test_an_id_that_is_used_for_something_else_keeps_its_own_answer(cli, served, workspace):
    service = served()
    (cli.folder / "plan.toml").write_text(PLAN)
    build_id = service.ask("tester", "builds.run", {"plan": "plan.toml"}, "r1").value["build_id"]
    other = refused(lambda: service.ask("tester", "builds.run", {"plan": "absent.toml"}, "r1"))
    assert other["code"] == "URM_IDEMPOTENCY_KEY_CONFLICT"
    assert row(workspace, "builds.run", "r1").value() == {"ok": {"build_id": build_id}}


@pytest.mark.rule("K-8")
def test_an_error_that_a_retry_can_help_is_no_answer(cli, served, workspace, monkeypatch):
    (cli.folder / "plan.toml").write_text(PLAN)
    take, failures = Hosted.take, [StorageError("the disk is full"), LockLost("gone")]

    def fails_twice(self, *arguments):
        if failures:
            raise failures.pop(0)
        return take(self, *arguments)

    # Nobody else takes it meanwhile, from the first pass of the loop on.
    monkeypatch.setattr(Answers, "carry_out", lambda self, works=True: 0)
    monkeypatch.setattr(Hosted, "take", fails_twice)
    service = served()
    order = {"plan": "plan.toml"}
    said = refused(lambda: service.ask("tester", "builds.run", order, "r1"))
    assert said["code"] == "STORAGE_ERROR_RETRY" and said["retryable"]
    # LOCK_LOST is final for whoever is told: it is not told of what is filed and will be done.
    assert isinstance(service.ask("tester", "builds.run", order, "r1"), Pending)
    stored = row(workspace, "builds.run", "r1")
    assert stored.answered_at is None and stored.takes == 0
    assert service.ask("tester", "builds.run", order, "r1").value["build_id"]


@pytest.mark.both_stores
@pytest.mark.rule("K-8")
def test_a_request_is_answered_in_the_commit_that_makes_its_resource(cli, served, monkeypatch):
    """Whatever goes wrong after that commit is the resource's state, not the request's answer."""
    service = served()
    (cli.folder / "plan.toml").write_text(PLAN)
    monkeypatch.setattr(
        Jobs, "start", lambda *_: (_ for _ in ()).throw(ExecutionFailed("no thread"))
    )
    for verb, order, named in (
        ("builds.run", {"plan": "plan.toml"}, "build_id"),
        ("sessions.spawn", {"argv": ["true"]}, "session_id"),
    ):
        said = service.ask("tester", verb, order, "r1")
        assert said.value[named]
        with service.store.read() as rows:
            stored = Requests(rows).under(verb, "r1")
        assert stored.value() == {"ok": said.value}


class Dies(BaseException):
    """What ends a process, seen from inside it."""


@pytest.mark.both_stores
@pytest.mark.rule("K-8")
def test_a_request_that_ends_its_kernel_three_times_is_answered_as_failed(
    cli, workspace, monkeypatch
):
    (cli.folder / "plan.toml").write_text(PLAN)
    asker = workspace.asker()
    try:
        request = Request("builds.run", "r1", {"plan": "plan.toml"}, "tester")
        assert isinstance(asker.ask(request, 0), Pending)
    finally:
        asker.close()

    def dies(self, *_):
        raise Dies

    monkeypatch.setattr(Hosted, "take", dies)
    for takes in range(1, REQUEST_TAKES + 1):
        kernel = workspace.kernel()
        kernel.answers.host = Hosted(workspace, kernel)
        with pytest.raises(Dies):
            kernel.carry_out()
        assert row(workspace, "builds.run", "r1").takes == takes
        kernel.close()
    kernel = workspace.kernel()
    try:
        kernel.answers.host = Hosted(workspace, kernel)
        assert kernel.carry_out() == 1
    finally:
        kernel.close()
    said = row(workspace, "builds.run", "r1").value()["error"]
    assert said["code"] == "EXECUTION_FAILED" and "3 times" in said["message"]
    assert json.loads(cli("list", "--json", check=0).stdout) == []


@pytest.mark.both_stores
@pytest.mark.rule("K-8")
@pytest.mark.parametrize("verb", ["builds.run", "builds.abandon"])
def test_a_request_that_expired_before_it_was_taken_is_refused(cli, workspace, verb):
    (cli.folder / "plan.toml").write_text(PLAN)
    cli("run", "plan.toml", check=0)
    (build,) = json.loads(cli("list", "--json", check=0).stdout)
    payload = {"builds.run": {"plan": "plan.toml"}, "builds.abandon": {"build": build["build_id"]}}
    asker = workspace.asker()
    try:
        with asker.store.read() as rows:
            now = rows.now()
        request = Request(verb, "r1", payload[verb], "tester", expires_at=now + 1)
        signed = sign_for(asker.store, workspace.keyring, request)
        asker.store.file(signed)
        until(lambda: _now(asker.store) > now + 1)
    finally:
        asker.close()
    kernel = workspace.kernel()
    try:
        kernel.answers.host = Hosted(workspace, kernel)
        assert kernel.carry_out() == 1
        assert len(json.loads(cli("list", "--json", check=0).stdout)) == 1
        late = refused(lambda: kernel.ask(msgspec.structs.replace(request, expires_at=None)))
    finally:
        kernel.close()
    assert late["context"]["field"] == "expires_at"
    assert row(workspace, verb, "r1").value() == {"error": late}


def _now(store):
    with store.read() as rows:
        return rows.now()


@pytest.mark.rule("K-8")
def test_when_a_request_expires_is_part_of_what_was_signed(workspace, cli):
    asker = workspace.asker()
    try:
        request = Request("builds.run", "r1", {"plan": "plan.toml"}, "tester", expires_at=1)
        signed = sign_for(asker.store, workspace.keyring, request)
        asker.store.file(msgspec.structs.replace(signed, expires_at=None))
    finally:
        asker.close()
    kernel = workspace.kernel()
    try:
        kernel.answers.host = Hosted(workspace, kernel)
        kernel.carry_out()
    finally:
        kernel.close()
    said = row(workspace, "builds.run", "r1").value()["error"]
    assert said["code"] == "PERMISSION_DENIED" and "not what was signed" in said["message"]


@pytest.mark.rule("K-8")
def test_a_command_says_how_long_its_request_may_wait(cli, workspace):
    kernel = workspace.kernel()
    try:
        said = cli("principals", "add", "bob", "--role", "viewer", "--wait", "0", "--expires", "0")
        assert said.returncode == 3
        asked = ("principals.add", said.stdout.split("stored as ")[1].split(";")[0])
        kernel.carry_out()
    finally:
        kernel.close()
    assert row(workspace, *asked).value()["error"]["context"]["field"] == "expires_at"
    assert "bob" not in cli("principals", "list", check=0).stdout
