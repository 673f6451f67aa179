"""A real terminal for tests: tmux, what is typed into it, and what then stands on the screen."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import time
import uuid
from pathlib import Path

from typing_in import BIN

TMUX = shutil.which("tmux")


class Terminal:
    def __init__(
        self, folder: Path, *, width: int = 120, height: int = 45, prompt: str = "$ "
    ) -> None:
        clean = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("ONCEWARD_", "TMUX", "NO_COLOR"))
        }
        env = {**clean, "PATH": f"{BIN}:{os.environ['PATH']}", "TERM": "xterm-256color"}
        env |= {"LC_ALL": "C.UTF-8", "ONCEWARD_AS": "tester", "HISTFILE": ""}
        self._prompt = prompt
        self._server = [
            TMUX or "tmux",
            "-u",
            "-f",
            "/dev/null",
            "-L",
            f"onceward-{uuid.uuid4().hex[:12]}",
        ]
        size = ("-x", str(width), "-y", str(height))
        # The prompt is given here: bash takes none from the environment.
        shell = f"bash --noprofile --rcfile <(echo {shlex.quote(f'PS1={shlex.quote(prompt)}')})"
        subprocess.run(
            [*self._server, "new-session", "-d", "-s", "s", *size, f"bash -c {shlex.quote(shell)}"],
            cwd=folder,
            env=env,
            check=True,
        )
        try:
            self._wait(lambda: self.screen() == prompt.rstrip())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        subprocess.run([*self._server, "kill-server"], check=False, capture_output=True)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def keys(self, *keys: str) -> None:
        subprocess.run([*self._server, "send-keys", "-t", "s", *keys], check=True)

    def screen(self, *, colours: bool = False) -> str:
        """What stands there now."""
        also = ["-e"] if colours else []
        done = subprocess.run(
            [*self._server, "capture-pane", "-p", *also, "-t", "s"],
            check=True,
            capture_output=True,
            text=True,
        )
        return "\n".join(line.rstrip() for line in done.stdout.splitlines()).rstrip()

    def start(self, *words: str) -> None:
        """Type a command on a clean screen and press return; one word is typed as it is."""
        self.keys("-R", "C-l")
        subprocess.run([*self._server, "clear-history", "-t", "s"], check=True)
        self.keys("-l", words[0] if len(words) == 1 else shlex.join(words))
        self.keys("Enter")

    def end(self, seconds: float = 600) -> str:
        """What stands there once the command has ended, without the prompt."""
        self._wait(lambda: self.screen().endswith("\n" + self._prompt.rstrip()), seconds)
        return self.screen().rsplit("\n", 1)[0]

    def typed(self, *words: str) -> str:
        self.start(*words)
        return self.end()

    def until(self, text: str, seconds: float = 600) -> str:
        self._wait(lambda: text in self.screen(), seconds)
        return self.screen()

    def _wait(self, true, seconds: float = 600) -> None:
        deadline = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < deadline, self.screen()
            time.sleep(0.03)


def plain(text: str, known: dict[str, str]) -> str:
    """A screen without what differs from run to run: ids by their order, times, rates, digests."""

    def named(found: re.Match[str]) -> str:
        kind = found[1]
        return known.setdefault(
            found[0], f"{kind}_{sum(name.startswith(kind) for name in known.values()) + 1}"
        )

    text = re.sub(r"\b(bld|chd)_[0-9a-f-]{36}", named, text)
    text = re.sub(r"\b[0-9a-f]{64}\b", "DIGEST", text)
    text = re.sub(r"\b[0-9a-f]{12}\b", "DIGEST", text)
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", "TIME", text)
    text = re.sub(r"\b\d+\.\d steps/(s|min)", "RATE", text)
    text = re.sub(r"\b\d+ seconds of work", "N seconds of work", text)
    text = re.sub(r"duration_secs \d+", "duration_secs N", text)
    text = re.sub(r"about (\d+m )?\d+s left", "about N left", text)
    text = re.sub(r"\b\d+\.\ds\b|\b(\d+m )?\d+s\b", "Ns", text)
    return re.sub(r" +$", "", text, flags=re.MULTILINE)
