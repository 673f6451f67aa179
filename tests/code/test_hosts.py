"""Under a server the functions of a plan run in code hosts: whatever they do, the server goes on (K-15)."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from onceward.builds.views import build_view, values_of_stage
from onceward.core.views import document
from onceward.locks.identity import stat_of
from onceward.serving import Service
from onceward.settings import FOLDER
from onceward.store.tables.artifacts import refs_of
from onceward.workspace import Workspace
from typing_in import Typed, start, until

HEAD = """
import asyncio, decimal, os, pathlib, time
from onceward import Plan, NetworkError

HERE = pathlib.Path(__file__).parent
plan = Plan("hosted", budget={"usd": "1.00"})
"""


@pytest.fixture
def cli(store_url, tmp_path):
    typed = Typed(tmp_path, store_url)
    typed("init", check=0)
    return typed


@pytest.fixture
def service(cli, store_url, monkeypatch):
    monkeypatch.setenv("PATH", cli.env["PATH"])
    place = Workspace(cli.folder / FOLDER, store_url=store_url, principal="tester")
    service = Service(place)
    service.start()
    service.kernel.processes.grace = 0.5
    yield service
    service.stop()


@pytest.fixture
def kind():
    return "sqlite"


class Hosted:
    """Builds of one plan under a server, and how they ended."""

    def __init__(self, cli, service):
        self.folder, self.service = cli.folder, service
        self._asked = 0

    def begin(self, body, name="plan.py", **order):
        if body is not None:
            (self.folder / name).write_text(HEAD + body if name.endswith(".py") else body)
        self._asked += 1
        order = {"plan": name, **order}
        said = self.service.ask("tester", "builds.run", order, f"r{self._asked}")
        return said.value["build_id"]

    def view(self, build):
        return document(build_view(self.service.store, build))

    def ended(self, build):
        over = ("SUCCESS", "FAILED", "CRASHED", "BUDGET_PAUSE", "ABANDONED")
        return until(lambda: (view := self.view(build))["state"] in over and view)

    def run(self, body, name="plan.py", **order):
        return self.ended(self.begin(body, name, **order))

    def values(self, build, stage):
        with self.service.workspace.artifacts() as kept:
            return values_of_stage(kept, build, stage, None)

    def log(self, build, name):
        child = step(self.view(build), name)["child_id"]
        with self.service.store.read() as rows:
            digests = {ref.name: ref.sha256 for ref in refs_of(rows, child)}
        return b"".join(self.service.artifacts.read(digests["log"])).decode()


@pytest.fixture
def hosted(cli, service):
    return Hosted(cli, service)


def lives(pid):
    fields = stat_of(pid)
    return bool(fields) and fields[0] != "Z"


def step(view, name):
    return next(s for s in view["steps"] if f"{s['stage']}:{s['target']}" == name)


@pytest.mark.rule("K-15", "I-2")
def test_functions_run_in_another_process_and_find_everything_there(hosted):
    view = hosted.run(
        """
@plan.stage(targets=["a", "b"], config={"depth": 2, "share": 0.25})
def first(task):
    task.spend(usd=decimal.Decimal("0.01"), tokens=5)
    task.spend(settled=True, usd=0.02)
    print("printed by", task.target)
    task.log("logged")
    task.progress(500, "half")
    (task.out / "note.txt").write_text("left behind")
    return {"pid": os.getpid(), "config": task.config}

@plan.stage(needs=first)
async def second(task):
    await asyncio.sleep(0)
    left = task.inputs["first"]
    assert left["note.txt"].read_text() == "left behind"
    return left["value.json"]

@plan.stage(collect=second)
def gathered(task):
    return {"bytes": b"raw", "names": sorted(task.inputs["second"])}
"""
    )
    assert view["state"] == "SUCCESS", view["steps"]
    found = hosted.values(view["build_id"], "second")
    pids = {value["pid"] for value in found.values()}
    assert os.getpid() not in pids and len(pids) == 1
    assert found["a"]["config"] == {"depth": 2, "share": 0.25}
    gathered = hosted.values(view["build_id"], "gathered")["main"]
    assert gathered == {"bytes": b"raw", "names": ["a", "b"]}
    assert view["cost_usd"] == "0.06" and view["tokens"] == 10
    assert hosted.log(view["build_id"], "first:a").splitlines() == ["printed by a", "logged"]


@pytest.mark.rule("K-15")
def test_a_plan_in_toml_names_functions_that_run_in_a_host(hosted):
    (hosted.folder / "work.py").write_text("import os\ndef call(task):\n    return os.getpid()\n")
    view = hosted.run(
        'name = "named"\n[[stage]]\nname = "a"\npython = "work:call"\n', name="plan.toml"
    )
    assert view["state"] == "SUCCESS"
    assert hosted.values(view["build_id"], "a")["main"] != os.getpid()


DEADLY = {
    "exits": ("os._exit(7)", "exit status 7"),
    "crashes": ("__import__('ctypes').string_at(0)", "SIGSEGV"),
    "kills itself": ("os.kill(os.getpid(), 9)", "SIGKILL"),
    "ends by a signal without a name": ("os.kill(os.getpid(), 40)", "signal 40"),
    "raises": ("1 / 0", "division by zero"),
    "leaves": ("raise SystemExit(3)", "SystemExit"),
}


@pytest.mark.rule("K-15")
@pytest.mark.parametrize("name", DEADLY)
def test_a_function_that_ends_its_process_is_a_failed_step_and_no_more(hosted, name):
    code, said = DEADLY[name]
    body = f"""
@plan.stage(targets=["a"])
def work(task):
    if not (HERE / "well").exists():
        {code}
    return 1
"""
    view = hosted.run(body)
    assert view["state"] == "FAILED"
    assert said in json.dumps(step(view, "work:a")), step(view, "work:a")
    (hosted.folder / "well").touch()
    assert hosted.run(None)["state"] == "SUCCESS"


@pytest.mark.rule("K-15", "C-40")
def test_a_function_that_does_not_end_is_ended_with_its_process(hosted):
    build = hosted.begin(
        """
@plan.stage(targets=["a"])
def work(task):
    (HERE / "begun").write_text(str(os.getpid()))
    while True:
        try:
            time.sleep(3600)
        except BaseException:
            pass
"""
    )
    pid = int(until(lambda: (f := hosted.folder / "begun").exists() and f.read_text()))
    hosted.service.ask("tester", "builds.abandon", {"build": build}, "give-up")
    assert hosted.ended(build)["state"] == "ABANDONED"
    until(lambda: not lives(pid))
    other = "@plan.stage\ndef quick(task):\n    return 1\n"
    assert hosted.run(other, name="other.py")["state"] == "SUCCESS"


@pytest.mark.rule("C-30", "B-9")
def test_the_ledger_is_asked_and_its_no_ends_the_function(hosted):
    view = hosted.run(
        """
@plan.stage(targets=["a"])
def work(task):
    task.spend(usd="0.60")
    task.spend(usd="0.60")
    return 1
"""
    )
    assert view["state"] == "BUDGET_PAUSE" and view["cost_usd"] == "0.60"


@pytest.mark.rule("B-7")
def test_what_a_function_raises_is_told_as_ever_and_retried_where_that_helps(hosted):
    view = hosted.run(
        """
@plan.stage(targets=["a"])
def work(task):
    if task.attempt == 1:
        raise NetworkError("no line")
    if task.attempt == 2:
        raise ConnectionError("cut")
    raise ValueError("third")
"""
    )
    found = step(view, "work:a")
    assert view["state"] == "FAILED" and found["attempts"] == 3
    assert found["error"]["message"].startswith("ValueError: third (plan.py:")


@pytest.mark.rule("B-8")
def test_what_cannot_be_recorded_is_kept_for_a_person(hosted):
    view = hosted.run(
        """
@plan.stage(targets=["a"])
def work(task):
    return {"good": b"kept", "odd": object()}
"""
    )
    assert step(view, "work:a")["status"] == "IN_DOUBT"
    with hosted.service.store.read() as rows:
        names = [name for (name,) in rows.read("SELECT name FROM artifact_refs")]
    assert any(name.endswith("value.repr") for name in names)
    assert any("good" in name for name in names)


@pytest.mark.rule("B-3", "K-15")
def test_a_running_build_keeps_its_code_and_the_next_gets_the_new(hosted):
    body = """
@plan.stage(targets=["a", "b"])
def work(task):
    (HERE / f"begun-{task.target}").touch()
    while not (HERE / "go").exists():
        task.check()
        time.sleep(0.01)
    return "VERSION"
"""
    old = hosted.begin(body.replace("VERSION", "old"), jobs=1)
    until((hosted.folder / "begun-a").exists)
    # Another build of the file as it is now, in a host of its own.
    new = hosted.begin(body.replace("VERSION", "new"), jobs=2, reuse=False)
    (hosted.folder / "go").touch()
    assert hosted.ended(old)["state"] == hosted.ended(new)["state"] == "SUCCESS"
    assert hosted.values(old, "work") == {"a": "old", "b": "old"}
    assert hosted.values(new, "work") == {"a": "new", "b": "new"}


@pytest.mark.rule("K-15")
def test_a_host_stays_warm_for_the_next_build_of_the_same_code(hosted):
    body = "@plan.stage\ndef work(task):\n    return os.getpid()\n"
    first = hosted.run(body)
    second = hosted.run(None, force=True)
    assert hosted.values(first["build_id"], "work") == hosted.values(second["build_id"], "work")


@pytest.mark.rule("K-14")
def test_a_hosted_function_signs_for_nobody(hosted):
    view = hosted.run(
        """
@plan.stage
def work(task):
    import onceward
    place = onceward.Workspace(HERE / ".onceward")
    try:
        engine = place.engine()
        from onceward.core.records import Request
        return str(engine.ask(Request("principals.add", "mine", {"name": "eve", "roles": ["admin"]}, place.principal), 5))
    except onceward.OncewardError as error:
        return error.code
"""
    )
    assert hosted.values(view["build_id"], "work") == {"main": "PERMISSION_DENIED"}


@pytest.mark.rule("C-8", "C-20", "K-15")
@pytest.mark.guarantee("G11")
@pytest.mark.parametrize("supervised", [True, False])
def test_no_host_survives_the_kill_of_its_server(cli, store_url, supervised):
    """Recovery says that a function ended only when the process that ran it is gone, also where the supervisor cannot
    end it."""
    (cli.folder / "plan.py").write_text(
        HEAD
        + """
@plan.stage(targets=["a"])
def work(task):
    (HERE / "begun").write_text(str(os.getpid()))
    while not (HERE / "go").exists():
        time.sleep(0.01)
    return os.getpid()
"""
    )
    process = start(cli, "serve", "--port", "0", "--json")
    assert process.stdout.readline()
    asking = start(cli, "run", "plan.py", "--json")
    pid = int(until(lambda: (f := cli.folder / "begun").exists() and f.read_text()))
    if not supervised:
        for suspended in (int(stat_of(pid)[1]), pid):
            os.kill(suspended, signal.SIGSTOP)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    place = Workspace(cli.folder / FOLDER, store_url=store_url, principal="tester")
    kernel = place.kernel()
    try:
        assert not lives(pid), "recovery was done, and the function still ran"
        with kernel.store.read() as rows:
            found = rows.read("SELECT reason, death FROM urm_dispatch_token")
    finally:
        kernel.close()
    assert [reason for reason, _ in found] == ["terminated_on_restart"]
    assert "unconfirmed" not in str(found)
    asking.kill()
    asking.communicate()


def test_a_host_is_run_by_our_own_interpreter(hosted):
    view = hosted.run("@plan.stage\ndef work(task):\n    import sys\n    return sys.executable\n")
    assert Path(hosted.values(view["build_id"], "work")["main"]) == Path(sys.executable)


@pytest.mark.rule("K-15")
def test_a_hundred_calls_at_once_share_a_host_and_get_their_own_answers(hosted):
    view = hosted.run(
        """
@plan.stage(targets=[f"t{n:02}" for n in range(60)])
def work(task):
    for n in range(3):
        task.spend(tokens=1)
    return task.target

@plan.stage(needs=work)
async def again(task):
    await asyncio.sleep(0.001)
    return task.inputs["work"]
""",
        jobs=12,
    )
    assert view["state"] == "SUCCESS" and view["tokens"] == 180
    found = hosted.values(view["build_id"], "again")
    assert all(value == target for target, value in found.items()) and len(found) == 60


@pytest.mark.rule("K-15")
def test_what_writes_into_the_line_to_the_kernel_ends_its_host_only(hosted):
    view = hosted.run(
        """
@plan.stage
def work(task):
    os.write(3, b"\\xff" * 4096)
    time.sleep(30)
"""
    )
    assert view["state"] == "FAILED" and "crashed" in json.dumps(view["steps"])
    quick = "@plan.stage\ndef quick(task):\n    return 1\n"
    assert hosted.run(quick, name="other.py")["state"] == "SUCCESS"
