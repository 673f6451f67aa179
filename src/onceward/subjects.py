"""Everything that can be explained, by its name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from onceward.changes import views as changes
from onceward.engine import explain as builds
from onceward.engine import explain_children, explain_evidence
from onceward.engine.explanation import Explanation, Kind
from onceward.grants import views as grants
from onceward.registry import views as registry
from onceward.sagas import views as sagas
from onceward.store.store import Store

KINDS: Final[tuple[Kind, ...]] = (
    *builds.KINDS,
    *sagas.KINDS,
    *grants.KINDS,
    *registry.KINDS,
    *changes.KINDS,
    *explain_children.KINDS,
    *explain_evidence.KINDS,
)
"""Whatever can be explained, in the order in which a name is tried."""


def explain(store: Store, words: Sequence[str]) -> Explanation:
    """Whatever an id, the beginning of one, or a name means; a step alone is of the newest build."""
    return builds.explain(store, words, KINDS)
