"""The first example, killed with -9 half-way and resumed. Run it with `make demo`.

Everything happens in a folder that is removed at the end. Set ONCEWARD_DEMO=FOLDER to keep it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from hashlib import sha256
from pathlib import Path

HERE = Path(__file__).resolve().parent
BOLD, DIM, GREEN, OFF = (
    ("\033[1m", "\033[2m", "\033[32m", "\033[0m") if sys.stdout.isatty() else ("",) * 4
)


class Demo:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bill = folder / "bill.ndjson"

    def say(self, text: str) -> None:
        print(f"\n{BOLD}{text}{OFF}", flush=True)

    def typed(self, *argv: str) -> subprocess.Popen[bytes]:
        print(f"{GREEN}$ onceward {' '.join(argv)}{OFF}", flush=True)
        return subprocess.Popen(
            [sys.executable, "-m", "onceward", *argv], cwd=self.folder, stderr=subprocess.STDOUT
        )

    def show(self, *argv: str) -> None:
        answered = self.typed(*argv).wait()
        assert answered == 0, f"onceward {argv[0]} answered {answered}"

    def ask(self, *argv: str) -> dict:
        argv = (sys.executable, "-m", "onceward", *argv, "--json")
        done = subprocess.run(argv, cwd=self.folder, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    def charges(self) -> list[dict]:
        return (
            [json.loads(line) for line in self.bill.read_text().splitlines()]
            if self.bill.exists()
            else []
        )

    def recorded(self) -> set[str]:
        """The keys of the calls whose answers are recorded: nobody may pay for these again."""
        return {
            sha256(
                "|".join((build, step["stage"], step["target"], step["context_hash"])).encode()
            ).hexdigest()
            for build in [self.ask("list")[0]["build_id"]]
            for step in self.ask("status", build)["steps"]
            if step["status"] == "SUCCESS"
        }

    def kill_half_way(self) -> None:
        """Run the plan, and end it without a word while two calls are under way."""
        kernel = self.typed("run", "plan.py")
        while len(self.charges()) < 10:
            assert kernel.poll() is None, "it ended before it could be killed"
            time.sleep(0.02)
        time.sleep(0.2)
        kernel.send_signal(signal.SIGKILL)
        kernel.wait()
        print(f"\n{GREEN}$ kill -9 {kernel.pid}{OFF}", flush=True)

    def compare_bills(self, questions: int, kept: set[str]) -> None:
        """The model charges every call. What was recorded before the kill must stand on its bill once; a call that was
        under way in that moment may stand there twice, for its answer died with the process."""
        charges = self.charges()
        paid = sum(round(float(charge["usd"]) * 1_000_000) for charge in charges)
        spent = sum(group["lanes"].get("usd_micros", 0) for group in self.ask("spend")["groups"])
        calls = Counter(charge["key"] for charge in charges)
        again = [key for key, count in calls.items() if count > 1]
        print(
            f"the model's own bill: {len(charges)} calls for {questions} questions,"
            f" {paid / 1_000_000:.4f} usd; what onceward counted: {spent / 1_000_000:.4f} usd"
        )
        print(
            f"recorded answers paid for twice: {len(kept & set(again))} of {len(kept)};"
            f" calls cut off by the kill and made again: {len(again)}",
            flush=True,
        )
        assert len(calls) == questions, "a question was never asked"
        assert not kept & set(again), "a recorded answer was paid for twice"
        assert len(again) <= 2, "more was asked again than was under way"
        assert spent <= paid, "more was counted than was charged"

    def run(self) -> None:
        self.say("Eight texts go to a model that costs money: 17 steps. Half-way, it is killed.")
        self.kill_half_way()
        kept = self.recorded()
        self.say("It is resumed. What was paid for is kept; only the rest is done.")
        self.show("resume")
        self.compare_bills(16, kept)
        self.say("Run again, there is nothing left to do or to pay.")
        self.show("run", "plan.py")
        self.say("One text changes. What would that cost, and why?")
        text = self.folder / "texts" / "dunes.md"
        text.write_text(
            text.read_text().replace(
                "A dune is wind made visible.", "A dune is a slow wave of sand."
            )
        )
        self.show("run", "plan.py", "--dry-run")
        self.show("run", "plan.py")
        self.show("why", "summarise:texts/dunes.md")
        self.compare_bills(18, kept)
        self.say(
            "What it made, with a manifest of every byte, and the evidence behind it, for anybody to check."
        )
        self.show("output", "--project", "texts", "--to", "handed-on")
        check = (
            "sha256sum --check --quiet SHA256SUMS && echo 'every file is what the manifest says'"
        )
        print(f"{GREEN}$ cd handed-on; {check}{OFF}", flush=True)
        subprocess.run(["sh", "-c", check], cwd=self.folder / "handed-on", check=True)
        self.show("export", "latest", "--out", "proof.tar")
        self.show("verify", "proof.tar")
        self.show("verify")
        print(
            f"\n{DIM}The plan is 35 lines: examples/documents/plan.py. Now write your own: see README.md{OFF}"
        )


def main() -> None:
    kept = os.environ.get("ONCEWARD_DEMO")
    name = Path(kept) if kept else Path(tempfile.mkdtemp(prefix="onceward-demo-"))
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    try:
        shutil.copytree(
            HERE / "documents",
            name,
            dirs_exist_ok=True,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        Demo(name).run()
    finally:
        if not kept:
            shutil.rmtree(name, ignore_errors=True)


if __name__ == "__main__":
    main()
