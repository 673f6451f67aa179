"""What a row is by its events: an event states the columns that its move sets, and the row is what
they add up to.

A lifecycle lists which columns the rest of an event states already; `unstated` is what the event
has to carry besides. Whoever holds the events alone can make the row again: `Fold`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from onceward.core.canon import canonical, sha256_hex
from onceward.core.sources import Micros

CARRIED: Final = "columns"
"""The field of an event's detail that has what nothing else in it states."""
_ABSENT: Final = object()


class EventFacts(NamedTuple):
    """An event, as far as its columns are concerned."""

    name: str
    at: Micros
    context: Mapping[str, Any]
    detail: Mapping[str, Any]


class Digest(NamedTuple):
    """A column of which only the SHA-256 is stated."""

    sha256: str


def _of_detail(field: str) -> Callable[[EventFacts], Any]:
    return lambda said: said.detail.get(field, _ABSENT)


def _of_context(field: str) -> Callable[[EventFacts], Any]:
    return lambda said: said.context.get(field, _ABSENT)


def _text_of_detail(field: str) -> Callable[[EventFacts], Any]:
    def read(said: EventFacts) -> Any:
        value = said.detail.get(field, _ABSENT)
        return value if value is _ABSENT or value is None else canonical(value).decode()

    return read


def _digest_of_detail(field: str) -> Callable[[EventFacts], Any]:
    def read(said: EventFacts) -> Any:
        value = said.detail.get(field, _ABSENT)
        return value if value is _ABSENT else Digest(value)

    return read


def _time(_: str) -> Callable[[EventFacts], Any]:
    return lambda said: said.at


_SOURCES: Final[Mapping[str, Callable[[str], Callable[[EventFacts], Any]]]] = {
    "detail": _of_detail,
    "context": _of_context,
    "text": _text_of_detail,
    "sha256": _digest_of_detail,
    "at": _time,
}


class _Rule(NamedTuple):
    """The rule by which events state one column: some events or, if none is named, all."""

    column: str
    read: Callable[[EventFacts], Any]
    events: frozenset[str]


class Stated:
    """Which columns of a lifecycle's rows its events state without carrying them; immutable."""

    def __init__(self, rules: Iterable[_Rule], defaults: Mapping[str, Any]) -> None:
        self._rules = tuple(rules)
        self._of_event: dict[str, tuple[_Rule, ...]] = {}
        self.defaults = dict(defaults)
        """The value of a column that no event states."""

    @classmethod
    def parse(cls, table: str) -> Stated:
        """Read a table of lines `column  source  [EVENT | EVENT]`.

        A source is `at`, `detail.FIELD`, `context.FIELD`, `text.FIELD` (the canonical text of a
        field of the detail), `sha256.FIELD` (the field has the column's digest), or `= JSON`,
        which is the default."""
        rules, defaults = [], {}
        for line in filter(None, (line.strip() for line in table.splitlines())):
            column, source, *rest = line.split(None, 2)
            if source == "=":
                defaults[column] = msgspec.json.decode(rest[0])
                continue
            kind, _, field = source.partition(".")
            events = frozenset(name.strip() for name in "".join(rest).split("|") if name.strip())
            rules.append(_Rule(column, _SOURCES[kind](field), events))
        return cls(rules, defaults)

    def columns(self, said: EventFacts) -> dict[str, Any]:
        """The columns that an event states, what it carries left aside."""
        rules = self._of_event.get(said.name)
        if rules is None:
            rules = tuple(r for r in self._rules if not r.events or said.name in r.events)
            self._of_event[said.name] = rules
        found = {}
        for rule in rules:
            value = rule.read(said)
            if value is not _ABSENT:
                found[rule.column] = value
        return found

    def unstated(
        self, said: EventFacts, columns: Mapping[str, Any], known: Mapping[str, Any], first: bool
    ) -> dict[str, Any]:
        """The columns that an event has to carry, because nothing else in it states them.

        `known` are columns that were set before without an event; `first` says that it is the
        first of its row."""
        stated = self.columns(said)
        if first:
            stated = {"created_at": said.at, **self.defaults, **stated}
        carried = {}
        for column, value in (*known.items(), *columns.items()):
            if not _same(stated.get(column, None if first else _ABSENT), value):
                carried[column] = value
        return carried


def carry(
    stated: Stated,
    said: EventFacts,
    columns: Mapping[str, Any],
    known: Mapping[str, Any],
    *,
    first: bool,
    skipped: Callable[[str], bool],
) -> dict[str, Any]:
    """What is added to the detail of a move's event: nothing, or the columns that it does not
    state otherwise."""
    counted = {name: value for name, value in columns.items() if not skipped(name)}
    carried = stated.unstated(said, counted, known, first)
    return {CARRIED: carried} if carried else {}


class Fold:
    """One row, made from its events."""

    __slots__ = ("_stated", "columns", "position", "state", "version")

    def __init__(self, stated: Stated) -> None:
        self._stated = stated
        self.columns: dict[str, Any] = {}
        self.state: str | None = None
        self.version = self.position = 0

    def take(self, said: EventFacts, position: int) -> None:
        """The next event of the row."""
        if not self.columns:
            self.columns = {**self._stated.defaults, "created_at": said.at, "updated_at": said.at}
        if "transition_seq" in said.detail:
            self.columns["updated_at"] = max(said.at, self.columns["updated_at"])
            self.state, self.version = said.detail["to"], said.detail["transition_seq"]
            self.position = position
        self.columns |= self._stated.columns(said)
        self.columns |= said.detail.get(CARRIED) or {}

    def differences(self, row: msgspec.Struct, skipped: Callable[[str], bool]) -> list[str]:
        """The columns in which a row is not what its events say."""
        return [
            name
            for name in row.__struct_fields__
            if not skipped(name) and not _same(self.columns.get(name), getattr(row, name))
        ]


def _same(stated: Any, value: Any) -> bool:
    if isinstance(stated, Digest):
        return isinstance(value, str) and sha256_hex(value.encode()) == stated.sha256
    return bool(stated == value)
