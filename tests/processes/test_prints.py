"""What Python steps print is shown as ever, and kept in the log of the step that printed it."""

from __future__ import annotations

import asyncio
import subprocess
import sys

from onceward import Plan
from onceward.kernel.logs import child_named, lines_of
from onceward.processes.spool import Spool


def logged(site, step):
    with site.workspace.artifacts() as kept:
        with kept.store.read() as rows:
            child_id = child_named(rows, site.build_id, step)
        spool = Spool(site.workspace.folder / "running")
        return b"".join(data for _, data in lines_of(kept, spool, child_id, follow=False)).decode()


def test_prints_are_kept_by_the_step_and_shown(site, capsys):
    plan = Plan("loud", folder=site.folder)

    @plan.stage(targets=["a", "b"])
    def work(task):
        print("hello", task.target)
        task.log("between")
        print("no line end", end="")

    @plan.stage(needs=work)
    async def later(task):
        print("first", task.target)
        await asyncio.sleep(0.05)
        print("second", task.target)

    before = sys.stdout
    assert site.run(plan)["state"] == "SUCCESS"
    assert sys.stdout is before
    assert logged(site, "work:a") == "hello a\nbetween\nno line end\n"
    assert logged(site, "later:b") == "first b\nsecond b\n"
    shown = capsys.readouterr().out
    assert shown.count("hello ") == 2 and "second b" in shown


def test_prints_of_a_step_that_fails_are_kept(site):
    plan = Plan("sad", folder=site.folder)

    @plan.stage
    def work(task):
        print("so far so good")
        raise ValueError("no")

    site.run(plan)
    assert "so far so good\n" in logged(site, "work")


def test_secrets_in_prints_are_redacted(site, monkeypatch):
    monkeypatch.setenv("API_KEY", "sk-0123456789")
    plan = Plan("secret", folder=site.folder)
    plan.stage(name="work", secrets=["API_KEY"])(lambda task: print("key sk-0123456789"))
    site.run(plan)
    assert "sk-0123456789" not in logged(site, "work") and "key " in logged(site, "work")


SCRIPT = """
from onceward import Plan

plan = Plan("costly", budget={"usd": "0.01"})


@plan.stage(targets=["a", "b"])
def pay(task):
    task.spend(usd="0.01")


if __name__ == "__main__":
    plan.run()
"""


def test_a_script_whose_build_stops_exits_as_the_command_would(tmp_path):
    (tmp_path / "plan.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "plan.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 3 and "Traceback" not in done.stderr
    assert "next: onceward resume" in done.stderr and len(done.stdout.strip()) == 64
    (tmp_path / "plan.py").write_text(
        SCRIPT.replace('task.spend(usd="0.01")', "raise ValueError('no')")
    )
    done = subprocess.run(
        [sys.executable, "plan.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    # Whoever asked for quiet is told by the exception.
    (tmp_path / "plan.py").write_text(
        SCRIPT.replace("plan.run()", "plan.run(quiet=True, reuse=False)")
    )
    done = subprocess.run(
        [sys.executable, "plan.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1 and "BuildStopped" in done.stderr
