"""The command line is the same on either store: what stands or falls with it is tried on both, the rest on one."""

from __future__ import annotations

import pytest

from conftest import KINDS


@pytest.fixture
def kind():
    return "sqlite"


def pytest_generate_tests(metafunc):
    if metafunc.definition.get_closest_marker("both_stores"):
        metafunc.parametrize("kind", KINDS)
