"""Every refusal of children, sessions and budgets, by values: no database, no clock."""

from __future__ import annotations

import pytest

from onceward.core.limits import MAX_INTEGER, MAX_JOBS
from onceward.core.vocabulary import Value
from onceward.dispatch import rules
from onceward.dispatch.budget import Refusal
from refusals import refused, refused_unless

ATOMICITY = "URM_SCHEDULER_PHASE_EVENT_ATOMICITY_VIOLATION"
VALUE = Value(
    vocab_id="voc_1",
    collection_id="col_1",
    operation_code="post",
    protocol_version="1.0.0",
    act_type="write",
    governing_authority_ref="ref",
    semantics_frozen=1,
    digest="ab" * 32,
    root="root-1",
    successor_code=None,
    successor_version=None,
    audit_id=None,
    status="active",
    version=1,
)


def value(**but):
    return Value(**{name: getattr(VALUE, name) for name in Value.__struct_fields__} | but)


# Sessions.


@pytest.mark.rule("C-5")
@pytest.mark.parametrize("cap", [-1, 0, 1, MAX_JOBS, MAX_JOBS + 1])
def test_a_session_runs_one_child_at_least_and_the_limit_at_most(cap):
    with refused_unless(1 <= cap <= MAX_JOBS, "INVALID_CONFIG", f"children at once, not {cap}"):
        rules.require_cap(cap)


@pytest.mark.parametrize("holds", [True, False])
def test_only_the_kernel_of_a_workspace_runs_children(holds):
    with refused_unless(holds, "LOCK_LOST", "only the kernel"):
        rules.require_tenure(holds)


@pytest.mark.rule("C-20")
@pytest.mark.parametrize("recovered", [True, False])
def test_nothing_is_dispatched_before_recovery_is_done(recovered):
    with refused_unless(recovered, "LOCK_LOST", "before recovery is done"):
        rules.require_recovered(recovered)


@pytest.mark.parametrize("closed", [True, False])
def test_a_closed_session_takes_no_more_children(closed):
    with refused_unless(not closed, "INVALID_CONFIG", "session ses_1 is closed"):
        rules.require_open("ses_1", closed)


@pytest.mark.parametrize(
    ("matches", "why"),
    [([], "there is no session ses_"), (["ses_1", "ses_2"], "more than one session begins with")],
)
def test_the_beginning_of_an_id_means_one_session_or_none(matches, why):
    assert rules.require_one_session("ses_", ["ses_1"]) == "ses_1"
    with refused("NOT_FOUND", why):
        rules.require_one_session("ses_", matches)


# What a child is asked to do.


@pytest.mark.parametrize("seconds", [None, 0.001, 60, 0, -1, float("nan")])
def test_a_time_limit_is_more_than_nothing(seconds):
    fits = seconds is None or seconds > 0
    with refused_unless(fits, "INVALID_CONFIG", "a time of more than 0 seconds"):
        rules.require_timeout(seconds)


@pytest.mark.parametrize("name", ["extract", "Work.extract", "<lambda>", "make.<locals>.work"])
def test_a_function_for_another_process_has_a_name_there(name):
    with refused_unless("<" not in name, "INVALID_CONFIG", f"{name} has no name by which"):
        rules.require_findable(name)


@pytest.mark.rule("C-9")
@pytest.mark.parametrize("argv", [["true"], ["true", ""], [], [""], ["", "true"]])
def test_a_command_has_a_program(argv):
    with refused_unless(bool(argv and argv[0]), "INVALID_CONFIG", "a command has a program"):
        rules.require_program(argv)


@pytest.mark.rule("C-9")
def test_values_need_a_place_in_the_command():
    rules.require_place_for_values(["echo", "a{}b"], ["1", "2"])
    rules.require_place_for_values(["echo"], [])
    with refused("INVALID_CONFIG", "the command has none"):
        rules.require_place_for_values(["echo", "{"], ["1"])


@pytest.mark.rule("C-9")
@pytest.mark.parametrize(
    ("target", "commands", "fits"),
    [(None, 2, True), ("db", 1, True), ("db-{}", 2, True), ("db", 2, False)],
)
def test_several_commands_do_not_share_a_target(target, commands, fits):
    with refused_unless(fits, "INVALID_CONFIG", "one target cannot be held by several"):
        rules.require_targets_apart(target, commands)


@pytest.mark.parametrize(
    ("of_server", "why"),
    [(False, "is not set, so it cannot be passed on"), (True, "the server has no value of 'B'")],
)
def test_a_variable_that_a_command_asks_for_is_set(of_server, why):
    rules.require_variables(["A"], {"A"}, of_server=of_server)
    with refused("INVALID_CONFIG", why):
        rules.require_variables(["A", "B"], {"A"}, of_server=of_server)


@pytest.mark.parametrize(
    ("needed", "why"), [(["a", "b"], "it needs a, b"), ([], "it needs nothing")]
)
def test_a_step_reads_only_what_it_needs(needed, why):
    rules.require_needed("c", [*needed, "c"])
    with refused("INVALID_CONFIG", f"this step does not need 'c'; {why}"):
        rules.require_needed("c", needed)


# Registered operations.


@pytest.mark.rule("S-7")
@pytest.mark.parametrize(("operation", "required"), [("", True), ("", False), ("post", True)])
def test_work_names_an_operation_where_the_workspace_requires_one(operation, required):
    fits = bool(operation) or not required
    with refused_unless(fits, "CANONICAL_OPERATION_VALUE_ABSENT", "names no operation"):
        rules.require_operation_named("stage a", operation, required)


@pytest.mark.rule("S-7")
@pytest.mark.parametrize("effect", ["", "write"])
def test_an_operation_in_force_is_used_for_its_own_act(effect):
    rules.require_operation_usable("stage a", "post@1.0.0", effect, VALUE)


@pytest.mark.rule("S-7")
@pytest.mark.parametrize(
    ("effect", "stored", "code", "why"),
    [
        ("", None, "CANONICAL_OPERATION_VALUE_ABSENT", "which is not in the registry"),
        (
            "",
            value(status="retired"),
            "CANONICAL_OPERATION_RETIRED_FOR_NEW_USE",
            "which is retired",
        ),
        (
            "write",
            value(status="superseded", successor_code="post", successor_version="2.0.0"),
            "CANONICAL_OPERATION_RETIRED_FOR_NEW_USE",
            "which is superseded; post@2.0.0 follows it",
        ),
        ("read", VALUE, "WRONG_CANONICAL_OPERATION_FOR_EFFECT", "does read, but post@1.0.0 is for"),
    ],
)
def test_an_operation_that_is_not_in_force_or_for_another_act_is_refused(effect, stored, code, why):
    with refused(code, why):
        rules.require_operation_usable("stage a", "post@1.0.0", effect, stored)


# Running children.


@pytest.mark.rule("C-40")
@pytest.mark.parametrize("asked", ["", "cancel", "stop", "timeout", "budget"])
def test_a_child_that_was_asked_to_end_neither_begins_nor_goes_on(asked):
    with refused_unless(not asked, "URM_CHILD_START_FAILED", f"before it began: {asked}"):
        rules.require_wanted(asked)
    with refused_unless(not asked, "EXECUTION_FAILED", f"was asked to end: {asked}"):
        rules.require_not_asked_to_end(asked)


@pytest.mark.rule("C-30")
@pytest.mark.parametrize("ended", [True, False])
def test_nothing_is_debited_for_a_child_that_has_ended(ended):
    with refused_unless(not ended, "EXECUTION_FAILED", "this child has ended"):
        rules.require_debitable(ended)


@pytest.mark.rule("C-30")
@pytest.mark.parametrize("countable", [4, 5])
def test_a_lane_counts_the_whole_amount_or_refuses_it(countable):
    with refused_unless(countable == 5, "INVALID_CONFIG", f"cannot count beyond {MAX_INTEGER}"):
        rules.require_countable("tokens", 5, countable)


@pytest.mark.rule("C-30")
@pytest.mark.parametrize(
    ("refusal", "why"),
    [
        (
            Refusal("tokens", 10, 8, 3),
            "the budget has no room: tokens is at 8 of 10, 3 more asked",
        ),
        (Refusal("tokens", 10, 11, 0), "the budget has no room: tokens is at 11 of 10"),
        (
            Refusal("usd_micros", 2_000_000, 1_500_000, 1_000_000, "workspace"),
            "the workspace's budget has no room: usd is at 1.50 of 2.00, 1.00 more asked",
        ),
    ],
)
def test_a_debit_that_fits_into_no_lane_is_refused_with_where_it_stands(refusal, why):
    rules.require_budget(None)
    with refused("URM_CHILD_BUDGET_EXCEEDED", why):
        rules.require_budget(refusal)


# What a dead kernel left.


@pytest.mark.rule("C-4")
@pytest.mark.parametrize("phase", ["queued", "leased", "started"])
@pytest.mark.parametrize("event", [None, "WORKER_START", "WORKER_PASS"])
def test_a_token_and_its_stream_say_the_same(phase, event):
    agrees = event == ("WORKER_START" if phase == "started" else None)
    why = f"child chd_1 is {phase}, but its stream ends with {event or 'nothing'}"
    with refused_unless(agrees, ATOMICITY, why):
        rules.require_phase_of_stream("chd_1", phase, event)


@pytest.mark.rule("C-4")
@pytest.mark.parametrize(
    "body",
    [None, '{"child_id":"chd_2","to":"terminal"}', '{"child_id":"chd_1","to":"started"}', "{}"],
)
def test_a_child_that_has_ended_has_its_terminal_event(body):
    rules.require_terminal_event("chd_1", '{"child_id":"chd_1","to":"terminal"}')
    with refused(ATOMICITY, "its stream has no terminal event"):
        rules.require_terminal_event("chd_1", body)


# Target locks.


def test_only_a_target_that_somebody_claimed_has_a_claim():
    claims = [{"target": "db"}, {"target": "web", "nonce": "n"}]
    assert rules.require_claim("web", claims) is claims[1]
    with refused("NOT_FOUND", "nothing has claimed mail"):
        rules.require_claim("mail", claims)


@pytest.mark.parametrize(
    ("nonce", "current", "fits"),
    [
        (None, "n", True),
        (None, None, True),
        ("n", "n", True),
        ("unreadable", None, True),
        ("m", "n", False),
        ("n", None, False),
        ("unreadable", "n", False),
    ],
)
def test_only_the_claim_that_somebody_looked_at_is_cleared(nonce, current, fits):
    with refused_unless(fits, "INVALID_CONFIG", "another nonce"):
        rules.require_same_claim(nonce, current)
