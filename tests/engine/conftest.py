"""A workspace of its own and its kernel, for tests of the engine."""

from __future__ import annotations

import pytest

from onceward.wiring import Workspace


@pytest.fixture
def workspace(store_url, tmp_path):
    workspace = Workspace(tmp_path / ".onceward", store_url=store_url, principal="tester")
    workspace.create()
    return workspace


@pytest.fixture
def kernel(workspace):
    kernel = workspace.kernel()
    kernel.processes.grace = 0.3
    yield kernel
    kernel.close()
