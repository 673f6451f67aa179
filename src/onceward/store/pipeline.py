"""One PostgreSQL connection in pipeline mode: many statements, one round trip, prepared, binary."""

from __future__ import annotations

import itertools
import select
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import pq

from onceward.store.port import Row, Value

_INT8, _TEXT, _BYTEA = 20, 25, 17
_OK = (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK)


class Disconnected(Exception):
    """The connection ended while we waited for an answer."""


@dataclass(slots=True)
class StatementRefused(Exception):
    """The server refused a statement, and with it everything up to the next sync."""

    sqlstate: str
    constraint: str
    message: str


class Pipeline:
    """Statements go out when a result is needed; results are read in order."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._pg = connection.pgconn
        self._pg.nonblocking = 1
        self._pg.enter_pipeline_mode()
        self._poll = select.poll()
        self._poll.register(self._pg.socket, select.POLLIN)
        self._prepared: dict[tuple[str, tuple[int, ...]], bytes] = {}
        self._names = itertools.count()
        self.last_tag = b""
        self._sent: list[tuple[str, tuple[int, ...]] | None] = []

    def send(self, sql: str, params: Sequence[Value] = ()) -> None:
        """Queue one statement; the client's buffer holds it until the next `results`."""
        types = tuple(_type_of(value) for value in params)
        name = self._prepared.get((sql, types))
        try:
            if name is None:
                name = self._prepared[sql, types] = f"s{next(self._names)}".encode()
                self._pg.send_prepare(name, _numbered(sql), types or None)
                self._sent.append((sql, types))
            self._pg.send_query_prepared(
                name, [_encode(value) for value in params], [1] * len(params) or None, 1
            )
        except psycopg.OperationalError as error:
            raise Disconnected(str(error)) from error
        self._sent.append(None)

    def results(self) -> list[list[Row]]:
        """Send everything, wait, and give the rows of each statement; Refusal for the first that
        failed."""
        sent, self._sent = self._sent, []
        found: list[list[Row]] = []
        refusal: StatementRefused | None = None
        try:
            self._pg.pipeline_sync()
            for prepared in sent:
                result = self._result()
                if result is None:
                    raise Disconnected("the server closed the connection")
                self._result()
                if result.status in _OK:
                    self.last_tag = result.command_status or b""
                    if prepared is None:
                        found.append(_rows(result))
                    continue
                if prepared is not None:
                    del self._prepared[prepared]
                if refusal is None and result.status != pq.ExecStatus.PIPELINE_ABORTED:
                    refusal = _refusal(result)
            sync = self._result()
            if sync is None or sync.status != pq.ExecStatus.PIPELINE_SYNC:
                raise Disconnected(
                    refusal.message if refusal else "the server closed the connection"
                )
        except psycopg.OperationalError as error:
            raise Disconnected(str(error)) from error
        if refusal is not None:
            raise refusal
        return found

    def close(self) -> None:
        self._connection.close()

    def _result(self) -> pq.abc.PGresult | None:
        while self._pg.flush():
            select.select([self._pg.socket], [self._pg.socket], [])
            self._pg.consume_input()
        while self._pg.is_busy():
            self._poll.poll()
            self._pg.consume_input()
        return self._pg.get_result()


def _type_of(value: Value) -> int:
    if isinstance(value, int):
        return _INT8
    if isinstance(value, str):
        return _TEXT
    return _BYTEA if isinstance(value, bytes) else 0


def _encode(value: Value) -> bytes | None:
    if isinstance(value, int):
        return struct.pack(">q", value)
    return value.encode() if isinstance(value, str) else value


def _rows(result: pq.abc.PGresult) -> list[Row]:
    readers = [_READERS[result.ftype(column)] for column in range(result.nfields)]
    return [
        tuple(
            None if (raw := result.get_value(row, column)) is None else reader(raw)
            for column, reader in enumerate(readers)
        )
        for row in range(result.ntuples)
    ]


_READERS: dict[int, Any] = {
    _INT8: lambda raw: struct.unpack(">q", raw)[0],
    23: lambda raw: struct.unpack(">i", raw)[0],
    16: lambda raw: raw != b"\0",
    _TEXT: lambda raw: raw.decode(),
    1043: lambda raw: raw.decode(),
    19: lambda raw: raw.decode(),
    2278: lambda raw: None,
    _BYTEA: bytes,
}


def _refusal(result: pq.abc.PGresult) -> StatementRefused:
    def field(which: pq.DiagnosticField) -> str:
        return (result.error_field(which) or b"").decode(errors="replace")

    return StatementRefused(
        field(pq.DiagnosticField.SQLSTATE),
        field(pq.DiagnosticField.CONSTRAINT_NAME),
        field(pq.DiagnosticField.MESSAGE_PRIMARY),
    )


def _numbered(sql: str) -> bytes:
    parts = sql.split("?")
    text = parts[0] + "".join(f"${number}{part}" for number, part in enumerate(parts[1:], 1))
    return text.encode()
