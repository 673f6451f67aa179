"""Plain words about builds, steps, children and sessions; and what was spent on what."""

from __future__ import annotations

import pytest

from onceward import Plan
from onceward.dispatch.spending import spending
from onceward.dispatch.work import Function
from onceward.errors import InvalidConfig, NotFound
from onceward.subjects import explain


def explained(site, *words):
    with site.workspace.reading() as store:
        return explain(store, words)


def spent(site, by):
    with site.workspace.reading() as store:
        return spending(store, by)


def costly(site, limit="1.00", name="costly"):
    plan = Plan(name, folder=site.folder, budget={"usd": limit})

    @plan.stage(targets=["a", "b"])
    def draft(task):
        task.spend(usd="0.02", tokens=100)
        return {"text": task.target}

    @plan.stage(needs=draft)
    def polish(task):
        task.spend(usd="0.01")
        return "done"

    return plan


@pytest.mark.rule("E-5")
def test_a_build_that_succeeded(site):
    site.run(costly(site))
    told = explained(site, site.build_id)
    assert (told.kind, told.state, list(told.why)) == ("build", "SUCCESS", ["every step is done"])
    assert "a build of the plan costly" in told.what[0] and told.cost.startswith(
        "0.06 of 1.00 usd, 200 tokens"
    )
    assert told.made == ["4 steps: 4 SUCCESS"] and not told.waits_for
    assert told.next == [
        f"onceward output {site.build_id} --project NAME",
        f"onceward export {site.build_id}",
    ]


@pytest.mark.rule("E-5", "B-9")
def test_a_build_that_is_paused_says_what_it_waits_for(site):
    site.run(costly(site, "0.03"), jobs=1)
    told = explained(site, site.build_id[:20])
    assert told.state == "BUDGET_PAUSE" and "usd is at 0.02 of 0.03" in told.why[0]
    assert told.waits_for == [
        "a person to raise the budget and bring a confirmation token (confirm makes a new one)"
    ]
    assert any("--token TOKEN --budget usd=0.04" in line for line in told.next)


@pytest.mark.rule("E-5", "L-23")
def test_a_build_that_crashed_and_its_steps(site):
    build = site.crash(costly(site), point="child.ended", nth=2)
    told = explained(site, build)
    assert told.state == "CRASHED" and told.waits_for == ["somebody to resume it, or to abandon it"]
    assert told.next == [f"onceward resume {build}"]
    waiting = explained(site, build, "polish:b")
    assert waiting.state == "waiting" and waiting.waits_for[0].startswith("draft:b, which is ")


@pytest.mark.rule("E-5")
def test_a_build_that_failed_and_what_it_blocks(site):
    def fails(task):
        raise RuntimeError("no luck")

    plan = Plan("sad", folder=site.folder)
    plan.stage(name="first")(fails)
    plan.stage(name="second", needs="first")(fails)
    site.run(plan)
    assert (
        explained(site, site.build_id)
        .why[0]
        .startswith("step first:main failed: RuntimeError: no luck")
    )
    told = explained(site, "second")
    assert told.state == "BLOCKED" and told.waits_for == ["first:main, which is FAILED"]


@pytest.mark.rule("E-5", "B-6")
def test_a_step_says_what_it_does_why_it_ran_and_what_it_made(site):
    text = """
name = "shell"
[[stage]]
name = "work"
targets = ["a", "b"]
run = ["sh", "-c", "echo {target} > $ONCEWARD_OUT/o"]
"""
    site.run(text)
    first = site.build_id
    told = explained(site, "work:a")
    assert told.what[0] == "runs sh -c 'echo a > $ONCEWARD_OUT/o'" and told.why == [
        "no earlier build has done it"
    ]
    assert (
        told.made[0].startswith("o: file, 2 bytes")
        and told.next[-1] == f"onceward logs {first} work:a"
    )
    site.run(text)
    told = explained(site, site.build_id, "work:a")
    assert told.state == "REUSED" and told.why[-1] == f"since build {first}"
    with pytest.raises(InvalidConfig, match="more than one step"):
        explained(site, "work")


@pytest.mark.rule("E-5", "B-15")
def test_a_step_that_waits_for_a_person_shows_what_is_to_be_approved(site):
    plan = Plan("asks", folder=site.folder)
    plan.stage(name="draft")(lambda task: "the text")
    plan.approval("agree", "Is it good?", needs="draft")
    with site.waiting(plan):
        told = explained(site, "agree")
        assert told.waits_for == ["a person to approve it: Is it good?"]
        assert told.made[0].startswith(
            "to be approved: draft:main value.txt: onceward artifacts cat "
        )
        (command,) = told.next
        assert explained(site, site.build_id).waits_for == [
            "a person to approve agree:main: Is it good?"
        ]
        digest = command.split("--digest ")[1]
        site.ask(
            "builds.approve",
            build=site.build_id,
            step="agree",
            digest=digest,
            refuse=False,
            note="",
        )
    assert explained(site, "agree").why == ["tester approved it"]


@pytest.mark.rule("E-5")
def test_a_child_of_a_step_and_one_run_by_hand(site):
    site.run(costly(site))
    child = site.status()["steps"][0]["child_id"]
    told = explained(site, child)
    assert told.what[0] == "attempt 1 at step draft:a" and told.state == "terminal"
    assert told.why == ["completed"] and told.cost.startswith("0.02 usd, 100 tokens")
    kernel = site.workspace.kernel()
    children = kernel.open_session("by-hand", 1)
    (child_id,) = children.spawn([Function(call=lambda task: task.spend(tokens=5), name="mine")])
    children.wait(child_id, None)
    kernel.close()
    told = explained(site, child_id)
    assert told.what[0] == "calls mine" and "in session by-hand" in told.what[1]
    assert explained(site, "by-hand").made == ["children: 1, open 0, not succeeded 0"]


@pytest.mark.rule("E-5")
@pytest.mark.parametrize("name", ["bld_9", "chd_9", "nothing", ""])
def test_what_is_not_there_cannot_be_explained(site, name):
    with pytest.raises((NotFound, InvalidConfig)):
        explained(site, name)
    site.run(costly(site))
    with pytest.raises((NotFound, InvalidConfig)):
        explained(site, name)


@pytest.mark.rule("I-1")
def test_spending_is_the_same_sum_however_it_is_told(site):
    site.run(costly(site))
    first = site.build_id
    site.run(costly(site))
    site.run(costly(site, name="other"), reuse=False)
    by_build, by_stage, by_day = (spent(site, by) for by in ("build", "stage", "day"))
    assert (
        by_build["lanes"]["usd_micros"]
        == by_stage["lanes"]["usd_micros"]
        == by_day["lanes"]["usd_micros"]
        == 120_000
    )
    assert [(g["key"], g["name"], g["cost_usd"]) for g in by_build["groups"]] == [
        (site.build_id, "other", "0.06"),
        (first, "costly", "0.06"),
    ]
    stages = [
        (g["key"], g["name"], g["cost_usd"], g["lanes"].get("tokens", 0))
        for g in by_stage["groups"]
    ]
    assert stages == [
        ("draft", "costly", "0.04", 200),
        ("draft", "other", "0.04", 200),
        ("polish", "costly", "0.02", 0),
        ("polish", "other", "0.02", 0),
    ]
    assert len(by_day["groups"]) in (1, 2) and by_day["groups"][0]["key"].startswith("20")
