"""Rows of a lifecycle held against their events: every column that is evidence is what its
events add up to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from onceward.core.chain import Event
from onceward.core.fold import EventFacts, Fold
from onceward.core.machine import Machine
from onceward.evidence.ahead import Ahead
from onceward.evidence.findings import Findings
from onceward.evidence.records import Records
from onceward.store.schema import LIFECYCLES


class FoldedRows:
    """The rows of one lifecycle, read along with the streams that tell of them."""

    def __init__(
        self,
        records: Records,
        findings: Findings,
        lifecycle: str,
        *,
        counted: str,
        rule: str = "state",
        eventless: Callable[[Any], None] | None = None,
        told_elsewhere: Sequence[str] = (),
    ) -> None:
        """`told_elsewhere` are columns that events of other streams tell of, as long as the row
        is not terminal."""
        self.table = LIFECYCLES[lifecycle]
        self._findings, self._counted, self._rule = findings, counted, rule
        self._eventless = eventless or self._fault_of_eventless
        self._told_elsewhere = told_elsewhere
        (key,) = self.table.key
        self._key = key
        self._rows = Ahead(records.all(self.table.proven()), attrgetter(key))
        self._positions = Ahead(records.positions(self.table), lambda row: row[0])
        self._whole = records.whole
        self._fold: Fold | None = None
        self._terminal: Sequence[str] = ()

    def take(self, machine: Machine, event: Event, facts: Mapping[str, Any]) -> None:
        """The next event of the subject that is looked at."""
        if self._fold is None:
            self._fold = Fold(machine.stated)
            self._terminal = machine.terminal
        said = EventFacts(facts["event"], event.at, facts["context"], facts["detail"])
        self._fold.take(said, event.position)

    def close(self, subject: str) -> Any:
        """The subject's events are over: answers its row, or None where there is none."""
        fold, self._fold = self._fold, None
        for passed in self._rows.before(subject):
            self._eventless(passed)
        row = self._rows.at(subject)
        self._findings.count(self._counted)
        if row is None:
            self._fault(subject, "its events tell of what is not there")
            return None
        if fold is not None:
            self._compare(subject, row, fold)
        return row

    def _compare(self, subject: str, row: Any, fold: Fold) -> None:
        assert self.table.lifecycle is not None
        fold.columns[self._key] = subject
        fold.columns[self.table.lifecycle.state] = fold.state
        fold.columns["version"] = fold.version
        if fold.state not in self._terminal:
            fold.columns |= {name: getattr(row, name) for name in self._told_elsewhere}
        for name in fold.differences(row, self.table.skips):
            self._fault(subject, f"{name} is not what its events say")
        for _ in self._positions.before(subject):
            pass
        position = self._positions.at(subject)
        if self._whole and (position is None or position[1] != fold.position):
            self._fault(subject, "position is not that of its last event")

    def finish(self) -> None:
        """The rows that are left have no events."""
        for row in self._rows.rest():
            self._eventless(row)

    def _fault_of_eventless(self, row: Any) -> None:
        assert self.table.lifecycle is not None
        state = getattr(row, self.table.lifecycle.state)
        self._fault(getattr(row, self._key), f"it is {state}, and no event says so")

    def _fault(self, subject: str, why: str) -> None:
        self._findings.fault(self._rule, subject, why)
