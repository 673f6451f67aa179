"""`onceward spawn` and its companions, as a person types them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from helpers import processes_with
from typing_in import Typed, start, until


@pytest.fixture
def cli(store_url, tmp_path):
    """Runs one command line in a workspace of its own."""
    typed = Typed(tmp_path, store_url)
    typed("init", check=0)
    return typed


@pytest.mark.rule("C-9")
def test_a_command_keeps_its_own_output_and_its_failure(cli):
    done = cli("spawn", "--", "sh", "-c", "echo out; echo err >&2; exit 4")
    assert (done.returncode, done.stdout) == (1, "out\n")
    assert "err\n" in done.stderr and "execution_failed: exit 4" in done.stderr
    assert cli("spawn", "--", "true").returncode == 0


@pytest.mark.both_stores
@pytest.mark.rule("C-9", "C-30")
def test_a_budget_ends_a_command_from_inside(cli):
    text = "onceward report --tokens 60 --usd 0.25 --note half && onceward report --tokens 60; echo $? > code; sleep 30"
    done = cli(
        "spawn",
        "--session",
        "s1",
        "--new",
        "--budget",
        "tokens=100",
        "--budget",
        "usd=1.00",
        "--",
        "sh",
        "-c",
        text,
    )
    assert done.returncode == 1
    assert "budget_exceeded: tokens is at 60 of 100" in done.stderr
    assert "tokens 60 of 100, usd 0.25 of 1.00" in done.stderr
    assert (cli.folder / "code").read_text() == "3\n", (
        "a program has a moment to see that it was refused"
    )
    status = json.loads(cli("status", "s1", "--json", check=0).stdout)
    assert status["children"][0]["code"] == "URM_CHILD_BUDGET_EXCEEDED"
    spent = status["children"][0]["spent"]
    assert (spent["tokens"], spent["usd_micros"]) == (60, 250000)


@pytest.mark.rule("C-9")
def test_one_command_runs_once_per_value(cli):
    done = cli(
        "spawn",
        "--json",
        "--jobs",
        "3",
        "--each",
        "-",
        "--target",
        "t.{}",
        "--",
        "echo",
        "<{}>",
        input="a\nb\nc\n",
    )
    assert done.returncode == 0
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["type"] for line in lines].count("ended") == 3
    assert {line["text"] for line in lines if line["type"] == "output"} == {
        "<a>\n",
        "<b>\n",
        "<c>\n",
    }
    assert lines[-1]["type"] == "result" and (lines[-1]["ended"], lines[-1]["failed"]) == (3, 0)


@pytest.mark.rule("C-8", "E-4")
def test_a_command_sees_what_it_is_given_and_its_secrets_leave_no_trace(cli):
    cli.env |= {"API_KEY": "hunter2hunter2", "GIVEN": "yes", "HIDDEN": "secret-of-yours"}
    done = cli(
        "spawn",
        "--session",
        "s1",
        "--new",
        "--secret",
        "API_KEY",
        "--env",
        "GIVEN",
        "--",
        "env",
        check=0,
    )
    assert "API_KEY=[redacted API_KEY]" in done.stdout and "GIVEN=yes" in done.stdout
    assert "HIDDEN" not in done.stdout
    listed = json.loads(cli("artifacts", "list", "s1", "--json", check=0).stdout)
    shown = cli("artifacts", "cat", listed[0]["sha256"][:10], check=0).stdout
    assert shown == done.stdout
    for file in cli.folder.rglob("*"):
        if file.is_file():
            assert b"hunter2" not in file.read_bytes(), file


@pytest.mark.rule("B-12")
def test_artifacts_are_fetched_whole_or_not_at_all(cli):
    cli("spawn", "--session", "s1", "--new", "--", "echo", "kept", check=0)
    (entry,) = json.loads(cli("artifacts", "list", "s1", "--json", check=0).stdout)
    cli("artifacts", "get", entry["sha256"], "copy", check=0)
    assert (cli.folder / "copy").read_text() == "kept\n"
    assert cli("artifacts", "get", entry["sha256"], "copy").returncode == 2
    assert cli("artifacts", "cat", "../../etc/passwd").returncode == 2
    assert cli("artifacts", "cat", "0" * 64).returncode == 2
    assert json.loads(cli("gc", "--json", check=0).stdout) == {"removed": 0, "bytes": 0}


@pytest.mark.both_stores
@pytest.mark.rule("C-40", "K-13")
def test_cancel_works_from_another_process(cli):
    running = start(cli, "spawn", "--session", "s1", "--new", "--", "sleep", "600.1")
    until(lambda: '"phase": "started"' in cli("status", "s1", "--json").stdout)
    answer = json.loads(cli("cancel", "s1", "--json", check=0).stdout)
    assert [receipt["outcome"] for receipt in answer["receipts"]] == ["cancelling"]
    _, err = running.communicate(timeout=600)
    assert running.returncode == 1 and "cancelled" in err
    (child,) = json.loads(cli("status", "s1", "--json", check=0).stdout)["children"]
    assert (child["reason"], child["cancel_request_id"]) == (
        "cancelled",
        answer["cancel_request_id"],
    )
    again = json.loads(cli("cancel", child["child_id"], "--json", check=0).stdout)
    assert again["receipts"][0]["outcome"] == "already_terminal"


@pytest.mark.rule("L-24")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.one_in(2)
def test_an_interrupted_spawn_ends_its_tree_and_says_so(cli, number, status):
    nonce = f"ow{os.getpid()}x{time.monotonic_ns()}"
    text = f"(setsid sh -c 'sleep 1000 # {nonce}' &); exec sleep 1000 # {{}}"
    asked = ("--session", "s1", "--new", "--each", "1", "--each", "2", "--jobs", "1")
    running = start(cli, "spawn", *asked, "--", "sh", "-c", text)
    until(lambda: '"phase": "started"' in cli("status", "s1", "--json").stdout)
    running.send_signal(number)
    _, err = running.communicate(timeout=600)
    assert running.returncode == status
    assert "stopped" in err
    assert processes_with(nonce) == []
    children = json.loads(cli("status", "s1", "--json", check=0).stdout)["children"]
    assert [child["reason"] for child in children] == ["terminated_on_restart", "lease_orphaned"]


@pytest.mark.both_stores
@pytest.mark.rule("L-21", "K-13")
def test_a_second_kernel_is_refused_with_the_evidence_of_the_first(cli):
    cli.env |= {"KEY": "sk-0123456789"}
    long = f"600.{os.getpid()}{time.monotonic_ns()}"
    text = f"echo paid for: $KEY; exec sleep {long}"
    running = start(
        cli, "spawn", "--session", "s1", "--new", "--secret", "KEY", "--", "sh", "-c", text
    )
    assert running.stdout.readline() == "paid for: [redacted KEY]\n"
    done = cli("spawn", "--json", "--", "true")
    assert done.returncode == 4
    error = json.loads(done.stderr)["error"]
    assert (error["code"], error["context"]["pid"]) == ("LOCK_CONFLICT", running.pid)
    running.kill()
    running.communicate()
    # After kill -9 the next takes over at once, and what was left is ended and recorded first.
    assert cli("spawn", "--", "true").returncode == 0
    (child,) = json.loads(cli("status", "s1", "--json", check=0).stdout)["children"]
    assert child["code"] == "URM_CHILD_TERMINATED_ON_RESTART"
    (log,) = json.loads(cli("artifacts", "list", "s1", "--json", check=0).stdout)
    assert cli("artifacts", "cat", log["sha256"], check=0).stdout == "paid for: [redacted KEY]\n"
    assert list((cli.folder / ".onceward" / "running").iterdir()) == []
    assert processes_with(long) == []


@pytest.mark.rule("C-7")
def test_events_can_be_followed(cli):
    following = start(cli, "events", "session:s1", "--follow")
    cli("spawn", "--session", "s1", "--new", "--", "true", check=0)
    names = [json.loads(following.stdout.readline())["event"] for _ in range(3)]
    assert names == ["SESSION_OPENED", "WORKER_START", "WORKER_PASS"]
    following.send_signal(signal.SIGINT)
    following.communicate(timeout=600)
    file = cli.folder / ".onceward" / "streams" / "session:s1.ndjson"
    assert file.read_text() == cli("events", "session:s1", check=0).stdout


@pytest.mark.rule("K-11")
@pytest.mark.parametrize(
    "argv",
    [
        ("spawn",),
        ("spawn", "--budget", "gold=1", "--", "true"),
        ("spawn", "--budget", "tokens=-1", "--", "true"),
        ("spawn", "--budget", "usd=1.x", "--", "true"),
        ("spawn", "--session", "../x", "--", "true"),
        ("spawn", "--target", "../x", "--", "true"),
        ("spawn", "--target", "t", "--each", "1", "--each", "2", "--", "true"),
        ("spawn", "--timeout", "nan", "--", "true"),
        ("spawn", "--jobs", "0", "--", "true"),
        ("spawn", "--each", "a", "--", "true"),
        ("spawn", "--env", "NOT_SET_ANYWHERE", "--", "true"),
        ("spawn", "--secret", "NOT_SET_ANYWHERE", "--", "true"),
        ("spawn", "--budget", "tokens=1", "--budget", "tokens=2", "--", "true"),
        ("cancel", "nothing"),
        ("status", "nothing"),
        ("report", "--tokens", "1"),
        ("report",),
        ("events", "--follow"),
    ],
)
@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
def test_bad_input_is_refused_and_nothing_is_written(cli, argv):
    done = cli(*argv)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads(cli("status", "--json", check=0).stdout) == {
        "builds": [],
        "changes": [],
        "sagas": [],
        "sessions": [],
    }


@pytest.mark.rule("C-8")
def test_a_report_finds_its_way_when_the_program_between_closed_the_descriptors(cli):
    text = "import subprocess; print(subprocess.run(['onceward', 'report', '--tokens', '5']).returncode)"
    done = cli("spawn", "--budget", "tokens=100", "--", sys.executable, "-c", text, check=0)
    assert done.stdout == "0\n"
    assert "tokens 5 of 100" in done.stderr


@pytest.mark.both_stores
@pytest.mark.rule("E-4")
def test_a_secret_stands_nowhere_not_even_where_somebody_put_it(cli):
    cli.env |= {"KEY": "sk-0123456789"}
    text = 'printf sk-01234; sleep 0.3; printf 56789; onceward report --note "key $KEY"; exit 1'
    done = cli(
        "spawn",
        "--session",
        "s1",
        "--new",
        "--secret",
        "KEY",
        "--",
        "sh",
        "-c",
        text,
        "x",
        "sk-0123456789",
    )
    assert "[redacted KEY]" in done.stdout
    assert "sk-0123456789" not in done.stdout + done.stderr + cli("status", "s1", "--json").stdout
    for file in (cli.folder / ".onceward").rglob("*"):
        if file.is_file():
            assert b"sk-0123456789" not in file.read_bytes(), file


@pytest.mark.rule("C-9")
def test_whoever_reads_the_output_may_go_without_the_child_noticing(cli):
    text = "for i in 1 2 3 4 5 6 7 8 9; do echo $i; sleep 0.05; done; touch done"
    script = (
        f"onceward spawn --session s1 --new -- sh -c '{text}' | head -n 1; exit ${{PIPESTATUS[0]}}"
    )
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=cli.folder,
        env=cli.env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert (cli.folder / "done").exists()


@pytest.mark.rule("H-9")
def test_only_an_operator_may_run_things(cli):
    cli("principals", "add", "eve", "--role", "viewer", check=0)
    for argv in (("spawn", "--", "true"), ("gc",)):
        for name in ("eve", "nobody"):
            done = cli("--as", name, *argv)
            assert done.returncode == 2 and "PERMISSION_DENIED" in done.stderr


@pytest.mark.rule("C-9")
def test_options_after_the_command_are_its_own_and_a_session_is_not_made_by_a_typo(cli):
    assert cli("spawn", "echo", "--target", "x", check=0).stdout == "--target x\n"
    done = cli("spawn", "--session", "nope", "--", "true")
    assert done.returncode == 2 and "--new" in done.stderr
    cli("spawn", "--session", "a-long-name", "--new", "--", "true", check=0)
    cli("spawn", "--session", "a-long", "--", "true", check=0)
    assert len(json.loads(cli("status", "a-long", "--json", check=0).stdout)["children"]) == 2
    assert "has no artifacts" in cli("artifacts", "list", "a-long", check=0).stdout
    assert cli("events", "a-long", check=0).stdout.count("WORKER_PASS") == 2


@pytest.mark.rule("L-6")
def test_a_held_target_is_a_conflict(cli):
    holder = (
        "from onceward.locks import TargetLock; import sys;"
        "TargetLock('.onceward/locks').acquire('repo'); sys.stdin.read()"
    )
    held = subprocess.Popen([sys.executable, "-c", holder], cwd=cli.folder, stdin=subprocess.PIPE)
    until(lambda: (cli.folder / ".onceward" / "locks" / "repo.lock").exists())
    (cli.folder / "onceward.toml").write_text("[limits]\ntarget_wait = 0\n")
    done = cli("spawn", "--target", "repo", "--", "true")
    assert done.returncode == 4 and f"held by pid {held.pid}" in done.stderr
    (cli.folder / "onceward.toml").unlink()
    threading.Timer(1.0, held.communicate).start()
    done = cli("spawn", "--target", "repo", "--", "true")
    assert done.returncode == 0 and f"waits: repo is locked: held by pid {held.pid}" in done.stderr


@pytest.mark.rule("L-4", "L-6")
@pytest.mark.guarantee("G21")
def test_what_a_power_cut_left_of_a_claim_is_reclaimed_or_names_the_command(cli):
    claim = cli.folder / ".onceward" / "locks" / "repo.lock"
    cli("spawn", "--target", "repo", "--", "true", check=0)
    (cli.folder / "onceward.toml").write_text("[limits]\ntarget_wait = 0\n")
    claim.write_bytes(b"")
    done = cli("spawn", "--target", "repo", "--", "true")
    assert done.returncode == 4
    assert "onceward locks show repo" in done.stderr
    assert "onceward locks clear repo" in done.stderr
    os.utime(claim, (1, 1))
    shown = json.loads(cli("locks", "show", "repo", "--json", check=0).stdout)
    assert shown["liveness"] == "dead"
    cli("spawn", "--target", "repo", "--", "true", check=0)
    assert not claim.exists()
