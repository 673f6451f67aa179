"""Verification by somebody else: exactly the approved files, every digest, nothing extra, and the entry's own check
(H-6). A cut that fails is undone, and escalated as an entry of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from onceward.artifacts.blobs import Blob
from onceward.artifacts.tree_state import (
    TreeState,
    after_cuts,
    changed,
    drift_digest,
    files_by,
    named,
)
from onceward.artifacts.trees import ODD, File, Tree, after, before, folders_of, unit_of
from onceward.changes import lifecycle as changes
from onceward.changes import machine, rules
from onceward.changes.authority import objection_to_cut
from onceward.changes.cut import (
    listing_of,
    manifest_for,
    open_set,
    own_place,
    require_signer,
    tool_revision,
    tree_of,
    undo,
    unfinished,
)
from onceward.changes.lifecycle import Proposed
from onceward.changes.manifest import Manifest
from onceward.changes.registry_cutter import plan_in, root_of
from onceward.core.canon import canonical, sha256_hex
from onceward.core.changes import Affected, ChangeSet, Entry, Unit, VerifyResult, result_digest
from onceward.core.limits import MAX_NAMED_PATHS
from onceward.core.tree_paths import REGISTRY, TREE, beneath
from onceward.dispatch.machine import Ended
from onceward.dispatch.work import Command
from onceward.errors import InvalidConfig
from onceward.kernel import attest
from onceward.kernel.foreground import serving
from onceward.kernel.kernel import Kernel
from onceward.people.actor import Actor
from onceward.store.port import Reads
from onceward.store.tables.artifacts import find
from onceward.store.tables.changes import Changes, add_row
from onceward.store.tables.events import events_of
from onceward.store.tables.registry import Registry
from onceward.store.tables.sagas import Runs
from onceward.store.transaction import Transaction


class Inspection(msgspec.Struct):
    """What a verification found: paths that differ, are missing or are extra, and how the check ended."""

    units: int
    different: list[str] = []
    missing: list[str] = []
    extra: list[str] = []
    check: dict[str, Any] | None = None
    drift: list[Unit] = []
    """What is otherwise beside the change itself, and was so before anybody looked: refused, or accepted."""

    @property
    def passed(self) -> bool:
        return not (self.different or self.missing or self.extra) and (
            self.check is None or self.check["passed"]
        )

    def text(self) -> str:
        """As stored: the first paths of each kind, and the number of all of them."""
        said: dict[str, Any] = {
            "units": self.units,
            **({"check": self.check} if self.check is not None else {}),
        }
        for name in ("different", "missing", "extra"):
            paths = getattr(self, name)
            if paths:
                said[name] = {"count": len(paths), "paths": paths[:MAX_NAMED_PATHS]}
        if self.drift:
            said["accepted_drift"] = {
                "count": len(self.drift),
                "digest": drift_digest(self.drift),
                "paths": [unit.path for unit in self.drift[:MAX_NAMED_PATHS]],
            }
        return canonical(said).decode()

    def add(self, later: Inspection) -> None:
        """Add what a second look found: the change itself as it is then, and whatever changed in between."""
        self.different, self.missing, self.extra = later.different, later.missing, later.extra
        # What was accepted before stays accepted as it was.
        between = {unit.path: unit for unit in later.drift if unit not in self.drift}
        between |= {
            unit.path: unit_of(unit.path, after(unit), before(unit))
            for unit in self.drift
            if unit not in later.drift and unit.path not in between
        }
        self.find(between.values())

    def find(self, units: Iterable[Unit]) -> None:
        """Count these files as different, missing or extra."""
        for unit in units:
            if unit.before is None:
                self.extra.append(unit.path)
            elif unit.after is None:
                self.missing.append(unit.path)
            else:
                self.different.append(unit.path)
        for paths in (self.different, self.missing, self.extra):
            paths.sort()

    def why(self) -> str:
        """What is wrong, in a few words."""
        said = [
            f"{len(paths)} {name} ({paths[0]})"
            for name in ("different", "missing", "extra")
            if (paths := getattr(self, name))
        ]
        if self.check is not None and not self.check["passed"]:
            said.append(f"its check failed: {self.check.get('last_line') or self.check['reason']}")
        return ", ".join(said)


class Verified(msgspec.Struct, frozen=True):
    """The result of a verification."""

    result: VerifyResult
    entry: Entry
    undo: ChangeSet | None
    """What takes the change back, where it failed."""
    escalation: str | None
    fresh: bool
    """Whether it was found now, and not before."""


def verify(
    kernel: Kernel,
    actor: Actor,
    name: str,
    *,
    again: bool = False,
    timeout: float | None = None,
    stop: threading.Event | None = None,
    result_id: str = "",
    accept_drift: str = "",
) -> Verified:
    """Verify an entry's cut. Called again it answers the same result, unless `again` adds another. Other changes in
    the tree since the cut are refused, unless `accept_drift` is the digest of exactly those."""
    kernel.require("verifier", actor)
    require_signer(kernel, actor)
    with kernel.store.read() as rows:
        entry_id = Changes(rows).named(name).entry_id
    with kernel.alone(entry_id):
        with kernel.store.read() as rows:
            found = Changes(rows)
            entry, change_set = found.get(entry_id), found.live_set(entry_id)
            results = found.results(change_set.change_set_id) if change_set is not None else []
        asked = [one for one in results if one.verify_result_id == result_id]
        if change_set is not None and results and (asked or not again):
            return _answer(kernel, actor, entry_id, (asked or results)[-1], fresh=False)
        with kernel.store.read() as rows:
            _require_verifiable(rows, kernel, actor, entry, change_set)
            assert change_set is not None
            manifest = manifest_for(rows, change_set)
        assert change_set is not None
        seen = look(kernel, change_set, manifest)
        if seen.passed:
            _require_no_drift(entry, seen, accept_drift, actor.principal)
        else:
            seen.find(seen.drift)
            seen.drift = []
        if manifest.check and seen.passed:
            seen.check = _run_check(
                kernel,
                actor,
                entry,
                change_set,
                manifest,
                timeout=timeout,
                stop=stop or threading.Event(),
            )
            # What is signed is what is there when all is said, whatever the check did to it.
            seen.add(look(kernel, change_set, manifest))
        result = kernel.store.write(
            lambda tx: _record(
                tx, kernel, actor, entry_id, manifest=manifest, seen=seen, result_id=result_id
            )
        )
        return _answer(kernel, actor, entry_id, result, fresh=True)


def _require_verifiable(
    rows: Reads, kernel: Kernel, actor: Actor, entry: Entry, change_set: ChangeSet | None
) -> None:
    assert actor.signer is not None
    signature = (
        Changes(rows).signature_of(change_set.change_set_id) if change_set is not None else None
    )
    hands = hands_in(rows, change_set) if change_set is not None else set()
    signature = rules.require_verifiable(
        entry,
        signature,
        hands,
        principal=actor.principal,
        fingerprint=actor.signer.key.fingerprint,
        tool_revision=tool_revision(__file__),
    )
    assert change_set is not None
    (decision,) = [
        one
        for one in Changes(rows).decisions(entry.entry_id)
        if one.decision_id == change_set.decision_id
    ]
    doubt = objection_to_cut(
        kernel.authority, rows, entry, cut=change_set, decision=decision, signed=signature
    )
    rules.require_believed_cut(entry.entry_id, doubt)
    rules.require_nothing_else_cut(entry.entry_id, unfinished(rows, entry))


def hands_in(rows: Reads, change_set: ChangeSet) -> set[str]:
    """Everybody who took part in carrying a change set out."""
    run = Runs(rows).of_root(change_set.change_set_id)
    told = events_of(rows, f"saga:{run.saga_id}") if run is not None else ()
    return {change_set.executor, *(event.facts()["context"]["actor"] for event in told)}


def _require_no_drift(entry: Entry, seen: Inspection, accepted: str, principal: str) -> None:
    """BASE_DRIFT where something else in the tree was changed since the cut, and nobody accepted exactly that."""
    if seen.drift:
        rules.require_drift_accepted(
            entry,
            [unit.path for unit in seen.drift],
            named(seen.drift),
            digest=drift_digest(seen.drift),
            accepted=accepted,
            principal=principal,
        )


def look(kernel: Kernel, change_set: ChangeSet, manifest: Manifest) -> Inspection:
    """Compare what is there with what the change set, and those after it, should have left."""
    if manifest.cutter == REGISTRY:
        return _look_at_registry(kernel, change_set, manifest)
    with kernel.store.read() as rows:
        found = Changes(rows)
        units, later = found.affected(change_set.change_set_id), found.since(change_set)
    own = {unit.path for unit in units}
    # The change's own paths count whatever is ignored.
    wanted: dict[str, File | None] = {}
    for row in (*units, *later):
        path = beneath(manifest.target, row.place)
        if path in own:
            wanted[path] = _after(row)
    expected = after_cuts(
        listing_of(kernel, change_set.change_set_id).state,
        manifest.target,
        [*units, *later],
        lambda digest: b"".join(kernel.artifacts.read(digest)),
    )
    present, others = _present(kernel, manifest, sorted(own), expected)
    wrong = [path for path in wanted if present[path] != wanted[path]]
    beside = {path: file for path, file in expected.files.items() if path not in own}
    otherwise = changed(beside, {path: file for path, file in others.items() if path not in own})
    # What lies where the change put or removed a file is of the change's own.
    beneath_own = [unit for unit in otherwise if not own.isdisjoint(folders_of(unit.path))]
    seen = Inspection(
        len(units),
        different=[path for path in wrong if present[path] is not None],
        missing=[path for path in wrong if present[path] is None],
        extra=[],
        drift=[unit for unit in otherwise if unit not in beneath_own],
    )
    seen.find(beneath_own)
    return seen


def _after(row: Affected) -> File | None:
    return None if row.after is None else File(row.after, row.after_mode or 0)


def _present(
    kernel: Kernel, manifest: Manifest, paths: Sequence[str], expected: TreeState
) -> tuple[dict[str, File | None], dict[str, File]]:
    """What is at some paths, and every file there that counts; nothing where the place is gone."""
    if manifest.cutter != TREE:
        place, _ = own_place(kernel.cutters, manifest.cutter, manifest.target, kernel.home)
        data = {path: place.read(path) for path in paths}
        there = {path: expected.files.get(path, ODD) for path in place.paths()}
        return {p: None if d is None else File(sha256_hex(d), 0) for p, d in data.items()}, there
    root = tree_of(kernel.home, manifest)
    try:
        with Tree(root) as tree:
            return {path: tree.look(path) for path in paths}, files_by(root, expected)
    except InvalidConfig:
        return dict.fromkeys(paths), {}


def _look_at_registry(kernel: Kernel, change_set: ChangeSet, manifest: Manifest) -> Inspection:
    plan, root = plan_in(kernel, manifest), root_of(change_set.change_set_id)
    wanted = {str(one.key): one.meaning.digest() for one in plan.value}
    with kernel.store.read() as rows:
        own = {
            str(v.key): v.digest
            for v in Registry(rows).of_root(root)
            if v.status in ("active", "superseded")
        }
    return Inspection(
        len(wanted),
        different=sorted(key for key in wanted.keys() & own.keys() if wanted[key] != own[key]),
        missing=sorted(wanted.keys() - own.keys()),
        extra=sorted(own.keys() - wanted.keys()),
    )


def _run_check(
    kernel: Kernel,
    actor: Actor,
    entry: Entry,
    change_set: ChangeSet,
    manifest: Manifest,
    *,
    timeout: float | None,
    stop: threading.Event,
) -> dict[str, Any]:
    """Run the entry's own check in the tree, as a child: bounded, recorded, its output stored."""
    folder = tree_of(kernel.home, manifest) if manifest.cutter == TREE else kernel.home
    given = {"ONCEWARD_ENTRY": entry.entry_id, "ONCEWARD_CHANGE_SET": change_set.change_set_id}
    terms: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
    work = Command(
        argv=manifest.check, cwd=Path(folder), given=given, said={"entry": entry.entry_id}, **terms
    )
    children = kernel.open_session(kernel.store.sources.new_id("vfy"), 1, role="verifier")
    # It was approved with the change; it is no operation of its own.
    children.registered = False
    try:
        with serving(kernel, stop, children.stop):
            (child_id,) = children.spawn([work])
            how = children.wait(child_id)
    finally:
        children.close()
    rules.require_check_ended(bool(how.detail.get("stopped")))
    return {"passed": how.reason == "completed", "child_id": child_id, **_said(how)}


def _said(how: Ended) -> dict[str, Any]:
    names = ("exit", "message", "last_line")
    return {
        "reason": how.reason,
        **{name: how.detail[name] for name in names if how.detail.get(name) is not None},
    }


def require_verifiable(kernel: Kernel, actor: Actor, entry_id: str, accept_drift: str = "") -> None:
    """Refuse what cannot be verified before anything is begun."""
    kernel.require("verifier", actor)
    require_signer(kernel, actor)
    with kernel.store.read() as rows:
        found = Changes(rows)
        change_set = found.live_set(entry_id)
        if change_set is not None and found.results(change_set.change_set_id):
            return
        entry = found.get(entry_id)
        _require_verifiable(rows, kernel, actor, entry, change_set)
        assert change_set is not None
        manifest = manifest_for(rows, change_set)
    seen = look(kernel, change_set, manifest)
    if seen.passed:
        _require_no_drift(entry, seen, accept_drift, actor.principal)


def _record(
    tx: Transaction,
    kernel: Kernel,
    actor: Actor,
    entry_id: str,
    *,
    manifest: Manifest,
    seen: Inspection,
    result_id: str,
) -> VerifyResult:
    """Record the result and everything that follows from it: one transaction."""
    found, principal = Changes(tx), actor.principal
    entry, change_set = found.get(entry_id), found.live_set(entry_id)
    kernel.authority.require(tx, principal, "verifier")
    _require_verifiable(tx, kernel, actor, entry, change_set)
    assert change_set is not None
    prior = found.results(change_set.change_set_id)
    result = VerifyResult(
        verify_result_id=result_id or tx.sources.new_id("vrf"),
        change_set_id=change_set.change_set_id,
        prior_verify_result_id=prior[-1].verify_result_id if prior else None,
        passed=int(seen.passed),
        detail=seen.text(),
        verifier=principal,
        verified_at=tx.now,
    )
    add_row(tx, result)
    first = entry.status == "cut_applied"
    to = entry.status
    if first:
        to = "verified_complete" if seen.passed else "verify_failed_escalated"
    told = attest.Pair(
        act="change.verify",
        entry=entry,
        to=to,
        manifest=manifest.content_hash(),
        change_set=change_set,
        result=result,
    )
    signed = attest.pair(tx, told, tool_revision(__file__), actor.signer)
    said: dict[str, Any] = {
        "change_set_id": change_set.change_set_id,
        "verify_result_id": result.verify_result_id,
        "result": result_digest(result),
        "signature_id": signed.signature_id,
    }
    if not seen.passed:
        if first:
            taken = open_set(
                tx, entry_id, change_set.decision_id, principal, change_set.change_set_id
            )
            said["undo"] = taken.change_set_id
        said |= {"escalation": _escalate(tx, kernel, actor, entry, manifest, seen.why())}
        said |= {"manifest": manifest.content_hash()}
    if first:
        start = machine.start_verify(entry, principal, change_set.change_set_id)
        end = machine.end_verify(machine.through(entry, start), principal, seen.passed, said)
        changes.step(tx, [start, end], signed.signature_id)
    else:
        tx.append(
            f"entry:{entry_id}", "ENTRY_REVERIFIED", principal, {**said, "passed": seen.passed}
        )
    add_row(tx, signed)
    return result


def _escalate(
    tx: Transaction,
    kernel: Kernel,
    actor: Actor,
    entry: Entry,
    manifest: Manifest,
    why: str,
) -> str:
    """Propose the same again, with what went wrong, for people to look at; one escalation at a time (X62)."""
    found = Changes(tx)
    waiting = [
        one
        for one in found.escalations(entry.entry_id)
        if one.status not in machine.CHANGE.terminal
    ]
    if waiting:
        return waiting[-1].entry_id
    hash_ = manifest.content_hash()
    proposer = [one.author for one in found.envelopes(entry.entry_id) if one.content_hash == hash_][
        -1
    ]
    entry_id = tx.sources.new_id("ent")
    reason = f"{entry.entry_id} failed its verification: {why}"
    move = machine.mark(
        entry_id,
        f"escalation:{entry_id}",
        manifest,
        entry.author,
        reason,
        escalates=(entry.entry_id, actor.principal, proposer),
    )
    born = changes.step(tx, [move])
    digests = {
        digest
        for unit in manifest.unit
        for digest in (unit.before, unit.after)
        if digest is not None
    }
    blobs = {digest: Blob(digest, find(tx, digest)[1]) for digest in digests}
    changes.propose(tx, born, proposer, Proposed(manifest, kernel.artifacts, blobs), 1)
    return entry_id


def _answer(
    kernel: Kernel, actor: Actor, entry_id: str, result: VerifyResult, fresh: bool
) -> Verified:
    """After the result is durable: undo what failed, and retry an undo that is stuck."""
    with kernel.store.read() as rows:
        found = Changes(rows)
        entry, taken = found.get(entry_id), found.undoing(result.change_set_id)
        escalations = found.escalations(entry_id)
    if taken is not None and taken.status in ("open", "stuck"):
        taken = undo(kernel, actor, taken)
    return Verified(result, entry, taken, escalations[-1].entry_id if escalations else None, fresh)
