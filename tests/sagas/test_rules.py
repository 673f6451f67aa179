"""Every refusal of a saga and of its runs, by values: no database, no clock (S-1 to S-4, S-8)."""

from __future__ import annotations

import msgspec
import pytest

from onceward.core.limits import MAX_ACTIONS
from onceward.core.sagas import Lease, Run, SagaStep
from onceward.sagas import rules
from onceward.sagas.machine import ASSEMBLY, CUT, ROLLBACK, UNDO, SagaState, Shape
from refusals import refused, refused_unless

SHAPE = Shape("order", (SagaState("A", "COMP_A", ("A",)), SagaState("B", "COMP_B", ("B", "A"))))
RUN = Run(
    saga_id="sga_1",
    name="order",
    idempotency_root="root-1",
    shape=SHAPE.text(),
    input='{"order":7}',
    file="",
    grant_id="grt_1",
    lease="run:root-1",
    lease_fence=1,
    digests="{}",
    last_ok_state=None,
    undone=0,
    stuck=None,
    settled=0,
    state="A",
    version=1,
)
NOW = 1_000_000


def run(**but):
    return msgspec.structs.replace(RUN, **but)


def shape(*states, name="order"):
    return Shape(name, states)


def lease(holder, seconds=10):
    return Lease("run:root-1", holder, "token", 1, NOW + seconds * 1_000_000)


@pytest.mark.rule("S-1")
@pytest.mark.parametrize("good", [SHAPE, ASSEMBLY, ROLLBACK, CUT, UNDO], ids=lambda s: s.name)
def test_a_shape_that_makes_a_table_is_taken(good):
    assert rules.require_shape(good) is good


@pytest.mark.rule("S-1")
@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (shape(), f"a saga has 1 to {MAX_ACTIONS} actions"),
        (
            shape(*(SagaState(f"A{n}", f"COMP_{n}") for n in range(MAX_ACTIONS + 1))),
            f"a saga has 1 to {MAX_ACTIONS} actions",
        ),
        (shape(SagaState("1A", "COMP")), "is no action's name"),
        (shape(SagaState("A b", "COMP")), "is no action's name"),
        (shape(SagaState("A", "COMP_A"), SagaState("A", "COMP_A")), "A stands for two things"),
        (shape(SagaState("A", "B"), SagaState("B", "COMP_B")), "B stands for two things"),
        (shape(SagaState("DONE", "COMP")), "DONE stands for two things"),
        (shape(SagaState("new", "COMP")), "new stands for two things"),
        (shape(SagaState("A", "COMP", ("A",)), SagaState("B", "COMP", ("B",))), "share a stop"),
        (shape(SagaState("A", "no stop")), "this saga has no table"),
        (shape(SagaState("A", "COMP"), name=""), ""),
    ],
)
def test_a_shape_that_makes_no_table_is_refused(bad, words):
    with refused("INVALID_CONFIG", words):
        rules.require_shape(bad)


def test_an_action_is_made_of_a_function():
    rules.require_function(print)
    with refused("INVALID_CONFIG", "not of 'reserve'"):
        rules.require_function("reserve")


@pytest.mark.parametrize("word", ["timeout", "attempts", "retries"])
def test_an_action_has_no_unknown_words(word):
    known = {"timeout", "attempts"}
    with refused_unless(word in known, "INVALID_CONFIG", f"an action has no {word}"):
        rules.require_known_words({word: 1, "timeout": 2}, known)


@pytest.mark.parametrize("name", ["reserve", "pay"])
def test_every_action_has_a_name_of_its_own(name):
    with refused_unless(name == "pay", "INVALID_CONFIG", "two actions reserve"):
        rules.require_new_action(name, {"reserve": None})


@pytest.mark.parametrize("command", [None, ["true"], "true"])
def test_a_command_is_a_list_of_words(command):
    with refused_unless(command != "true", "INVALID_CONFIG", "a list of words, no text"):
        rules.require_command("pay", command)


@pytest.mark.parametrize("compensate", [print, ["true"], ("true",), "true", 7, {"run": 1}])
def test_a_compensation_is_a_function_or_a_command(compensate):
    good = callable(compensate) or isinstance(compensate, (list, tuple))
    with refused_unless(good, "INVALID_CONFIG", "the compensation of pay is a function or"):
        rules.require_compensation("pay", compensate)


async def later(seen):
    return True


@pytest.mark.rule("S-1")
@pytest.mark.parametrize(
    ("judge", "words"),
    [
        (7, "a check or guard is a function"),
        (later, "cannot be async"),
        (lambda: True, "takes one argument"),
        (lambda one, two: True, "takes one argument"),
    ],
)
def test_a_check_or_guard_answers_at_once_of_what_it_is_shown(judge, words):
    for good in (None, lambda seen: True, lambda seen, more=1: True, bool):
        rules.require_judge(good)
    with refused("INVALID_CONFIG", words):
        rules.require_judge(judge)


@pytest.mark.rule("S-3")
@pytest.mark.parametrize("granted", [True, False])
@pytest.mark.parametrize("grant_id", ["grt_1", "", None])
def test_a_saga_that_needs_a_grant_runs_under_one(granted, grant_id):
    good = not granted or bool(grant_id)
    with refused_unless(good, "PERMIT_INVALID", "saga order runs only under a grant"):
        rules.require_grant("order", granted, grant_id)


@pytest.mark.rule("S-1")
@pytest.mark.parametrize(
    ("but", "what"),
    [({"saga": "other"}, "saga"), ({"text": "null"}, "input"), ({"grant_id": None}, "grant")],
)
def test_one_root_is_one_run(but, what):
    same = {"saga": "order", "text": RUN.input, "grant_id": "grt_1"}
    rules.require_same_run(RUN, **same, root="root-1")
    with refused("URM_IDEMPOTENCY_KEY_CONFLICT", f"which has another {what}"):
        rules.require_same_run(RUN, **{**same, **but}, root="root-1")


@pytest.mark.rule("S-1")
def test_a_run_goes_on_with_the_actions_it_began_with():
    rules.require_same_shape(RUN, SHAPE, ["A", "B"])
    with refused("INVALID_RESUME_STATE", "has other actions now than when sga_1 began: A, B"):
        rules.require_same_shape(RUN, shape(SagaState("A", "COMP_A", ("A",))), ["A"])


@pytest.mark.parametrize(
    ("state", "settled"), [("A", 0), ("COMP_A", 0), ("COMP_A", 1), ("DONE", 0)]
)
def test_a_run_that_is_over_is_neither_resumed_nor_given_up(state, settled):
    good = state != "DONE" and not settled
    with refused_unless(good, "INVALID_RESUME_STATE", f"run sga_1 is over: it is {state}"):
        rules.require_unfinished(run(state=state, settled=settled))


@pytest.mark.rule("S-1")
def test_a_run_that_is_stuck_is_retried_and_one_that_is_not_is_resumed():
    stuck = run(state="COMP_A", stuck='{"step":"A"}')
    rules.require_not_stuck(RUN)
    rules.require_stuck(stuck)
    with refused("INVALID_RESUME_STATE", "is stuck at COMP_A, and waits for a person"):
        rules.require_not_stuck(stuck)
    with refused("INVALID_RESUME_STATE", "run sga_1 is not stuck"):
        rules.require_stuck(RUN)


@pytest.mark.parametrize("there", [True, False])
def test_a_run_is_resumed_from_the_file_of_its_saga(there):
    with refused_unless(there, "INVALID_RESUME_STATE", "is not at order.py any more"):
        rules.require_saga_file(run(file="order.py"), there)
    with refused_unless(there, "INVALID_RESUME_STATE", "was in no file"):
        rules.require_saga_file(RUN, there)


@pytest.mark.rule("S-4")
@pytest.mark.parametrize(
    ("held", "free"),
    [
        (None, True),
        (lease(""), True),
        (lease("root-1"), True),
        (lease("root-2", seconds=0), True),
        (lease("root-2", seconds=-1), True),
        (lease("root-2"), False),
    ],
)
def test_a_lease_is_taken_that_no_other_run_holds(held, free):
    with refused_unless(free, "LOCK_CONFLICT", "is held by run root-2, for up to 10 s more"):
        rules.require_free_lease("run:root-1", held, "root-1", NOW)


@pytest.mark.rule("S-4")
def test_a_run_goes_on_and_writes_under_its_lease_only():
    rules.require_held("sga_1", True)
    rules.require_not_lost("sga_1", False)
    with refused("LOCK_LOST", "another holds it"):
        rules.require_held("sga_1", False)
    with refused("LOCK_LOST", "nothing more was written"):
        rules.require_not_lost("sga_1", True)


@pytest.mark.parametrize(
    ("step", "side", "status"),
    [
        ("A", "action", "done"),
        ("A", "action", "failed"),
        ("A", "compensation", "done"),
        ("B", "action", "done"),
    ],
)
def test_only_an_action_that_is_done_has_a_result(step, side, status):
    row = SagaStep("sga_1", step, side, status, "[]", "chd_1", None)
    good = (step, side, status) == ("A", "action", "done")
    with refused_unless(good, "NOT_FOUND", "run sga_1 has no result of 'A'"):
        assert rules.require_result("sga_1", "A", [row]) is row
