"""What a name means, and everything that can be explained by its name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from onceward.builds import explain as builds
from onceward.changes import views as changes
from onceward.core.views import Explanation
from onceward.dispatch import views as dispatch
from onceward.errors import NotFound, Recovery
from onceward.evidence import explain as explain_evidence
from onceward.grants import views as grants
from onceward.registry import views as registry
from onceward.sagas import views as sagas
from onceward.store.store import Store
from onceward.store.subject import Kind
from onceward.store.tables.builds import Builds
from onceward.store.tables.changes import Changes
from onceward.store.tables.sagas import Runs

KINDS: Final[tuple[Kind, ...]] = (
    *builds.KINDS,
    *sagas.KINDS,
    *grants.KINDS,
    *registry.KINDS,
    *changes.KINDS,
    *dispatch.KINDS,
    *explain_evidence.KINDS,
)
"""Whatever can be explained, in the order in which a name is tried."""


def explain(store: Store, words: Sequence[str]) -> Explanation:
    """Whatever an id, the beginning of one, or a name means; a step alone is of the newest build."""
    return builds.explain(store, words, KINDS)


def subject_named(store: Store, name: str) -> str:
    """The session of the build, saga or session that a name means, or a change; `latest` is the newest build,
    `change:latest` the newest change."""
    with store.read() as rows:
        if name == "change:latest":
            return Changes(rows).named("latest").entry_id
        if name.startswith("ent_"):
            return Changes(rows).named(name).entry_id
        saga = Runs(rows).of_root(name)
    if saga is not None:
        return saga.saga_id
    if name != "latest" and not name.startswith("bld_"):
        try:
            return dispatch.session_named(store, name)
        except NotFound as error:
            error.recovery = (Recovery("see which there are", "onceward status"),)
            raise
    with store.read() as rows:
        return Builds(rows).named(name).build_id
