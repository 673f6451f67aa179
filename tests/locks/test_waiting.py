"""Waiting for a held target: bounded, on the monotonic clock, in threads and in coroutines."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import threading
import time
from types import SimpleNamespace

import pytest

from onceward.core import faults
from onceward.errors import InvalidConfig
from onceward.locks import TargetLock, TargetLocked
from onceward.locks import target as target_module
from planted_claims import plant


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "locks"


def release_soon(lock, claim):
    thread = threading.Timer(0.1, lambda: lock.release(claim))
    thread.start()
    return thread


@pytest.mark.rule("L-1")
def test_a_held_target_is_waited_for(folder):
    lock = TargetLock(folder)
    held = lock.acquire("t")
    thread = release_soon(lock, held)
    claim = lock.acquire("t", timeout=600)
    assert claim.nonce != held.nonce and claim.path.exists()
    thread.join()
    assert lock.release(claim) == "released"


@pytest.mark.rule("L-6")
def test_a_wait_ends_with_the_holders_evidence(folder, monkeypatch):
    lock = TargetLock(folder)
    held = lock.acquire("t")
    tries = []
    acquire_now = lock._acquire_now
    monkeypatch.setattr(
        lock, "_acquire_now", lambda target: (tries.append(target), acquire_now(target))[1]
    )
    begun = time.monotonic()
    with pytest.raises(TargetLocked) as locked:
        lock.acquire("t", timeout=0.3)
    assert time.monotonic() - begun >= 0.3
    assert locked.value.holder.nonce == held.nonce
    tries.clear()
    with pytest.raises(TargetLocked):
        lock.acquire("t")
    assert len(tries) == 1, "without a timeout it never waits and never loops"


def test_the_pauses_of_a_wait_grow_and_stay_short_enough(folder, monkeypatch):
    lock = TargetLock(folder)
    lock.acquire("t")
    pauses, now = [], [1000.0]

    def sleep(seconds):
        pauses.append(seconds)
        now[0] += seconds

    clock = SimpleNamespace(sleep=sleep, monotonic=lambda: now[0])
    monkeypatch.setattr(target_module, "time", clock)
    with pytest.raises(TargetLocked):
        lock.acquire("t", timeout=30)
    assert pauses[:3] == sorted(pauses[:3]) and pauses[0] < 0.05
    assert max(pauses) <= 0.5
    assert sum(pauses) == pytest.approx(30)
    assert len(pauses) < 200


@pytest.mark.rule("L-2")
@pytest.mark.parametrize("timeout", [-1, math.nan, "5", None])
def test_a_timeout_that_is_no_length_of_time_is_refused(folder, timeout):
    with pytest.raises(InvalidConfig, match="timeout"):
        TargetLock(folder).acquire("t", timeout=timeout)
    with pytest.raises(InvalidConfig, match="timeout"):
        asyncio.run(TargetLock(folder).acquire_async("t", timeout=timeout))
    assert not folder.exists()


def test_a_bad_target_is_refused_without_waiting(folder):
    with pytest.raises(InvalidConfig, match="not a target id"):
        TargetLock(folder).acquire("../x", timeout=math.inf)


@pytest.mark.rule("L-4")
def test_a_wait_ends_when_the_holder_is_killed(folder):
    ready, go = os.pipe()
    child = os.fork()
    if child == 0:
        TargetLock(folder).acquire("t")
        os.write(go, b"x")
        signal.pause()
        os._exit(0)
    os.read(ready, 1)
    threading.Timer(0.1, lambda: os.kill(child, signal.SIGKILL)).start()
    claim = TargetLock(folder).acquire("t", timeout=600)
    assert claim.pid == os.getpid()
    os.waitpid(child, 0)
    os.close(ready)
    os.close(go)


def test_hold_waits_too(folder):
    lock = TargetLock(folder)
    thread = release_soon(lock, lock.acquire("t"))
    with lock.hold("t", timeout=600) as claim:
        assert claim.path.exists()
    thread.join()
    assert not claim.path.exists()


def test_coroutines_wait_without_holding_up_the_loop(folder):
    lock = TargetLock(folder)

    async def wait_beside_others():
        held = await lock.acquire_async("t")
        waiting = asyncio.create_task(lock.acquire_async("t", timeout=600))
        for _ in range(10):
            await asyncio.sleep(0.01)
        assert not waiting.done()
        with pytest.raises(TargetLocked):
            await lock.acquire_async("t")
        with pytest.raises(TargetLocked):
            await lock.acquire_async("t", timeout=0.05)
        assert lock.release(held) == "released"
        claim = await waiting
        assert lock.release(claim) == "released"

    asyncio.run(wait_beside_others())


def test_many_coroutines_take_turns(folder):
    lock = TargetLock(folder)
    inside, turns = [0], [0]

    async def turn():
        async with lock.hold_async("t", timeout=100) as claim:
            inside[0] += 1
            assert inside[0] == 1 and claim.path.exists()
            await asyncio.sleep(0)
            inside[0] -= 1
            turns[0] += 1

    async def all_turns():
        await asyncio.gather(*[turn() for _ in range(8)])

    asyncio.run(all_turns())
    assert turns == [8]
    assert not lock.path_of("t").exists()


@pytest.mark.guarantee("G21")
def test_a_cancelled_wait_keeps_no_claim(folder):
    """Cancelled while the thread is between writing the claim and linking it: the claim is given back."""
    lock = TargetLock(folder)
    writing, go_on = threading.Event(), threading.Event()

    def hold_up():
        writing.set()
        go_on.wait(600)

    async def cancel():
        waiting = asyncio.create_task(lock.acquire_async("t"))
        while not writing.is_set():
            await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        go_on.set()

    with faults.armed("target.written", act=hold_up):
        asyncio.run(cancel())
    claim = lock.acquire("t", timeout=600)
    assert lock.release(claim) == "released"


@pytest.mark.guarantee("G21")
def test_a_claim_that_arrives_with_the_cancellation_is_given_back(folder):
    lock = TargetLock(folder)

    async def cancel():
        waiting = asyncio.create_task(lock.acquire_async("t"))
        await asyncio.sleep(0)
        deadline = time.monotonic() + 60
        while not lock.path_of("t").exists() and time.monotonic() < deadline:
            # The loop is not let on: the claim is there, and nobody has taken delivery of it.
            time.sleep(0.01)
        time.sleep(0.1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(cancel())
    claim = lock.acquire("t", timeout=600)
    assert lock.release(claim) == "released"


def test_an_async_hold_releases_when_its_body_fails_or_is_cancelled(folder):
    lock = TargetLock(folder)

    async def fail():
        async with lock.hold_async("t"):
            raise ValueError("the work")

    async def cancel():
        entered = asyncio.Event()

        async def work():
            async with lock.hold_async("t"):
                entered.set()
                await asyncio.sleep(600)

        task = asyncio.create_task(work())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with pytest.raises(ValueError, match="the work"):
        asyncio.run(fail())
    asyncio.run(cancel())
    assert not lock.path_of("t").exists()


def test_a_dead_holder_is_replaced_by_a_coroutine(folder):
    plant(folder)
    claim = asyncio.run(TargetLock(folder).acquire_async("t"))
    assert claim.pid == os.getpid()
