"""When a checkpoint stands for its step: only with the context hash it was made under (B-3, B-4)."""

from __future__ import annotations

from pathlib import Path

import pytest

from onceward import Plan
from onceward.core import faults
from sites import Site

LARGE = 20_000
"""More than rides in a row: the artifact is a file that can be lost."""


def noted(task):
    """Says that it ran, and how often it has."""
    witness = Path(task.config["witness"])
    with witness.open("a") as file:
        file.write(f"{task.stage}:{task.target}\n")
    return witness.read_text().split().count(f"{task.stage}:{task.target}")


def drafted(task):
    """Different each time it runs, as a model's answer is."""
    return f"draft {noted(task)} ".ljust(LARGE, ".")


def summarised(task):
    noted(task)
    return f"about {task.inputs['draft'].split('.')[0].strip()}"


def checked(task):
    noted(task)
    return "checked"


def reported(task):
    noted(task)
    return task.inputs["summary"]


@pytest.fixture
def plan(site):
    plan = Plan("chain", folder=site.folder, config={"witness": str(site.folder / "ran")})
    plan.stage(name="draft")(drafted)
    plan.stage(name="summary", needs="draft")(summarised)
    plan.stage(name="check")(checked)
    plan.stage(name="report", needs="summary")(reported)
    return plan


def values(site: Site, build_id: str) -> dict[str, str]:
    """What each step of a build made."""
    with site.workspace.artifacts() as kept:
        return {
            step["stage"]: b"".join(kept.read(step["artifacts"][0]["sha256"])).decode()
            for step in site.status(build_id)["steps"]
            if step["artifacts"]
        }


@pytest.mark.rule("B-3", "B-4", "B-5")
@pytest.mark.guarantee("G7")
def test_a_step_whose_inputs_became_different_runs_again_though_it_has_a_checkpoint(site, plan):
    build = site.crash(plan, point="child.ended", nth=4)
    done = site.steps(build)
    assert [name for name, status in done.items() if status == "SUCCESS"] == [
        *("draft:main", "summary:main", "check:main"),
    ]
    lost = next(s for s in site.status(build)["steps"] if s["stage"] == "draft")
    with site.workspace.artifacts() as kept:
        kept.path_of(lost["artifacts"][0]["sha256"]).unlink()

    outcome = site.resume(plan, build)

    assert outcome["state"] == "SUCCESS"
    # The draft is lost and made again; what was made from the lost one is not believed any more.
    assert outcome["steps"] == {"total": 4, "executed": 3, "skipped": 1, "reused": 0, "failed": 0}
    made = values(site, build)
    assert made["draft"].startswith("draft 2 ")
    assert (made["summary"], made["report"]) == ("about draft 2", "about draft 2")
    assert made["check"] == "checked"


@pytest.mark.rule("B-4")
@pytest.mark.guarantee("G7")
def test_a_step_whose_inputs_are_the_same_is_skipped_though_they_were_made_again(site, plan):
    """The hash decides, not the history: the same draft again leaves what was made from it alone."""
    plan.stage(name="title")(lambda task: "T" * LARGE)
    plan.stage(name="cover", needs="title")(
        lambda task: f"{noted(task)} {len(task.inputs['title'])}"
    )
    plan.stage(name="last", needs="cover")(checked)
    with pytest.raises(faults.SimulatedCrash), faults.armed("child.ended", 7, faults.crash):
        site.run(plan, jobs=1)
    lost = next(s for s in site.status()["steps"] if s["stage"] == "title")
    with site.workspace.artifacts() as kept:
        kept.path_of(lost["artifacts"][0]["sha256"]).unlink()
    outcome = site.resume(plan, site.build_id)
    assert outcome["state"] == "SUCCESS"
    assert values(site, site.build_id)["cover"] == f"1 {LARGE}"
