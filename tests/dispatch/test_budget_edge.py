"""Builds at the edge of their budget: what is paid for is kept, and nothing is paid for twice (B-9, C-30)."""

from __future__ import annotations

import json
import shlex
import threading
from pathlib import Path

import msgspec
import pytest

from helpers import assert_sound
from onceward import Plan
from onceward.builds.lifecycle import Offer
from onceward.builds.views import build_view
from onceward.core.views import document
from onceward.dispatch.budget import amounts, best_reading
from onceward.errors import InvalidResumeState
from typing_in import until


class Model:
    """Something that charges: its bill is its own, one line for every call, and it dedupes nothing."""

    def __init__(self, folder: Path) -> None:
        self._bill = folder / "bill"
        self._mutex = threading.Lock()

    def answer(self, question: str) -> str:
        with self._mutex, self._bill.open("a") as file:
            file.write(f"{question}\n")
        return f"answer to {question}"

    @property
    def calls(self) -> list[str]:
        return self._bill.read_text().split()


def paying(site, model, targets="abcdef", meet=0, **words):
    """README's own idiom: call, settle, return. The first `meet` calls run at the same time."""
    plan = Plan("edge", folder=site.folder, budget={"usd": "0.05"}, **words)
    together = threading.Barrier(meet) if meet else None
    first = threading.Semaphore(meet)

    def ask(task):
        if together is not None and first.acquire(blocking=False):
            together.wait(600)
        answer = model.answer(task.target)
        task.spend(usd="0.03", settled=True)
        return answer

    plan.stage(name="ask", targets=list(targets), version="1")(ask)
    return plan


def sound(site):
    store = site.workspace.store()
    try:
        with store.read() as rows:
            assert_sound(rows)
    finally:
        store.close()


def typed(command, token="", file=None):
    """What a person offers who types a command as it was suggested, with the token and a file put in."""
    words = shlex.split(command.partition("   (")[0])
    pairs = list(zip(words[3::2], words[4::2], strict=True))
    said = [(word, value.replace("TOKEN", token)) for word, value in pairs]
    return Offer(
        token=next((value for word, value in said if word == "--token"), ""),
        limits=amounts(dict(v.split("=") for word, v in said if word == "--budget") or {"usd": 0}),
        accept={value.split("=")[0]: file for word, value in said if word == "--accept"},
    )


def more(outcome, micros):
    return Offer(token=outcome["confirmation_token"], limits={"usd_micros": micros})


@pytest.mark.rule("B-9", "C-30")
@pytest.mark.guarantee("G15")
@pytest.mark.parametrize("jobs", [1, 4, 20])
def test_no_paid_answer_is_lost_or_paid_again_at_the_edge(site, jobs):
    model = Model(site.folder)
    at_once = min(jobs, 6)
    plan = paying(site, model, meet=at_once if jobs > 1 else 0)
    outcome = site.run(plan, jobs=jobs)
    assert (outcome["state"], outcome["reason"]) == ("BUDGET_PAUSE", "budget_exceeded")
    paid = len(model.calls)
    # The first to settle leaves room: its slot may begin one more before the next settles.
    assert at_once <= paid <= at_once + 1
    assert list(site.steps().values()).count("SUCCESS") == paid
    assert outcome["cost_usd"] == f"{paid * 0.03:.2f}"
    outcome = site.resume(plan, site.build_id, more(outcome, 1_000_000))
    assert outcome["state"] == "SUCCESS" and outcome["cost_usd"] == "0.18"
    assert sorted(model.calls) == list("abcdef")
    sound(site)


@pytest.mark.rule("B-9", "C-30")
def test_commands_that_exited_well_are_kept_at_the_edge(site):
    line = '{"spend":{"usd":"0.03"},"settled":true}'
    bill = site.folder / "bill"
    script = f"echo x >> {bill}; echo '{line}' >&3; head -n 1 <&4 >/dev/null; echo done"
    plan = Plan("edge", folder=site.folder, budget={"usd": "0.05"})
    plan.command("ask", ["sh", "-c", script], targets=list("abcd"))
    outcome = site.run(plan, jobs=1)
    assert outcome["state"] == "BUDGET_PAUSE"
    assert list(site.steps().values()).count("SUCCESS") == 2
    outcome = site.resume(plan, site.build_id, more(outcome, 1_000_000))
    assert outcome["state"] == "SUCCESS" and len(bill.read_text().split()) == 4
    sound(site)


@pytest.mark.rule("B-9")
def test_a_step_within_the_prechecks_slack_is_kept(site):
    model = Model(site.folder)
    plan = Plan("edge", folder=site.folder, budget={"usd": "0.05"})

    def ask(task):
        model.answer(task.target)
        task.spend(usd="0.055", settled=True)
        return 1

    plan.stage(name="ask", targets=["a"], estimate={"usd": "0.055"}, version="1")(ask)
    outcome = site.run(plan)
    assert outcome["state"] == "BUDGET_PAUSE" and site.steps() == {"ask:a": "SUCCESS"}
    assert site.resume(plan, site.build_id, more(outcome, 60_000))["state"] == "SUCCESS"
    assert model.calls == ["a"]


@pytest.mark.rule("B-9")
def test_a_step_that_would_not_fit_beside_what_is_in_flight_waits(site):
    """Room for three estimates: with six slots no more than three run at once, and nothing pauses."""
    running, most, mutex = 0, 0, threading.Lock()
    plan = Plan("edge", folder=site.folder, budget={"usd": "0.09"})

    def ask(task):
        nonlocal running, most
        with mutex:
            running += 1
            most = max(most, running)
        task.spend(usd="0.01", settled=True)
        with mutex:
            running -= 1
        return 1

    plan.stage(name="ask", targets=list("abcdef"), estimate={"usd": "0.03"}, version="1")(ask)
    outcome = site.run(plan, jobs=6)
    assert outcome["state"] == "SUCCESS" and outcome["cost_usd"] == "0.06"
    assert most <= 3
    sound(site)


@pytest.mark.rule("B-9")
def test_what_a_step_in_flight_has_settled_is_not_expected_of_it_once_more(site):
    """The first has settled all that was expected of it, and ends only after the last has begun."""
    settled, begun = threading.Event(), threading.Event()
    plan = Plan("edge", folder=site.folder, budget={"usd": "0.10"})

    def first(task):
        task.spend(usd="0.06", settled=True)
        settled.set()
        assert begun.wait(60), "the last step waited for money that was there"

    plan.stage(name="first", estimate={"usd": "0.06"}, version="1")(first)
    plan.stage(name="gate", version="1")(lambda task: settled.wait(600) and None)
    plan.stage(name="last", needs="gate", estimate={"usd": "0.04"}, version="1")(
        lambda task: begun.set()
    )
    assert site.run(plan, jobs=2)["state"] == "SUCCESS"


@pytest.mark.rule("B-9")
def test_nothing_more_is_expected_of_a_step_that_failed(site):
    """Either estimate fits, both do not: the last begins when nothing is in flight, and not beside a ghost."""
    plan = Plan("edge", folder=site.folder, budget={"usd": "0.10"})

    def fail(task):
        raise ValueError("unpaid")

    plan.stage(name="fails", estimate={"usd": "0.06"}, version="1")(fail)
    plan.stage(name="between", version="1")(lambda task: 1)
    plan.stage(name="last", after="between", estimate={"usd": "0.06"}, version="1")(lambda task: 1)
    runner = threading.Thread(target=lambda: site.run(plan, jobs=1, keep_going=True))
    runner.start()
    try:
        until(lambda: sum(said["status"] == "SUCCESS" for said in site.told) == 2, 60)
    except AssertionError:
        site.ask("builds.abandon", build=site.build_id, failed=False)
        raise
    finally:
        runner.join()
    assert site.steps() == {
        "fails:main": "FAILED",
        "between:main": "SUCCESS",
        "last:main": "SUCCESS",
    }
    sound(site)


@pytest.mark.rule("B-9")
def test_a_precheck_pauses_only_once_nothing_of_its_lane_is_in_flight(site):
    model = Model(site.folder)
    plan = paying(site, model, targets="abc")
    plan.stages[0] = msgspec.structs.replace(plan.stages[0], estimate={"usd_micros": 30_000})
    outcome = site.run(plan, jobs=3)
    # One fits, the second would not fit beside it; when it has settled, what remains is too little.
    assert (outcome["state"], outcome["reason"]) == ("BUDGET_PAUSE", "budget_precheck_block")
    assert model.calls == ["a"] and site.steps()["ask:a"] == "SUCCESS"


@pytest.mark.rule("B-9", "C-30")
def test_steps_whose_time_crossed_the_budget_are_kept_and_the_suggested_budget_is_taken(site):
    plan = Plan("edge", folder=site.folder, budget={"duration_secs": 1})
    meet = threading.Barrier(2)

    def wait(task):
        if task.target in "ab":
            meet.wait(600)
            threading.Event().wait(1.2)
        return task.target

    plan.stage(name="wait", targets=list("abcd"), version="1")(wait)
    outcome = site.run(plan, jobs=2)
    assert (outcome["state"], outcome["reason"]) == ("BUDGET_PAUSE", "budget_exceeded")
    assert site.steps() == {
        "wait:a": "SUCCESS",
        "wait:b": "SUCCESS",
        "wait:c": "waiting",
        "wait:d": "waiting",
    }
    seconds = int(outcome["next"].partition("duration_secs=")[2].split()[0])
    offer = Offer(token=outcome["confirmation_token"], limits={"duration_secs": seconds})
    assert site.resume(plan, site.build_id, offer)["state"] == "SUCCESS"
    sound(site)


@pytest.mark.rule("B-9", "B-10")
def test_a_build_that_paused_with_everything_done_goes_on_as_suggested(site):
    model = Model(site.folder)
    plan = paying(site, model, meet=6)
    outcome = site.run(plan, jobs=6)
    assert outcome["state"] == "BUDGET_PAUSE" and outcome["steps"]["executed"] == 6
    assert "usd is at 0.18 of 0.05" in outcome["why"]
    with site.workspace.reading() as store:
        later = document(build_view(store, site.build_id))["next"]
    assert outcome["next"] == later and "MORE" not in later
    outcome = site.resume(plan, site.build_id, typed(later, outcome["confirmation_token"]))
    assert outcome["state"] == "SUCCESS" and len(model.calls) == 6


@pytest.mark.rule("B-8", "B-9")
def test_a_pause_with_a_step_in_doubt_names_all_that_is_wanted(site):
    model = Model(site.folder)
    plan = Plan("edge", folder=site.folder, budget={"usd": "0.05"})

    def ask(task):
        model.answer(task.target)
        task.spend(usd="0.03", settled=True)
        return object() if task.target == "a" else 1

    plan.stage(name="ask", targets=list("abc"), version="1")(ask)
    outcome = site.run(plan, jobs=1)
    assert outcome["state"] == "BUDGET_PAUSE" and "ask:a ended well" in outcome["why"]
    file = site.folder / "a.json"
    file.write_text("1")
    token = outcome["confirmation_token"]
    whole = typed(outcome["next"], token, file)
    for less in (
        msgspec.structs.replace(whole, accept={}),
        msgspec.structs.replace(whole, limits={}),
    ):
        with pytest.raises(InvalidResumeState) as refused:
            site.resume(plan, site.build_id, less)
        command = next(way.command for way in refused.value.recovery if "--accept" in way.command)
        again = typed(command, token, file)
        assert again.token == token and list(again.accept) == ["ask:a"]
    outcome = site.resume(plan, site.build_id, whole)
    assert outcome["state"] == "SUCCESS" and sorted(model.calls) == list("abc")
    sound(site)


@pytest.mark.rule("B-8")
@pytest.mark.parametrize("keep_going", [False, True])
def test_a_paid_step_in_doubt_is_not_paid_again_because_another_failed(site, keep_going):
    model = Model(site.folder)
    good = site.folder / "good"
    plan = Plan("both", folder=site.folder)

    def pay(task):
        model.answer(task.target)
        return object()

    def fail(task):
        if not good.exists():
            raise RuntimeError("it broke")

    plan.stage(name="pay", targets=["a"], version="1")(pay)
    plan.stage(name="fail", targets=["b"], version="1")(fail)
    outcome = site.run(plan, jobs=1, keep_going=keep_going)
    assert (outcome["state"], outcome["in_doubt"]) == ("CRASHED", ["pay:a"])
    assert "pay:a ended well" in outcome["why"] and "it broke" in outcome["why"]
    with pytest.raises(InvalidResumeState, match="decide about pay:a"):
        site.run(plan)
    file = site.folder / "a.json"
    file.write_text("1")
    good.touch()
    outcome = site.resume(plan, site.build_id, typed(outcome["next"], file=file))
    assert outcome["state"] == "SUCCESS" and model.calls == ["a"]
    sound(site)


@pytest.mark.rule("C-30")
@pytest.mark.parametrize(
    ("said", "micros"),
    [
        ("$0.02", 20_000),
        ("0,02", 20_000),
        ("0.02 USD", 20_000),
        ("$1,000", 1_000_000_000),
        ("1,234.5", 1_234_500_000),
        ("between 1 and 2", 70),
        ("-3", 70),
        (None, 70),
        (float("nan"), 70),
    ],
)
def test_money_that_is_gone_is_read_as_it_was_probably_meant_or_estimated(said, micros):
    read = best_reading({"usd": said}, {"usd_micros": 70})
    assert read.amounts == {"usd_micros": micros} and "usd" in read.mistake


@pytest.mark.rule("C-30", "B-9")
def test_a_budget_binds_also_where_amounts_are_said_badly(site):
    model = Model(site.folder)
    plan = Plan("edge", folder=site.folder, budget={"usd": "0.05"})

    def ask(task):
        model.answer(task.target)
        task.spend(usd="$0.02" if task.target < "c" else None, settled=True)
        return 1

    plan.stage(name="ask", targets=list("abcdef"), version="1")(ask)
    outcome = site.run(plan, jobs=1)
    # What cannot be read at all costs what such steps cost before.
    assert outcome["state"] == "BUDGET_PAUSE" and model.calls == ["a", "b"]
    assert "ask:a (usd takes a number, not '$0.02'" in outcome["unread"]
    outcome = site.resume(plan, site.build_id, more(outcome, 100_000))
    assert (outcome["state"], outcome["cost_usd"]) == ("BUDGET_PAUSE", "0.10")
    assert model.calls == list("abcde")
    sound(site)


@pytest.mark.rule("B-2")
def test_what_is_collected_is_a_dict_that_can_be_sent_on(site):
    plan = Plan("fan", folder=site.folder)
    plan.stage(name="make", targets=["a", "b"], version="1")(lambda task: {"n": task.target})

    def index(task):
        found = task.inputs["make"]
        assert found is task.inputs["make"]
        return f"{json.dumps(found)} {found} {found | {}}"

    plan.stage(name="index", collect=["make"], version="1")(index)
    assert site.run(plan)["state"] == "SUCCESS"


@pytest.mark.rule("B-10", "B-9")
def test_a_resume_without_room_for_what_was_refused_is_refused_and_its_token_kept(site):
    """More than is spent, but not enough: the same debit would only be refused again."""
    plan = Plan("edge", folder=site.folder, budget={"usd": "0.05"})
    plan.stage(name="ask", targets=["a", "b"], version="1")(lambda task: task.spend(usd="0.04"))
    outcome = site.run(plan, jobs=1)
    assert (outcome["state"], outcome["reason"]) == ("BUDGET_PAUSE", "budget_exceeded")
    with pytest.raises(InvalidResumeState, match=r"the next step wants 0\.04"):
        site.resume(plan, site.build_id, more(outcome, 79_999))
    assert site.status()["state"] == "BUDGET_PAUSE"
    assert site.resume(plan, site.build_id, more(outcome, 80_000))["state"] == "SUCCESS"
    sound(site)


@pytest.mark.rule("B-9", "C-30")
def test_the_time_of_a_step_that_has_just_ended_is_counted_once(site):
    """Twice its time would be more than there is."""
    plan = Plan("edge", folder=site.folder, budget={"duration_secs": 6})
    plan.stage(name="long", version="1")(lambda task: threading.Event().wait(3.1))
    plan.stage(name="short", after="long", version="1")(lambda task: 1)
    assert site.run(plan, jobs=1)["state"] == "SUCCESS"
