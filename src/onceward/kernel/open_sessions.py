"""Sessions that several requests share: open while commands of any of them run (C-5)."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from onceward.dispatch import queue
from onceward.dispatch.children import Children
from onceward.kernel import foreground
from onceward.kernel.kernel import Kernel
from onceward.people.actor import Actor


class OpenSessions:
    """One coordinator for each session that is open, however many spawned into it."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        """Held while a session is opened or closed: nobody joins one that is being closed."""
        self._open: dict[str, Children] = {}
        self._users: dict[str, int] = {}

    def join(
        self,
        kernel: Kernel,
        actor: Actor,
        session_id: str,
        jobs: int | None,
        limits: Mapping[str, int],
    ) -> Children:
        """The session, opened where it is not; a cap or limits that somebody names are its own from now on."""
        kernel.require("operator", actor)
        with self._mutex:
            children = self._open.get(session_id)
            if children is None:
                cap = queue.chosen_cap(jobs, foreground.cap_of(kernel, session_id))
                children = self._open[session_id] = kernel.open_session(
                    session_id, cap, limits, actor=actor
                )
                self._users[session_id] = 0
            elif jobs is not None or limits:
                cap = queue.chosen_cap(jobs, children.jobs)
                children.change(cap, limits, actor.principal)
                children.rouse()
            self._users[session_id] += 1
            return children

    def leave(self, children: Children) -> None:
        """Whoever joined has seen its own commands end; the last one closes the session."""
        with self._mutex:
            self._users[children.session_id] -= 1
            if self._users[children.session_id] == 0:
                del self._open[children.session_id], self._users[children.session_id]
                children.close()

    def stop(self) -> None:
        """Dispatch nothing more, and ask what runs to end."""
        with self._mutex:
            opened = list(self._open.values())
        for children in opened:
            children.stop()
