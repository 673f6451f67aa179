"""The command line as a person and as a program meets it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import threading

import pytest

from helpers import create
from onceward.ui.cli.main import COMMANDS
from onceward.workspace import Workspace, os_user


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
    assert "already exists" in again.out
    looked = onceward("doctor", "--json").json
    assert looked["ok"], looked
    assert {c["name"] for c in looked["checks"]} >= {
        "onceward",
        "python",
        "clock",
        "evidence",
        "writer lock",
    }
    assert onceward("events", "--json").json == [{"events": 2, "stream": "workspace"}]
    line, _ = onceward("events", "workspace").out.splitlines()
    assert json.loads(line)["event"] == "PRINCIPAL_ADDED"


@pytest.mark.rule("I-1")
def test_without_a_workspace_the_next_command_is_named(onceward):
    for words in (
        ["events"],
        ["outbox", "status"],
        ["principals", "list"],
        ["migrate"],
        ["backup", "x"],
    ):
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
@pytest.mark.parametrize(
    "words", [["frobnicate"], ["events", "--what"], ["principals", "add", "bob"], ["canon"]]
)
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
    assert onceward("machines", "--mermaid").out.count("stateDiagram-v2") == 8
    assert len(onceward("machines", "--json").json) == 8
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
    found = [(p["name"], p["roles"]) for p in onceward("principals", "list", "--json").json]
    assert found == sorted([("bob", ["viewer"]), (os_user(), ["admin"])])


@both
@pytest.mark.rule("K-13", "I-1")
def test_a_command_asks_the_live_kernel_and_follows_its_answer(onceward, place, store_url):
    onceward("init")
    kernel = Workspace(place / ".onceward", store_url=store_url).kernel()
    try:
        words = ("principals", "add", "bob", "--role", "viewer", "--request-id", "r1")
        waiting = onceward(*words, "--wait", "0")
        assert waiting.status == 3
        assert "stored as r1" in waiting.out
        assert json.loads(onceward(*words, "--wait", "0", "--json").out) == {
            "request_id": "r1",
            "status": "asked",
        }
        stop = threading.Event()
        serving = threading.Thread(target=kernel.run, args=(stop,))
        serving.start()
        try:
            assert onceward(*words).out == "bob: viewer\n"
            assert "0 events due" in onceward("outbox", "flush").out
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
    (place / "onceward.toml").write_text(
        '[[sink]]\nname = "log"\nkind = "ndjson"\npath = "out.ndjson"\n'
    )
    kernel = Workspace(place / ".onceward", store_url=store_url).kernel()
    create(kernel.store)
    kernel.close()
    (status,) = onceward("outbox", "status", "--json").json
    assert (status["sink"], status["waiting"], status["parked"]) == ("log", 2, 0)
    assert onceward("outbox", "flush").out == "delivered 2 of 2 due.\n"
    assert len((place / "out.ndjson").read_text().splitlines()) == 2
    assert onceward("outbox", "status", "--json").json[0]["waiting"] == 0


@both
def test_backup_and_restore(onceward, place):
    onceward("init")
    onceward("principals", "add", "bob", "--role", "viewer")
    saved = onceward("backup", "b.db")
    assert saved.status == 0
    assert "6 events, verified" in saved.out
    assert (place / "b.db").stat().st_mode & 0o077 == 0
    assert onceward("backup", "b.db").status == 2
    assert onceward("restore", "b.db").status == 2
    into = ("--workspace", "elsewhere/.onceward", "--store", "sqlite")
    assert "verified" in onceward("restore", "b.db", *into).out
    assert [p["name"] for p in onceward("principals", "list", "--json", *into).json] == sorted(
        ["bob", os_user()]
    )


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
        (
            "[[sink]]\nname = 'a'\nkind = 'console'\n[[sink]]\nname = 'a'\nkind = 'console'",
            "the same name",
        ),
        (
            "[[sink]]\nname = 'a'\nkind = 'webhook'\nurl = 'http://u:s3cret@x/'",
            "must not contain a password",
        ),
        ("[[sink]]\nname = 'a'\nkind = 'webhook'\nurl = 'http://[x/'", "not a valid URL"),
    ],
)
def test_bad_settings_are_refused_with_their_field(onceward, place, text, words):
    (place / "onceward.toml").write_text(text)
    refused = onceward("init", ONCEWARD_STORE="")
    assert refused.status == 2
    assert refused.err.startswith("INVALID_CONFIG")
    assert words in refused.err
    assert "s3cret" not in refused.err
    assert not (place / ".onceward").exists()


def test_a_workspace_is_found_from_a_folder_inside_it(onceward, place):
    onceward("init")
    (place / "deep" / "er").mkdir(parents=True)
    run = subprocess.run(
        [sys.executable, "-m", "onceward", "events"],
        cwd=place / "deep" / "er",
        capture_output=True,
        text=True,
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
    code = "from onceward.ui.cli.main import COMMANDS, run\nfor name in COMMANDS: print(name, run([name, '--help']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.count("--json") == len(COMMANDS)
    assert all(f"{name} 0\n" in done.stdout for name in COMMANDS)


def test_hostile_text_does_not_speak_to_the_terminal(onceward):
    refused = onceward("events", "child:\x1b[31mred")
    assert "\x1b" not in refused.err


SERVER = {"starlette", "uvicorn", "jinja2", "h11", "anyio"}
"""What only `serve` needs."""
HEAVY = {"rich", "apsw", "psycopg", "cryptography", "asyncio"}


def loaded_by(words, folder):
    """The libraries that a command loads, in a process of its own."""
    code = (
        "import sys; from onceward.ui.cli.main import run; status = run(sys.argv[1:]);"
        "print(status, *sorted({name.split('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=folder, capture_output=True, text=True, check=True
    )
    status, *names = done.stdout.splitlines()[-1].split()
    assert status == "0", done.stderr
    return set(names)


@pytest.mark.rule("I-1")
@pytest.mark.parametrize("words", [["--help"], ["version"], ["serve", "--help"]])
def test_help_and_version_load_nothing_heavy(words, tmp_path):
    assert not loaded_by(words, tmp_path) & (HEAVY | SERVER)


@pytest.mark.rule("I-1")
def test_only_serve_loads_the_libraries_of_the_server(tmp_path):
    plan = '[[stage]]\nname = "one"\nrun = ["true"]\n'
    (tmp_path / "plan.toml").write_text(f'name = "p"\n{plan}')
    for words in (["run", "plan.toml"], ["status"], ["list"], ["verify"], ["doctor"]):
        assert not loaded_by(words, tmp_path) & SERVER, words


@both
@pytest.mark.rule("K-13", "I-1")
def test_commands_at_the_same_moment_all_get_their_work_done(onceward):
    onceward("init")
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(6) as pool:
        done = list(
            pool.map(lambda n: onceward("principals", "add", f"p{n}", "--role", "viewer"), range(6))
        )
    assert [ran.status for ran in done] == [0] * 6, [ran.out + ran.err for ran in done]
    assert len(onceward("principals", "list", "--json").json) == 7


@pytest.mark.rule("K-11")
@pytest.mark.parametrize(
    "words",
    [
        ["--request-id", ""],
        ["--request-id", "a\x01b"],
        ["--wait", "-1"],
        ["--wait", "nan"],
        ["--wait", "inf"],
        ["--as", " "],
    ],
)
def test_careless_values_are_refused(onceward, words):
    onceward("init")
    refused = onceward("principals", "add", "bob", "--role", "viewer", *words)
    assert refused.status == 2, refused.out
    assert len(onceward("principals", "list", "--json").json) == 1


@pytest.mark.rule("K-11")
@pytest.mark.parametrize("name", ["", "   ", " bob", "a\x1b[31m", "x" * 129])
def test_names_nobody_could_read_are_refused(onceward, name):
    onceward("init")
    assert onceward("principals", "add", name, "--role", "viewer").status == 2


@pytest.mark.guarantee("G24")
@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:s3cret@127.0.0.1:9/d",
        "postgresql://u:s3cret%zz@127.0.0.1:9/d",
        "postgresql://u:x@s3cret@127.0.0.1:9/d",
        "postgresql://u:x?s3cret@127.0.0.1:9/d",
        "postgresql://u:x#s3cret@127.0.0.1:9/d",
        "postgresql://u:s3cret@[::1/d",
        "postgresql://u:s3cret@127.0.0.1:abc/d",
        "postgresql://u:s3cret@127.0.0.1:99999/d",
        "postgresql://u:s3cret@127.0.0.1:9/d?nope=1",
        "postgresql://",
    ],
)
@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
def test_a_bad_store_url_is_refused_without_its_password(onceward, url):
    for words in (["init", "--json"], ["doctor", "--json"]):
        refused = onceward(*words, "--store", url)
        assert "s3cret" not in refused.out + refused.err
        assert "own" not in refused.err
        assert refused.status in (1, 2)
    closed_port = url.endswith(":9/d") and url.count("@") == 1 and not set("%?#") & set(url)
    assert onceward("init", "--store", url).status == (1 if closed_port else 2)


@pytest.mark.rule("I-1")
def test_edited_history_is_an_integrity_fault(onceward, place):
    import sqlite3

    onceward("init")
    shell = sqlite3.connect(place / ".onceward" / "onceward.db")
    shell.executescript("DROP TRIGGER events_update; UPDATE events SET at = at + 1")
    shell.close()
    assert onceward("doctor").status == 5
    assert onceward("backup", "b.db").status == 5


@pytest.mark.rule("I-1")
def test_a_failed_delivery_is_status_1_and_names_the_sink(onceward, place):
    onceward("init")
    (place / "onceward.toml").write_text(
        '[[sink]]\nname = "hook"\nkind = "webhook"\nurl = "http://127.0.0.1:9/"\n'
    )
    onceward("principals", "add", "bob", "--role", "viewer")
    failed = onceward("outbox", "flush")
    assert failed.status == 1
    assert "hook: 1 failed: the webhook cannot be reached" in failed.out
    assert "outbox flush" in onceward("doctor").out


def test_a_console_sink_does_not_disturb_json(onceward, place):
    onceward("init")
    (place / "onceward.toml").write_text('[[sink]]\nname = "screen"\nkind = "console"\n')
    onceward("principals", "add", "bob", "--role", "viewer")
    flushed = onceward("outbox", "flush", "--json")
    assert flushed.json["sinks"][0]["delivered"] == 5
    assert flushed.err.startswith("[OUTBOX] ")


def test_output_that_cannot_be_written_is_not_called_a_failure_of_the_work(onceward, place):
    onceward("init")
    command = f"{sys.executable} -m onceward principals add bob --role viewer > /dev/full"
    done = subprocess.run(["bash", "-c", command], cwd=place, capture_output=True, text=True)
    assert done.returncode == 1
    assert "its output could not be written" in done.stderr
    assert len(onceward("principals", "list", "--json").json) == 2


@pytest.mark.parametrize(
    "environment",
    [
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "latin-1"},
    ],
)
def test_a_terminal_that_knows_few_letters_is_no_obstacle(onceward, place, environment):
    assert onceward("init", **environment).status == 0
    assert (place / "onceward.toml").read_text().startswith("# Settings")
    onceward("principals", "add", "žluť", "--role", "viewer")
    assert onceward("principals", "list", **environment).status == 0
    assert "žluť" in [
        p["name"] for p in onceward("principals", "list", "--json", **environment).json
    ]


def test_no_colour_where_it_is_not_wanted(onceward):
    refused = onceward("events", NO_COLOR="1")
    assert "\x1b" not in refused.err


@pytest.mark.parametrize("fault", ["nope", "commit.after:x", "commit.after:0"])
def test_a_mistyped_fault_is_refused_with_the_names(onceward, fault):
    refused = onceward("init", ONCEWARD_FAULT=fault)
    assert refused.status == 2
    assert "commit.before" in refused.err


def test_a_reader_that_has_seen_enough_is_no_error(onceward, place):
    piped = f"set -o pipefail; {sys.executable} -m onceward machines | head -1"
    done = subprocess.run(["bash", "-c", piped], cwd=place, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_hint_can_be_pasted(onceward):
    onceward("init")
    denied = onceward("--as", "x; touch pwned", "principals", "add", "y", "--role", "viewer")
    assert "'x; touch pwned'" in denied.err
    assert "[risk: high]" in denied.err
    missing = onceward("--workspace", "else where/.onceward", "events")
    assert "init" in missing.err
    assert "'" in missing.err


def test_global_options_may_stand_anywhere(onceward):
    onceward("init")
    for words in (
        ["--json", "outbox", "status"],
        ["outbox", "--json", "status"],
        ["outbox", "status", "--json"],
    ):
        assert onceward(*words).json == []


def test_init_in_a_folder_below_makes_its_own(onceward, place):
    onceward("init")
    (place / "sub").mkdir()
    subprocess.run(
        [sys.executable, "-m", "onceward", "init"],
        cwd=place / "sub",
        check=True,
        capture_output=True,
    )
    assert (place / "sub" / ".onceward" / "onceward.db").exists()


def test_adding_what_is_already_there_writes_nothing(onceward):
    onceward("init")
    for _ in range(2):
        onceward("principals", "add", "bob", "--role", "viewer")
    told = [json.loads(line)["event"] for line in onceward("events", "workspace").out.splitlines()]
    assert told == [
        "PRINCIPAL_ADDED",
        "KEY_ADDED",
        "ACT_SIGNED",
        "PRINCIPAL_ADDED",
        "KEY_ADDED",
        "REQUEST_ANSWERED",
        "REQUEST_ANSWERED",
    ]


def test_a_restore_that_is_refused_leaves_nothing_behind(onceward, place):
    (place / "text.db").write_text("hello")
    assert onceward("restore", "none.db").status == 2
    assert onceward("restore", "text.db").status == 2
    assert onceward("restore", ".").status == 2
    assert sorted(p.name for p in place.iterdir()) == ["text.db"]


@both
@pytest.mark.rule("L-10", "I-1")
def test_locks_are_listed_shown_and_cleared_with_a_record(onceward, place):
    from onceward.locks import TargetLock

    onceward("init")
    assert onceward("locks", "list").out == "No targets are locked.\n"
    lock = TargetLock(place / ".onceward" / "locks")
    held = lock.acquire("held")
    foreign = TargetLock(
        place / ".onceward" / "locks", hostname="elsewhere", nonce=lambda: "n1"
    ).acquire("far")
    os.close(foreign.descriptor)
    listed = {entry["target"]: entry for entry in onceward("locks", "list", "--json").json}
    assert listed["held"]["liveness"] == "alive"
    assert "another machine" in listed["far"]["why"]
    assert "is running" in onceward("locks", "show", "held").out
    assert onceward("locks", "show", "none").status == 2
    assert onceward("locks", "show", "../x").status == 2
    refused = onceward("locks", "clear", "held", "--yes", held.nonce)
    assert refused.status == 4
    assert held.path.exists()
    assert onceward("locks", "clear", "far", "--yes", "other").status == 2
    assert onceward("locks", "clear", "far", stdin="wrong\n").status == 2
    assert foreign.path.exists()
    assert onceward("locks", "clear", "far", stdin="far\n").status == 0
    assert not foreign.path.exists()
    events = [json.loads(line) for line in onceward("events", "workspace").out.splitlines()]
    assert [event["event"] for event in events[-2:]] == ["LOCK_CLEARED", "REQUEST_ANSWERED"]
    assert events[-2]["detail"]["claim"]["hostname"] == "elsewhere"
    lock.release(held)


@pytest.mark.rule("L-6", "L-10")
def test_locks_of_a_folder_outside_a_workspace_are_listed_shown_and_cleared(onceward, place):
    from onceward.locks import TargetLock, TargetLocked

    folder = place / "my locks"
    lock = TargetLock(folder)
    held = lock.acquire("held")
    far = TargetLock(folder, hostname="elsewhere", nonce=lambda: "n1").acquire("far")
    lock.forget(far)
    assert onceward("locks", "list").status == 2, "there is no workspace here"
    listed = onceward("locks", "list", "--folder", "my locks", "--json").json
    assert {entry["target"]: entry["liveness"] for entry in listed} == {
        "far": "alive",
        "held": "alive",
    }
    shown = onceward("locks", "show", "held", "--folder", str(folder))
    assert shown.status == 0 and held.nonce in shown.out and "is running" in shown.out
    assert onceward("locks", "show", "none", "--folder", str(folder)).status == 2
    assert onceward("locks", "show", "held", "--folder", str(place / "nowhere")).status == 2
    assert not (place / ".onceward").exists(), "looking makes no workspace"
    with pytest.raises(TargetLocked) as locked:
        lock.acquire("far")
    commands = [shlex.split(way.command) for way in locked.value.recovery]
    assert [words[:3] for words in commands] == [
        ["onceward", "locks", "show"],
        ["onceward", "locks", "clear"],
    ]
    assert onceward(*commands[0][1:]).status == 0, "what a conflict says can be typed"
    assert onceward(*commands[1][1:], stdin="far\n").status == 0
    assert not far.path.exists()
    assert onceward("locks", "clear", "held", "--folder", str(folder)).status == 4
    assert lock.release(held) == "released"


@pytest.mark.rule("L-10")
def test_the_locks_of_a_workspace_are_cleared_only_with_a_record(onceward, place):
    from onceward.locks import TargetLock

    onceward("init")
    lock = TargetLock(place / ".onceward" / "locks", hostname="elsewhere")
    claim = lock.acquire("far")
    lock.forget(claim)
    refused = onceward("locks", "clear", "far", "--folder", ".onceward/locks", "--yes", claim.nonce)
    assert refused.status == 2 and "belongs to the workspace" in refused.err
    assert claim.path.exists()
    workspace = str(place / ".onceward")
    cleared = onceward("locks", "clear", "far", "--workspace", workspace, "--yes", claim.nonce)
    assert cleared.status == 0


@pytest.mark.rule("I-1")
def test_a_settings_file_that_is_not_in_force_is_named(onceward, place):
    onceward("init")
    inner = place / "inner"
    (inner / "deeper").mkdir(parents=True)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ONCEWARD_")}

    def told(folder, *words):
        argv = [sys.executable, "-m", "onceward", *words]
        run = subprocess.run(argv, cwd=folder, env=clean, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        return run.stderr

    assert "ignored" not in told(inner, "list")
    (inner / "onceward.toml").write_text('[budget]\nusd = "1.00"\n')
    for folder in (inner, inner / "deeper"):
        line = told(folder, "list")
        assert line.count("is ignored") == 1
        assert str(inner / "onceward.toml") in line
        assert str(place / "onceward.toml") in line
    assert "ignored" not in told(place, "list")
    assert "ignored" not in told(inner, "--workspace", str(place / ".onceward"), "list")
    assert "ignored" not in told(inner, "init")
    assert "ignored" not in told(inner, "list")
