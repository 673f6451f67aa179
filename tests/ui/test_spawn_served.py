"""Commands that a server runs for others: in shared sessions, with the asker's variables and folder (C-5, C-9)."""

from __future__ import annotations

import hashlib
import json
import threading

import pytest

from onceward import Plan
from onceward.client import Client
from onceward.core.orders import seconds_of, seconds_text
from onceward.dispatch.work import Command
from onceward.errors import InvalidConfig, OncewardError
from onceward.serving import Service
from onceward.settings import FOLDER
from onceward.store.schema import TABLES
from onceward.store.tables.children import Tokens
from onceward.workspace import Workspace
from typing_in import Typed, start, until

CANARY = "canary-5f1c0d"
DIGEST = hashlib.sha256(CANARY.encode()).hexdigest()
SHOWS_DIGEST = ("sh", "-c", 'printf %s "$VALUE" | sha256sum')


@pytest.fixture
def cli(store_url, tmp_path):
    (tmp_path / "work").mkdir()
    typed = Typed(tmp_path / "work", store_url)
    typed("init", check=0)
    return typed


@pytest.fixture
def workspace(cli, store_url):
    return Workspace(cli.folder / FOLDER, store_url=store_url, principal="tester")


@pytest.fixture
def service(workspace):
    """A server without an address: it is asked by the ledger only."""
    found = Service(workspace)
    found.start()
    yield found
    found.stop()


@pytest.fixture
def serve(cli):
    """A real one, that commands find."""

    def serve():
        process = start(cli, "serve", "--port", "0", "--json")
        assert process.stdout.readline(), process.communicate()[1]
        return process

    return serve


def tokens(store, session):
    with store.read() as rows:
        return list(Tokens(rows).of_session(session))


def most_at_once(cli, session):
    """How many children ran at the same time, as the session's stream has it."""
    running = most = 0
    for line in cli("events", f"session:{session}", check=0).stdout.splitlines():
        event = json.loads(line)["event"]
        running += {"WORKER_START": 1, "WORKER_PASS": -1, "WORKER_FAIL": -1}.get(event, 0)
        most = max(most, running)
    return most


def every_row(store):
    with store.read() as rows:
        return repr([rows.read(f"SELECT * FROM {table.name}") for table in TABLES])


@pytest.mark.both_stores
@pytest.mark.rule("C-5", "C-9")
def test_an_open_session_takes_more_from_everybody_under_its_cap(cli, service):
    answers = []

    def ask(number):
        order = {"argv": ["sleep", "0.05"], "session": "shared"}
        try:
            said = service.ask("tester", "sessions.spawn", order, f"r{number}")
            answers.append(said.value["children"][0])
        except OncewardError as error:
            answers.append(error.message)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(48)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    until(lambda: all(token.phase == "terminal" for token in tokens(service.store, "shared")))
    found = tokens(service.store, "shared")
    assert {token.child_id for token in found} == set(answers) and len(found) == 48
    assert {token.reason for token in found} == {"completed"}
    assert most_at_once(cli, "shared") == 2
    until(lambda: not service.hosted.jobs.running)
    # Closed by the last who left, and opened again by whoever comes.
    said = service.ask("tester", "sessions.spawn", {"argv": ["true"], "session": "shared"}, "last")
    assert said.value["session_id"] == "shared"


@pytest.mark.rule("C-5")
def test_a_cap_that_somebody_names_is_the_sessions_from_then_on(service, cli):
    go = cli.folder / "go"
    waits = ["sh", "-c", f"until test -e {go}; do sleep 0.05; done"]
    for number in range(4):
        order = {"argv": waits, "session": "shared"}
        service.ask("tester", "sessions.spawn", order, f"r{number}")
    order = {"argv": waits, "session": "shared", "jobs": 3}
    service.ask("tester", "sessions.spawn", order, "wider")

    def running():
        return [one for one in tokens(service.store, "shared") if one.phase == "started"]

    until(lambda: len(running()) == 3)
    go.touch()
    until(lambda: all(one.phase == "terminal" for one in tokens(service.store, "shared")))
    assert most_at_once(cli, "shared") == 3


@pytest.mark.rule("C-5")
def test_a_server_that_stops_ends_what_runs_in_a_shared_session(service):
    for number in range(3):
        order = {"argv": ["sleep", "3600"], "session": "shared"}
        service.ask("tester", "sessions.spawn", order, f"r{number}")
    until(lambda: any(one.phase == "started" for one in tokens(service.store, "shared")))
    stopping = threading.Thread(target=service.stop)
    stopping.start()
    stopping.join(100)
    assert not stopping.is_alive()


@pytest.mark.both_stores
@pytest.mark.rule("C-9")
def test_a_time_limit_reaches_the_server(cli, service):
    assert cli("spawn", "--timeout", "100", "--", "true", check=0)
    late = cli("spawn", "--timeout", "0.5", "--", "sleep", "3600")
    assert late.returncode == 1 and "timeout" in late.stderr


@pytest.mark.rule("C-9", "K-11")
@pytest.mark.parametrize(
    ("verb", "order"),
    [
        ("sessions.spawn", {"argv": ["true"], "timeout": -1}),
        ("sessions.spawn", {"argv": ["true"], "timeout": 0}),
        ("sessions.spawn", {"argv": ["true"], "timeout": "-1"}),
        ("sessions.spawn", {"argv": ["true"], "timeout": "0.000"}),
        ("sessions.spawn", {"argv": ["true"], "timeout": "nan"}),
        ("sessions.spawn", {"argv": ["true"], "jobs": 0}),
        ("sessions.spawn", {"argv": ["true"], "jobs": 1001}),
        ("sessions.spawn", {"argv": ["true"], "attempts": 0}),
        ("builds.run", {"plan": "plan.toml", "jobs": 0}),
        ("builds.resume", {"build": "bld_absent", "jobs": 0}),
        ("changes.verify", {"entry": "absent", "timeout": -1}),
    ],
)
def test_impossible_numbers_are_refused(service, verb, order):
    with pytest.raises(OncewardError) as refused:
        service.ask("tester", verb, order, "r1")
    assert refused.value.code in ("INVALID_CONFIG", "NOT_FOUND")
    assert tokens(service.store, "shared") == []


@pytest.mark.rule("K-11")
def test_impossible_numbers_are_refused_in_python_and_on_the_command_line(cli, tmp_path):
    for timeout in (-1, 0, float("nan")):
        with pytest.raises(InvalidConfig):
            Command(argv=["true"], cwd=tmp_path, timeout=timeout)
    plan = Plan("none", folder=tmp_path)
    plan.add({"name": "a", "run": ["true"]})
    for jobs in (0, -1, 1001):
        with pytest.raises(InvalidConfig):
            plan.run(workspace=cli.folder / FOLDER, jobs=jobs)
    for words in (("--timeout", "-1"), ("--timeout", "0"), ("--jobs", "0")):
        assert cli("spawn", *words, "--", "true").returncode == 2


@pytest.mark.rule("C-9")
@pytest.mark.parametrize("seconds", [0.001, 0.5, 1.0, 2.0, 3.25, 86_400.0])
def test_a_time_is_the_same_after_its_journey_in_a_request(seconds):
    carried = seconds_text(seconds)
    assert not isinstance(carried, float) and seconds_of(carried, "timeout") == seconds


@pytest.mark.both_stores
@pytest.mark.rule("C-9")
@pytest.mark.parametrize("option", ["--env", "--secret"])
def test_a_command_sees_the_variable_of_who_asked_and_nobody_stores_it(
    cli, serve, workspace, option
):
    cli.env["VALUE"] = "the server's own"
    serve()
    cli.env["VALUE"] = CANARY
    done = cli("spawn", option, "VALUE", "--", *SHOWS_DIGEST, check=0)
    assert done.stdout.split()[0] == DIGEST
    with workspace.reading() as store:
        assert CANARY not in every_row(store)
    kept = [path for path in (cli.folder / FOLDER).rglob("*") if path.is_file()]
    assert kept and not [path for path in kept if CANARY.encode() in path.read_bytes()]


@pytest.mark.rule("C-9")
def test_a_program_brings_its_variables_over_http(cli, serve):
    serve()
    with Client.here(cli.folder / FOLDER) as client:
        client.bring_environment(client_request_id="r1", values={"VALUE": CANARY})
        said = client.spawn(argv=list(SHOWS_DIGEST), env=["VALUE"], client_request_id="r1")
        child = said["children"][0]
        until(lambda: client.show_child(child)["children"][0]["phase"] == "terminal")
        assert DIGEST in json.dumps(client.show_logs(child))
        with pytest.raises(OncewardError) as refused:
            client.spawn(argv=["true"], env=["VALUE"], client_request_id="r2")
    assert refused.value.code == "INVALID_CONFIG" and "VALUE" in refused.value.message


@pytest.mark.rule("C-9")
def test_a_variable_that_cannot_be_brought_is_named_and_not_taken_from_the_server(
    cli, service, monkeypatch
):
    monkeypatch.setenv("VALUE", "the server's own")
    cli.env["VALUE"] = CANARY
    done = cli("spawn", "--env", "VALUE", "--json", "--", *SHOWS_DIGEST)
    assert done.returncode == 2 and "VALUE" in done.stderr + done.stdout
    assert CANARY not in every_row(service.store)


@pytest.mark.rule("C-9")
def test_values_that_somebody_else_brought_are_not_used(service):
    service.bring_environment("bob", "r1", {"VALUE": CANARY})
    with pytest.raises(OncewardError) as refused:
        service.ask("tester", "sessions.spawn", {"argv": ["true"], "env": ["VALUE"]}, "r1")
    assert refused.value.context["variable"] == "VALUE"


@pytest.mark.rule("C-9")
def test_a_command_runs_in_the_folder_of_who_asked(cli, service, store_url, tmp_path):
    below = Typed(cli.folder / "below", store_url)
    below.folder.mkdir()
    done = below("spawn", "--", "pwd", check=0)
    assert done.stdout.strip() == str(below.folder.resolve())


@pytest.mark.rule("C-9")
def test_a_folder_that_the_server_does_not_serve_is_refused(cli, store_url, tmp_path):
    elsewhere = Typed(tmp_path / "elsewhere", store_url)
    elsewhere.folder.mkdir()
    elsewhere.env["ONCEWARD_WORKSPACE"] = str(cli.folder / FOLDER)

    def served(settings):
        (cli.folder / "onceward.toml").write_text(settings)
        found = Service(Workspace(cli.folder / FOLDER, store_url=store_url, principal="tester"))
        found.start()
        return found

    service = served("")
    try:
        done = elsewhere("spawn", "--", "pwd")
        assert done.returncode == 2 and "folders" in done.stderr
    finally:
        service.stop()
    service = served('[server]\nfolders = [".", "../elsewhere"]\n')
    try:
        done = elsewhere("spawn", "--", "pwd", check=0)
        assert done.stdout.strip() == str(elsewhere.folder.resolve())
    finally:
        service.stop()
