"""The command line as a person and as a program meets it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from helpers import create
from onceward.edges.cli.main import COMMANDS
from onceward.wiring import Workspace, os_user


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path


class Ran:
    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.status, self.out, self.err = done.returncode, done.stdout, done.stderr

    @property
    def json(self):
        return json.loads(self.out)


@pytest.fixture
def onceward(place, store_url):
    """Runs the real program in a folder of its own, on the store under test."""

    def run(*words: str, stdin: str | None = None, **environment: str) -> Ran:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("ONCEWARD_")}
        return Ran(
            subprocess.run(
                [sys.executable, "-m", "onceward", *words],
                cwd=place,
                input=stdin,
                capture_output=True,
                text=True,
                timeout=60,
                env={**clean, "ONCEWARD_STORE": store_url, **environment},
            )
        )

    return run


@pytest.fixture
def kind(request):
    return getattr(request, "param", "sqlite")


both = pytest.mark.parametrize("kind", ["sqlite", "postgresql"], indirect=True)


@both
@pytest.mark.rule("I-1")
def test_a_first_workspace(onceward, place):
    made = onceward("init")
    assert made.status == 0
    assert f"You act as {os_user()} (admin)" in made.out
    assert (place / ".onceward").stat().st_mode & 0o777 == 0o700
    again = onceward("init")
    assert again.status == 0
    assert "already there" in again.out
    looked = onceward("doctor", "--json").json
    assert looked["ok"], looked
    assert {c["name"] for c in looked["checks"]} >= {"onceward", "python", "clock", "evidence", "writer lock"}
    assert onceward("events", "--json").json == [{"events": 1, "stream": "workspace"}]
    (line,) = onceward("events", "workspace").out.splitlines()
    assert json.loads(line)["event"] == "PRINCIPAL_ADDED"


@pytest.mark.rule("I-1")
def test_without_a_workspace_the_next_command_is_named(onceward):
    for words in (["events"], ["outbox", "status"], ["principals", "list"], ["migrate"], ["backup", "x"]):
        refused = onceward(*words)
        assert refused.status == 2, words
        assert refused.err.startswith("NOT_FOUND: there is no workspace")
        assert "onceward init" in refused.err
    assert onceward("doctor").status == 0


@pytest.mark.rule("I-1", "K-7")
def test_errors_are_json_when_asked(onceward):
    refused = onceward("events", "--json")
    error = json.loads(refused.err)["error"]
    assert error["code"] == "NOT_FOUND"
    assert error["recovery"] == [{"action": "make one", "command": "onceward init", "risk": "none"}]
    assert set(error) == {"code", "message", "context", "retryable", "recovery"}
    assert json.loads(onceward("frobnicate", "--json").err)["error"]["code"] == "INVALID_CONFIG"


@pytest.mark.rule("I-1")
@pytest.mark.parametrize("words", [["frobnicate"], ["events", "--what"], ["principals", "add", "bob"], ["canon"]])
def test_bad_usage_is_status_2(onceward, words):
    assert onceward(*words).status == 2


@pytest.mark.rule("K-1", "I-1")
def test_canon_prints_canonical_bytes_or_their_digest(onceward, place):
    (place / "a.json").write_text('{"b": [1, true],\n "a": "é"}')
    assert onceward("canon", "a.json").out == '{"a":"é","b":[1,true]}\n'
    assert onceward("canon", "--digest", "-", stdin="{}").out.startswith("44136fa355b3678a")
    refused = onceward("canon", "-", stdin='{"a": [1, 2.5]}')
    assert refused.status == 2
    assert "$.a[1]: 2.5 is a float" in refused.err
    assert refused.out == ""
    assert onceward("canon", "none.json").status == 2


@pytest.mark.rule("K-3", "I-1")
def test_machines_are_shown_as_tables_and_diagrams(onceward):
    shown = onceward("machines", "build")
    assert "PENDING" in shown.out
    assert "budget_precheck_block" in shown.out
    assert onceward("machines", "--mermaid").out.count("stateDiagram-v2") == 6
    assert len(onceward("machines", "--json").json) == 6
    assert onceward("machines", "nope").status == 2


@both
@pytest.mark.rule("K-13", "I-1")
def test_principals_are_added_once_per_request(onceward):
    onceward("init")
    added = onceward("principals", "add", "bob", "--role", "viewer", "--request-id", "r1", "--json")
    assert added.json == {"name": "bob", "roles": ["viewer"]}
    again = onceward("principals", "add", "bob", "--role", "viewer", "--request-id", "r1", "--json")
    assert again.json["idempotent_replay"] is True
    clash = onceward("principals", "add", "eve", "--role", "admin", "--request-id", "r1")
    assert clash.status == 2
    assert clash.err.startswith("URM_IDEMPOTENCY_KEY_CONFLICT")
    denied = onceward("--as", "bob", "principals", "add", "bob", "--role", "admin")
    assert denied.status == 2
    assert f"ask {os_user()}" in denied.err
    assert onceward("principals", "list", "--json").json == sorted(
        [{"name": "bob", "roles": ["viewer"]}, {"name": os_user(), "roles": ["admin"]}], key=lambda p: p["name"]
    )


@both
@pytest.mark.rule("K-13", "I-1")
def test_a_command_asks_the_live_kernel_and_follows_its_answer(onceward, place, store_url):
    onceward("init")
    kernel = Workspace(place / ".onceward", store_url=store_url).kernel()
    try:
        words = ("principals", "add", "bob", "--role", "viewer", "--request-id", "r1")
        waiting = onceward(*words, "--wait", "0")
        assert waiting.status == 3
        assert "filed as r1" in waiting.out
        assert json.loads(onceward(*words, "--wait", "0", "--json").out) == {"request_id": "r1", "status": "asked"}
        stop = threading.Event()
        serving = threading.Thread(target=kernel.run, args=(stop,))
        serving.start()
        try:
            assert onceward(*words).out == "bob: viewer\n"
            assert "0 events are due" in onceward("outbox", "flush").out
        finally:
            stop.set()
            serving.join()
    finally:
        kernel.close()


@both
@pytest.mark.rule("K-6", "I-1")
def test_the_outbox_is_seen_and_flushed(onceward, place, store_url):
    onceward("init")
    assert "No sinks are configured" in onceward("outbox", "status").out
    (place / "onceward.toml").write_text('[[sink]]\nname = "log"\nkind = "ndjson"\npath = "out.ndjson"\n')
    kernel = Workspace(place / ".onceward", store_url=store_url).kernel()
    create(kernel.store)
    kernel.close()
    (status,) = onceward("outbox", "status", "--json").json
    assert (status["sink"], status["waiting"], status["parked"]) == ("log", 1, 0)
    assert onceward("outbox", "flush").out == "delivered 1, failed 0 of 1 due.\n"
    assert len((place / "out.ndjson").read_text().splitlines()) == 1
    assert onceward("outbox", "status", "--json").json[0]["waiting"] == 0


@both
def test_backup_and_restore(onceward, place):
    onceward("init")
    onceward("principals", "add", "bob", "--role", "viewer")
    saved = onceward("backup", "b.db")
    assert saved.status == 0
    assert "2 events, verified" in saved.out
    assert (place / "b.db").stat().st_mode & 0o077 == 0
    assert onceward("backup", "b.db").status == 2
    assert onceward("restore", "b.db").status == 2
    into = ("--workspace", "elsewhere/.onceward", "--store", "sqlite")
    assert "verified" in onceward("restore", "b.db", *into).out
    assert [p["name"] for p in onceward("principals", "list", "--json", *into).json] == sorted(["bob", os_user()])


@both
def test_migrate_says_what_it_does(onceward):
    onceward("init")
    assert onceward("migrate").out == "The store is up to date.\n"
    assert onceward("migrate", "--check", "--json").json == {"pending": []}


def test_a_newer_store_is_refused(onceward, place):
    import sqlite3

    onceward("init")
    shell = sqlite3.connect(place / ".onceward" / "onceward.db")
    shell.execute("INSERT INTO schema_migrations VALUES (9999, 'future', 'x', 0)")
    shell.commit()
    shell.close()
    for words in (["events"], ["principals", "list"], ["outbox", "flush"], ["migrate"]):
        refused = onceward(*words)
        assert refused.status == 2
        assert refused.err.startswith("SCHEMA_TOO_NEW"), words
    assert onceward("doctor").status == 1


@pytest.mark.rule("K-11")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[store", "onceward.toml"),
        ("[store]\ncolour = 1", "colour"),
        ("[store]\nurl = 'mysql://x'", "must be"),
        ("[[sink]]\nname = 'a'\nkind = 'pigeon'", "pigeon"),
        ("[[sink]]\nname = 'a'\nkind = 'ndjson'", "needs path"),
        ("[[sink]]\nname = 'a'\nkind = 'webhook'\nurl = 'ftp://x'", "http://"),
        ("[[sink]]\nname = 'a'\nkind = 'console'\n[[sink]]\nname = 'a'\nkind = 'console'", "one name"),
        ("[[sink]]\nname = 'a'\nkind = 'webhook'\nurl = 'http://x'\nsecret_env = 'NO_SUCH_NAME'", "NO_SUCH_NAME"),
    ],
)
def test_bad_settings_are_refused_with_their_field(onceward, place, text, words):
    (place / "onceward.toml").write_text(text)
    refused = onceward("init", ONCEWARD_STORE="")
    assert refused.status == 2
    assert refused.err.startswith("INVALID_CONFIG")
    assert words in refused.err
    assert not (place / ".onceward").exists()


def test_a_workspace_is_found_from_a_folder_inside_it(onceward, place):
    onceward("init")
    (place / "deep" / "er").mkdir(parents=True)
    run = subprocess.run(
        [sys.executable, "-m", "onceward", "events"], cwd=place / "deep" / "er", capture_output=True, text=True
    )
    assert run.returncode == 0
    assert "workspace" in run.stdout


def test_no_traceback_reaches_a_user_unless_asked_for(onceward, place):
    onceward("init")
    (place / ".onceward" / "onceward.db-wal").mkdir()
    broken = onceward("events")
    assert broken.status in (1, 2)
    assert "Traceback" not in broken.err


@pytest.mark.rule("I-1")
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_printed(onceward, shell):
    assert "_ONCEWARD_COMPLETE" in onceward("completion", shell).out


@pytest.mark.rule("I-1")
def test_every_command_has_help_and_takes_the_global_options(onceward):
    assert all(name in onceward("--help").out for name in COMMANDS)
    for name in COMMANDS:
        shown = onceward(name, "--help")
        assert shown.status == 0, name
        if name not in ("outbox", "principals"):
            assert "--json" in shown.out, name


def test_hostile_text_does_not_speak_to_the_terminal(onceward):
    refused = onceward("events", "child:\x1b[31mred")
    assert "\x1b" not in refused.err


def test_help_does_not_load_what_it_does_not_need():
    code = (
        "import sys; from onceward.edges.cli.main import run; run(['--help']);"
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'rich','apsw','psycopg','cryptography','asyncio'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
