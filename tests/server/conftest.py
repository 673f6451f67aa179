"""A server of a workspace in which much happened."""

from __future__ import annotations

import json
import signal
import uuid

import pytest

from conftest import KINDS, schema_url
from onceward.client import Client
from scene import copied
from server.browsing import Tab, browsers
from typing_in import Typed, start


class Running:
    """A server that runs, and who may come."""

    def __init__(self, scene, *options, lasting=False):
        self.scene, self.lasting = scene, lasting
        self.cli = Typed(scene.folder.parent, scene.settings.store.url)
        self.options = options
        self.start()

    def start(self):
        port = getattr(self, "url", ":0").rsplit(":", 1)[1]
        self.process = start(
            self.cli, "serve", "--port", port, "--json", *self.options, lasting=self.lasting
        )
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        said = json.loads(line)
        self.url, self.link = said["url"], said["link"]
        self.client = Client.here(self.scene.folder)

    @property
    def ids(self):
        return self.scene.ids

    def kill(self):
        """With -9, and another one at the same place at once."""
        self.client.close()
        self.process.kill()
        self.process.communicate()
        self.start()

    def stop(self):
        self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=600)


@pytest.fixture(params=KINDS)
def scene(request, template, tmp_path):
    """One of its own for each test: here much more happens."""
    url = "sqlite"
    if request.param == "postgresql":
        url = schema_url(request.getfixturevalue("postgres_url"), f"served{uuid.uuid4().hex[:12]}")
    return copied(template, tmp_path, url)


@pytest.fixture
def running(scene):
    served = Running(scene)
    yield served
    served.stop()


@pytest.fixture(scope="module")
def browser():
    with browsers() as found:
        yield found


@pytest.fixture
def tab(browser, running):
    found = Tab(browser, running).sign_in()
    yield found
    found.close()
    assert found.foreign == [] and found.dialogs == []
