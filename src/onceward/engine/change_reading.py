"""How changes stand, for whoever looks: from the record alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from onceward.artifacts.blobs import Artifacts
from onceward.artifacts.file_names import recorded_path
from onceward.core.changes import ChangeSet, Decision, Entry, VerifyResult
from onceward.core.limits import DIFF_BYTES, WHOLE_DIFF_BYTES
from onceward.core.sources import iso
from onceward.engine.changes import approvals_of
from onceward.engine.diffs import FileDiff, diffs_of
from onceward.errors import NotFound
from onceward.lifecycles.change import PathRule, Policy
from onceward.lifecycles.manifest import Manifest, Origin, manifest_of
from onceward.store.port import Reads
from onceward.store.store import Store
from onceward.store.tables.changes import Changes
from onceward.store.tables.events import events_of

WAITING = {
    "marked": "a sweep",
    "review_pending": "a reviewer",
    "reviewed_deferred": "a sweep",
    "reviewed_approved": "an executor",
    "cut_applied": "a verifier",
}
"""Whom an entry waits for."""


def change_list(
    store: Store, statuses: Sequence[str] = (), author: str = "", limit: int = 50, before: str = ""
) -> list[dict[str, Any]]:
    """The newest entries and how they stand; `before` an entry, for the next page."""
    with store.read() as rows:
        return [
            {
                **{
                    "entry_id": entry.entry_id,
                    "status": entry.status,
                    "author": entry.author,
                    "cutter": entry.cutter,
                },
                **{"target": entry.target, "reason": entry.reason, "created_at": iso(at)},
                **({"escalates": entry.escalates} if entry.escalates else {}),
            }
            for entry, at in Changes(rows).newest(limit, statuses, author, before)
        ]


def change_counts(store: Store) -> dict[str, int]:
    with store.read() as rows:
        return Changes(rows).counts()


def change_status(store: Store, name: str, policy: Policy) -> dict[str, Any]:
    """An entry: what it proposes, what was said of it, what was done, what was found, and what to do next."""
    with store.read() as rows:
        found = Changes(rows)
        entry = found.named(name)
        envelope = found.envelope(entry.entry_id)
        sets = found.change_sets(entry.entry_id)
        manifest = manifest_of(envelope.body)
        approvals = approvals_of(rows, entry, policy)
        results = [result for one in sets for result in found.results(one.change_set_id)]
        lacks = approvals.lack() if entry.status in ("review_pending", "reviewed_approved") else ""
        said = {
            **{
                "entry_id": entry.entry_id,
                "status": entry.status,
                "author": entry.author,
                "reason": entry.reason,
            },
            **{"cutter": entry.cutter, "target": entry.target, "manifest": envelope.content_hash},
            **{
                "revision": envelope.revision,
                "revised_by": envelope.author,
                "key": entry.idempotency_key,
            },
            "check": list(manifest.check) or None,
            "child": _proposing_child(rows, entry.entry_id),
            "origin": None if manifest.origin is None else msgspec.to_builtins(manifest.origin),
            "units": [_unit(unit) for unit in msgspec.to_builtins(manifest.unit)],
            "escalates": entry.escalates,
            "escalations": [one.entry_id for one in found.escalations(entry.entry_id)] or None,
            "depends_on": [_short(one) for one in found.depends_on(entry.entry_id)] or None,
            "decisions": [decision_of(one) for one in found.decisions(entry.entry_id)] or None,
            "lacks": lacks or None,
            "needs": [f"{rule.glob}: {_rule(rule)}" for rule in policy.rules(manifest.places())],
            "change_sets": [_set(one) for one in sets] or None,
            "results": [result_of(one) for one in results] or None,
            "signatures": [msgspec.to_builtins(one) for one in found.signatures(entry.entry_id)]
            or None,
            "waits_for": WAITING.get(entry.status),
            "next": next_of(entry, sets),
        }
    return {key: value for key, value in said.items() if value is not None}


def _proposing_child(rows: Reads, entry_id: str) -> str | None:
    """The child that proposed an entry in its author's name, if one did."""
    first = next(events_of(rows, f"entry:{entry_id}"))
    child: str | None = first.facts()["detail"].get("child")
    return child


def change_verdict(store: Store, name: str, policy: Policy) -> dict[str, Any]:
    """An entry that was verified, with its newest result in the middle."""
    said = change_status(store, name, policy)
    undone = [one["status"] for one in said.get("change_sets", ()) if one["kind"] == "undo"]
    said |= {"undo": undone[-1]} if undone else {}
    said |= {"escalation": said["escalations"][-1]} if "escalations" in said else {}
    return {**said, "result": said["results"][-1], "fresh": True}


def decision_of(decision: Decision) -> dict[str, Any]:
    said = {**msgspec.to_builtins(decision), "decided_at": iso(decision.decided_at)}
    return {
        key: value
        for key, value in said.items()
        if value is not None and key not in ("entry_id", "entry_version")
    }


def _rule(rule: PathRule) -> str:
    people = "1 approval" if rule.approvals == 1 else f"{rule.approvals} approvals"
    return f"{people}, one by somebody with the role {rule.role}" if rule.role else people


def _short(entry: Entry) -> dict[str, str]:
    return {"entry_id": entry.entry_id, "status": entry.status}


def _unit(unit: Mapping[str, Any]) -> dict[str, Any]:
    modes = {
        name: f"{unit[name]:o}"
        for name in ("before_mode", "after_mode")
        if unit.get(name) is not None
    }
    return {**unit, **modes}


def _set(one: ChangeSet) -> dict[str, Any]:
    said = msgspec.to_builtins(one)
    return {
        key: value
        for key, value in said.items()
        if value is not None and key not in ("entry_id", "version")
    }


def result_of(result: VerifyResult) -> dict[str, Any]:
    """A result with its findings as data."""
    said = {
        **msgspec.to_builtins(result),
        "passed": bool(result.passed),
        "verified_at": iso(result.verified_at),
    }
    said["detail"] = msgspec.json.decode(result.detail)
    return {key: value for key, value in said.items() if value is not None}


def next_of(entry: Entry, sets: Sequence[ChangeSet]) -> str | None:
    """What a person would type next."""
    stuck = [one for one in sets if one.status in ("open", "stuck")]
    if entry.status == "verify_failed_escalated":
        return f"onceward change verify {entry.entry_id}" if stuck else None
    return {
        "marked": "onceward change sweep",
        "reviewed_deferred": "onceward change sweep",
        "review_pending": f"onceward change review {entry.entry_id}",
        "reviewed_approved": f"onceward change cut {entry.entry_id}",
        "cut_applied": f"onceward change verify {entry.entry_id}",
    }.get(entry.status)


def change_history(store: Store, name: str) -> list[dict[str, Any]]:
    """Every arrow of an entry's life."""
    with store.read() as rows:
        found = Changes(rows)
        history = found.history(found.named(name).entry_id)
    return [
        {
            key: value
            for key, value in {**msgspec.to_builtins(row), "at": iso(row.at)}.items()
            if value is not None
        }
        | {"detail": msgspec.json.decode(row.detail)}
        for row in history
    ]


def change_hash(store: Store, name: str) -> tuple[str, str]:
    """An entry's whole id, and the digest of what it proposes now."""
    with store.read() as rows:
        found = Changes(rows)
        entry = found.named(name)
        return entry.entry_id, found.envelope(entry.entry_id).content_hash


class Proposed(msgspec.Struct, frozen=True):
    """What an entry would do: all that an approval is for."""

    entry_id: str
    manifest: str
    target: str
    check: Sequence[str]
    files: list[FileDiff]
    origin: Origin | None = None


def change_diff(
    artifacts: Artifacts, name: str, paths: Sequence[str] = (), *, whole: bool = False
) -> Proposed:
    """What an entry would do, file by file; with its id and the digest that an approval is for."""
    with artifacts.store.read() as rows:
        found = Changes(rows)
        entry = found.named(name)
        envelope = found.envelope(entry.entry_id)
    manifest: Manifest = manifest_of(envelope.body)
    known = set(manifest.paths())
    paths = [path if path in known else recorded_path(path) for path in paths]
    odd = [path for path in paths if path not in known]
    if odd:
        raise NotFound(
            f"the change has nothing to do with {odd[0][:80]}", context={"path": odd[0][:200]}
        )
    limit = WHOLE_DIFF_BYTES if whole else DIFF_BYTES
    files = diffs_of(artifacts, manifest, paths, limit)
    return Proposed(
        entry_id=entry.entry_id,
        manifest=envelope.content_hash,
        target=manifest.target,
        check=manifest.check,
        files=files,
        origin=manifest.origin,
    )
