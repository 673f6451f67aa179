"""Warm processes that fork victims to be killed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@pytest.fixture
def executioner(request: pytest.FixtureRequest) -> Iterator[Callable[..., int]]:
    """Sends orders to the test module's `VICTIM` program and answers how each victim ended."""
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name(request.module.VICTIM))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def order(**words: object) -> int:
        process.stdin.write(json.dumps(words) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    yield order
    process.stdin.close()
    assert process.wait(600) == 0
    process.stdout.close()
