"""What a person sees on a terminal: run, pause, crash, resume, status, why, spend, explain. Kept in `transcripts/`.

Write them anew with ONCEWARD_TRANSCRIPTS=1, and look at what changed."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import termios
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from terminal import TMUX, Terminal, plain
from typing_in import BIN, until

KEPT = Path(__file__).parent / "transcripts"
pytestmark = pytest.mark.skipif(
    TMUX is None, reason="tmux is not installed: no terminal to look at"
)
PLAN = """
import time

from onceward import Plan

plan = Plan("letters", budget={"usd": "0.05"}, config={"depth": 2}, jobs=1)


@plan.stage(targets={"glob": "in/*.txt"})
def read(task):
    task.progress(400, f"reading {task.target}")
    for _ in range(200):
        if (task.folder / "go").exists() or task.target != "in/c.txt":
            break
        task.check()
        time.sleep(0.05)
    task.spend(usd="0.02", tokens=100)
    return (task.folder / task.target).read_text()


@plan.stage(collect=read, targets=["all"])
def join(task):
    return "".join(task.inputs["read"].values())
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "in").mkdir()
    for name in "abcd":
        (tmp_path / "in" / f"{name}.txt").write_text(name)
    (tmp_path / "plan.py").write_text(PLAN)
    subprocess.run(
        [BIN / "onceward", "--as", "tester", "init"], cwd=tmp_path, check=True, capture_output=True
    )
    return tmp_path


class Transcript:
    """Screens as they came, compared with those that are kept."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.known = folder, {}

    def keep(self, name: str, screen: str) -> None:
        found = plain(screen, self.known) + "\n"
        file = KEPT / f"{name}.txt"
        if os.environ.get("ONCEWARD_TRANSCRIPTS"):
            KEPT.mkdir(exist_ok=True)
            file.write_text(found)
        assert found == file.read_text(), f"{name} looks different now"


def builds(folder: Path) -> list[str]:
    done = subprocess.run(
        [BIN / "onceward", "list"], cwd=folder, check=True, capture_output=True, text=True
    )
    return re.findall(r"bld_\S+", done.stdout)


@pytest.mark.rule("B-14", "I-1", "E-5")
def test_the_life_of_a_build_as_a_person_sees_it(folder):
    kept = Transcript(folder)
    with Terminal(folder) as terminal:
        (folder / "go").touch()
        kept.keep("1-dry-run", terminal.typed("onceward", "run", "plan.py", "--dry-run"))
        kept.keep("2-pause", paused := terminal.typed("onceward", "run", "plan.py"))
        (build,) = builds(folder)
        token = re.search(r"^[0-9a-f]{64}$", paused, re.MULTILINE)[0]
        kept.keep("3-explain-pause", terminal.typed("onceward", "explain", build))
        (folder / "go").unlink()
        terminal.typed(f"TOKEN={token} BUILD={build}")
        terminal.start("onceward resume $BUILD --token $TOKEN --budget usd=1.00")
        kept.keep("4-running", terminal.until("reading in/c.txt"))
        terminal.keys("C-z")
        terminal.until("Stopped")
        said = terminal.typed("kill -9 %1; wait %1")
        while "Killed" not in said:
            # The shell says so once it has seen it, and not again.
            said = terminal.typed("jobs")
        kept.keep("5-status-after-kill", terminal.typed("onceward", "status", build))
        (folder / "go").touch()
        kept.keep("6-resume", terminal.typed("onceward", "resume"))
        (folder / "in" / "b.txt").write_text("B")
        kept.keep("7-run-again", terminal.typed("onceward", "run", "plan.py", "--set", "depth=2"))
        kept.keep("8-why", terminal.typed("onceward", "why", "read:in/b.txt"))
        kept.keep("9-status", terminal.typed("onceward", "status", builds(folder)[0]))
        kept.keep("10-spend", terminal.typed("onceward", "spend", "--by", "stage"))
        kept.keep("11-explain-step", terminal.typed("onceward", "explain", "join"))


@pytest.mark.rule("B-14", "L-24")
def test_ctrl_c_says_what_is_being_stopped_and_how_to_go_on(folder):
    with Terminal(folder) as terminal:
        terminal.start("onceward", "run", "plan.py", "--budget", "usd=1.00")
        terminal.until("reading in/c.txt")
        terminal.keys("C-c")
        screen = terminal.end()
        (build,) = builds(folder)
        assert "stopping read:in/c.txt; press Ctrl-C again to stop immediately" in screen
        assert (
            f"next: onceward resume {build}" in screen
            and "STOPPED (as asked; it can be resumed)" in screen
        )
        Transcript(folder).keep("12-ctrl-c", screen)


MANY = """
from onceward import Plan

plan = Plan("many", jobs=2)


@plan.stage(targets=[f"t{n:05d}" for n in range(2000)])
def first(task):
    if task.target == "t00040":
        raise ValueError("this one fails")


for number in range(30):
    plan.stage(name=f"stage{number:02d}", after="first", targets=["x"])(lambda task: None)
"""


@pytest.mark.rule("B-14")
def test_many_steps_and_stages_are_drawn_on_one_screen_that_does_not_scroll_away(folder):
    (folder / "many.py").write_text(MANY)
    with Terminal(folder, height=20) as terminal:
        terminal.start("onceward", "run", "many.py", "--keep-going")
        terminal.until("steps/s")
        seen = []
        while (picture := terminal.screen()) and not picture.endswith("\n$"):
            seen.append(picture)
        screen = terminal.end(60)
    under_way = [picture for picture in seen if "steps/s" in picture]
    told = ["first:t00040 failed: ValueError: this one fails" in picture for picture in under_way]
    assert any(told) and told == sorted(told), "said once, it stays on the screen"
    for picture in under_way:
        lines = picture.splitlines()
        assert len(lines) <= 20
        assert sum(line.startswith("first ") for line in lines) == 1, picture
        assert "finished or not started" in picture
    assert sum(line.startswith("first ") for line in screen.splitlines()) == 1, screen
    assert "2,030 steps: 1,999 run, 1 failed, 30 blocked by that" in screen


def test_a_terminal_that_can_draw_nothing_gets_lines(folder):
    (folder / "go").touch()
    with Terminal(folder) as terminal:
        screen = terminal.typed(
            "env", "TERM=dumb", "onceward", "run", "plan.py", "--budget", "usd=1.00"
        )
    assert "[5/5] join:all success" in screen


@pytest.mark.rule("B-14")
def test_what_steps_print_stands_above_the_picture_or_goes_where_it_was_sent(folder):
    (folder / "loud.py").write_text(
        "from onceward import Plan\nplan = Plan('loud')\n@plan.stage\ndef work(task):\n    print('heard')\n"
    )
    with Terminal(folder) as terminal:
        screen = terminal.typed("onceward", "run", "loud.py")
        assert screen.splitlines().index("heard") < next(
            n for n, line in enumerate(screen.splitlines()) if line.startswith("work ")
        )
        terminal.typed("sh", "-c", "onceward run loud.py --force > heard")
    assert until(lambda: (folder / "heard").read_text()) == "heard\n"


@pytest.fixture
def drawn(folder):
    """A build of some seconds whose picture goes to a terminal that nobody looks at."""
    (folder / "steady.py").write_text(
        "import time\nfrom onceward import Plan\nplan = Plan('steady', jobs=2)\n"
        "@plan.stage(targets=[f't{n}' for n in range(60)])\ndef work(task):\n    time.sleep(0.1)\n"
        "    if task.target == 't0' and (task.folder / 'fail').exists():\n        raise ValueError('no')\n"
    )
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    env = {**os.environ, "TERM": "xterm-256color"}
    process = subprocess.Popen(
        [BIN / "onceward", "--as", "tester", "run", "steady.py", "--keep-going"],
        cwd=folder,
        env=env,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    yield process, ours
    if process.poll() is None:
        process.kill()
    process.wait()
    with suppress(OSError):
        os.close(ours)


def state(folder: Path) -> str:
    done = subprocess.run(
        [BIN / "onceward", "list", "--json"], cwd=folder, capture_output=True, text=True
    )
    found = json.loads(done.stdout or "[]")
    return found[0]["state"] if found else ""


@pytest.mark.rule("B-14", "L-24")
def test_a_terminal_that_stands_still_holds_up_no_build(folder, drawn):
    process, ours = drawn
    # Nobody reads: the terminal takes a few pictures and then no more.
    until(lambda: state(folder) == "SUCCESS", 30)
    reader = threading.Thread(target=lambda: drain(ours))
    reader.start()
    assert process.wait(600) == 0
    reader.join(5)


@pytest.mark.rule("B-14", "I-1")
@pytest.mark.parametrize("status", [0, 1])
def test_a_terminal_that_goes_away_changes_nothing(folder, drawn, status):
    process, ours = drawn
    if status:
        (folder / "fail").touch()
    until(lambda: state(folder) == "ACTIVE")
    os.close(ours)
    assert process.wait(600) == status
    assert state(folder) == ("FAILED" if status else "SUCCESS")


def drain(descriptor: int) -> None:
    with suppress(OSError):
        while os.read(descriptor, 4096):
            pass
