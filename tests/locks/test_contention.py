"""The contention campaign; `make contend` runs the long one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROCESSES, TARGETS, WANTED = (
    int(n) for n in os.environ.get("ONCEWARD_CONTENTION", "8 10 6000").split()
)


@pytest.mark.rule("L-1", "L-4", "L-5", "L-9")
@pytest.mark.guarantee("G8")
@pytest.mark.guarantee("G21")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("aside", ["unnamed", "named"])
def test_no_target_ever_has_two_holders_and_none_is_stuck(tmp_path, aside):
    seed = os.environ.get("ONCEWARD_SEED", "1")
    script = Path(__file__).with_name("contender.py")
    done = subprocess.run(
        [
            sys.executable,
            str(script),
            str(tmp_path / "locks"),
            str(PROCESSES),
            str(TARGETS),
            str(WANTED),
            seed,
            aside,
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    print(found)
    assert found["acquired"] >= WANTED
    assert found["killed"] > 5
    assert (found["double"], found["stuck"], found["left"]) == (0, 0, 0), found
