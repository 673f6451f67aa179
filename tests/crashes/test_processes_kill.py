"""kill -9 of a dispatcher at every point of the handshake: nothing survives it, nothing ran without a durable start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers import processes_with
from onceward.core import faults
from onceward.locks import TargetLock
from onceward.locks.identity import Identity, own_identity, start_of
from onceward.processes import tree
from onceward.processes.cgroup import _home, groups_of

POINTS = [name for name in faults.POINTS if name.startswith("process.")]
ROUNDS = int(os.environ.get("ONCEWARD_PROCESS_ROUNDS", "1"))


def dispatch(folder: Path, nonce: str, fault: str, nth: int) -> subprocess.Popen:
    program = str(Path(__file__).with_name("dispatcher.py"))
    return subprocess.Popen(
        [sys.executable, program, str(folder), nonce, fault, str(nth)],
        stdout=subprocess.PIPE,
        text=True,
    )


def examine(folder: Path, nonce: str, kernel: int) -> list[str]:
    """Wait for the supervisor to have done its work; then nobody is left and the targets are free."""
    deadline = time.monotonic() + 20
    while processes_with(f"\0{kernel}\0") and time.monotonic() < deadline:
        time.sleep(0.02)
    assert processes_with(nonce) == []
    ran = (folder / "witness").read_text().split() if (folder / "witness").exists() else []
    started = [line.split()[0] for line in (folder / "started").read_text().splitlines()]
    assert set(ran) <= set(started), "a child ran without a durable start"
    locks = TargetLock(folder / "locks")
    for number in range(4):
        locks.release(locks.acquire(f"t{number}"))
    return ran


@pytest.mark.rule("C-8")
@pytest.mark.guarantee("G9")
@pytest.mark.guarantee("G11")
@pytest.mark.guarantee("G21")
@pytest.mark.parametrize("nth", [1, 3])
@pytest.mark.parametrize("point", POINTS)
def test_a_dispatcher_killed_in_the_handshake_leaves_nothing_running(tmp_path, point, nth):
    for number in range(ROUNDS):
        folder = tmp_path / str(number)
        folder.mkdir()
        nonce = f"ow{os.getpid()}x{time.monotonic_ns()}"
        victim = dispatch(folder, nonce, point, nth)
        assert victim.wait(600) == -signal.SIGKILL
        victim.stdout.close()
        ran = examine(folder, nonce, victim.pid)
        assert len(ran) <= nth


def recover(folder: Path, kernel: Identity) -> None:
    """What the next kernel does when the supervisor was killed too: find by evidence, end, see gone."""
    here = own_identity()
    for line in (folder / "started").read_text().splitlines():
        name, pid, start = line.split()
        leader = Identity(here.hostname, here.machine_id, here.boot_id, int(pid), start)
        assert not tree.end(tree.ProcessTree(name, leader), 10)
    for group in groups_of(kernel):
        assert group.kill(10)
        group.remove()


@pytest.mark.rule("C-8")
@pytest.mark.guarantee("G11")
@pytest.mark.parametrize("also_the_supervisor", [False, True])
def test_a_dispatcher_killed_at_work_leaves_nothing_running(tmp_path, also_the_supervisor):
    if also_the_supervisor and _home() is None:
        pytest.skip(
            "without control groups, a process that hides from everything is found by nobody"
        )
    nonce = f"ow{os.getpid()}x{time.monotonic_ns()}"
    victim = dispatch(tmp_path, nonce, "-", 1)
    assert victim.stdout.readline() == "all running\n"
    while (
        len((tmp_path / "witness").read_text().split() if (tmp_path / "witness").exists() else [])
        < 4
    ):
        time.sleep(0.01)
    (supervisor,) = Path(f"/proc/{victim.pid}/task/{victim.pid}/children").read_text().split()
    here = own_identity()
    kernel = Identity(
        here.hostname, here.machine_id, here.boot_id, victim.pid, start_of(victim.pid)
    )
    victim.kill()
    victim.wait()
    victim.stdout.close()
    if also_the_supervisor:
        os.kill(int(supervisor), signal.SIGKILL)
        recover(tmp_path, kernel)
    assert len(examine(tmp_path, nonce, victim.pid)) == 4
