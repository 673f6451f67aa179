"""Builds as a person types them: run, resume, confirm, approve, abandon, cancel, list, status."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest

from helpers import create, processes_with
from onceward.workspace import Workspace
from typing_in import BIN, Typed, start, until

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
collect = ["extract"]
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


@pytest.mark.both_stores
@pytest.mark.rule("I-1", "B-14")
def test_run_makes_the_workspace_and_says_what_happens(cli):
    done = cli("run", "plan.toml", check=0)
    assert "created the workspace" in done.stderr and "extract:b c" in done.stderr
    assert "4 steps: 4 run; paid 0.30 usd" in done.stderr and done.stdout == ""
    done = cli("run", "plan.toml", check=0)
    assert "4 reused; paid 0.00 usd, 0.30 usd not paid again" in done.stderr
    builds = json.loads(cli("list", "--json", check=0).stdout)
    assert [b["state"] for b in builds] == ["SUCCESS", "SUCCESS"]
    assert "catalogue" in cli("list", check=0).stdout
    assert "└─ ü    SUCCESS" in cli("status", builds[1]["build_id"], check=0).stdout


@pytest.mark.both_stores
@pytest.mark.rule("I-1", "B-7")
def test_json_lines_are_as_the_contract_says(cli):
    done = cli("run", "plan.toml", "--json", "--jobs", "1", check=0)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[0]["type"] == "build" and lines[0]["steps"] == 4
    assert {line["type"] for line in lines[1:-1]} == {"step"}
    last = lines[-1]
    assert (
        last["type"] == "result"
        and last["state"] == "SUCCESS"
        and last["reason"] == "normal_completion"
    )
    assert last["cost_usd"] == "0.30" and last["tokens"] == 0
    assert last["steps"] == {"total": 4, "executed": 4, "skipped": 0, "reused": 0, "failed": 0}
    status = json.loads(cli("status", last["build_id"], "--json", check=0).stdout)
    step = status["steps"][0]
    assert (step["stage"], step["target"], step["status"], step["cost_usd"]) == (
        "extract",
        "a",
        "SUCCESS",
        "0.10",
    )
    assert (
        len(step["context_hash"]) == 64
        and step["attempts"] == 1
        and step["child_id"].startswith("chd_")
    )
    assert step["artifacts"][0]["name"] == "o"


@pytest.mark.both_stores
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


@pytest.mark.both_stores
@pytest.mark.rule("B-1")
@pytest.mark.parametrize("verb", ["abandon", "cancel"])
def test_a_build_that_was_stored_and_never_started_can_be_given_up(cli, verb):
    """A kernel of another make may store a build and die before it starts it."""
    cli("init", check=0)
    workspace = Workspace(
        cli.folder / ".onceward", store_url=cli.env["ONCEWARD_STORE"], principal="tester"
    )
    kernel = workspace.kernel()
    build_id = create(kernel.store)
    kernel.close()
    refused = cli("resume", build_id, "--plan", "plan.toml")
    assert f"onceward abandon {build_id}" in refused.stderr
    assert "ABANDONED" in cli(verb, build_id, check=0).stdout
    (found,) = json.loads(cli("list", "--json", check=0).stdout)
    assert found["state"] == "ABANDONED"
    cli("verify", check=0)
    cli("replay", check=0)


@pytest.mark.rule("B-1")
def test_a_paused_build_may_be_declared_failed_or_abandoned(cli):
    for word, state in (("--failed", "FAILED"), (None, "ABANDONED")):
        last = result(
            cli("run", "plan.toml", "--json", "--budget", "usd=0.05", "--no-reuse", check=3)
        )
        words = [word] if word else []
        assert state in cli("abandon", last["build_id"], *words, check=0).stdout
        assert state in cli("resume", last["build_id"], check=2).stderr
    assert "ILLEGAL_TRANSITION" in cli("abandon", last["build_id"], check=2).stderr


@pytest.mark.both_stores
@pytest.mark.rule("K-13", "I-1")
def test_two_runs_at_once_are_a_conflict_and_the_second_changes_nothing(cli):
    witness = slow(cli, "3600.13")
    first = start(cli, "run", "slow.toml")
    until(witness.exists)
    second = cli("run", "plan.toml", check=4)
    assert "LOCK_CONFLICT" in second.stderr
    first.send_signal(signal.SIGINT)
    first.communicate()
    assert first.returncode == 130
    assert len(json.loads(cli("list", "--json").stdout)) == 1


@pytest.mark.both_stores
@pytest.mark.rule("L-24", "B-14")
@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_ends_cleanly_and_says_how_to_resume(cli, times):
    witness = slow(cli, "1000.31")
    process = start(cli, "run", "slow.toml")
    until(witness.exists)
    for _ in range(times):
        process.send_signal(signal.SIGINT)
        time.sleep(0.05)
    _, told = process.communicate(timeout=600)
    assert process.returncode == 130
    assert "STOPPED (as asked; it can be resumed)" in told
    command = next(line for line in told.splitlines() if line.startswith("next: ")).removeprefix(
        "next: onceward "
    )
    assert until(lambda: not processes_with("sleep 1000.31"))
    slow(cli, "0.01")
    assert "what it runs changed" in cli(*command.split(), check=2).stderr
    assert cli(*command.split(), "--fork", check=0)


@pytest.mark.both_stores
@pytest.mark.rule("C-40", "B-1", "K-13")
@pytest.mark.parametrize("verb", ["cancel", "abandon"])
def test_a_running_build_is_given_up_from_another_terminal(cli, verb):
    witness = slow(cli, "1000.32")
    process = start(cli, "run", "slow.toml", "--json")
    until(witness.exists)
    (build,) = json.loads(cli("list", "--json").stdout)
    cli(verb, build["build_id"], check=0)
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 1
    assert json.loads(out.splitlines()[-1])["state"] == "ABANDONED"
    assert until(lambda: not processes_with("sleep 1000.32"))
    children = json.loads(cli("status", build["build_id"], "--children", "--json").stdout)[
        "children"
    ]
    assert {c["reason"] for c in children} == {"cancelled"}


@pytest.mark.both_stores
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
    process.communicate(timeout=600)
    assert process.returncode == 0


@pytest.mark.rule("B-15", "L-23")
def test_an_approval_given_after_a_crash_counts_for_the_resume(cli):
    (cli.folder / "plan.toml").write_text('name = "x"\n[[stage]]\nname = "look"\napprove = "ok?"\n')
    process = start(cli, "run", "plan.toml", "--json")
    line = until(lambda: json.loads(process.stdout.readline() or "{}").get("digest"))
    process.kill()
    process.communicate()
    (build,) = json.loads(cli("list", "--json").stdout)
    assert (
        "look:main approved"
        in cli("approve", build["build_id"], "look", "--digest", line, check=0).stdout
    )
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
        [sys.executable, "cat.py"],
        cwd=cli.folder,
        env=cli.env,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "42 0.03\n"
    assert "6 steps" in cli("run", "cat.py", check=0).stderr


@pytest.mark.rule("I-1", "C-8")
def test_logs_of_a_step_while_it_runs_and_after(cli):
    text = SLOW.replace(
        "sleep SECONDS",
        "echo said $ONCEWARD_TARGET; echo oops >&2; while [ ! -e go ]; do sleep 0.05; done",
    )
    (cli.folder / "slow.toml").write_text(text)
    process = start(cli, "run", "slow.toml")
    until(lambda: "said a" in cli("logs", "wait:a").stdout)
    follower = start(cli, "logs", "wait:a", "--follow")
    (cli.folder / "go").touch()
    assert process.wait(600) == 0
    process.communicate()
    out, err = follower.communicate(timeout=600)
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


@pytest.mark.rule("B-15", "K-6")
def test_one_content_to_approve_is_told_of_once_however_often_it_is_resumed(cli):
    (cli.folder / "onceward.toml").write_text(
        '[notify]\ncommand = ["sh", "-c", "cat >> notices"]\n'
    )
    (cli.folder / "ask.toml").write_text(
        'name = "asks"\n[[stage]]\nname = "draft"\nrun = ["true"]\n'
        '[[stage]]\nname = "agree"\nneeds = ["draft"]\napprove = "Is it good? \\u001b[31mred"\n'
    )
    notices = cli.folder / "notices"
    for words in (["run", "ask.toml"], ["resume"], ["resume"]):
        process = start(cli, *words)
        for line in process.stderr:
            if "onceward approve" in line:
                break
        until(notices.exists)
        process.kill()
        process.communicate()
    (notice,) = [json.loads(line) for line in notices.read_text().splitlines()]
    assert "Is it good?" in notice["text"] and notice["text"].isprintable()
    build = json.loads(cli("list", "--json", check=0).stdout)[0]["build_id"]
    assert cli("events", f"session:{build}", check=0).stdout.count("APPROVAL_WANTED") == 1


@pytest.mark.rule("I-1")
@pytest.mark.parametrize(("plan", "status"), [("fails", 1), ("pauses", 3), ("works", 0)])
@pytest.mark.one_in(3)
def test_what_became_of_a_build_counts_whoever_stopped_listening(cli, plan, status):
    run = {
        "fails": '["false"]',
        "pauses": '["onceward", "report", "--usd", "2.00"]',
        "works": '["true"]',
    }[plan]
    (cli.folder / "p.toml").write_text(
        f'name = "p"\n[budget]\nusd = "1.00"\n[[stage]]\nname = "s"\nenv = ["PATH"]\nrun = {run}\n'
    )
    for listen in ("2>&1 | true", "2>&1 | head -1", "2>&1 >/dev/null | head -1", ">&- 2>&-"):
        shell = f"set -o pipefail; {cli_words()} run p.toml --no-reuse {listen} > /dev/null"
        done = subprocess.run(["bash", "-c", shell], cwd=cli.folder, env=cli.env, timeout=600)
        assert done.returncode == status, listen


def cli_words():
    return str(BIN / "onceward")


@pytest.mark.both_stores
@pytest.mark.rule("I-1", "L-20")
def test_of_several_who_begin_in_a_fresh_folder_one_runs_and_the_others_are_told_so(cli):
    (cli.folder / "waits.toml").write_text(
        'name = "p"\n[[stage]]\nname = "s"\nrun = ["sh", "-c", "until [ -e go ]; do sleep 0.05; done"]\n'
    )
    started = [start(cli, "run", "waits.toml") for _ in range(4)]
    # Whoever runs goes on until the others were told, however late they come.
    until(lambda: sum(process.poll() is not None for process in started) == 3)
    (cli.folder / "go").touch()
    ended = [(process.wait(600), process.communicate()[1]) for process in started]
    assert sorted(code for code, _ in ended) == [0, 4, 4, 4], ended
    assert all("LOCK_CONFLICT" in told for code, told in ended if code == 4)


def test_a_note_that_is_too_long_costs_only_itself(cli):
    (cli.folder / "p.toml").write_text(
        'name = "p"\n[[stage]]\nname = "s"\nenv = ["PATH"]\n'
        'run = ["sh", "-c", "onceward report --note $(head -c 100000 /dev/zero | tr \\"\\\\0\\" x); echo exit $?"]\n'
    )
    cli("run", "p.toml", check=0)
    assert cli("logs", "s", check=0).stdout == "exit 2\n"


@pytest.mark.rule("B-14")
def test_logs_that_are_followed_end_with_a_kernel_that_was_killed(cli):
    (cli.folder / "loud.toml").write_text(
        'name = "loud"\n[[stage]]\nname = "wait"\ntargets = ["a"]\n'
        'run = ["sh", "-c", "echo here; touch begun; sleep 60"]\n'
    )
    process = start(cli, "run", "loud.toml")
    until((cli.folder / "begun").exists)
    follower = start(cli, "logs", "wait:a", "--follow")
    assert follower.stdout.readline() == "here\n"
    process.kill()
    process.communicate()
    assert follower.wait(600) == 0
    follower.communicate()
    assert "its kernel is gone" in cli("explain", "wait:a", check=0).stdout
    assert (
        "seconds" not in json.loads(cli("status", "latest", "--json", check=0).stdout)["steps"][0]
    )


@pytest.mark.rule("I-1", "B-7")
def test_what_to_type_next_means_the_same_steps_and_config(cli):
    (cli.folder / "p.toml").write_text(
        'name = "p"\n[config]\nk = 1\n[[stage]]\nname = "s"\ntargets = ["a b", "c"]\nrun = ["false"]\n'
    )
    done = cli("run", "p.toml", "--only", "s:a b", "--set", "k=3", check=1)
    assert "next: onceward run p.toml --only 's:a b' --set k=3" in done.stderr
    refused = cli("resume", "latest", check=2)
    assert "--only 's:a b' --set k=3" in refused.stderr
    cli("abandon", "latest", check=2)


@pytest.mark.rule("B-8", "I-1")
def test_a_dry_run_refuses_what_a_run_would_and_sees_what_the_workspace_has_left(cli):
    (cli.folder / "onceward.toml").write_text('[budget]\nusd = "0.35"\n')
    cli("run", "plan.toml", check=0)
    told = cli("run", "plan.toml", "--no-reuse", "--dry-run", check=0).stdout
    assert "estimated usd: 0.30 of the 0.05 left in the budget; it would pause" in told
    (cli.folder / "p.toml").write_text(
        'name = "p"\n[[stage]]\nname = "s"\nenv = ["NOT_THERE"]\nrun = ["true"]\n'
    )
    assert "NOT_THERE" in cli("run", "p.toml", "--dry-run", check=2).stderr
    (cli.folder / "ask.toml").write_text(
        'name = "ask"\n[[stage]]\nname = "s"\non_crash = "ask"\nrun = ["sh", "-c", "touch begun; sleep 60"]\n'
    )
    process = start(cli, "run", "ask.toml")
    until((cli.folder / "begun").exists)
    process.kill()
    process.communicate()
    cli("outbox", "flush")
    assert "s:main" in cli("run", "ask.toml", "--dry-run", check=2).stderr
    told = cli("explain", "latest", check=0).stdout
    assert "--rerun s:main" in told and "--accept s:main=FILE" in told
    assert "run   s:main" in cli("resume", "latest", "--dry-run", check=0).stdout
    cli("abandon", "latest", check=0)
    assert "--rerun" not in cli("explain", "latest", check=0).stdout


CHANGING = """
import importlib
from onceward import Plan
plan = Plan("changing", budget={"usd": "0.03"})

@plan.stage(targets=["a", "b"])
def work(task):
    task.spend(usd="0.02")
    return importlib.import_module(task.config.get("module", "json")).dumps([VALUE])
"""


@pytest.mark.rule("B-11", "B-3")
def test_changed_code_is_named_when_a_build_goes_on_and_refused_on_request(cli):
    file = cli.folder / "plan.py"
    file.write_text(CHANGING.replace("VALUE", "1"))
    said = "work calls import_module: what it brings in is not known"
    assert f"code not tracked in work: {said}" in cli("run", "plan.py", "--dry-run", check=0).stdout
    told = json.loads(cli("run", "plan.py", "--dry-run", "--json", check=0).stdout)
    assert told["unfollowed"] == {"work": [said]}
    paused = cli("run", "plan.py", "--json", "--jobs", "1", check=3).stdout.splitlines()[-1]
    token = json.loads(paused)["confirmation_token"]
    assert f"not followed: {said}" in cli("why", "work:a", check=0).stdout
    file.write_text(CHANGING.replace("VALUE", "2"))
    more = ("resume", "--token", token, "--budget", "usd=1.00")
    refused = cli(*more, "--strict-code", check=2).stderr
    assert "work: its code changed; 1 step done before is kept" in refused and "--fork" in refused
    foreseen = cli("resume", "--dry-run", check=0).stdout
    assert "skip  work:a" in foreseen and "its code changed since, its result is kept" in foreseen
    resumed = cli(*more, check=0).stderr
    assert "1 step done before is kept, 1 step still to run uses the new code" in resumed
    assert "its code changed after it was done" in cli("why", "work:a", check=0).stdout
    assert "went on with changed code" in cli("why", "work:b", check=0).stdout
