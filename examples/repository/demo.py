"""An agent edits a repository, safely: it proposes, one person approves exactly that, another looks at what was done.

Everything happens in a folder that is removed at the end: python examples/repository/demo.py
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
BOLD, GREEN, OFF = ("\033[1m", "\033[32m", "\033[0m") if sys.stdout.isatty() else ("",) * 3


class Demo:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def show(self, *argv: str, exits: int = 0) -> None:
        print(f"{GREEN}$ onceward {' '.join(argv)}{OFF}", flush=True)
        command = [sys.executable, "-m", "onceward", *argv]
        answered = subprocess.run(
            command, cwd=self.folder, stderr=subprocess.STDOUT, check=False
        ).returncode
        assert answered == exits, f"onceward {argv[0]} answered {answered}"

    def ask(self, *argv: str) -> dict:
        command = [sys.executable, "-m", "onceward", *argv, "--json"]
        return json.loads(
            subprocess.run(command, cwd=self.folder, capture_output=True, check=True).stdout
        )

    def say(self, text: str) -> None:
        print(f"\n{BOLD}{text}{OFF}", flush=True)

    def change(self, reason: str) -> str:
        """From what the newest build made to a cut that rob approved."""
        check = f"{sys.executable} check.py"
        self.show(
            "change",
            "mark",
            "--build",
            "latest",
            "--into",
            "repo",
            "--reason",
            reason,
            "--check",
            check,
        )
        found = self.ask("change", "show", "latest")
        self.show("change", "sweep")
        self.show(
            "--as",
            "rob",
            "change",
            "review",
            "latest",
            "--approve",
            "--digest",
            found["manifest"][:12],
        )
        self.show("change", "cut", "latest")
        return found["entry_id"]

    def run(self) -> None:
        self.say(
            "A careless agent edits a repository. It is paid, it proposes, rob approves, it is cut. Then vic looks."
        )
        for name, role in (("rob", "reviewer"), ("vic", "verifier")):
            self.show("init") if name == "rob" else None
            self.show("principals", "add", name, "--role", role)
        plan = self.folder / "plan.toml"
        careful = plan.read_text()
        plan.write_text(careful.replace('"agent.py"]\ninputs', '"agent.py", "--careless"]\ninputs'))
        self.show("run", "plan.toml")
        entry = self.change("prices are wrong")
        self.show("--as", "vic", "change", "verify", entry, exits=1)
        self.say(
            "The check failed: what was changed is back as it was, and an entry of its own asks what to do."
        )
        self.show("change", "list")
        self.show("change", "abandon", "latest", "--reason", "the agent has another try")
        self.say("The agent tries again.")
        plan.write_text(careful)
        self.show("run", "plan.toml")
        entry = self.change("prices are wrong, second try")
        self.show("--as", "vic", "change", "verify", entry)
        self.say("All of it, for anybody to check.")
        self.show("change", "history", entry)
        self.show("export", entry, "--out", "proof.tar")
        self.show("verify", "proof.tar")
        self.show("verify")


def main() -> None:
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    with tempfile.TemporaryDirectory(prefix="onceward-demo-") as name:
        for part in ("agent.py", "plan.toml", "repo"):
            source = HERE / part
            shutil.copytree(source, Path(name) / part) if source.is_dir() else shutil.copy(
                source, Path(name)
            )
        Demo(Path(name)).run()


if __name__ == "__main__":
    main()
