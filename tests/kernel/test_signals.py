"""A kernel that is asked to stop ends its children, says so of its build, and gives the workspace back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from helpers import assert_sound, get, processes_with
from onceward.kernel.signals import Signals
from onceward.kernel.tenure import holder
from onceward.store.tables.events import events_of
from onceward.workspace import Workspace


@pytest.mark.rule("L-24")
@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ([signal.SIGTERM], 143),
        ([signal.SIGINT], 130),
        ([signal.SIGTERM, signal.SIGTERM, signal.SIGINT], 143),
        ([signal.SIGINT, signal.SIGINT, signal.SIGINT, signal.SIGTERM], 130),
    ],
)
def test_a_kernel_that_is_asked_to_stop_stops_well(store_url, tmp_path, sent, status):
    nonce = f"ow{os.getpid()}x{time.monotonic_ns()}"
    folder = tmp_path / ".onceward"
    program = str(Path(__file__).with_name("working_kernel.py"))
    kernel = subprocess.Popen(
        [sys.executable, program, str(folder), store_url, nonce], stdout=subprocess.PIPE, text=True
    )
    build_id = kernel.stdout.readline().split()[1]
    for number in sent:
        kernel.send_signal(number)
        time.sleep(0.05)
    assert kernel.wait(600) == status
    kernel.stdout.close()
    assert processes_with(nonce) == []
    store = Workspace(folder, store_url=store_url, principal="tester").store()
    assert get(store, build_id).state == "CRASHED"
    assert holder(store) is None
    with store.read() as rows:
        last = list(events_of(rows, f"session:{build_id}"))[-1]
        assert b'"reason":"crash_detected"' in last.body
        assert_sound(rows)
    store.close()


@pytest.mark.rule("L-24")
def test_signals_are_handled_as_before_when_the_work_is_over():
    before = signal.getsignal(signal.SIGTERM)
    stop = threading.Event()
    with Signals(stop) as signals:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(600)
    assert signals.exit_status == 143
    assert signal.getsignal(signal.SIGTERM) is before
