"""Cutting an approved change, as a saga: check, keep, stage, apply, record and sign (H-5); and undoing a cut that
failed its verification (H-6)."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from onceward.artifacts.file_names import os_path
from onceward.changes import lifecycle as changes
from onceward.changes import machine, rules
from onceward.changes.authority import objection_to_decision
from onceward.changes.cutters import (
    Cutter,
    Listing,
    Place,
    PlaceCutter,
    TreeCutter,
    listing_in,
    place_of,
)
from onceward.changes.manifest import Manifest, manifest_of
from onceward.changes.registry_cutter import RegistryCutter
from onceward.changes.staging import STAGING, Staging
from onceward.code.python_file import imported
from onceward.core import faults
from onceward.core.canon import sha256_hex
from onceward.core.changes import ChangeSet, Entry
from onceward.core.sagas import Run
from onceward.core.tree_paths import REGISTRY, TREE, overlap
from onceward.kernel import attest
from onceward.kernel.kernel import Kernel
from onceward.people.actor import Actor
from onceward.sagas import machine as saga_rules
from onceward.sagas.declaration import ActionTask, Saga
from onceward.sagas.lifecycle import Wanted, abandon, begin, take_up
from onceward.sagas.machine import CUT, UNDO, Shape
from onceward.sagas.run import SagaRun, Told, run_saga
from onceward.store.port import Reads
from onceward.store.tables.artifacts import refs_of
from onceward.store.tables.changes import Changes, add_row
from onceward.store.tables.sagas import Runs
from onceward.store.transaction import Transaction


class Carrying(Saga):
    """The saga of a change set. Only one runs at a time for each cutter."""

    table: Shape

    def __init__(
        self, cutter: Cutter, change_set: ChangeSet, manifest: Manifest, role: str
    ) -> None:
        super().__init__(self.table.name, folder=Path.cwd())
        self.role, self.cutter, self.manifest = role, cutter, manifest
        self.set_id, self.entry_id = change_set.change_set_id, change_set.entry_id

    @property
    def shape(self) -> Shape:
        return self.table

    def lease(self, root: str) -> str:
        """One lease per cutter: trees may lie in each other."""
        return f"change:{self.manifest.cutter}"

    def put(
        self, name: str, act: Callable[[ActionTask], Any], undo: Any = None, write: Any = None
    ) -> None:
        self._add(
            name,
            {},
            call=act,
            compensate=undo,
            check=None,
            guard=None,
            words={"timeout": "1h", "attempts": 1},
        )
        self.actions[name] = msgspec.structs.replace(self.actions[name], write=write)

    def given(self) -> dict[str, str]:
        return {
            "change_set_id": self.set_id,
            "entry_id": self.entry_id,
            "manifest": self.manifest.content_hash(),
        }

    def restore(self, task: ActionTask) -> None:
        foreign = self.cutter.restore()
        rules.require_restored(foreign)
        self.cutter.clear()

    def sign(self, tx: Transaction, run: SagaRun, told: attest.Pair) -> str:
        """Sign the change set, if the principal still may; answers the signature's id."""
        run.kernel.authority.require(tx, run.actor.principal, attest.ROLES[told.act])
        signed = attest.pair(tx, told, tool_revision(self.cutter.module), run.actor.signer)
        add_row(tx, signed)
        return signed.signature_id


class Cutting(Carrying):
    table = CUT

    def __init__(
        self, cutter: Cutter, change_set: ChangeSet, manifest: Manifest, role: str = "executor"
    ) -> None:
        super().__init__(cutter, change_set, manifest, role)
        self.put("C0_CHECK", lambda task: cutter.check())
        self.put("C1_KEEP", self._keep)
        self.put("C2_STAGE", lambda task: cutter.stage(), lambda task: cutter.clear())
        self.put("C3_APPLY", lambda task: cutter.apply(), self.restore)
        self.put("C4_RECORD", self._finish, self._finish, self._record)

    def _keep(self, task: ActionTask) -> None:
        kept, artifacts = self.cutter.keep(), task.site.kernel.artifacts
        listing = artifacts.keep(kept.listing.data())

        def record(tx: Transaction) -> None:
            for path, blob in kept.prior.items():
                artifacts.record(tx, self.set_id, path, "prior", blob)
            artifacts.record(tx, self.set_id, "listing", "listing", listing)
            kept_by = task.site.actor.principal
            tx.append(f"entry:{self.set_id}", "CUT_KEPT", kept_by, {"listing": listing.sha256})

        task.site.write(record)

    def _finish(self, task: ActionTask) -> None:
        self.cutter.apply()
        self.cutter.clear()
        faults.point("cut.record")

    def _record(self, tx: Transaction, run: SagaRun) -> None:
        """Both arrows of the entry, the executor's signature and the end of the change set: one transaction."""
        found, actor, manifest = Changes(tx), run.actor.principal, self.manifest.content_hash()
        change_set, entry = found.set_named(self.set_id), found.get(self.entry_id)
        if change_set.status == "applied":
            return
        tx.move(
            machine.move_set(
                change_set, "applied", "all_there", actor, {"units": len(self.manifest.unit)}
            )
        )
        start = machine.start_cut(entry, actor, self.set_id)
        told = attest.Pair("change.cut", entry, "cut_applied", manifest, change_set)
        signature = self.sign(tx, run, told)
        said = {
            "change_set_id": self.set_id,
            "decision_id": change_set.decision_id,
            "manifest": manifest,
        }
        end = machine.end_cut(
            machine.through(entry, start), actor, {**said, "signature_id": signature}
        )
        changes.step(tx, [start, end], signature)


class Undoing(Carrying):
    """Undoes a cut that failed its verification, wherever the files are still as the cut left them."""

    table = UNDO

    def __init__(self, cutter: Cutter, change_set: ChangeSet, manifest: Manifest) -> None:
        super().__init__(cutter, change_set, manifest, "verifier")
        self.put("U0_RESTORE", self.restore)
        self.put("U1_RECORD", self.restore, self.restore, self._record)

    def _record(self, tx: Transaction, run: SagaRun) -> None:
        found, actor = Changes(tx), run.actor.principal
        change_set, entry = found.set_named(self.set_id), found.get(self.entry_id)
        if change_set.status == "applied":
            return
        told = attest.Pair(
            "change.undo", entry, entry.status, self.manifest.content_hash(), change_set
        )
        said = {
            "units": len(self.manifest.unit),
            "signature_id": self.sign(tx, run, told),
            "entry_state": entry.status,
        }
        tx.move(machine.move_set(change_set, "applied", "all_there", actor, said))


def cut(
    kernel: Kernel,
    actor: Actor,
    name: str,
    grant: str | None = None,
    told: Told = lambda said: None,
    stop: threading.Event | None = None,
) -> ChangeSet:
    """Cut an approved change, once; called again it finishes, or answers the change set there is."""
    entry_id = require_cuttable(kernel, actor, name, grant)
    with kernel.alone(entry_id):
        with kernel.store.read() as rows:
            known = Changes(rows).live_set(entry_id)
        if known is None:
            known = kernel.store.write(lambda tx: _open(tx, kernel, actor, entry_id))
        with kernel.store.read() as rows:
            _require_believed(rows, kernel, known)
            manifest = manifest_for(rows, known)
        if known.status == "applied":
            return known
        saga = Cutting(
            cutter_for(kernel, actor, manifest, known.change_set_id, grant), known, manifest
        )
        return carry(kernel, actor, saga, known, known.change_set_id, told=told, stop=stop)


def require_cuttable(kernel: Kernel, actor: Actor, name: str, grant: str | None) -> str:
    """The entry that a name means, if it can be cut now, or is being cut. Refused before anything is written."""
    kernel.require("executor", actor)
    require_signer(kernel, actor)
    with kernel.store.read() as rows:
        entry_id = Changes(rows).named(name).entry_id
        entry, known = Changes(rows).get(entry_id), Changes(rows).live_set(entry_id)
        if known is None:
            _require_cuttable(rows, entry, kernel, rows.now())
        else:
            rules.require_not_cut_before(entry, known)
        manifest = _manifest(rows, entry_id)
    if known is None:
        cutter_for(kernel, actor, manifest, "", grant).check()
    return entry_id


def manifest_for(rows: Reads, change_set: ChangeSet) -> Manifest:
    """The manifest of a change set: what was approved, whatever was proposed since."""
    found = Changes(rows)
    (approved,) = [
        one
        for one in found.decisions(change_set.entry_id)
        if one.decision_id == change_set.decision_id
    ]
    bodies = [
        one.body
        for one in found.envelopes(change_set.entry_id)
        if one.content_hash == approved.content_hash
    ]
    return manifest_of(
        rules.require_approved_text(change_set.entry_id, bodies, approved.content_hash)
    )


def _require_believed(rows: Reads, kernel: Kernel, change_set: ChangeSet) -> None:
    """Check that somebody signed the approval of a cut that has begun: rows alone are not enough."""
    if change_set.status not in ("open", "stuck"):
        return
    found = Changes(rows)
    entry = found.get(change_set.entry_id)
    decisions = [
        one for one in found.decisions(entry.entry_id) if one.decision_id == change_set.decision_id
    ]
    if not decisions or decisions[0].decision != "approve":
        why = "nobody approved it"
    else:
        why = objection_to_decision(kernel.authority, rows, entry, decisions[0], begun=True)
    rules.require_believed_approval(entry.entry_id, why)


def _manifest(rows: Reads, entry_id: str) -> Manifest:
    return manifest_of(Changes(rows).envelope(entry_id).body)


def _require_cuttable(rows: Reads, entry: Entry, kernel: Kernel, now: int) -> str:
    """The id of the decision that lets an entry be cut; the guard's code where there is none."""
    found = Changes(rows)
    approvals, doubt = _believed(
        rows, entry, changes.approvals_of(rows, entry, kernel.policy), kernel
    )
    waits = [
        one.entry_id
        for one in found.depends_on(entry.entry_id)
        if one.status != "verified_complete"
    ]
    waits += found.unverified(entry, _manifest(rows, entry.entry_id).places())
    waits += [one for one in unfinished(rows, entry) if one not in waits]
    return rules.require_cuttable(entry, approvals, waits, now, doubt).decision_id


def _believed(
    rows: Reads, entry: Entry, approvals: rules.Approvals, kernel: Kernel
) -> tuple[rules.Approvals, str]:
    """The approvals whose signatures count; and why the last of the others does not."""
    believed, doubt = [], ""
    for decision in approvals.decisions:
        why = objection_to_decision(kernel.authority, rows, entry, decision)
        if why:
            doubt = f"what {decision.reviewer} is said to have decided does not count: {why}"
        else:
            believed.append(decision)
    return msgspec.structs.replace(approvals, decisions=believed), doubt


def unfinished(rows: Reads, entry: Entry) -> list[str]:
    """Other entries that are being cut or undone in trees that share files with this entry's tree."""
    return sorted(
        {
            other
            for other, target in Changes(rows).unfinished(entry.cutter)
            if other != entry.entry_id and overlap(entry.target, target)
        }
    )


def _open(tx: Transaction, kernel: Kernel, actor: Actor, entry_id: str) -> ChangeSet:
    """The live change set of an approval: the one there is, or a new one."""
    found = Changes(tx)
    known = found.live_set(entry_id)
    if known is not None:
        return known
    decision_id = _require_cuttable(tx, found.get(entry_id), kernel, tx.now)
    return open_set(tx, entry_id, decision_id, actor.principal)


def open_set(
    tx: Transaction, entry_id: str, decision_id: str, actor: str, undoes: str | None = None
) -> ChangeSet:
    """A new change set, with every file that it will touch."""
    change_set_id = tx.sources.new_id("cst")
    tx.move(machine.open_set(change_set_id, entry_id, decision_id, actor, undoes))
    made = Changes(tx).set_named(change_set_id)
    for row in machine.units_of(manifest_for(tx, made), change_set_id, undoing=undoes is not None):
        add_row(tx, row)
    return made


def undo(
    kernel: Kernel, actor: Actor, change_set: ChangeSet, grant: str | None = None
) -> ChangeSet:
    """Undo a cut that failed its verification; what is stuck is retried."""
    if change_set.status == "stuck":
        again = machine.move_set(change_set, "open", "retried", actor.principal, {})
        kernel.store.write(lambda tx: tx.move(again))
        with kernel.store.read() as rows:
            change_set = Changes(rows).set_named(change_set.change_set_id)
    if change_set.status != "open":
        return change_set
    with kernel.store.read() as rows:
        manifest = manifest_for(rows, change_set)
    of = change_set.of_change_set or ""
    saga = Undoing(cutter_for(kernel, actor, manifest, of, grant), change_set, manifest)
    # A run that could not restore everything is over; the next one is another.
    return carry(
        kernel, actor, saga, change_set, f"{change_set.change_set_id}@{change_set.version}"
    )


def carry(
    kernel: Kernel,
    actor: Actor,
    saga: Carrying,
    change_set: ChangeSet,
    root: str,
    *,
    told: Told = lambda said: None,
    stop: threading.Event | None = None,
) -> ChangeSet:
    """Run or resume the saga of a change set, and record what became of it."""
    run, lease = begin(kernel, actor, Wanted(saga, root, saga.given(), actor.principal, ""))
    if run.stuck is not None:
        kernel.store.write(lambda tx: _retried(tx, change_set.change_set_id, actor.principal))
        run, lease = take_up(kernel, actor, saga, run.saga_id, "", retry=True)
    if not run.over:
        run = run_saga(kernel, SagaRun(kernel, actor, saga, run.saga_id, lease, told), stop)
    return kernel.store.write(
        lambda tx: _closed(tx, actor.principal, change_set.change_set_id, run)
    )


def _retried(tx: Transaction, change_set_id: str, actor: str) -> None:
    change_set = Changes(tx).set_named(change_set_id)
    if change_set.status == "stuck":
        tx.move(machine.move_set(change_set, "open", "retried", actor, {}))


def _closed(tx: Transaction, actor: str, change_set_id: str, run: Run) -> ChangeSet:
    """Close a change set by the end of its saga."""
    found = Changes(tx)
    change_set = found.set_named(change_set_id)
    why = _why(tx, run)
    if change_set.status in ("open", "stuck") and run.settled and change_set.kind == "cut":
        reason = "given_up" if saga_rules.remaining(run) else "taken_back"
        if reason == "taken_back" and change_set.status == "stuck":
            tx.move(machine.move_set(change_set, "open", "retried", actor, {}))
            change_set = found.set_named(change_set_id)
        tx.move(machine.move_set(change_set, "undone", reason, actor, why))
    elif change_set.status == "open" and (run.stuck is not None or run.settled):
        tx.move(machine.move_set(change_set, "stuck", "not_ours", actor, why))
    return found.set_named(change_set_id)


def _why(rows: Reads, run: Run) -> dict[str, Any]:
    """Why a run did not come to its end."""
    errors = [step.error for step in Runs(rows).steps(run.saga_id) if step.error]
    said = msgspec.json.decode(run.stuck or (errors[-1] if errors else "{}"))
    return {
        "saga_id": run.saga_id,
        "state": run.state,
        **({"why": said["message"]} if said.get("message") else {}),
    }


def close(kernel: Kernel, actor: Actor, change_set: ChangeSet) -> ChangeSet:
    """End a cut whose kernel died: undo it, or finish it where only the record is missing (H-5)."""
    with kernel.alone(change_set.entry_id):
        with kernel.store.read() as rows:
            run = Runs(rows).of_root(change_set.change_set_id)
            manifest = manifest_for(rows, change_set)
        if run is None:
            moved = machine.move_set(change_set, "undone", "taken_back", actor.principal, {})
            kernel.store.write(lambda tx: tx.move(moved))
            return change_set
        require_signer(kernel, actor)
        place = saga_rules.shape_of(run).place(run.state)
        if place is not None and place.forward:
            kernel.require("executor", actor)
        elif place is not None:
            said = {"reason": "abandoned", "message": f"{actor.principal} takes the change back"}
            kernel.store.write(
                lambda tx: tx.move(
                    saga_rules.stop(Runs(tx).get(run.saga_id), "abandoned", actor.principal, said)
                )
            )
        saga = Cutting(
            cutter_for(kernel, actor, manifest, change_set.change_set_id, run.grant_id),
            change_set,
            manifest,
            "",
        )
        return carry(kernel, actor, saga, change_set, change_set.change_set_id)


def give_up(kernel: Kernel, actor: Actor, change_set: ChangeSet) -> None:
    """Abandon a cut that is stuck: its saga is over, and the change set with it."""

    def work(tx: Transaction) -> None:
        run = Runs(tx).of_root(change_set.change_set_id)
        if run is not None and not run.over:
            abandon(tx, actor.principal, run.saga_id, f"abandon {change_set.change_set_id}")
            run = Runs(tx).get(run.saga_id)
        assert run is not None
        _closed(tx, actor.principal, change_set.change_set_id, run)

    kernel.store.write(work)


def cutter_for(
    kernel: Kernel, actor: Actor, manifest: Manifest, change_set_id: str, grant: str | None
) -> Cutter:
    """The cutter of a manifest."""
    if manifest.cutter == TREE:
        root = tree_of(kernel.home, manifest)
        return TreeCutter(
            root,
            kernel.artifacts,
            manifest,
            Staging(root, kernel.folder / STAGING, change_set_id),
            policy=kernel.policy,
            kept=lambda: listing_of(kernel, change_set_id),
        )
    if manifest.cutter == REGISTRY:
        return RegistryCutter(kernel, actor, manifest, change_set_id, grant)
    place, module = own_place(kernel.cutters, manifest.cutter, manifest.target, kernel.home)
    return PlaceCutter(place, module, kernel.artifacts, manifest)


def own_code(kernel: Kernel, entry_id: str) -> str:
    """`module:name` of the user's own place that a change is made to; empty for a tree or the registry."""
    with kernel.store.read() as rows:
        cutter = _manifest(rows, entry_id).cutter
    return kernel.cutters.get(cutter, "")


def own_place(cutters: Mapping[str, str], name: str, target: str, home: Path) -> tuple[Place, str]:
    """The user's own place of a cutter, and the file of its code."""
    place = place_of(imported(rules.require_named_cutter(name, cutters), home), target)
    return place, inspect.getfile(type(place))


def tree_of(home: Path, manifest: Manifest) -> Path:
    """The folder that a change is made to."""
    return home / os_path(manifest.target)


def tool_revision(module: str) -> str:
    """The digest of a module's file."""
    return sha256_hex(Path(module).read_bytes())


def require_signer(kernel: Kernel, actor: Actor) -> None:
    rules.require_key(actor.principal, actor.signer is not None)


def listing_of(kernel: Kernel, change_set_id: str) -> Listing:
    """What a place was like before a change set; empty where that was not recorded yet."""
    with kernel.store.read() as rows:
        kept = [ref.sha256 for ref in refs_of(rows, change_set_id) if ref.kind == "listing"]
    return listing_in(b"".join(kernel.artifacts.read(kept[0]))) if kept else Listing()
