"""Changes in plain words."""

from __future__ import annotations

import msgspec

from onceward.core.changes import ChangeSet, Decision, Entry, VerifyResult
from onceward.engine.change_reading import WAITING, next_of
from onceward.engine.explanation import Explanation, Kind, story, who_may
from onceward.lifecycles.manifest import manifest_of
from onceward.store.port import Reads
from onceward.store.store import Store
from onceward.store.tables.changes import Changes

_MAY = {
    "marked": "operator",
    "reviewed_deferred": "operator",
    "review_pending": "reviewer",
    "reviewed_approved": "executor",
    "cut_applied": "verifier",
}


def _find(rows: Reads, name: str) -> str | None:
    if name.startswith("cst_"):
        return Changes(rows).set_named(name).entry_id
    if name == "change:latest":
        return Changes(rows).named("latest").entry_id
    name = name.removeprefix("change:")
    return Changes(rows).named(name).entry_id if name.startswith("ent_") else None


def _change(store: Store, entry_id: str) -> Explanation:
    with store.read() as rows:
        found = Changes(rows)
        entry, envelope = found.get(entry_id), found.envelope(entry_id)
        sets, decisions = found.change_sets(entry_id), found.decisions(entry_id)
        results = [result for one in sets for result in found.results(one.change_set_id)]
        waits = [
            one.entry_id for one in found.depends_on(entry_id) if one.status != "verified_complete"
        ]
        escalations = found.escalations(entry_id)
        moves = story(rows, f"entry:{entry_id}", "change")
        who = who_may(rows, _MAY[entry.status]) if entry.status in _MAY else []
    manifest = manifest_of(envelope.body)
    what = [f"a change of {entry.target} ({entry.cutter}), proposed by {entry.author}"]
    what += [f"because: {entry.reason}"] if entry.reason else []
    what += (
        [f"asks about {entry.escalates}, which failed its verification"] if entry.escalates else []
    )
    following = next_of(entry, sets)
    return Explanation(
        *(entry_id, "change", what, entry.status),
        why=_why(entry, decisions, sets, results),
        story=moves,
        waits_for=[
            *(f"{one} to be verified" for one in waits if entry.status == "reviewed_approved"),
            *([WAITING[entry.status]] if entry.status in WAITING else []),
        ],
        who=who,
        made=[
            _paths(manifest.paths()),
            f"manifest {envelope.content_hash}",
            *(f"{one.kind} {one.change_set_id}: {one.status}" for one in sets),
        ],
        next=[
            *([following] if following else []),
            *(f"onceward change show {one.entry_id}" for one in escalations[-1:]),
            f"onceward change diff {entry_id}",
            f"onceward export {entry_id}",
        ],
    )


def _why(
    entry: Entry, decisions: list[Decision], sets: list[ChangeSet], results: list[VerifyResult]
) -> list[str]:
    last = decisions[-1] if decisions else None
    said = {
        "marked": ["nobody has brought it up for review yet"],
        "review_pending": ["it is up for review"],
        "cut_applied": ["it is carried out, and nobody else has checked it yet"],
        "abandoned": ["an admin gave it up"],
    }.get(entry.status, [])
    if last is not None and entry.status.startswith("review"):
        said = [
            *said,
            f"{last.reviewer} said {last.decision}{f': {last.reason}' if last.reason else ''}",
        ]
    if results:
        found = msgspec.json.decode(results[-1].detail)
        wrong = [
            f"{found[name]['count']} {name}"
            for name in ("different", "missing", "extra")
            if name in found
        ]
        verdict = (
            "found it as approved"
            if results[-1].passed
            else f"found it otherwise: {', '.join(wrong) or 'its check failed'}"
        )
        said = [*said, f"{results[-1].verifier} {verdict}"]
    stuck = [one for one in sets if one.status == "stuck"]
    return [
        *said,
        *(f"{one.change_set_id} is stuck: somebody else changed its files" for one in stuck),
    ]


def _paths(paths: list[str]) -> str:
    more = " ..." if len(paths) > 5 else ""
    return f"{len(paths):,} path{'' if len(paths) == 1 else 's'}: {', '.join(paths[:5])}{more}"


KINDS = (Kind("change", _find, _change),)
