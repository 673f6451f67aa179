"""Plans: what is refused, with its line and what to write instead; what a plan comes to; what counts for its hashes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from onceward import Plan
from onceward.builds.plan import Steps, merge
from onceward.builds.plan_file import load
from onceward.builds.plans import Resolved
from onceward.core.steps import lock_target
from onceward.dispatch.stage_words import stage_of
from onceward.errors import InvalidConfig, InvalidDependency
from onceward.locks.claims import check_target

GOOD = """\
name = "catalogue"

[budget]
usd = "5.00"
tokens = 200000

[config]
model = "small"

[[stage]]
name = "extract"
targets = ["a", "b",
  "c"]
run = ["python3", "extract.py", "{target}"]
inputs = ["extract.py"]
config = { depth = 2 }
estimate = { usd = "0.02" }
timeout = "5m"
attempts = 3
on_crash = "rerun"
env = ["PATH"]
jobs = 1
rate = "10/min"

[stage.target.a]
depth = 3

[[stage]]
name = "summarise"
needs = ["extract"]
run = ["sh", "summarise.sh"]
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "extract.py").write_text("print(1)")
    return tmp_path


def loaded(folder, text):
    file = folder / "plan.toml"
    file.write_text(text)
    return load(file)


def names(resolved):
    return [resolved.steps.name(step) for step in range(len(resolved.steps))]


@pytest.mark.rule("B-2")
def test_a_plan_file_says_what_the_contract_says(folder):
    resolved = loaded(folder, GOOD)
    assert names(resolved) == [
        "extract:a",
        "extract:b",
        "extract:c",
        "summarise:a",
        "summarise:b",
        "summarise:c",
    ]
    extract = resolved.steps.stages[0]
    assert (extract.timeout, extract.attempts, extract.rate.count, extract.rate.seconds) == (
        300.0,
        3,
        10,
        60,
    )
    assert resolved.plan.limits == {"usd_micros": 5_000_000, "tokens": 200_000}
    assert resolved.contexts[0].config("a") == {"model": "small", "depth": 3}
    assert resolved.contexts[0].config("b") == {"model": "small", "depth": 2}


@pytest.mark.rule("B-2", "K-11")
@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ('timeout = "5m"', 'timeout = "5 minutes"', 18, '"90s", "5m" or "2h"'),
        ("depth = 3", "depth = nan", 26, "write it as a string"),
        ("depth = 2 }", "depth = inf }", 16, "write it as a string"),
        ('needs = ["extract"]', 'needs = ["extrac"]', 30, "did you mean extract?"),
        ('needs = ["extract"]', 'needs = ["summarise"]', 30, "in a circle"),
        ("attempts = 3", "atempts = 3", 19, "did you mean attempts?"),
        ("attempts = 3", "attempts = 0", 19, "from 1 to 100"),
        ("attempts = 3", "attempts = true", 19, "from 1 to 100"),
        ('inputs = ["extract.py"]', 'inputs = ["nope.py"]', 15, "there is no file nope.py"),
        ('inputs = ["extract.py"]', 'inputs = ["*.rs"]', 15, "no file matches"),
        ('inputs = ["extract.py"]', 'inputs = ["/etc/passwd"]', 15, "relative"),
        ('inputs = ["extract.py"]', 'inputs = ["../x"]', 15, "relative"),
        ("[stage.target.a]", "[stage.target.z]", 25, "no such target"),
        ('usd = "5.00"', 'usd = "five"', 4, 'such as "5.00"'),
        ('usd = "5.00"', 'eur = "5.00"', 4, "there is no budget lane"),
        ('run = ["sh", "summarise.sh"]', 'run = "sh summarise.sh"', 31, '["sh", "-c", '),
        ('run = ["sh", "summarise.sh"]', "", 29, "exactly one of run, python and approve"),
        (
            'run = ["sh", "summarise.sh"]',
            'run = ["sh"]\napprove = "ok?"',
            32,
            "not run and approve",
        ),
        ('run = ["sh", "summarise.sh"]', 'python = "nope:call"', 31, "cannot be imported"),
        ('run = ["sh", "summarise.sh"]', 'python = "nope"', 31, '"module:function"'),
        ('name = "summarise"', 'name = "extract"', 29, "two stages extract"),
        ('name = "summarise"', 'name = "../up"', 29, "no name for a stage"),
        ('["a", "b",', '["a", "a",', 12, "twice"),
        ('["a", "b",', '["a", "../b",', 12, "no name for a target"),
        ('["a", "b",', '["a", "a/b",', 12, "inside target"),
        ('["a", "b",', '["a", "",', 12, "list of words"),
        ('on_crash = "rerun"', 'on_crash = "retry"', 20, '"rerun" or "ask"'),
        ('env = ["PATH"]', 'env = ["A=B"]', 21, "environment variable"),
        ('env = ["PATH"]', 'secrets = ["ONCEWARD_X"]', 21, "environment variable"),
        ('rate = "10/min"', 'rate = "ten a minute"', 23, '"10/min"'),
        ("jobs = 1", "jobs = 0", 22, "from 1 to 1000"),
        ('name = "catalogue"', "", 0, 'write name = "catalogue"'),
        ('name = "catalogue"', 'name = "catalogue"\nbugdet = 1', 2, "did you mean budget?"),
        ("[[stage]]", "[stage]", 0, ""),
    ],
)
def test_a_mistake_is_named_with_its_line_and_what_to_write(folder, old, new, line, says):
    assert old in GOOD
    with pytest.raises((InvalidConfig, InvalidDependency)) as refused:
        loaded(folder, GOOD.replace(old, new, 1))
    assert says in refused.value.message
    assert "plan.toml" in refused.value.message
    assert refused.value.context.get("line", 0) == line, refused.value.message
    assert refused.value.exit_status == 2


@pytest.mark.rule("K-11")
@pytest.mark.parametrize(
    "text", ["", "name = ", "\xff", 'name = "x"\nstage = 1', 'name = "x"', "stage = [1]\nname='x'"]
)
def test_what_is_no_plan_is_refused(folder, text):
    file = folder / "plan.toml"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidConfig, match=r"plan\.toml"):
        load(file)


def stage(name, needs=(), targets=None, **words):
    words = {word: list(names) for word, names in words.items()}
    words |= {"targets": targets} if targets else {}
    return stage_of({"name": name, "needs": list(needs), "run": ["true"], **words})


@pytest.mark.rule("B-2")
def test_stages_come_after_what_they_need_and_otherwise_as_they_stand(folder):
    steps = Steps([stage("d", ["b"]), stage("c"), stage("b", ["a"]), stage("a")], {})
    assert [s.name for s in steps.stages] == ["c", "a", "b", "d"]


@pytest.mark.rule("B-2")
def test_a_step_needs_its_namesake_and_collects_all():
    stages = [
        stage("one"),
        stage("two"),
        stage("both", ["one", "two"]),
        stage("lone"),
        stage("join", collect=["one"]),
        stage("last", after=["join"]),
    ]
    named = {"one": ["b", "a", "ä", "B"], "two": ["a", "z"], "both": ["a"]}
    steps = Steps(stages, named)
    assert steps.targets[0] == ("B", "a", "b", "ä")
    assert steps.targets[2] == ("a",)
    assert steps.targets[3] == steps.targets[4] == steps.targets[5] == ("main",)
    at = {steps.name(step): step for step in range(len(steps))}
    assert steps.needs(at["both:a"]) == [(0, at["one:a"]), (1, at["two:a"])]
    assert steps.needs(at["join:main"]) == [(0, None)]
    assert steps.needs(at["last:main"]) == [] and steps.waits_for(5) == 1
    assert steps.named("lone") == at["lone:main"]
    with pytest.raises(InvalidConfig, match="no step"):
        steps.named("one")


def test_config_merges_tables_and_replaces_the_rest():
    assert merge({"a": {"x": 1, "y": 1}, "l": [1]}, {"a": {"y": 2}, "l": [2]}) == {
        "a": {"x": 1, "y": 2},
        "l": [2],
    }


def test_every_step_has_a_target_lock_of_its_own():
    parts = [
        ("p", "s", "t"),
        ("p", "s", "a b"),
        ("p", "s.t", "u"),
        ("p", "s", "t.u"),
        ("ü", "s", "x" * 200),
    ]
    locks = {lock_target(*part) for part in parts}
    assert (
        len(locks) == len(parts)
        and lock_target("catalogue", "extract", "a") == "catalogue.extract.a"
    )
    for lock in locks:
        check_target(lock)


@pytest.mark.rule("B-3", "B-5")
def test_the_same_tree_elsewhere_and_in_another_locale_hashes_the_same(folder, tmp_path_factory):
    (folder / "plan.toml").write_text(GOOD.replace('"extract.py"]', '"*.py", "data/**/*.txt"]', 1).replace(
        'inputs = ["extract.py"]', 'inputs = ["*.py", "data/**/*.txt"]'))  # fmt: skip
    for name in ("ä.txt", "Z.txt", "a.txt", "deep/b c.txt"):
        (folder / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "data" / name).write_text(name)
    (folder / "steps.py").write_text(STEPS)
    elsewhere = tmp_path_factory.mktemp("other") / "deeper" / "ü"
    shutil.copytree(folder, elsewhere)
    for file in elsewhere.rglob("*"):
        os.utime(file, (7, 7))
    say = (
        "import sys; from pathlib import Path; from onceward.builds.plan_file import load;"
        "print(load(Path('plan.toml')).hash, load(Path('steps.py')).hash)"
    )
    said = set()
    for place, words in (
        (folder, {"LC_ALL": "C", "TZ": "UTC", "PYTHONHASHSEED": "1"}),
        (
            elsewhere,
            {"LC_ALL": "C.UTF-8", "TZ": "Asia/Tokyo", "PYTHONHASHSEED": "2", "PYTHONUTF8": "1"},
        ),
    ):
        done = subprocess.run(
            [sys.executable, "-c", say],
            cwd=place,
            env={**os.environ, **words},
            capture_output=True,
            text=True,
            check=True,
        )
        said.add(done.stdout)
    assert len(said) == 1


STEPS = """
from onceward import Plan
import helper_module_that_is_not_there_yet as helper

plan = Plan("steps", config={"n": 1})
WORDS = ("a", "b")

class Shape:
    def area(self):
        return len(WORDS)

def around(text):
    return text + Shape.__name__

@plan.stage(targets=["a"])
def first(task):
    return around("x") + helper.name() + str(Shape().area())
""".replace("import helper_module_that_is_not_there_yet as helper\n", "").replace(
    "helper.name()", "'h'"
)


@pytest.mark.rule("B-3")
def test_a_functions_version_is_its_source_and_what_it_closes_over(folder, monkeypatch):
    def version(text):
        (folder / "steps.py").write_text(text)
        plan = load(folder / "steps.py")
        return plan.steps.stages[0].version

    first = version(STEPS)
    assert version(STEPS) == first
    assert version("# a comment elsewhere\n\n" + STEPS) == first
    assert version(STEPS.replace('targets=["a"]', 'targets=["a", "b"]')) == first
    for old, new in (
        ('around("x")', 'around("y")'),
        ("text + Shape", "text * 2 + Shape"),
        ('("a", "b")', '("a", "c")'),
        ("return len(WORDS)", "return len(WORDS) + 1"),
    ):
        assert version(STEPS.replace(old, new)) != first, new
    assert version(STEPS.replace('targets=["a"]', 'targets=["a"], version="7"')) == "7"


@pytest.mark.rule("B-3")
def test_a_helper_module_beside_the_plan_counts(folder):
    (folder / "steps.py").write_text("import nearby\n" + STEPS.replace("'h'", "nearby.name()"))
    sys.path.insert(0, str(folder))
    versions = set()
    for text in ("def name(): return 'a'", "def name(): return 'b'", "def name(): return 'b'"):
        (folder / "nearby.py").write_text(text)
        sys.modules.pop("nearby", None)
        versions.add(load(folder / "steps.py").steps.stages[0].version)
    sys.path.remove(str(folder))
    sys.modules.pop("nearby", None)
    assert len(versions) == 2


@pytest.mark.rule("B-3")
def test_a_version_that_somebody_says_stands_for_code_and_environment():
    made: dict = {}
    exec("def ghost(task): return 1", made)
    plan = Plan("p")
    plan.stage(name="ghost", version="1")(made["ghost"])
    (stage,) = Resolved(plan).steps.stages
    assert (stage.version, stage.environment_hash) == ("1", "")


@pytest.mark.rule("B-2")
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = 1", "makes 0 plans"),
        ("from onceward import Plan\na, b = Plan('a'), Plan('b')", "makes 2 plans"),
        ("1/0", "line 1: ZeroDivisionError"),
        ("def broken(:", "line 1: SyntaxError"),
        ("from onceward import Plan\nplan = Plan('a')", "has no stage"),
        (
            "from onceward import Plan\nplan = Plan('a')\n@plan.stage(target=['a'])\ndef f(task): pass",
            "mean targets?",
        ),
        (
            "from onceward import Plan\nplan = Plan('a')\n@plan.stage(needs=print)\ndef f(task): pass",
            "not a stage",
        ),
    ],
)
def test_a_python_file_that_makes_no_plan_is_refused(folder, text, says):
    file = folder / "plan.py"
    file.write_text(text)
    with pytest.raises(InvalidConfig) as refused:
        load(file)
    assert says in refused.value.message and "plan.py" in refused.value.message


def test_a_python_plan_runs_under_another_name_than_main(folder):
    file = folder / "plan.py"
    file.write_text(
        "from onceward import Plan\nplan = Plan('a')\nplan.command('x', ['true'])\n"
        "if __name__ == '__main__':\n    raise SystemExit(9)\n"
    )
    assert names(load(file)) == ["x:main"]


@pytest.mark.rule("K-11")
def test_an_input_that_cannot_be_read_is_named(folder):
    (folder / "sub").mkdir()
    (folder / "sub" / "secret.txt").write_text("x")
    resolved = loaded(
        folder, GOOD.replace('inputs = ["extract.py"]', 'inputs = ["sub/secret.txt"]')
    )
    assert resolved.inputs(0)[0][0] == "sub/secret.txt"
    (folder / "sub" / "secret.txt").unlink()
    with pytest.raises(InvalidConfig, match="cannot read the input"):
        resolved.inputs(0)


@pytest.mark.rule("B-2")
@pytest.mark.parametrize(
    ("second", "targets", "why"),
    [
        (stage("b", ["a"]), {"b": ["x", "z"]}, "write collect"),
        (stage("b", ["a"], collect=["a"]), {}, "twice"),
        (stage("b", ["a", "c"]), {}, "do not have the same targets"),
        (stage("b", after=["d"]), {}, "no such stage"),
    ],
)
def test_a_dependency_that_cannot_be_meant_is_refused_with_what_to_write(second, targets, why):
    stages = [stage("a"), stage("c"), second]
    with pytest.raises(InvalidDependency, match=why):
        Steps(stages, {"a": ["x", "y"], "c": ["y"], **targets})


def test_ten_thousand_of_everything_is_quick_to_resolve(folder):
    targets = [f"t{n}" for n in range(10_000)]
    plan = Plan("big", folder=folder)
    plan.command("a", ["true"], targets=targets)
    plan.command("b", ["true"], needs="a")
    plan.command("c", ["true"], collect="b", targets=[f"u{n}" for n in range(10_000)])
    resolved = Resolved(plan)
    assert len(resolved.steps) == 30_000 and resolved.steps.needs(20_000) == [(1, None)]


def test_paths_in_the_record_are_relative(folder):
    assert str(folder) not in loaded(folder, GOOD).body
    assert Path(folder / "plan.toml").exists()
