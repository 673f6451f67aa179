"""Every row of one store into another: backups, restores and moving between databases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from onceward.core import faults
from onceward.store.port import Database, Reads, Row, Value, Writes
from onceward.store.schema import TABLES

_PAGE = 500


def copy_rows(source: Database, rows: Reads, target: Database, tx: Writes) -> dict[str, int]:
    """Copy all tables; answers how many rows of each. The copied writer lock is free, its fence
    kept."""
    counts: dict[str, int] = {}
    tx.write("DELETE FROM workspace")
    for table in TABLES:
        columns = source.columns(rows, table.name)
        marks = ", ".join("?" * len(columns))
        insert = f"INSERT INTO {table.name} ({', '.join(columns)}) VALUES ({marks})"
        counts[table.name] = 0
        for row in pages(rows, table.name, table.key, columns):
            tx.write(insert, row)
            counts[table.name] += 1
        faults.point("restore.table")
    tx.write("UPDATE singleton_lock SET token = '', build_id = NULL")
    # Where the rows came from, these children may be alive: whoever opens the copy must leave them
    # alone.
    tx.write(
        "UPDATE urm_dispatch_token SET death = ? WHERE phase <> 'terminal' AND death IS NULL",
        ('{"death_unconfirmed":"restored from a backup"}',),
    )
    target.filled(tx)
    return counts


def pages(
    rows: Reads,
    table: str,
    key: Sequence[str],
    columns: Sequence[str],
    fixed: Mapping[str, Value] | None = None,
) -> Iterator[Row]:
    """Every row of a table, or those whose columns have these values, in the order of its key,
    in flat memory."""
    keys = ", ".join(key)
    select = f"SELECT {', '.join(columns)} FROM {table}"
    order = f" ORDER BY {keys} LIMIT {_PAGE}"
    those = [f"{name} = ?" for name in fixed or {}]
    known = tuple((fixed or {}).values())
    after: tuple[Value, ...] = ()
    while True:
        wanted = list(those)
        if after:
            wanted.append(f"({keys}) > ({', '.join('?' * len(key))})")
        where = f" WHERE {' AND '.join(wanted)}" if wanted else ""
        page = rows.read(select + where + order, (*known, *after))
        yield from page
        if len(page) < _PAGE:
            return
        after = tuple(page[-1][columns.index(name)] for name in key)
