"""Views of artifacts: what a child, a session or a build left."""

from __future__ import annotations

from collections.abc import Sequence

from onceward.core.sources import iso
from onceward.core.views import View
from onceward.store.port import Reads
from onceward.store.store import Store
from onceward.store.tables.artifacts import Link, Ref, links_of, newest_refs, refs_of
from onceward.store.tables.builds import Builds
from onceward.store.tables.children import Sessions, Tokens, resolve


class ArtifactView(View, frozen=True, kw_only=True):
    """An artifact, who left it, and of a build's the step."""

    owner: str
    name: str
    kind: str
    sha256: str
    size: int
    created_at: str
    build_id: str | None = None
    stage: str | None = None
    target: str | None = None


def artifact_list(store: Store, owner: str | None, limit: int = 100) -> list[ArtifactView]:
    """An owner's artifacts, or the newest of all; of a build, with the step each belongs to."""
    with store.read() as rows:
        found = newest_refs(rows, limit) if owner is None else _refs_of(rows, owner)
    return [_view(ref) for ref in found]


def _view(ref: Ref) -> ArtifactView:
    link = ref if isinstance(ref, Link) else None
    return ArtifactView(
        owner=ref.owner,
        name=ref.name,
        kind=ref.kind,
        sha256=ref.sha256,
        size=ref.size,
        created_at=iso(ref.created_at),
        build_id=link.build_id if link else None,
        stage=link.stage if link else None,
        target=link.target if link else None,
    )


def _refs_of(rows: Reads, owner: str) -> Sequence[Ref]:
    sessions = Sessions(rows).named(owner)
    if len(sessions) != 1:
        return refs_of(rows, owner) or refs_of(rows, resolve(rows, owner)[0])
    if Builds(rows).find(sessions[0]) is not None:
        return links_of(rows, sessions[0])
    return [
        ref
        for token in Tokens(rows).of_session(sessions[0])
        for ref in refs_of(rows, token.child_id)
    ]
