"""The gate fails when it should: each planted bug closes its own metric, for its own reason, in time (R-5)."""

from __future__ import annotations

import json
import os

import pytest

from mutants import BUDGET, MANIFEST, MUTANTS, ORPHAN, SCHEDULER, onceward, planted

FIRST = {mutant.metric: name for name, mutant in reversed(MUTANTS.items())}
"""One for each metric; all of them by `make mutants`."""


@pytest.mark.rule("R-5", "R-2")
@pytest.mark.guarantee("G6")
@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", MUTANTS if os.environ.get("ONCEWARD_MUTANTS") else FIRST.values())
def test_a_planted_bug_closes_its_own_metric_for_its_own_reason(tmp_path, name):
    mutant = MUTANTS[name]
    source = planted(tmp_path, mutant.symbol, mutant.old, mutant.new)
    done = onceward(source, "gate", "run", MANIFEST, "--json", cwd=tmp_path)
    assert done.returncode == 1, f"it survived: {done.stderr}"
    found = json.loads(done.stdout)
    low = [metric for metric, value in found["metrics"].items() if value < 100.0]
    failed = {
        one["fixture"]: (one["reason"], one["where"])
        for one in found["fixtures"]
        if not one["passed"]
    }
    assert low == [mutant.metric], failed
    assert {reason for reason, _ in failed.values()} <= {mutant.reason, *mutant.also}, failed
    assert any(
        reason == mutant.reason and mutant.where in where for reason, where in failed.values()
    ), failed


@pytest.mark.rule("R-5")
def test_every_metric_has_its_mutants():
    for metric in (SCHEDULER, ORPHAN, BUDGET):
        assert sum(mutant.metric == metric for mutant in MUTANTS.values()) >= 4


@pytest.mark.rule("R-2")
def test_a_clock_that_speaks_the_local_zone_fails_everything(tmp_path):
    source = planted(
        tmp_path,
        "_to_the_second",
        "moment = time.gmtime(seconds)",
        "moment = time.localtime(seconds)",
    )
    found = json.loads(onceward(source, "gate", "run", MANIFEST, "--json", cwd=tmp_path).stdout)
    assert set(found["metrics"].values()) == {0.0}
    assert {one["reason"] for one in found["fixtures"]} <= {"runs_disagree", "did_not_end"}
