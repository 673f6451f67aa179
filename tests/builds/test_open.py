"""`onceward.open()`: many builds at once from one process."""

from __future__ import annotations

import asyncio
import threading

import pytest

import onceward
from onceward import BuildStopped, Plan
from onceward.errors import LockConflict, LockLost, NotFound, PermissionDenied
from typing_in import until


def words(site, name, targets="ab", **more):
    plan = Plan(name, folder=site.folder, **more)

    @plan.stage(targets=list(targets))
    def count(task):
        with site.witness.open("a") as file:
            file.write(f"{name}.{task.target}\n")
        return {"name": name, "target": task.target}

    return plan


@pytest.fixture
def opened(workspace):
    with onceward.open(workspace) as engine:
        yield engine


@pytest.mark.rule("I-2", "K-13")
def test_many_builds_run_beside_each_other_in_one_process(opened, site):
    handles = [opened.start(words(site, f"plan{n}")) for n in range(12)]
    results = [handle.result(60) for handle in handles]
    assert {result.state for result in results} == {"SUCCESS"}
    assert [result.value("count", "a")["name"] for result in results] == [
        f"plan{n}" for n in range(12)
    ]
    assert len(site.lines()) == 24
    assert all(handle.done and handle.state == "SUCCESS" for handle in handles)
    assert opened.handle(handles[3].build_id) is handles[3]


@pytest.mark.rule("I-2")
def test_programs_on_an_event_loop_wait_without_blocking_it(workspace, site):
    async def main():
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.001)

        async with onceward.open(workspace) as engine:
            ticking = asyncio.create_task(tick())
            handles = [await engine.start(words(site, f"plan{n}")) for n in range(8)]
            results = await asyncio.gather(*(handle.result(60) for handle in handles))
            states = [await handle.state() for handle in handles]
            ticking.cancel()
        return results, states, ticks

    results, states, ticks = asyncio.run(main())
    assert {result.state for result in results} == {"SUCCESS"} == set(states)
    assert ticks > 10


@pytest.mark.rule("B-10")
def test_a_build_that_paused_goes_on_in_the_same_process(opened, site):
    plan = Plan("dear", budget={"usd": "0.02"}, folder=site.folder)

    @plan.stage(targets=["a", "b"])
    def pay(task):
        task.spend(usd="0.02")
        return task.target

    with pytest.raises(BuildStopped) as stopped:
        opened.start(plan, jobs=1).result(60)
    paused = stopped.value.result
    assert paused.state == "BUDGET_PAUSE"
    token = paused.outcome["confirmation_token"]
    again = opened.resume(paused.build_id, plan, token=token, budget={"usd": "1.00"})
    assert again.result(60).values("pay") == {"a": "a", "b": "b"}


@pytest.mark.rule("L-24")
def test_closing_leaves_a_build_that_can_be_resumed(workspace, site):
    go = threading.Event()
    plan = Plan("slow", folder=site.folder)

    @plan.stage(targets=["a"])
    def first(task):
        return noted(site, "first")

    @plan.stage(needs=first)
    def second(task):
        noted(site, "second")
        while not go.wait(0.01):
            task.check()
        return task.inputs["first"]

    with onceward.open(workspace) as engine:
        handle = engine.start(plan)
        until(lambda: "second" in site.witness.read_text() if site.witness.exists() else False)
    with pytest.raises(LockLost):
        engine.start(plan)
    go.set()
    with onceward.open(workspace) as engine:
        assert site.status(handle.build_id)["state"] == "CRASHED"
        assert engine.resume(handle.build_id, plan).result(60).value("second", "a") == "first"
    assert site.lines().count("first") == 1


def noted(site, word):
    with site.witness.open("a") as file:
        file.write(f"{word}\n")
    return word


@pytest.mark.rule("C-40")
def test_a_build_is_given_up_and_others_go_on(opened, site):
    plan = Plan("endless", folder=site.folder)

    @plan.stage
    def turn(task):
        while True:
            task.check()
            threading.Event().wait(0.01)

    handle, other = opened.start(plan), opened.start(words(site, "other"))
    with pytest.raises(TimeoutError):
        handle.result(0.01)
    handle.cancel()
    with pytest.raises(BuildStopped):
        handle.result(60)
    assert handle.state == "ABANDONED"
    assert other.result(60).state == "SUCCESS"


@pytest.mark.rule("K-13")
def test_the_kernel_of_an_open_workspace_answers_others(opened, site, workspace):
    assert site.ask("builds.abandon", build=wait_for(opened, site)).value["state"] == "ABANDONED"
    with pytest.raises(LockConflict), onceward.open(workspace):
        pass


def wait_for(opened, site):
    plan = Plan("asks", folder=site.folder)
    plan.approval("look", "May it go on?")
    return opened.start(plan).build_id


@pytest.mark.rule("K-14")
def test_a_step_starts_nothing_in_its_kernels_name(opened, site):
    plan = Plan("inside", folder=site.folder)

    @plan.stage
    def start(task):
        try:
            opened.start(words(site, "other"))
        except PermissionDenied as error:
            return error.code

    assert opened.start(plan).result(60).value("start") == "PERMISSION_DENIED"


def test_what_was_not_started_here_has_no_handle(opened):
    with pytest.raises(NotFound):
        opened.handle("bld_none")
