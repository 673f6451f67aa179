"""A fixture played to its end: its transcript, and what replay and verify say of the records it
left."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from onceward.core.canon import canonical
from onceward.core.sources import ScriptedSources
from onceward.errors import InvalidConfig
from onceward.evidence.bundle import line_of
from onceward.evidence.export import export
from onceward.evidence.records import StoreRecords
from onceward.evidence.replay import ReplayResult, replay, replay_bundle
from onceward.evidence.verify import verify_rows
from onceward.gate import script
from onceward.gate.script import Fixture
from onceward.gate.stage import ScriptStage
from onceward.scratch import Scratch
from onceward.store.copy import pages
from onceward.store.port import Database, Reads, Value
from onceward.store.schema import TABLES
from onceward.store.store import Store
from onceward.store.tables.budgets import DebitRow, LaneTotal
from onceward.store.tables.children import SessionRow
from onceward.store.tables.events import events_after
from onceward.store.writer import commit_plainly

_PAGE = 500


class Play(msgspec.Struct, frozen=True):
    """The result of a play."""

    lines: list[str]
    """Every outcome, event and record, in order: the transcript."""
    sha256: str
    wrong: str = ""
    """The fault that replay or verify found."""


def play(fixture: Fixture, scratch: Scratch) -> Play:
    """Play a fixture in a store of its own, then replay what it left: from the rows, and from a
    bundle of them."""
    sources = ScriptedSources(fixture.start, 0, fixture.seed)
    database = scratch.database(sources)
    load(database, fixture)
    stage = ScriptStage(database, scratch.folder, fixture, sources)
    try:
        lines = [_said({"line": n, **stage.play(op)}) for n, op in enumerate(fixture.script, 1)]
    finally:
        stage.close()
    store = Store(database, sources)
    try:
        with store.read() as rows:
            lines += _records(rows)
            again, wrong = judge_records(rows, scratch.folder)
    finally:
        store.close()
    lines += _files(scratch.folder / "streams")
    lines.append(_said({"replay": again.sha256}))
    made = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    return Play(lines, made, wrong)


def load(database: Database, fixture: Fixture) -> None:
    """The rows that a play begins with."""
    known = {table.name for table in TABLES}
    session = database.connect(kernel=True)
    try:
        session.begin(None)
        for some in fixture.rows:
            if some.table not in known or not set(some.columns) <= set(
                database.columns(session, some.table)
            ):
                raise InvalidConfig(f"there is no table {some.table[:40]!a} with such columns")
            marks = ", ".join("?" * len(some.columns))
            insert = f"INSERT INTO {some.table} ({', '.join(some.columns)}) VALUES ({marks})"
            for row in some.rows:
                session.write(
                    insert, [bytes.fromhex(v["hex"]) if isinstance(v, dict) else v for v in row]
                )
        commit_plainly(session, "the rows of a fixture")
    finally:
        session.rollback()
        session.close()


def frozen(fixture: Fixture, lines: int, scratch: Scratch) -> Fixture:
    """The same play, beginning with the rows that its first lines leave."""
    sources = ScriptedSources(fixture.start, 0, fixture.seed)
    database = scratch.database(sources)
    load(database, fixture)
    stage = ScriptStage(database, scratch.folder, fixture, sources)
    for op in fixture.script[:lines]:
        stage.play(op)
    stage.close()
    store = Store(database, sources)
    with store.read() as rows:
        kept = [
            _dumped(database, rows, table.name, table.key)
            for table in TABLES
            if table.name != "workspace"
        ]
    store.close()
    rest = fixture.script[lines:]
    if not rest or not isinstance(rest[0], script.Recover):
        raise InvalidConfig(
            "after the rows that somebody left, a script begins with recover",
            context={"field": "rows"},
        )
    kept = [some for some in kept if some.rows]
    # Other ids than those that the rows have already.
    seed = f"{fixture.seed} goes on"
    return msgspec.structs.replace(
        fixture, rows=kept, script=rest, names=stage.names, start=sources.now(), seed=seed
    )


def _dumped(database: Database, rows: Reads, table: str, key: tuple[str, ...]) -> script.Rows:
    columns = database.columns(rows, table)
    dumped = [[_plain(value) for value in row] for row in pages(rows, table, key, columns)]
    return script.Rows(table, columns, dumped)


def _plain(value: Value) -> Any:
    return {"hex": value.hex()} if isinstance(value, bytes) else value


def judge_records(rows: Reads, folder: Path, bundles: bool = True) -> tuple[ReplayResult, str]:
    """Replay the rows, and a bundle of each session in another folder: all to the same end, and
    nothing at fault."""
    records = StoreRecords(rows)
    again = replay(records)
    if again.difference is not None:
        first = again.difference
        stored, replayed = _short(first.stored), _short(first.replayed)
        return (
            again,
            f"replay: {first.where}, {first.field}: {stored} is stored, {replayed} follows",
        )
    checked = verify_rows(rows)
    if not checked.ok:
        return again, f"verify: {checked.first()}"
    for session in [row.session_id for row in records.all(SessionRow) if bundles]:
        bundle = folder / "elsewhere" / f"{session}.tar"
        bundle.parent.mkdir(exist_ok=True)
        export(records, session, bundle, pieces=lambda sha256: iter(()), whole=False)
        elsewhere = replay_bundle(bundle)
        if elsewhere.sha256 != replay(records, [session]).sha256:
            return again, f"replay: the bundle of {session} does not come to the same hash"
    return again, ""


def _short(value: Any) -> str:
    return "nothing" if value is None else str(value)[:100]


def _records(rows: Reads) -> Iterator[str]:
    """Every event in the order of commits, then every record of the sessions."""
    after = 0
    while page := events_after(rows, after, _PAGE):
        yield from (event.line().decode() for event in page)
        after = page[-1].position
    records = StoreRecords(rows)
    for session in records.all(SessionRow):
        yield line_of(session).decode().rstrip("\n")
        for child in records.dispatched(session.session_id):
            yield line_of(child).decode().rstrip("\n")
    for kind in (LaneTotal, DebitRow):
        yield from (line_of(row).decode().rstrip("\n") for row in records.all(kind))


def _files(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("*.ndjson")):
        yield _said({"file": path.stem, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()})


def _said(value: dict[str, Any]) -> str:
    return canonical(value).decode()
