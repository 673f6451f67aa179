"""Carrying an approved change out, as a saga: checked, kept, staged, put in its place, recorded and signed (H-5)."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import msgspec

from onceward.engine import attest, changes
from onceward.engine.cutters import TreeCutter
from onceward.engine.foreground import run_saga
from onceward.engine.kernel import Kernel
from onceward.engine.saga_life import Wanted, begin
from onceward.engine.saga_run import SagaRun
from onceward.engine.sagas import ActionTask, Saga
from onceward.errors import CODES, GuardFailed, InvalidResumeState, PermissionDenied
from onceward.kernel.canon import sha256_hex
from onceward.kernel.changes import Affected, ChangeSet
from onceward.lifecycles import change as rules
from onceward.lifecycles.change import Manifest, Policy
from onceward.lifecycles.saga import CUT, Shape
from onceward.store.tables.changes import Changes, add_row
from onceward.store.transaction import Transaction


class Cutting(Saga):
    """One change set being carried out."""

    def __init__(self, root: Path, manifest: Manifest, change_set_id: str, entry_id: str) -> None:
        super().__init__(CUT.name, folder=root)
        self._manifest, self._id, self._entry = manifest, change_set_id, entry_id
        self._put("C0_CHECK", lambda task: self._cutter(task).check(also_after=True))
        self._put("C1_KEEP", self._keep)
        self._put("C2_STAGE", lambda task: self._cutter(task).stage(), lambda task: self._cutter(task).clear())
        self._put("C3_APPLY", lambda task: self._cutter(task).apply(), self._restore)
        self._put("C4_RECORD", self._finish, self._finish)
        recording = self.actions["C4_RECORD"]
        self.actions["C4_RECORD"] = msgspec.structs.replace(recording, write=self._record)

    @property
    def shape(self) -> Shape:
        return CUT

    def lease(self, root: str) -> str:
        """Of two changes of one tree, one waits."""
        return f"tree:{self._manifest.target}"

    def _put(self, name: str, act: Any, undo: Any = None) -> None:
        self._add(name, {}, act, undo, None, None, {"timeout": "1h", "attempts": 1})

    def _cutter(self, task: ActionTask) -> TreeCutter:
        return TreeCutter(self.folder, task.site.kernel.artifacts, self._manifest.unit, self._id)

    def _keep(self, task: ActionTask) -> None:
        kept = self._cutter(task).keep()
        artifacts = task.site.kernel.artifacts

        def record(tx: Transaction) -> None:
            for path, blob in kept.items():
                artifacts.record(tx, self._id, path, "prior", blob)

        task.site.write(record)

    def _restore(self, task: ActionTask) -> None:
        foreign = self._cutter(task).restore()
        if foreign:
            raise InvalidResumeState(
                f"somebody else changed {', '.join(foreign[:5])} meanwhile; it is left alone",
                context={"paths": foreign[:100]},
            )

    def _finish(self, task: ActionTask) -> None:
        cutter = self._cutter(task)
        cutter.apply()
        cutter.clear()

    def _record(self, tx: Transaction, run: SagaRun) -> None:
        """The entry's own two arrows, the executor's signature and the change set's end: one transaction."""
        found, kernel = Changes(tx), run.kernel
        change_set, entry = found.change_set(self._id), found.get(self._entry)
        assert change_set is not None
        if change_set.status == "applied":
            return
        actor = kernel.principal
        tx.move(rules.move_set(change_set, "applied", "all_there", actor, {"units": len(self._manifest.unit)}))
        start = rules.start_cut(entry, actor, self._id)
        middle = msgspec.structs.replace(entry, status=start.target, version=entry.version + 1)
        said = {"change_set_id": self._id, "decision_id": change_set.decision_id}
        end = rules.end_cut(middle, actor, {**said, "manifest": self._manifest.content_hash()})
        signed = attest.cut(tx, entry, end, change_set, self._manifest.content_hash(), tool_revision(), kernel.signer)
        changes.step(tx, [start, end], signed.signature_id)
        add_row(tx, signed)


def tool_revision() -> str:
    """The digest of what carries changes out."""
    return sha256_hex(inspect.getsource(inspect.getmodule(TreeCutter)).encode())  # type: ignore[arg-type]


def cut(kernel: Kernel, home: Path, entry_id: str, policy: Policy) -> ChangeSet:
    """Carry an approved change out, once; called again it finishes, or answers what is there."""
    kernel.require("executor")
    if kernel.signer is None:
        raise PermissionDenied("a change is carried out by somebody with a key")
    change_set, manifest = kernel.store.write(lambda tx: _open(tx, kernel.principal, entry_id, policy))
    if change_set.status != "open":
        return change_set
    saga = Cutting(home / manifest.target, manifest, change_set.change_set_id, entry_id)
    given = {"change_set_id": change_set.change_set_id, "manifest": manifest.content_hash()}
    wanted = Wanted(saga, change_set.change_set_id, given, kernel.principal, "")
    run, lease = begin(kernel, wanted)
    if not run.over and run.stuck is None:
        run = run_saga(kernel, SagaRun(kernel, saga, run.saga_id, lease, lambda said: None))
    return kernel.store.write(lambda tx: _closed(tx, kernel.principal, change_set.change_set_id, bool(run.settled)))


def _open(tx: Transaction, actor: str, entry_id: str, policy: Policy) -> tuple[ChangeSet, Manifest]:
    """The one live change set of an approval: the one there is, or a new one if nothing stands against it."""
    found = Changes(tx)
    entry, envelope = found.get(entry_id), found.envelope(entry_id)
    manifest = rules.manifest_of(envelope.body)
    live = [one for one in found.change_sets(entry_id) if one.kind == "cut" and one.status != "undone"]
    if live:
        return live[-1], manifest
    approvals = [one for one in found.decisions(entry_id) if one.decision == "approve"]
    waits = [one.entry_id for one in found.depends_on(entry_id) if one.status != "verified_complete"]
    decision = approvals[-1] if approvals else None
    why = rules.cut_objection(entry, decision, envelope.content_hash, waits, policy, tx.now)
    if why is not None or decision is None:
        assert why is not None and why.code in CODES
        raise GuardFailed(why.code, why.why, entry_id)
    change_set_id = tx.sources.new_id("cst")
    tx.move(rules.open_set(change_set_id, entry_id, decision.decision_id, actor))
    for unit in manifest.unit:
        add_row(tx, Affected(change_set_id, *msgspec.structs.astuple(unit)))
    made = found.change_set(change_set_id)
    assert made is not None
    return made, manifest


def _closed(tx: Transaction, actor: str, change_set_id: str, settled: bool) -> ChangeSet:
    """What became of it: taken back where its saga stopped."""
    change_set = Changes(tx).change_set(change_set_id)
    assert change_set is not None
    if settled and change_set.status == "open":
        tx.move(rules.move_set(change_set, "undone", "taken_back", actor, {}))
        change_set = Changes(tx).change_set(change_set_id)
        assert change_set is not None
    return change_set
