"""A scene in which much happened, made once and copied; and its rows without anything that protects them."""

from __future__ import annotations

import pytest

import scene as scenes
from sites import hook, kernel, site, workspace

__all__ = ["hook", "kernel", "site", "workspace"]


@pytest.fixture(scope="session")
def bare(scene):
    found = scenes.Bare(scene)
    yield found
    found.close()
