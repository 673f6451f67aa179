"""Kernel and supervisor killed together, as an ordinary user without control groups: who hides is found or doubted."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import processes_with
from typing_in import until

PROGRAM = str(Path(__file__).with_name("hidden_kernel.py"))
NOBODY = 65534
pytestmark = [pytest.mark.rule("C-20"), pytest.mark.guarantee("G11")]

SHELL = "setsid env -i sh -c 'trap \"\" TERM; echo $$ > {folder}/hidden; exec sleep {nonce}'"
# Closed to others of its own user as well: neither its environment nor its descriptors can be looked at.
UNDUMPABLE = """setsid env -i {python} -c '
import ctypes, os, time
ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
open("{folder}/hidden", "w").write(str(os.getpid()))
time.sleep({nonce})
'"""


@pytest.fixture
def as_user(tmp_path):
    """Run a program as an ordinary user: ourselves, or nobody where we are root."""
    folder = tmp_path / "home"
    folder.mkdir()
    if os.getuid() != 0:
        return folder, []
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("we are root, and without setpriv there is no way to be somebody else")
    os.chown(folder, NOBODY, NOBODY)
    # The interpreter and the test's folder may be root's own: passing through is all that is allowed.
    reads = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    who = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    return folder, [setpriv, *who, *reads]


def leave_hidden(as_user, hidden: str, nonce: str, *target: str) -> None:
    """Let a kernel start a command that hides, and kill it and its supervisor in one moment."""
    folder, user = as_user
    text = hidden.format(folder=folder, nonce=nonce, python=sys.executable)
    command = f"({text} </dev/null >/dev/null 2>&1 &); sleep 1000"
    victim = subprocess.Popen(
        [*user, sys.executable, PROGRAM, "run", str(folder), command, *target],
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
    )
    _, supervisor = json.loads(victim.stdout.readline())
    assert until(lambda: (folder / "hidden").exists() and (folder / "hidden").read_text())
    for number in (signal.SIGSTOP, signal.SIGKILL):
        # Stopped first, so that neither sees the other die.
        os.kill(supervisor, number)
        os.kill(victim.pid, number)
    victim.wait()
    victim.stdout.close()


def recover(as_user) -> dict:
    folder, user = as_user
    ran = subprocess.run(
        [*user, sys.executable, PROGRAM, "heir", str(folder)],
        stdout=subprocess.PIPE,
        check=True,
        cwd="/",
    )
    return json.loads(ran.stdout)


@pytest.mark.parametrize("target", [(), ("shared",)], ids=["no target", "target"])
def test_a_process_that_left_its_session_and_environment_is_found_by_its_descriptor(
    as_user, target
):
    nonce = f"1000.{os.getpid()}{len(target)}"
    leave_hidden(as_user, SHELL, nonce, *target)
    assert processes_with(nonce), "nobody hid"
    found = recover(as_user)
    left = processes_with(nonce)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []
    assert found["unconfirmed"] == 0
    assert "death_unconfirmed" not in found["detail"]
    assert found["target_free"]


@pytest.mark.rule("L-4")
@pytest.mark.parametrize("target", [(), ("shared",)], ids=["no target", "target"])
@pytest.mark.one_in(2)
def test_a_process_that_cannot_be_found_is_not_recorded_as_dead_and_keeps_the_target(
    as_user, target
):
    nonce = f"2000.{os.getpid()}{len(target)}"
    leave_hidden(as_user, UNDUMPABLE, nonce, *target)
    hidden = int((as_user[0] / "hidden").read_text())
    try:
        found = recover(as_user)
        os.kill(hidden, 0)
    finally:
        os.kill(hidden, signal.SIGKILL)
    assert found["unconfirmed"] == 1
    assert "still has" in found["detail"]["death_unconfirmed"]
    assert found["target_free"] == (not target)
