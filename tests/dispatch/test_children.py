"""Children of a session: their order, their cap, their budgets, their ends (C-1 to C-9, C-30, C-40)."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest

from helpers import assert_sound, processes_with
from onceward.artifacts.views import artifact_list
from onceward.core.records import Request
from onceward.core.views import document
from onceward.dispatch import queue
from onceward.dispatch.machine import CODES, run_id
from onceward.dispatch.queue import exported
from onceward.dispatch.views import lane_list, session_view
from onceward.dispatch.work import Command, Function, Running, isolated
from onceward.errors import (
    AtomicityViolation,
    BudgetExceeded,
    ChildCancelled,
    InvalidConfig,
    LeaseConflict,
    NetworkError,
    ReplayOrderInvalid,
)
from onceward.evidence.verify import verify_rows
from onceward.kernel.open_sessions import OpenSessions
from onceward.store.tables.children import Tokens, set_high
from onceward.store.tables.events import events_of
from typing_in import until


def function(call, **words):
    return Function(call=call, name="test", **words)


def command(*argv, **words):
    return Command(argv=argv, cwd=Path("/"), **words)


def shell(text, **words):
    return command("sh", "-c", text, **words)


def told(kernel, stream):
    with kernel.store.read() as rows:
        return [(e.facts()["event"], e.facts()["detail"]) for e in events_of(rows, stream)]


def token(kernel, child_id):
    with kernel.store.read() as rows:
        return Tokens(rows).get(child_id)


def sound(kernel):
    with kernel.store.read() as rows:
        assert_sound(rows)


def run_all(children, works):
    ids = children.spawn(works)
    return ids, [children.wait(child_id) for child_id in ids]


@pytest.mark.rule("C-4", "C-6")
def test_a_child_has_one_start_and_one_end_in_both_streams(kernel):
    children = kernel.open_session("ses_a", 2)
    (child_id,), (ended,) = run_all(children, [function(lambda task: 1)])
    assert ended.reason == "completed"
    own = told(kernel, f"child:{child_id}")
    parents = [(n, d) for n, d in told(kernel, "session:ses_a") if d.get("child_id") == child_id]
    assert [name for name, _ in own] == ["WORKER_START", "WORKER_PASS"]
    assert own == parents
    with kernel.store.read() as rows:
        places = {
            e.facts()["detail"].get("parent_seq"): e.seq
            for e in events_of(rows, "session:ses_a")
            if e.seq > 1
        }
    assert all(said == seq for said, seq in places.items())
    for _, detail in own:
        assert detail["lease_id"] == run_id("ses_a", detail["dispatch_seq"])
        assert {
            "child_id",
            "dispatch_seq",
            "parent_stream_id",
            "parent_seq",
            "phase_at_event",
        } <= set(detail)
    sound(kernel)


@pytest.mark.rule("C-5", "C-2")
def test_fifty_queued_children_run_in_the_order_of_the_queue_two_at_a_time(kernel):
    inside, most, order, mutex = 0, 0, [], threading.Lock()
    pair = threading.Barrier(2, timeout=600)

    def work(number):
        def call(task):
            nonlocal inside, most
            with mutex:
                inside += 1
                most = max(most, inside)
                order.append(number)
            pair.wait()
            with mutex:
                inside -= 1

        return call

    children = kernel.open_session("ses_a", 2)
    ids, _ = run_all(children, [function(work(n)) for n in range(50)])
    assert most == 2
    tokens = [token(kernel, child_id) for child_id in ids]
    assert [t.queue_seq for t in tokens] == sorted(t.queue_seq for t in tokens)
    assert [t.dispatch_seq for t in tokens] == sorted(t.dispatch_seq for t in tokens)
    starts = [d["child_id"] for n, d in told(kernel, "session:ses_a") if n == "WORKER_START"]
    assert starts == ids
    # Threads that start at the same moment may swap places, no more.
    assert all(abs(place - number) <= 1 for place, number in enumerate(order))


@pytest.mark.rule("C-30", "R-1")
@pytest.mark.guarantee("G15")
def test_what_a_childs_own_threads_spend_as_it_ends_is_counted_or_refused(kernel):
    refused = []

    def call(task):
        def spend():
            while True:
                try:
                    task.spend(tokens=1)
                except ChildCancelled:
                    refused.append(task.child_id)
                    return

        threads.append(threading.Thread(target=spend))
        threads[-1].start()
        time.sleep(0.01)

    threads = []
    run_all(kernel.open_session("ses_a", 2), [function(call) for _ in range(12)])
    for thread in threads:
        thread.join(600)
    assert len(refused) == 12, "each spends until it is told that it has ended"
    sound(kernel)


@pytest.mark.rule("C-5")
@pytest.mark.parametrize("jobs", [1, 5])
def test_the_cap_is_what_was_asked_for(kernel, jobs):
    inside, most, mutex = [0], [0], threading.Lock()
    together = threading.Barrier(jobs, timeout=600)

    def call(task):
        with mutex:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        together.wait()
        time.sleep(0.05)
        with mutex:
            inside[0] -= 1

    run_all(kernel.open_session("ses_a", jobs), [function(call) for _ in range(jobs * 2)])
    assert most[0] == jobs


@pytest.mark.rule("C-5")
def test_a_slot_beyond_the_cap_of_its_session_leases_nothing(kernel):
    """The cap is judged where a child is leased, against the record: a coordinator that counts wrongly cannot pass it."""
    children = kernel.open_session("ses_a", 2)
    going = threading.Event()
    ids = children.spawn([function(lambda task: going.wait(600)) for _ in range(3)])

    def lease(slot):
        return kernel.store.write(
            lambda tx: queue.turn(
                tx,
                session_id="ses_a",
                slot=slot,
                owner=children.owner,
                actor="tester",
                closing=None,
                starts=True,
            )
        )

    try:
        assert lease(3).next is None and lease(1000).next is None
        assert token(kernel, ids[2]).phase == "queued"
    finally:
        going.set()
    assert [children.wait(child_id).reason for child_id in ids] == ["completed"] * 3
    sound(kernel)


@pytest.mark.rule("C-8")
def test_async_functions_run_on_one_loop(kernel):
    loops = []

    async def call(task):
        loops.append((asyncio.get_running_loop(), threading.get_ident()))
        await asyncio.sleep(0.01)

    _, ends = run_all(kernel.open_session("ses_a", 4), [function(call) for _ in range(8)])
    assert {ended.reason for ended in ends} == {"completed"}
    assert len(set(loops)) == 1


@pytest.mark.rule("C-8")
def test_a_function_may_have_a_process_of_its_own(kernel, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from onceward import child\nfrom onceward.errors import NetworkError\nimport os\n"
        "def double(n):\n    child.spend(tokens=n)\n    return {'n': 2 * n, 'pid': os.getpid()}\n"
        "def fail(n):\n    raise NetworkError('out of reach')\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        import mine
    finally:
        sys.path.remove(str(tmp_path))
    children = kernel.open_session("ses_a", 2)
    works = [isolated(mine.double, 21, cwd=tmp_path), isolated(mine.fail, 1, cwd=tmp_path)]
    ids, (good, bad) = run_all(children, works)
    assert (good.reason, good.detail["spent"]) == ("completed", {"tokens": 21})
    assert (bad.reason, bad.detail["error"]) == ("execution_failed", "NETWORK_ERROR")
    (log,) = document(artifact_list(kernel.store, ids[0]))
    said = msgspec.json.decode(b"".join(kernel.artifacts.read(log["sha256"])))
    assert said["n"] == 42 and said["pid"] != os.getpid()
    with pytest.raises(InvalidConfig, match="no name"):
        isolated(lambda n: n, 1)


@pytest.mark.rule("C-8")
def test_an_exception_in_a_child_costs_no_slot_and_leaves_its_traceback(kernel):
    def fail(task):
        raise ValueError("no such thing")

    children = kernel.open_session("ses_a", 1)
    ids, ends = run_all(children, [function(fail) for _ in range(3)] + [function(lambda task: 1)])
    assert [ended.reason for ended in ends] == ["execution_failed"] * 3 + ["completed"]
    assert ends[0].detail["code"] == CODES["execution_failed"]
    assert "no such thing" in ends[0].detail["message"]
    (ref,) = document(artifact_list(kernel.store, ids[0]))
    assert b"".join(kernel.artifacts.read(ref["sha256"])).endswith(b"ValueError: no such thing\n")


@pytest.mark.rule("C-6")
@pytest.mark.parametrize(
    ("work", "reason"),
    [
        (lambda: command("true"), "completed"),
        (lambda: command("false"), "execution_failed"),
        (lambda: command("sleep", "60", timeout=0.2), "timeout"),
        (lambda: command("no-such-program"), "start_failed"),
        (lambda: command("true", target="held"), "start_failed"),
        (lambda: function(lambda task: task.spend(tokens=10**9)), "budget_exceeded"),
    ],
)
def test_every_end_has_its_event_reason_and_code(kernel, work, reason):
    claim = kernel.locks.acquire("held")
    kernel.target_wait = 0
    children = kernel.open_session("ses_a", 2, {"tokens": 100})
    (child_id,), (ended,) = run_all(children, [work()])
    assert ended.reason == reason
    name, detail = told(kernel, f"child:{child_id}")[-1]
    assert name == ("WORKER_PASS" if reason == "completed" else "WORKER_FAIL")
    assert detail["reason"] == reason
    assert detail.get("code") == CODES.get(reason)
    assert (token(kernel, child_id).reason, token(kernel, child_id).code) == (
        reason,
        CODES.get(reason),
    )
    kernel.locks.release(claim)
    sound(kernel)


@pytest.mark.rule("C-8", "E-4")
def test_output_becomes_log_artifacts_without_the_secrets(kernel, monkeypatch):
    monkeypatch.setenv("API_KEY", "hunter2-and-more")
    monkeypatch.setenv("OTHER", "not given")
    text = 'echo "key $API_KEY"; printf \'{"k":"%s"}\' "$API_KEY" >&2; echo "other:$OTHER"'
    (child_id,), _ = run_all(kernel.open_session("ses_a", 2), [shell(text, secrets=["API_KEY"])])
    found = {
        ref["name"]: b"".join(kernel.artifacts.read(ref["sha256"]))
        for ref in document(artifact_list(kernel.store, child_id))
    }
    assert found == {
        "stdout": b"key [redacted API_KEY]\nother:\n",
        "stderr": b'{"k":"[redacted API_KEY]"}',
    }


@pytest.mark.rule("L-4", "C-8")
def test_a_target_is_held_while_its_child_runs_and_free_after(kernel):
    held = []

    def look(child, stream, data):
        held.append(kernel.locks.path_of("repo").exists())

    run_all(kernel.open_session("ses_a", 2), [shell("echo now", target="repo", on_output=look)])
    assert held == [True]
    assert not kernel.locks.path_of("repo").exists()


@pytest.mark.rule("B-7")
@pytest.mark.parametrize("exits", [75, 76, 77])
def test_a_retryable_exit_is_tried_again_as_a_new_child_that_names_the_old(
    kernel, tmp_path, exits, monkeypatch
):
    monkeypatch.setattr("onceward.dispatch.machine.RETRY_FIRST_MICROS", 10_000)
    text = f"n=$(cat {tmp_path}/n 2>/dev/null || echo 0); echo $((n+1)) > {tmp_path}/n; [ $n = 2 ] || exit {exits}"
    children = kernel.open_session("ses_a", 2)
    attempts = []
    (first,) = children.spawn([shell(text, attempts=5)])
    assert (
        children.wait(first, lambda child_id, how: attempts.append((child_id, how.reason))).reason
        == "completed"
    )
    assert [reason for _, reason in attempts] == [
        "execution_failed",
        "execution_failed",
        "completed",
    ]
    tokens = [token(kernel, child_id) for child_id, _ in attempts]
    assert [t.attempt for t in tokens] == [1, 2, 3]
    assert {msgspec.json.decode(t.work)["attempts"] for t in tokens} == {5}
    assert [t.predecessor for t in tokens] == [None, tokens[0].child_id, tokens[1].child_id]
    assert told(kernel, f"child:{tokens[1].child_id}")[0][1]["predecessor"] == tokens[0].child_id


@pytest.mark.rule("B-7")
def test_attempts_are_used_up_and_a_plain_failure_is_not_repeated(kernel, monkeypatch):
    monkeypatch.setattr("onceward.dispatch.machine.RETRY_FIRST_MICROS", 10_000)
    tries = []

    def fail(task):
        tries.append(task.attempt)
        raise NetworkError("out of reach")

    def break_(task):
        tries.append(task.attempt)
        raise ValueError("broken")

    children = kernel.open_session("ses_a", 1)
    run_all(children, [function(fail, attempts=3)])
    assert tries == [1, 2, 3]
    run_all(children, [function(break_, attempts=3)])
    assert tries == [1, 2, 3, 1]


@pytest.mark.rule("C-30")
def test_an_asked_debit_fits_or_changes_nothing(kernel):
    seen = []

    def call(task):
        task.spend(tokens=60, usd="0.01")
        try:
            task.spend(tokens=60, usd="0.01")
        except BudgetExceeded as refused:
            seen.append(refused.context)

    children = kernel.open_session("ses_a", 1, {"tokens": 100})
    _, (ended,) = run_all(children, [function(call)])
    assert seen == [{"lane": "tokens", "limit": 100, "observed": 60, "asked": 60}]
    # It swallowed the refusal; its end says it all the same.
    assert ended.reason == "budget_exceeded"
    assert {
        "lane": "tokens",
        "limit": 100,
        "observed": 60,
        "asked": 60,
    }.items() <= ended.detail.items()
    totals = {lane["lane"]: lane["total"] for lane in document(lane_list(kernel.store, "ses_a"))}
    assert (totals["tokens"], totals["usd_micros"]) == (60, 10_000)
    assert ended.detail["spent"] == {"tokens": 60, "usd_micros": 10_000}
    sound(kernel)


@pytest.mark.rule("C-30")
def test_a_total_that_is_not_the_sum_of_its_debits_is_found(kernel):
    run_all(kernel.open_session("ses_a", 1), [function(lambda task: task.spend(tokens=5))])
    kernel.store.write(
        lambda tx: tx.write("UPDATE budget_totals SET total = 6 WHERE budget_lane = 'tokens'")
    )
    with kernel.store.read() as rows:
        assert verify_rows(rows).first() == "totals: ses_a: tokens says 6, but its debits make 5"


@pytest.mark.rule("C-30")
def test_a_debit_that_uses_up_a_lane_exactly_is_within_it(kernel):
    _, ends = run_all(
        kernel.open_session("ses_a", 1, {"tokens": 100}),
        [function(lambda task: task.spend(tokens=100))],
    )
    assert ends[0].reason == "completed"


@pytest.mark.rule("C-30")
def test_a_settled_debit_is_recorded_and_never_ends_its_child_but_starts_no_other(kernel):
    children = kernel.open_session("ses_a", 1, {"tokens": 100})
    spends = function(lambda task: task.spend(tokens=250, settled=True))
    _, (first, second) = run_all(children, [spends, spends])
    assert first.reason == "completed"
    assert (second.reason, second.detail["lane"], second.detail["observed"]) == (
        "budget_exceeded",
        "tokens",
        250,
    )
    totals = {lane["lane"]: lane["total"] for lane in document(lane_list(kernel.store, "ses_a"))}
    assert totals["tokens"] == 250
    sound(kernel)


@pytest.mark.rule("C-30")
@pytest.mark.guarantee("G15")
@pytest.mark.parametrize("make", ["function", "command"])
def test_time_is_one_lane_for_all_children_that_run(kernel, make):
    def wait(task):
        while not task.cancelled:
            time.sleep(0.01)
        task.check()

    work = function(wait) if make == "function" else command("sleep", "600")
    children = kernel.open_session("ses_a", 8, {"duration_secs": 2})
    _, ends = run_all(children, [work] * 10)
    assert {ended.reason for ended in ends} == {"budget_exceeded"}
    for ended in ends:
        assert ended.detail["lane"] == "duration_secs" and ended.detail["asked"] == 0
        assert ended.detail["observed"] >= 2
    # Eight run at once, so the time is used up after a quarter of it; the other two never start.
    with kernel.store.read() as rows:
        started = rows.read("SELECT count(*) FROM urm_dispatch_token WHERE started_at IS NOT NULL")
    assert started[0][0] == 8
    sound(kernel)


@pytest.mark.rule("C-30")
def test_the_time_of_everything_that_runs_is_added_up(kernel):
    children = kernel.open_session("ses_a", 2)
    for name in ("one", "two"):
        running = children.running[name] = Running()
        running.begun -= 1000
    try:
        assert 2_000_000_000 <= children.running_micros() < 2_900_000_000
        assert 1_000_000_000 <= children.running_micros(except_child="one") < 1_900_000_000
    finally:
        children.running.clear()


@pytest.mark.rule("C-30")
def test_what_ended_by_itself_is_kept_whatever_its_time_did_to_the_lane(kernel):
    children = kernel.open_session("ses_a", 1, {"duration_secs": 1}, on_pause="finish")

    def slow(task):
        time.sleep(1.5)
        return 1

    _, (ended,) = run_all(children, [function(slow)])
    assert ended.reason == "completed"
    sound(kernel)


@pytest.mark.rule("C-30")
@pytest.mark.guarantee("G15")
def test_sixty_four_children_never_get_more_than_a_lane_holds(kernel):
    accepted = []

    def call(task):
        for _ in range(3):
            task.spend(tokens=7)
            accepted.append(7)

    report = 'for i in 1 2 3; do echo \'{"spend":{"tokens":7}}\' >&3; head -n 1 <&4; done'
    children = kernel.open_session("ses_a", 16, {"tokens": 700})
    _, ends = run_all(children, [function(call) if n % 2 else shell(report) for n in range(64)])
    (tokens,) = [
        lane for lane in document(lane_list(kernel.store, "ses_a")) if lane["lane"] == "tokens"
    ]
    assert tokens["total"] == 700
    assert {ended.reason for ended in ends} == {"completed", "budget_exceeded"}
    assert all(
        ended.reason != "completed" or ended.detail["spent"]["tokens"] == 21 for ended in ends
    )
    sound(kernel)


@pytest.mark.rule("C-30")
def test_running_time_is_charged_once_in_whole_seconds_and_what_is_left_is_carried(kernel):
    children = kernel.open_session("ses_a", 1)
    run_all(children, [command("sleep", "0.6"), command("sleep", "0.6")])
    (lane,) = document(lane_list(kernel.store, "ses_a"))
    assert (lane["lane"], lane["total"]) == ("duration_secs", 1)
    sound(kernel)


@pytest.mark.rule("C-30")
def test_a_session_that_runs_out_of_time_ends_its_child(kernel):
    children = kernel.open_session("ses_a", 1, {"duration_secs": 1})
    _, (ended,) = run_all(children, [command("sleep", "3600")])
    assert ended.reason == "budget_exceeded"
    assert ended.detail["lane"] == "duration_secs"


@pytest.mark.rule("C-30")
@pytest.mark.parametrize(
    "spend", [{}, {"gold": 1}, {"tokens": -1}, {"tokens": "many"}, {"usd": float("nan")}]
)
def test_a_debit_that_makes_no_sense_is_refused(kernel, spend):
    def call(task):
        with pytest.raises(InvalidConfig):
            task.spend(**spend)

    assert run_all(kernel.open_session("ses_a", 1), [function(call)])[1][0].reason == "completed"


@pytest.mark.rule("C-30", "K-10")
@pytest.mark.parametrize(
    ("amount", "micros"),
    [(str(0.00008), 80), (Decimal("0.0000001"), 1), (0.1, 100_000), (2, 2_000_000)],
)
def test_an_amount_may_be_text_a_decimal_a_float_or_whole(kernel, amount, micros):
    report = f'from onceward import child; child.spend(usd="{amount}", settled=True)'
    works = [
        function(lambda task: task.spend(usd=amount)),
        command(sys.executable, "-c", report),
    ]
    _, ends = run_all(kernel.open_session("ses_a", 1), works)
    for ended in ends:
        assert ended.detail["spent"]["usd_micros"] == micros


@pytest.mark.rule("C-30")
def test_money_that_is_gone_is_read_as_well_as_it_can_be_and_never_refused(kernel):
    def call(task):
        task.spend(usd="0.02", tokens="many", gold=3, settled=True)

    line = '{"spend":{"usd":"0.02","tokens":"many"},"settled":true}'
    works = [function(call), shell(f"echo '{line}' >&3; head -n 1 <&4")]
    _, ends = run_all(kernel.open_session("ses_a", 1), works)
    for ended in ends:
        assert ended.reason == "completed"
        assert ended.detail["spent"]["usd_micros"] == 20_000
        assert ended.detail["report_mistakes"] == 1
    found = [detail for name, detail in told(kernel, "session:ses_a") if name == "DEBIT_ESTIMATED"]
    assert [detail["estimated"] for detail in found] == [True, True]
    sound(kernel)


@pytest.mark.rule("C-30")
@pytest.mark.parametrize(
    "line",
    [
        '{"spend":{"usd":"0.50"},"settled":true,"model":"large"}',
        '{"spend":{"usd":"0.50"},"settled":true,"progress":2000}',
        '{"spend":{"usd":"0.50"},"settled":"yes"}',
        '{"spend":{"usd":"0.50"},"settled":true,"note":null}',
        '{"spend":[{"usd":"0.30"},{"usd":"0.20"}],"settled":true}',
        '{"spend":{"usd":0.5,"tokens":Infinity},"settled":true}',
    ],
)
def test_money_that_is_gone_counts_whatever_else_is_wrong_with_its_line(kernel, line):
    work = shell(f"echo '{line}' >&3; head -n 1 <&4")
    _, (ended,) = run_all(kernel.open_session("ses_a", 1), [work])
    assert ended.reason == "completed" and ended.detail["report_mistakes"] >= 1
    assert ended.detail["spent"]["usd_micros"] == 500_000


@pytest.mark.rule("C-8")
def test_a_child_reports_over_its_descriptors_and_is_answered(kernel):
    text = (
        "import signal; signal.signal(15, signal.SIG_IGN)\n"
        "from onceward import child; child.progress(250, 'begun'); child.spend(tokens=5);\n"
        "try: child.spend(tokens=50)\n"
        "except child.BudgetExceeded as e: print(e.context['asked'], flush=True)\n"
        "import time; time.sleep(30)"
    )
    children = kernel.open_session("ses_a", 1, {"tokens": 20})
    (child_id,), (ended,) = run_all(children, [command(sys.executable, "-c", text)])
    assert (ended.reason, ended.detail["note"]) == ("budget_exceeded", "begun")
    (log,) = [
        ref for ref in document(artifact_list(kernel.store, child_id)) if ref["name"] == "stdout"
    ]
    assert b"".join(kernel.artifacts.read(log["sha256"])) == b"50\n"


@pytest.mark.rule("C-8")
@pytest.mark.parametrize(
    "text",
    [
        "yes '{\"spend\":' >&3",
        "head -c 500000 /dev/zero >&3; sleep 60",
        "while :; do echo '[]' >&3; done",
        "trap '' TERM; (setsid sh -c 'yes >&3' &); yes not json >&3",
    ],
)
def test_garbage_on_the_report_descriptor_is_bounded_and_ends_the_child(kernel, text):
    _, (ended,) = run_all(kernel.open_session("ses_a", 1), [shell(text)])
    assert ended.reason == "execution_failed"
    assert ended.detail["report_mistakes"] >= 1


@pytest.mark.rule("C-8")
def test_a_wild_child_is_bounded_ended_and_recorded(kernel):
    nonce = f"ow{os.getpid()}x{time.monotonic_ns()}"
    text = f"trap '' TERM; (setsid sh -c 'trap \"\" TERM; sleep 1000 # {nonce}' &); yes"
    (child_id,), (ended,) = run_all(kernel.open_session("ses_a", 1), [shell(text, timeout=0.5)])
    assert (ended.reason, ended.detail["exit"]) == ("timeout", -9)
    assert processes_with(nonce) == []
    (log,) = document(artifact_list(kernel.store, child_id))
    assert log["size"] < 1024 * 1024 + 200


def cancel(kernel, subject, request="c-1"):
    payload = {"subject": subject, "cancel_request_id": request}
    return kernel.ask(Request("children.cancel", f"r-{request}", payload, "tester")).value


@pytest.mark.rule("C-40")
def test_cancelling_ends_queued_children_now_and_running_ones_when_their_end_is_seen(kernel):
    children = kernel.open_session("ses_a", 1)
    running, queued = children.spawn([command("sleep", "60"), command("sleep", "60")])
    while running not in children.running or children.running[running].process is None:
        time.sleep(0.005)
    answer = cancel(kernel, "ses_a")
    assert {r["child_id"]: r["outcome"] for r in answer["receipts"]} == {
        running: "cancelling",
        queued: "cancelled",
    }
    for child_id in (running, queued):
        assert children.wait(child_id).reason == "cancelled"
        (name, detail), *before = reversed(told(kernel, f"child:{child_id}"))
        assert (name, detail["cancel_request_id"]) == ("WORKER_CANCEL", "c-1")
        assert len(before) == (child_id == running)
    assert "dispatch_seq" not in told(kernel, f"child:{queued}")[0][1]
    assert told(kernel, f"child:{queued}")[0][1]["queue_seq"] == 2
    assert cancel(kernel, running, "c-2")["receipts"] == [
        {"child_id": running, "outcome": "already_terminal"}
    ]
    assert len(told(kernel, f"child:{running}")) == 2
    sound(kernel)


@pytest.mark.rule("C-6", "C-40")
def test_a_later_cancel_is_kept_and_told_which_request_it_joined(kernel):
    children = kernel.open_session("ses_a", 1)
    (child_id,) = children.spawn([shell("trap '' TERM; echo up; while :; do sleep 0.05; done")])
    until(lambda: kernel.spool.left(child_id).get("stdout"))
    kernel.processes.grace = 100.0
    assert "joined_request_id" not in cancel(kernel, child_id, "c-1")["receipts"][0]
    for later in ("c-2", "c-3"):
        assert cancel(kernel, child_id, later)["receipts"] == [
            {"child_id": child_id, "outcome": "cancelling", "joined_request_id": "c-1"}
        ]
    cancel(kernel, child_id, "c-1")
    (shown,) = document(session_view(kernel.store, child_id))["children"]
    assert shown["joined_request_ids"] == ["c-2", "c-3"]
    children.running[child_id].process.kill()
    assert children.wait(child_id).reason == "cancelled"
    (name, detail), *_ = reversed(told(kernel, f"child:{child_id}"))
    assert (name, detail["cancel_request_id"]) == ("WORKER_CANCEL", "c-1")
    assert detail["joined_request_ids"] == ["c-2", "c-3"]
    sound(kernel)


@pytest.mark.rule("C-40")
def test_a_child_that_was_cancelled_is_not_tried_again_whatever_it_exits_with(kernel, tmp_path):
    up = tmp_path / "up"
    script = f"trap 'exit 75' TERM; touch {up}; while :; do sleep 0.02; done"
    children = kernel.open_session("ses_a", 1)
    (child_id,) = children.spawn([shell(script, attempts=3)])
    until(up.exists)
    cancel(kernel, child_id, "c-1")
    children.heed()
    until(lambda: token(kernel, child_id).phase == "terminal")
    with kernel.store.read() as rows:
        assert Tokens(rows).open_in("ses_a") == []
    assert children.wait(child_id).detail["observed"] == "execution_failed"
    sound(kernel)


@pytest.mark.rule("C-40")
def test_a_function_notices_that_it_was_cancelled(kernel):
    began = threading.Event()

    def call(task):
        began.set()
        while True:
            task.check()
            time.sleep(0.005)

    children = kernel.open_session("ses_a", 1)
    (child_id,) = children.spawn([function(call)])
    began.wait(600)
    assert cancel(kernel, child_id)["receipts"][0]["outcome"] == "cancelling"
    assert children.wait(child_id).reason == "cancelled"


@pytest.mark.rule("C-40")
def test_cancel_racing_completion_gives_one_end_and_a_truthful_receipt(kernel):
    rounds = int(os.environ.get("ONCEWARD_CANCEL_ROUNDS", "150"))
    children = kernel.open_session("ses_a", 2)
    outcomes = set()
    for number in range(rounds):
        (child_id,) = children.spawn([function(lambda task, n=number: time.sleep(n % 7 * 0.0003))])
        time.sleep(number % 11 * 0.0005)
        receipt = cancel(kernel, child_id, f"c-{number}")["receipts"][0]["outcome"]
        ended = children.wait(child_id)
        outcomes.add(receipt)
        terminal = [d for n, d in told(kernel, f"child:{child_id}") if n != "WORKER_START"]
        assert len(terminal) == 1
        assert (ended.reason == "cancelled") == (receipt != "already_terminal")
        assert (terminal[0].get("cancel_request_id") == f"c-{number}") == (
            receipt != "already_terminal"
        )
    assert len(outcomes) >= 2
    sound(kernel)


@pytest.mark.rule("C-1", "C-3")
@pytest.mark.parametrize(
    ("change", "error"),
    [
        ("SET dispatch_seq = 1 WHERE queue_seq = 3", ReplayOrderInvalid),
        (
            "SET worker_run_id = (SELECT worker_run_id FROM TOKENS WHERE queue_seq = 1) WHERE queue_seq = 3",
            LeaseConflict,
        ),
        ("SET phase = 'leased', version = version + 1 WHERE queue_seq = 1", AtomicityViolation),
        ("SET phase = 'terminal', version = version + 1 WHERE queue_seq = 3", AtomicityViolation),
        ("SET phase = 'started', version = version + 1 WHERE queue_seq = 3", AtomicityViolation),
        ("SET queue_seq = 9 WHERE queue_seq = 3", AtomicityViolation),
        ("SET dispatch_seq = 9 WHERE queue_seq = 1", AtomicityViolation),
        ("", AtomicityViolation),
    ],
)
def test_the_schema_itself_refuses_to_break_the_order(kernel, change, error):
    from onceward.dispatch import queue
    from onceward.dispatch.machine import Order

    children = kernel.open_session("ses_a", 1)
    run_all(children, [function(lambda task: 1), function(lambda task: 1)])
    order = Order("chd_queued", "ses_a", "function", "{}")
    kernel.store.write(lambda tx: queue.spawn(tx, [order], children.owner, "tester"))
    sql = f"UPDATE TOKENS {change}" if change else "DELETE FROM TOKENS WHERE queue_seq = 1"
    with pytest.raises(error):
        kernel.store.write(lambda tx: tx.write(sql.replace("TOKENS", "urm_dispatch_token")))
    sound(kernel)


@pytest.mark.rule("C-1")
def test_a_place_in_the_queue_is_given_once(kernel):
    from onceward.dispatch import queue
    from onceward.dispatch.machine import Order, spawn

    children = kernel.open_session("ses_a", 1)
    orders = [Order(f"chd_{n}", "ses_a", "function", "{}") for n in range(2)]
    kernel.store.write(lambda tx: queue.spawn(tx, orders[:1], children.owner, "tester"))
    with pytest.raises(LeaseConflict):
        kernel.store.write(lambda tx: tx.move(spawn(orders[1], 1, 1, children.owner, "tester")))


@pytest.mark.rule("C-2")
@pytest.mark.guarantee("G12")
def test_numbers_are_beyond_every_one_ever_given(kernel):
    children = kernel.open_session("ses_a", 1)
    run_all(children, [function(lambda task: 1) for _ in range(3)])
    for mark in (0, 100):
        # The mark may lag behind or run ahead: the next number is beyond both it and every row.
        kernel.store.write(
            lambda tx, mark=mark: tx.write(
                f"UPDATE sessions SET queue_high = {mark}, dispatch_high = {mark}"
            )
        )
        (child_id,), _ = run_all(children, [function(lambda task: 1)])
        given = token(kernel, child_id)
        assert (given.queue_seq, given.dispatch_seq) == ((4, 4) if mark == 0 else (101, 101))


@pytest.mark.rule("C-2")
def test_two_who_count_from_one_mark_cannot_both_have_the_number(kernel):
    kernel.open_session("ses_a", 1)
    kernel.store.write(lambda tx: set_high(tx, "ses_a", "dispatch", 0, 1))
    with pytest.raises(LeaseConflict):
        kernel.store.write(lambda tx: set_high(tx, "ses_a", "dispatch", 0, 1))


@pytest.mark.rule("C-9")
def test_a_session_can_be_gone_on_with_its_totals_kept(workspace):
    for number in range(2):
        kernel = workspace.kernel()
        children = kernel.open_session("ses_a", 1, {"tokens": 100})
        _, (ended,) = run_all(children, [function(lambda task: task.spend(tokens=60))])
        assert ended.reason == ("budget_exceeded" if number else "completed")
        kernel.close()


@pytest.mark.rule("C-1")
def test_tokens_are_exported_as_their_schema_says(kernel):
    import jsonschema

    root = Path(__file__).resolve().parents[2] / "spec"
    schemas = {
        name: msgspec.json.decode((root / f"{name}.schema.json").read_bytes())
        for name in ("scheduler_dispatch_token@1", "urm-events@1")
    }
    children = kernel.open_session("ses_a", 2)
    ids, _ = run_all(
        children, [function(lambda task: 1), command("false"), command("no-such-program")]
    )
    gate = threading.Event()
    waiting = children.spawn([function(lambda task: gate.wait(600)) for _ in range(3)])
    try:
        for child_id in (*ids, *waiting):
            jsonschema.validate(
                exported(token(kernel, child_id)), schemas["scheduler_dispatch_token@1"]
            )
        assert "dispatch_seq" not in exported(token(kernel, waiting[2]))
    finally:
        gate.set()
    with kernel.store.read() as rows:
        for stream in ("session:ses_a", f"child:{ids[0]}"):
            for event in events_of(rows, stream):
                jsonschema.validate(msgspec.json.decode(event.line()), schemas["urm-events@1"])


@pytest.mark.rule("C-5", "C-30")
def test_limits_that_somebody_brings_to_an_open_session_are_its_own_from_then_on(kernel):
    sessions = OpenSessions()
    children = sessions.join(kernel, kernel.actor, "ses_a", 1, {})
    assert sessions.join(kernel, kernel.actor, "ses_a", None, {"tokens": 5}) is children
    works = [function(lambda task, n=n: task.spend(tokens=n)) for n in (6, 5)]
    _, ended = run_all(children, works)
    assert [end.reason for end in ended] == ["budget_exceeded", "completed"]
    sessions.leave(children)
    assert not children.closed, "somebody else is in it still"
    sessions.leave(children)
    assert children.closed
