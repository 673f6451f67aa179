"""The streams of collections, values and grants, held against their rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from onceward.core.chain import Event
from onceward.core.grants import Grant
from onceward.core.machine import Machine
from onceward.core.vocabulary import Value
from onceward.evidence.findings import Findings
from onceward.evidence.records import Records
from onceward.evidence.rows import FoldedRows
from onceward.grants.machine import GRANT
from onceward.registry.machine import COLLECTION, VALUE, meaning_of
from onceward.registry.rules import digest_of
from onceward.store.tables.registry import MetaRow

if TYPE_CHECKING:
    from onceward.core.bodies import EventBody
    from onceward.evidence.walk import Stream

_MACHINES: Final[dict[str, Machine]] = {"collection": COLLECTION, "grant": GRANT, "value": VALUE}


class Entries:
    """Collections, values and grants, each by its own stream."""

    def __init__(
        self,
        records: Records,
        findings: Findings,
        audited: Callable[[Mapping[str, Any], str, Event], None],
        consumed: dict[str, int],
    ) -> None:
        self._findings, self._audited = findings, audited
        self._consumed = consumed
        """The position at which each grant was consumed."""
        self._rows = {
            name: FoldedRows(records, findings, name, counted=f"{name}s") for name in _MACHINES
        }
        self._records = records
        self._first: dict[str, tuple[int, MetaRow]] = {}
        """The first collection of each name: whom the name was given to."""
        self._source = self._scope = ""

    def note(self, stream: Stream, event: Event, body: EventBody) -> None:
        """An event of the stream of a collection, a value or a grant."""
        machine = _MACHINES.get(event.source)
        if machine is None or (event.seq > 1 and event.source != self._source):
            self._findings.fault(
                "history", f"{event.stream}#{event.seq}", f"nothing here is a {event.source}"
            )
            return
        facts = event.facts()
        detail = facts["detail"]
        if event.seq == 1:
            self._source, self._scope = event.source, detail.get("scope", "")
        self._rows[event.source].take(machine, event, facts)
        if body.event == "VALUE_SUPERSEDED":
            self._audited(detail, stream.subject, event)
        elif body.event == "COLLECTION_CREATED":
            name = str(detail.get("name"))
            first = self._first.get(name)
            if first is None or event.position < first[0]:
                meta = MetaRow(name, detail.get("schema_digest"), detail.get("root"), event.at)
                self._first[name] = (event.position, meta)
        elif body.event == "GRANT_CONSUMED":
            self._consumed[stream.subject] = event.position
        stream.move(machine, event, body, self._findings)

    def close(self, stream: Stream) -> None:
        """The stream's events are over: hold its row against them."""
        rows = self._rows.get(self._source)
        if rows is None:
            return
        row = rows.close(stream.subject)
        if isinstance(row, Grant) and self._scope != row.scope.digest():
            self._findings.fault(
                "state", stream.subject, "what it is for is not what its events say"
            )
        if isinstance(row, Value) and row.digest != digest_of(meaning_of(row)):
            self._findings.fault("state", stream.subject, "its digest is not that of what it means")

    def finish(self) -> None:
        """What is left over when every event was seen."""
        for rows in self._rows.values():
            rows.finish()
        if not self._records.whole:
            return
        given = {name: meta for name, (_, meta) in self._first.items()}
        for meta in self._records.all(MetaRow):
            if given.pop(meta.name, None) != meta:
                self._findings.fault(
                    "state", meta.name, "whose name it is is not what the events say"
                )
        for name in sorted(given):
            self._findings.fault(
                "state", name, "a collection has this name, and nobody was given it"
            )
