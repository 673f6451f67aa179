"""Checkpoints: the durable results of steps, keyed by content (B-4, B-6)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from onceward.core.sources import Micros
from onceward.store.port import Reads, Writes
from onceward.store.table import Table

_PAGE = 5000


class Checkpoint(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A checkpoint as stored. What it has no value for since a later version is left out of exports."""

    build_id: str
    stage: str
    target: str
    context_hash: str
    status: str
    how: str
    outputs: str
    """Canonical JSON: `[name, kind, sha256, size]` of each output."""
    cost: int
    tokens: int
    attempt: int
    child_id: str | None
    """The child that left the outputs, and that refers to their artifacts."""
    origin: str | None
    """The build they were taken over from."""
    error: str | None
    code_version: str | None = None
    """Of the function that it was done with, as the algorithm before the colon made it; None for
    a command, and for what was recorded before versions named their algorithm."""
    environment_hash: str | None = None
    """Of Python and the packages that it was done with."""
    updated_at: Micros = 0


CHECKPOINTS: Final = Table(
    Checkpoint,
    "checkpoints",
    key=("build_id", "stage", "target"),
    bundle="checkpoints.ndjson",
    not_evidence={
        "error": "what a person reads of a failure; its reason is in the events",
        "updated_at": "bookkeeping; its events have their own times",
        "code_version": "of a failure: nothing is reused by it",
        "environment_hash": "of a failure: nothing is reused by it",
    },
)


def made_with(code_version: str | None, environment_hash: str | None) -> dict[str, str]:
    """The fields of an event for a step's code and environment; none for a step without them."""
    said = {"code_version": code_version, "environment_hash": environment_hash}
    return {name: value for name, value in said.items() if value}


def told_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """The fields of an event for cost and attempt, where no child's last event states them."""
    spent = {"usd_micros": checkpoint.cost, "tokens": checkpoint.tokens}
    return {"attempt": checkpoint.attempt, "spent": {k: v for k, v in spent.items() if v}}


def checkpoints_of(rows: Reads, build_id: str) -> Iterator[Checkpoint]:
    """All of a build's, by stage and target, in pages."""
    after = ("", "")
    while True:
        page = CHECKPOINTS.read(
            rows,
            "WHERE build_id = ? AND (stage, target) > (?, ?) ORDER BY stage, target LIMIT ?",
            (build_id, *after, _PAGE),
        )
        yield from page
        if len(page) < _PAGE:
            return
        after = (page[-1].stage, page[-1].target)


def checkpoints_of_stage(rows: Reads, build_id: str, stage: str) -> list[Checkpoint]:
    return CHECKPOINTS.read(rows, "WHERE build_id = ? AND stage = ?", (build_id, stage))


def find_checkpoint(rows: Reads, build_id: str, stage: str, target: str) -> Checkpoint | None:
    return CHECKPOINTS.first(
        rows, "WHERE build_id = ? AND stage = ? AND target = ?", (build_id, stage, target)
    )


def put_checkpoint(tx: Writes, checkpoint: Checkpoint, now: Micros) -> None:
    *values, _ = msgspec.structs.astuple(checkpoint)
    tx.write(
        f"{CHECKPOINTS.insert_sql} ON CONFLICT (build_id, stage, target)"
        " DO UPDATE SET context_hash = excluded.context_hash,"
        " status = excluded.status, how = excluded.how, outputs = excluded.outputs,"
        " cost = excluded.cost,"
        " tokens = excluded.tokens, attempt = excluded.attempt, child_id = excluded.child_id,"
        " origin = excluded.origin, error = excluded.error, code_version = excluded.code_version,"
        " environment_hash = excluded.environment_hash, updated_at = excluded.updated_at",
        (*values, now),
    )


class Finished(msgspec.Struct, frozen=True):
    """How many steps of a stage are done with the same code in the same environment."""

    stage: str
    code_version: str | None
    environment_hash: str | None
    count: int


def finished_by_code(rows: Reads, build_id: str) -> list[Finished]:
    found = rows.read(
        "SELECT stage, code_version, environment_hash, count(*) FROM checkpoints"
        " WHERE build_id = ? AND status = 'SUCCESS'"
        " GROUP BY stage, code_version, environment_hash"
        " ORDER BY stage, code_version, environment_hash",
        (build_id,),
    )
    return [Finished(*row) for row in found]


def drop_checkpoint(tx: Writes, build_id: str, stage: str, target: str) -> None:
    tx.write(
        "DELETE FROM checkpoints WHERE build_id = ? AND stage = ? AND target = ?",
        (build_id, stage, target),
    )


def in_doubt(rows: Reads, build_id: str) -> list[Checkpoint]:
    return CHECKPOINTS.read(
        rows, "WHERE build_id = ? AND status = 'IN_DOUBT' ORDER BY stage, target", (build_id,)
    )


def reusable(
    rows: Reads,
    environments: Mapping[str, str | None],
    but: str,
    only: str | None = None,
) -> dict[str, Checkpoint]:
    """For each context hash the newest result that another build has of it in the environment
    that is named with it (None for any), or that one build has."""
    found: dict[str, Checkpoint] = {}
    hashes = sorted(environments)
    how, builds = (" AND build_id <> ?", but) if only is None else (" AND build_id = ?", only)
    kinds = "('executed', 'accepted')" if only is None else "('executed', 'accepted', 'reused')"
    for start in range(0, len(hashes), 500):
        some = hashes[start : start + 500]
        page = CHECKPOINTS.read(
            rows,
            f"WHERE context_hash IN ({', '.join('?' * len(some))})"
            f" AND status = 'SUCCESS' AND how IN {kinds}{how} ORDER BY updated_at",
            (*some, builds),
        )
        for checkpoint in page:
            wanted = environments[checkpoint.context_hash]
            if wanted is None or (checkpoint.environment_hash or "") == wanted:
                found[checkpoint.context_hash] = checkpoint
    return found


def recorded_costs(rows: Reads, name: str, stage: str, limit: int) -> list[tuple[int, int]]:
    """What the newest executed steps of a stage cost, in every build of that name: micro-dollars
    and tokens."""
    found = rows.read(
        "SELECT c.cost, c.tokens FROM builds b"
        " JOIN checkpoints c ON c.build_id = b.build_id AND c.stage = ?"
        " WHERE b.name = ? AND c.status = 'SUCCESS' AND c.how = 'executed'"
        " ORDER BY b.build_id DESC, c.updated_at DESC LIMIT ?",
        (stage, name, limit),
    )
    return [(cost, tokens) for cost, tokens in found]


def last_success(
    rows: Reads, name: str, stage: str, target: str, before: str = ""
) -> Checkpoint | None:
    """A step's newest result in the builds of that name; only in those that were begun before
    the one given."""
    values = [stage, target, name]
    older = ""
    if before:
        older = " AND b.build_id < ?"
        values.append(before)
    found = rows.read(
        f"SELECT {CHECKPOINTS.columns_of('c')} FROM builds b"
        " JOIN checkpoints c ON c.build_id = b.build_id AND c.stage = ? AND c.target = ?"
        f" WHERE b.name = ? AND c.status = 'SUCCESS'{older} ORDER BY b.build_id DESC LIMIT 1",
        values,
    )
    return Checkpoint(*found[0]) if found else None
