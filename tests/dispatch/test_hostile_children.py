"""Children, and what they say, that could break the record: each has its one end, and nobody else notices."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from pathlib import Path

import pytest

from helpers import assert_sound
from onceward.artifacts.views import artifact_list
from onceward.core.limits import MAX_INTEGER
from onceward.core.views import document
from onceward.dispatch.recovery import recover
from onceward.dispatch.work import Command, Function
from onceward.errors import BudgetExceeded, InvalidConfig, NetworkError
from onceward.kernel.tenure import acquire
from onceward.kernel.views import stream_lines
from onceward.locks import TargetLock, TargetLocked
from onceward.processes.launcher import Process
from onceward.store.tables.children import Tokens


def function(call, **words):
    return Function(call=call, name="test", **words)


def shell(text, **words):
    return Command(argv=("sh", "-c", text), cwd=Path("/"), **words)


def fine(task):
    return 1


def ends(children, works):
    return [children.wait(child_id) for child_id in children.spawn(works)]


def sound(kernel):
    with kernel.store.read() as rows:
        assert_sound(rows)
        assert all(not Tokens(rows).open_in(f"ses_{n}") for n in "ab")


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no")


def raising(error):
    def call(task):
        raise error

    return call


@pytest.mark.rule("C-8")
@pytest.mark.parametrize(
    "error",
    [
        Unspeakable(),
        ValueError("x" * 30_000_000),
        ValueError("a\0b \ud800"),
        NetworkError("\ud800\0"),
        BudgetExceeded(
            "no", context={"x": 1.5, "reason": "mine", "to": "x", "n": 10**30, "deep": [[[[[1]]]]]}
        ),
        BudgetExceeded("no", context={"": 1, "k": {1: 2}, "b": b"bytes"}),
        SystemExit(3),
        KeyboardInterrupt(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_a_function_raises_is_its_own_end(kernel, error):
    children = kernel.open_session("ses_a", 1)
    first, second = ends(children, [function(raising(error)), function(fine)])
    assert first.reason in ("execution_failed", "budget_exceeded")
    assert second.reason == "completed"
    sound(kernel)


@pytest.mark.rule("C-8", "L-23")
@pytest.mark.parametrize(
    "line",
    [
        f'{{"spend":{{"tokens":{MAX_INTEGER}}},"settled":true}}',
        '{"spend":{"duration_secs":0}}',
        '{"spend":{"tokens":"%s"}}' % ("9" * 5000),
        '{"spend":{"usd":"5.00","usd_micros":1}}',
        r'{"note":"a\u0000b"}',
        '{"note":"%s"}' % ("n" * 5000),
        '{"progress":99999999999999999999}',
        '{"spend":{"usd":"%s"}}' % ("x" * 6000),
    ],
)
@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
def test_no_line_of_a_report_can_wedge_the_workspace(workspace, line):
    kernel = workspace.kernel()
    children = kernel.open_session("ses_a", 2)
    text = f"for i in 1 2; do cat <<'E' >&3\n{line}\nE\ndone; sleep 1.2"
    first, second = ends(children, [shell(text), function(fine)])
    assert first.reason in ("completed", "execution_failed")
    assert second.reason == "completed"
    sound(kernel)
    kernel.close()
    workspace.kernel().close()


@pytest.mark.rule("C-8")
def test_an_onlooker_or_a_recorder_that_fails_takes_nobody_down(kernel):
    def look(*_):
        raise ValueError("look away")

    class Step:
        """A step of a build that cannot record its result, only that it failed."""

        detail, about = {}, ""

        def collect(self, token, value):
            return value

        def close(self, token, ended, kept):
            return self

        def record(self, tx, ended, spent, state):
            if ended.reason == "completed":
                raise ValueError("cannot record this")
            heard.append(ended)
            return ()

        def recorded(self):
            pass

    heard = []
    children = kernel.open_session("ses_a", 1)
    works = [shell("echo 1; echo 2", on_output=look), function(fine, step=Step()), function(fine)]
    shown, _, after = children.spawn(works)
    assert {children.wait(shown).reason, children.wait(after).reason} == {"completed"}
    (recorded,) = heard
    assert (
        recorded.reason == "execution_failed" and "cannot record this" in recorded.detail["message"]
    )
    sound(kernel)


@pytest.mark.rule("B-12")
def test_a_log_that_is_too_long_is_cut_and_says_so(kernel):
    kernel.artifacts.limit = 100
    children = kernel.open_session("ses_a", 1)
    (child_id,) = children.spawn([shell("yes | head -n 1000")])
    assert children.wait(child_id).reason == "completed"
    (log,) = document(artifact_list(kernel.store, child_id))
    kept = b"".join(kernel.artifacts.read(log["sha256"]))
    assert len(kept) == 100 and kept.endswith(b"too long to keep ...]\n")


@pytest.mark.rule("C-8")
def test_children_may_be_spawned_while_others_end(kernel):
    children = kernel.open_session("ses_a", 2)
    found = []

    def feed():
        for _ in range(60):
            found.extend(ends(children, [function(fine)]))

    feeders = [threading.Thread(target=feed) for _ in range(4)]
    for feeder in feeders:
        feeder.start()
    for feeder in feeders:
        feeder.join()
    assert [ended.reason for ended in found] == ["completed"] * 240
    sound(kernel)


@pytest.mark.rule("C-40")
def test_nobody_is_cancelled_whom_nobody_cancelled(kernel):
    children = kernel.open_session("ses_a", 2)
    stop = threading.Event()

    def heed():
        while not stop.is_set():
            children.heed()

    heeding = threading.Thread(target=heed)
    heeding.start()
    try:
        assert {ended.reason for _ in range(60) for ended in ends(children, [function(fine)])} == {
            "completed"
        }
    finally:
        stop.set()
        heeding.join()


@pytest.mark.rule("L-24")
def test_a_child_on_its_way_to_its_slot_hears_the_stop_too(workspace):
    for number in range(12):
        kernel = workspace.kernel()
        kernel.processes.grace = 0.3
        children = kernel.open_session(f"ses_{number}", 1)
        (child_id,) = children.spawn([shell("exec sleep 3600")])
        time.sleep(number * 0.0007)
        children.stop()
        ended = children.wait(child_id)
        kernel.close()
        assert ended.detail.get("stopped"), ended


@pytest.mark.rule("L-24", "C-8")
def test_coroutines_end_only_themselves_and_when_asked(kernel):
    async def leave(task):
        sys.exit(3)

    async def wait(task):
        await asyncio.sleep(3600)

    async def good(task):
        return 1

    children = kernel.open_session("ses_a", 3)
    assert [e.reason for e in ends(children, [function(leave), function(good)])] == [
        "execution_failed",
        "completed",
    ]
    (child_id,) = children.spawn([function(wait)])
    while child_id not in children.running or children.running[child_id].abort is None:
        time.sleep(0.005)
    children.stop()
    assert children.wait(child_id).detail["stopped"]
    children.close()


@pytest.mark.rule("C-5", "C-30")
def test_a_coroutine_has_ended_when_it_has_ended(kernel):
    kernel.processes.grace = 100
    order = []

    async def slow(task):
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.3)
            task.spend(tokens=5, settled=True)
            order.append("settled")

    children = kernel.open_session("ses_a", 1)
    first, second = ends(
        children, [function(slow, timeout=0.2), function(lambda task: order.append("next"))]
    )
    assert (first.reason, first.detail["spent"]) == ("timeout", {"tokens": 5})
    assert order == ["settled", "next"]
    assert second.reason == "completed"


@pytest.mark.rule("C-8")
@pytest.mark.parametrize(
    "text",
    [
        "child.progress(333.3)",
        "child.progress(333, 5)",
        "child.spend(usd=0.01)",
        "child.say(settled=1, note='x')",
        "import os, time\n"
        "for _ in range(8000): os.write(3, b'{\"progress\":1}\\n')\n"
        "time.sleep(1); child.spend(tokens=1)",
    ],
)
def test_the_helper_never_waits_for_ever(kernel, text):
    program = f"from onceward import child\nfrom onceward.errors import OncewardError\n{text}"
    children = kernel.open_session("ses_a", 1)
    (ended,) = ends(
        children, [Command(argv=(sys.executable, "-c", program), cwd=Path("/"), timeout=600)]
    )
    assert ended.reason in ("completed", "execution_failed"), ended


@pytest.mark.rule("C-20")
def test_recovery_reads_only_plain_files_of_output(kernel, tmp_path):
    import os

    kernel.spool.add("chd_x", "out", b"said")
    assert kernel.spool.left("chd_x") == {"stdout": b"said"}
    for name, make in (
        ("chd_l", lambda p: p.symlink_to("/etc/passwd")),
        ("chd_f", lambda p: os.mkfifo(p)),
    ):
        make(kernel.spool.folder / f"{name}.out")
        kernel.spool.add(name, "out", b"more")
        assert kernel.spool.left(name) == {}


@pytest.mark.rule("C-9")
def test_a_closed_session_takes_no_more(kernel):
    children = kernel.open_session("ses_a", 1)
    children.close()
    with pytest.raises(InvalidConfig, match="closed"):
        children.spawn([function(fine)])


@pytest.mark.rule("C-6")
def test_a_function_is_told_when_its_time_is_over(kernel):
    def call(task):
        while True:
            task.check()
            time.sleep(0.01)

    (ended,) = ends(kernel.open_session("ses_a", 1), [function(call, timeout=0.3)])
    assert ended.reason == "timeout"


@pytest.mark.rule("C-30")
def test_a_function_is_told_when_its_sessions_time_is_over(kernel):
    def call(task):
        while not task.cancelled:
            time.sleep(0.01)
        task.check()

    (ended,) = ends(kernel.open_session("ses_a", 1, {"duration_secs": 1}), [function(call)])
    assert (ended.reason, ended.detail["lane"], ended.detail["asked"]) == (
        "budget_exceeded",
        "duration_secs",
        0,
    )


@pytest.mark.rule("C-6")
def test_a_child_that_takes_its_end_well_is_still_called_by_its_cause(kernel):
    text = "trap 'exit 0' TERM; while :; do sleep 0.05; done"
    (ended,) = ends(kernel.open_session("ses_a", 1), [shell(text, timeout=0.3)])
    assert (ended.reason, ended.detail["exit"]) == ("timeout", 0)


@pytest.mark.rule("C-30")
def test_the_lane_that_had_no_room_is_the_one_that_is_named(kernel):
    children = kernel.open_session("ses_a", 1, {"duration_secs": 60, "tokens": 10})
    (ended,) = ends(children, [shell('echo \'{"spend":{"tokens":50}}\' >&3; exec sleep 30')])
    assert ended.reason == "budget_exceeded"
    assert {
        "lane": "tokens",
        "limit": 10,
        "observed": 0,
        "asked": 50,
    }.items() <= ended.detail.items()


@pytest.mark.rule("C-8")
def test_many_processes_of_one_child_each_get_their_own_answer(kernel):
    text = (
        "import os\nfrom onceward import child\n"
        "for n in range(8):\n"
        "    if os.fork() == 0:\n"
        "        for _ in range(15): child.spend(tokens=1)\n"
        "        os._exit(0)\n"
        "codes = [os.waitstatus_to_exitcode(os.wait()[1]) for n in range(8)]\n"
        "assert codes == [0] * 8, codes\n"
    )
    children = kernel.open_session("ses_a", 1)
    (ended,) = ends(children, [Command(argv=(sys.executable, "-c", text), cwd=Path("/"))])
    assert (ended.reason, ended.detail["spent"]["tokens"]) == ("completed", 120)


@pytest.mark.rule("C-8")
def test_an_answer_nobody_waited_for_is_not_taken_for_ours(kernel):
    text = (
        "import os; os.write(3, b'{\"progress\":1}\\n')\n"
        "from onceward import child\n"
        "try: child.spend(tokens=999)\n"
        "except child.BudgetExceeded: os._exit(9)\n"
    )
    children = kernel.open_session("ses_a", 1, {"tokens": 10})
    (ended,) = ends(children, [Command(argv=(sys.executable, "-c", text), cwd=Path("/"))])
    assert (ended.reason, ended.detail["exit"]) == ("budget_exceeded", 9)


@pytest.mark.rule("C-30")
def test_money_that_is_gone_is_counted_from_a_cancelled_child_and_after_its_end(kernel):
    kept = []

    def call(task):
        kept.append(task)
        task.running.asked = "cancel"
        task.spend(settled=True, usd="1.00")

    (ended,) = ends(kernel.open_session("ses_a", 1), [function(call)])
    assert ended.detail["spent"] == {"usd_micros": 1_000_000}
    kept[0].spend(settled=True, usd="1.00")
    with pytest.raises(Exception, match="asked to end"):
        kept[0].spend(usd="1.00")
    (late,) = [
        event["detail"]
        for event in map(json.loads, stream_lines(kernel.store, "session:ses_a"))
        if event["event"] == "DEBIT_LATE"
    ]
    assert late["amounts"] == {"usd_micros": 1_000_000}
    sound(kernel)


@pytest.mark.rule("C-8", "C-30")
def test_the_last_line_of_a_report_counts_without_its_newline(kernel):
    (ended,) = ends(
        kernel.open_session("ses_a", 1), [shell('printf \'{"spend":{"tokens":7}}\' >&3')]
    )
    assert ended.detail["spent"] == {"tokens": 7}


@pytest.mark.rule("C-5")
def test_a_session_is_open_once(kernel):
    kernel.open_session("ses_a", 1)
    with pytest.raises(InvalidConfig, match="open already"):
        kernel.open_session("ses_a", 1)


@pytest.mark.rule("C-20")
def test_a_restored_copy_leaves_the_children_of_the_original_alone(kernel, tmp_path, make_database):
    from onceward.core.sources import LiveSources
    from onceward.store import migrate
    from onceward.store.copy import copy_rows
    from onceward.store.sqlite import SqliteDatabase
    from onceward.store.store import Store

    children = kernel.open_session("ses_a", 1)
    (child_id,) = children.spawn([shell("sleep 3; echo finished")])
    while child_id not in children.running or children.running[child_id].process is None:
        time.sleep(0.01)
    sources = LiveSources()
    copy = SqliteDatabase(tmp_path / "copy.db", sources)
    migrate.migrate(copy, sources)
    session = copy.connect(kernel=True)
    session.begin(None)
    with kernel.store.read() as rows:
        copy_rows(kernel.store.database, rows, copy, session)
    session.commit()
    session.close()
    store = Store(copy, sources)
    acquire(store, "heir")
    assert recover(store, "heir", kernel.processes.here).unconfirmed == 1
    store.close()
    assert children.wait(child_id).reason == "completed"


@pytest.mark.rule("L-11")
@pytest.mark.guarantee("G8")
def test_the_target_of_a_child_whose_end_nobody_saw_stays_held(kernel, monkeypatch):
    """It stands for a process that the system cannot end: our signals do not reach it."""
    monkeypatch.setattr(Process, "terminate", lambda process: None)
    monkeypatch.setattr(Process, "kill", lambda process: None)
    children = kernel.open_session("ses_a", 1)
    (ended,) = ends(children, [shell("sleep 600", target="t", timeout=0.1)])
    assert ended.reason == "timeout" and ended.detail["death_unconfirmed"] is True
    with pytest.raises(TargetLocked):
        kernel.targets.claim("t", "chd_other")
    with pytest.raises(TargetLocked):
        TargetLock(kernel.folder / "locks").acquire("t")
    sound(kernel)
