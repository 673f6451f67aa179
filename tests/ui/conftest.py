"""The command line is the same on either store: what stands or falls with it is tried on both, the rest on one."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

import forked
from conftest import KINDS


@pytest.fixture
def kind():
    return "sqlite"


def pytest_generate_tests(metafunc):
    if metafunc.definition.get_closest_marker("both_stores"):
        metafunc.parametrize("kind", KINDS)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path


class Ran:
    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.status, self.out, self.err = done.returncode, done.stdout, done.stderr

    @property
    def json(self):
        return json.loads(self.out)


@pytest.fixture
def onceward(place, store_url):
    """Runs the real program in a folder of its own, on the store under test."""

    def run(*words: str, stdin: str | None = None, **environment: str) -> Ran:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("ONCEWARD_")}
        return Ran(
            forked.run(
                words,
                cwd=place,
                input=stdin,
                env={**clean, "ONCEWARD_STORE": store_url, **environment},
            )
        )

    return run
