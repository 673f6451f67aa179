"""What somebody chooses of a plan, what would become of it, and why: --only, --force, --set, --dry-run, why."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from onceward import Plan
from onceward.builds.choices import Choices, assignments
from onceward.builds.explain import build_of, why
from onceward.builds.forecast import Forecast
from onceward.builds.lifecycle import Offer
from onceward.builds.plan_changes import Body, changes, step_changes
from onceward.core.canon import canonical, sha256_hex
from onceward.errors import InvalidConfig, InvalidResumeState


def noted(task):
    """A step that says that it ran."""
    with Path(task.config["witness"]).open("a") as file:
        file.write(f"{task.stage}:{task.target}\n")
    task.spend(usd="0.01", tokens=10)
    return f"{task.target} {task.config['depth']} {(task.folder / task.target).read_text()}"


def report(task):
    with Path(task.config["witness"]).open("a") as file:
        file.write(f"{task.stage}:{task.target}\n")
    return "always the same"


def documents(site, **words):
    """extract each document with the shared words, summarise each, then one report over all."""
    (site.folder / "docs").mkdir(exist_ok=True)
    for name in ("a.md", "b.md"):
        file = site.folder / "docs" / name
        if not file.exists():
            file.write_text(f"about {name}")
    config = {"witness": str(site.witness), "depth": 2, "model": {"name": "small"}, **words}
    plan = Plan("documents", folder=site.folder, config=config)
    plan.stage(name="extract", targets={"glob": "docs/*.md"})(noted)
    plan.stage(name="summarise", needs="extract")(report)
    plan.stage(name="report", collect="summarise", targets=["all"])(report)
    return plan


def forecast(site, plan, reuse=True, build_id="", **chosen):
    with site.workspace.artifacts() as artifacts:
        found = Forecast(
            site.load(plan, **chosen), artifacts, reuse=reuse, build_id=build_id
        ).steps()
    return {step.step: step for step in found}


def whats(found):
    return {name: step.what for name, step in found.items()}


def because(site, step, build_id=None):
    with site.workspace.reading() as store:
        return why(store, build_of(store, build_id), step)


@pytest.mark.rule("I-1")
def test_only_runs_what_is_named_and_what_that_needs(site):
    plan = documents(site)
    assert site.run(plan, only=("summarise:docs/a.md",))["state"] == "SUCCESS"
    assert sorted(site.lines()) == ["extract:docs/a.md", "summarise:docs/a.md"]
    assert site.run(plan, only=("summarise",))["steps"]["reused"] == 2
    assert sorted(site.lines()) == ["extract:docs/b.md", "summarise:docs/b.md"]
    outcome = site.run(plan)
    assert outcome["steps"]["reused"] == 4 and site.lines() == ["report:all"]
    assert outcome["saved_usd"] == "0.02" and outcome["paid_usd"] == "0.00"


@pytest.mark.rule("I-1")
@pytest.mark.parametrize("only", ["extrat", "extract:docs/c.md", ":", "summarise:"])
def test_only_refuses_what_the_plan_does_not_have(site, only):
    with pytest.raises(InvalidConfig):
        site.run(documents(site), only=(only,))
    assert not site.witness.exists()


@pytest.mark.rule("I-1", "B-6")
def test_force_runs_what_is_chosen_and_reuses_the_rest(site):
    plan = documents(site)
    site.run(plan)
    site.lines()
    outcome = site.run(plan, only=("summarise:docs/a.md",), force=True)
    assert site.lines() == ["summarise:docs/a.md"] and outcome["steps"]["reused"] == 1
    assert because(site, "summarise:docs/a.md").because == [
        "nothing changed, but it was forced to run"
    ]
    site.run(plan, force=True)
    assert len(site.lines()) == 5


@pytest.mark.rule("I-1", "B-11")
def test_a_resumed_build_means_what_was_chosen_for_it(site):
    plan = documents(site)
    site.run(plan)
    site.lines()
    chosen = {"only": ("summarise",), "force": True, "config": {"depth": "3"}}
    build = site.crash(plan, nth=6, **chosen)
    before = site.lines()
    outcome = site.resume(plan, build)
    assert outcome["state"] == "SUCCESS" and outcome["steps"]["total"] == 4
    assert outcome["steps"]["skipped"] + outcome["steps"]["executed"] == 4
    assert sorted({*before, *site.lines()}) == sorted(
        f"{stage}:docs/{name}.md" for stage in ("extract", "summarise") for name in "ab"
    )


@pytest.mark.rule("I-1", "B-2")
def test_set_gives_another_value_wherever_the_plan_sets_the_key(site):
    plan = documents(site)
    plan.add({"name": "deep", "needs": ["extract"], "config": {"depth": 7}}, noted)
    resolved = site.load(plan, config={"depth": "9", "model.name": "1.5"})
    numbers = {
        stage.name: resolved.contexts[k].config("docs/a.md")
        for k, stage in enumerate(resolved.steps.stages)
    }
    assert numbers["deep"]["depth"] == numbers["extract"]["depth"] == 9
    # What stands for text stays text.
    assert numbers["extract"]["model"] == {"name": "1.5"}


@pytest.mark.rule("I-1")
@pytest.mark.parametrize(
    "given", [{"dept": "3"}, {"model.nam": "x"}, {"depth.x": "1"}, {"depth": "0.5"}, {"": "1"}]
)
def test_set_refuses_a_key_that_the_plan_does_not_set_and_what_is_no_config(site, given):
    with pytest.raises(InvalidConfig) as refused:
        site.load(documents(site), config=given)
    assert "did you mean depth?" in refused.value.message or given != {"dept": "3"}


@pytest.mark.parametrize("words", [["depth"], ["=3"], ["a=1", "a=2"]])
def test_assignments_are_key_and_value(words):
    with pytest.raises(InvalidConfig):
        assignments(words)
    assert assignments(["a=b=c", "d="]) == {"a": "b=c", "d": ""}


@pytest.mark.rule("E-4")
def test_a_secret_is_not_set_as_config(site, monkeypatch):
    monkeypatch.setenv("API_KEY", "sk-0123456789")
    plan = documents(site)
    plan.add({"name": "deep", "needs": ["extract"], "secrets": ["API_KEY"]}, noted)
    with pytest.raises(InvalidConfig, match="secret"):
        site.load(plan, config={"model.name": "sk-0123456789"})


@pytest.mark.rule("I-1", "B-4", "B-6")
def test_a_forecast_says_what_a_run_then_does_and_writes_nothing(site):
    plan = documents(site)
    first = forecast(site, plan)
    assert set(whats(first).values()) == {"run"}
    assert first["report:all"].because == ["no earlier build has done it"]
    site.run(plan)
    site.lines()
    assert set(whats(forecast(site, plan)).values()) == {"reuse"}
    (site.folder / "docs" / "b.md").write_text("about b, anew")
    found = forecast(site, plan)
    assert whats(found) == {
        "extract:docs/a.md": "reuse",
        "extract:docs/b.md": "run",
        "summarise:docs/a.md": "reuse",
        "summarise:docs/b.md": "run",
        "report:all": "run",
    }
    assert found["extract:docs/b.md"].because == ["input docs/b.md changed"]
    assert found["extract:docs/b.md"].estimate == {"usd_micros": 10_000, "tokens": 10}
    assert found["summarise:docs/b.md"].because == ["extract would run first"]
    before = len(site.events())
    site.run(plan)
    # What is made anew may turn out the same: then what follows is reused after all.
    assert site.lines() == ["extract:docs/b.md", "summarise:docs/b.md"]
    assert before and because(site, "report:all").status == "REUSED"


@pytest.mark.rule("B-4")
def test_a_forecast_sees_results_that_are_gone_and_leaves_no_trace(site):
    plan = documents(site)
    site.run(plan, jobs=1)
    with site.workspace.artifacts() as artifacts:
        artifacts_of = {s["stage"]: s["artifacts"][0]["sha256"] for s in site.status()["steps"]}
        place = artifacts.path_of(artifacts_of["extract"])
        kernel = site.workspace.kernel()
        kernel.artifacts.spill()
        kernel.close()
        place.unlink()
        with artifacts.store.read() as rows:
            before = rows.read("SELECT sha256, mark FROM artifacts ORDER BY sha256")
        found = forecast(site, plan)
        with artifacts.store.read() as rows:
            assert rows.read("SELECT sha256, mark FROM artifacts ORDER BY sha256") == before
    damaged = [s for s in found.values() if s.because == ["what it had made is damaged or gone"]]
    assert [s.step for s in damaged] == ["extract:docs/b.md"]


@pytest.mark.rule("B-4")
def test_a_forecast_of_a_resume_skips_what_is_done(site):
    plan = documents(site)
    build = site.crash(plan, nth=11)
    found = forecast(site, plan, build_id=build)
    done = [name for name, status in site.steps(build).items() if status == "SUCCESS"]
    assert done and [name for name, step in found.items() if step.what == "skip"] == done


def test_a_forecast_asks_where_a_person_would_be_asked(site):
    plan = documents(site)
    plan.approval("agree", "Good?", needs="extract")
    site.run(plan, only=("extract",))
    found = forecast(site, plan)
    assert found["agree:docs/a.md"].what == "ask" and found["agree:docs/a.md"].because == ["Good?"]


@pytest.mark.rule("B-3", "I-1")
@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"depth": 3}, "config.depth: 2 -> 3"),
        ({"model": {"name": "large"}}, 'config.model.name: "small" -> "large"'),
        ({"fresh": True}, "config.fresh is new: true"),
    ],
)
def test_why_names_the_config_that_changed(site, change, told):
    site.run(documents(site))
    first = site.build_id
    site.run(documents(site, **change))
    found = because(site, "extract:docs/a.md")
    assert found.because == [told] and found.since == first and found.status == "SUCCESS"


@pytest.mark.rule("B-3", "I-1")
def test_why_names_the_file_and_what_flowed_in(site):
    site.run(documents(site))
    first = site.build_id
    assert because(site, "extract:docs/a.md").because == ["no earlier build has done it"]
    (site.folder / "docs" / "a.md").write_text("changed")
    site.run(documents(site))
    assert because(site, "extract:docs/a.md").because == ["input docs/a.md changed"]
    assert because(site, "summarise:docs/a.md").because == ["what extract:docs/a.md made changed"]
    same = because(site, "extract:docs/b.md")
    assert same.status == "REUSED" and same.since == first


@pytest.mark.rule("B-3", "I-1")
def test_why_names_the_command_and_only_the_inputs_of_its_own_step(site):
    plan = """
name = "shell"
[[stage]]
name = "work"
targets = ["a", "b"]
inputs = ["in/{target}.txt", "shared.txt"]
run = ["sh", "-c", "WORDS"]
"""
    (site.folder / "in").mkdir()
    for name in ("in/a.txt", "in/b.txt", "shared.txt"):
        (site.folder / name).write_text(name)
    site.run(plan.replace("WORDS", "echo {target}"))
    (site.folder / "in" / "b.txt").write_text("other")
    site.run(plan.replace("WORDS", "echo {target}; true"))
    assert because(site, "work:a").because == [
        "its command changed: sh -c echo a -> sh -c echo a; true"
    ]
    assert because(site, "work:b").because[1:] == ["input in/b.txt changed"]
    (site.folder / "shared.txt").write_text("other")
    site.run(plan.replace("WORDS", "echo {target}; true"))
    assert because(site, "work:a").because == ["input shared.txt changed"]


@pytest.mark.rule("B-3", "I-1")
def test_why_tells_of_code_of_forced_and_of_unwanted_reuse(site):
    def extract(task):
        return 1

    def other(task):
        return 2

    def plan(call, **words):
        made = Plan("code", folder=site.folder, **words)
        made.stage(name="extract")(call)
        return made

    site.run(plan(extract))
    site.run(plan(other))
    assert because(site, "extract").because == ["its code changed"]
    site.run(plan(other), reuse=False)
    assert "were not to be taken over" in because(site, "extract").because[0]
    site.run(plan(other), force=True)
    assert "forced" in because(site, "extract:main").because[0]


@pytest.mark.rule("I-1")
def test_why_of_a_step_that_did_not_run(site):
    def fails(task):
        raise RuntimeError("no luck")

    plan = Plan("sad", folder=site.folder)
    plan.stage(name="first")(fails)
    plan.stage(name="second", needs="first")(fails)
    site.run(plan)
    assert because(site, "first").because[0].startswith("attempt 1: RuntimeError: no luck")
    assert because(site, "second").because == ["it waits for first:main, which is FAILED"]
    with pytest.raises(InvalidConfig, match="there is first:main"):
        because(site, "third")


def test_choices_are_kept_as_text():
    chosen = Choices(("a", "b:c"), True, {"x": "1"})
    assert Choices().text() == "{}" and '"only":["a","b:c"]' in chosen.text()


@pytest.mark.rule("B-11", "B-6")
def test_a_fork_of_a_forced_build_keeps_what_its_parent_did(site):
    plan = documents(site)
    site.run(plan)
    build = site.crash(plan, point="child.ended", nth=4, force=True)
    done = [name for name, status in site.steps(build).items() if status == "SUCCESS"]
    site.lines()
    other = documents(site)
    other.stage(name="last", needs="report")(report)
    outcome = site.resume(other, build, Offer(fork=True))
    assert outcome["state"] == "SUCCESS" and outcome["steps"]["reused"] == len(done) > 0
    assert not set(done) & set(site.lines())


@pytest.mark.rule("B-11")
@pytest.mark.parametrize("fork", [False, True])
def test_what_was_chosen_and_is_gone_is_a_changed_plan(site, fork):
    build = site.crash(documents(site), nth=9, config={"depth": "3"})
    plan = documents(site)
    plan.config = {key: value for key, value in plan.config.items() if key != "depth"}
    with pytest.raises(InvalidResumeState, match="by --set is no longer in the plan"):
        site.resume(plan, build, Offer(fork=fork))


@pytest.mark.rule("B-3", "I-1")
def test_why_and_forecast_tell_of_needs_that_are_gone_new_or_in_another_order(site):
    def plan(targets, needs):
        made = Plan("fan", folder=site.folder, config={"witness": str(site.witness)})
        made.stage(name="ex", targets=targets)(report)
        made.stage(name="other", targets=["x"])(report)
        made.stage(name="sum", collect=needs, targets=["all"])(report)
        return made

    site.run(plan(["a", "b", "c"], ["ex", "other"]))
    for targets, needs, told in (
        (["a", "b"], ["ex", "other"], ["ex:c is gone"]),
        (["a", "b"], ["other", "ex"], ["the order of what it needs changed"]),
        (["a", "b"], ["ex"], ["it no longer needs other"]),
        (["a", "b", "d"], ["ex"], ["what ex:d made is new"]),
    ):
        said = forecast(site, plan(targets, needs))["sum:all"].because
        assert said == told or said == ["ex would run first"]
        site.run(plan(targets, needs))
        assert because(site, "sum").because == told


@pytest.mark.rule("B-11")
def test_which_step_has_which_input_is_no_part_of_what_a_resume_compares(site):
    resolved = site.load(documents(site))
    assert "inputs_of" in resolved.body
    bare = msgspec.json.decode(resolved.body)
    for stage in bare["stages"]:
        stage.pop("inputs_of", None)
    assert resolved.hash == sha256_hex(canonical(bare))
    assert changes(canonical(bare).decode(), resolved.body) == []
    assert (
        step_changes(Body(canonical(bare).decode()), Body(resolved.body), "extract", "docs/a.md")
        == []
    )


@pytest.mark.rule("I-1")
@pytest.mark.parametrize(
    "text", ["abc", "", "0.5", '"3"', "[", "[" * 5000, "2026-11-16", "3\nother = 4"]
)
def test_set_keeps_the_kind_of_value(site, text):
    with pytest.raises(InvalidConfig, match="is a whole number in the plan"):
        site.load(documents(site), config={"depth": text})


def test_set_takes_true_and_false_as_people_write_them_and_keys_with_dots(site):
    plan = documents(site, dry=True, **{"a.b": "x"})
    resolved = site.load(plan, config={"dry": "False", "a.b": "y"})
    found = resolved.contexts[0].config("docs/a.md")
    assert found["dry"] is False and found["a.b"] == "y"


@pytest.mark.rule("B-4")
def test_why_tells_of_a_result_that_was_gone(site):
    plan = documents(site)
    site.run(plan, jobs=1)
    digest = next(
        s["artifacts"][0]["sha256"] for s in site.status()["steps"] if s["stage"] == "extract"
    )
    kernel = site.workspace.kernel()
    kernel.artifacts.spill()
    kernel.artifacts.path_of(digest).unlink()
    kernel.close()
    site.run(plan)
    assert because(site, "extract:docs/a.md").because == [
        "nothing changed, but what it had made was damaged or gone"
    ]


def test_why_tells_of_a_plan_that_takes_nothing_over(site):
    def plan():
        made = Plan("fresh", folder=site.folder, reuse=False)
        made.stage(name="work")(lambda task: 1)
        return made

    site.run(plan())
    site.run(plan())
    assert "were not to be taken over" in because(site, "work").because[0]


def test_a_forecast_of_thousands_that_need_thousands_asks_once(site):
    def plan(depth):
        made = Plan("wide", folder=site.folder, config={})
        made.stage(name="ex", targets=[f"t{n}" for n in range(400)])(lambda task: 1)
        made.stage(
            name="sum", collect="ex", targets=[f"s{n}" for n in range(300)], config={"depth": depth}
        )(lambda task: 1)
        return made

    site.run(plan(1), jobs=4)
    with site.workspace.artifacts() as artifacts:
        asked = []
        real = artifacts.store.read

        @contextmanager
        def counting():
            with real() as rows:
                read = rows.read
                rows.read = lambda sql, *words: asked.append(sql) or read(sql, *words)
                try:
                    yield rows
                finally:
                    del rows.read

        artifacts.store.read = counting
        found = Forecast(site.load(plan(2)), artifacts, reuse=True).steps()
    assert sum(step.what == "run" for step in found) == 300
    assert len(asked) < 1200, "a few reads a step, not one for each it needs"
