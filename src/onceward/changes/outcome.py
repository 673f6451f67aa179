"""What came of a cut or a verification, and the git commit of it where one was asked for."""

from __future__ import annotations

import msgspec

from onceward.changes import git, rules
from onceward.changes.cut import manifest_for, tree_of
from onceward.changes.manifest import Manifest, manifest_of
from onceward.changes.verify import Verified
from onceward.changes.views import ChangeView, VerdictView, change_view, result_view, verdict
from onceward.core.changes import ChangeSet
from onceward.kernel.kernel import Kernel
from onceward.sagas.views import saga_view
from onceward.store.tables.changes import Changes
from onceward.store.tables.sagas import Runs


def carried_out(kernel: Kernel, done: ChangeSet, commit: bool) -> ChangeView:
    """The view of an entry after its cut; a cut that was undone raises why."""
    if done.status == "undone":
        with kernel.store.read() as rows:
            run = Runs(rows).of_root(done.change_set_id)
        why = saga_view(kernel.store, run.saga_id).why if run is not None else None
        rules.refuse_taken_back(done, why or {}, run.saga_id if run is not None else None)
    return _with_commit(kernel, done.entry_id, commit and done.status == "applied")


def checked(kernel: Kernel, done: Verified, commit: bool) -> VerdictView:
    """The view of an entry after its verification."""
    passed = bool(done.result.passed)
    return verdict(
        _with_commit(kernel, done.entry.entry_id, commit and passed),
        result_view(done.result),
        fresh=done.fresh,
        escalation=done.escalation,
        undo=None if done.undo is None else done.undo.status,
    )


def _manifest(kernel: Kernel, name: str) -> Manifest:
    with kernel.store.read() as rows:
        found = Changes(rows)
        return manifest_of(found.envelope(found.named(name).entry_id).body)


def require_commit(kernel: Kernel, name: str) -> None:
    manifest = _manifest(kernel, name)
    rules.require_tree(manifest)
    git.require_repository(tree_of(kernel.home, manifest))


def _with_commit(kernel: Kernel, entry_id: str, commit: bool) -> ChangeView:
    """The view of an entry, with the commit of what it changed where one was asked for."""
    view = change_view(kernel.store, entry_id, kernel.policy)
    if commit and view.status in ("cut_applied", "verified_complete"):
        return msgspec.structs.replace(view, commit=_commit(kernel, view))
    return view


def _commit(kernel: Kernel, view: ChangeView) -> str:
    applied = next(one for one in reversed(view.sets("cut")) if one.status == "applied")
    deciding = next(one for one in view.decisions or () if one.decision_id == applied.decision_id)
    trailers = {
        "Onceward-Entry": view.entry_id,
        "Onceward-Manifest": view.manifest,
        "Onceward-Review": f"{deciding.decision_id} by {deciding.reviewer}",
        "Onceward-Change-Set": applied.change_set_id,
    }
    for signed in view.signatures or ():
        if applied.change_set_id == signed.change_set_id or signed.role == "verifier":
            who = f"{signed.principal}, key {signed.fingerprint[:16]}, {signed.signature_id}"
            trailers[f"Onceward-{signed.role.title()}"] = who
    with kernel.store.read() as rows:
        manifest = manifest_for(rows, Changes(rows).set_named(applied.change_set_id))
    title = (view.reason.splitlines() or [""])[0][:72] or f"Change {view.entry_id}"
    root = tree_of(kernel.home, manifest)
    return git.commit(root, manifest.unit, title, trailers, "Onceward-Change-Set")
