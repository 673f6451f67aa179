"""Running a saga in the foreground, from the command line or from Python: one path for both."""

from __future__ import annotations

import threading
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from onceward.engine.assembly import Assembly, Rollback, Shipped, shipped
from onceward.engine.foreground import run_saga
from onceward.engine.kernel import Kernel
from onceward.engine.plan_file import saga_in
from onceward.engine.saga_life import Wanted, begin, take_up
from onceward.engine.saga_reading import saga_status
from onceward.engine.saga_run import SagaRun, Told
from onceward.engine.sagas import Saga
from onceward.errors import InvalidConfig, InvalidResumeState, Recovery
from onceward.kernel.sagas import Lease, Run
from onceward.lifecycles import rollback
from onceward.lifecycles.registry import plan_of, schema_digest
from onceward.running import heard, place_of
from onceward.store.tables.grants import Grants
from onceward.store.tables.sagas import Runs
from onceward.wiring import Workspace

Outcome = tuple[dict[str, Any], int]
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
    root = root or workspace.sources.new_id("root")

    def enter(kernel: Kernel) -> tuple[Saga, Run, Lease | None]:
        whole = None if grant is None else workspace.grant(grant)
        wanted = Wanted(saga, root, given, kernel.principal, workspace.settings.grants.environment, whole)
        return saga, *begin(kernel, wanted, place_of(workspace, saga.file), limits)

    return _carry(workspace, enter, begun, told, leaving)


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
    saga = saga or (saga_of(workspace, known, file) if known.file or file else shipped(known))

    def enter(kernel: Kernel) -> tuple[Saga, Run, Lease | None]:
        return saga, *take_up(kernel, saga, known.saga_id, limits, retry=retry)

    return _carry(workspace, enter, begun, told, leaving)


def carry_out(workspace: Workspace, saga: Shipped, grant: str, begun: Begun, told: Told) -> Outcome:
    """A plan for the registry under a grant: the same plan under the same grant is the same run. One that ended before
    it used the grant is past; the grant is still good for another."""
    grant = workspace.grant(grant)
    with workspace.reading() as store, store.read() as rows:
        used = Grants(rows).named(grant).consumed_by_root or ""
        root, attempt = saga.root(grant), 1
        if used.partition("#")[0] == root:
            root = used
        while not used and (known := Runs(rows).of_root(root)) is not None and known.over:
            attempt += 1
            root = f"{saga.root(grant)}#{attempt}"
    given = saga.given()
    return run(workspace, saga, root=root, given=given, grant=grant, begun=begun, told=told, leaving=True)


def _carry(
    workspace: Workspace,
    enter: Callable[[Kernel], tuple[Saga, Run, Lease | None]],
    begun: Begun,
    told: Told,
    leaving: bool,
) -> Outcome:
    stop = threading.Event()
    with heard(stop, leaving, threading.Event()) as signals:
        kernel = workspace.kernel()
        try:
            saga, found, lease = enter(kernel)
            ended = found.over or found.stuck is not None
            begun(found, "" if found.version == 1 else "over" if ended else "resumed")
            if not ended:
                run_saga(kernel, SagaRun(kernel, saga, found.saga_id, lease, told), stop)
        finally:
            kernel.close()
        with workspace.reading() as store:
            return saga_status(store, found.saga_id), signals.exit_status


def saga_of(workspace: Workspace, known: Run, file: Path | None) -> Saga:
    """The saga of a run, from the file it was read from."""
    file = file or workspace.folder.parent / known.file
    if not file.is_file():
        raise InvalidResumeState(
            f"the saga of {known.saga_id} is not at {known.file} any more",
            context={"saga_id": known.saga_id, "file": known.file},
            recovery=[Recovery("say where it is", f"onceward saga resume {known.saga_id} --file FILE")],
        )
    return saga_in(file)


def governed(workspace: Workspace, path: Path) -> Saga:
    """What a file is about: a saga in Python, or a plan for the registry in TOML, to apply or to roll back."""
    if path.suffix == ".py":
        return saga_in(path)
    words = toml_of(path)
    return to_apply(workspace, words) if "value" in words else to_roll_back(workspace, words)


def to_apply(workspace: Workspace, words: Mapping[str, Any]) -> Assembly:
    return Assembly(plan_of(words), workspace.settings.grants.environment)


def to_roll_back(workspace: Workspace, words: Mapping[str, Any]) -> Rollback:
    plan = rollback.plan_of(words)
    return Rollback(plan, schema_digest(plan.collection), workspace.settings.grants.environment)


def toml_of(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8-sig"))
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfig(f"{path}: {error}", context={"file": str(path)}) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"cannot read {path}: {error}", context={"file": str(path)}) from None
