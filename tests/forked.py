"""`onceward` as a process of its own without waiting for Python to load: a server that has everything loaded forks it.

What it forks is real: own pid, environment, folder, streams and exit status. Only what Python decides when it starts
cannot be chosen; whoever sets that in the environment, or comes with others, gets a fresh interpreter."""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

from onceward.locks.identity import exe_sha256
from onceward.ui.cli.main import COMMANDS
from onceward.ui.cli.main import run as run_command

_EARLY = ("PYTHON", "LC_", "LANG")
_server: subprocess.Popen[str] | None = None


def run(argv, *, cwd, env, first="", input=None, timeout=600):
    """As `subprocess.run` of `onceward` with text pipes; `first` is where its own modules would be looked for."""
    argv = [str(word) for word in argv]
    alone = threading.current_thread() is threading.main_thread()
    if not alone or any(
        env.get(name) != os.environ.get(name)
        for name in {*env, *os.environ}
        if name.startswith(_EARLY)
    ):
        return subprocess.run(
            [sys.executable, "-m", "onceward", *argv],
            **{"cwd": cwd, "env": env, "input": input, "timeout": timeout},
            capture_output=True,
            text=True,
            check=False,
        )
    with tempfile.TemporaryDirectory(prefix="onceward-forked-") as folder:
        files = {name: str(Path(folder) / name) for name in ("in", "out", "err")}
        Path(files["in"]).write_text(input or "")
        order = {
            "argv": argv,
            "cwd": str(cwd),
            "env": dict(env),
            "first": str(first or cwd),
            **files,
        }
        status = _ask(order, timeout)
        out, err = (Path(files[name]).read_text() for name in ("out", "err"))
    return subprocess.CompletedProcess(argv, status, out, err)


def _ask(order, timeout):
    global _server
    if _server is None or _server.poll() is not None:
        _server = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
    _server.stdin.write(json.dumps({**order, "timeout": timeout}) + "\n")
    status = json.loads(_server.stdout.readline())
    if status is None:
        raise subprocess.TimeoutExpired(order["argv"], timeout)
    return status


def end():
    """The server goes when its input ends."""
    global _server
    if _server is not None:
        _server.stdin.close()
        _server.wait(600)
        _server.stdout.close()
        _server = None


def _serve():
    for module in {module for module, _ in COMMANDS.values()}:
        importlib.import_module(f"onceward.ui.cli.{module}")
    for module in (
        "onceward.workspace",
        "onceward.store.postgres",
        "onceward.running",
        "rich.live",
    ):
        importlib.import_module(module)
    exe_sha256()
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _live(order)
        print(json.dumps(_ended(pid, order["timeout"])), flush=True)


def _ended(pid, timeout):
    """How it ended; None if it had to be ended."""
    watched = os.pidfd_open(pid)
    ended = select.select([watched], [], [], timeout)[0]
    os.close(watched)
    if not ended:
        os.kill(pid, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return status if ended else None


def _live(order):
    status = 70
    try:
        flags = os.O_WRONLY | os.O_CREAT
        for number, name, how in ((0, "in", os.O_RDONLY), (1, "out", flags), (2, "err", flags)):
            descriptor = os.open(order[name], how, 0o600)
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.chdir(order["cwd"])
        os.environ.clear()
        os.environ.update(order["env"])
        time.tzset()
        sys.path[0] = order["first"]
        sys.argv = ["onceward", *order["argv"]]
        status = run_command(order["argv"])
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status)


if __name__ == "__main__":
    _serve()
