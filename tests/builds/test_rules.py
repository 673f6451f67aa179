"""Every refusal of builds and plans, by values: no database, no clock, no files."""

from __future__ import annotations

import msgspec
import pytest

from onceward.builds import rules
from onceward.builds.rules import ResumeWords
from onceward.core.limits import MAX_OUTPUT_FILES, MAX_OUTPUT_PATH
from onceward.core.records import Build, Permit
from onceward.dispatch.budget import Lane
from onceward.dispatch.stage import Stage
from onceward.errors import InvalidConfig, OncewardError
from refusals import refused, refused_unless

BUILD = Build(
    build_id="bld_1",
    name="plan",
    state="CRASHED",
    version=3,
    created_at=1,
    updated_at=2,
    plan_file="plan.toml",
)
STATES = ("PENDING", "ACTIVE", "CRASHED", "BUDGET_PAUSE", "SUCCESS", "FAILED", "ABANDONED")
CENT = 10_000


def build(**but):
    return msgspec.structs.replace(BUILD, **but)


def stage(name="extract", **but):
    return Stage(name=name, run=("true",), **but)


def commands(call, *arguments, **named):
    """The recovery commands of a refusal."""
    with pytest.raises(OncewardError) as caught:
        call(*arguments, **named)
    return [recovery.command for recovery in caught.value.recovery]


# Plans.


@pytest.mark.rule("B-2")
@pytest.mark.parametrize(
    ("rule", "right", "wrong", "why"),
    [
        (rules.require_tree, [None, "docs"], ["", "a\0b", 1], "tree is a folder, not"),
        (rules.require_reuse, [True, False], [1, None, "yes"], "reuse is true or false, not"),
        (rules.require_on_pause, ["finish", "stop"], ["", None, "wait"], "on_pause is"),
        (rules.require_plan_name, [{"name": "a"}], [{}, {"stage": []}], "a plan has a name"),
    ],
)
def test_a_plan_is_written_in_words_that_mean_something(rule, right, wrong, why):
    for value in right:
        rule(value)
    for value in wrong:
        with refused("INVALID_CONFIG", why):
            rule(value)


@pytest.mark.rule("B-2")
@pytest.mark.parametrize("stages", [[], {}, "extract", [{}, "extract"]])
def test_a_plan_file_has_its_stages_as_tables(stages):
    tables = [{"name": "extract"}]
    assert rules.require_stage_tables(tables, "plan.toml") is tables
    with refused("INVALID_CONFIG", "plan.toml: a plan has at least one stage"):
        rules.require_stage_tables(stages, "plan.toml")


@pytest.mark.rule("B-2")
def test_a_plan_has_stages_of_different_names():
    rules.require_stages("plan", [stage()])
    with refused("INVALID_CONFIG", "the plan plan has no stage"):
        rules.require_stages("plan", [])
    rules.require_new_stage("index", [stage()])
    with refused("INVALID_CONFIG", "there are two stages extract"):
        rules.require_new_stage("extract", [stage()])


@pytest.mark.rule("B-2")
def test_a_stage_is_made_of_a_function_with_a_name():
    assert rules.require_function("work:len", len) is len
    with refused("INVALID_CONFIG", "work:LIMIT is a int, not a function"):
        rules.require_function("work:LIMIT", 5)
    assert rules.require_named_function(len, "count") == "count"
    with refused("INVALID_CONFIG", "a stage is made of a function, not of 5"):
        rules.require_named_function(5, "count")
    with refused("INVALID_CONFIG", "has no name of its own; say name="):
        rules.require_named_function(len, None)


@pytest.mark.rule("B-2")
def test_a_stage_needs_stages_of_its_own_plan():
    assert rules.require_stage_of_plan("needs", len, "extract") == "extract"
    with refused("INVALID_CONFIG", "'len' is not a stage of this plan"):
        rules.require_stage_of_plan("needs", len, None)
    with refused("INVALID_CONFIG", "5 is not a stage of this plan"):
        rules.require_stage_of_plan("needs", 5, None)


@pytest.mark.rule("B-2")
@pytest.mark.parametrize("targets", [["a", "b"], ["b"]])
def test_config_is_for_targets_that_are_there(targets):
    configured = stage(target_config={"a": {"depth": 2}})
    why = "there is config for 'a', but no such target; there is 'b'"
    with refused_unless("a" in targets, "INVALID_CONFIG", why):
        rules.require_config_for_targets(configured, targets)


def test_a_secret_is_not_chosen_as_config():
    rules.require_no_secret_chosen('{"config":{"a":"b"}}', '{"config":{"a":"b"}}')
    with refused("INVALID_CONFIG", "a secret's value is not set as config"):
        rules.require_no_secret_chosen('{"config":{"a":"b"}}', '{"config":{"a":"***"}}')


@pytest.mark.parametrize(("missing", "field"), [("PLACE", "env"), ("KEY", "secrets")])
def test_a_stage_finds_the_variables_that_it_asks_for(missing, field):
    asking = stage(env=("PLACE",), secrets=("KEY",))
    rules.require_variables(asking, {"PLACE", "KEY", "HOME"})
    with pytest.raises(
        InvalidConfig, match=f"needs the environment variable {missing}, which"
    ) as caught:
        rules.require_variables(asking, {"PLACE", "KEY"} - {missing})
    assert caught.value.context == {"stage": "extract", "field": field}


# Beginning and resuming a build.


@pytest.mark.rule("B-8")
def test_a_plan_is_not_begun_anew_while_a_step_of_it_is_in_doubt():
    rules.require_no_doubts("bld_1", [])
    with refused("INVALID_RESUME_STATE", "a person has to decide about a:1, b:2: what"):
        rules.require_no_doubts("bld_1", ["a:1", "b:2"])
    assert commands(rules.require_no_doubts, "bld_1", ["a:x y"]) == [
        "onceward resume bld_1 --accept 'a:x y=FILE'   (or --rerun STEP)",
        "onceward abandon bld_1",
    ]


@pytest.mark.rule("B-11")
@pytest.mark.parametrize("state", STATES)
def test_only_a_crashed_or_paused_build_goes_on(state):
    fits = state in ("CRASHED", "BUDGET_PAUSE")
    with refused_unless(fits, "INVALID_RESUME_STATE", f"build bld_1 is {state}; only a CRASHED"):
        rules.require_resumable(build(state=state))


@pytest.mark.rule("B-11")
@pytest.mark.parametrize(
    ("state", "next_"),
    [
        ("PENDING", ["onceward abandon bld_1", "onceward run plan.toml"]),
        ("ACTIVE", []),
        ("SUCCESS", ["onceward status bld_1"]),
        ("FAILED", ["onceward run plan.toml"]),
        ("ABANDONED", ["onceward run plan.toml"]),
    ],
)
def test_a_refused_resume_says_what_to_do_instead(state, next_):
    assert commands(rules.require_resumable, build(state=state)) == next_


@pytest.mark.rule("B-11")
@pytest.mark.parametrize(
    ("file", "there", "where"),
    [("plan.toml", False, "plan.toml"), ("", True, "any file"), ("", False, "any file")],
)
def test_a_build_goes_on_with_the_plan_of_its_file(file, there, where):
    rules.require_plan_file(BUILD, there=True)
    with refused("INVALID_RESUME_STATE", f"the plan of bld_1 is no longer at {where}"):
        rules.require_plan_file(build(plan_file=file), there)


@pytest.mark.rule("B-11")
@pytest.mark.parametrize("field", ["--only", "--set", "needs", None])
def test_what_was_chosen_of_a_plan_must_still_be_in_it(field):
    error = InvalidConfig("there is no stage a", context={"field": field} if field else {})
    chosen = field in ("--only", "--set")
    why = f"what bld_1 chose by {field} is no longer in the plan: there is no stage a"
    with refused_unless(not chosen, "INVALID_RESUME_STATE", why):
        rules.require_choices_in_plan("bld_1", error)


@pytest.mark.rule("B-11")
def test_a_changed_plan_needs_a_fork():
    rules.require_same_plan("bld_1", [], fork=False)
    rules.require_same_plan("bld_1", ["stage a is gone"], fork=True)
    changed = ["stage a is gone", "stage b is new"]
    with refused("INVALID_RESUME_STATE", "began: stage a is gone; stage b is new"):
        rules.require_same_plan("bld_1", changed, fork=False)
    assert commands(rules.require_same_plan, "bld_1", changed, fork=False) == [
        None,
        "onceward resume bld_1 --fork",
    ]


@pytest.mark.rule("B-11")
def test_changed_code_is_refused_where_somebody_wants_that():
    rules.require_same_code("bld_1", [], strict=True)
    rules.require_same_code("bld_1", ["a: its code changed"], strict=False)
    with refused("INVALID_RESUME_STATE", "the code of bld_1 is not what it was: a: its code"):
        rules.require_same_code("bld_1", ["a: its code changed"], strict=True)
    assert commands(rules.require_same_code, "bld_1", ["a: its code changed"], strict=True) == [
        None,
        "onceward resume bld_1",
        "onceward resume bld_1 --fork",
    ]


@pytest.mark.parametrize("there", [True, False])
def test_a_result_is_accepted_from_a_file_that_is_there(there):
    with refused_unless(there, "INVALID_CONFIG", "there is no file a.json to accept for a:1"):
        rules.require_file_to_accept("a:1", "a.json", there)


@pytest.mark.parametrize("name", ["a.json", "...", "", ".", "..", "a/b", "/a"])
def test_a_file_that_is_brought_has_a_plain_name(name):
    with refused_unless(name in ("a.json", "..."), "INVALID_CONFIG", "is no file's name"):
        rules.require_file_name(name)


@pytest.mark.rule("B-8")
@pytest.mark.parametrize(
    ("doubts", "words"),
    [
        ([], ResumeWords()),
        (["a:1"], ResumeWords(rerun=["a:1"])),
        (["a:1"], ResumeWords(accept={"a:1": "f"})),
        (["a:1", "b:2"], ResumeWords(rerun=["b:2"], accept={"a:1": "f"})),
    ],
)
def test_a_decision_about_each_step_in_doubt_lets_a_build_go_on(doubts, words):
    rules.require_decided(BUILD, doubts, words)


@pytest.mark.rule("B-8")
@pytest.mark.parametrize(
    ("doubts", "words", "code", "why"),
    [
        ([], ResumeWords(rerun=["a:1"]), "INVALID_CONFIG", "step 'a:1' is not in doubt"),
        (
            ["b:2"],
            ResumeWords(accept={"a:1": "f"}),
            "INVALID_CONFIG",
            "step 'a:1' is not in doubt; in doubt are b:2",
        ),
        (
            ["a:1"],
            ResumeWords(rerun=["a:1"], accept={"a:1": "f"}),
            "INVALID_CONFIG",
            "step a:1 cannot be both rerun and accepted",
        ),
        (
            ["a:1", "b:2"],
            ResumeWords(rerun=["b:2"]),
            "INVALID_RESUME_STATE",
            "decide about a:1: nobody can say whether this step had an effect before a crash, or"
            " what came of it could",
        ),
        (
            ["a:1", "b:2"],
            ResumeWords(),
            "INVALID_RESUME_STATE",
            "about a:1, b:2: nobody can say whether these steps had an effect before a crash, or"
            " what came of them could",
        ),
    ],
)
def test_steps_in_doubt_are_decided_about_once_each_and_no_others(doubts, words, code, why):
    with refused(code, why):
        rules.require_decided(BUILD, doubts, words)


@pytest.mark.rule("B-8")
@pytest.mark.parametrize(("state", "token"), [("CRASHED", ""), ("BUDGET_PAUSE", "--token TOKEN ")])
def test_a_missing_decision_is_asked_for_with_all_that_was_said(state, token):
    words = ResumeWords({"usd_micros": 2_000_000, "tokens": 5}, ["b:2"], {"c:3": "my file"})
    again = (
        f"onceward resume bld_1 {token}--budget usd=2.00 --budget tokens=5 --rerun b:2"
        " --accept 'c:3=my file'"
    )
    asked = commands(rules.require_decided, build(state=state), ["a:1", "b:2", "c:3"], words)
    assert asked == [f"{again} --rerun a:1", f"{again} --accept a:1=FILE"]


@pytest.mark.rule("B-10")
@pytest.mark.parametrize(
    ("lanes", "workspace", "pause"),
    [
        ([], [], {}),
        ([("tokens", 10, 9)], [], {"lane": "tokens"}),
        ([("tokens", None, 99)], [], {"lane": "tokens", "asked": 5}),
        ([("tokens", 11, 1)], [], {"lane": "tokens", "estimate": 11}),
        ([("tokens", 11, 1)], [("tokens", 11, 1)], {"lane": "tokens", "asked": 10}),
    ],
)
def test_a_paused_build_goes_on_where_there_is_room(lanes, workspace, pause):
    rules.require_room("bld_1", by_name(lanes), by_name(workspace), pause, ResumeWords())


def by_name(lanes):
    return {name: Lane(name, limit, total) for name, limit, total in lanes}


@pytest.mark.rule("B-10")
@pytest.mark.parametrize(
    ("lanes", "workspace", "pause", "why", "next_"),
    [
        (
            [("tokens", 10, 10)],
            [],
            {},
            "this build has spent 10 of its tokens 10; the budget must",
            "onceward resume bld_1 --token TOKEN --budget tokens=11 --rerun a:1",
        ),
        (
            [("usd_micros", 200 * CENT, 250 * CENT)],
            [],
            {"lane": "usd_micros", "estimate": 50 * CENT},
            "this build has spent 2.50 of its usd 2.00, and the next step wants 0.50;",
            "onceward resume bld_1 --token TOKEN --budget usd=3.00 --rerun a:1",
        ),
        (
            [("tokens", 10, 10)],
            [],
            {"lane": "usd_micros", "asked": 5},
            "this build has spent 10 of its tokens 10; the budget must",
            "onceward resume bld_1 --token TOKEN --budget tokens=11 --rerun a:1",
        ),
        (
            [("tokens", 10, 5)],
            [],
            {"lane": "tokens", "asked": 6},
            "spent 5 of its tokens 10, and the next step wants 6;",
            "onceward resume bld_1 --token TOKEN --budget tokens=11 --rerun a:1",
        ),
        (
            [("tokens", 10, 5)],
            [],
            {"lane": "tokens", "estimate": 6},
            "spent 5 of its tokens 10, and the next step wants 6;",
            "onceward resume bld_1 --token TOKEN --budget tokens=11 --rerun a:1",
        ),
        (
            [],
            [("tokens", 10, 10)],
            {"lane": "tokens"},
            "the workspace has spent 10 of its tokens 10; the budget must",
            None,
        ),
        (
            [("tokens", 99, 5)],
            [("tokens", 10, 5)],
            {"lane": "tokens", "asked": 6},
            "the workspace has spent 5 of its tokens 10, and the next step wants 6;",
            None,
        ),
        (
            [],
            [("tokens", 10, 5)],
            {"lane": "tokens", "estimate": 6},
            "the workspace has spent 5 of its tokens 10, and the next step wants 6;",
            None,
        ),
    ],
)
def test_a_paused_build_without_room_says_how_much_is_needed(lanes, workspace, pause, why, next_):
    lanes, workspace = by_name(lanes), by_name(workspace)
    words = ResumeWords({"tokens": 10}, ["a:1"])
    with refused("INVALID_RESUME_STATE", why):
        rules.require_room("bld_1", lanes, workspace, pause, words)
    asked = commands(rules.require_room, "bld_1", lanes, workspace, pause, words)
    assert asked == [next_, "onceward confirm bld_1"]


@pytest.mark.rule("B-10")
@pytest.mark.parametrize("objection", ["is missing", "has expired"])
def test_a_paused_build_goes_on_with_its_confirmation_token_only(objection):
    permit = Permit("prm_1", "bld_1", 3, "ab" * 32, 9)
    assert rules.require_confirmation("bld_1", permit, "") is permit
    for shown in (None, permit):
        with refused("INVALID_RESUME_STATE", f"its confirmation token, which {objection}"):
            rules.require_confirmation("bld_1", shown, objection)


# What is asked of a build.


@pytest.mark.rule("B-10")
@pytest.mark.parametrize("state", STATES)
def test_only_a_paused_build_gets_a_new_token(state):
    fits = state == "BUDGET_PAUSE"
    with refused_unless(fits, "INVALID_RESUME_STATE", f"is {state}; only a paused one needs"):
        rules.require_paused(build(state=state))


@pytest.mark.rule("B-10")
@pytest.mark.parametrize("letters", [0, 63, 64, 65])
def test_a_token_is_made_known_by_its_hash(letters):
    with refused_unless(letters == 64, "INVALID_CONFIG", "the hash of a token has 64 letters"):
        rules.require_token_hash("a" * letters)


@pytest.mark.rule("C-40")
@pytest.mark.parametrize("state", STATES)
def test_a_build_of_which_nothing_runs_is_given_up_and_not_cancelled(state):
    fits = state not in ("CRASHED", "BUDGET_PAUSE")
    with refused_unless(fits, "INVALID_CONFIG", f"is {state}; nothing of it is running"):
        rules.require_running(build(state=state), "bld_1")


@pytest.mark.rule("B-15")
@pytest.mark.parametrize("state", STATES)
def test_a_build_that_is_over_or_not_begun_waits_for_nobody(state):
    fits = state in ("ACTIVE", "CRASHED", "BUDGET_PAUSE")
    with refused_unless(fits, "INVALID_CONFIG", f"is {state}; nothing of it waits"):
        rules.require_open(build(state=state), "a:1")


@pytest.mark.rule("B-15")
@pytest.mark.parametrize("waits", [True, False])
def test_only_a_step_that_waits_is_decided_about(waits):
    with refused_unless(waits, "INVALID_CONFIG", "step 'a:1' of bld_1 does not wait"):
        rules.require_waiting("bld_1", "a:1", waits)


@pytest.mark.rule("B-15")
@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("abcd", None),
        ("ab", "into a:1 now; it must be given whole"),
        ("", "into a:1 now; it must be given whole"),
        ("abce", "the digest is not that of what flows into a:1 now"),
        ("abcde", "the digest is not that of what flows into a:1 now"),
    ],
)
def test_a_person_approves_exactly_what_flows_in_now(given, why):
    with refused_unless(why is None, "PERMIT_INVALID", why or ""):
        rules.require_whole_digest("bld_1", "a:1", "abcd", given)


@pytest.mark.rule("B-15")
@pytest.mark.parametrize("asked", [("refused", "eve"), ("approved", "bob"), ("approved", "eve")])
def test_a_decision_stands_with_who_made_it(asked):
    fits = asked == ("approved", "eve")
    with refused_unless(fits, "PERMIT_INVALID", "step a:1 was approved by eve already"):
        rules.require_same_decision("a:1", ("approved", "eve"), asked)


@pytest.mark.rule("B-15")
@pytest.mark.parametrize("doubt", ["", "it is not what was signed"])
def test_a_decision_that_nobody_signed_does_not_count(doubt):
    why = f"what eve is said to have decided about a:1 does not count: {doubt}"
    with refused_unless(not doubt, "INTEGRITY_FAULT", why):
        rules.require_believed("a:1", "eve", doubt)


# What is seen of a build.


@pytest.mark.parametrize(
    ("matches", "why", "next_"),
    [
        ([], "there is no step 'a' in bld_1; there is b:0, b:1, b:2, b:3, b:4 ...", 1),
        (["a:1", "a:2"], "more than one step is meant by 'a' in bld_1; there is a:1, a:2", 0),
    ],
)
def test_a_name_means_one_step(matches, why, next_):
    steps = [f"b:{n}" for n in range(6)]
    rules.require_step("a", "bld_1", ["a:1"], steps)
    with refused("INVALID_CONFIG", why):
        rules.require_step("a", "bld_1", matches, steps)
    assert len(commands(rules.require_step, "a", "bld_1", matches, steps)) == next_


def test_a_name_that_means_nothing_is_a_step_of_the_newest_build():
    assert rules.require_newest("a", ["build", "saga"], BUILD) is BUILD
    with refused("NOT_FOUND", "there is no build, saga or step 'a'"):
        rules.require_newest("a", ["build", "saga"], None)


@pytest.mark.parametrize("statuses", [[], ["FAILED"], ["SUCCESS", "IN_DOUBT"]])
def test_only_steps_that_succeeded_have_values(statuses):
    rules.require_results("bld_1", "a", "1", ["SUCCESS", "SUCCESS"])
    with refused("NOT_FOUND", "build bld_1 has no result of a:1"):
        rules.require_results("bld_1", "a", "1", statuses)
    with refused("NOT_FOUND", "build bld_1 has no result of a:*"):
        rules.require_results("bld_1", "a", None, statuses)


# The output of a build.


@pytest.mark.rule("B-13")
@pytest.mark.parametrize("name", ["a", "A-1_b.c", "a" * 64])
def test_a_project_has_a_plain_name(name):
    rules.require_project_name(name)


@pytest.mark.rule("B-13")
@pytest.mark.parametrize("name", ["", "a" * 65, ".a", "-a", "a/b", "a..b", "a b", "ä", "a\n"])
def test_a_project_with_any_other_name_is_refused(name):
    with refused("INVALID_CONFIG", "is no name for a project"):
        rules.require_project_name(name)


@pytest.mark.rule("B-13")
@pytest.mark.parametrize(
    ("exists", "has_parent", "why"),
    [
        (False, True, None),
        (True, True, "out is there already; nothing was written"),
        (True, False, "out is there already; nothing was written"),
        (False, False, "out has no folder to be in; nothing was written"),
    ],
)
def test_an_output_is_a_new_folder(exists, has_parent, why):
    with refused_unless(why is None, "INVALID_CONFIG", why or ""):
        rules.require_new_folder("out", exists, has_parent)


@pytest.mark.rule("B-13")
@pytest.mark.parametrize("holds", [True, False])
def test_an_output_goes_where_no_link_leads_and_nothing_of_ours_is(holds):
    with refused_unless(holds, "INVALID_CONFIG", "there is a link on the way to out"):
        rules.require_real_folder("out", "/real/out", holds)
    with refused_unless(holds, "INVALID_CONFIG", "out is the workspace's own"):
        rules.require_outside_workspace("out", inside=not holds)
    with refused_unless(holds, "INVALID_CONFIG", "out is a link or a file, not a folder"):
        rules.require_folder("out", holds)


@pytest.mark.rule("B-13")
@pytest.mark.parametrize("state", STATES)
def test_a_build_that_made_nothing_has_output_once_it_is_done(state):
    rules.require_output(build(state=state), 1)
    with refused_unless(state == "SUCCESS", "INVALID_CONFIG", "build bld_1 has no output yet"):
        rules.require_output(build(state=state), 0)


@pytest.mark.rule("B-13")
@pytest.mark.parametrize(
    ("paths", "fits"),
    [
        ([], True),
        (["a"] * MAX_OUTPUT_FILES, True),
        (["a"] * (MAX_OUTPUT_FILES + 1), False),
        (["a", "b" * MAX_OUTPUT_PATH], True),
        (["a", "b" * (MAX_OUTPUT_PATH + 1)], False),
        (["ä" * MAX_OUTPUT_PATH], False),
    ],
)
def test_an_output_is_of_a_size_that_can_be_handed_on(paths, fits):
    with refused_unless(fits, "INVALID_CONFIG", f"this one has {len(paths)}, the longest path"):
        rules.require_output_size(paths)


@pytest.mark.rule("B-13")
@pytest.mark.parametrize(
    ("wrong", "complete", "why"),
    [
        ([], True, None),
        (["a", "b"], False, "out is not what was written: a, b"),
        (["a"], True, "out is not what was written: a"),
        ([], False, "out is not what was written: files are missing or too many"),
    ],
)
def test_an_output_is_read_back_as_it_was_listed(wrong, complete, why):
    with refused_unless(why is None, "INTEGRITY_FAULT", why or ""):
        rules.require_written("out", wrong, complete)


# Words of a pause and of what comes next.


@pytest.mark.rule("B-9")
@pytest.mark.parametrize(
    ("detail", "words"),
    [
        ({}, "the budget has no room"),
        (
            {"lane": "tokens", "observed": 11, "limit": 10},
            "tokens is at 11 of 10",
        ),
        (
            {"lane": "tokens", "observed": 9, "limit": 10, "asked": 2, "step": "a:1"},
            "tokens is at 9 of 10, and 2 more was asked by a:1",
        ),
        (
            {
                "lane": "usd_micros",
                "observed": 150 * CENT,
                "limit": 200 * CENT,
                "estimate": 75 * CENT,
                "step": "a:1",
                "scope": "workspace",
            },
            "the workspace's usd is at 1.50 of 2.00, and a:1 is estimated at 0.75",
        ),
    ],
)
def test_a_pause_says_where_the_budget_stands(detail, words):
    assert rules.why_paused(detail) == words


@pytest.mark.rule("B-9")
@pytest.mark.parametrize(
    ("detail", "total", "least"),
    [
        ({"lane": "tokens"}, 10, "11"),
        ({"lane": "tokens", "asked": 5}, 10, "15"),
        ({"lane": "usd_micros"}, 150 * CENT + 1, "1.51"),
        ({"lane": "usd_micros", "estimate": 25 * CENT}, 150 * CENT, "1.75"),
        ({"lane": "tokens", "scope": "workspace"}, 10, None),
        ({"lane": "other"}, 10, None),
        ({}, 10, None),
    ],
)
def test_the_least_budget_has_room_for_what_was_wanted(detail, total, least):
    lanes = {name: Lane(name, 1, total) for name in ("tokens", "usd_micros")}
    assert rules.least_budget(detail, lanes) == least


@pytest.mark.rule("B-9")
def test_a_pause_counts_what_was_spent_since():
    lanes = {"tokens": Lane("tokens", 10, 14)}
    pause = {"lane": "tokens", "observed": 12}
    assert rules.with_total(pause, lanes) == {"lane": "tokens", "observed": 14}
    assert rules.with_total({**pause, "observed": 20}, lanes) == {**pause, "observed": 20}
    for other in ({}, {"lane": "usd_micros"}, {**pause, "scope": "workspace"}):
        assert rules.with_total(other, lanes) == other


@pytest.mark.parametrize(
    ("state", "why", "enough", "doubts", "command"),
    [
        ("CRASHED", {}, None, [], "onceward resume bld_1"),
        (
            "CRASHED",
            {},
            None,
            ["a:1"],
            "onceward resume bld_1 --accept a:1=FILE   (or --rerun STEP)",
        ),
        (
            "BUDGET_PAUSE",
            {"lane": "usd_micros"},
            "3.00",
            [],
            "onceward resume bld_1 --token TOKEN --budget usd=3.00",
        ),
        (
            "BUDGET_PAUSE",
            {},
            None,
            ["a:1"],
            "onceward resume bld_1 --token TOKEN --budget usd=MORE --accept a:1=FILE"
            "   (or --rerun STEP)",
        ),
        (
            "BUDGET_PAUSE",
            {"lane": "tokens", "scope": "workspace"},
            None,
            [],
            "raise tokens under [budget] in onceward.toml, then onceward resume bld_1 --token TOKEN",
        ),
        ("ACTIVE", {}, None, [], "onceward resume bld_1"),
        ("FAILED", {}, None, [], "onceward run plan.toml --only a"),
        ("SUCCESS", {}, None, [], "onceward output bld_1"),
        ("ABANDONED", {}, None, [], None),
        ("PENDING", {}, None, [], None),
    ],
)
def test_the_next_command_is_what_goes_on_from_there(state, why, enough, doubts, command):
    assert command == rules.next_command(
        "bld_1",
        state,
        why,
        enough=enough,
        doubts=doubts,
        plan_file="plan.toml",
        choices='{"only":["a"]}',
    )
