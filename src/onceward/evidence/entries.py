"""What the streams of collections, values and grants say, and whether their rows say the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from onceward.core.chain import Event
from onceward.core.grants import Grant
from onceward.core.machine import Machine
from onceward.core.vocabulary import Collection, Value
from onceward.evidence.ahead import Ahead
from onceward.evidence.findings import Findings
from onceward.evidence.records import Records
from onceward.lifecycles.permit import GRANT
from onceward.lifecycles.registry import COLLECTION, VALUE, meaning_of
from onceward.store.tables.registry import MetaRow

if TYPE_CHECKING:
    from onceward.core.bodies import Body
    from onceward.evidence.walk import Stream

_MACHINES: Final[dict[str, Machine]] = {"collection": COLLECTION, "grant": GRANT, "value": VALUE}
_SAID: Final = {
    "collection": ("name", "schema_digest", "root"),
    "grant": ("plan_id", "revision", "manifest_digest", "schema_digest", "environment", "executor"),
    "value": (
        *(
            "collection_id",
            "operation_code",
            "protocol_version",
            "act_type",
            "governing_authority_ref",
        ),
        *("semantics_frozen", "digest", "root"),
    ),
}
"""What the first event of each says of it, once and for all."""
_UNSAID: Final[dict[str, dict[str, Any]]] = {
    "value": {"successor": None, "audit_id": None},
    "grant": {
        **{"granter": None, "statement_hash": None, "expires_at": 0},
        **{"consumed_by_root": None, "finalized_at": None},
    },
}
"""What only a later event says."""


class Entries:
    """Collections, values and grants, each by its own stream."""

    def __init__(
        self,
        records: Records,
        findings: Findings,
        audited: Callable[[Mapping[str, Any], str, int], None],
        consumed: dict[str, int],
    ) -> None:
        self._findings, self._audited = findings, audited
        self._consumed = consumed
        """Where in the order of all events each grant was used up."""
        self._rows: dict[str, Ahead] = {
            "collection": Ahead(records.all(Collection), lambda row: row.collection_id),
            "grant": Ahead(records.all(Grant), lambda row: row.grant_id),
            "value": Ahead(records.all(Value), lambda row: row.vocab_id),
        }
        self._facts: dict[str, Any] = {}
        self._records = records
        self._first: dict[str, tuple[int, Any, Any]] = {}
        """The first collection of each name: whom the name was given to."""
        self._source = self._scope = ""

    def note(self, stream: Stream, event: Event, body: Body) -> None:
        machine = _MACHINES.get(event.source)
        if machine is None or (event.seq > 1 and event.source != self._source):
            self._findings.fault(
                "history", f"{event.stream}#{event.seq}", f"nothing here is a {event.source}"
            )
            return
        said = event.facts()["detail"]
        if event.seq == 1:
            self._source, self._facts = (
                event.source,
                {name: said.get(name) for name in _SAID[event.source]},
            )
            self._facts |= _UNSAID.get(event.source, {})
            self._scope = said.get("scope", "")
        if body.event == "VALUE_SUPERSEDED":
            self._facts |= {"successor": said.get("successor"), "audit_id": said.get("audit_id")}
            self._audited(said, stream.subject, event.position)
        elif body.event == "COLLECTION_CREATED":
            name = str(said.get("name"))
            first = self._first.get(name)
            if first is None or event.position < first[0]:
                self._first[name] = (event.position, said.get("schema_digest"), said.get("root"))
        elif body.event == "GRANT_ISSUED":
            given = {"granter": body.context.actor, "statement_hash": body.context.signed}
            self._facts |= {**given, "expires_at": said.get("expires_at")}
        elif body.event == "GRANT_CONSUMED":
            self._facts["consumed_by_root"] = said.get("root")
            self._consumed[stream.subject] = event.position
        elif body.event == "GRANT_FINALIZED":
            self._facts["finalized_at"] = event.at
        stream.move(machine, event, body, self._findings)

    def close(self, stream: Stream) -> None:
        rows = self._rows.get(self._source)
        if rows is None:
            return
        for passed in rows.before(stream.subject):
            self._alone(passed)
        row = rows.at(stream.subject)
        self._findings.count(f"{self._source}s")
        if row is None:
            self._findings.fault("state", stream.subject, "its stream tells of what is not there")
            return
        if (stream.state, stream.version) != (row.status, row.version):
            said = f"it is {row.status} at version {row.version}, but its last event says"
            self._findings.fault(
                "state", stream.subject, f"{said} {stream.state} at {stream.version}"
            )
        for name, value in self._facts.items():
            found = getattr(row, name, None)
            if (str(found) if name == "successor" and found is not None else found) != value:
                self._findings.fault("state", stream.subject, f"{name} is not what its events say")
        if isinstance(row, Grant) and self._scope != row.scope.digest():
            self._findings.fault(
                "state", stream.subject, "what it is for is not what its events say"
            )
        if isinstance(row, Value) and row.digest != meaning_of(row).digest():
            self._findings.fault("state", stream.subject, "its digest is not that of what it means")

    def finish(self) -> None:
        for rows in self._rows.values():
            for row in rows.rest():
                self._alone(row)
        given = {name: (schema, root) for name, (_, schema, root) in self._first.items()}
        for meta in self._records.all(MetaRow) if self._records.whole else ():
            if given.pop(meta.name, None) != (meta.schema_digest, meta.root):
                self._findings.fault(
                    "state", meta.name, "whose name it is is not what the events say"
                )
        for name in sorted(given) if self._records.whole else ():
            self._findings.fault(
                "state", name, "a collection has this name, and nobody was given it"
            )

    def _alone(self, row: Any) -> None:
        subject = next(
            getattr(row, name)
            for name in ("vocab_id", "grant_id", "collection_id")
            if hasattr(row, name)
        )
        self._findings.fault("state", subject, f"it is {row.status}, and no event says so")
