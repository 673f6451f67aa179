"""Installed as people do: a wheel, a tool of its own, shell completion; and what the wrong system is told."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from typing_in import BIN, Typed

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The wheel, built from this tree, installed where nothing else of ours is."""
    place = tmp_path_factory.mktemp("tool")
    tree = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", ".onceward")
    shutil.copytree(ROOT, place / "tree", ignore=tree)
    uv = [BIN / "uv", "--quiet"]
    subprocess.run(
        [*uv, "build", "--wheel", "--out-dir", place / "dist"],
        cwd=place / "tree",
        check=True,
        timeout=100,
    )
    (wheel,) = (place / "dist").glob("*.whl")
    shutil.rmtree(place / "tree")
    env = {**os.environ, "UV_TOOL_DIR": str(place / "tools"), "UV_TOOL_BIN_DIR": str(place / "bin")}
    subprocess.run(
        [*uv, "tool", "install", "--python", sys.executable, wheel],
        env=env,
        cwd=place,
        check=True,
        timeout=100,
    )
    return place / "bin"


@pytest.mark.rule("I-1")
def test_the_wheel_runs_a_plan_where_it_was_installed(installed, tmp_path):
    shutil.copytree(ROOT / "examples" / "shell", tmp_path / "shell")
    clean = {"PATH": f"{installed}:/usr/bin:/bin", "HOME": str(tmp_path)}

    def typed(*words):
        argv = [installed / "onceward", *words]
        return subprocess.run(
            argv, cwd=tmp_path / "shell", env=clean, capture_output=True, text=True, timeout=60
        )

    assert "4 steps: 4 run" in typed("run", "plan.toml").stderr
    checked = typed("doctor").stdout
    assert "chains whole, states agree" in checked and f"{installed}/onceward" in checked
    # What is not needed for SQLite is not installed, and that is said.
    assert "no driver: pip install 'psycopg[binary]'" in checked
    refused = typed("--store", "postgresql://nobody@localhost/none", "list")
    assert refused.returncode == 2 and "the PostgreSQL driver is not installed" in refused.stderr


@pytest.mark.rule("I-1", "I-4")
def test_the_server_is_part_of_the_default_install(installed, tmp_path):
    clean = {"PATH": f"{installed}:/usr/bin:/bin", "HOME": str(tmp_path)}
    process = subprocess.Popen(
        [installed / "onceward", "serve", "--port", "0", "--json"],
        cwd=tmp_path,
        env=clean,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        with urlopen(json.loads(line)["link"]) as page:  # signs in, and leads to the first page
            assert page.status == 200 and b"<html" in page.read()
    finally:
        process.terminate()
        process.communicate(timeout=600)
    assert process.returncode == 0


@pytest.mark.rule("I-1")
def test_the_shell_completes_commands_options_files_and_builds(tmp_path):
    cli = Typed(tmp_path, "sqlite")
    shutil.copytree(ROOT / "examples" / "shell", tmp_path, dirs_exist_ok=True)

    def offered(words):
        cli.env |= {
            "COMP_WORDS": words,
            "COMP_CWORD": str(words.count(" ")),
            "_ONCEWARD_COMPLETE": "bash_complete",
        }
        found = cli(check=0).stdout.split()
        for name in ("COMP_WORDS", "COMP_CWORD", "_ONCEWARD_COMPLETE"):
            del cli.env[name]
        return found

    assert offered("onceward wh") == ["plain,why"]
    assert offered("onceward run --dr") == ["plain,--dry-run"]
    assert offered("onceward run pl") == ["file,pl"]
    assert offered("onceward explain bld_") == []
    cli("run", "plan.toml", check=0)
    (build,) = offered("onceward explain bld_")
    assert build.startswith("plain,bld_") and offered("onceward output bld_") == [build]


def test_windows_is_told_where_to_go():
    script = "import sys; sys.platform = 'win32'; import onceward"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 1 and "use it inside WSL 2" in done.stderr
