"""A server of a workspace in which much happened."""

from __future__ import annotations

import json
import signal

import pytest

from onceward.client import Client
from typing_in import Typed, start


class Running:
    """A server that runs, and who may come."""

    def __init__(self, scene, *options):
        self.scene = scene
        self.cli = Typed(scene.folder.parent, scene.settings.store.url)
        self.options = options
        self.start()

    def start(self):
        self.process = start(self.cli, "serve", "--port", "0", "--json", *self.options)
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        said = json.loads(line)
        self.url, self.link = said["url"], said["link"]
        self.client = Client.here(self.scene.folder)

    @property
    def ids(self):
        return self.scene.ids

    def stop(self):
        self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=30)


@pytest.fixture
def running(scene):
    served = Running(scene)
    yield served
    served.stop()
