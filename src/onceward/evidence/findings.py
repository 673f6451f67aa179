"""The rules of `verify` by name, and the faults that it found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

RULES: Final[Mapping[str, str]] = {
    "chain": "every event has the hash of its own bytes and names the hash of the one before it",
    "gap": "no event is missing: 1, 2, 3… in every stream, and 1, 2, 3… over all of them",
    "stream": "every stream has a name of its own and a known form",
    "file": "a stream's file says, byte for byte, what the records say",
    "fence": "within a stream no older kernel writes after a newer one",
    "history": "every move is an arrow of its lifecycle's table and follows the move before it",
    "state": "a build, run, grant, collection or value is in the state, and says of itself, what its events say",
    "phase": "a child is in the phase, and has the place in the order, that its events say",
    "terminal": "a child ends once",
    "copy": "what a child's stream says, its session's stream says too, at the place it names",
    "totals": "every total is the sum of its debits, and a child's debits are what its last event says",
    "plan": "a plan is what its hash says",
    "checkpoint": "a checkpoint holds what the event of its step says",
    "manifest": "what a finished build made is what its last event says",
    "backlog": "a change's history, proposals and decisions are what its events say",
    "audit": "for what a value was superseded, or evidence taken, is what the events say",
    "approval": "who approved what is what the events say",
    "permit": "every confirmation token is what its events say: minted, made void, used",
    "artifact": "every artifact's bytes are there and have its digest and size",
    "ref": "everything that refers to an artifact refers to one that is known",
    "outbox": "what waits for delivery is an event, and was not delivered before",
    "request": "a request is what its hash says",
    "role": "principals have the roles that the events gave them",
    "key": "keys are sound, were proven by their owners, belong to one principal each, and are those of the events",
    "signature": "every signature is genuine, by a key in force at its place, over what the records say",
    "duty": "whoever must be somebody else is somebody else, by name and by key",
    "token": "tokens that people act with are those of the events, bound to whom they say",
    "seal": "the heads that were sealed are still what the streams have at that place",
    "form": "every record can be read as what it should be",
    "bundle": "the file holds exactly what its first page lists",
}
"""Each rule with its meaning."""

_MOST = 1000


class Fault(msgspec.Struct, frozen=True):
    """One thing that is not as it should be."""

    rule: str
    subject: str
    detail: str


class Findings(msgspec.Struct):
    """What was looked at and what is wrong; the same for the same records, whatever holds them."""

    checked: dict[str, int] = msgspec.field(default_factory=dict)
    faults: list[Fault] = msgspec.field(default_factory=list)
    more: int = 0
    """Faults beyond those that are listed."""
    notes: list[str] = msgspec.field(default_factory=list)
    """What a person should know beside: who signed."""

    @property
    def ok(self) -> bool:
        return not self.faults

    def first(self) -> str:
        """The first fault, in one line."""
        found = self.faults[0]
        return f"{found.rule}: {found.subject}: {found.detail}"

    def fault(self, rule: str, subject: str, detail: str) -> None:
        assert rule in RULES, rule
        if len(self.faults) < _MOST:
            self.faults.append(Fault(rule, subject, detail))
        else:
            self.more += 1

    def count(self, what: str, number: int = 1) -> None:
        self.checked[what] = self.checked.get(what, 0) + number

    def document(self) -> dict[str, Any]:
        said = {"ok": self.ok, "checked": self.checked, "faults": msgspec.to_builtins(self.faults)}
        said |= {"notes": self.notes} if self.notes else {}
        return {**said, "more": self.more} if self.more else said
