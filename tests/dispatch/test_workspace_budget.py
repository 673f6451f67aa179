"""What the whole workspace may spend, beside each build's own budget (B-9, B-16, C-30)."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from onceward import Plan
from onceward.builds import lifecycle as builds
from onceward.builds.lifecycle import Offer
from onceward.builds.run import run_build
from onceward.dispatch.spending import spending
from onceward.dispatch.work import Function
from onceward.errors import BudgetExceeded, InvalidResumeState
from onceward.workspace import Workspace
from sites import Site, prepared

NO_MONEY = {"tokens": 1}
"""An estimate that says nothing of money: only what is spent can stop such a step, not what it might cost."""


def capped(site: Site, usd: str) -> Site:
    """The same workspace with a budget of its own, as somebody who edits onceward.toml gives it."""
    (site.workspace.folder.parent / "onceward.toml").write_text(f'[budget]\nusd = "{usd}"\n')
    url = site.workspace.settings.store.url
    site.workspace = Workspace(site.workspace.folder, store_url=url, principal="tester")
    return site


def paid(task):
    with Path(task.config["witness"]).open("a") as file:
        file.write(f"{task.target}\n")
    task.spend(usd=task.config["usd"], settled=task.config["settled"])
    return task.target


def plan_of(site: Site, *, usd: str, settled: bool = False, budget=None, **words) -> Plan:
    """Two steps that each cost this much; unless said, the build itself has no limit."""
    config = {"witness": str(site.witness), "usd": usd, "settled": settled}
    plan = Plan("spender", folder=site.folder, config=config, budget=budget)
    plan.stage(name="pay", targets=["a", "b"], **words)(paid)
    return plan


def pause_of(site: Site) -> dict:
    (pause,) = [e["detail"] for e in site.events() if e["event"] == "BUILD_PAUSED"]
    return pause


def spent_in_workspace(site: Site) -> int:
    with site.workspace.reading() as store:
        return spending(store, "build")["lanes"].get("usd_micros", 0)


@pytest.mark.rule("B-16", "C-30")
@pytest.mark.guarantee("G16")
def test_a_debit_that_the_workspace_has_no_room_for_is_refused_before_it_is_spent(site):
    outcome = capped(site, "0.20").run(plan_of(site, usd="0.15", estimate=NO_MONEY), jobs=1)
    assert (outcome["state"], outcome["reason"]) == ("BUDGET_PAUSE", "budget_exceeded")
    assert outcome["cost_usd"] == "0.15" and spent_in_workspace(site) == 150_000
    pause = pause_of(site)
    assert (pause["scope"], pause["lane"], pause["limit"]) == ("workspace", "usd_micros", 200_000)
    assert (pause["observed"], pause["asked"]) == (150_000, 150_000)


@pytest.mark.rule("B-9", "B-16")
def test_money_that_is_gone_pauses_the_build_when_the_workspace_has_none_left(site):
    plan = plan_of(site, usd="0.25", settled=True, estimate=NO_MONEY)
    outcome = capped(site, "0.20").run(plan, jobs=1)
    assert outcome["state"] == "BUDGET_PAUSE" and outcome["cost_usd"] == "0.25"
    assert site.lines() == ["a"], "nothing more is begun"
    assert pause_of(site)["scope"] == "workspace"


@pytest.mark.rule("B-9", "B-16")
def test_nothing_begins_in_a_workspace_that_has_spent_more_than_it_may(site):
    kernel = capped(site, "0.20").workspace.kernel()
    try:
        children = kernel.open_session("ses_a", 1)
        spends = Function(call=lambda task: task.spend(usd="0.25", settled=True), name="spends")
        (child,) = children.spawn([spends])
        children.wait(child)
    finally:
        kernel.close()
    outcome = site.run(plan_of(site, usd="0.01", settled=True, estimate=NO_MONEY), jobs=1)
    assert (outcome["state"], outcome["reason"]) == ("BUDGET_PAUSE", "budget_exceeded")
    assert site.lines() == [] and outcome["cost_usd"] == "0.00"
    pause = pause_of(site)
    assert (pause["scope"], pause["observed"], pause["limit"]) == ("workspace", 250_000, 200_000)


@pytest.mark.rule("B-9", "B-16")
def test_an_estimate_that_the_workspace_has_no_room_for_blocks_before_anything_runs(site):
    outcome = capped(site, "0.20").run(plan_of(site, usd="0.01", estimate={"usd": "0.30"}), jobs=1)
    assert (outcome["state"], outcome["reason"]) == ("BUDGET_PAUSE", "budget_precheck_block")
    assert outcome["cost_usd"] == "0.00" and site.lines() == []
    pause = pause_of(site)
    assert (pause["scope"], pause["estimate"]) == ("workspace", 300_000)


@pytest.mark.rule("B-16")
@pytest.mark.parametrize("budget", [None, {"usd": "5.00"}])
def test_the_workspace_counts_what_all_its_builds_spend(site, budget):
    """Whether or not a build has a budget of its own, and however much that leaves."""
    capped(site, "0.50")
    assert site.run(plan_of(site, usd="0.20", budget=budget), jobs=1)["state"] == "SUCCESS"
    outcome = site.run(plan_of(site, usd="0.20", budget=budget), jobs=1, reuse=False)
    assert outcome["state"] == "BUDGET_PAUSE" and "workspace" in outcome["why"]
    assert spent_in_workspace(site) == 400_000


@pytest.mark.rule("B-10", "B-16")
def test_a_paused_build_goes_on_once_the_workspace_has_more(site):
    plan = plan_of(site, usd="0.15", estimate=NO_MONEY)
    outcome = capped(site, "0.20").run(plan, jobs=1)
    offer = Offer(token=outcome["confirmation_token"])
    with pytest.raises(InvalidResumeState, match="the workspace has spent"):
        site.resume(plan, site.build_id, offer)
    assert capped(site, "0.30").resume(plan, site.build_id, offer)["state"] == "SUCCESS"
    assert spent_in_workspace(site) == 300_000


@pytest.mark.rule("B-16", "C-30")
def test_children_of_a_session_share_the_workspaces_budget(site):
    kernel = capped(site, "0.20").workspace.kernel()
    refusals: list[BudgetExceeded] = []

    def spends(task):
        try:
            task.spend(usd="0.15")
        except BudgetExceeded as error:
            refusals.append(error)
            raise

    try:
        reasons = []
        for session in ("ses_a", "ses_b"):
            children = kernel.open_session(session, 1)
            (child,) = children.spawn([Function(call=spends, name="spends")])
            reasons.append(children.wait(child).reason)
    finally:
        kernel.close()
    assert reasons == ["completed", "budget_exceeded"] and spent_in_workspace(site) == 150_000
    assert refusals[0].context["scope"] == "workspace", json.dumps(refusals[0].context)


@pytest.mark.rule("B-9", "B-16")
@pytest.mark.guarantee("G16")
def test_what_other_builds_are_expected_to_spend_is_held_back_from_the_workspace(site):
    """As a server runs them: either step's estimate fits, both do not, so they never run at the same time."""
    kernel = capped(site, "0.10").workspace.kernel()
    kernel.served = True
    together, met, states = threading.Barrier(2), [], []

    def pay(task):
        try:
            together.wait(1)
            met.append(task.child_id)
        except threading.BrokenBarrierError:
            together.reset()
        task.spend(usd="0.02", settled=True)

    def run(name):
        plan = Plan(name, folder=site.folder)
        plan.stage(name="pay", estimate={"usd": "0.06"}, version="1")(pay)
        resolved = site.load(plan)
        build = builds.begin(
            kernel, kernel.actor, resolved, plan_file="", jobs=1, limits={}, reuse=False
        )
        running = prepared(kernel, build, resolved, 1, False, False)
        run_build(kernel, running, threading.Event())
        with kernel.store.read() as rows:
            states.append(builds.Builds(rows).get(build).state)

    threads = [threading.Thread(target=run, args=(name,)) for name in ("one", "two")]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        kernel.close()
    assert states == ["SUCCESS"] * 2 and met == []
    assert spent_in_workspace(site) == 40_000


@pytest.mark.rule("B-16", "C-30")
@pytest.mark.guarantee("G16")
def test_money_that_is_told_of_after_its_child_has_ended_counts_in_the_workspace(site):
    kernel, kept, ran = capped(site, "0.20").workspace.kernel(), [], []
    try:
        children = kernel.open_session("ses_a", 1)
        (child,) = children.spawn([Function(call=kept.append, name="kept")])
        children.wait(child)
        kept[0].spend(usd="0.25", settled=True)
        (child,) = children.spawn([Function(call=ran.append, name="ran")])
        ended = children.wait(child)
    finally:
        kernel.close()
    assert ended.reason == "budget_exceeded" and ran == []
    assert (ended.detail["scope"], ended.detail["observed"]) == ("workspace", 250_000)
