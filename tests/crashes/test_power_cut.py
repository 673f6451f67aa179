"""Power cuts: a real ext4 on a loop device that is shut down in the middle, so that whatever was not synced is gone.

`make powercut ROUNDS=300 SEED=1 SLICE=1/3` is the long campaign. It needs root and loop devices."""

from __future__ import annotations

import fcntl
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

ROUNDS = int(os.environ.get("ONCEWARD_POWER_CUTS", "3"))
SEED = int(os.environ.get("ONCEWARD_SEED", "1"))
SLICE = os.environ.get("ONCEWARD_SLICE", "1/1")
RESULTS = os.environ.get("ONCEWARD_RESULTS", "")
_SHUTDOWN = 0x8004587D
"""EXT4_IOC_SHUTDOWN, from Linux' include/uapi/linux/ext4.h."""
_NO_LOG_FLUSH = 2

PLAN = """
import os
import time

from onceward import Plan

plan = Plan("cut", jobs=3)


def pay(task):
    with open(os.environ["BILL"], "a") as bill:
        bill.write(task.idempotency_key + "\\n")
    task.spend(usd="0.01", settled=True)


@plan.stage(targets=[f"t{n:02d}" for n in range(40)])
def fetch(task):
    pay(task)
    (task.out / "big").write_bytes(task.target.encode() * 9000)
    return {"target": task.target}


plan.command(
    "shape",
    ["sh", "-c", "head -c 30000 $ONCEWARD_INPUTS/fetch/*/big > $ONCEWARD_OUT/shaped"],
    needs="fetch",
)


@plan.stage(collect="shape")
def bind(task):
    return sum(value["shaped"].stat().st_size for value in task.inputs["shape"].values())
"""


class Disk:
    """A small ext4 in a file, whose power can be cut."""

    def __init__(self, folder: Path) -> None:
        self.image, self.place = folder / "disk.img", folder / "disk"
        self.place.mkdir()
        with self.image.open("wb") as file:
            file.truncate(256 * 1024 * 1024)
        subprocess.run(["mkfs.ext4", "-q", "-F", self.image], check=True)

    def mount(self) -> None:
        subprocess.run(["mount", "-o", "loop", self.image, self.place], check=True)

    def cut(self) -> None:
        """Drop everything that was not synced, at once; from now on every access fails."""
        descriptor = os.open(self.place, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(descriptor, _SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        finally:
            os.close(descriptor)

    def unmount(self) -> None:
        for _ in range(600):
            if subprocess.run(["umount", self.place], capture_output=True).returncode == 0:
                return
            time.sleep(0.1)
        raise AssertionError("somebody still uses the disk")


@pytest.fixture
def disk(tmp_path):
    if os.getuid() != 0 or not shutil.which("mkfs.ext4") or not Path("/dev/loop-control").exists():
        pytest.skip("power cuts need root, mkfs.ext4 and loop devices")
    try:
        found = Disk(tmp_path)
        found.mount()
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"cannot mount a disk here: {error}")
    yield found
    if os.path.ismount(found.place):
        found.unmount()


class Work:
    """Builds on that disk, as a person would run them, and what they were told."""

    def __init__(self, disk: Disk, outside: Path) -> None:
        self.disk, self.folder = disk, disk.place / "work"
        self.bill = outside / "bill"
        self.bill.touch()
        self.environment = {**os.environ, "BILL": str(self.bill)}
        self.folder.mkdir()
        (self.folder / "plan.py").write_text(PLAN)
        self.acknowledged: set[str] = set()
        self.build = ""
        subprocess.run(["sync"], check=True)

    def onceward(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "onceward", *argv],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
        )

    def go_on_until(self, acknowledged: int) -> bool:
        """Run or resume until so many more steps are acknowledged; whether the build came to its end before."""
        verb = ["resume", self.build] if self.build else ["run", "plan.py", "--no-reuse"]
        runner = subprocess.Popen(
            [sys.executable, "-m", "onceward", *verb, "--json"],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert runner.stdout is not None and runner.stderr is not None
        errors: list[str] = []
        reader = threading.Thread(target=lambda: errors.extend(runner.stderr or ()))
        reader.start()
        new, over = 0, False
        for line in runner.stdout:
            said = json.loads(line)
            if said["type"] == "build":
                self.build = said["build_id"]
            elif said["type"] == "step" and said["status"] == "SUCCESS":
                self.acknowledged.add(said["step"])
                new += 1
            elif said["type"] == "result":
                assert said["state"] == "SUCCESS", (said, errors)
                over = True
            if new >= acknowledged and not over:
                break
        if not over:
            assert new >= acknowledged, errors
            self.disk.cut()
        try:
            os.killpg(runner.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        runner.wait()
        reader.join()
        runner.stdout.close()
        runner.stderr.close()
        return over

    def restart(self) -> None:
        """The machine did not really start anew; what names its boot is made to say so."""
        mark = self.folder / ".onceward" / "streams" / ".watermark"
        if mark.exists() and mark.read_text():
            mark.write_text(f"{mark.read_text().split()[0]} another-boot")

    def judge(self) -> None:
        """After the power came back: everything that was acknowledged is there, whole, and proven."""
        found = self.onceward("verify", "--json")
        assert found.returncode == 0, found.stdout + found.stderr
        if not self.build:
            return
        status = json.loads(self.onceward("status", self.build, "--json").stdout)
        done = {
            f"{step['stage']}:{step['target']}"
            for step in status["steps"]
            if step["status"] in ("SUCCESS", "SKIPPED", "REUSED")
        }
        assert self.acknowledged <= done, sorted(self.acknowledged - done)
        if status["state"] == "SUCCESS":
            # The cut came after its last commit.
            self.build, self.acknowledged = "", set()


@pytest.mark.guarantee("G1")
@pytest.mark.guarantee("G20")
@pytest.mark.rule("B-12", "L-1")
@pytest.mark.timeout(3600)
def test_nothing_acknowledged_is_lost_in_a_power_cut(disk, tmp_path):
    number, count = (int(part) for part in SLICE.split("/"))
    dice = random.Random(f"{SEED}/{number}")
    work = Work(disk, tmp_path)
    cuts = builds = 0
    for _ in range(ROUNDS // count or 1):
        while work.go_on_until(dice.randint(1, 25)):
            builds += 1
            work.build, work.acknowledged = "", set()
        cuts += 1
        disk.unmount()
        disk.mount()
        work.restart()
        work.judge()
    # What was recorded is on the bill once; a call that was under way may be there once for each cut.
    again = sum(count - 1 for count in Counter(work.bill.read_text().split()).values())
    assert again <= 3 * cuts
    if RESULTS:
        commit = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True
        ).stdout.strip()
        with Path(RESULTS).open("a") as file:
            said = {"commit": commit, "seed": SEED, "slice": SLICE, "cuts": cuts, "builds": builds}
            file.write(json.dumps({**said, "lost": 0}) + "\n")


@pytest.mark.guarantee("G1")
@pytest.mark.rule("H-5")
@pytest.mark.timeout(600)
@pytest.mark.thorough
def test_a_change_that_was_cut_is_there_after_a_power_cut(disk, tmp_path):
    """The tree has a disk of its own: no commit of the store syncs it by the way."""
    tree, home, wanted = disk.place / "repo", tmp_path / "home", tmp_path / "wanted"
    names = [f"sub{n % 3}/f{n}.txt" for n in range(30)]
    for folder, text in ((tree, "old"), (wanted, "approved")):
        for name in names[:20] if folder == tree else names[5:]:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(f"{text} {name}\n" * 50)
    home.mkdir()
    subprocess.run(["sync"], check=True)

    def onceward(*argv: str) -> dict[str, object]:
        done = subprocess.run(
            [sys.executable, "-m", "onceward", *argv, "--json"],
            cwd=home,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    onceward("init")
    for name, role in (("rob", "reviewer"), ("vic", "verifier")):
        onceward("principals", "add", name, "--role", role)
    for moment in range(2):
        marked = onceward("change", "mark", "--tree", str(wanted), "--base", str(tree))
        entry, digest = str(marked["entry_id"]), str(marked["manifest"])
        onceward("change", "sweep")
        onceward("--as", "rob", "change", "review", entry, "--approve", "--digest", digest)
        assert onceward("change", "cut", entry)["status"] == "cut_applied"
        disk.cut()
        disk.unmount()
        disk.mount()
        here = sorted(str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file())
        assert here == sorted(names[5:]), "what was acknowledged as cut is there, and nothing else"
        assert all((tree / name).read_bytes() == (wanted / name).read_bytes() for name in here)
        assert onceward("--as", "vic", "change", "verify", entry)["status"] == "verified_complete"
        for name in names[10:]:
            (wanted / name).write_text(f"again {moment} {name}\n" * 5)
