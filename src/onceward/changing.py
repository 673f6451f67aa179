"""Changes from the command line and from Python: proposed, cut and verified in the foreground."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from onceward.artifacts.bases import Base, tree_name
from onceward.artifacts.file_names import os_path, recorded_path
from onceward.artifacts.trees import scan
from onceward.changes import proposals
from onceward.changes.cut import cut as cut_entry
from onceward.changes.cut import own_place
from onceward.changes.diffs import FileDiff, diffs_of
from onceward.changes.outcome import carried_out, checked, require_commit
from onceward.changes.proposals import Proposal, Wish, oldest_base
from onceward.changes.verify import verify as verify_entry
from onceward.changes.views import (
    ChangeView,
    VerdictView,
)
from onceward.core.canon import canonical, sha256_hex
from onceward.core.paths import is_path_text
from onceward.errors import InvalidConfig, NotFound, Recovery
from onceward.kernel.kernel import Kernel
from onceward.registry.jobs import to_apply
from onceward.running import heard
from onceward.saga_running import in_file
from onceward.sagas.run import Told
from onceward.workspace import Workspace

T = TypeVar("T")


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody has to propose: exactly one of these, and where it is to go."""

    base: Path = Path()
    """The tree that is to change."""
    tree: Path | None = None
    patch: bytes | None = None
    build: str | None = None
    stages: Sequence[str] = ()
    plan: Path | None = None
    """A plan for the registry."""
    cutter: str = ""
    target: str = ""
    """Of a place of the user's own."""
    delete: Sequence[str] = ()
    check: Sequence[str] = ()
    links: bool = False
    since: str | None = None
    """The build whose base counts; of what a build made, its own unless another is named."""
    accept_drift: str = ""
    """The digest of drift under the proposal that is accepted."""


def propose(workspace: Workspace, source: Source) -> Proposal:
    """The manifest of what somebody proposes, with its contents; nothing is written."""
    check = tuple(source.check)
    if source.plan is not None:
        return proposals.for_registry(in_file(source.plan, to_apply, workspace).plan, check)
    if source.cutter:
        place, _ = own_place(
            workspace.cutters, source.cutter, source.target, workspace.folder.parent
        )
        made: dict[str, bytes | None] = dict.fromkeys(source.delete)
        if source.tree is not None:
            made |= {
                path: (source.tree / os_path(path)).read_bytes()
                for path in scan(source.tree, workspace.policy.ignore)
            }
        return proposals.for_place(place, source.cutter, source.target, check, made)
    root = source.base.absolute().resolve()
    target = tree_name(workspace.folder.parent, workspace.folder, root)
    wish = Wish(
        root=root,
        target=target,
        check=check,
        policy=workspace.policy,
        links=source.links,
        base=_base(workspace, source, target),
        accepted=source.accept_drift,
    )
    if source.tree is not None:
        _require_apart(root, source.tree.absolute().resolve())
        return proposals.from_folder(wish, source.tree.absolute().resolve())
    if source.patch is not None:
        return proposals.from_patch(wish, source.patch)
    if source.build is not None:
        with workspace.artifacts() as artifacts:
            found = proposals.from_build(wish, artifacts, source.build, source.stages)
            # Its contents are read while the store is open.
            return _at_hand(found)
    return proposals.from_contents(wish, {_named(root, path): None for path in source.delete})


def _at_hand(proposal: Proposal) -> Proposal:
    held = {digest: b"".join(pieces()) for digest, pieces in proposal.contents.items()}
    return Proposal(
        proposal.manifest, {digest: proposals.given(data) for digest, data in held.items()}
    )


def _named(root: Path, path: str) -> str:
    """A path as it is recorded, from how the system spells it or from how we show it."""
    if not os.path.lexists(root / path) and is_path_text(path):
        return path
    return recorded_path(path)


def _base(workspace: Workspace, source: Source, target: str) -> Base | None:
    """What the tree was before the work, as far as a build kept that. Inside a step it is that of its own build."""
    name = source.since if source.since is not None else source.build
    asked = source.since is not None
    name = name if name is not None else os.environ.get("ONCEWARD_BUILD")
    if name is None:
        if source.accept_drift:
            raise InvalidConfig(
                "--accept-drift needs a proposal with a base; name its build with --since",
                context={"field": "--accept-drift"},
            )
        return None
    with workspace.artifacts() as artifacts, artifacts.store.read() as rows:
        try:
            base = oldest_base(rows, artifacts, name)
        except NotFound:
            if asked or source.build is not None:
                raise
            return None
    if base is None and asked:
        raise InvalidConfig(
            f"build {source.since} recorded no state of a tree",
            context={"field": "--since"},
            recovery=[Recovery('name the tree in its plan: tree = "DIR"')],
        )
    if base is not None and base.tree != target and not asked and source.build is None:
        return None
    return base


def _require_apart(base: Path, tree: Path) -> None:
    if tree == base or tree.is_relative_to(base) or base.is_relative_to(tree):
        raise InvalidConfig(
            f"{tree} and {base} must not contain each other; propose a separate folder",
            context={"field": "--tree"},
            recovery=[Recovery("put the proposal into another folder, or mark a patch")],
        )


def shown(proposal: Proposal) -> list[FileDiff]:
    """What a proposal would do, before anything of it is kept anywhere."""
    return diffs_of(Brought(proposal), proposal.manifest)


class Brought:
    """The contents of a proposal, to be read as artifacts are."""

    def __init__(self, proposal: Proposal) -> None:
        self._contents = proposal.contents

    def read(self, digest: str) -> Any:
        return iter(self._contents[digest]())


def bring(workspace: Workspace, proposal: Proposal) -> str:
    """Put a proposal where the kernel can adopt it; answers its digest."""
    with workspace.artifacts() as artifacts:
        return proposal.bring(artifacts)


def key_of(author: str, proposal: Proposal, depends_on: Sequence[str]) -> str:
    """The same proposal by the same person is the same entry, unless they say otherwise."""
    said = {
        "author": author,
        "depends_on": sorted(depends_on),
        "manifest": proposal.manifest.content_hash(),
    }
    return sha256_hex(canonical(said))


def cut(
    workspace: Workspace,
    name: str,
    *,
    grant: str | None = None,
    told: Told = lambda said: None,
    commit: bool = False,
) -> tuple[ChangeView, int]:
    """Carry an approved change out; answers how it stands, and the signal's exit status."""

    def work(kernel: Kernel, stop: threading.Event) -> ChangeView:
        if commit:
            require_commit(kernel, name)
        return carried_out(kernel, cut_entry(kernel, kernel.actor, name, grant, told, stop), commit)

    return _foreground(workspace, work)


def verify(
    workspace: Workspace,
    name: str,
    *,
    again: bool = False,
    timeout: float | None = None,
    commit: bool = False,
    accept_drift: str = "",
) -> tuple[VerdictView, int]:
    """Look at what was cut; answers how it stands, and the signal's exit status."""

    def work(kernel: Kernel, stop: threading.Event) -> VerdictView:
        if commit:
            require_commit(kernel, name)
        done = verify_entry(
            kernel,
            kernel.actor,
            name,
            again=again,
            timeout=timeout,
            stop=stop,
            accept_drift=accept_drift,
        )
        return checked(kernel, done, commit)

    return _foreground(workspace, work)


def _foreground(
    workspace: Workspace, work: Callable[[Kernel, threading.Event], T]
) -> tuple[T, int]:
    stop = threading.Event()
    with heard(stop, True, threading.Event()) as signals:
        kernel = workspace.kernel(signals.interrupted)
        try:
            return work(kernel, stop), signals.exit_status
        finally:
            kernel.close()
