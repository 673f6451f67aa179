"""Views of changes: list, status, difference, history, explanation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from onceward.artifacts.blobs import Artifacts
from onceward.artifacts.file_names import recorded_path
from onceward.changes import rules
from onceward.changes.diffs import FileDiff, diffs_of
from onceward.changes.lifecycle import approvals_of
from onceward.changes.manifest import Origin, manifest_of
from onceward.core.changes import (
    ChangeSet,
    Decision,
    Entry,
    HistoryRow,
    PairSignature,
    PathRule,
    Policy,
    Unit,
    VerifyResult,
)
from onceward.core.limits import DIFF_BYTES, WHOLE_DIFF_BYTES
from onceward.core.sources import iso
from onceward.core.views import Explanation, View
from onceward.people.principals import who_may
from onceward.store.port import Reads
from onceward.store.store import Store
from onceward.store.subject import Kind, story
from onceward.store.tables.changes import Changes
from onceward.store.tables.events import events_of

WAITS_FOR: Final = {
    "marked": "a sweep",
    "review_pending": "a reviewer",
    "reviewed_deferred": "a sweep",
    "reviewed_approved": "an executor",
    "cut_applied": "a verifier",
}
"""Whom an entry waits for, by its status."""
_ROLES: Final = {
    "marked": "operator",
    "reviewed_deferred": "operator",
    "review_pending": "reviewer",
    "reviewed_approved": "executor",
    "cut_applied": "verifier",
}


class ChangeSummary(View, frozen=True):
    """An entry in a list."""

    entry_id: str
    status: str
    author: str
    cutter: str
    target: str
    reason: str
    created_at: str
    escalates: str | None = None
    waits_for: str | None = None
    next: str | None = None
    """The command that brings it on."""


class UnitView(View, frozen=True):
    """One thing that becomes another, with its modes as people write them."""

    path: str
    before: str | None = None
    after: str | None = None
    before_mode: str | None = None
    after_mode: str | None = None


class EntryStatus(View, frozen=True):
    """Another entry, and how it stands."""

    entry_id: str
    status: str


class DecisionView(View, frozen=True):
    """What a reviewer decided about exactly one manifest."""

    decision_id: str
    content_hash: str
    reviewer: str
    decision: str
    reason: str
    decided_at: str
    statement_hash: str | None = None


class ChangeSetView(View, frozen=True):
    """One carrying-out of an approval, or the undoing of one."""

    change_set_id: str
    decision_id: str
    kind: str
    executor: str
    status: str
    of_change_set: str | None = None


class ResultView(View, frozen=True):
    """What a verification found, with its findings as data."""

    verify_result_id: str
    change_set_id: str
    passed: bool
    detail: dict[str, Any]
    verifier: str
    verified_at: str
    prior_verify_result_id: str | None = None


class ChangeView(View, frozen=True):
    """An entry: what it proposes, what was decided, done and found, and what to do next."""

    entry_id: str
    status: str
    author: str
    reason: str
    cutter: str
    target: str
    manifest: str
    revision: int
    revised_by: str
    key: str
    units: list[UnitView]
    needs: list[str]
    """The approvals that its paths need."""
    lacks: str | None = None
    check: list[str] | None = None
    child: str | None = None
    """The child that proposed it in its author's name."""
    origin: Origin | None = None
    escalates: str | None = None
    escalations: list[str] | None = None
    depends_on: list[EntryStatus] | None = None
    decisions: list[DecisionView] | None = None
    change_sets: list[ChangeSetView] | None = None
    results: list[ResultView] | None = None
    signatures: list[PairSignature] | None = None
    waits_for: str | None = None
    next: str | None = None
    commit: str | None = None
    """The commit of what it changed, where one was asked for with the command."""

    def sets(self, kind: str = "") -> list[ChangeSetView]:
        """Its change sets, all or of one kind."""
        return [one for one in self.change_sets or () if kind in ("", one.kind)]

    @property
    def stuck(self) -> bool:
        return any(one.status == "stuck" for one in self.sets())


class VerdictView(ChangeView, frozen=True, kw_only=True):
    """An entry that was verified, with the result."""

    result: ResultView
    fresh: bool
    """Whether it was verified now, and not before."""
    escalation: str | None = None
    undo: str | None = None
    """How the restoring of the files stands."""


class HistoryView(View, frozen=True):
    """One arrow of an entry's life."""

    history_id: str
    entry_id: str
    to_state: str
    actor: str
    reason: str
    at: str
    detail: dict[str, Any]
    seq: int
    from_state: str | None = None
    signature_ref: str | None = None


class DiffView(msgspec.Struct, frozen=True):
    """What an entry would do: all that an approval is for."""

    entry_id: str
    manifest: str
    target: str
    check: Sequence[str]
    files: list[FileDiff]
    origin: Origin | None = None


def change_list(
    store: Store, statuses: Sequence[str] = (), author: str = "", limit: int = 50, before: str = ""
) -> list[ChangeSummary]:
    """The newest entries and how they stand; `before` an entry, for the next page."""
    with store.read() as rows:
        found = Changes(rows)
        return [
            ChangeSummary(
                entry_id=entry.entry_id,
                status=entry.status,
                author=entry.author,
                cutter=entry.cutter,
                target=entry.target,
                reason=entry.reason,
                created_at=iso(at),
                escalates=entry.escalates or None,
                waits_for=WAITS_FOR.get(entry.status),
                next=_next(entry, found),
            )
            for entry, at in found.newest(limit, statuses, author, before)
        ]


def change_counts(store: Store) -> dict[str, int]:
    """How many entries have which status."""
    with store.read() as rows:
        return Changes(rows).counts()


def change_view(store: Store, name: str, policy: Policy) -> ChangeView:
    """An entry, by its id, the beginning of it, or `latest`."""
    with store.read() as rows:
        return _view(rows, Changes(rows).named(name), policy)


def _view(rows: Reads, entry: Entry, policy: Policy) -> ChangeView:
    found = Changes(rows)
    envelope = found.envelope(entry.entry_id)
    manifest = manifest_of(envelope.body)
    sets = found.change_sets(entry.entry_id)
    results = [result for one in sets for result in found.results(one.change_set_id)]
    undecided = entry.status in ("review_pending", "reviewed_approved")
    lacks = approvals_of(rows, entry, policy).lack() if undecided else ""
    depends_on = [
        EntryStatus(entry_id=one.entry_id, status=one.status)
        for one in found.depends_on(entry.entry_id)
    ]
    return ChangeView(
        entry_id=entry.entry_id,
        status=entry.status,
        author=entry.author,
        reason=entry.reason,
        cutter=entry.cutter,
        target=entry.target,
        manifest=envelope.content_hash,
        revision=envelope.revision,
        revised_by=envelope.author,
        key=entry.idempotency_key,
        units=[_unit(unit) for unit in manifest.unit],
        needs=[f"{rule.glob}: {_approvals(rule)}" for rule in policy.rules(manifest.places())],
        lacks=lacks or None,
        check=list(manifest.check) or None,
        child=_proposing_child(rows, entry.entry_id),
        origin=manifest.origin,
        escalates=entry.escalates,
        escalations=[one.entry_id for one in found.escalations(entry.entry_id)] or None,
        depends_on=depends_on or None,
        decisions=[_decision(one) for one in found.decisions(entry.entry_id)] or None,
        change_sets=[_change_set(one) for one in sets] or None,
        results=[result_view(one) for one in results] or None,
        signatures=list(found.signatures(entry.entry_id)) or None,
        waits_for=WAITS_FOR.get(entry.status),
        next=_next(entry, found),
    )


def change_verdict(store: Store, name: str, policy: Policy) -> VerdictView:
    """An entry that was verified, with its newest result."""
    view = change_view(store, name, policy)
    assert view.results is not None
    undone = [one.status for one in view.sets("undo")]
    return verdict(
        view,
        view.results[-1],
        fresh=True,
        escalation=view.escalations[-1] if view.escalations else None,
        undo=undone[-1] if undone else None,
    )


def verdict(
    view: ChangeView,
    result: ResultView,
    *,
    fresh: bool,
    escalation: str | None,
    undo: str | None,
) -> VerdictView:
    """An entry together with what was found there."""
    return VerdictView(
        **msgspec.structs.asdict(view),
        result=result,
        fresh=fresh,
        escalation=escalation,
        undo=undo,
    )


def _unit(unit: Unit) -> UnitView:
    return UnitView(
        path=unit.path,
        before=unit.before,
        after=unit.after,
        before_mode=_octal(unit.before_mode),
        after_mode=_octal(unit.after_mode),
    )


def _octal(mode: int | None) -> str | None:
    return None if mode is None else f"{mode:o}"


def _proposing_child(rows: Reads, entry_id: str) -> str | None:
    first = next(events_of(rows, f"entry:{entry_id}"))
    child: str | None = first.facts()["detail"].get("child")
    return child


def _approvals(rule: PathRule) -> str:
    people = "1 approval" if rule.approvals == 1 else f"{rule.approvals} approvals"
    return f"{people}, one by somebody with the role {rule.role}" if rule.role else people


def _decision(decision: Decision) -> DecisionView:
    return DecisionView(
        decision_id=decision.decision_id,
        content_hash=decision.content_hash,
        reviewer=decision.reviewer,
        decision=decision.decision,
        reason=decision.reason,
        decided_at=iso(decision.decided_at),
        statement_hash=decision.statement_hash,
    )


def _change_set(one: ChangeSet) -> ChangeSetView:
    return ChangeSetView(
        change_set_id=one.change_set_id,
        decision_id=one.decision_id,
        kind=one.kind,
        executor=one.executor,
        status=one.status,
        of_change_set=one.of_change_set,
    )


def result_view(result: VerifyResult) -> ResultView:
    return ResultView(
        verify_result_id=result.verify_result_id,
        change_set_id=result.change_set_id,
        passed=bool(result.passed),
        detail=msgspec.json.decode(result.detail),
        verifier=result.verifier,
        verified_at=iso(result.verified_at),
        prior_verify_result_id=result.prior_verify_result_id,
    )


def _next(entry: Entry, found: Changes) -> str | None:
    """What a person would type next."""
    if entry.status == "verify_failed_escalated":
        sets = found.change_sets(entry.entry_id)
        unfinished = any(one.status in ("open", "stuck") for one in sets)
        return f"onceward change verify {entry.entry_id}" if unfinished else None
    return {
        "marked": "onceward change sweep",
        "reviewed_deferred": "onceward change sweep",
        "review_pending": f"onceward change review {entry.entry_id}",
        "reviewed_approved": f"onceward change cut {entry.entry_id}",
        "cut_applied": f"onceward change verify {entry.entry_id}",
    }.get(entry.status)


def change_history(store: Store, name: str) -> list[HistoryView]:
    """Every arrow of an entry's life."""
    with store.read() as rows:
        found = Changes(rows)
        return [_arrow(row) for row in found.history(found.named(name).entry_id)]


def _arrow(row: HistoryRow) -> HistoryView:
    return HistoryView(
        history_id=row.history_id,
        entry_id=row.entry_id,
        to_state=row.to_state,
        actor=row.actor,
        reason=row.reason,
        at=iso(row.at),
        detail=msgspec.json.decode(row.detail),
        seq=row.seq,
        from_state=row.from_state,
        signature_ref=row.signature_ref,
    )


def change_hash(store: Store, name: str) -> tuple[str, str]:
    """An entry's whole id, and the digest of what it proposes now."""
    with store.read() as rows:
        found = Changes(rows)
        entry = found.named(name)
        return entry.entry_id, found.envelope(entry.entry_id).content_hash


def change_diff(
    artifacts: Artifacts, name: str, paths: Sequence[str] = (), *, whole: bool = False
) -> DiffView:
    """What an entry would do, file by file; with its id and the digest that an approval is for."""
    with artifacts.store.read() as rows:
        found = Changes(rows)
        entry = found.named(name)
        envelope = found.envelope(entry.entry_id)
    manifest = manifest_of(envelope.body)
    known = set(manifest.paths())
    paths = [path if path in known else recorded_path(path) for path in paths]
    unknown = [path for path in paths if path not in known]
    rules.require_paths_of_change(unknown)
    limit = WHOLE_DIFF_BYTES if whole else DIFF_BYTES
    return DiffView(
        entry_id=entry.entry_id,
        manifest=envelope.content_hash,
        target=manifest.target,
        check=manifest.check,
        files=diffs_of(artifacts, manifest, paths, limit),
        origin=manifest.origin,
    )


# Explained in words.


def _find(rows: Reads, name: str) -> str | None:
    if name.startswith("cst_"):
        return Changes(rows).set_named(name).entry_id
    if name == "change:latest":
        return Changes(rows).named("latest").entry_id
    name = name.removeprefix("change:")
    return Changes(rows).named(name).entry_id if name.startswith("ent_") else None


def _explain(store: Store, entry_id: str) -> Explanation:
    with store.read() as rows:
        view = _view(rows, Changes(rows).get(entry_id), Policy())
        moves = story(rows, f"entry:{entry_id}", "change")
        who = who_may(rows, _ROLES[view.status]) if view.status in _ROLES else []
    what = [f"a change of {view.target} ({view.cutter}), proposed by {view.author}"]
    if view.reason:
        what.append(f"because: {view.reason}")
    if view.escalates:
        what.append(f"asks about {view.escalates}, which failed its verification")
    return Explanation(
        id=entry_id,
        kind="change",
        what=what,
        state=view.status,
        why=_why(view),
        story=moves,
        waits_for=_waits_for(view),
        who=who,
        made=[
            _paths([unit.path for unit in view.units]),
            f"manifest {view.manifest}",
            *(f"{one.kind} {one.change_set_id}: {one.status}" for one in view.sets()),
        ],
        next=_commands(view),
    )


def _why(view: ChangeView) -> list[str]:
    sentences = {
        "marked": ["nobody has brought it up for review yet"],
        "review_pending": ["it is up for review"],
        "cut_applied": ["it is carried out, and nobody else has checked it yet"],
        "abandoned": ["an admin gave it up"],
    }.get(view.status, [])
    if view.decisions and view.status.startswith("review"):
        last = view.decisions[-1]
        because = f": {last.reason}" if last.reason else ""
        sentences = [*sentences, f"{last.reviewer} said {last.decision}{because}"]
    if view.results:
        sentences = [*sentences, _finding(view.results[-1])]
    stuck = [one.change_set_id for one in view.sets() if one.status == "stuck"]
    return [
        *sentences,
        *(f"{name} is stuck: somebody else changed its files" for name in stuck),
    ]


def _finding(result: ResultView) -> str:
    if result.passed:
        return f"{result.verifier} found it as approved"
    wrong = [
        f"{result.detail[name]['count']} {name}"
        for name in ("different", "missing", "extra")
        if name in result.detail
    ]
    return f"{result.verifier} found it otherwise: {', '.join(wrong) or 'its check failed'}"


def _waits_for(view: ChangeView) -> list[str]:
    needed = [
        f"{one.entry_id} to be verified"
        for one in view.depends_on or ()
        if one.status != "verified_complete" and view.status == "reviewed_approved"
    ]
    return [*needed, view.waits_for] if view.waits_for else needed


def _commands(view: ChangeView) -> list[str]:
    first = [view.next] if view.next else []
    escalated = [f"onceward change show {name}" for name in (view.escalations or ())[-1:]]
    return [
        *first,
        *escalated,
        f"onceward change diff {view.entry_id}",
        f"onceward export {view.entry_id}",
    ]


def _paths(paths: list[str]) -> str:
    more = " ..." if len(paths) > 5 else ""
    return f"{len(paths):,} path{'' if len(paths) == 1 else 's'}: {', '.join(paths[:5])}{more}"


KINDS = (Kind("change", _find, _explain),)
