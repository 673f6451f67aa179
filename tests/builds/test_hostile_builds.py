"""Builds under bad luck and bad manners: what reviewers found, each as a claim."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest

from helpers import fail_store
from onceward import BudgetExceeded, Plan
from onceward.builds.lifecycle import Offer
from onceward.code.version import code_version
from onceward.core import faults
from onceward.core.records import Request
from onceward.core.views import document
from onceward.dispatch.views import session_view
from onceward.errors import InvalidConfig, InvalidResumeState, OncewardError, StorageError
from onceward.kernel.asker import Asker
from onceward.processes.launcher import Processes


def until(true, seconds=600):
    began = time.time()
    while not true():
        assert time.time() - began < seconds
        time.sleep(0.02)


def asker(site):
    other = type(site.workspace)(
        site.workspace.folder, store_url=site.workspace.settings.store.url, principal="tester"
    )
    return Asker(other.store(), other.kernel, other.keyring)


@pytest.mark.rule("B-7")
@pytest.mark.parametrize("how", ["function", "command"])
def test_a_vanished_input_of_another_step_does_not_touch_a_step_that_is_done(site, how):
    (site.folder / "in.txt").write_text("x")
    plan = Plan("p", folder=site.folder)
    if how == "function":

        def pay(task):
            task.spend(usd="5.00")
            (site.folder / "in.txt").unlink()
            return "worth it"

        plan.stage(name="pay", targets=["a"], version="1")(pay)
    else:
        plan.command("pay", ["sh", "-c", "rm in.txt; echo ok > $ONCEWARD_OUT/o"], targets=["a"])
    plan.stage(name="other", targets=["b"], inputs=["in.txt"], version="1")(lambda task: 1)
    outcome = site.run(plan, jobs=1)
    assert outcome["state"] == "FAILED" and "cannot read the input in.txt" in outcome["why"]
    assert site.steps() == {"pay:a": "SUCCESS", "other:b": "FAILED"}


@pytest.mark.rule("L-24")
def test_a_stop_while_a_step_is_being_queued_ends_the_build(site):
    plan = Plan("p", folder=site.folder)
    plan.stage(name="x", targets=list("abcd"), version="1")(lambda task: time.sleep(0.05))

    def term():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.3)

    with faults.armed("child.queued", 1, term):
        assert site.run(plan, jobs=2)["state"] == "CRASHED"
    assert site.resume(plan, site.build_id)["state"] == "SUCCESS"


@pytest.mark.rule("B-7", "L-24")
@pytest.mark.parametrize("how", ["timeout", "term"])
def test_a_function_that_never_looks_up_is_interrupted(site, how, monkeypatch):
    born = Processes.__init__

    def impatient(self, *words, **others):
        born(self, *words, **others)
        self.grace = 0.3

    monkeypatch.setattr(Processes, "__init__", impatient)
    plan = Plan("p", folder=site.folder)

    def hang(task):
        (site.folder / "begun").touch()
        while True:
            time.sleep(0.01)

    plan.stage(name="hang", version="1", timeout="1s" if how == "timeout" else "1h")(hang)
    if how == "term":
        act = lambda: (until((site.folder / "begun").exists), os.kill(os.getpid(), signal.SIGTERM))  # noqa: E731
        threading.Thread(target=act).start()
    outcome = site.run(plan)
    assert outcome["state"] == ("FAILED" if how == "timeout" else "CRASHED")


@pytest.mark.rule("E-4")
@pytest.mark.guarantee("G24")
def test_a_secret_in_an_error_a_note_or_a_name_is_not_stored(site, monkeypatch):
    monkeypatch.setenv("API_KEY", "s3cr3t-canary")

    def use(task):
        task.progress(10, "with " + os.environ["API_KEY"])
        raise ValueError("401 for key=" + os.environ["API_KEY"])

    def name(task):
        return {os.environ["API_KEY"]: b"x"}

    for call in (use, name):
        plan = Plan("p", folder=site.folder)
        plan.stage(name="use", secrets=["API_KEY"], version="1")(call)
        assert "canary" not in str(site.run(plan))
    kernel = site.workspace.kernel()
    kernel.artifacts.spill()
    kernel.close()
    for file in site.workspace.folder.rglob("*"):
        assert not file.is_file() or b"s3cr3t-canary" not in file.read_bytes(), file


@pytest.mark.rule("B-16")
@pytest.mark.parametrize("words", [{"jobs": 1}, {"rate": "1/s"}])
def test_steps_that_are_freed_together_still_keep_to_their_stage(site, words):
    lock, now, most, starts = threading.Lock(), [0], [0], []
    bar = threading.Barrier(4)

    def second(task):
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
            starts.append(time.time())
        time.sleep(0.1)
        with lock:
            now[0] -= 1

    plan = Plan("p", folder=site.folder)
    plan.stage(name="first", targets=list("abcd"), version="1")(lambda task: bar.wait(600) and None)
    plan.stage(name="second", needs="first", version="1", **words)(second)
    assert site.run(plan, jobs=4)["state"] == "SUCCESS"
    if "jobs" in words:
        assert most[0] == 1
    else:
        # A start may be seen late, so two may seem nearer than they are; all of them together cannot.
        assert all(b - a > 0.3 for a, b in pairwise(starts)) and starts[-1] - starts[0] > 2.7


@pytest.mark.rule("B-3")
def test_a_step_that_changes_its_config_changes_nobody_elses(site):
    saw = []

    def step(task):
        task.config["opts"]["seen"].append(task.target)
        saw.append(list(task.config["opts"]["seen"]))
        return task.config["opts"]["seen"]

    def plan():
        made = Plan("p", folder=site.folder, config={"opts": {"seen": []}})
        made.stage(name="x", targets=list("abc"), version="1")(step)
        return made

    site.run(plan(), jobs=1)
    assert saw == [["a"], ["b"], ["c"]]
    assert site.run(plan(), jobs=1)["steps"]["reused"] == 3


@pytest.mark.rule("C-8", "L-23")
def test_an_error_of_our_own_ends_one_step_and_not_the_kernel(site, monkeypatch):
    def broken(*_):
        raise TypeError("a bug of ours")

    def work(task):
        if task.target == "a":
            raise RuntimeError("it looks at how it ended")
        return 1

    monkeypatch.setattr("onceward.dispatch.child_run._by_request", broken)
    plan = Plan("p", folder=site.folder)
    plan.stage(name="x", targets=["a", "b"], version="1")(work)
    outcome = site.run(plan, keep_going=True)
    assert outcome["state"] == "FAILED" and "an error of Onceward's own" in outcome["why"]
    assert site.steps() == {"x:a": "FAILED", "x:b": "SUCCESS"}


@pytest.mark.rule("B-11", "B-9")
def test_a_fork_keeps_what_its_parent_was_allowed_and_its_results(site):
    die = site.folder / "die"
    die.touch()

    def step(task):
        if die.exists() and task.target == "b":
            fail_store(task)
        task.spend(usd="1.00")

    def plan(targets):
        made = Plan("p", folder=site.folder)
        made.stage(name="x", targets=list(targets), version="1", estimate={"usd": "0.00"})(step)
        return made

    with pytest.raises(StorageError):
        site.run(plan("abcde"), jobs=1, limits={"usd_micros": 2_500_000})
    die.unlink()
    site.workspace.kernel().close()
    outcome = site.resume(plan("abcdef"), site.build_id, Offer(fork=True), reuse=False)
    assert outcome["state"] == "BUDGET_PAUSE" and outcome["steps"]["reused"] == 1


@pytest.mark.rule("B-7", "B-9")
def test_a_failed_step_fails_the_build_whatever_the_next_would_cost(site):
    def bad(task):
        task.spend(usd="0.10")
        raise ValueError("broken")

    plan = Plan("p", folder=site.folder, budget={"usd": "1.00"})
    plan.stage(name="bad", targets=["a"], version="1", estimate={"usd": "0.10"})(bad)
    plan.stage(name="next", targets=["b"], version="1", estimate={"usd": "5.00"})(lambda task: 1)
    assert site.run(plan, jobs=1)["state"] == "FAILED"


@pytest.mark.rule("B-12")
def test_an_output_may_be_called_what_a_log_is_called(site):
    plan = Plan("p", folder=site.folder)
    plan.command(
        "c", ["sh", "-c", "echo the log; echo the output > $ONCEWARD_OUT/stdout"], targets=["a"]
    )
    site.run(plan)
    child = site.status()["steps"][0]["child_id"]
    from onceward.artifacts.views import artifact_list

    store = site.workspace.store()
    kinds = {(a["name"], a["kind"]) for a in document(artifact_list(store, child))}
    store.close()
    assert kinds == {("stdout", "log"), ("stdout", "file")}


@pytest.mark.rule("B-4")
def test_a_lost_file_is_made_again_by_whoever_makes_the_same_bytes(site):
    def plan(version):
        made = Plan("p", folder=site.folder)
        made.stage(name="x", targets=["a"], version=version)(lambda task: "ok")
        made.stage(name="y", needs="x", version=version)(lambda task: task.inputs["x"])
        return made

    site.run(plan("1"))
    kernel = site.workspace.kernel()
    kernel.artifacts.spill()
    kernel.close()
    for file in (site.workspace.folder / "artifacts").glob("??/*"):
        file.unlink()
    assert site.run(plan("2"))["state"] == "SUCCESS"


@pytest.mark.rule("B-15")
def test_approved_content_that_changed_is_asked_about_again(site):
    (site.folder / "doc.md").write_text("v1")
    plan = Plan("p", folder=site.folder)
    plan.stage(name="draft", targets=["a"], version="1")(lambda task: 1)
    plan.approval("look", "ok?", needs="draft", inputs=["doc.md"])
    plan.stage(name="ship", needs="look", version="1")(lambda task: 1)
    said = []

    def digests():
        return [t["digest"] for t in site.told if t["status"] == "APPROVAL"]

    def approver():
        engine = asker(site)
        until(digests)
        (site.folder / "doc.md").write_text("v2")
        for number in range(2):
            payload = {"build": site.build_id, "step": "look:a", "digest": digests()[-1]}
            said.append(
                engine.ask(Request("builds.approve", f"r{number}", payload, "tester"), 10).value[
                    "decision"
                ]
            )
            until(lambda n=number: len(digests()) > 1 or n)
        engine.close()

    thread = threading.Thread(target=approver)
    thread.start()
    assert site.run(plan, jobs=1)["state"] == "SUCCESS"
    thread.join()
    assert len(set(digests())) == 2 and said == ["approved", "approved"]


@pytest.mark.rule("B-3", "B-15")
def test_what_follows_an_approval_depends_on_what_was_approved(site):
    def plan():
        made = Plan("p", folder=site.folder)
        made.command("draft", ["sh", "-c", "cat in.txt > $ONCEWARD_OUT/o"], inputs=["in.txt"])
        made.approval("ok", "send it?", needs="draft")
        made.command("send", ["sh", "-c", "echo sent >> sent"], needs="ok")
        return made

    for text in ("v1", "v2"):
        (site.folder / "in.txt").write_text(text)
        site.told = []
        thread = threading.Thread(target=lambda: approve_first(site))
        thread.start()
        assert site.run(plan())["state"] == "SUCCESS"
        thread.join()
    assert (site.folder / "sent").read_text() == "sent\nsent\n"


def approve_first(site):
    until(lambda: any(t["status"] == "APPROVAL" for t in site.told))
    engine = asker(site)
    digest = next(t["digest"] for t in site.told if t["status"] == "APPROVAL")
    payload = {"build": site.build_id, "step": "ok", "digest": digest}
    engine.ask(Request("builds.approve", f"r-{digest}", payload, "tester"), 10)
    engine.close()


@pytest.mark.rule("B-8")
def test_a_step_in_doubt_keeps_its_cost_its_lineage_and_a_new_run_from_repeating_it(site):
    die = site.folder / "die"

    def once(task):
        task.spend(usd="1.00")
        if die.exists():
            fail_store(task)
        return 1

    plan = Plan("p", folder=site.folder)
    plan.stage(name="once", targets=["a"], on_crash="ask", version="1")(once)
    die.touch()
    with pytest.raises(StorageError):
        site.run(plan)
    die.unlink()
    site.workspace.kernel().close()
    build = site.build_id
    with pytest.raises(InvalidResumeState, match="a person has to decide about once:a"):
        site.run(plan)
    assert site.resume(plan, build, Offer(rerun=["once:a"]))["state"] == "SUCCESS"
    status = site.status(build)
    assert (status["cost_usd"], status["steps"][0]["cost_usd"], status["steps"][0]["attempts"]) == (
        "2.00",
        "2.00",
        2,
    )
    store = site.workspace.store()
    first, second = document(session_view(store, build))["children"]
    store.close()
    assert second["predecessor"] == first["child_id"] and second["attempt"] == 2


@pytest.mark.rule("K-13")
def test_a_request_that_is_no_text_is_refused_and_nobody_stumbles_over_it(site):
    kernel = site.workspace.kernel()
    with pytest.raises(OncewardError) as refused:
        kernel.ask(Request("builds.abandon", "r1", {"build": "bld\0"}, "tester"))
    assert refused.value.code == "INVALID_CONFIG"
    kernel.close()
    site.workspace.kernel().close()


@pytest.mark.rule("B-7")
def test_outputs_that_lie_in_each_other_or_cannot_be_read_leave_the_step_in_doubt(site):
    def plan(call):
        made = Plan("p", folder=site.folder)
        made.stage(name="x", version="1")(call)
        made.command("y", ["true"], needs="x")
        return made

    def replaced(task):
        folder = task.out
        folder.rmdir()
        folder.symlink_to("/etc")

    for call in (
        lambda task: {"a": b"1", "a/b": b"2"},
        lambda task: Path("/proc/self/mem"),
        replaced,
    ):
        outcome = site.run(plan(call), reuse=False)
        assert outcome["in_doubt"] == ["x:main"]
        site.ask("builds.abandon", build=site.build_id, failed=False)


def test_a_budget_error_that_a_step_made_up_is_an_ordinary_failure(site):
    def own(task):
        raise BudgetExceeded("enough")

    plan = Plan("p", folder=site.folder, budget={"usd": "1.00"})
    plan.stage(name="x", version="1")(own)
    assert site.run(plan)["state"] == "FAILED"


CASES = [
    (
        """
import functools
@functools.cache
def helper(x): return 1
def step(t): return helper(t)
""",
        "return 1",
        "return 2",
    ),
    (
        "f = lambda x: 1\ng = lambda x: 1\ndef step(t): return f(t) + g(t)",
        "g = lambda x: 1",
        "g = lambda x: 2",
    ),
    (
        """
def make(n):
    def inner(): return n
    return inner
a, b = make(1), make(2)
def step(t): return a() + b()
""",
        "make(2)",
        "make(3)",
    ),
    (
        """
class Base:
    def go(self): return 1
class C(Base): pass
def step(t): return C().go()
""",
        "return 1",
        "return 2",
    ),
    (
        "N = 1\nclass C:\n    @staticmethod\n    def go(): return N\ndef step(t): return C.go()",
        "N = 1",
        "N = 2",
    ),
    ("def h(): return 1\nH = {'a': h}\ndef step(t): return H['a']()", "return 1", "return 2"),
    (
        """
import functools
def base(n): return n
p = functools.partial(base, 1)
def step(t): return p()
""",
        "base, 1",
        "base, 2",
    ),
    ("import re\nP = re.compile('a')\ndef step(t): return P.match('x')", "'a'", "'b'"),
    ("from decimal import Decimal\nD = Decimal('1')\ndef step(t): return D", "'1'", "'2'"),
    (
        "class C:\n    def __init__(self, n): self.n = n\nO = C(1)\ndef step(t): return O.n",
        "C(1)",
        "C(2)",
    ),
    (
        """
import dataclasses
@dataclasses.dataclass(frozen=True)
class C:
    n: int
O = (C(1),)
def step(t): return O
""",
        "C(1)",
        "C(2)",
    ),
    (
        """
import functools
def deco(n):
    def around(f):
        @functools.wraps(f)
        def inner(*a): return n
        return inner
    return around
@deco(1)
def step(t): return 0
""",
        "deco(1)",
        "deco(2)",
    ),
    ("def step(t):\n    return 'a\x0cb', 1", ", 1", ", 2"),
    # A default is a value of the moment when the function was made: its text names it only.
    ("N = 1\ndef step(t, n=N): return n", "N = 1", "N = 2"),
    ("N = 1\ndef step(t, *, n=N): return n", "N = 1", "N = 2"),
]
"""A step, and a change to something it is made of."""


@pytest.mark.rule("B-3")
@pytest.mark.parametrize(
    ("before", "old", "new"),
    CASES,
)
def test_whatever_a_step_is_made_of_counts_for_its_version(tmp_path, before, old, new):
    import importlib.util

    found = []
    for number, text in enumerate((before, before, before.replace(old, new))):
        (tmp_path / str(number)).mkdir()
        file = tmp_path / str(number) / "steps_of_one.py"
        file.write_text(text)
        spec = importlib.util.spec_from_file_location("steps_of_one", file)
        module = importlib.util.module_from_spec(spec)
        sys.modules["steps_of_one"] = module
        spec.loader.exec_module(module)
        found.append(code_version(module.step, file.parent).code)
    del sys.modules["steps_of_one"]
    assert found[0] == found[1] != found[2]


@pytest.mark.rule("B-2", "K-11")
@pytest.mark.parametrize("ending", ["plan.run()", "raise SystemExit(0)", "plan.stage(name='y')(5)"])
def test_a_plan_file_that_does_more_than_make_a_plan_is_refused(site, ending):
    from onceward.builds.plan_file import load

    file = site.folder / "plan.py"
    file.write_text(
        f"from onceward import Plan\nplan = Plan('p')\nplan.command('x', ['true'])\n{ending}\n"
    )
    with pytest.raises(InvalidConfig, match=r"plan\.py, line 4"):
        load(file)


def test_a_build_runs_on_another_thread_than_the_main_one(site):
    plan = Plan("p", folder=site.folder)
    plan.stage(name="x", version="1")(lambda task: 1)
    found = []
    thread = threading.Thread(target=lambda: found.append(site.run(plan)["state"]))
    thread.start()
    thread.join()
    assert found == ["SUCCESS"]


def test_bare_decorators_make_stages():
    plan = Plan("p")

    @plan.stage
    def alone(task):
        return 1

    assert plan.stages[0].name == "alone"


@pytest.mark.rule("B-16", "K-2")
@pytest.mark.guarantee("G26")
def test_a_clock_that_was_set_back_does_not_hold_a_rate_for_ever(site):
    from onceward.core.canon import digest

    kernel = site.workspace.kernel()
    later = kernel.store.sources.now() + 3600 * 1_000_000
    scope = digest(["p", "x"])
    kernel.store.write(
        lambda tx: tx.write(
            "INSERT INTO rate_starts (scope, child_id, at) VALUES (?, ?, ?)",
            (scope, "chd_x", later),
        )
    )
    kernel.close()
    plan = Plan("p", folder=site.folder)
    plan.stage(name="x", version="1", rate="1/s")(lambda task: 1)
    assert site.run(plan)["state"] == "SUCCESS"


@pytest.mark.rule("B-12")
def test_a_large_output_flows_on_in_flat_memory(tmp_path):
    import subprocess

    (tmp_path / "onceward.toml").write_text("[artifacts]\nmax_bytes = 1000000000\n")
    (tmp_path / "big.py").write_text(
        "from onceward import Plan\nplan = Plan('big')\n"
        "@plan.stage\ndef make(task):\n"
        "    with (task.out / 'big.bin').open('wb') as file:\n"
        "        for n in range(128): file.write(bytes([n]) * 1048576)\n"
        "line = 'wc -c < $ONCEWARD_INPUTS/make/main/big.bin > $ONCEWARD_OUT/n'\n"
        "plan.command('use', ['sh', '-c', line], needs=make)\n"
        "result = plan.run(quiet=True)\n"
        "most = next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1]\n"
        "print(result.value('use')['n'].decode().strip(), most)\n"
    )
    done = subprocess.run(
        [sys.executable, "big.py"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    size, most = map(int, done.stdout.split())
    assert size == 128 * 1048576 and most < 80 * 1024


@pytest.mark.rule("C-30", "B-9")
def test_money_that_is_gone_is_called_gone(site):
    def settle(task):
        task.spend(usd="0.03", settled=True)

    plan = Plan("p", folder=site.folder, budget={"usd": "0.02"})
    plan.stage(name="x", version="1")(settle)
    outcome = site.run(plan)
    assert outcome["state"] == "BUDGET_PAUSE" and outcome["why"] == "usd is at 0.03 of 0.02"


@pytest.mark.rule("C-8")
def test_a_report_that_is_refused_is_told(site):
    text = 'echo \'{"spend":{"usd":"much"}}\' >&3; echo \'{"progress":5000}\' >&3'
    plan = Plan("p", folder=site.folder)
    plan.command("x", ["sh", "-c", text])
    site.run(plan)
    assert next(t["mistakes"] for t in site.told if t["status"] == "SUCCESS") == 2


@pytest.mark.rule("L-23", "I-1")
def test_a_build_whose_kernel_is_gone_says_so_before_anybody_takes_over(site):
    plan = Plan("p", folder=site.folder)
    plan.stage(name="x", version="1")(lambda task: 1)
    pid = os.fork()
    if pid == 0:
        faults.arm("commit.before", 6)
        site.run(plan)
        os._exit(0)
    os.waitpid(pid, 0)
    from onceward.builds.views import build_list

    store = site.workspace.store()
    (build,) = document(build_list(store))
    store.close()
    assert (
        build["state"] == "ACTIVE"
        and build["orphaned"]
        and build["next"].startswith("onceward resume bld_")
    )


@pytest.mark.rule("B-8")
def test_an_accepted_file_is_the_value_that_a_function_would_have_returned(site, tmp_path):
    die = site.folder / "die"

    def pay(task):
        if die.exists():
            fail_store(task)
        return {"receipt": 1}

    def plan():
        made = Plan("p", folder=site.folder)
        made.stage(name="pay", targets=["x", "y"], on_crash="ask", version="1")(pay)
        made.stage(name="sum", needs="pay", version="1")(lambda task: task.inputs["pay"]["receipt"])
        return made

    assert site.run(plan(), jobs=2)["state"] == "SUCCESS"
    die.touch()
    with pytest.raises(StorageError):
        site.run(plan(), jobs=2, reuse=False)
    die.unlink()
    site.workspace.kernel().close()
    build = site.build_id
    doubts = [name for name, status in site.steps(build).items() if status == "IN_DOUBT"]
    (tmp_path / "rec.json").write_text('{"receipt": 7}')
    (tmp_path / "bad.json").write_text('{"receipt": ')
    with pytest.raises(InvalidConfig, match="no JSON"):
        site.resume(plan(), build, Offer(accept={doubts[0]: tmp_path / "bad.json"}))
    offer = Offer(accept={doubts[0]: tmp_path / "rec.json"}, rerun=doubts[1:])
    # What was said to be run again is run, though another build has its result; and the build still reuses nothing.
    outcome = site.resume(plan(), build, offer)
    assert outcome["state"] == "SUCCESS" and outcome["steps"]["reused"] == 0


@pytest.mark.rule("L-24")
def test_a_second_signal_leaves_a_function_that_hangs_in_foreign_code(tmp_path):
    import subprocess

    (tmp_path / "hang.py").write_text(
        "import time, pathlib\nfrom onceward import Plan\nplan = Plan('hang')\n"
        "@plan.stage\ndef stuck(task):\n    pathlib.Path('begun').touch()\n    time.sleep(3600)\n"
    )
    bin_ = Path(sys.executable).parent
    process = subprocess.Popen(
        [bin_ / "onceward", "run", "hang.py"], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    until((tmp_path / "begun").exists)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    began = time.time()
    _, told = process.communicate(timeout=600)
    assert process.returncode == 130 and time.time() - began < 40
    assert (
        "stopping stuck:main; press Ctrl-C again" in told and "next: onceward resume bld_" in told
    )
    (tmp_path / "hang.py").write_text(
        (tmp_path / "hang.py").read_text().replace("sleep(3600)", "sleep(0)")
    )
    done = subprocess.run(
        [bin_ / "onceward", "resume", "--fork"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.rule("B-10", "B-11")
@pytest.mark.guarantee("G16")
def test_one_token_is_good_for_one_fork_of_a_paused_build(site):
    def plan(targets):
        made = Plan("p", folder=site.folder, budget={"usd": "0.01"})
        made.stage(name="x", targets=list(targets), version="1", estimate={"usd": "1.00"})(
            lambda task: 1
        )
        return made

    paused = site.run(plan("a"))
    build, token = paused["build_id"], paused["confirmation_token"]
    offer = Offer(token=token, fork=True, limits={"usd_micros": 5_000_000})
    assert site.resume(plan("ab"), build, offer)["state"] == "SUCCESS"
    # The parent still waits for its own resume, but the permit is gone.
    with pytest.raises(InvalidResumeState, match="was used already"):
        site.resume(plan("abc"), build, offer)
