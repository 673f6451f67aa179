"""Group commit, the fence, and commits that go wrong."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from helpers import count, create, everything, get, orphan_lock, step
from onceward.builds import machine as rules
from onceward.core import faults
from onceward.core.records import Request
from onceward.errors import CommitUnknown, LockConflict, LockLost, StaleVersion, StorageError
from onceward.evidence.verify import verify_rows
from onceward.kernel.tenure import acquire, release
from onceward.store.port import CommitFailed
from onceward.store.store import Store


@pytest.mark.rule("K-4", "K-5")
def test_callers_that_meet_share_commits_and_lose_nothing(store):
    builds = [create(store) for _ in range(12)]

    def work(build_id):
        for _ in range(20):
            step(store, build_id)
        return get(store, build_id).version

    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(work, builds)) == [21] * 12
    with store.read() as rows:
        found = verify_rows(rows)
    assert found.faults == []
    assert found.checked["events"] == 12 * 21


def test_a_failing_caller_takes_only_its_own_work_down(store):
    """All callers append to one stream in shared commits; every third fails after it has written."""
    gate = threading.Barrier(12)

    def work(number):
        def note(tx):
            tx.append("workspace", "NOTED", "tester", {"n": number})
            if number % 3 == 0:
                raise RuntimeError(number)

        gate.wait()
        for _ in range(10):
            if number % 3 == 0:
                with pytest.raises(RuntimeError):
                    store.write(note)
            else:
                store.write(note)

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(work, range(12)))
    with store.read() as rows:
        assert verify_rows(rows).faults == []
    assert count(store, "events") == 80


def test_racing_for_one_version_has_one_winner(store):
    build_id = create(store)
    seen = get(store, build_id)
    gate = threading.Barrier(8)

    def race(_):
        gate.wait()
        try:
            store.write(lambda tx: tx.move(rules.move(seen, "ACTIVE", "build_started", "tester")))
        except StaleVersion:
            return 0
        return 1

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(race, range(8))) == 1
    assert get(store, build_id).version == 2


@pytest.mark.rule("K-9", "K-13", "L-21")
@pytest.mark.guarantee("G3")
def test_a_kernel_whose_fence_moved_on_writes_nothing(store, database, sources):
    build_id = create(store)
    orphan_lock(database)
    heir = Store(database, sources, ["log"])
    acquire(heir, "heir")
    before = everything(heir)
    for attempt in (
        lambda: release(store, "tester"),
        lambda: step(store, build_id),
        lambda: create(store),
        lambda: store.answer(Request("note", "r", {}, "tester"), lambda tx, _: {}),
    ):
        with pytest.raises(LockLost) as lost:
            attempt()
        assert lost.value.exit_status == 4
    release(store, "tester")  # Nothing is left to give back.
    assert everything(heir) == before
    assert step(heir, build_id).version == 2
    heir.close()


@pytest.mark.rule("K-9")
@pytest.mark.guarantee("G3")
def test_callers_that_share_a_commit_all_learn_that_the_fence_moved_on(store, database, sources):
    orphan_lock(database)
    heir = Store(database, sources, ["log"])
    acquire(heir, "heir")
    before = everything(heir)
    gate = threading.Barrier(12)

    def write(number):
        gate.wait()
        for _ in range(10):
            with pytest.raises(LockLost):
                store.write(lambda tx: tx.append("workspace", "NOTED", "ghost", {"n": number}))

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(write, range(12)))
    assert everything(heir) == before
    heir.close()


@pytest.mark.rule("L-21")
@pytest.mark.guarantee("G3")
def test_one_of_many_contenders_gets_the_writer_lock(database, sources):
    gate = threading.Barrier(12)

    def contend(_):
        contender = Store(database, sources)
        gate.wait()
        try:
            return acquire(contender, "tester").fence
        except LockConflict as conflict:
            assert conflict.exit_status == 4
            return None
        finally:
            contender.close()

    with ThreadPoolExecutor(12) as pool:
        fences = list(pool.map(contend, range(12)))
    assert [fence for fence in fences if fence is not None] == [1]


@pytest.mark.rule("L-21")
def test_a_live_holder_is_named_in_the_conflict(store, database, sources):
    import os

    second = Store(database, sources)
    with pytest.raises(LockConflict) as conflict:
        acquire(second, "tester")
    second.close()
    assert conflict.value.context["pid"] == os.getpid()
    assert conflict.value.context["reason"] == "held"
    assert "is running" in conflict.value.message


@pytest.mark.rule("L-21", "L-23", "K-9")
def test_a_dead_holders_work_is_taken_over_in_the_same_transaction(store, database, sources):
    build_id = create(store)
    step(store, build_id)
    fence = store.tenure.fence
    store.close()
    orphan_lock(database)
    heir = Store(database, sources, ["log"])
    assert acquire(heir, "heir").fence == fence + 1
    build = get(heir, build_id)
    assert (build.state, build.version) == ("CRASHED", 3)
    assert step(heir, build_id).state == "ACTIVE"
    heir.close()


def test_a_released_lock_is_free_and_its_fence_stays(store, database, sources):
    release(store, "tester")
    heir = Store(database, sources)
    assert acquire(heir, "heir").fence == 2
    heir.close()


@pytest.mark.rule("K-13")
def test_a_store_without_the_lock_may_not_write(database, sources):
    outsider = Store(database, sources)
    with pytest.raises(LockLost):
        outsider.write(lambda tx: tx.append("workspace", "NOTED", "x", {}))
    outsider.close()


class Broken:
    """A session whose COMMIT goes wrong: before it is applied, or after."""

    def __init__(self, session, applied):
        self._session, self._applied = session, applied

    def __getattr__(self, name):
        return getattr(self._session, name)

    def commit(self):
        if self._applied:
            self._session.commit()
        else:
            self._session.rollback()
        raise CommitFailed("the disk said no")


@pytest.mark.guarantee("G4")
@pytest.mark.guarantee("G22")
@pytest.mark.parametrize("applied", [True, False])
def test_a_commit_error_is_looked_up_and_answered_truthfully_and_the_writer_stops(
    store, database, sources, applied
):
    build_id = create(store)
    store.writer._session = Broken(store.writer._session, applied)
    request = Request("step", "r1", {}, "tester")

    def work(tx, resource_id):
        build = tx.builds.get(build_id)
        tx.move(rules.move(build, "ACTIVE", "build_started", "tester"))
        return {"version": 2}

    if applied:
        assert store.answer(request, work).value == {"version": 2}
    else:
        with pytest.raises(StorageError) as failed:
            store.answer(request, work)
        assert failed.value.context["outcome"] == "failed"
    with pytest.raises(StorageError, match="open it again"):
        step(store, build_id)
    store.close()
    heir = Store(database, sources, ["log"])
    acquire(heir, "heir")
    assert heir.answer(request, work if not applied else None).replayed is applied
    with heir.read() as rows:
        assert verify_rows(rows).faults == []
    heir.close()


@pytest.mark.guarantee("G4")
def test_a_commit_nobody_can_look_up_is_unknown_and_resolved_by_asking_again(
    store, database, sources
):
    """Only a write without any event: an answer has one."""
    request = Request("silent", "r1", {}, "tester")
    store.answer(request, lambda tx, _: {"done": True})
    store.writer._session = Broken(store.writer._session, True)
    with pytest.raises(CommitUnknown) as unknown:
        store.take(request)
    assert unknown.value.context["outcome"] == "unknown"
    assert unknown.value.retryable
    store.close()
    orphan_lock(database)
    heir = Store(database, sources)
    acquire(heir, "heir")
    again = heir.answer(request, lambda tx, _: {"done": True})
    assert again.replayed
    assert again.value == {"done": True}
    heir.close()


@pytest.mark.guarantee("G2")
@pytest.mark.parametrize(
    "name", [n for n in faults.POINTS if n.startswith(("write.", "move.", "commit."))]
)
def test_a_crash_at_every_point_of_a_transaction_leaves_all_or_nothing(
    store, database, sources, name
):
    build_id = create(store)
    request = Request("step", "r1", {}, "tester")

    def work(tx, resource_id):
        build = tx.builds.get(build_id)
        tx.move(rules.move(build, "ACTIVE", "build_started", "tester"))
        return {"version": 2}

    with faults.armed(name, act=faults.crash), pytest.raises(faults.SimulatedCrash):
        store.answer(request, work)
    store.close()
    orphan_lock(database)
    heir = Store(database, sources, ["log"])
    acquire(heir, "heir")
    applied = name in ("commit.after", "write.answered")
    assert count(heir, "requests") == applied
    answer = heir.answer(request, work if not applied else None)
    assert answer.replayed is applied
    with heir.read() as rows:
        assert verify_rows(rows).faults == []
    assert count(heir, "events") == count(heir, "event_outbox")
    heir.close()
