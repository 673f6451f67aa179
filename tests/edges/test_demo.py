from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.rule("B-4", "B-6", "B-9", "L-23")
def test_the_demo_pays_for_every_step_once_through_a_kill_and_a_pause():
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "builds.py")], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert "kill -9" in done.stdout and "4 skipped" in done.stdout and "13 reused" in done.stdout
    assert "BUDGET_PAUSE (budget_precheck_block)" in done.stdout
    assert "chains whole, states agree" in done.stdout
    assert "\x1b" not in done.stdout


@pytest.mark.rule("C-8", "C-20", "C-30")
def test_the_agents_of_the_demo_end_as_told():
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "agents.py")], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "budget_exceeded: tokens is at 700 of 1000, 700 more asked" in done.stdout
    assert "agent: no budget left, stopping" in done.stdout
    assert "terminated_on_restart" in done.stdout
    assert "chains whole, states agree" in done.stdout
