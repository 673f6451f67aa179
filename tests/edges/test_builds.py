"""Builds as a person types them: run, resume, confirm, approve, abandon, cancel, list, status."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest

from helpers import processes_with
from typing_in import Typed, start, until

PLAN = """
name = "catalogue"
[budget]
usd = "1.00"
[[stage]]
name = "extract"
targets = ["a", "b c", "ü"]
run = ["sh", "-c", "onceward report --usd 0.10 || exit 1; echo $ONCEWARD_TARGET > $ONCEWARD_OUT/o"]
env = ["PATH"]
[[stage]]
name = "count"
needs = ["extract"]
targets = ["all"]
run = ["sh", "-c", "ls $ONCEWARD_INPUTS/extract | wc -l > $ONCEWARD_OUT/n"]
"""
SLOW = """
name = "slow"
[[stage]]
name = "wait"
targets = ["a", "b"]
run = ["sh", "-c", "echo $ONCEWARD_TARGET >> witness; sleep SECONDS"]
"""


@pytest.fixture
def cli(store_url, tmp_path):
    """Runs one command line in a folder of its own, where nothing was made yet."""
    typed = Typed(tmp_path, store_url)
    (tmp_path / "plan.toml").write_text(PLAN)
    return typed


def slow(cli, seconds):
    (cli.folder / "slow.toml").write_text(SLOW.replace("SECONDS", seconds))
    return cli.folder / "witness"


def result(done):
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.rule("I-1", "B-14")
def test_run_makes_the_workspace_and_says_what_happens(cli):
    done = cli("run", "plan.toml", check=0)
    assert "made the workspace" in done.stderr and "extract:b c" in done.stderr
    assert "4 steps: 4 run; paid 0.30 usd" in done.stderr and done.stdout == ""
    done = cli("run", "plan.toml", check=0)
    assert "4 reused; paid 0.00 usd, 0.30 usd not paid again" in done.stderr
    builds = json.loads(cli("list", "--json", check=0).stdout)
    assert [b["state"] for b in builds] == ["SUCCESS", "SUCCESS"]
    assert "catalogue" in cli("list", check=0).stdout
    assert "└─ ü    SUCCESS" in cli("status", builds[1]["build_id"], check=0).stdout


@pytest.mark.rule("I-1", "B-7")
def test_json_lines_are_as_the_contract_says(cli):
    done = cli("run", "plan.toml", "--json", "--jobs", "1", check=0)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[0]["type"] == "build" and lines[0]["steps"] == 4
    assert {line["type"] for line in lines[1:-1]} == {"step"}
    last = lines[-1]
    assert last["type"] == "result" and last["state"] == "SUCCESS" and last["reason"] == "normal_completion"
    assert last["cost_usd"] == "0.30" and last["tokens"] == 0
    assert last["steps"] == {"total": 4, "executed": 4, "skipped": 0, "reused": 0, "failed": 0}
    status = json.loads(cli("status", last["build_id"], "--json", check=0).stdout)
    step = status["steps"][0]
    assert (step["stage"], step["target"], step["status"], step["cost_usd"]) == ("extract", "a", "SUCCESS", "0.10")
    assert len(step["context_hash"]) == 64 and step["attempts"] == 1 and step["child_id"].startswith("chd_")
    assert step["artifacts"][0]["name"] == "o"


@pytest.mark.rule("B-9", "B-10", "I-1")
def test_a_pause_exits_3_and_goes_on_with_its_token(cli):
    done = cli("run", "plan.toml", "--json", "--jobs", "1", "--budget", "usd=0.15", check=3)
    last = result(done)
    build, token = last["build_id"], last["confirmation_token"]
    assert last["state"] == "BUDGET_PAUSE" and "--token" in last["next"]
    more = ("--budget", "usd=2.00")
    for words in ((), ("--token", token), (*more,), (*more, "--token", "x" * 64)):
        refused = cli("resume", build, *words, check=2)
        assert "INVALID_RESUME_STATE" in refused.stderr
    new = cli("confirm", build, check=0).stdout.strip()
    assert len(new) == 64
    assert "void" in cli("resume", build, *more, "--token", token, check=2).stderr
    done = cli("resume", build, *more, "--token", new, "--json", check=0)
    assert result(done)["state"] == "SUCCESS"
    assert "is SUCCESS" in cli("confirm", build, check=2).stderr


@pytest.mark.rule("B-1")
def test_a_paused_build_may_be_declared_failed_or_abandoned(cli):
    for word, state in (("--failed", "FAILED"), (None, "ABANDONED")):
        last = result(cli("run", "plan.toml", "--json", "--budget", "usd=0.05", "--no-reuse", check=3))
        words = [word] if word else []
        assert state in cli("abandon", last["build_id"], *words, check=0).stdout
        assert state in cli("resume", last["build_id"], check=2).stderr
    assert "ILLEGAL_TRANSITION" in cli("abandon", last["build_id"], check=2).stderr


@pytest.mark.rule("K-13", "I-1")
def test_two_runs_at_once_are_a_conflict_and_the_second_changes_nothing(cli):
    witness = slow(cli, "2.13")
    first = start(cli, "run", "slow.toml")
    until(witness.exists)
    second = cli("run", "plan.toml", check=4)
    assert "LOCK_CONFLICT" in second.stderr
    assert first.wait(30) == 0
    first.communicate()
    assert len(json.loads(cli("list", "--json").stdout)) == 1


@pytest.mark.rule("L-24", "B-14")
@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_ends_cleanly_and_says_how_to_resume(cli, times):
    witness = slow(cli, "1000.31")
    process = start(cli, "run", "slow.toml")
    until(witness.exists)
    for _ in range(times):
        process.send_signal(signal.SIGINT)
        time.sleep(0.05)
    _, told = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "STOPPED (as asked; it can be resumed)" in told
    command = next(line for line in told.splitlines() if line.startswith("next: ")).removeprefix("next: onceward ")
    assert until(lambda: not processes_with("sleep 1000.31"))
    slow(cli, "0.01")
    assert "what it runs changed" in cli(*command.split(), check=2).stderr
    assert cli(*command.split(), "--fork", check=0)


@pytest.mark.rule("C-40", "B-1", "K-13")
@pytest.mark.parametrize("verb", ["cancel", "abandon"])
def test_a_running_build_is_given_up_from_another_terminal(cli, verb):
    witness = slow(cli, "1000.32")
    process = start(cli, "run", "slow.toml", "--json")
    until(witness.exists)
    (build,) = json.loads(cli("list", "--json").stdout)
    cli(verb, build["build_id"], check=0)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 1
    assert json.loads(out.splitlines()[-1])["state"] == "ABANDONED"
    assert until(lambda: not processes_with("sleep 1000.32"))
    children = json.loads(cli("status", build["build_id"], "--children", "--json").stdout)["children"]
    assert {c["reason"] for c in children} == {"cancelled"}


@pytest.mark.rule("B-15", "K-13")
def test_an_approval_is_given_by_the_command_that_the_display_names(cli):
    text = PLAN.replace('name = "count"', 'name = "count"\napprove = "Is it good?"').replace(
        'run = ["sh", "-c", "ls $ONCEWARD_INPUTS/extract | wc -l > $ONCEWARD_OUT/n"]', ""
    )
    (cli.folder / "plan.toml").write_text(text)
    process = start(cli, "run", "plan.toml")
    told = []
    for line in process.stderr:
        told.append(line)
        if "onceward approve" in line:
            break
    command = told[-1].split()[1:]
    assert "PERMIT_INVALID" in cli(*command[:-1], "0" * 64, check=2).stderr
    assert "Is it good?" in cli("status", command[1], check=0).stdout
    cli("principals", "add", "reader", "--role", "viewer", check=0)
    assert "PERMISSION_DENIED" in cli(*command, "--as", "reader", check=2).stderr
    assert "count:all approved" in cli(*command, check=0).stdout
    process.communicate(timeout=30)
    assert process.returncode == 0


@pytest.mark.rule("B-15", "L-23")
def test_an_approval_given_after_a_crash_counts_for_the_resume(cli):
    (cli.folder / "plan.toml").write_text('name = "x"\n[[stage]]\nname = "look"\napprove = "ok?"\n')
    process = start(cli, "run", "plan.toml", "--json")
    line = until(lambda: json.loads(process.stdout.readline() or "{}").get("digest"))
    process.kill()
    process.communicate()
    (build,) = json.loads(cli("list", "--json").stdout)
    assert "look:main approved" in cli("approve", build["build_id"], "look", "--digest", line, check=0).stdout
    assert "1 skipped" in cli("resume", build["build_id"], check=0).stderr


@pytest.mark.rule("K-11", "B-2")
@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["run", "nope.toml"], "the plan nope.toml is not there"),
        (["run", "plan.toml", "--budget", "usd"], "LANE=N"),
        (["run", "plan.toml", "--jobs", "0"], "--jobs"),
        (["resume", "bld_none"], "there is no workspace"),
    ],
)
@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
def test_bad_words_exit_2_and_write_nothing(cli, argv, says):
    done = cli(*argv, check=2)
    assert says in done.stderr and "Traceback" not in done.stderr
    assert not (cli.folder / ".onceward").exists()


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
def test_a_bad_plan_exits_2_before_a_workspace_is_made(cli):
    (cli.folder / "plan.toml").write_text(PLAN.replace("targets = [", "target = ["))
    done = cli("run", "plan.toml", check=2)
    assert "plan.toml, line 7" in done.stderr and not (cli.folder / ".onceward").exists()


@pytest.mark.rule("I-2", "B-2")
def test_a_python_plan_runs_by_itself_and_by_the_command(cli):
    (cli.folder / "cat.py").write_text(
        "from onceward import Plan\n"
        'plan = Plan("cat", budget={"usd": "5.00"})\n'
        '@plan.stage(targets=["a", "b", "c"])\n'
        "def extract(task):\n"
        '    task.spend(usd="0.01", tokens=120)\n'
        '    return {"words": 42}\n'
        "@plan.stage(needs=extract)\n"
        "async def summarise(task):\n"
        '    return task.inputs["extract"]["words"]\n'
        'if __name__ == "__main__":\n'
        "    result = plan.run()\n"
        '    print(result.value("summarise", "a"), result.cost_usd)\n'
    )
    done = subprocess.run(
        [sys.executable, "cat.py"], cwd=cli.folder, env=cli.env, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "42 0.03\n"
    assert "6 steps" in cli("run", "cat.py", check=0).stderr


@pytest.mark.rule("I-1", "C-8")
def test_logs_of_a_step_while_it_runs_and_after(cli):
    text = SLOW.replace(
        "sleep SECONDS", "echo said $ONCEWARD_TARGET; echo oops >&2; while [ ! -e go ]; do sleep 0.05; done"
    )
    (cli.folder / "slow.toml").write_text(text)
    process = start(cli, "run", "slow.toml")
    until(lambda: "said a" in cli("logs", "wait:a").stdout)
    follower = start(cli, "logs", "wait:a", "--follow")
    (cli.folder / "go").touch()
    assert process.wait(30) == 0
    process.communicate()
    out, err = follower.communicate(timeout=30)
    assert (out, err) == ("said a\n", "oops\n")
    assert cli("logs", "wait:b", check=0).stdout == "said b\n"
    assert "no attempt at 'nope'" in cli("logs", "nope", check=2).stderr


@pytest.mark.rule("K-7", "I-1")
def test_a_failed_step_says_where_its_log_is(cli):
    (cli.folder / "bad.toml").write_text(
        'name = "bad"\n[[stage]]\nname = "x"\nrun = ["sh", "-c", "echo the cause >&2; exit 3"]\n'
    )
    done = cli("run", "bad.toml", check=1)
    assert "onceward logs x:main" in done.stderr and "exit 3" in done.stderr
    assert cli("logs", "x:main", check=0).stderr == "the cause\n"
