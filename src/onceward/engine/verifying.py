"""Somebody else looks at what was really cut: exactly the approved set, every digest, nothing extra, and the entry's
own check (H-6). What fails is taken back, and told to people as an entry of its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from onceward.engine import attest, changes
from onceward.engine.artifacts import Blob
from onceward.engine.changes import Proposed
from onceward.engine.cutters import paths_in
from onceward.engine.cutting import open_set, own_place, require_signer, tool_revision, tree_of, undo
from onceward.engine.foreground import serving
from onceward.engine.kernel import Kernel
from onceward.engine.registry_cutter import plan_in, root_of
from onceward.engine.trees import Tree, after, listing
from onceward.engine.work import Command
from onceward.errors import GuardFailed, LockConflict, Recovery
from onceward.evidence.cuts import result_digest
from onceward.kernel.canon import canonical, sha256_hex
from onceward.kernel.changes import Affected, ChangeSet, Entry, Unit, VerifyResult
from onceward.kernel.limits import MAX_NAMED_PATHS
from onceward.lifecycles import change as rules
from onceward.lifecycles.child import Ended
from onceward.lifecycles.manifest import REGISTRY, TREE, Manifest, manifest_of
from onceward.store.port import Reads
from onceward.store.tables.artifacts import find, refs_of
from onceward.store.tables.changes import Changes, add_row
from onceward.store.tables.registry import Registry
from onceward.store.transaction import Transaction


class Seen(msgspec.Struct):
    """What somebody found: paths that differ, are missing or are too many, and how the check ended."""

    units: int
    different: list[str] = []
    missing: list[str] = []
    extra: list[str] = []
    check: dict[str, Any] | None = None

    @property
    def passed(self) -> bool:
        return not (self.different or self.missing or self.extra) and (self.check is None or self.check["passed"])

    def text(self) -> str:
        """As it is kept: the first of each kind by name, all of them by number."""
        said: dict[str, Any] = {"units": self.units, **({"check": self.check} if self.check is not None else {})}
        for name in ("different", "missing", "extra"):
            paths = getattr(self, name)
            if paths:
                said[name] = {"count": len(paths), "paths": [_shown(path) for path in paths[:MAX_NAMED_PATHS]]}
        return canonical(said).decode()

    def why(self) -> str:
        """In a few words, what is wrong."""
        said = [
            f"{len(getattr(self, n))} {n} ({getattr(self, n)[0]})"
            for n in ("different", "missing", "extra")
            if getattr(self, n)
        ]
        if self.check is not None and not self.check["passed"]:
            said.append(f"its check failed: {self.check.get('last_line') or self.check['reason']}")
        return ", ".join(said)


def _shown(path: str) -> str:
    return os.fsencode(path).decode("utf-8", "backslashreplace")


class Verified(msgspec.Struct, frozen=True):
    """What there is to say of a verification."""

    result: VerifyResult
    entry: Entry
    undo: ChangeSet | None
    """What takes the change back, where it failed."""
    escalation: str | None
    fresh: bool
    """Whether it was found now, and not before."""


def verify(
    kernel: Kernel,
    name: str,
    *,
    again: bool = False,
    timeout: float | None = None,
    stop: threading.Event | None = None,
    result_id: str = "",
) -> Verified:
    """Look at what an entry's cut really left. Asked again it answers the same, unless it is to look again: then one
    more result follows the last."""
    kernel.require("verifier")
    require_signer(kernel)
    with kernel.store.read() as rows:
        entry_id = Changes(rows).named(name).entry_id
    with kernel.alone(entry_id):
        with kernel.store.read() as rows:
            found = Changes(rows)
            entry, change_set = found.get(entry_id), found.live_set(entry_id)
            results = found.results(change_set.change_set_id) if change_set is not None else []
        asked = [one for one in results if one.verify_result_id == result_id]
        if change_set is not None and results and (asked or not again):
            return _answer(kernel, entry_id, (asked or results)[-1], fresh=False)
        with kernel.store.read() as rows:
            _require_verifiable(rows, kernel, entry, change_set)
            manifest = manifest_of(Changes(rows).envelope(entry_id).body)
        assert change_set is not None
        seen = look(kernel, change_set, manifest)
        if manifest.check and seen.passed:
            seen.check = _run_check(kernel, entry, change_set, manifest, timeout, stop or threading.Event())
            # What is signed is what is there when all is said, whatever the check did.
            seen.different = look(kernel, change_set, manifest).different
        result = kernel.store.write(lambda tx: _record(tx, kernel, entry_id, manifest, seen, result_id))
        return _answer(kernel, entry_id, result, fresh=True)


def _require_verifiable(rows: Reads, kernel: Kernel, entry: Entry, change_set: ChangeSet | None) -> None:
    assert kernel.signer is not None
    signature = Changes(rows).signature_of(change_set.change_set_id) if change_set is not None else None
    key = kernel.signer.key.fingerprint
    why = rules.verify_objection(entry, signature, kernel.principal, key, tool_revision(__file__))
    if why is not None:
        other = Recovery("act as somebody else", f"onceward --as NAME change verify {entry.entry_id}")
        show = Recovery("see how it stands", f"onceward change show {entry.entry_id}")
        raise GuardFailed(why.code, why.why, entry.entry_id, [other if why.code == "G-VERIFY-SOD" else show])


def look(kernel: Kernel, change_set: ChangeSet, manifest: Manifest) -> Seen:
    """What is really there, held against what the change set should have left."""
    if manifest.cutter == REGISTRY:
        return _look_at_registry(kernel, change_set, manifest)
    with kernel.store.read() as rows:
        found = Changes(rows)
        units, later = found.affected(change_set.change_set_id), found.since(change_set)
        (kept,) = [ref.sha256 for ref in refs_of(rows, change_set.change_set_id) if ref.kind == "listing"]
    before = paths_in(b"".join(kernel.artifacts.read(kept)))
    if manifest.cutter == TREE:
        root = tree_of(kernel.home, manifest)
        with Tree(root) as tree:
            wrong = [(u.path, tree.look(u.path) is None) for u in units if tree.look(u.path) != after(_unit(u))]
        there = listing(root, kernel.policy.ignore)
    else:
        place, _ = own_place(kernel.cutters, manifest.cutter, manifest.target, kernel.home)
        digests = {u.path: None if (d := place.read(u.path)) is None else sha256_hex(d) for u in units}
        wrong = [(u.path, digests[u.path] is None) for u in units if digests[u.path] != u.after]
        there = sorted(place.paths())
    expected = _expected(before, [units, *(rows for _, rows in later)])
    odd = {path for path, _ in wrong}
    return Seen(
        len(units),
        different=sorted(path for path, gone in wrong if not gone),
        missing=sorted({path for path, gone in wrong if gone} | (expected - set(there) - odd)),
        extra=sorted(set(there) - expected - odd),
    )


def _unit(row: Affected) -> Unit:
    return Unit(row.path, row.before, row.after, row.before_mode, row.after_mode)


def _expected(before: Sequence[str], steps: Sequence[Sequence[Affected]]) -> set[str]:
    """Everything that should be there: what was, and what change sets made of it since."""
    expected = set(before)
    for rows in steps:
        expected -= {row.path for row in rows if row.after is None}
        expected |= {row.path for row in rows if row.after is not None}
    return expected


def _look_at_registry(kernel: Kernel, change_set: ChangeSet, manifest: Manifest) -> Seen:
    plan, root = plan_in(kernel, manifest), root_of(change_set.change_set_id)
    wanted = {str(one.key): one.meaning.digest() for one in plan.value}
    with kernel.store.read() as rows:
        own = {str(v.key): v.digest for v in Registry(rows).of_root(root) if v.status in ("active", "superseded")}
    return Seen(
        len(wanted),
        different=sorted(key for key in wanted.keys() & own.keys() if wanted[key] != own[key]),
        missing=sorted(wanted.keys() - own.keys()),
        extra=sorted(own.keys() - wanted.keys()),
    )


def _run_check(
    kernel: Kernel,
    entry: Entry,
    change_set: ChangeSet,
    manifest: Manifest,
    timeout: float | None,
    stop: threading.Event,
) -> dict[str, Any]:
    """The entry's own command, in the tree, as a child like any other: bounded, recorded, its output kept."""
    folder = tree_of(kernel.home, manifest) if manifest.cutter == TREE else kernel.home
    given = {"ONCEWARD_ENTRY": entry.entry_id, "ONCEWARD_CHANGE_SET": change_set.change_set_id}
    terms: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
    work = Command(argv=manifest.check, cwd=Path(folder), given=given, said={"entry": entry.entry_id}, **terms)
    children = kernel.open_session(kernel.store.sources.new_id("vfy"), 1, role="verifier")
    # It was approved with the change; it is no operation of its own.
    children.registered = False
    try:
        with serving(kernel, stop, children.stop):
            (child_id,) = children.spawn([work])
            how = children.wait(child_id)
    finally:
        children.close()
    if how.detail.get("stopped"):
        raise LockConflict("the check was stopped before it ended; nothing is said of the change")
    return {"passed": how.reason == "completed", "child_id": child_id, **_said(how)}


def _said(how: Ended) -> dict[str, Any]:
    names = ("exit", "message", "last_line")
    return {"reason": how.reason, **{name: how.detail[name] for name in names if how.detail.get(name) is not None}}


def require_verifiable(kernel: Kernel, entry_id: str) -> None:
    """What stands against verifying an entry, told before anything is looked at."""
    kernel.require("verifier")
    require_signer(kernel)
    with kernel.store.read() as rows:
        found = Changes(rows)
        change_set = found.live_set(entry_id)
        if change_set is None or not found.results(change_set.change_set_id):
            _require_verifiable(rows, kernel, found.get(entry_id), change_set)


def _record(
    tx: Transaction, kernel: Kernel, entry_id: str, manifest: Manifest, seen: Seen, result_id: str
) -> VerifyResult:
    """What was found, and all that follows from it: one transaction."""
    found, actor = Changes(tx), kernel.principal
    entry, change_set = found.get(entry_id), found.live_set(entry_id)
    _require_verifiable(tx, kernel, entry, change_set)
    assert change_set is not None
    prior = found.results(change_set.change_set_id)
    result = VerifyResult(
        verify_result_id=result_id or tx.sources.new_id("vrf"),
        change_set_id=change_set.change_set_id,
        prior_verify_result_id=prior[-1].verify_result_id if prior else None,
        passed=int(seen.passed),
        detail=seen.text(),
        verifier=actor,
        verified_at=tx.now,
    )
    add_row(tx, result)
    first = entry.status == "cut_applied"
    to = ("verified_complete" if seen.passed else "verify_failed_escalated") if first else entry.status
    told = attest.Pair("change.verify", entry, to, manifest.content_hash(), change_set, result)
    signed = attest.pair(tx, told, tool_revision(__file__), kernel.signer)
    said: dict[str, Any] = {
        **{"change_set_id": change_set.change_set_id, "verify_result_id": result.verify_result_id},
        **{"result": result_digest(result), "signature_id": signed.signature_id},
    }
    if not seen.passed:
        if first:
            taken = open_set(tx, entry_id, change_set.decision_id, actor, change_set.change_set_id)
            said["undo"] = taken.change_set_id
        said["escalation"] = _escalate(tx, kernel, entry, manifest, seen.why())
    if first:
        start = rules.start_verify(entry, actor, change_set.change_set_id)
        end = rules.end_verify(rules.through(entry, start), actor, seen.passed, said)
        changes.step(tx, [start, end], signed.signature_id)
    else:
        tx.append(f"entry:{entry_id}", "ENTRY_REVERIFIED", actor, {**said, "passed": seen.passed})
    add_row(tx, signed)
    return result


def _escalate(tx: Transaction, kernel: Kernel, entry: Entry, manifest: Manifest, why: str) -> str:
    """The same proposal once more, for people to look at with what went wrong; one at a time (X62)."""
    found = Changes(tx)
    waiting = [one for one in found.escalations(entry.entry_id) if one.status not in rules.CHANGE.terminal]
    if waiting:
        return waiting[-1].entry_id
    entry_id = tx.sources.new_id("ent")
    reason = f"{entry.entry_id} failed its verification: {why}"
    move = rules.mark(
        *(entry_id, f"escalation:{entry_id}", manifest, entry.author, reason),
        escalates=(entry.entry_id, kernel.principal),
    )
    born = changes.step(tx, [move])
    digests = {digest for unit in manifest.unit for digest in (unit.before, unit.after) if digest is not None}
    blobs = {digest: Blob(digest, find(tx, digest)[1]) for digest in digests}
    changes.propose(tx, born, entry.author, Proposed(manifest, kernel.artifacts, blobs), 1)
    return entry_id


def _answer(kernel: Kernel, entry_id: str, result: VerifyResult, fresh: bool) -> Verified:
    """After the fact: what failed is taken back, and what could not be is tried again."""
    with kernel.store.read() as rows:
        found = Changes(rows)
        entry, taken = found.get(entry_id), found.undoing(result.change_set_id)
        escalations = found.escalations(entry_id)
    if taken is not None and taken.status in ("open", "stuck"):
        taken = undo(kernel, taken)
    return Verified(result, entry, taken, escalations[-1].entry_id if escalations else None, fresh)
