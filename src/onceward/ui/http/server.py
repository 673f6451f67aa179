"""The server itself: what it is made of, who it lets in at first, and how it ends (I-3)."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onceward.core.canon import canonical
from onceward.people.peer_socket import PeerSocket
from onceward.processes.ancestry import child_of_process
from onceward.serving import NOTE, Service
from onceward.ui.http.access import Doors, Origins
from onceward.ui.http.api import ROUTES
from onceward.ui.http.app import application
from onceward.ui.http.feed import Feed
from onceward.ui.http.listening import ListenAddress, listening, server
from onceward.ui.web.answering import Web
from onceward.ui.web.pages import PAGES
from onceward.workspace import Workspace


class WorkspaceServer:
    """One server of one workspace."""

    def __init__(self, workspace: Workspace, place: ListenAddress) -> None:
        place.check()
        self._workspace = workspace
        self._socket = listening(place)
        self.port = self._socket.getsockname()[1]
        self.url = place.url(self.port)
        self.service = Service(workspace, self.url)
        self.doors = Doors(self.service, self.port)
        self.feed = Feed(self.service)
        origins = Origins(place.scheme, place.known_as(self.port))
        web = Web(self.feed, self.doors, secure=place.scheme == "https")
        self._server = server(
            application(self.service, self.doors, origins, (*ROUTES, *PAGES), web), place
        )

        self._server.ending = self._end
        self.service.held_secrets["SERVER_TOKEN"] = self.doors.local
        inside = child_of_process(self.service.store, workspace.folder)
        self._tokens = PeerSocket(inside, lambda pid, asked: self._local())

    def _local(self) -> dict[str, str]:
        """What lets processes in of whoever runs this."""
        return {"token": self.doors.local, "principal": self._workspace.principal}

    def link(self) -> str:
        """What lets whoever runs this in with a browser, once."""
        return f"{self.url}/signin#code={self.doors.code_for(self._workspace.principal, self.doors.local)}"

    def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Serve until told to stop."""
        self.service.start()
        note = self._workspace.folder / NOTE
        try:
            said = {"url": self.url, "socket": str(self._tokens.place), "pid": os.getpid()}
            _write_note(note, said)
            threading.Thread(target=self._keep_note, args=(note, said), daemon=True).start()
            threading.Thread(
                target=self._tokens.serve, args=(self.service.stopping,), daemon=True
            ).start()
            threading.Thread(target=self._announce, args=(ready,), daemon=True).start()
            self._server.run(sockets=[self._socket])
        finally:
            self._end()
            if _noted(note) == os.getpid():
                note.unlink(missing_ok=True)
            self._tokens.close()
            self.service.stop()

    def _end(self) -> None:
        """Those who listen are let go of, and what takes long is given up."""
        self.service.give_up()
        self.feed.close()

    def _keep_note(self, note: Path, said: dict[str, Any]) -> None:
        """Another server of this workspace may have put its own in the place of ours, and taken it away again."""
        while not self.service.stopping.wait(2):
            if _noted(note) is None:
                _write_note(note, said)

    def _announce(self, ready: Callable[[], None]) -> None:
        pause = threading.Event()
        while not self._server.started:
            if self._server.should_exit or pause.wait(0.02):
                return
        ready()


def _noted(path: Path) -> int | None:
    """Whose note it is; None where there is none."""
    try:
        return int(json.loads(path.read_bytes())["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write_note(path: Path, said: dict[str, Any]) -> None:
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(canonical(said))
    fresh.replace(path)
