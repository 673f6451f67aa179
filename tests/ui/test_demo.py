"""The examples, each run as its reader would."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from typing_in import Typed, start

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def example(tmp_path):
    """An example copied into a folder of its own."""

    def copied(name, store_url="sqlite"):
        shutil.copytree(
            EXAMPLES / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__")
        )
        return Typed(tmp_path / name, store_url)

    return copied


@pytest.mark.thorough
@pytest.mark.rule("B-4", "B-5", "B-6", "L-23")
@pytest.mark.guarantee("G7")
def test_the_demo_pays_for_every_step_once_through_a_kill(tmp_path, example):
    environment = {**os.environ, "ONCEWARD_DEMO": str(tmp_path / "demo")}
    done = subprocess.run(
        [sys.executable, EXAMPLES / "demo.py"],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert "kill -9" in done.stdout and "8 skipped" in done.stdout and "17 reused" in done.stdout
    # The model charges every call, also those under way at the kill: only recorded answers are safe.
    for questions in (16, 18):
        said = re.search(rf"(\d+) calls for {questions} questions", done.stdout)
        assert said is not None and questions <= int(said[1]) <= questions + 2
    assert done.stdout.count("recorded answers paid for twice: 0 of ") == 2
    assert "input texts/dunes.md changed" in done.stdout
    assert (
        "every file is what the manifest says" in done.stdout and done.stdout.count("sound: ") == 2
    )
    assert "\x1b" not in done.stdout
    # The same texts, summarised without a kill, give the same bytes and the same manifest.
    cli = example("documents")
    shutil.copy(tmp_path / "demo" / "texts" / "dunes.md", cli.folder / "texts")
    cli("run", "plan.py", check=0)
    cli("output", "--to", "handed-on", check=0)
    for name in ("manifest.json", "SHA256SUMS"):
        assert (cli.folder / "handed-on" / name).read_bytes() == (
            tmp_path / "demo" / "handed-on" / name
        ).read_bytes()


@pytest.mark.rule("B-2", "B-13")
def test_the_shell_example_counts_words(example):
    cli = example("shell")
    done = cli("run", "plan.toml", check=0)
    assert "4 steps: 4 run; paid 0.00 usd and 251 tokens" in done.stderr
    assert cli("logs", "top", check=0).stdout == "4 them\n3 angle\n2 city\n2 dance\n2 dune\n"
    assert "2 dune" not in cli("run", "plan.toml", "--set", "top=1", check=0).stdout
    assert cli("logs", "top", check=0).stdout == "4 them\n"
    assert cli("why", "top", check=0).stdout.splitlines()[1].endswith("config.top: 5 -> 1")


@pytest.mark.rule("B-9", "B-10", "B-15")
def test_the_code_generation_pauses_and_then_asks(example, store_url):
    cli = example("codegen", store_url)
    paused = cli("run", "plan.py", check=3)
    # A step asks for more than is left, or, where the first were done before it began, is known to cost more.
    assert re.search(
        r"usd is at 0.0[69] of 0.10, and (0.03 more was asked|\S+ is estimated at 0.03)",
        paused.stderr,
    ), paused.stderr
    token = paused.stdout.strip()
    # What it says to type next lasts to the end, as far as can be told.
    resume = (
        re.search(r"next: onceward (resume .*)", paused.stderr)[1].replace("TOKEN", token).split()
    )
    assert resume[-1] == "usd=0.15"
    process = start(cli, *resume)
    told = []
    for line in process.stderr:
        told.append(line)
        if "onceward approve" in line:
            break
    assert "Publish these functions?" in told[-3]
    shown = cli(*told[-2].split()[1:], check=0).stdout
    assert shown.count("to be approved: check:specs/") == 5
    cli(*told[-1].split()[1:], check=0)
    assert process.wait(600) == 0
    process.stdout.close()
    process.stderr.close()
    cli("output", "--to", "out", check=0)
    made = json.loads((cli.folder / "out" / "manifest.json").read_text())
    (functions,) = [file["path"] for file in made["files"] if file["stage"] == "publish"]
    assert "def clamp(value, low, high):" in next((cli.folder / "out").rglob(functions)).read_text()


@pytest.mark.thorough
@pytest.mark.rule("C-8", "C-20", "C-30")
def test_the_agents_end_as_told():
    done = subprocess.run(
        [sys.executable, EXAMPLES / "agents.py"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "budget_exceeded: tokens is at 700 of 1000, 700 more requested" in done.stdout
    assert "agent: no budget left, stopping" in done.stdout
    assert "terminated_on_restart" in done.stdout
    assert "chains whole, states agree" in done.stdout


@pytest.mark.thorough
@pytest.mark.rule("H-2", "H-5", "H-6")
def test_an_agent_edits_a_repository_and_its_first_try_is_taken_back():
    demo = EXAMPLES / "repository" / "demo.py"
    done = subprocess.run(
        [sys.executable, demo], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert "its check failed: AssertionError: twenty percent off" in done.stdout
    assert (
        done.stdout.count("files it had changed are restored") == 1
        and done.stdout.count("it is verified_complete") == 1
    )
    assert done.stdout.count("sound: ") == 2
