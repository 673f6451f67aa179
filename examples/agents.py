"""Pretend agents under Onceward: one runs out of budget, one is cut off by kill -9 of its kernel. Part of `make demo`.

Everything happens in a folder that is removed at the end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BOLD, DIM, OFF = ("\033[1m", "\033[2m", "\033[0m") if sys.stdout.isatty() else ("",) * 3

AGENT = """\
echo "agent: reading the task"
onceward report --tokens 700 --note "read the task" || exit 1
echo "agent: writing the patch"
onceward report --tokens 700 --note "wrote the patch" || { echo "agent: no budget left, stopping"; exit 1; }
"""
STRAY = """\
echo "agent: started a helper in the background"
(setsid sleep 7777 &)
echo "agent: thinking"
exec sleep 7777
"""


def show(*argv: str, folder: Path) -> int:
    print(f"{BOLD}$ onceward {' '.join(argv)}{OFF}", flush=True)
    command = [sys.executable, "-m", "onceward", *argv]
    return subprocess.run(command, cwd=folder, stderr=subprocess.STDOUT, check=False).returncode


def sleepers() -> list[str]:
    """Processes of the second agent that are still there."""
    return [p.name for p in Path("/proc").glob("[0-9]*") if b"sleep\x007777\x00" in _command(p)]


def _command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def main() -> None:
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with tempfile.TemporaryDirectory(prefix="onceward-demo-") as name:
        folder = Path(name)
        (folder / "agent.sh").write_text(AGENT)
        (folder / "stray.sh").write_text(STRAY)
        print(f"\n{BOLD}An agent with a budget of 1000 tokens{OFF}", flush=True)
        subprocess.run(
            [sys.executable, "-m", "onceward", "init"],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            check=True,
        )
        asked = (
            "--session",
            "fix-42",
            "--new",
            "--budget",
            "tokens=1000",
            "--timeout",
            "60",
            "--target",
            "repo",
        )
        code = show("spawn", *asked, "--", "sh", "agent.sh", folder=folder)
        print(
            f"{DIM}exit {code}: the second debit did not fit, so it was refused before anything was spent{OFF}\n"
        )

        print(f"{BOLD}An agent whose kernel is killed with -9{OFF}", flush=True)
        argv = ("spawn", "--session", "fix-43", "--new", "--", "sh", "stray.sh")
        print(f"{BOLD}$ onceward {' '.join(argv)} &{OFF}", flush=True)
        kernel = subprocess.Popen(
            [sys.executable, "-m", "onceward", *argv], cwd=folder, stderr=subprocess.STDOUT
        )
        while len(sleepers()) < 2:
            time.sleep(0.05)
        print(f"{BOLD}$ kill -9 {kernel.pid}{OFF}", flush=True)
        kernel.send_signal(signal.SIGKILL)
        kernel.wait()
        while sleepers():
            time.sleep(0.05)
        print(f"{DIM}the agent and its helper in the background are gone too{OFF}\n")
        show("spawn", "--session", "fix-43", "--", "echo", "agent: a new attempt", folder=folder)
        show("status", "fix-43", folder=folder)
        show("doctor", folder=folder)


if __name__ == "__main__":
    main()
