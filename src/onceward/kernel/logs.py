"""What a step or child said: kept with it when it has ended, set aside while it runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import msgspec

from onceward.artifacts.blobs import Artifacts
from onceward.core.limits import FOLLOW_SECONDS
from onceward.core.sagas import Run
from onceward.core.steps import step_name
from onceward.dispatch.cut_off import step_of
from onceward.errors import InvalidConfig
from onceward.kernel.tenure import vacant
from onceward.processes.spool import Spool
from onceward.store.port import Reads
from onceward.store.tables.artifacts import refs_of
from onceward.store.tables.builds import Builds
from onceward.store.tables.checkpoints import checkpoints_of
from onceward.store.tables.children import Tokens, is_terminal, resolve
from onceward.store.tables.sagas import Runs


def child_named(rows: Reads, build: str | None, subject: str) -> str:
    """The child that is meant: by its id, or the newest attempt at a step of a build, or of the newest build."""
    if subject.startswith("chd_") and build is None:
        return resolve(rows, subject)[0]
    run = _run_named(rows, build)
    if run is not None:
        return _of_run(rows, run, subject)
    found = Builds(rows).meant(build)
    attempts = []
    steps = set()
    meant = set()
    for token in Tokens(rows).of_session(found.build_id):
        step = step_of(token)
        if step is not None:
            steps.add(step_name(step.stage, step.target))
            if subject in (step_name(step.stage, step.target), step.stage):
                attempts.append(token.child_id)
                meant.add(step_name(step.stage, step.target))
    if len(meant) > 1:
        some = ", ".join(sorted(meant)[:5])
        raise InvalidConfig(
            f"more than one step is meant by {subject[:80]!a}: {some}",
            context={"step": subject[:200]},
        )
    if not attempts:
        # A step that was taken over said what it had to say in another build.
        stage, _, target = subject.partition(":")
        for taken in checkpoints_of(rows, found.build_id):
            if taken.stage == stage and target in ("", taken.target) and taken.child_id:
                return taken.child_id
        some = ", ".join(sorted(steps)[:5])
        raise InvalidConfig(
            f"no attempt at {subject[:80]!a} in build {found.build_id}"
            + (f"; there are {some}" if some else ""),
            context={"step": subject[:200], "build_id": found.build_id},
        )
    return attempts[-1]


def _run_named(rows: Reads, name: str | None) -> Run | None:
    if name is None or name.startswith("bld_"):
        return None
    return Runs(rows).named(name) if name.startswith("sga_") else Runs(rows).of_root(name)


def _of_run(rows: Reads, run: Run, subject: str) -> str:
    """The newest child of a saga's action, or, as `undo NAME`, of its compensation."""
    side, name = (
        ("compensation", subject[5:]) if subject.startswith("undo ") else ("action", subject)
    )
    for token in reversed(list(Tokens(rows).of_session(run.saga_id))):
        said = msgspec.json.decode(token.work)
        if (said.get("step"), said.get("side")) == (name, side):
            return token.child_id
    raise InvalidConfig(
        f"no attempt at {subject[:80]!a} in run {run.saga_id}",
        context={"step": subject[:200], "saga_id": run.saga_id},
    )


def tail_of(artifacts: Artifacts, spool: Spool, child: str, most: int) -> dict[str, Any]:
    """The end of each log of a child, and how much there is of it, whether it runs or has ended."""
    with artifacts.store.read() as rows:
        child_id = resolve(rows, child)[0]
        over = is_terminal(rows, child_id)
        kept = {ref.name: ref for ref in refs_of(rows, child_id) if ref.kind == "log"}
    said = (
        {name: b"".join(artifacts.read(ref.sha256)) for name, ref in kept.items()}
        if over
        else spool.left(child_id)
    )
    return {
        "child_id": child_id,
        "over": over,
        "logs": {name: data[-most:].decode("utf-8", "replace") for name, data in said.items()},
        "bytes": {name: len(data) for name, data in said.items()},
    }


def lines_of(
    artifacts: Artifacts, spool: Spool, child_id: str, follow: bool
) -> Iterator[tuple[str, bytes]]:
    """Log after log, each as its name and pieces; when following, what a running child says until it has ended."""
    told: dict[str, int] = {}
    while True:
        nobody = follow and vacant(artifacts.store)
        with artifacts.store.read() as rows:
            over = is_terminal(rows, child_id)
            kept = [ref for ref in refs_of(rows, child_id) if ref.kind == "log"]
        said = (
            {ref.name: b"".join(artifacts.read(ref.sha256)) for ref in kept}
            if over
            else spool.left(child_id)
        )
        for name, data in said.items():
            fresh = data[told.get(name, 0) :]
            if fresh:
                told[name] = len(data)
                yield name, fresh
        if over or not follow or nobody:
            return
        time.sleep(FOLLOW_SECONDS)
