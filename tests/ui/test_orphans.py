"""What a kernel that was killed left ACTIVE is CRASHED as soon as the next kernel stands (L-23, B-1)."""

from __future__ import annotations

import json
import signal

import pytest

from typing_in import Typed, start, until

PLAN = """
name = "orphaned"
[[stage]]
name = "first"
run = ["sh", "-c", "echo done > $ONCEWARD_OUT/o"]
[[stage]]
name = "second"
needs = ["first"]
run = ["sh", "-c", "touch begun; test -e free || sleep 600"]
"""


@pytest.fixture
def cli(store_url, tmp_path):
    """A folder in which a run was killed with -9 while its second step was running."""
    typed = Typed(tmp_path, store_url)
    (tmp_path / "plan.toml").write_text(PLAN)
    process = start(typed, "run", "plan.toml")
    until((tmp_path / "begun").exists, 100)
    process.kill()
    process.communicate()
    return typed


def build(cli):
    (found,) = json.loads(cli("list", "--json", check=0).stdout)
    return found


def crashes(cli):
    """How and why the build was marked, by whom."""
    lines = cli(
        "events", f"session:{build(cli)['build_id']}", "--json", check=0
    ).stdout.splitlines()
    events = [json.loads(line) for line in lines]
    return [
        (event["detail"]["from"], event["detail"]["to"], event["detail"]["reason"])
        for event in events
        if event["event"] == "BUILD_CRASHED"
    ]


SWEPT = [("ACTIVE", "CRASHED", "orphaned_at_startup")]


@pytest.mark.both_stores
@pytest.mark.rule("L-23", "B-1", "K-13")
@pytest.mark.guarantee("G7")
def test_a_kernel_marks_what_its_dead_predecessor_left_active_when_it_starts(cli):
    """At its start, not at its end: a kernel that gives the lock back marks what it leaves for another reason."""
    assert crashes(cli) == [], "nobody has been the kernel since"
    server = start(cli, "serve", "--port", "0", "--json")
    try:
        assert server.stdout.readline(), server.communicate()[1]
        assert (build(cli)["state"], crashes(cli)) == ("CRASHED", SWEPT)
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=600)
    assert crashes(cli) == SWEPT


@pytest.mark.both_stores
@pytest.mark.rule("L-23", "B-1", "B-11")
def test_a_command_that_becomes_the_kernel_sweeps_first_and_the_build_can_be_resumed(cli):
    cli("outbox", "flush", check=0)
    assert (build(cli)["state"], crashes(cli)) == ("CRASHED", SWEPT)
    (cli.folder / "free").touch()
    done = cli("resume", "latest", "--json", check=0)
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["state"] == "SUCCESS"
    assert (result["steps"]["skipped"], result["steps"]["executed"]) == (1, 1)
