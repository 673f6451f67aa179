"""A scene in which much happened, made once and copied; and its rows without anything that protects them."""

from __future__ import annotations

import os
import uuid

import pytest

import scene as scenes
from conftest import KINDS, schema_url
from sites import hook, kernel, site, workspace

__all__ = ["hook", "kernel", "site", "workspace"]


@pytest.fixture(scope="session")
def template(tmp_path_factory):
    base = tmp_path_factory.getbasetemp()
    return scenes.template(base.parent if "PYTEST_XDIST_WORKER" in os.environ else base)


@pytest.fixture(scope="session", params=KINDS)
def scene(request, template, tmp_path_factory):
    url = "sqlite"
    if request.param == "postgresql":
        url = schema_url(request.getfixturevalue("postgres_url"), f"scene{uuid.uuid4().hex[:12]}")
    return scenes.copied(template, tmp_path_factory.mktemp("scene"), url)


@pytest.fixture(scope="session")
def bare(scene):
    found = scenes.Bare(scene)
    yield found
    found.close()
