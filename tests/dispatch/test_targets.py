"""Steps and children whose target somebody else holds: they wait in the queue, and hold up nobody (B-7, L-6)."""

from __future__ import annotations

import threading
import time

import pytest

from helpers import assert_sound
from onceward import Plan
from onceward.builds import lifecycle as builds
from onceward.builds.run import run_build
from onceward.core.steps import lock_target
from onceward.dispatch.work import Command
from onceward.locks import TargetLock
from onceward.store.tables.children import is_terminal
from sites import prepared
from typing_in import until


def shell_plan(site, script="echo $ONCEWARD_TARGET > $ONCEWARD_OUT/t", targets="abc"):
    plan = Plan("shared", folder=site.folder)
    plan.command("work", ["sh", "-c", script], targets=list(targets))
    return plan


def sound(site):
    store = site.workspace.store()
    try:
        with store.read() as rows:
            assert_sound(rows)
    finally:
        store.close()


def run_beside(site, make_plan, count, *, jobs, reuse):
    """Builds of one plan at the same time, as a server runs them: one kernel, a thread for each. Answers their states."""
    kernel = site.workspace.kernel()
    kernel.served = True
    states, together = [], threading.Barrier(count)

    def run():
        resolved = site.load(make_plan())
        build = builds.begin(
            kernel, kernel.actor, resolved, plan_file="", jobs=jobs, limits={}, reuse=reuse
        )
        running = prepared(kernel, build, resolved, jobs, False, reuse)
        together.wait(600)
        run_build(kernel, running, threading.Event())
        with kernel.store.read() as rows:
            states.append(builds.Builds(rows).get(build).state)

    threads = [threading.Thread(target=run) for _ in range(count)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        kernel.close()
    return states


@pytest.mark.rule("L-6", "B-7")
@pytest.mark.guarantee("G8")
def test_builds_of_one_plan_that_run_beside_each_other_do_not_fail_each_other(site):
    overlap = site.folder / "overlap"
    script = f"""
        mkdir {site.folder}/held-$ONCEWARD_TARGET || touch {overlap}
        sleep 0.02; rmdir {site.folder}/held-$ONCEWARD_TARGET
    """
    states = run_beside(site, lambda: shell_plan(site, script), 6, jobs=3, reuse=False)
    assert states == ["SUCCESS"] * 6 and not overlap.exists()
    sound(site)


@pytest.mark.rule("L-6", "B-6")
@pytest.mark.guarantee("G8")
@pytest.mark.parametrize("kind_of_step", ["function", "command"])
def test_builds_of_one_plan_beside_each_other_pay_for_a_step_once(site, kind_of_step):
    """Whoever comes second waits, and takes the first one's result over."""
    bill = site.folder / "bill"
    inside, overlaps = threading.Lock(), []

    def pay(task):
        if not inside.acquire(blocking=False):
            overlaps.append(task.target)
        with bill.open("a") as file:
            file.write(f"{task.stage}:{task.target}\n")
        time.sleep(0.3)
        inside.release()
        return task.target

    def plan():
        made = Plan("shared", folder=site.folder)
        if kind_of_step == "function":
            made.stage(name="work", targets=["a"], version="1")(pay)
        else:
            script = f"echo work:$ONCEWARD_TARGET >> {bill}; sleep 0.3"
            made.command("work", ["sh", "-c", script], targets=["a"])
        made.stage(name="next", needs="work", version="1")(lambda task: 1)
        return made

    states = run_beside(site, plan, 4, jobs=2, reuse=True)
    assert states == ["SUCCESS"] * 4 and not overlaps
    assert bill.read_text().split() == ["work:a"]
    sound(site)


@pytest.mark.rule("B-4", "B-6")
def test_builds_beside_each_other_run_a_step_whose_earlier_result_lost_its_bytes(site):
    bill = site.folder / "bill"
    script = f"echo $ONCEWARD_TARGET >> {bill}; head -c 200000 /dev/urandom > $ONCEWARD_OUT/t"
    assert site.run(shell_plan(site, script, "a"))["state"] == "SUCCESS"
    for file in (site.workspace.folder / "artifacts").glob("??/*"):
        file.chmod(0o600)
        file.unlink()
    states = run_beside(site, lambda: shell_plan(site, script, "a"), 3, jobs=1, reuse=True)
    assert states == ["SUCCESS"] * 3
    assert bill.read_text().split() == ["a", "a"]


@pytest.mark.rule("L-6", "B-7")
def test_a_step_whose_target_is_held_elsewhere_waits_and_holds_up_no_other(site):
    elsewhere = TargetLock(site.workspace.folder / "locks")
    claim = elsewhere.acquire(lock_target("shared", "work", "a"))
    done = []
    runner = threading.Thread(target=lambda: done.append(site.run(shell_plan(site), jobs=1)))
    runner.start()
    until(lambda: sum(said["status"] == "SUCCESS" for said in site.told) == 2)
    held = [said for said in site.told if said["status"] == "HELD"]
    assert [said["step"] for said in held] == ["work:a"]
    assert "onceward locks show" in held[0]["message"]
    assert elsewhere.release(claim) == "released"
    runner.join()
    assert done[0]["state"] == "SUCCESS"
    sound(site)


@pytest.mark.rule("L-6")
def test_a_step_that_waited_too_long_for_its_target_fails_and_names_the_holder(site):
    (site.workspace.folder.parent / "onceward.toml").write_text("[limits]\ntarget_wait = 0\n")
    site.workspace = type(site.workspace)(
        site.workspace.folder, store_url=site.workspace.settings.store.url, principal="tester"
    )
    elsewhere = TargetLock(site.workspace.folder / "locks")
    claim = elsewhere.acquire(lock_target("shared", "work", "a"))
    outcome = site.run(shell_plan(site), keep_going=True)
    assert outcome["state"] == "FAILED" and f"pid {claim.pid}" in outcome["why"], outcome
    assert site.steps() == {"work:a": "FAILED", "work:b": "SUCCESS", "work:c": "SUCCESS"}
    elsewhere.release(claim)
    sound(site)


@pytest.mark.rule("L-6", "C-5")
def test_a_spawned_child_waits_in_the_queue_for_its_target(kernel):
    elsewhere = TargetLock(kernel.folder / "locks")
    claim = elsewhere.acquire("one-at-a-time")
    children = kernel.open_session("ses_a", 1)
    held = Command(argv=["true"], cwd=kernel.folder, target="one-at-a-time")
    first, second = children.spawn([held, Command(argv=["true"], cwd=kernel.folder)])
    assert children.wait(second).reason == "completed"
    with kernel.store.read() as rows:
        ((phase,),) = rows.read("SELECT phase FROM urm_dispatch_token WHERE child_id = ?", (first,))
    assert phase == "queued"
    elsewhere.release(claim)
    assert children.wait(first).reason == "completed"
    with kernel.store.read() as rows:
        assert_sound(rows)


@pytest.mark.rule("B-8")
@pytest.mark.guarantee("G8")
def test_a_step_is_not_run_again_beside_its_own_thread_that_was_given_up(site):
    release, began = threading.Event(), []
    plan = Plan("slow", folder=site.folder)

    def slow(task):
        began.append(task.child_id)
        if len(began) == 1:
            assert release.wait(600)
        return len(began)

    plan.stage(name="slow", targets=["a"], timeout=1, version="1")(slow)
    assert site.run(plan)["state"] == "FAILED"
    done = []
    runner = threading.Thread(target=lambda: done.append(site.run(plan)))
    runner.start()
    until(lambda: any(said["status"] == "HELD" for said in site.told))
    assert len(began) == 1
    release.set()
    runner.join()
    assert done[0]["state"] == "SUCCESS" and len(began) == 2


def carried(kernel, resolved, stop=None, jobs=2, told=lambda said: None):
    """A build of a kernel that lives on afterwards; `told` is given the build beside what is said of it."""
    build = builds.begin(
        kernel, kernel.actor, resolved, plan_file="", jobs=jobs, limits={}, reuse=False
    )
    running = prepared(
        kernel, build, resolved, jobs, True, False, told=lambda said: told(running, said)
    )
    run_build(kernel, running, stop or threading.Event())
    running.children.close()
    return build


@pytest.mark.rule("C-40", "B-7")
@pytest.mark.guarantee("G8")
def test_a_step_that_is_cancelled_before_it_began_gives_its_target_back(site):
    """It has its target from when it is queued; the kernel lives on, so nobody else would give it back."""
    kernel = site.workspace.kernel()
    asked = []

    def cancel(running, said):
        # Said after it was queued, before any slot looks for it.
        if said["status"] == "running" and said["step"] == "work:a":
            payload = {"subject": said["child_id"]}
            asker = threading.Thread(target=lambda: site.ask("children.cancel", **payload))
            asker.start()
            asked.append(asker)
            until(lambda: has_ended(kernel, said["child_id"]))

    try:
        build = carried(kernel, site.load(shell_plan(site, targets="ab")), told=cancel)
        for asker in asked:
            asker.join()
        assert len(asked) == 1
        TargetLock(site.workspace.folder / "locks").acquire(lock_target("shared", "work", "a"))
    finally:
        kernel.close()
    assert site.steps(build) == {"work:a": "CANCELLED", "work:b": "SUCCESS"}


@pytest.mark.rule("L-24", "B-7")
@pytest.mark.guarantee("G8")
def test_steps_that_are_stopped_before_they_began_give_their_targets_back(site):
    kernel = site.workspace.kernel()

    def stop(running, said):
        # Said after they were queued, before any slot looks for them.
        if said["status"] == "running":
            running.stop()
            running.children.stop()

    try:
        build = carried(kernel, site.load(shell_plan(site, targets="ab")), told=stop)
        started = [e for e in site.events(build) if e["event"] == "WORKER_START"]
        assert started == []
        for target in "ab":
            TargetLock(site.workspace.folder / "locks").acquire(
                lock_target("shared", "work", target)
            )
    finally:
        kernel.close()


@pytest.mark.rule("B-16", "L-6")
def test_a_step_that_waits_for_its_target_uses_up_no_start_of_its_stage(site):
    elsewhere = TargetLock(site.workspace.folder / "locks")
    claim = elsewhere.acquire(lock_target("shared", "work", "a"))
    plan = Plan("shared", folder=site.folder)
    plan.command("work", ["true"], targets=["a"], rate="1/h")
    runner = threading.Thread(target=lambda: site.run(plan))
    runner.start()
    until(lambda: any(said["status"] == "HELD" for said in site.told))
    elsewhere.release(claim)
    try:
        until(lambda: any(said["status"] == "SUCCESS" for said in site.told), 60)
    except AssertionError:
        site.ask("builds.abandon", build=site.build_id, failed=False)
        raise
    finally:
        runner.join()


def has_ended(kernel, child_id):
    with kernel.store.read() as rows:
        return is_terminal(rows, child_id)
