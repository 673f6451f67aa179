"""The explorer: nothing wrong in what is right, a planted bug found soon, made small, and found again from its file."""

from __future__ import annotations

import json
import re

import pytest
from explore import schedule, shrunk, violation

from mutants import MUTANTS, ROOT, planted, python
from onceward.gate import script

EXPLORE = ROOT / "tools" / "explore.py"


@pytest.mark.rule("R-2", "C-20", "C-30", "C-40")
@pytest.mark.guarantee("G1", "G4", "G9")
def test_schedules_at_random_go_as_the_model_says(tmp_path):
    done = python(None, EXPLORE, "--count", 150, "--seed", 7, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert re.fullmatch(
        r"150 schedules, [\d,]+ lines, no violation; \d+ schedules a second\n", done.stdout
    )


@pytest.mark.thorough
@pytest.mark.rule("R-5")
@pytest.mark.parametrize(
    "name",
    [
        "dispatch reordered",
        "orphan dispatched again",
        "check split from increment",
        "cancel after the end",
    ],
)
def test_a_planted_bug_is_found_made_small_and_found_again(tmp_path, name):
    bug = MUTANTS[name]
    source = planted(tmp_path, bug.symbol, bug.old, bug.new)
    kept = tmp_path / "kept.json"
    done = python(source, EXPLORE, "--count", 2000, "--seed", 3, "--out", kept, cwd=tmp_path)
    assert done.returncode == 1 and "goes wrong" in done.stdout, done.stdout + done.stderr
    small = json.loads(kept.read_bytes())
    assert len(small["script"]) <= 14, small["script"]
    assert python(source, EXPLORE, "--again", kept, cwd=tmp_path).returncode == 1
    assert python(None, EXPLORE, "--again", kept, cwd=tmp_path).stdout == "nothing goes wrong\n"


def test_a_schedule_is_the_same_for_its_seed_and_no_other():
    assert schedule("1:5") == schedule("1:5") != schedule("1:6")
    kinds = {type(op) for number in range(60) for op in schedule(f"1:{number}")}
    assert kinds >= {
        script.Spawn,
        script.Lease,
        script.Start,
        script.Finish,
        script.Debit,
        script.Cancel,
        script.Crash,
    }
    assert kinds >= {script.Recover, script.Race, script.Wait}


def test_what_is_right_is_not_made_small():
    ops = schedule("1:1")
    assert violation(ops, "1:1") == ""
    assert shrunk(ops, "1:1", 0) == ops
