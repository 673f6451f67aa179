"""Watch before release: every pair of the table, and real processes that end, get ready, hang, or never end."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import product
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.locks import TargetLock, TargetLocked
from onceward.locks.watch import WATCH, Phase, Popened, Seen, observe, watch_and_release

pytestmark = pytest.mark.rule("L-11")
PHASES, SEEN = get_args(Phase), get_args(Seen)


def test_the_table_knows_every_pair_but_those_after_the_end():
    assert set(WATCH) == set(product(set(PHASES) - {"settled"}, SEEN))
    assert all(observe("settled", seen) == ("settled", None) for seen in SEEN)


@given(st.lists(st.sampled_from(SEEN)))
def test_a_lock_is_released_at_most_once_and_only_on_an_observation(sequence):
    phase, acts = "watching", []
    for seen in sequence:
        phase, act = observe(phase, seen)
        if act is not None:
            acts.append((act, seen))
    names = [act for act, _ in acts]
    assert names.count("release") + names.count("retain") <= 1
    assert names == sorted(names, key=["terminate", "kill", "release", "retain"].index)
    for act, seen in acts:
        if act == "release":
            assert seen in ("exited", "ready", "start_failed")
        if act == "retain":
            assert names[:2] == ["terminate", "kill"]


@pytest.fixture
def locks(tmp_path):
    return TargetLock(tmp_path / "locks")


def begin(locks, *argv, ready=None):
    claim = locks.acquire("t")
    keep = (claim.descriptor,) if ready is None else (claim.descriptor, ready)
    return claim, subprocess.Popen(argv, pass_fds=keep, stdout=subprocess.DEVNULL)


def test_an_exit_releases(locks):
    claim, child = begin(locks, "true")
    settled = watch_and_release(locks, claim, Popened(child), timeout=600)
    assert (settled.outcome, settled.watch.seen) == ("released", "exited")
    locks.release(locks.acquire("t"))


def test_a_ready_child_releases_and_goes_on(locks):
    reader, writer = os.pipe()
    claim, child = begin(
        locks, "sh", "-c", f"sleep 0.1; echo up >/dev/fd/{writer}; exec sleep 60", ready=writer
    )
    os.close(writer)
    settled = watch_and_release(locks, claim, Popened(child, reader), timeout=600)
    assert (settled.outcome, settled.watch.seen) == ("released", "ready")
    assert child.poll() is None
    child.kill()
    child.wait()
    os.close(reader)


def test_a_closed_ready_descriptor_is_no_observation(locks):
    reader, writer = os.pipe()
    claim, child = begin(
        locks,
        sys.executable,
        "-c",
        f"import os,time; os.close({writer}); time.sleep(0.3)",
        ready=writer,
    )
    os.close(writer)
    settled = watch_and_release(locks, claim, Popened(child, reader), timeout=600)
    assert settled.watch.seen == "exited"
    os.close(reader)


def test_a_timeout_terminates(locks):
    claim, child = begin(locks, "sleep", "60")
    settled = watch_and_release(locks, claim, Popened(child), timeout=0.1, grace=10)
    assert (settled.outcome, settled.watch.pressed) == ("released", "ending")


def test_a_child_that_heeds_no_terminate_is_killed(locks):
    claim, child = begin(locks, "sh", "-c", "trap '' TERM; while :; do sleep 0.05; done")
    settled = watch_and_release(locks, claim, Popened(child), timeout=0.3, grace=0.3)
    assert (settled.outcome, settled.watch.pressed) == ("released", "killing")


class Immortal(Popened):
    """Stands for a process the system cannot end: our signals do not reach it."""

    def terminate(self):
        pass

    def kill(self):
        pass


def test_an_end_that_is_not_observed_retains_the_lock_with_evidence(locks):
    claim, child = begin(locks, "sleep", "60")
    settled = watch_and_release(locks, claim, Immortal(child), timeout=0.1, grace=0.1)
    assert settled.outcome == "lock-retained"
    assert "t stays held" in settled.evidence and str(claim.path) in settled.evidence
    with pytest.raises(TargetLocked):
        locks.acquire("t")
    locks.forget(claim)
    with pytest.raises(TargetLocked):
        TargetLock(locks.folder).acquire("t")
    child.kill()
    child.wait()


def test_a_child_that_says_ready_without_end_is_killed_in_time(locks):
    reader, writer = os.pipe()
    text = f"trap '' TERM; sleep 0.3; exec yes > /dev/fd/{writer}"
    claim, child = begin(locks, "sh", "-c", text, ready=writer)
    os.close(writer)
    settled = watch_and_release(locks, claim, Popened(child, reader), timeout=0.1, grace=0.5)
    assert (settled.watch.seen, settled.watch.pressed) == ("exited", "killing")
    os.close(reader)
