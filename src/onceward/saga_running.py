"""Running a saga in the foreground, from the command line or from Python: one path for both."""

from __future__ import annotations

import re
import threading
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from onceward.code.toml_lines import Lines
from onceward.core.sagas import Lease, Run
from onceward.errors import InvalidConfig, InvalidResumeState, Recovery
from onceward.kernel.kernel import Kernel
from onceward.registry.assembly import Shipped, shipped
from onceward.registry.jobs import root_under, to_apply, to_roll_back
from onceward.running import heard
from onceward.sagas.declaration import Saga
from onceward.sagas.jobs import SagaJob, saga_file_of
from onceward.sagas.lifecycle import Wanted, begin, take_up
from onceward.sagas.machine import CARRIED, given_of
from onceward.sagas.run import Told
from onceward.sagas.saga_file import saga_in
from onceward.sagas.views import SagaView, saga_view
from onceward.store.tables.sagas import Runs
from onceward.workspace import Workspace

M = TypeVar("M")
Outcome = tuple[SagaView, int]
Begun = Callable[[Run, str], None]


def run(
    workspace: Workspace,
    saga: Saga,
    *,
    root: str | None = None,
    given: Any = None,
    grant: str | None = None,
    limits: Mapping[str, int] | None = None,
    begun: Begun = lambda run, how: None,
    told: Told = lambda said: None,
    leaving: bool = False,
) -> Outcome:
    """The run of a root, to its end or to where it is stuck; answers how it stands, and the signal's exit status."""
    known = _known(workspace, root) if root is not None and grant is None else None
    root = workspace.sources.new_id("root") if root is None else root

    def enter(kernel: Kernel) -> tuple[Saga, Run, Lease | None]:
        # A run that is there knows its grant.
        whole = (
            workspace.grant(grant)
            if grant is not None
            else known.grant_id
            if known is not None
            else None
        )
        wanted = Wanted(
            saga, root, given, kernel.principal, workspace.settings.grants.environment, whole
        )
        return saga, *begin(kernel, kernel.actor, wanted, kernel.recorded_place(saga.file), limits)

    return _carry(workspace, enter, begun, told, leaving)


def _known(workspace: Workspace, root: str) -> Run | None:
    with workspace.reading() as store, store.read() as rows:
        return Runs(rows).of_root(root)


def resume(
    workspace: Workspace,
    name: str,
    *,
    saga: Saga | None = None,
    file: Path | None = None,
    retry: bool = False,
    limits: Mapping[str, int] | None = None,
    begun: Begun = lambda run, how: None,
    told: Told = lambda said: None,
    leaving: bool = False,
) -> Outcome:
    """Go on with a run whose kernel went away; with `retry`, with one that is stuck."""
    with workspace.reading() as store, store.read() as rows:
        known = Runs(rows).named(name)
    if saga is None and not known.file and known.name in CARRIED:
        verb, entry = CARRIED[known.name], given_of(known).get("entry_id")
        raise InvalidResumeState(
            f"run {known.saga_id} carries the change {entry} out",
            context={"saga_id": known.saga_id, "entry_id": entry},
            recovery=[Recovery("continue the change", f"onceward change {verb} {entry}")],
        )
    found = saga or shipped(known) or saga_in(saga_file_of(known, workspace.folder.parent, file))
    environment = workspace.settings.grants.environment

    def enter(kernel: Kernel) -> tuple[Saga, Run, Lease | None]:
        return found, *take_up(
            kernel, kernel.actor, found, known.saga_id, environment, limits, retry=retry
        )

    return _carry(workspace, enter, begun, told, leaving)


def carry_out(workspace: Workspace, saga: Shipped, grant: str, begun: Begun, told: Told) -> Outcome:
    """A plan for the registry under a grant: the same plan under the same grant is the same run. One that ended before
    it used the grant is past; the grant is still good for another."""
    with workspace.reading() as store, store.read() as rows:
        grant, root = root_under(rows, saga, grant)
    given = saga.given()
    return run(
        workspace, saga, root=root, given=given, grant=grant, begun=begun, told=told, leaving=True
    )


def _carry(
    workspace: Workspace,
    enter: Callable[[Kernel], tuple[Saga, Run, Lease | None]],
    begun: Begun,
    told: Told,
    leaving: bool,
) -> Outcome:
    stop = threading.Event()
    with heard(stop, leaving, threading.Event()) as signals:
        kernel = workspace.kernel(signals.interrupted)
        try:
            saga, found, lease = enter(kernel)
            job = SagaJob(kernel, kernel.actor, saga, found, lease, told)
            resumed = found.version > 1 or found.lease_fence > 1
            how = "resumed" if resumed else ""
            begun(found, "over" if job.over else how)
            job.run(stop)
        finally:
            kernel.close()
        with workspace.reading() as store:
            return saga_view(store, found.saga_id), signals.exit_status


def governed(workspace: Workspace, path: Path) -> Saga:
    """What a file is about: a saga in Python, or a plan for the registry in TOML, to apply or to roll back."""
    if path.suffix == ".py":
        return saga_in(path)
    rolling_back = "value" not in toml_of(path)
    return (
        in_file(path, to_roll_back, workspace)
        if rolling_back
        else in_file(path, to_apply, workspace)
    )


def in_file(path: Path, make: Callable[[Mapping[str, Any], str], M], workspace: Workspace) -> M:
    """What a file says; a mistake in it is told with its place."""
    words = toml_of(path)
    try:
        return make(words, workspace.settings.grants.environment)
    except InvalidConfig as error:
        found = re.search(r"`\$([^`]*)`", error.message)
        named = str(error.context.get("field", ""))
        parts = re.findall(r"\w+", found[1]) if found else [named]
        place = tuple(int(part) if part.isdecimal() else part for part in parts)
        line = Lines(path.read_text("utf-8-sig")).of(place)
        where = f"{path}, line {line}" if line else str(path)
        said = error.message.partition(" - at `")[0]
        raise InvalidConfig(
            f"{where}: {said}", context={**error.context, "file": str(path), "line": line}
        ) from None


def toml_of(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8-sig"))
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfig(f"{path}: {error}", context={"file": str(path)}) from None
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise InvalidConfig(f"cannot read {path}: {why}", context={"file": str(path)}) from None
