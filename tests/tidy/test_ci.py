"""What CI does before and after the tests: it installs what it may, and names what was skipped."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STEPS = ["make check", "make test", "make thorough", "make demo"]


class Machine:
    """A machine whose programs only write down that they were called."""

    def __init__(self, folder):
        self.bin, self.calls = folder / "bin", folder / "calls"
        self.bin.mkdir()
        for name in ("bash", "dirname", "env"):
            (self.bin / name).symlink_to(shutil.which(name))
        self.program("make")
        self.program("timeout", 'shift; exec "$@"')

    def program(self, name, then="exit 0"):
        path = self.bin / name
        path.write_text(f'#!{self.bin}/bash\necho "{name} $*" >> {self.calls}\n{then}\n')
        path.chmod(0o755)

    def run(self):
        done = subprocess.run(
            [ROOT / ".ci" / "run"],
            env={"PATH": str(self.bin)},
            capture_output=True,
            text=True,
            check=False,
        )
        calls = self.calls.read_text().splitlines()
        return done, [call for call in calls if not call.startswith(("timeout ", "id "))]


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


@pytest.mark.parametrize("works", [True, False])
def test_ci_installs_the_browser_and_the_terminal_where_it_may_and_never_fails_for_it(
    machine, works
):
    machine.program("id", "echo 0")
    machine.program("apt-get", "exit 0" if works else "exit 100")
    done, calls = machine.run()
    assert done.returncode == 0 and calls[-4:] == STEPS, done.stderr
    installs = [call.split()[-1] for call in calls if call.startswith("apt-get install")]
    assert installs == ["chromium", "tmux"]
    assert ("could not install chromium" in done.stdout) != works


def test_ci_installs_nothing_that_is_there(machine):
    machine.program("id", "echo 0")
    for name in ("apt-get", "chromium", "tmux"):
        machine.program(name)
    done, calls = machine.run()
    assert done.returncode == 0 and calls == STEPS


@pytest.mark.parametrize("lacks", ["root", "apt-get"])
def test_ci_goes_on_where_it_may_install_nothing(machine, lacks):
    machine.program("id", "echo 1000" if lacks == "root" else "echo 0")
    if lacks == "root":
        machine.program("apt-get")
    done, calls = machine.run()
    assert done.returncode == 0 and calls == STEPS
    assert "not ours to install: chromium tmux" in done.stdout


@pytest.mark.thorough
def test_a_test_run_names_at_its_end_what_was_skipped_and_why(tmp_path):
    (tmp_path / "test_some.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('n', [1, 2])\n"
        "def test_one(n):\n    pytest.skip('there is no sea here')\n"
        "@pytest.mark.skip(reason='too cold')\n"
        "def test_two():\n    pass\n"
        "def test_three():\n    pass\n"
    )
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path / "conftest.py")
    path = os.pathsep.join([str(ROOT / "tests"), str(ROOT / "tools")])
    words = ["-q", "-p", "no:cacheprovider", "-n", "2", "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "ONCEWARD_PART": "all"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = done.stdout[done.stdout.index("= skipped =") :].splitlines()
    assert told[1:6] == [
        "there is no sea here:",
        "  test_some.py::test_one[1]",
        "  test_some.py::test_one[2]",
        "too cold:",
        "  test_some.py::test_two",
    ]
