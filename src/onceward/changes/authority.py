"""Whether what is recorded about a change was signed: the decisions of reviewers, and the cut (H-5)."""

from __future__ import annotations

from typing import Any

from onceward.changes.machine import CHANGE
from onceward.core.chain import Event
from onceward.core.changes import (
    DECISIONS,
    ChangeSet,
    Decision,
    Entry,
    PairSignature,
    said_of_pair,
)
from onceward.people.authority import UNREADABLE, Authority, Doubt, SignedRequest
from onceward.people.signing import CHANGE as CHANGE_STATEMENT
from onceward.people.signing import STATEMENT
from onceward.store.port import Reads
from onceward.store.tables.keys import workspace_id


def objection_to_decision(
    authority: Authority, rows: Reads, entry: Entry, decision: Decision, *, begun: bool = False
) -> str:
    """Why a decision about a change is not to be believed; empty where its reviewer signed exactly that with the
    role it needs, and the entry agrees with its history. A cut that has `begun` is finished also when its reviewer
    has left since."""
    try:
        events = _history(authority, rows, entry)
        asked = _decided(authority, rows, events, decision, now=not begun)
        edited = authority.edited(rows, decision.reviewer)
        if edited:
            return f"the {edited} of {decision.reviewer} were edited"
        authority.require_kept(rows, asked, entry.entry_id, events)
        return ""
    except Doubt as doubt:
        return str(doubt)
    except UNREADABLE:
        return "a statement about it lacks something"


def objection_to_cut(
    authority: Authority,
    rows: Reads,
    entry: Entry,
    cut: ChangeSet,
    decision: Decision,
    signed: PairSignature,
) -> str:
    """Why a cut is not to be believed; empty where a reviewer signed exactly this proposal, and an executor signed
    that they cut it."""
    try:
        events = _history(authority, rows, entry)
        _decided(authority, rows, events, decision, now=False)
        predicate = _pair(authority, rows, signed)
        wanted = {
            **said_of_pair(signed, cut, None),
            "act": "change.cut",
            "manifest": decision.content_hash,
            "workspace": workspace_id(rows),
        }
        if any(predicate.get(name) != value for name, value in wanted.items()):
            return "the executor signed for another change"
        head = predicate["head"]
        hashes = {event.seq: event.hash.hex() for event in events}
        if head["stream"] != f"entry:{entry.entry_id}" or hashes[head["seq"]] != head["hash"]:
            return "the executor signed after another history than this one"
        return ""
    except Doubt as doubt:
        return str(doubt)
    except UNREADABLE:
        return "a statement of its cut lacks something"


def _history(authority: Authority, rows: Reads, entry: Entry) -> list[Event]:
    """The events of an entry, if they lead to its state."""
    events = authority.history(rows, f"entry:{entry.entry_id}", CHANGE)
    moves = [event.facts()["detail"] for event in events if event.source == CHANGE.name]
    last = moves[-1] if moves else {}
    if (last.get("to"), last.get("transition_seq")) != (entry.status, entry.version):
        raise Doubt(f"the entry is not {entry.status} by its history")
    return events


def _decided(
    authority: Authority, rows: Reads, events: list[Event], decision: Decision, *, now: bool
) -> SignedRequest:
    """What a reviewer signed, if it is what their decision says."""
    for event in events:
        line = event.facts()
        if line["detail"].get("decision_id") != decision.decision_id:
            continue
        recorded = (
            line["detail"].get("manifest"),
            line["context"].get("actor"),
            DECISIONS.get(line["event"], line["detail"].get("decision")),
            line["context"].get("signed"),
        )
        stored = (
            decision.content_hash,
            decision.reviewer,
            decision.decision,
            decision.statement_hash,
        )
        if recorded != stored:
            raise Doubt("it is not what its event says")
        return authority.believe(rows, event, now=now)
    raise Doubt("no event tells of it")


def _pair(authority: Authority, rows: Reads, signed: PairSignature) -> dict[str, Any]:
    """What an executor signed, with a key in force and the role."""
    principal, envelope = authority.envelope(rows, signed.statement_hash, "executor")
    said = envelope.said()
    names = (said["_type"], said["predicateType"], signed.principal, signed.fingerprint)
    if names != (STATEMENT, CHANGE_STATEMENT, principal, envelope.fingerprint):
        raise Doubt("it is signed for somebody or something else")
    return dict(said["predicate"])
