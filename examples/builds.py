"""A build that is killed with -9 in the middle, resumed, and paused by its budget. Run it with `make demo`.

Everything happens in a folder that is removed at the end.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
BOLD, DIM, OFF = ("\033[1m", "\033[2m", "\033[0m") if sys.stdout.isatty() else ("",) * 3


def show(*argv: str, folder: Path, answers: int = 0) -> None:
    print(f"{BOLD}$ onceward {' '.join(argv)}{OFF}", flush=True)
    command = [sys.executable, "-m", "onceward", *argv]
    code = subprocess.run(command, cwd=folder, stderr=subprocess.STDOUT, check=False).returncode
    assert code == answers, f"onceward {argv[0]} answered {code}, not {answers}"


def ask(*argv: str, folder: Path) -> object:
    argv = (sys.executable, "-m", "onceward", *argv, "--json")
    return json.loads(subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=True).stdout)


def kill_in_the_middle(folder: Path, after: int) -> None:
    """Run the plan, and end it without a word once some steps are done."""
    print(f"{BOLD}$ onceward run catalogue.py &{OFF}", flush=True)
    kernel = subprocess.Popen(
        [sys.executable, "-m", "onceward", "run", "catalogue.py"], cwd=folder, stderr=subprocess.PIPE, text=True
    )
    for line in kernel.stderr or ():
        print(line, end="", flush=True)
        if line.startswith(f"[{after}/"):
            break
    print(f"{BOLD}$ kill -9 {kernel.pid}{OFF}", flush=True)
    kernel.send_signal(signal.SIGKILL)
    kernel.communicate()


def main() -> None:
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with tempfile.TemporaryDirectory(prefix="onceward-demo-") as name:
        folder = Path(name)
        shutil.copy(HERE / "catalogue.py", folder)
        print(f"\n{BOLD}A build of 13 steps, each of which costs money, is killed with -9{OFF}", flush=True)
        kill_in_the_middle(folder, after=4)
        (build,) = ask("list", folder=folder)
        print(f"\n{DIM}It is resumed: what was paid for and recorded is not done again{OFF}", flush=True)
        show("resume", build["build_id"], folder=folder)
        (build,) = ask("list", folder=folder)
        print(
            f"{DIM}0.42 usd is what the whole plan costs; more was paid only for what was in flight when it died{OFF}\n"
        )
        assert build["state"] == "SUCCESS" and float(build["cost_usd"]) <= 0.42 + 2 * 0.05, build

        print(f"{BOLD}Run again, nothing is left to do: every result is taken over by its content{OFF}", flush=True)
        show("run", "catalogue.py", folder=folder)

        print(f"\n{BOLD}With too little money it stops before it overspends, and asks a person{OFF}", flush=True)
        show("run", "catalogue.py", "--no-reuse", "--budget", "usd=0.22", folder=folder, answers=3)
        paused = ask("list", folder=folder)[0]
        print(f"{BOLD}$ onceward confirm {paused['build_id']}{OFF}", flush=True)
        token = ask("confirm", paused["build_id"], folder=folder)["confirmation_token"]
        words = ("resume", paused["build_id"], "--token", token, "--budget", "usd=1.00")
        show(*words, folder=folder)
        show("doctor", folder=folder)


if __name__ == "__main__":
    main()
