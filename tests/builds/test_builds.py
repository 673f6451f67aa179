"""Builds: plan, run, crash, resume, on both stores, with real children and real files."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import os
import threading
import time
from pathlib import Path

import pytest

from helpers import assert_sound, fail_store, orphan_lock
from onceward import BudgetExceeded, NetworkError, Plan
from onceward.artifacts.views import artifact_list
from onceward.builds import lifecycle as builds
from onceward.builds.lifecycle import Offer
from onceward.builds.run import BuildRun, run_build
from onceward.core import faults
from onceward.core.sources import LiveSources
from onceward.core.steps import Output
from onceward.core.views import document
from onceward.dispatch.budget import Estimated
from onceward.dispatch.late import LateBox
from onceward.errors import InvalidConfig, InvalidResumeState, LockLost, NotFound, StorageError
from onceward.plan import Result
from onceward.store.tables.checkpoints import checkpoints_of
from onceward.store.tables.children import Tokens
from sites import prepared
from typing_in import on_its_own, until


def noted(task):
    """A step that says that it ran."""
    with (Path(task.config["witness"])).open("a") as file:
        file.write(f"{task.stage}:{task.target}\n")
    return f"{task.stage} {task.target} {task.config.get('depth', 0)}"


def joined(task):
    noted(task)
    found = task.inputs["extract"]
    return "+".join(sorted(found.values())) if hasattr(found, "values") else found


def three(site, targets=("a", "b", "c"), **words):
    """extract each, summarise each, then one report over all."""
    plan = Plan("three", folder=site.folder, config={"witness": str(site.witness)}, **words)
    plan.stage(name="extract", targets=list(targets))(noted)
    plan.stage(name="summarise", needs="extract")(joined)
    plan.stage(name="report", collect=["extract"], targets=["all"])(joined)
    return plan


def sound(site):
    store = site.workspace.store()
    try:
        with store.read() as rows:
            assert_sound(rows)
    finally:
        store.close()


@pytest.mark.rule("B-1", "B-2")
def test_a_plan_runs_in_order_and_every_move_is_recorded(site):
    outcome = site.run(three(site), jobs=1)
    assert outcome["state"] == "SUCCESS" and outcome["reason"] == "normal_completion"
    assert outcome["steps"] == {"total": 7, "executed": 7, "skipped": 0, "reused": 0, "failed": 0}
    assert site.lines() == [
        "extract:a",
        "extract:b",
        "extract:c",
        "summarise:a",
        "summarise:b",
        "summarise:c",
        "report:all",
    ]
    states = [e["detail"]["to"] for e in site.events() if e["event"].startswith("BUILD_")]
    assert states == ["PENDING", "ACTIVE", "SUCCESS"]
    sound(site)


@pytest.mark.rule("B-4")
def test_what_flows_between_steps_is_what_was_returned(site):
    site.run(three(site))
    steps = {f"{s['stage']}:{s['target']}": s for s in site.status()["steps"]}
    with site.workspace.artifacts() as kept:
        (out,) = steps["report:all"]["artifacts"]
        assert b"".join(kept.read(out["sha256"])) == b"extract a 0+extract b 0+extract c 0"
        assert (out["name"], out["kind"]) == ("value.txt", "text")


@pytest.mark.rule("B-4", "B-5", "B-7", "L-23")
@pytest.mark.guarantee("G7")
@pytest.mark.parametrize("nth", range(5, 12))
def test_a_crashed_build_resumes_and_no_finished_step_runs_again(site, nth):
    plan = three(site)
    build = site.crash(plan, nth=nth)
    before = site.lines()
    done = {name for name, status in site.steps(build).items() if status == "SUCCESS"}
    outcome = site.resume(plan, build)
    after = site.lines()
    assert outcome["state"] == "SUCCESS"
    assert not done & set(after)
    assert outcome["steps"]["skipped"] == len(done) and outcome["steps"]["executed"] == 7 - len(
        done
    )
    assert set(before) | set(after) == set(site.steps(build))
    digest = next(
        e["detail"]["outputs"] for e in site.events(build) if e["event"] == "BUILD_SUCCEEDED"
    )
    site.run(plan, reuse=False)
    assert (
        next(e["detail"]["outputs"] for e in site.events() if e["event"] == "BUILD_SUCCEEDED")
        == digest
    )
    sound(site)


@pytest.mark.rule("B-1", "B-7")
@pytest.mark.guarantee("G2")
def test_a_slot_that_cannot_record_never_makes_a_build_succeed(site, monkeypatch):
    """It fails just after the main thread has looked whether any did."""
    is_over = BuildRun._is_over

    def late(run):
        deadline = time.monotonic() + 10
        while (
            not run.children.quiet and run.children.failed is None and time.monotonic() < deadline
        ):
            time.sleep(0.005)
        return is_over(run)

    monkeypatch.setattr(BuildRun, "_is_over", late)
    build = site.crash(three(site), point="child.leased", nth=1)
    assert site.status(build)["state"] == "CRASHED"


@pytest.mark.rule("B-6")
def test_another_build_takes_over_what_fits_and_says_where_from(site):
    site.run(three(site))
    first = site.build_id
    site.lines()
    outcome = site.run(three(site))
    assert outcome["steps"]["reused"] == 7 and outcome["cost_usd"] == "0.00" and site.lines() == []
    assert {step["origin"] for step in site.status()["steps"]} == {first}
    assert sum(e["event"] == "STEP_REUSED" for e in site.events()) == 7
    assert site.run(three(site), reuse=False)["steps"]["executed"] == 7
    assert site.run(three(site, reuse=False))["steps"]["executed"] == 7


@pytest.mark.rule("B-3")
def test_changed_config_of_one_target_runs_that_target_and_what_flows_from_it(site):
    def plan(depth):
        made = Plan("three", folder=site.folder, config={"witness": str(site.witness)})
        made.stage(name="extract", targets=["a", "b"], target={"a": {"depth": depth}})(noted)
        made.stage(name="summarise", needs="extract")(joined)
        made.stage(name="same", needs="extract")(always_the_same)
        return made

    site.run(plan(1), jobs=1)
    site.lines()
    assert site.run(plan(2), jobs=1)["steps"] == {
        "total": 6,
        "executed": 3,
        "skipped": 0,
        "reused": 3,
        "failed": 0,
    }
    assert site.lines() == ["extract:a", "summarise:a", "same:a"]


def always_the_same(task):
    noted(task)
    return "always the same"


def shell_plan(
    site, script="cat $ONCEWARD_INPUTS/extract/$ONCEWARD_TARGET/out > $ONCEWARD_OUT/out"
):
    for name, text in (("in.txt", "hello"), ("other.txt", "x")):
        if not (site.folder / name).exists():
            (site.folder / name).write_text(text)
    return f"""
name = "shell"
[[stage]]
name = "extract"
targets = ["a", "b"]
run = ["sh", "-c", "echo $ONCEWARD_STAGE:$ONCEWARD_TARGET >> witness; cat in.txt | tr a-z A-Z > $ONCEWARD_OUT/out"]
inputs = ["in.txt"]
[[stage]]
name = "copy"
needs = ["extract"]
run = ["sh", "-c", "echo $ONCEWARD_STAGE:$ONCEWARD_TARGET >> witness; {script}"]
[[stage]]
name = "lone"
run = ["sh", "-c", "echo $ONCEWARD_STAGE:$ONCEWARD_TARGET >> witness; cat other.txt > $ONCEWARD_OUT/o"]
inputs = ["other.txt"]
"""


@pytest.mark.rule("B-3", "B-4")
def test_changed_content_runs_exactly_its_descendants_and_touching_runs_nothing(site):
    site.run(shell_plan(site), jobs=1)
    assert site.lines() == ["extract:a", "extract:b", "copy:a", "copy:b", "lone:main"]
    for file in site.folder.glob("*.txt"):
        os.utime(file, (1, 1))
    assert site.run(shell_plan(site))["steps"]["reused"] == 5
    (site.folder / "in.txt").write_text("changed")
    site.run(shell_plan(site), jobs=1)
    assert site.lines() == ["extract:a", "extract:b", "copy:a", "copy:b"]
    # Other bytes, the same result: what flows from it is untouched.
    (site.folder / "in.txt").write_text("CHANGED")
    site.run(shell_plan(site), jobs=1)
    assert site.lines() == ["extract:a", "extract:b"]


@pytest.mark.rule("B-4")
@pytest.mark.guarantee("G7")
@pytest.mark.parametrize("how", ["changed", "gone", "in its row"])
def test_a_damaged_artifact_is_found_and_its_step_runs_again(site, how):
    plan = three(site)
    build = site.crash(plan, nth=10)
    site.lines()
    done = next(s for s in site.status(build)["steps"] if s["status"] == "SUCCESS")
    digest = done["artifacts"][0]["sha256"]
    damage(site, digest, how)
    assert site.resume(plan, build)["state"] == "SUCCESS"
    assert f"{done['stage']}:{done['target']}" in site.lines()
    invalid = [
        e["detail"]["step"] for e in site.events(build) if e["event"] == "CHECKPOINT_INVALID"
    ]
    assert invalid == [f"{done['stage']}:{done['target']}"]
    with site.workspace.artifacts() as kept:
        assert kept.intact(digest)
    # Healed: another build can take it over.
    assert site.run(plan)["steps"]["reused"] == 7


def damage(site, digest, how):
    kernel = site.workspace.kernel()
    if how == "in its row":
        kernel.store.write(
            lambda tx: tx.write(
                "UPDATE artifacts SET data = ? WHERE sha256 = ?", (b"other", digest)
            )
        )
    else:
        kernel.artifacts.spill()
        path = kernel.artifacts.path_of(digest)
        path.unlink() if how == "gone" else path.write_bytes(b"x" * path.stat().st_size)
    kernel.close()


def costing(task):
    noted(task)
    task.spend(usd=task.config["usd"], settled=task.config.get("settled", False))
    return task.target


def spender(site, targets="abcdef", usd="0.10", budget="0.30", settled=False, **words):
    plan = Plan(
        "spender",
        folder=site.folder,
        budget={"usd": budget},
        config={"witness": str(site.witness), "usd": usd, "settled": settled},
    )
    plan.stage(name="pay", targets=list(targets), **words)(costing)
    return plan


@pytest.mark.rule("B-9", "B-10", "C-30")
@pytest.mark.guarantee("G15")
@pytest.mark.guarantee("G16")
def test_a_build_pauses_at_its_budget_and_goes_on_with_a_token_and_more_money(site):
    plan = spender(site, settled=True, budget="0.25", estimate={"usd": "0.01"})
    outcome = site.run(plan, jobs=1)
    assert (outcome["state"], outcome["reason"]) == ("BUDGET_PAUSE", "budget_exceeded")
    assert outcome["cost_usd"] == "0.30" and len(site.lines()) == 3
    token, build = outcome["confirmation_token"], site.build_id
    # What was in the last child is not paid again, and nothing that is refused burns the token.
    for offer, why in (
        (Offer(), "budget must be raised"),
        (Offer(limits={"usd_micros": 300_000}), "budget must be raised"),
        (Offer(limits={"usd_micros": 1_000_000}), "is missing"),
        (Offer(limits={"usd_micros": 1_000_000}, token="0" * 64), "not one of this workspace"),
    ):
        with pytest.raises(InvalidResumeState, match=why):
            site.resume(plan, build, offer)
    offer = Offer(limits={"usd_micros": 1_000_000}, token=token)
    assert site.resume(plan, build, offer)["state"] == "SUCCESS"
    # The step whose settled debit crossed the budget is paid for and kept (B-9).
    assert site.status(build)["cost_usd"] == "0.60"
    assert site.lines() == ["pay:d", "pay:e", "pay:f"]
    with pytest.raises(InvalidResumeState, match="only a CRASHED or BUDGET_PAUSE"):
        site.resume(plan, build, offer)
    sound(site)


@pytest.mark.rule("B-9")
def test_equal_to_the_budget_is_within_it(site):
    assert site.run(spender(site, targets="abc"), jobs=1)["state"] == "SUCCESS"
    assert (
        site.run(spender(site, targets="abc", settled=True), jobs=1, reuse=False)["state"]
        == "SUCCESS"
    )


@pytest.mark.rule("B-9")
def test_the_precheck_blocks_before_anything_is_spent(site):
    plan = spender(site, usd="0.10", budget="0.30", estimate={"usd": "0.34"})
    outcome = site.run(plan, jobs=1)
    assert (outcome["state"], outcome["reason"]) == ("BUDGET_PAUSE", "budget_precheck_block")
    assert outcome["cost_usd"] == "0.00" and site.lines() == []
    # A tenth above what remains is let through: 0.33 of 0.30.
    assert (
        site.run(spender(site, targets="a", estimate={"usd": "0.33"}), jobs=1)["state"] == "SUCCESS"
    )
    with pytest.raises(InvalidResumeState, match="the next step wants"):
        site.resume(plan, outcome["build_id"], Offer(token=outcome["confirmation_token"]))
    more = Offer(token=outcome["confirmation_token"], limits={"usd_micros": 2_000_000})
    assert site.resume(plan, outcome["build_id"], more)["state"] == "SUCCESS"


@pytest.mark.rule("B-9")
def test_without_an_estimate_the_median_of_what_was_recorded_counts(site):
    assert site.run(spender(site, budget="1.00"), jobs=1)["state"] == "SUCCESS"
    outcome = site.run(spender(site, budget="0.05"), jobs=1, reuse=False)
    assert (outcome["state"], outcome["reason"]) == ("BUDGET_PAUSE", "budget_precheck_block")
    assert outcome["cost_usd"] == "0.00" and "estimated at 0.10" in outcome["why"]


@pytest.mark.rule("B-9", "C-30")
def test_a_child_without_room_pauses_the_build_and_its_step_runs_again(site):
    plan = spender(site, targets="abc", budget="0.25", estimate={"usd": "0.00"})
    outcome = site.run(plan, jobs=1)
    assert (outcome["state"], outcome["reason"]) == ("BUDGET_PAUSE", "budget_exceeded")
    assert outcome["cost_usd"] == "0.20" and site.lines() == ["pay:a", "pay:b", "pay:c"]
    assert site.steps() == {"pay:a": "SUCCESS", "pay:b": "SUCCESS", "pay:c": "waiting"}
    offer = Offer(token=outcome["confirmation_token"], limits={"usd_micros": 300_000})
    assert site.resume(plan, outcome["build_id"], offer)["state"] == "SUCCESS"
    assert site.lines() == ["pay:c"] and site.status()["cost_usd"] == "0.30"


@pytest.mark.rule("B-10")
@pytest.mark.guarantee("G16")
def test_a_token_is_for_one_pause_of_one_build_for_as_long_as_the_settings_say(site, store_url):
    plan = spender(site, budget="0.05", estimate={"usd": "1.00"})
    first, second = (site.run(plan, jobs=1) for _ in range(2))
    limits = {"usd_micros": 9_000_000}
    with pytest.raises(InvalidResumeState, match="for something else"):
        site.resume(
            plan, first["build_id"], Offer(token=second["confirmation_token"], limits=limits)
        )
    (site.workspace.folder.parent / "onceward.toml").write_text(
        "[builds]\nconfirmation_seconds = 1\n"
    )
    site.workspace = type(site.workspace)(
        site.workspace.folder, store_url=store_url, principal="tester"
    )
    third = site.run(plan, jobs=1)
    assert third["confirmation_seconds"] == 1
    time.sleep(1.1)
    with pytest.raises(InvalidResumeState, match="has expired"):
        site.resume(
            plan, third["build_id"], Offer(token=third["confirmation_token"], limits=limits)
        )
    assert site.resume(
        plan, first["build_id"], Offer(token=first["confirmation_token"], limits=limits)
    )
    for folder in (site.workspace.folder, site.folder):
        for file in folder.rglob("*"):
            if file.is_file():
                assert second["confirmation_token"].encode() not in file.read_bytes()


@pytest.mark.rule("B-16")
def test_the_workspace_has_a_budget_of_its_own(site):
    (site.workspace.folder.parent / "onceward.toml").write_text('[budget]\nusd = "0.20"\n')
    site.workspace = type(site.workspace)(
        site.workspace.folder, store_url=site.workspace.settings.store.url, principal="tester"
    )
    cheap = {"usd": "0.01"}
    assert (
        site.run(spender(site, targets="a", budget="1.00", estimate=cheap), jobs=1)["state"]
        == "SUCCESS"
    )
    outcome = site.run(spender(site, targets="bcd", budget="1.00", estimate=cheap), jobs=1)
    assert (outcome["state"], outcome["cost_usd"]) == ("BUDGET_PAUSE", "0.10")
    assert "workspace" in outcome["why"]
    with pytest.raises(InvalidResumeState, match="the workspace has spent"):
        site.resume(
            spender(site, targets="bcd", estimate=cheap),
            site.build_id,
            Offer(token=outcome["confirmation_token"]),
        )
    sound(site)


def stubborn(task):
    noted(task)
    if task.attempt < task.config["good"]:
        task.spend(usd="0.01")
        raise NetworkError("not now")
    return task.idempotency_key


@pytest.mark.rule("B-7")
def test_a_retryable_failure_is_tried_again_with_the_same_key_and_what_it_cost_is_kept(
    site, monkeypatch
):
    monkeypatch.setattr("onceward.dispatch.machine.RETRY_FIRST_MICROS", 200_000)
    plan = Plan("stubborn", folder=site.folder, config={"witness": str(site.witness), "good": 3})
    plan.stage(targets=["a"], name="try")(stubborn)
    plan.stage(targets=["x", "y"], name="other")(noted)
    outcome = site.run(plan, jobs=1)
    assert outcome["state"] == "SUCCESS" and outcome["cost_usd"] == "0.02"
    # Others go on while it waits for its turn.
    assert site.lines() == ["try:a", "other:x", "other:y", "try:a", "try:a"]
    step = site.status()["steps"][0]
    assert (step["attempts"], step["cost_usd"], step.get("error")) == (3, "0.02", None)
    children = site_children(site)
    assert [c["attempt"] for c in children if "try" in c["work"]["stage"]] == [1, 2, 3]
    assert children[-1]["predecessor"] is not None


def site_children(site):
    from onceward.dispatch.views import session_view

    store = site.workspace.store()
    try:
        return document(session_view(store, site.build_id))["children"]
    finally:
        store.close()


def failing(task):
    noted(task)
    raise ValueError(f"no {task.target}")


@pytest.mark.rule("B-7")
def test_a_failure_stops_dispatch_and_keep_going_carries_on_with_the_rest(site):
    def plan():
        made = Plan("mixed", folder=site.folder, config={"witness": str(site.witness)})
        made.stage(name="first", targets=["a"])(failing)
        made.stage(name="after", needs="first")(noted)
        made.stage(name="apart", targets=["z"])(noted)
        return made

    outcome = site.run(plan(), jobs=1)
    assert (outcome["state"], outcome["reason"]) == ("FAILED", "unhandled_error")
    assert site.lines() == ["first:a"] and "no a" in outcome["why"]
    assert site.steps() == {"first:a": "FAILED", "after:a": "BLOCKED", "apart:z": "waiting"}
    outcome = site.run(plan(), jobs=1, keep_going=True)
    assert outcome["state"] == "FAILED" and site.lines() == ["first:a", "apart:z"]
    assert site.steps() == {"first:a": "FAILED", "after:a": "BLOCKED", "apart:z": "SUCCESS"}
    with pytest.raises(InvalidResumeState, match="is FAILED"):
        site.resume(plan(), site.build_id)


def asking(site, fault=True):
    plan = Plan(
        "asks",
        folder=site.folder,
        config={"witness": str(site.witness), "die": str(site.folder / "die")},
    )
    plan.stage(name="once", targets=["a"], on_crash="ask")(dies)
    plan.stage(name="after", needs="once")(noted)
    return plan


def dies(task):
    noted(task)
    if Path(task.config["die"]).exists():
        fail_store(task)
    return "made"


@pytest.mark.rule("B-8")
def test_a_step_in_doubt_blocks_the_resume_until_a_person_decides(site, tmp_path):
    die = site.folder / "die"
    for decision in ("rerun", "accept"):
        die.touch()
        with pytest.raises(StorageError):
            site.run(asking(site), reuse=False)
        die.unlink()
        site.workspace.kernel().close()
        build = site.build_id
        assert site.steps(build) == {"once:a": "IN_DOUBT", "after:a": "waiting"}
        site.lines()
        for offer in (Offer(), Offer(rerun=["after:a", "once:a"])):
            with pytest.raises((InvalidResumeState, InvalidConfig)):
                site.resume(asking(site), build, offer)
        (tmp_path / "value.txt").write_text("given")
        offer = (
            Offer(rerun=["once:a"])
            if decision == "rerun"
            else Offer(accept={"once:a": tmp_path / "value.txt"})
        )
        assert site.resume(asking(site), build, offer)["state"] == "SUCCESS"
        assert site.lines() == (["once:a", "after:a"] if decision == "rerun" else ["after:a"])
        (said,) = [e for e in site.events(build) if e["event"] == "STEP_DECIDED"]
        assert (said["detail"]["decision"], said["context"]["actor"]) == (decision, "tester")
        sound(site)


@pytest.mark.rule("B-8", "C-20")
@pytest.mark.guarantee("G2")
def test_a_recovery_killed_after_any_of_its_commits_leaves_no_step_undecided(site):
    """The end of a child and the doubt about its step are one commit: no kernel finds the one without the other."""
    plan = Plan("pays", folder=site.folder)
    plan.stage(name="pay", targets=["a"], on_crash="ask", version="1")(lambda task: 1)
    with pytest.raises(faults.SimulatedCrash), faults.armed("child.ended", 1, faults.crash):
        site.run(plan)
    for _ in range(12):
        # The first commit takes the writer lock; so each of these kernels makes one more of the others.
        with pytest.raises(faults.SimulatedCrash), faults.armed("commit.after", 2, faults.crash):
            site.workspace.kernel().close()
    site.workspace.kernel().close()
    assert site.steps() == {"pay:a": "IN_DOUBT"}
    with pytest.raises(InvalidResumeState, match="a person has to decide about pay:a"):
        site.resume(plan, site.build_id)


@pytest.mark.rule("B-11")
def test_resume_is_strict_about_the_plan_and_a_fork_reuses_what_fits(site):
    plan = three(site)
    build = site.crash(plan, nth=8)
    done = [name for name, status in site.steps(build).items() if status == "SUCCESS"]
    site.lines()
    changed = three(site, targets=("a", "b", "d"))
    with pytest.raises(InvalidResumeState, match="stage extract: targets changed"):
        site.resume(changed, build)
    outcome = site.resume(changed, build, Offer(fork=True))
    assert outcome["state"] == "SUCCESS" and outcome["build_id"] != build
    assert site.status()["parent_build_id"] == build
    assert not set(done) & set(site.lines()) - {"report:all"}
    assert site.status(build)["state"] == "CRASHED"
    # Nothing changed: a fork is a plain resume.
    assert site.resume(plan, build, Offer(fork=True))["build_id"] == build


@pytest.mark.rule("B-11")
def test_knobs_that_change_no_result_may_change_between_pause_and_resume(site):
    plan = spender(site, targets="ab", budget="0.05", estimate={"usd": "0.10"})
    outcome = site.run(plan, jobs=1)
    other = spender(
        site,
        targets="ab",
        budget="9.00",
        estimate={"usd": "0.02"},
        timeout="1h",
        attempts=5,
        jobs=1,
    )
    offer = Offer(token=outcome["confirmation_token"], limits={"usd_micros": 500_000})
    assert site.resume(other, outcome["build_id"], offer)["state"] == "SUCCESS"


def slow(task):
    noted(task)
    began = time.time()
    while not task.cancelled and time.time() - began < 0.15:
        time.sleep(0.01)
    with (Path(task.config["witness"])).open("a") as file:
        file.write("end\n")


@pytest.mark.rule("B-16")
def test_a_stage_may_limit_how_many_of_its_steps_run_at_once(site):
    plan = Plan("jobs", folder=site.folder, config={"witness": str(site.witness)})
    plan.stage(name="one", targets=["a", "b", "c"], jobs=1)(slow)
    site.run(plan, jobs=8)
    assert site.lines() == ["one:a", "end", "one:b", "end", "one:c", "end"]


@pytest.mark.rule("B-16")
def test_a_rate_holds_across_restarts(site):
    def plan(targets):
        made = Plan("rated", folder=site.folder, config={"witness": str(site.witness)})
        made.stage(name="call", targets=list(targets), rate="2/s")(noted)
        return made

    began = time.time()
    site.run(plan("ab"))
    site.run(plan("cd"))
    site.run(plan("ef"))
    assert time.time() - began >= 2.0
    assert sum(event["event"] == "WORKER_START" for event in site.events()) == 2


@pytest.mark.rule("B-16")
def test_a_start_that_follows_the_end_of_another_step_counts_after_a_restart_too(site):
    """With one slot only the first is begun by itself; the second begins in the commit that ends the first."""

    def plan(*targets):
        made = Plan("rated", folder=site.folder, config={"witness": str(site.witness)})
        made.stage(name="call", targets=list(targets), rate="2/h")(noted)
        return made

    assert site.run(plan("a", "b"), jobs=1)["state"] == "SUCCESS"
    assert site.lines() == ["call:a", "call:b"]
    kernel = site.workspace.kernel()
    try:
        resolved = site.load(plan("c"))
        build = builds.begin(
            kernel, kernel.actor, resolved, plan_file="", jobs=1, limits={}, reuse=False
        )
        running = prepared(kernel, build, resolved, 1, False, False)
        now = kernel.store.sources.now()
        step = resolved.steps.named("call:c")
        assert not running.ready.free(step, now), "a third start within the hour"
        assert running.ready.free(step, now + 3601 * 1_000_000)
    finally:
        kernel.close()


@pytest.mark.rule("C-40", "B-7")
@pytest.mark.guarantee("G7")
def test_nothing_begins_after_a_step_that_ended_well_and_was_cancelled_before(site):
    """Its cancel has the last word, so that what needs it has nothing to begin with."""
    plan, ran = Plan("cancelled", folder=site.folder), []

    def first(task):
        assert on_its_own(lambda: site.ask("children.cancel", subject=task.child_id))
        return 1

    plan.stage(name="first", targets=["a"], version="1")(first)
    plan.stage(name="next", needs="first", version="1")(lambda task: ran.append(task.target))
    assert site.run(plan, jobs=1, keep_going=True)["state"] == "FAILED"
    assert ran == [] and site.steps()["first:a"] == "CANCELLED"
    sound(site)


def approval_plan(site, text="draft"):
    plan = Plan("approved", folder=site.folder, config={"witness": str(site.witness), "text": text})
    plan.stage(name="draft", targets=["a"])(noted)
    plan.approval("look", "Is it good?", needs="draft")
    plan.stage(name="ship", needs=["draft", "look"])(noted)
    plan.stage(name="apart", targets=["z"])(noted)
    return plan


@pytest.mark.rule("B-15", "K-13")
@pytest.mark.parametrize("refuse", [False, True])
def test_an_approval_is_given_from_elsewhere_for_exactly_what_flows_in(site, refuse):
    import threading

    from onceward.core.records import Request
    from onceward.errors import OncewardError
    from onceward.kernel.asker import Asker

    said = {}

    def approver():
        other = type(site.workspace)(
            site.workspace.folder, store_url=site.workspace.settings.store.url, principal="tester"
        )
        engine = Asker(other.store(), other.kernel, other.keyring)
        until(lambda: any(t["status"] == "APPROVAL" for t in site.told))
        until(lambda: "apart:z" in site.witness.read_text())
        digest = next(t["digest"] for t in site.told if t["status"] == "APPROVAL")
        payload = {"build": site.build_id, "step": "look:a", "digest": "0" * 64, "refuse": refuse}
        try:
            engine.ask(Request("builds.approve", "r1", payload, "tester"), 10)
        except OncewardError as error:
            said["wrong"] = error.code
        payload["digest"] = digest
        said["right"] = engine.ask(Request("builds.approve", "r2", payload, "tester"), 10).value
        engine.close()

    thread = threading.Thread(target=approver)
    thread.start()
    outcome = site.run(approval_plan(site), jobs=1)
    thread.join()
    assert said["wrong"] == "PERMIT_INVALID"
    assert said["right"]["decision"] == ("refused" if refuse else "approved")
    assert outcome["state"] == ("FAILED" if refuse else "SUCCESS")
    ran = site.lines()
    assert ("ship:a" in ran) is not refuse and "apart:z" in ran
    (told,) = [
        e
        for e in site.events()
        if e["event"].startswith("APPROVAL_") and e["event"] != "APPROVAL_WANTED"
    ]
    assert told["context"]["actor"] == "tester"
    sound(site)


@pytest.mark.rule("B-15")
def test_a_refusal_stands_for_what_was_refused_and_for_nothing_else(site):
    """Also where something else was asked about in between, by another kernel."""
    draft = site.folder / "draft"
    plan = Plan("approved", folder=site.folder)
    plan.stage(name="draft", targets=["a"], version="1")(lambda task: draft.read_text())
    plan.approval("look", "Is it good?", needs="draft")
    # Keeps the build running until it is stopped.
    plan.stage(name="apart", targets=["z"], version="1")(lambda task: until(lambda: task.cancelled))

    def carry(build="", refuse=False, fails=False):
        """One kernel, until `look` is asked about or has failed; answers the build, what was asked, and whether."""
        kernel, stop, said = site.workspace.kernel(), threading.Event(), []
        resolved = site.load(plan)

        def digests():
            return [told["digest"] for told in said if told["status"] == "APPROVAL"]

        def has_failed():
            return any(told["step"] == "look:a" and told["status"] == "FAILED" for told in said)

        try:
            if build:
                builds.resume(
                    kernel, kernel.actor, build, resolved, plan_file="", offer=Offer(), jobs=2
                )
            else:
                build = builds.begin(
                    kernel, kernel.actor, resolved, plan_file="", jobs=2, limits={}
                )
            running = prepared(kernel, build, resolved, 2, True, True, told=said.append)
            thread = threading.Thread(target=run_build, args=(kernel, running, stop))
            thread.start()
            try:
                until(lambda: digests() or has_failed())
                if refuse:
                    words = {"build": build, "step": "look:a", "digest": digests()[0]}
                    site.ask("builds.approve", **words, refuse=True)
                if refuse or fails:
                    until(has_failed, 60)
            finally:
                stop.set()
                thread.join()
        finally:
            kernel.close()
        return build, digests(), has_failed()

    draft.write_text("one")
    build, first, failed = carry(refuse=True)
    assert len(first) == 1 and failed
    made_anew(site, build, draft, "two")
    _, second, failed = carry(build)
    assert len(second) == 1 and second != first and not failed
    made_anew(site, build, draft, "one")
    assert carry(build, fails=True)[2], "it was refused before"


def made_anew(site, build, draft, text):
    """What the first step made is gone, and it will make something else."""
    (made,) = next(s["artifacts"] for s in site.status(build)["steps"] if s["stage"] == "draft")
    damage(site, made["sha256"], "gone")
    draft.write_text(text)


def returning(site, call):
    """A step that returns what it may, one that needs it, and one that does not."""
    plan = Plan("odd", folder=site.folder)
    plan.stage(name="odd", targets=["a"], version="1")(call)
    plan.stage(name="next", needs="odd", version="1")(lambda task: task.inputs["odd"])
    plan.stage(name="other", targets=["a"], version="1")(lambda task: 1)
    return plan


def aside(site):
    """What is kept of the step in doubt, by name."""
    child = next(s["child_id"] for s in site.status()["steps"] if s["status"] == "IN_DOUBT")
    with site.workspace.artifacts() as kept:
        found = [
            row for row in document(artifact_list(kept.store, child)) if row["kind"] == "in_doubt"
        ]
        return {row["name"].partition("-")[2]: b"".join(kept.read(row["sha256"])) for row in found}


class Unshown:
    def __repr__(self):
        return "what it said"


@pytest.mark.rule("B-8")
@pytest.mark.parametrize(
    ("value", "why", "kept"),
    [
        (Unshown(), "no JSON form", {"value.repr": b"what it said"}),
        (float("nan"), "JSON cannot say", {"value.repr": b"nan"}),
        ({1: 2, "1": 3}, "two keys", {"value.repr": b"{1: 2, '1': 3}", "1.json": b"3"}),
        ({"x": Path("/nowhere"), "y": "text"}, "no file", {"y.txt": b"text"}),
        ({"../x": b"1"}, "safe relative path", {".._x.bin": b"1"}),
        ("\ud800", "surrogates", {"value.repr": b"'\\ud800'"}),
    ],
)
def test_a_paid_result_that_cannot_be_recorded_is_kept_and_a_person_decides(
    site, tmp_path, value, why, kept
):
    def call(task):
        with site.witness.open("a") as file:
            file.write("paid\n")
        return value

    plan = returning(site, call)
    outcome = site.run(plan)
    assert (outcome["state"], outcome["in_doubt"]) == ("CRASHED", ["odd:a"])
    assert site.steps() == {"odd:a": "IN_DOUBT", "next:a": "waiting", "other:a": "SUCCESS"}
    error = next(s["error"] for s in site.status()["steps"] if s["status"] == "IN_DOUBT")
    assert error["error"] == "MALFORMED_OUTPUT" and why in error["message"]
    found = aside(site)
    assert kept.items() <= found.items(), found
    with pytest.raises(InvalidResumeState, match="has to decide about odd:a"):
        site.resume(plan, site.build_id)
    sound(site)
    file = tmp_path / "fixed.json"
    file.write_text('{"fixed": true}')
    outcome = site.resume(plan, site.build_id, Offer(accept={"odd:a": file}))
    assert outcome["state"] == "SUCCESS" and site.lines() == ["paid"]
    sound(site)


@pytest.mark.rule("B-8")
@pytest.mark.guarantee("G7")
def test_a_plan_is_not_begun_anew_while_a_paused_build_of_it_has_a_step_in_doubt(site):
    plan, calls = Plan("odd", folder=site.folder, budget={"usd": "0.05"}), []

    def odd(task):
        calls.append(task.target)
        return object()

    plan.stage(name="odd", targets=["a"], version="1")(odd)
    plan.stage(name="pay", targets=["a", "b"], version="1")(
        lambda task: task.spend(usd="0.06", settled=True)
    )
    assert site.run(plan, jobs=1)["state"] == "BUDGET_PAUSE"
    assert site.steps()["odd:a"] == "IN_DOUBT"
    with pytest.raises(InvalidResumeState, match="a person has to decide about odd:a"):
        site.run(plan, jobs=1)
    assert calls == ["a"]


@pytest.mark.rule("B-8")
def test_a_step_in_doubt_may_be_rerun(site):
    good = site.folder / "good"
    plan = returning(site, lambda task: 1 if good.exists() else object())
    site.run(plan)
    good.touch()
    assert site.resume(plan, site.build_id, Offer(rerun=["odd:a"]))["state"] == "SUCCESS"
    sound(site)


@pytest.mark.rule("B-8", "B-12")
@pytest.mark.parametrize(
    ("script", "kept"),
    [
        ("ln -s /etc/hostname $ONCEWARD_OUT/link; echo 1 > $ONCEWARD_OUT/a", {"a": b"1\n"}),
        ("echo 1 > $ONCEWARD_OUT/'a\tb'", {"a_b": b"1\n"}),
        ("head -c 3000 /dev/zero > $ONCEWARD_OUT/big", {"big": bytes(3000)}),
        ("head -c 30000 /dev/zero > $ONCEWARD_OUT/big", {"big": bytes(30000)}),
    ],
)
def test_outputs_that_break_a_rule_are_kept_aside(site, script, kept):
    (site.workspace.folder.parent / "onceward.toml").write_text("[artifacts]\nmax_bytes = 2000\n")
    site.workspace = type(site.workspace)(
        site.workspace.folder, store_url=site.workspace.settings.store.url, principal="tester"
    )
    plan = Plan("odd", folder=site.folder)
    plan.command("odd", ["bash", "-c", script.replace("\t", "\\t").replace("'a\\tb'", "$'a\\tb'")])
    outcome = site.run(plan)
    assert outcome["in_doubt"] == ["odd:main"], outcome
    found = aside(site)
    assert kept.items() <= found.items(), found
    sound(site)


@pytest.mark.rule("B-8")
def test_a_late_result_beside_one_that_succeeded_is_kept_and_changes_nothing(site):
    plan = Plan("once", folder=site.folder)
    plan.stage(name="once", version="1")(lambda task: "first")
    site.run(plan)
    (before,) = site.status()["steps"]
    kernel = site.workspace.kernel()
    try:
        with kernel.store.read() as rows:
            token = Tokens(rows).get(before["child_id"])
        blob = kernel.artifacts.keep(b"second")
        kept = [(Output("late.bin", "bytes", blob.sha256, blob.size), blob)]
        kernel.late.record(kernel.store, kernel.artifacts, token, kept)
    finally:
        kernel.close()
    assert site.status()["steps"] == [before]
    (late,) = [e["detail"] for e in site.events() if e["event"] == "LATE_RESULT"]
    assert late["taken"] is False
    sound(site)


@pytest.mark.rule("B-8", "C-30")
@pytest.mark.guarantee("G2")
@pytest.mark.parametrize("point", ["write.worked", "commit.before"])
def test_a_kernel_killed_while_it_files_what_came_late_leaves_it_to_the_next(site, point):
    plan = Plan("once", folder=site.folder)
    plan.stage(name="once", version="1")(lambda task: "first")
    site.run(plan)
    (before,) = site.status()["steps"]
    kernel = site.workspace.kernel()
    try:
        with kernel.store.read() as rows:
            token = Tokens(rows).get(before["child_id"])
        kernel.late.put_debit(token, Estimated({"usd_micros": 50_000}))
        with pytest.raises(faults.SimulatedCrash), faults.armed(point, 1, faults.crash):
            kernel.late.file_all(kernel.store, kernel.artifacts)
    finally:
        kernel.close()
    assert site.status()["cost_usd"] == "0.00"
    site.workspace.kernel().close()
    assert site.status()["cost_usd"] == "0.05"
    site.workspace.kernel().close()
    assert site.status()["cost_usd"] == "0.05"
    sound(site)


@pytest.mark.rule("B-8", "E-1")
def test_a_late_result_of_an_older_context_does_not_undo_a_newer_one(site):
    def plan(version):
        made = Plan("once", folder=site.folder)
        made.stage(name="once", version=version)(lambda task: f"made by {version}")
        made.stage(name="next", needs="once", version="1")(lambda task: task.inputs["once"])
        return made

    build = site.crash(plan("1"), point="child.ended", nth=1)
    (first,) = [s["child_id"] for s in site.status(build)["steps"] if s["stage"] == "once"]
    assert site.resume(plan("2"), build)["state"] == "SUCCESS"
    before = site.status(build)["steps"]
    kernel = site.workspace.kernel()
    try:
        with kernel.store.read() as rows:
            token = Tokens(rows).get(first)
        blob = kernel.artifacts.keep(b"made by 1")
        kept = [(Output("value.txt", "text", blob.sha256, blob.size), blob)]
        kernel.late.record(kernel.store, kernel.artifacts, token, kept)
    finally:
        kernel.close()
    assert site.status(build)["steps"] == before
    (late,) = [e["detail"] for e in site.events() if e["event"] == "LATE_RESULT"]
    assert late["taken"] is False
    sound(site)


@pytest.mark.rule("B-8", "E-4")
@pytest.mark.guarantee("G24")
def test_what_is_kept_aside_holds_no_secret(site, monkeypatch):
    monkeypatch.setenv("API_KEY", "canary-5d1f0c")

    def leak(task):
        (task.out / "canary-5d1f0c.txt").write_text("the key is canary-5d1f0c")
        (task.out / "link").symlink_to("/tmp/canary-5d1f0c")
        return {"key": "canary-5d1f0c", "odd": object()}

    plan = Plan("leak", folder=site.folder)
    plan.stage(name="leak", secrets=["API_KEY"], version="1")(leak)
    assert site.run(plan)["in_doubt"] == ["leak:main"]
    found = aside(site)
    assert len(found) >= 3
    assert not any(b"canary-5d1f0c" in name.encode() + data for name, data in found.items())
    for file in site.workspace.folder.rglob("*"):
        assert not file.is_file() or b"canary-5d1f0c" not in file.read_bytes(), file


@dataclasses.dataclass
class Point:
    x: int
    tags: set


class Colour(enum.Enum):
    RED = "red"


class Shade(str, enum.Enum):  # noqa: UP042 - what most programs still write
    DARK = "dark"


class Stubborn(dict):
    """Raises from whatever looks at it, as badly as it can."""

    def __init__(self, how, **items):
        super().__init__(items)
        self.how = how

    def items(self):
        raise self.how

    __repr__ = model_dump = items  # type: ignore[assignment]


class BadKey:
    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__


@pytest.mark.rule("B-8")
@pytest.mark.parametrize(
    "value",
    [
        Stubborn(SystemExit(3), paid="answer"),
        Stubborn(KeyboardInterrupt(), paid="answer"),
        Stubborn(RuntimeError("no"), paid="answer"),
        {BadKey(): 1, "paid": "answer"},
    ],
    ids=["exits", "interrupts", "raises", "key"],
)
def test_a_result_that_raises_when_it_is_looked_at_is_kept_aside(site, value):
    plan = returning(site, lambda task: value)
    assert site.run(plan)["in_doubt"] == ["odd:a"]
    assert aside(site)["paid.txt"] == b"answer"
    sound(site)


@pytest.mark.rule("B-9", "C-8")
@pytest.mark.parametrize("note", [5, b"bytes", object(), BadKey(), "\ud800", None, "x" * 100_000])
def test_progress_and_logs_of_any_type_cost_no_result(site, note):
    def pay(task):
        task.spend(usd="0.01", settled=True)
        task.progress(note, note)
        task.progress(float("nan"))
        task.log(note)
        return "answer"

    plan = Plan("told", folder=site.folder)
    plan.stage(name="pay", version="1")(pay)
    outcome = site.run(plan)
    assert (outcome["state"], outcome["cost_usd"]) == ("SUCCESS", "0.01")
    sound(site)


@pytest.mark.rule("B-7", "K-15")
@pytest.mark.parametrize("error", [StorageError("its own disk is full"), LockLost("its own lock")])
def test_an_error_of_ours_that_a_step_raises_is_the_steps_own(site, error):
    tries = []

    def once(task):
        tries.append(task.attempt)
        if len(tries) == 1:
            raise error
        return 1

    plan = Plan("raises", folder=site.folder)
    plan.stage(name="once", attempts=2, version="1")(once)
    outcome = site.run(plan)
    assert outcome["state"] == ("SUCCESS" if error.retryable else "FAILED"), outcome
    sound(site)


@pytest.mark.rule("B-8", "C-30")
def test_many_threads_leave_late_debits_at_once_and_none_is_lost(site):
    box = LateBox(site.workspace.folder / "late", "tester", LiveSources())
    plan = Plan("one", folder=site.folder)
    plan.stage(name="one", version="1")(lambda task: 1)
    site.run(plan)
    (step,) = site.status()["steps"]
    with site.workspace.reading() as store, store.read() as rows:
        token = Tokens(rows).get(step["child_id"])
    meet = threading.Barrier(16)

    def settle():
        meet.wait(600)
        box.put_debit(token, Estimated({"usd_micros": 10_000}))

    threads = [threading.Thread(target=settle) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    site.workspace.kernel().close()
    assert site.status()["cost_usd"] == "0.16"
    sound(site)


@pytest.mark.rule("B-4", "I-2")
def test_values_with_fields_are_recorded_and_the_next_step_gets_the_record(site):
    pydantic = pytest.importorskip("pydantic")

    class Answer(pydantic.BaseModel):
        text: str
        at: datetime.datetime

    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    value = {
        "model": Answer(text="yes", at=moment),
        "point": Point(1, {"b", "a"}),
        "at": moment,
        "keys": {1: "one", 2: {3, 1}},
        "colour": Colour.RED,
        "shade": Shade.DARK,
        "shades": {Shade.DARK: [Shade.DARK]},
        "decimal": decimal.Decimal("1.50"),
    }
    got = []
    plan = Plan("values", folder=site.folder)
    plan.stage(name="make", targets=["a"], version="1")(lambda task: value)
    plan.stage(name="take", needs="make", version="1")(lambda task: got.append(task.inputs["make"]))
    assert site.run(plan)["state"] == "SUCCESS"
    assert got == [
        {
            "model": {"text": "yes", "at": "2026-01-02T03:04:05Z"},
            "point": {"x": 1, "tags": ["a", "b"]},
            "at": "2026-01-02T03:04:05Z",
            "keys": {"1": "one", "2": [1, 3]},
            "colour": "red",
            "shade": "dark",
            "shades": {"dark": ["dark"]},
            "decimal": "1.50",
        }
    ]


@pytest.mark.rule("B-8", "C-30")
@pytest.mark.parametrize(
    "when", ["while its kernel lives", "before its process ends", "after its kernel has gone"]
)
@pytest.mark.one_in(3)
def test_a_thread_that_outlives_its_time_is_named_given_up_and_its_late_result_kept(site, when):
    """The function waits in a call that nobody can interrupt, and is paid for all the same."""
    release, back = threading.Event(), threading.Event()
    plan = Plan("slow", folder=site.folder, jobs=1)

    def slow(task):
        out = task.out
        if not release.wait(600):
            raise AssertionError("nobody let it go")
        task.spend(usd="0.05", settled=True)
        (out / "late.txt").write_text("written after its slot was given up")
        back.set()
        return "late answer"

    def rest(task):
        # It runs in the slot that was given up.
        if when == "while its kernel lives":
            release.set()
            until(lambda: back.is_set())
            until(lambda: any(e["event"] == "LATE_RESULT" for e in site.events()))
        return 1

    plan.stage(name="slow", targets=["a"], timeout=1, version="1")(slow)
    plan.stage(name="rest", targets=["a"], version="1")(rest)
    leaving = when == "before its process ends"
    if leaving:

        def let_go():
            until(lambda: any(s.get("waiting") == ["slow:a"] for s in site.told))
            release.set()

        threading.Thread(target=let_go).start()
    outcome = site.run(plan, keep_going=True, leaving=leaving)
    assert outcome["state"] == "FAILED"
    assert [s["step"] for s in site.told if s["status"] == "OVERDUE"] == ["slow:a"]
    assert site.steps()["rest:a"] == "SUCCESS"
    if when == "after its kernel has gone":
        assert site.steps()["slow:a"] == "FAILED"
        release.set()
        until(lambda: len(list((site.workspace.folder / "late").glob("*.json"))) == 2)
        for _ in range(2):
            # Killed between the commit and the removal of the file: nothing is counted twice.
            with pytest.raises(faults.SimulatedCrash), faults.armed("late.filed", 1, faults.crash):
                site.workspace.kernel()
        site.workspace.kernel().close()
    assert site.steps()["slow:a"] == "SUCCESS"
    status = site.status()
    assert status["cost_usd"] == "0.05"
    names = {a["name"] for s in status["steps"] if s["stage"] == "slow" for a in s["artifacts"]}
    assert names == {"late.txt", "value.txt"}
    assert {e["event"] for e in site.events()} >= {"LATE_RESULT", "DEBIT_LATE"}
    sound(site)
    # Nothing is paid for again: another run takes the late result over.
    outcome = site.run(plan, keep_going=True)
    assert outcome["state"] == "SUCCESS" and outcome["steps"]["reused"] == 2


@pytest.mark.rule("B-8", "C-30", "L-22")
@pytest.mark.guarantee("G5")
@pytest.mark.parametrize("returns", ["an answer", "what cannot be recorded"])
def test_a_step_that_ends_after_its_kernel_lost_the_lock_is_kept_for_the_next(site, returns):
    calls = []

    def pay(task):
        calls.append(task.target)
        if len(calls) == 1:
            task.spend(usd="0.01", settled=True)
            raise ConnectionError("paid in vain")
        orphan_lock(site.workspace.database)
        on_its_own(lambda: site.workspace.kernel().close())
        task.spend(usd="0.05", settled=True)
        return "paid" if returns == "an answer" else object()

    plan = Plan("pay", folder=site.folder, jobs=1)
    plan.stage(name="pay", targets=["a"], attempts=2, version="1")(pay)
    with pytest.raises(LockLost):
        site.run(plan)
    assert calls == ["a", "a"] and site.status()["cost_usd"] == "0.01"
    site.workspace.kernel().close()
    assert site.status()["cost_usd"] == "0.06"
    (late,) = [e["detail"] for e in site.events() if e["event"] == "LATE_RESULT"]
    if returns == "an answer":
        assert late["taken"] is True and site.steps() == {"pay:a": "SUCCESS"}
        (step,) = site.status()["steps"]
        assert step["cost_usd"] == "0.06", "what failed attempts cost is carried on"
        outcome = site.resume(plan, site.build_id)
        assert outcome["state"] == "SUCCESS" and calls == ["a", "a"]
    else:
        assert late["taken"] is False and "object" in late["in_doubt"]
    sound(site)


@pytest.mark.rule("B-4")
def test_values_come_back_as_they_were(site):
    values = {"n": 1.5, "t": [1, "é", None, True], "d": {"a": {"b": 2}}}
    (site.folder / "f.bin").write_bytes(b"\0\1")

    def make(task):
        (task.out / "deep").mkdir()
        (task.out / "deep" / "left.txt").write_text("left")
        return {"json": values, "text": "té", "bytes": b"\xff", "file": site.folder / "f.bin"}

    def take(task):
        got = task.inputs["make"]
        assert got["json"] == values and got["text"] == "té" and got["bytes"] == b"\xff"
        assert got["file"].read_bytes() == b"\0\1" and got["deep/left.txt"].read_text() == "left"
        return got["file"]

    plan = Plan("values", folder=site.folder)
    plan.stage(targets=["a"], version="1")(make)
    plan.stage(needs="make", version="1")(take)
    plan.stage(name="last", needs="take", version="1")(
        lambda task: task.inputs["take"].read_bytes()
    )
    assert site.run(plan)["state"] == "SUCCESS", site.told


@pytest.mark.rule("I-2")
def test_async_steps_run_and_fail_like_others(site):
    plan = Plan("async", folder=site.folder, config={"witness": str(site.witness)})

    @plan.stage(targets=["a", "b"])
    async def wait(task):
        import asyncio

        await asyncio.sleep(0.01)
        return task.target

    @plan.stage(needs=wait)
    async def fail(task):
        raise BudgetError if task.target == "b" else ValueError

    assert site.run(plan, jobs=4, keep_going=True)["state"] == "FAILED"
    assert site.steps() == {
        "wait:a": "SUCCESS",
        "wait:b": "SUCCESS",
        "fail:a": "FAILED",
        "fail:b": "FAILED",
    }


class BudgetError(Exception):
    pass


@pytest.mark.rule("E-4")
@pytest.mark.guarantee("G24")
def test_secrets_reach_the_step_and_nothing_that_is_kept(site, monkeypatch):
    monkeypatch.setenv("API_KEY", "s3cr3t-canary")
    text = """
name = "secret"
[[stage]]
name = "use"
targets = ["a"]
run = ["sh", "-c", "echo $API_KEY; echo key $API_KEY > $ONCEWARD_OUT/o; test $API_KEY = s3cr3t-canary"]
secrets = ["API_KEY"]
"""
    assert site.run(text)["state"] == "SUCCESS"
    for file in site.workspace.folder.rglob("*"):
        if file.is_file():
            assert b"s3cr3t-canary" not in file.read_bytes()
    with site.workspace.artifacts() as kept:
        (out,) = site.status()["steps"][0]["artifacts"]
        assert b"".join(kept.read(out["sha256"])) == b"key [redacted API_KEY]\n"
    monkeypatch.delenv("API_KEY")
    with pytest.raises(InvalidConfig, match="API_KEY"):
        site.run(text)


@pytest.mark.rule("B-7", "C-8")
def test_a_command_finds_what_the_contract_says(site):
    text = """
name = "env"
[config]
model = "small"
[[stage]]
name = "make"
targets = ["a b/ü"]
run = ["sh", "-c", "cd \\"$ONCEWARD_OUT\\"; cp \\"$ONCEWARD_CONFIG\\" config; env | grep ^ONCEWARD_ | sort > env"]
config = { depth = 2 }
"""
    assert site.run(text)["state"] == "SUCCESS", site.told
    outs = {a["name"]: a["sha256"] for a in site.status()["steps"][0]["artifacts"]}
    with site.workspace.artifacts() as kept:
        config = json.loads(b"".join(kept.read(outs["config"])))
        env = dict(
            line.split("=", 1) for line in b"".join(kept.read(outs["env"])).decode().splitlines()
        )
    assert config == {"model": "small", "depth": 2}
    assert (env["ONCEWARD_STAGE"], env["ONCEWARD_TARGET"], env["ONCEWARD_BUILD"]) == (
        "make",
        "a b/ü",
        site.build_id,
    )
    assert len(env["ONCEWARD_IDEMPOTENCY_KEY"]) == 64 and env["ONCEWARD_ATTEMPT"] == "1"
    assert not any((site.workspace.folder / "work").iterdir())


@pytest.mark.rule("B-12")
def test_a_target_is_one_file_each_and_its_content_counts(site):
    docs = site.folder / "docs"
    docs.mkdir()
    for name in ("ä 1.md", "b.md"):
        (docs / name).write_text(name)
    text = """
name = "glob"
[[stage]]
name = "read"
targets = { glob = "docs/*.md" }
run = ["sh", "-c", "echo \\"$0\\" | tr ' ' _ >> witness; cat \\"$0\\" > \\"$ONCEWARD_OUT/o\\"", "{target}"]
"""
    site.run(text, jobs=1)
    assert site.lines() == ["docs/b.md", "docs/ä_1.md"]
    (docs / "b.md").write_text("new")
    assert site.run(text, jobs=1)["steps"]["executed"] == 1 and site.lines() == ["docs/b.md"]


@pytest.mark.rule("B-2")
# The plan is the same on either store: one of them is enough for its size.
@pytest.mark.parametrize("kind", ["sqlite"])
def test_thousands_of_targets(site):
    plan = Plan("many", folder=site.folder)
    plan.stage(name="each", targets=[f"t{n:05d}" for n in range(3_000)], version="1")(
        lambda task: None
    )
    plan.stage(name="all", collect="each", targets=["all"], version="1")(
        lambda task: len(task.inputs["each"])
    )
    outcome = site.run(plan, jobs=4)
    assert outcome["state"] == "SUCCESS" and outcome["steps"]["executed"] == 3_001
    assert site.run(plan, jobs=4)["steps"]["reused"] == 3_001


@pytest.mark.rule("L-24")
def test_a_stop_leaves_the_build_crashed_and_resumable(site):
    import threading

    plan = Plan("long", folder=site.folder, config={"witness": str(site.witness)})
    plan.stage(name="slow", targets=list("abcdef"))(slow)
    threading.Thread(target=lambda: (until(site.witness.exists), os.kill(os.getpid(), 15))).start()
    outcome = site.run(plan, jobs=1)
    assert (outcome["state"], outcome["reason"]) == ("CRASHED", "crash_detected")
    assert site.resume(plan, site.build_id)["state"] == "SUCCESS"
    sound(site)


def test_every_checkpoint_that_succeeded_agrees_with_its_childs_last_event(site):
    site.run(three(site))
    told = {
        e["detail"]["child_id"]: e["detail"] for e in site.events() if e["event"] == "WORKER_PASS"
    }
    store = site.workspace.store()
    with store.read() as rows:
        for checkpoint in checkpoints_of(rows, site.build_id):
            assert told[checkpoint.child_id]["context_hash"] == checkpoint.context_hash
    store.close()


@pytest.mark.rule("B-1")
@pytest.mark.guarantee("G22")
def test_a_full_disk_stops_the_build_and_a_resume_needs_no_repair(site):
    plan = three(site)
    (site.folder / "big").write_bytes(os.urandom(100_000))

    def big(task):
        noted(task)
        return site.folder / "big"

    plan.stage(name="big", needs="report", version="1")(big)

    def full():
        raise OSError(28, "No space left on device")

    with faults.armed("artifact.written", 1, full), pytest.raises(StorageError):
        site.run(plan)
    site.workspace.kernel().close()
    assert site.status()["state"] == "CRASHED"
    assert site.resume(plan, site.build_id)["state"] == "SUCCESS"
    sound(site)


@pytest.mark.rule("B-2")
@pytest.mark.parametrize("targets", [["all"], ["a"], ["main"], ["a", "all", "b"]])
def test_neither_number_nor_names_of_targets_change_what_a_step_gets(site, targets):
    seen = {}
    plan = Plan("shape", folder=site.folder)
    plan.stage(name="read", targets=targets, version="1")(lambda task: [task.target] * 3)
    plan.stage(name="one", needs="read", version="1")(
        lambda task: seen.setdefault(task.target, task.inputs["read"])
    )
    plan.stage(name="join", collect="read", targets=["all"], version="1")(
        lambda task: seen.setdefault("join", dict(task.inputs["read"])) and None
    )
    plan.command("list", ["sh", "-c", "ls $ONCEWARD_INPUTS/read > $ONCEWARD_OUT/l"], collect="read")
    plan.stage(name="last", after="join", version="1")(lambda task: list(task.inputs))
    outcome = site.run(plan)
    assert outcome["state"] == "SUCCESS", site.told
    values = {target: [target] * 3 for target in targets}
    assert seen == {**values, "join": values}
    result = Result(site.workspace.folder, outcome, site.workspace.settings.store.url)
    assert result.values("read") == values and result.value("last") == []
    assert result.value("list")["l"].decode().split() == sorted(targets)
    with pytest.raises(NotFound, match="read:nobody"):
        result.value("read", "nobody")
    sound(site)


@pytest.mark.rule("B-2", "B-3")
def test_config_may_hold_numbers_with_a_fraction(site):
    text = """name = "warm"
[config]
temperature = 0.2
[[stage]]
name = "ask"
run = ["sh", "-c", "cat $ONCEWARD_CONFIG"]
"""
    assert site.run(text)["state"] == "SUCCESS"
    assert site.run(text)["steps"]["reused"] == 1
    assert site.run(text, config={"temperature": "0.7"})["steps"]["executed"] == 1
    seen = []
    plan = Plan("warm", folder=site.folder, config={"temperature": 1.0, "deep": {"p": [0.9]}})
    plan.stage(name="ask", version="1")(lambda task: seen.append(task.config))
    assert site.run(plan)["state"] == "SUCCESS"
    assert seen == [{"temperature": 1.0, "deep": {"p": [0.9]}}]
    assert isinstance(seen[0]["temperature"], float)
    sound(site)


def test_budget_errors_are_part_of_the_public_names():
    assert BudgetExceeded.code == "URM_CHILD_BUDGET_EXCEEDED"
