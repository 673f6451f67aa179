"""Commands as a job: children of a session that several requests may share (C-9)."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence

from onceward.dispatch.acts import Spawn
from onceward.dispatch.budget import limits_of_budget
from onceward.dispatch.children import Children
from onceward.dispatch.spawning import commands_of
from onceward.errors import PermissionDenied, Recovery
from onceward.kernel.answers import Subject
from onceward.kernel.jobs import FinishedJob, Job, Taking, begins
from onceward.kernel.open_sessions import OpenSessions
from onceward.store.tables.children import Sessions, Tokens


class SpawnJob:
    """Commands that were queued; they run by themselves, and are waited for."""

    over = False

    def __init__(
        self, sessions: OpenSessions, children: Children, ids: Sequence[str], subject: Subject
    ) -> None:
        self.subject = subject
        self._sessions, self._children, self._ids = sessions, children, ids

    def run(self, stop: threading.Event) -> None:
        """Until all have ended. Who stops everything stops the sessions: one that others share is not stopped for one
        of them."""
        try:
            for child_id in self._ids:
                self._children.wait(child_id)
        finally:
            self._sessions.leave(self._children)


@begins(Spawn)
def spawn(taking: Taking, order: Spawn) -> Job:
    """Queue the commands that somebody asked for."""
    kernel, host = taking.kernel, taking.host
    session = order.session or f"ses_{taking.ident}"
    if not host.runs_commands:
        raise PermissionDenied(
            "this server does not run commands (spawn = false); it runs plans and sagas",
            context={"setting": "server.spawn"},
            recovery=[Recovery("run it yourself, where nobody serves", "onceward spawn -- ...")],
        )
    folder = host.working_folder(order.folder or ".")
    brought = host.environments.of(taking.request_id, taking.actor.principal, kernel.principal)
    works = commands_of(order, folder, brought)
    ids = [f"chd_{_next(taking.ident, number)}" for number in range(len(works))]
    subject: Subject = {"session_id": session, "children": ids}
    with kernel.store.read() as rows:
        known = Sessions(rows).find(session) is not None and any(
            token.child_id == ids[0] for token in Tokens(rows).of_session(session)
        )
    if known:
        return FinishedJob(taking.accept_now(subject))
    children = host.sessions.join(
        kernel, taking.actor, session, order.jobs, limits_of_budget(order.budget)
    )
    try:
        children.spawn(
            works,
            ids,
            accept=lambda tx: taking.accept(tx, subject),
            actor=taking.actor.principal,
        )
    except BaseException:
        host.sessions.leave(children)
        raise
    return SpawnJob(host.sessions, children, ids, subject)


def _next(ident: str, number: int) -> str:
    """The id that many after another: the same for the same request, for ever."""
    return str(uuid.UUID(int=uuid.UUID(ident).int + number))
