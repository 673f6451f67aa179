"""Code behind a decorator, inputs that change under a step, the right to be executed: what counts, and what is kept."""

from __future__ import annotations

import threading

import pytest

from onceward.builds.plan_file import load
from onceward.errors import InvalidConfig

DECORATED = """
import functools
from onceward import Plan

def plus(f):
    @functools.wraps(f)
    def w(task):
        return f(task) + BONUS
    return w

plan = Plan("decorated")

@plan.stage
DECORATOR
def work(task):
    return INNER
"""


@pytest.mark.rule("B-3")
@pytest.mark.guarantee("G7")
def test_a_decorator_and_what_it_wraps_both_count(tmp_path):
    def version(bonus, inner, decorator="@plus"):
        text = (
            DECORATED.replace("BONUS", bonus)
            .replace("INNER", inner)
            .replace("DECORATOR", decorator)
        )
        (tmp_path / "plan.py").write_text(text)
        return load(tmp_path / "plan.py").hash

    assert (
        len({version("100", "1"), version("5", "1"), version("100", "2"), version("100", "1", "")})
        == 4
    )
    assert version("100", "1") == version("100", "1")
    # One that was installed is known by its name; what it wraps counts.
    cached = "@functools.lru_cache"
    assert version("1", "1", cached) != version("1", "2", cached)
    manager = "@__import__('contextlib').contextmanager"
    assert version("1", "1", manager) != version("1", "2", manager)


@pytest.mark.rule("B-3", "B-6")
@pytest.mark.guarantee("G7")
def test_a_result_whose_input_changed_while_it_was_made_is_nobody_elses(site):
    plan = """
name = "slow"
[[stage]]
name = "copy"
inputs = ["x"]
run = ["sh", "-c", "touch begun; while [ ! -e go ]; do sleep 0.05; done; cat x > $ONCEWARD_OUT/o"]
[[stage]]
name = "after"
needs = ["copy"]
run = ["sh", "-c", "cat $ONCEWARD_INPUTS/copy/main/o > $ONCEWARD_OUT/o"]
"""
    (site.folder / "x").write_text("old")
    runner = threading.Thread(target=site.run, args=(plan,))
    runner.start()
    while not (site.folder / "begun").exists():
        threading.Event().wait(0.02)
    (site.folder / "x").write_text("NEW")
    (site.folder / "go").touch()
    runner.join()
    assert [said["step"] for said in site.told if said["status"] == "STALE"] == ["copy:main"]
    assert set(site.steps().values()) == {"SUCCESS"}
    (site.folder / "x").write_text("old")
    outcome = site.run(plan)
    assert outcome["steps"]["executed"] == 2
    with site.workspace.artifacts() as kept:
        (made,) = [
            s["artifacts"][0]["sha256"] for s in site.status()["steps"] if s["stage"] == "after"
        ]
        assert b"".join(kept.read(made)) == b"old"
    assert site.run(plan)["steps"]["reused"] == 2


@pytest.mark.rule("B-13")
def test_what_may_be_executed_stays_so(site):
    plan = """
name = "tools"
[[stage]]
name = "build"
run = ["sh", "-c", "cd $ONCEWARD_OUT; printf '#!/bin/sh\\necho built' > tool; chmod 755 tool; echo x > plain"]
[[stage]]
name = "use"
needs = ["build"]
run = ["sh", "-c", "$ONCEWARD_INPUTS/build/main/tool > $ONCEWARD_OUT/said"]
"""
    assert site.run(plan)["state"] == "SUCCESS"
    from onceward.builds.output import write_output

    with site.workspace.artifacts() as kept:
        written = write_output(
            kept, site.build_id, site.workspace.folder / "output", "tools", site.folder / "out"
        )
    files = site.folder / "out" / "files" / "build" / "main"
    assert (files / "tool").stat().st_mode & 0o777 == 0o755 and (
        files / "plain"
    ).stat().st_mode & 0o777 == 0o644
    manifest = (site.folder / "out" / "manifest.json").read_text()
    assert '"mode":"0755"' in manifest and written.files == 3


@pytest.mark.rule("B-13")
def test_an_output_of_nothing_is_whole_and_goes_through_no_link(site):
    from onceward.builds.output import write_output

    site.run('name = "quiet"\n[[stage]]\nname = "s"\nrun = ["true"]\n')
    (site.folder / "real").mkdir()
    (site.folder / "link").symlink_to(site.folder / "real")
    root = site.workspace.folder / "output"
    with site.workspace.artifacts() as kept:
        assert write_output(kept, site.build_id, root, "quiet", site.folder / "empty").files == 0
        for place in (site.folder / "link" / "res", site.workspace.folder / "artifacts" / "zz"):
            with pytest.raises(InvalidConfig):
                write_output(kept, site.build_id, root, "quiet", place)
    assert list((site.folder / "real").iterdir()) == []
