"""Code and environments that change between runs: what is kept, what is named, and what runs again."""

from __future__ import annotations

import importlib
import sys

import pytest

from helpers import assert_sound
from installed import install
from onceward.artifacts.outputs import read_back
from onceward.builds.explain import why
from onceward.builds.flow import Flow
from onceward.builds.lifecycle import Offer
from onceward.builds.plan_file import load
from onceward.code.version_1 import version_of
from onceward.core import faults
from onceward.errors import InvalidResumeState
from onceward.store.tables.builds import Builds
from onceward.store.tables.checkpoints import checkpoints_of

PLAN = """
from pathlib import Path
from onceward import Plan
from onceward.core import faults
HEAD
plan = Plan("p")

@plan.stage(targets=["a", "b", "c"])
def first(task):
    with (Path(__file__).parent / "witness").open("a") as file:
        file.write(f"VALUE:{task.target}\\n")
    if task.target == (Path(__file__).parent / "dies_at").read_text():
        faults.arm("commit.before", 1, faults.crash)
    return BODY

@plan.stage(needs=first)
def second(task):
    return 1
"""


class Bench:
    """A plan in a file whose code is changed."""

    def __init__(self, site):
        self.site, self.file = site, site.folder / "plan.py"
        self.rewritten = False
        """Whether a test wrote into the record, as an older version would have."""
        self.dies_at("nothing")

    def dies_at(self, target):
        (self.site.folder / "dies_at").write_text(target)

    def plan(self, value="old", body="1", head=""):
        text = PLAN.replace("VALUE", value).replace("BODY", body).replace("HEAD", head)
        self.file.write_text(text)
        return load(self.file).plan

    def crash(self, **words):
        """Two of the three steps are done, then the kernel dies."""
        plan = self.plan(**words)
        self.dying("c", lambda: self.site.run(plan, jobs=1))
        assert self.finished() == ["first:a", "first:b"]
        self.site.lines()
        return self.site.build_id, self.finished()

    def dying(self, target, act):
        """Until the kernel dies with the end of a step."""
        self.dies_at(target)
        try:
            with pytest.raises(faults.SimulatedCrash):
                act()
        finally:
            faults.disarm()
        self.dies_at("nothing")
        self.site.workspace.kernel().close()

    def finished(self):
        done = self.checkpoints().items()
        return [step for step, checkpoint in done if checkpoint.status == "SUCCESS"]

    def why(self, step):
        with self.site.workspace.reading() as store:
            with store.read() as rows:
                build = Builds(rows).get(self.site.build_id)
            return why(store, build, step).because

    def checkpoints(self):
        with self.site.workspace.reading() as store, store.read() as rows:
            return {f"{c.stage}:{c.target}": c for c in checkpoints_of(rows, self.site.build_id)}


@pytest.fixture
def bench(site, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site-packages"), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    bench = Bench(site)
    yield bench
    forget()
    if not bench.rewritten:
        with site.workspace.reading() as store, store.read() as rows:
            assert_sound(rows)


def forget():
    sys.modules.pop("acme", None)
    importlib.invalidate_caches()


@pytest.mark.rule("B-11")
@pytest.mark.guarantee("G7")
def test_changed_code_does_not_undo_what_is_done_and_is_used_for_the_rest(bench):
    build, done = bench.crash()
    outcome = bench.site.resume(bench.plan("new"), build)
    assert outcome["state"] == "SUCCESS" and outcome["build_id"] == build
    assert {line.split(":")[0] for line in bench.site.lines()} == {"new"}
    assert outcome["steps"]["skipped"] == len(done)
    resumed = [e for e in bench.site.events() if e["event"] == "BUILD_RESUMED"][-1]
    (said,) = resumed["detail"]["changed"]
    assert said.startswith("first: its code changed") and "kept" in said and "new code" in said
    assert any("its code changed after" in line for line in bench.why(done[0]))
    assert any("changed code" in line for line in bench.why("first:c"))
    versions = {step: c.code_version for step, c in bench.checkpoints().items()}
    assert versions[done[0]] != versions["first:c"]


@pytest.mark.rule("B-11")
def test_code_that_changes_again_undoes_nothing_either(bench):
    plan = bench.plan()
    bench.dying("b", lambda: bench.site.run(plan, jobs=1))
    build, plan = bench.site.build_id, bench.plan("newer")
    bench.dying("c", lambda: bench.site.resume(plan, build, jobs=1))
    assert bench.finished() == ["first:a", "first:b"]
    bench.site.lines()
    outcome = bench.site.resume(bench.plan("newest"), build)
    assert outcome["state"] == "SUCCESS" and outcome["steps"]["skipped"] == 2
    assert bench.site.lines() == ["newest:c"]
    assert len({c.code_version for s, c in bench.checkpoints().items() if "first" in s}) == 3


@pytest.mark.rule("B-11")
def test_strict_code_refuses_changed_code_and_changes_nothing(bench):
    build, _ = bench.crash()
    with pytest.raises(InvalidResumeState, match="first: its code changed") as refused:
        bench.site.resume(bench.plan("new"), build, Offer(strict_code=True))
    assert any("--fork" in (way.command or "") for way in refused.value.recovery)
    assert bench.site.status(build)["state"] == "CRASHED"
    assert bench.site.resume(bench.plan(), build, Offer(strict_code=True))["state"] == "SUCCESS"


@pytest.mark.rule("B-11")
def test_a_changed_plan_is_still_refused_and_a_fork_takes_the_new_code(bench):
    build, _ = bench.crash()
    text = bench.file.read_text()
    bench.file.write_text(text.replace('["a", "b", "c"]', '["a", "b", "c", "d"]'))
    with pytest.raises(InvalidResumeState, match="targets changed"):
        bench.site.resume(load(bench.file).plan, build)
    outcome = bench.site.resume(bench.plan("new"), build, Offer(fork=True))
    assert outcome["build_id"] != build and outcome["steps"]["executed"] == 6
    assert outcome["steps"].get("reused", 0) == 0


@pytest.mark.rule("B-6", "B-3")
def test_another_build_takes_results_over_from_the_same_environment_only(bench, tmp_path):
    site = tmp_path / "site-packages"
    install(site, "acme", "1.0", init="N = 1\n")
    head, body = "import acme", "acme.N"
    assert bench.site.run(bench.plan(head=head, body=body))["steps"]["executed"] == 6
    forget()
    assert bench.site.run(bench.plan(head=head, body=body))["steps"]["reused"] == 6
    install(site, "acme", "2.0", init="N = 1\n")
    forget()
    outcome = bench.site.run(bench.plan(head=head, body=body))
    # What does not use it is reused: its own context and environment are what they were.
    assert outcome["steps"]["executed"] == 3 and outcome["steps"]["reused"] == 3
    assert bench.why("first:a") == ["acme 1.0 -> 2.0"]
    install(site, "acme", "1.0", init="N = 1\n")
    forget()
    assert bench.site.run(bench.plan(head=head, body=body))["steps"]["reused"] == 6


@pytest.mark.rule("B-4", "B-11", "B-3")
def test_within_a_build_another_environment_is_named_and_nothing_runs_again(bench, tmp_path):
    site = tmp_path / "site-packages"
    install(site, "acme", "1.0", init="N = 1\n")
    head, body = "import acme", "acme.N"
    build, done = bench.crash(head=head, body=body)
    install(site, "acme", "2.0", init="N = 1\n")
    forget()
    outcome = bench.site.resume(bench.plan(head=head, body=body), build, Offer(strict_code=True))
    assert outcome["state"] == "SUCCESS" and outcome["steps"]["skipped"] == len(done)
    resumed = [e for e in bench.site.events() if e["event"] == "BUILD_RESUMED"][-1]
    (said,) = resumed["detail"]["changed"]
    assert said.startswith("first: acme 1.0 -> 2.0") and "kept" in said


def recorded_by_the_first_algorithm(bench):
    """Make the store look as if the Onceward before had written it: no algorithm is named in it."""
    bench.rewritten = True
    resolved = load(bench.file)
    flow = Flow(resolved)
    made = bench.checkpoints()
    for step in range(len(resolved.steps)):
        checkpoint = made.get(resolved.steps.name(step))
        if checkpoint is not None and checkpoint.status == "SUCCESS":
            flow.keep(step, read_back(checkpoint.outputs))
    versions = {
        stage.name: version_of(stage.call, resolved.plan.folder) for stage in resolved.steps.stages
    }
    kernel = bench.site.workspace.kernel()

    def work(tx):
        for name, checkpoint in made.items():
            context = flow.context_hash(resolved.steps.named(name), versions[checkpoint.stage])
            tx.write(
                "UPDATE checkpoints SET context_hash = ?, code_version = NULL,"
                " environment_hash = NULL WHERE stage = ? AND target = ?",
                (context, checkpoint.stage, checkpoint.target),
            )
        body = resolved.body
        for stage in resolved.steps.stages:
            body = body.replace(stage.version, versions[stage.name])
        tx.write("UPDATE plans SET body = ?", (body,))

    kernel.store.write(work)
    kernel.close()


@pytest.mark.rule("B-3", "B-6")
def test_what_the_first_algorithm_recorded_is_judged_by_it(bench):
    assert bench.site.run(bench.plan())["steps"]["executed"] == 6
    recorded_by_the_first_algorithm(bench)
    assert bench.site.run(bench.plan())["steps"]["reused"] == 6
    assert bench.site.run(bench.plan("new"))["steps"]["executed"] == 3


@pytest.mark.rule("B-3", "B-11")
def test_a_build_that_the_first_algorithm_began_goes_on(bench):
    build, done = bench.crash()
    recorded_by_the_first_algorithm(bench)
    outcome = bench.site.resume(bench.plan(), build, Offer(strict_code=True))
    assert outcome["state"] == "SUCCESS" and outcome["steps"]["skipped"] == len(done)
