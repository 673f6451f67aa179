"""Command lines as a person types them, each in a folder and a store of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import forked
from onceward.processes.prints import at_work, step_threads

BIN = Path(sys.executable).parent


class Typed:
    """Runs `onceward` in one folder; started ones go on beside us."""

    def __init__(self, folder: Path, store_url: str) -> None:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("ONCEWARD_")}
        path = f"{BIN}:{os.environ['PATH']}"
        self.folder = folder
        self.env = {**clean, "PATH": path, "ONCEWARD_STORE": store_url, "ONCEWARD_AS": "tester"}

    def __call__(self, *argv, check=None, **words):
        done = forked.run(argv, cwd=self.folder, env=self.env, first=BIN, **words)
        if check is not None:
            assert done.returncode == check, done.stderr + done.stdout[-3000:]
        return done


_started: list[subprocess.Popen[str]] = []


def start(cli, *argv, lasting=False):
    """Something that goes on beside a test; what is lasting is ended by whoever started it."""
    process = subprocess.Popen(
        [BIN / "onceward", *argv],
        cwd=cli.folder,
        env=cli.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    if not lasting:
        _started.append(process)
    return process


def end_what_was_started():
    """A test that failed half-way leaves nobody waiting for a person."""
    while _started:
        process = _started.pop()
        if process.poll() is None:
            process.kill()
            process.communicate()


def until(true, seconds=600):
    deadline = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def on_its_own(act):
    """What `act` answers on a thread that is no step's, as another process would: a step signs for nobody."""

    def outside():
        at_work.set(None)
        step_threads.pop(threading.get_ident(), None)
        return act()

    with ThreadPoolExecutor(1) as own:
        return own.submit(outside).result()
