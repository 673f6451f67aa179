"""Work that a server does for us: asked of it, and followed to its end (K-13)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import click

from onceward.core.limits import FOLLOW_SECONDS
from onceward.errors import StoredError
from onceward.ui.cli import render
from onceward.ui.cli.asking import RequestOutcome, pending
from onceward.ui.cli.main import Globals

T = TypeVar("T")


def serves(workspace: Any) -> bool:
    """Whether the kernel that lives takes work from others."""
    from onceward.errors import NotFound
    from onceward.kernel.tenure import serving

    try:
        with workspace.reading() as store:
            return bool(serving(store))
    except NotFound:
        return False


def bring(folder: Path, request_id: str, variables: Mapping[str, str]) -> None:
    """Give the server the values of variables for a request that follows. Where it cannot be reached, it refuses the
    request and names the variable: they go no other way."""
    from onceward.client import Client
    from onceward.errors import NotFound

    with suppress(NotFound, OSError), Client.here(folder, patience=2.0) as client:
        client.bring_environment(client_request_id=request_id, values=dict(variables))


class ServedWork:
    """One piece of work at a server."""

    def __init__(
        self, given: Globals, verb: str, order: Any, variables: Mapping[str, str] | None = None
    ) -> None:
        from onceward.core.orders import payload_of
        from onceward.core.records import Request
        from onceward.kernel.work_status import Ending

        self.workspace = given.workspace()
        self._given = given
        request = Request(verb, given.new_request_id(), payload_of(order), self.workspace.principal)
        if variables:
            bring(self.workspace.folder, request.request_id, variables)
        asker = self.workspace.asker()
        self._ending = Ending(asker.store, verb, request.request_id)
        try:
            self.asked = RequestOutcome(request.request_id, asker.ask(request, given.wait), None)
        finally:
            asker.close()
        self.subject: Mapping[str, Any] = self.asked.value

    def pending(self) -> int:
        return pending(self._given, self.asked)

    def followed(self) -> Iterator[bool]:
        """Again and again until it has ended, or nobody is left to end it; whoever follows looks each time."""
        while True:
            ended, lost = self._ended()
            yield ended or lost
            if ended or lost:
                return
            time.sleep(FOLLOW_SECONDS)

    def _ended(self) -> tuple[bool, bool]:
        from onceward.kernel.tenure import vacant

        with self.workspace.reading() as store:
            outcome = self._ending.look(store)
            if outcome is not None and "error" in outcome:
                raise StoredError({**outcome["error"], "context": {}})
            return outcome is not None, outcome is None and vacant(store)


def interrupted(what: str, stop: str) -> int:
    """Whoever stops following has not stopped the work."""
    click.echo(f"\n{what} continues on the server; to end it: {stop}", err=True)
    return 130


def follow_build(given: Globals, verb: str, order: Any, display: Any) -> dict[str, Any] | int:
    """A build that a server runs; answers how it stands when it is over."""
    from onceward.builds.following import begun_of, steps_since, summed_up
    from onceward.builds.views import build_view

    served = ServedWork(given, verb, order)
    if served.asked.pending:
        return served.pending()
    build_id = served.subject["build_id"]
    begun_at = time.monotonic()
    known: dict[str, str] = {}
    try:
        with served.workspace.reading() as store:
            before = build_view(store, build_id)
        display.begun(begun_of(served.workspace, before, "at the server"))
        for _ in served.followed():
            with served.workspace.reading() as store:
                found = build_view(store, build_id)
            for said in steps_since(found, known):
                display.told(said)
    except KeyboardInterrupt:
        display.end()
        return interrupted(build_id, f"onceward cancel {build_id}")
    except BaseException:
        display.end()
        raise
    display.end()
    with served.workspace.reading() as store:
        found = build_view(store, build_id)
    return summed_up(found, before, int(time.monotonic() - begun_at))


def follow_session(
    given: Globals, order: Any, shown: Any, variables: Mapping[str, str] | None = None
) -> int:
    """Commands that a server runs; what they say is shown as it comes."""
    from onceward.kernel.logs import lines_of
    from onceward.kernel.work_status import ended_of
    from onceward.processes.spool import Spool

    served = ServedWork(given, "sessions.spawn", order, variables)
    if served.asked.pending:
        return served.pending()
    session, children = served.subject["session_id"], list(served.subject["children"])
    shown.begun(children)
    ends = {}
    try:
        with served.workspace.artifacts() as kept:
            for child_id in children:
                for name, data in lines_of(
                    kept, Spool(served.workspace.folder / "running"), child_id, True
                ):
                    shown.output(child_id, "err" if name == "stderr" else "out", data)
                ends[child_id] = ended_of(kept.store, child_id)
                shown.ended(child_id, ends[child_id])
        for _ in served.followed():
            pass
    except KeyboardInterrupt:
        return interrupted(session, f"onceward cancel {session}")
    shown.summary(served.workspace.spending(session), ends.values())
    return int(any(end.reason != "completed" for end in ends.values()))


def follow(
    given: Globals, verb: str, order: Any, look: Callable[[Any, Mapping[str, Any]], T]
) -> T | int:
    """Work that a server does; answers what `look` makes of how it stands when it is over."""
    served = ServedWork(given, verb, order)
    if served.asked.pending:
        return served.pending()
    if not given.json:
        click.secho(
            f"sent to the server: {render.plain(', '.join(map(str, served.subject.values())))}",
            dim=True,
            err=True,
        )
    try:
        for _ in served.followed():
            pass
    except KeyboardInterrupt:
        return interrupted("it", "onceward status")
    with served.workspace.reading() as store:
        return look(store, served.subject)
