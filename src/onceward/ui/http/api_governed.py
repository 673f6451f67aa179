"""The part of the table that needs somebody's authority: sagas, grants, the registry, changes."""

from __future__ import annotations

from typing import Final

from onceward.changes.views import (
    ChangeSummary,
    ChangeView,
    HistoryView,
    change_history,
    change_list,
    change_view,
)
from onceward.grants.views import GrantView, grant_list, grant_view
from onceward.registry.views import (
    CollectionView,
    PlanForecast,
    ValueView,
    registry_list,
    value_view,
)
from onceward.sagas.views import SagaSummary, SagaView, saga_list, saga_view
from onceward.ui.http import governed_shapes as governed
from onceward.ui.http import reads
from onceward.ui.http.routes import act, look

GOVERNED: Final = (
    look(
        "sagas",
        "/sagas",
        "listSagas",
        "list the newest sagas",
        list[SagaSummary],
        lambda c: saga_list(c.store, c.query.limit),
        query=reads.Page,
    ),
    look(
        "sagas",
        "/sagas/{saga}",
        "showSaga",
        "get a saga and its actions",
        SagaView,
        lambda c: saga_view(c.store, c.path["saga"]),
    ),
    look(
        "grants",
        "/grants",
        "listGrants",
        "list the newest grants",
        list[GrantView],
        lambda c: grant_list(c.store, c.query.limit),
        query=reads.Page,
    ),
    look(
        "grants",
        "/grants/{grant}",
        "showGrant",
        "get a grant",
        GrantView,
        lambda c: grant_view(c.store, c.path["grant"]),
    ),
    look(
        "registry",
        "/registry",
        "listRegistry",
        "list all registered values",
        list[CollectionView],
        lambda c: registry_list(c.store),
    ),
    look(
        "registry",
        "/registry/{value}",
        "showValue",
        "get a registered value",
        ValueView,
        lambda c: value_view(c.store, c.path["value"]),
    ),
    act(
        "registry",
        "/registry/foresee",
        "foreseePlan",
        "check a registry plan: its effects, the scope a grant must name, and objections",
        takes=reads.Foresee,
        act=reads.foreseen,
        answer=PlanForecast,
    ),
    look(
        "changes",
        "/changes",
        "listChanges",
        "list changes",
        list[ChangeSummary],
        lambda c: change_list(
            c.store,
            [c.query.status] if c.query.status else [],
            c.query.author,
            c.query.limit,
            c.query.before,
        ),
        query=reads.Some,
    ),
    look(
        "changes",
        "/changes/{entry}",
        "showChange",
        "get a change",
        ChangeView,
        lambda c: change_view(c.store, c.path["entry"], c.workspace.policy),
    ),
    look(
        "changes",
        "/changes/{entry}/diff",
        "showDiff",
        "get the difference a change makes, line by line",
        governed.Diff,
        reads.diff,
        query=reads.InFull,
    ),
    look(
        "changes",
        "/changes/{entry}/history",
        "showHistory",
        "get the history of a change",
        list[HistoryView],
        lambda c: change_history(c.store, c.path["entry"]),
    ),
)
