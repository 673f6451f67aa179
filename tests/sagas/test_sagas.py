"""Sagas: done, or stopped at a named place with what was done undone, whatever fails (S-1, S-4, S-8)."""

from __future__ import annotations

import itertools
import os
import threading
import time

import msgspec
import pytest

from helpers import assert_sound
from onceward.core import faults
from onceward.core.records import Request
from onceward.core.views import document
from onceward.errors import (
    InvalidConfig,
    InvalidResumeState,
    LeaseLost,
    LockConflict,
    OncewardError,
    RequestConflict,
)
from onceward.sagas.declaration import Saga
from onceward.sagas.lifecycle import Wanted, abandon, begin, take_up
from onceward.sagas.run import SagaRun, run_saga
from onceward.sagas.views import saga_view
from onceward.store.tables.children import Tokens
from onceward.store.tables.sagas import Runs, find_lease, release_lease, renew_lease, take_lease

NAMES = ("a", "b", "c", "d", "e", "f")
SHARE = int(os.environ.get("ONCEWARD_SAGA_DEATHS", "2"))
"""0 in the long campaign: everything on both stores."""


class World:
    """What a saga changes: each action leaves its name, each compensation takes it away."""

    def __init__(self):
        self.there, self.did = set(), []
        self.fails = {}
        """How often something fails, by (what, name)."""

    def fail(self, what, name):
        if self.fails.get((what, name), 0):
            self.fails[what, name] -= 1
            raise ValueError(f"{what} {name} was told to fail")

    def saga(self, count, undoable=NAMES, **words):
        saga = Saga("world", **words)
        for name in NAMES[:count]:
            saga.action(
                self._action(name),
                name=name,
                compensate=self._undo(name) if name in undoable else None,
                check=lambda seen, name=name: self._check(seen, name),
            )
        return saga

    def _action(self, name):
        def act(task):
            self.did.append(name)
            self.there.add(name)
            self.fail("action", name)
            return {"name": name, "before": {key: task.inputs[key]["name"] for key in task.inputs}}

        return act

    def _check(self, seen, name):
        self.fail("check", name)
        return seen.result["name"] == name

    def _undo(self, name):
        def undo(task):
            self.did.append(f"-{name}")
            self.fail("undo", name)
            self.there.discard(name)

        return undo


def go(kernel, saga, root="root-1", given=None, grant=None, told=None, limits=None):
    run, lease = begin(
        kernel,
        kernel.actor,
        Wanted(saga, root, given, kernel.principal, "test", grant),
        limits=limits,
    )
    return carry(kernel, saga, run, lease, told)


def carry(kernel, saga, run, lease, told=None):
    if run.over or run.stuck is not None:
        return run
    return run_saga(
        kernel,
        SagaRun(kernel, kernel.actor, saga, run.saga_id, lease, told or (lambda said: None)),
        None,
    )


def again(kernel, saga, run, retry=False):
    return carry(
        kernel, saga, *take_up(kernel, kernel.actor, saga, run.saga_id, "test", retry=retry)
    )


def sound(kernel, *sessions):
    with kernel.store.read() as rows:
        assert_sound(rows, *sessions)


@pytest.mark.rule("S-1", "S-8")
@pytest.mark.guarantee("G17")
def test_a_saga_runs_to_its_end_and_never_again(kernel):
    world, told = World(), []
    saga = world.saga(3)
    run = go(kernel, saga, given={"order": 7}, told=told.append)
    assert (run.state, run.last_ok_state, run.settled, run.stuck) == ("DONE", "c", 0, None)
    assert world.did == ["a", "b", "c"]
    assert go(kernel, saga, given={"order": 7}) == run and world.did == ["a", "b", "c"]
    with pytest.raises(RequestConflict):
        go(kernel, saga, given={"order": 8})
    with kernel.store.read() as rows:
        steps = Runs(rows).steps(run.saga_id)
        lease = find_lease(rows, run.lease)
    assert [(s.step, s.side, s.status) for s in steps] == [(n, "action", "done") for n in "abc"]
    assert (lease.holder, lease.fence) == ("", 1), "the lease was given back"
    assert [t["status"] for t in told] == ["running", "done"] * 3
    sound(kernel, run.saga_id)


@pytest.mark.rule("S-1", "S-8")
@pytest.mark.guarantee("G17")
@pytest.mark.parametrize("count", range(1, 7))
def test_whatever_fails_wherever_the_ending_is_the_one_the_table_says(kernel, kind, count):
    runs = 0
    cases = list(itertools.product(range(count), ("action", "check"), (0, 1, 2)))
    # All of them when there is time; otherwise all of the short ones on SQLite, and some of each on PostgreSQL.
    each = 1 if not SHARE else max(1, count - 1) if kind != "sqlite" else max(1, count - 3)
    for at, what, stuck in cases[::each]:
        for slip in range(at + 1) if stuck else [0]:
            world = World()
            world.fails[what, NAMES[at]] = 1
            world.fails["undo", NAMES[slip]] = stuck
            saga = world.saga(count)
            run = go(kernel, saga, f"{count}-{at}-{what}-{stuck}-{slip}")
            for _ in range(stuck):
                assert run.stuck is not None and "told to fail" in run.stuck and not run.settled
                assert run.undone == at - slip, (
                    "what came before the one that failed is undone, and stays so"
                )
                with pytest.raises(InvalidResumeState, match="stuck"):
                    again(kernel, saga, run)
                run = again(kernel, saga, run, retry=True)
            assert (run.state, run.settled, run.stuck) == (f"COMP_{NAMES[at].upper()}", 1, None)
            assert world.there == set(), "everything is undone"
            back = [f"-{name}" for name in reversed(NAMES[: at + 1])]
            once = list(dict.fromkeys(word for word in world.did if word.startswith("-")))
            assert once == back, "in reverse"
            assert world.did.count(f"-{NAMES[slip]}") == 1 + stuck
            assert run.last_ok_state == (NAMES[at - 1] if at else None)
            runs += 1
    assert runs >= 2
    sound(kernel)


@pytest.mark.rule("S-1")
def test_an_action_without_a_compensation_is_passed_over(kernel):
    world = World()
    world.fails["action", "c"] = 1
    run = go(kernel, world.saga(3, undoable=("a",)))
    assert (run.state, run.undone, run.settled) == ("COMP_C", 1, 1)
    assert world.did == ["a", "b", "c", "-a"] and world.there == {"b", "c"}


@pytest.mark.rule("S-1")
@pytest.mark.parametrize("at", range(3))
def test_a_guard_that_says_no_leaves_its_action_untouched(kernel, at):
    world = World()
    saga = world.saga(3)
    guarded = saga.actions[NAMES[at]]
    said = []

    def guard(seen):
        said.append((seen.input, sorted(seen.inputs), seen.result))
        return False

    saga.actions[NAMES[at]] = type(guarded)(guarded.do, guarded.undo, guarded.check, guard)
    run = go(kernel, saga, given=[1])
    assert (run.state, run.settled) == (f"COMP_{NAMES[at].upper()}", 1)
    assert world.did == [*NAMES[:at], *(f"-{name}" for name in reversed(NAMES[:at]))]
    assert said == [([1], list(NAMES[:at]), None)]
    sound(kernel)


@pytest.mark.rule("S-1")
def test_commands_are_actions_too(kernel, tmp_path):
    saga = Saga("shell", folder=tmp_path)
    saga.command(
        "make",
        ["sh", "-c", 'cp "$ONCEWARD_CONFIG" "$ONCEWARD_OUT/order"; echo "$ONCEWARD_ROOT" > made'],
        compensate=["sh", "-c", 'cat "$ONCEWARD_INPUTS/make/order" > undone; rm made'],
        check=lambda seen: b"7" in seen.result["order"],
    )
    saga.command(
        "send", ["sh", "-c", 'cat "$ONCEWARD_INPUTS/make/order" >&2; exit 9'], env=["HOME"]
    )
    run = go(kernel, saga, given={"order": 7})
    assert (run.state, run.settled) == ("COMP_SEND", 1)
    assert (tmp_path / "undone").read_text() == '{"order":7}' and not (tmp_path / "made").exists()
    with kernel.store.read() as rows:
        failed = next(s for s in Runs(rows).steps(run.saga_id) if s.step == "send")
    assert '"exit":9' in failed.error and '"last_line":"{\\"order\\":7}"' in failed.error
    sound(kernel, run.saga_id)


@pytest.mark.rule("S-1")
def test_what_is_spent_is_debited_and_a_lane_that_is_empty_stops_it(kernel):
    saga = Saga("dear", budget={"usd": "1.00"})
    undone = []

    @saga.action(compensate=lambda task: undone.append(task.result))
    def one(task):
        task.spend(usd="0.60")
        return "paid"

    @saga.action(compensate=lambda task: undone.append(task.result))
    def two(task):
        task.spend(usd="0.60")

    run = go(kernel, saga)
    assert (run.state, run.settled, undone) == ("COMP_TWO", 1, [None, "paid"])
    with kernel.store.read() as rows:
        ((spent,),) = rows.read("SELECT total FROM budget_totals WHERE budget_lane = 'usd_micros'")
    assert spent == 600_000
    sound(kernel, run.saga_id)


@pytest.mark.rule("S-1")
def test_what_can_be_tried_again_is(kernel):
    saga, tried = Saga("net"), []

    @saga.action(attempts=3)
    def reach(task):
        tried.append(task.idempotency_key)
        if len(tried) < 3:
            raise ConnectionError("not yet")
        return len(tried)

    run = go(kernel, saga)
    assert run.state == "DONE" and len(tried) == 3 and len(set(tried)) == 1
    sound(kernel, run.saga_id)


@pytest.mark.rule("S-8")
def test_a_run_that_was_stopped_goes_on_where_it_was(kernel):
    world, started = World(), threading.Event()
    saga = world.saga(2)
    waiting = saga.actions["b"].do.call

    @saga.action
    def slow(task):
        if not started.is_set():
            started.set()
            for _ in range(1000):
                task.check()
                time.sleep(0.01)
        return waiting(task)

    stop = threading.Event()
    run, lease = begin(kernel, kernel.actor, Wanted(saga, "r", None, "tester", "test"))
    threading.Thread(target=lambda: (started.wait(600), stop.set())).start()
    run = run_saga(
        kernel, SagaRun(kernel, kernel.actor, saga, run.saga_id, lease, lambda said: None), stop
    )
    assert (run.state, run.last_ok_state, run.over) == ("slow", "b", False)
    run = again(kernel, saga, run)
    assert run.state == "DONE" and world.did == ["a", "b", "b"], "what was done is not done again"
    assert run.lease_fence == 2, "a new epoch of the lease"
    sound(kernel, run.saga_id)


@pytest.mark.rule("S-4")
def test_who_lost_the_lease_writes_nothing_more(kernel):
    world = World()
    saga = world.saga(3)
    stolen = saga.actions["b"].do.call

    def steal(task):
        def take(tx):
            tx.write("UPDATE run_leases SET expires_at = 1")
            assert take_lease(tx, "run:r", "somebody else", "token", tx.now).fence == 2

        if "b" not in world.did:
            kernel.store.write(take)
        return stolen(task)

    saga.actions["b"] = type(saga.actions["b"])(
        saga.actions["b"].do.__class__(name="b", call=steal),
        saga.actions["b"].undo,
        saga.actions["b"].check,
    )
    with pytest.raises(LeaseLost, match="lost its lease"):
        go(kernel, saga, "r")
    with kernel.store.read() as rows:
        run = Runs(rows).of_root("r")
        steps = {step.step for step in Runs(rows).steps(run.saga_id)}
        lease = find_lease(rows, "run:r")
    assert (run.state, run.last_ok_state, steps) == ("b", "a", {"a"}), (
        "nothing of what it did after"
    )
    assert (lease.holder, lease.fence) == ("somebody else", 2), "and the other's lease is untouched"
    with pytest.raises(LockConflict, match="somebody else"):
        again(kernel, saga, run)
    kernel.store.write(lambda tx: tx.write("UPDATE run_leases SET expires_at = 1"))
    run = again(kernel, saga, run)
    assert run.state == "DONE" and run.lease_fence == 3
    sound(kernel, run.saga_id)


@pytest.mark.rule("S-4")
def test_a_lease_is_taken_renewed_and_given_back_by_its_holder_only(store):
    now = store.sources.now()
    one = store.write(lambda tx: take_lease(tx, "l", "one", "t1", now))
    assert store.write(lambda tx: take_lease(tx, "l", "two", "t2", now + 59_000_000)) is None
    assert store.write(lambda tx: renew_lease(tx, one, now + 30_000_000))
    assert store.write(lambda tx: take_lease(tx, "l", "two", "t2", now + 61_000_000)) is None, (
        "it was renewed"
    )
    again = store.write(lambda tx: take_lease(tx, "l", "one", "t3", now))
    assert again.fence == one.fence + 1, "the same holder comes again, as a new epoch"
    assert not store.write(lambda tx: renew_lease(tx, one, now)), "the old epoch is over"
    store.write(lambda tx: release_lease(tx, "l", "one", "t1"))
    store.write(lambda tx: release_lease(tx, "l", "two", "t3"))
    with store.read() as rows:
        assert find_lease(rows, "l").holder == "one"
    late = store.write(lambda tx: take_lease(tx, "l", "two", "t4", now + 200_000_000))
    assert (late.holder, late.fence) == ("two", 3), "its time had passed"
    store.write(lambda tx: release_lease(tx, "l", "two", "t4"))
    assert store.write(lambda tx: take_lease(tx, "l", "one", "t5", now)).fence == 4
    with pytest.raises(OncewardError, match="only grows"):
        store.write(lambda tx: tx.write("UPDATE run_leases SET fence = 1"))


@pytest.mark.rule("S-8")
def test_a_run_that_is_given_up_is_undone(kernel):
    world, there = World(), threading.Event()
    saga = world.saga(2)

    @saga.action(compensate=lambda task: world.did.append("-slow"))
    def slow(task):
        there.set()
        for _ in range(1000):
            task.check()
            time.sleep(0.01)

    def give_up():
        there.wait(600)
        kernel.store.write(lambda tx: abandon(tx, "tester", "r", "req-1"))
        kernel._heed()

    helper = threading.Thread(target=give_up)
    helper.start()
    run = go(kernel, saga, "r")
    helper.join()
    assert (run.state, run.settled) == ("COMP_SLOW", 1)
    assert world.did == ["a", "b", "-slow", "-b", "-a"] and world.there == set()
    with pytest.raises(InvalidResumeState, match="is over"):
        kernel.store.write(lambda tx: abandon(tx, "tester", "r", "req-2"))
    sound(kernel, run.saga_id)


@pytest.mark.rule("S-8")
def test_a_stuck_run_may_be_taken_as_it_is(kernel):
    world = World()
    world.fails = {("action", "b"): 1, ("undo", "b"): 9}
    saga = world.saga(2)
    run = go(kernel, saga, "r")
    assert run.stuck is not None
    said = kernel.store.write(lambda tx: abandon(tx, "tester", run.saga_id, "req-1"))
    assert said["settled"] and said["state"] == "COMP_B"
    with pytest.raises(InvalidResumeState, match="is over"):
        again(kernel, saga, run, retry=True)
    with kernel.store.read() as rows:
        assert find_lease(rows, "run:r").holder == ""
    sound(kernel, run.saga_id)


def test_a_saga_that_makes_no_table_is_refused(kernel):
    with pytest.raises(InvalidConfig, match="1 to 100 actions"):
        _ = Saga("none").shape
    for name in ("DONE", "new", "has blank", "COMP_A", "ü"):
        saga = Saga("odd")
        saga.action(lambda task: None, name="a")
        with pytest.raises(InvalidConfig):
            saga.action(lambda task: None, name=name)
            assert saga.shape
    saga = Saga("twice")
    saga.action(lambda task: None, name="a")
    with pytest.raises(InvalidConfig, match="two actions a"):
        saga.action(lambda task: None, name="a")
    with pytest.raises(InvalidConfig, match="no targets"):
        saga.action(lambda task: None, name="b", targets=["x"])
    with pytest.raises(InvalidConfig, match="is a function"):
        saga.action(lambda task: None, name="b", check="yes")


def test_a_run_whose_actions_changed_is_not_taken_up(kernel):
    world = World()
    world.fails = {("action", "b"): 1, ("undo", "b"): 1}
    run = go(kernel, world.saga(2), "r")
    with pytest.raises(InvalidResumeState, match="other actions"):
        again(kernel, world.saga(3), run, retry=True)


def test_check_and_guard_see_the_rows_of_their_own_transaction(kernel):
    saga, seen = Saga("look"), []

    @saga.action(check=lambda look: seen.append(look.rows.read("SELECT state FROM saga_runs")))
    def one(task):
        return 1

    assert go(kernel, saga).state == "DONE"
    assert seen == [[("one",)]]


def test_a_crash_is_no_failure(kernel):
    saga = World().saga(1)
    begin(kernel, kernel.actor, Wanted(saga, "r", None, "tester", "test"))
    with faults.armed("move.state", 1, faults.crash), pytest.raises(faults.SimulatedCrash):
        kernel.store.write(lambda tx: abandon(tx, "tester", "r", "req-1"))
    with kernel.store.read() as rows:
        assert Runs(rows).of_root("r").state == "a"


class Odd:
    def __bool__(self):
        raise ValueError("neither")


@pytest.mark.rule("S-1")
@pytest.mark.parametrize("place", ["check", "guard"])
@pytest.mark.parametrize("how", ["raises", "exits", "surrogate", "odd", "promise", "says no"])
def test_however_a_check_or_guard_refuses_it_refuses(kernel, place, how):
    async def promise():
        return True

    def judge(seen):
        if how == "raises":
            raise ValueError("stock is low")
        if how == "exits":
            raise SystemExit(7)
        if how == "surrogate":
            raise ValueError("bad \udcff byte")
        return {"odd": Odd, "promise": promise, "says no": bool}[how]()

    saga, did, told = Saga("odd"), [], []
    saga.action(lambda task: did.append("a"), name="a", compensate=lambda task: did.append("-a"))
    saga.action(
        lambda task: did.append("b"),
        name="b",
        compensate=lambda task: did.append("-b"),
        **{place: judge},
    )
    run = go(kernel, saga, told=told.append)
    assert (run.state, run.settled) == ("COMP_B", 1)
    assert did == (["a", "b", "-b", "-a"] if place == "check" else ["a", "-a"])
    found = document(saga_view(kernel.store, run.saga_id))
    assert found["why"]["reason"] == f"{place}_failed" and found["why"]["step"] == "b"
    assert [t["status"] for t in told if t["step"] == "b" and t["side"] == "action"][-1] == "failed"
    if how == "raises":
        assert "stock is low" in found["why"]["message"]
    sound(kernel)


def test_a_check_that_cannot_answer_is_refused_where_it_is_declared():
    async def later(seen):
        return False

    saga = Saga("s")
    for words in (
        *({"check": later}, {"guard": later}, {"check": lambda: True}, {"check": 5}),
        *({"compensate": "rm foo"}, {"compensate": 5}),
    ):
        with pytest.raises(InvalidConfig):
            saga.action(lambda task: None, name="a", **words)
    with pytest.raises(InvalidConfig, match="list of words"):
        saga.command("x", "true")
    saga.action(lambda task: None, name="print-ticket")
    with pytest.raises(InvalidConfig, match="letters, digits and _"):
        assert saga.shape


@pytest.mark.rule("S-8")
@pytest.mark.parametrize("lane", ["usd", "duration_secs"])
def test_what_is_to_be_undone_is_undone_whatever_is_left_of_the_budget(kernel, lane):
    saga, did = Saga("dear", budget={"usd": "0.10"} if lane == "usd" else {"duration_secs": 1}), []

    def undo(task):
        did.append("undone")
        task.spend(usd="0.07")
        if lane == "duration_secs":
            time.sleep(1.2)

    @saga.action(compensate=undo)
    def one(task):
        did.append("one")
        task.spend(usd="0.05")
        if lane == "duration_secs":
            while True:
                task.check()
                time.sleep(0.02)
        task.spend(usd="0.50")

    run = go(kernel, saga)
    assert (run.state, run.settled, run.stuck, did) == ("COMP_ONE", 1, None, ["one", "undone"])
    with kernel.store.read() as rows:
        ((spent,),) = rows.read("SELECT total FROM budget_totals WHERE budget_lane = 'usd_micros'")
    assert spent == 120_000, "all of it is on the record"
    sound(kernel, run.saga_id)


@pytest.mark.rule("S-8")
@pytest.mark.parametrize("side", ["action", "compensation"])
def test_a_child_that_is_cancelled_before_it_begins_is_a_failure_too(kernel, side):
    world = World()
    if side == "compensation":
        world.fails["action", "b"] = 1
    saga = world.saga(2)
    run, lease = begin(kernel, kernel.actor, Wanted(saga, "r", None, "tester", "test"))
    runner = SagaRun(kernel, kernel.actor, saga, run.saga_id, lease, lambda said: None)
    rouse, queued = runner.children.rouse, []

    def cancel_first():
        with kernel.store.read() as rows:
            for token in Tokens(rows).open_in(run.saga_id):
                step = msgspec.json.decode(token.work)
                if (step["step"], step["side"]) == ("b", side) and not queued:
                    queued.append(token.child_id)
        if queued and len(queued) == 1:
            queued.append("once")
            kernel.ask(Request("children.cancel", "c1", {"subject": queued[0]}, "tester"))
        rouse()

    runner.children.rouse = cancel_first
    run = run_saga(kernel, runner)
    assert queued[0].startswith("chd_")
    if side == "compensation":
        assert run.stuck is not None and "cancelled" in run.stuck
        run = again(kernel, saga, run, retry=True)
    assert (run.state, run.settled) == ("COMP_B", 1) and world.there == set()
    sound(kernel)


@pytest.mark.rule("S-4")
def test_a_lease_that_is_lost_before_the_end_ends_the_run(kernel):
    world = World()
    world.fails["action", "a"] = 1
    saga = world.saga(1)
    undo = saga.actions["a"].undo.call

    def steal(task):
        undo(task)
        kernel.store.write(
            lambda tx: tx.write(
                "UPDATE run_leases SET holder = 'other', token = 't', fence = fence + 1"
            )
        )

    action = saga.actions["a"]
    saga.actions["a"] = msgspec.structs.replace(
        action, undo=msgspec.structs.replace(action.undo, call=steal)
    )
    with pytest.raises(LeaseLost):
        go(kernel, saga, "r")


@pytest.mark.rule("S-3")
@pytest.mark.guarantee("G16")
def test_a_grant_is_for_what_is_done_not_only_for_its_names():
    def made(say="harmless", undo="undo", check=None):
        saga = Saga("g", granted=True)
        saga.command("act", ["echo", say], compensate=["echo", undo], check=check)
        return saga.scope({"x": 1}, "test", "tester")

    base = made()
    others = [
        made("harmful"),
        made(undo="other"),
        made(check=lambda seen: True),
        made(check=lambda seen: False),
    ]
    assert len({base.digest(), *(other.digest() for other in others)}) == 5
    first, second = Saga("f"), Saga("f")
    first.action(lambda task: 1, name="a")
    second.action(lambda task: 2, name="a")
    assert first.scope(1, "t", "x") != second.scope(1, "t", "x")


@pytest.mark.rule("S-8")
def test_a_run_at_its_stop_may_be_taken_as_it_is_before_it_is_stuck(kernel):
    world = World()
    saga = world.saga(2)
    run, _ = begin(kernel, kernel.actor, Wanted(saga, "r", None, "tester", "test"))
    kernel.store.write(lambda tx: abandon(tx, "tester", "r", "req-1"))
    said = kernel.store.write(lambda tx: abandon(tx, "tester", "r", "req-2"))
    assert said["settled"] and said["not_undone"] == ["a"]
    assert document(saga_view(kernel.store, run.saga_id))["standing"] == "given up"
    sound(kernel)


@pytest.mark.rule("S-8")
def test_a_run_that_is_given_up_while_it_is_undone_stops_there(kernel):
    world, there = World(), threading.Event()
    world.fails["action", "b"] = 1
    saga = world.saga(2)
    action = saga.actions["b"]

    def slow(task):
        there.set()
        while True:
            task.check()
            time.sleep(0.01)

    saga.actions["b"] = msgspec.structs.replace(
        action, undo=msgspec.structs.replace(action.undo, call=slow)
    )

    def give_up():
        there.wait(600)
        kernel.ask(Request("sagas.abandon", "x", {"saga": "r"}, "tester"))

    helper = threading.Thread(target=give_up)
    helper.start()
    run = go(kernel, saga, "r")
    helper.join()
    assert (run.state, run.settled, run.undone) == ("COMP_B", 1, 0)
    assert document(saga_view(kernel.store, run.saga_id))["not_undone"] == [
        "b",
        "a",
    ] and world.there == {
        "a",
        "b",
    }
    with kernel.store.read() as rows:
        assert find_lease(rows, "run:r").holder == ""
    sound(kernel)
