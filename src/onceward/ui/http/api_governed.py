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
        name="listSagas",
        summary="list the newest sagas",
        answer=list[SagaSummary],
        read=lambda c: saga_list(c.store, c.query.limit),
        query=reads.PageQuery,
    ),
    look(
        "sagas",
        "/sagas/{saga}",
        name="showSaga",
        summary="get a saga and its actions",
        answer=SagaView,
        read=lambda c: saga_view(c.store, c.path["saga"]),
    ),
    look(
        "grants",
        "/grants",
        name="listGrants",
        summary="list the newest grants",
        answer=list[GrantView],
        read=lambda c: grant_list(c.store, c.query.limit),
        query=reads.PageQuery,
    ),
    look(
        "grants",
        "/grants/{grant}",
        name="showGrant",
        summary="get a grant",
        answer=GrantView,
        read=lambda c: grant_view(c.store, c.path["grant"]),
    ),
    look(
        "registry",
        "/registry",
        name="listRegistry",
        summary="list all registered values",
        answer=list[CollectionView],
        read=lambda c: registry_list(c.store),
    ),
    look(
        "registry",
        "/registry/{value}",
        name="showValue",
        summary="get a registered value",
        answer=ValueView,
        read=lambda c: value_view(c.store, c.path["value"]),
    ),
    act(
        "registry",
        "/registry/foresee",
        name="foreseePlan",
        summary="check a registry plan: its effects, the scope a grant must name, and objections",
        takes=reads.CheckPlanBody,
        act=reads.foreseen,
        answer=PlanForecast,
    ),
    look(
        "changes",
        "/changes",
        name="listChanges",
        summary="list changes",
        answer=list[ChangeSummary],
        read=lambda c: change_list(
            c.store,
            [c.query.status] if c.query.status else [],
            c.query.author,
            c.query.limit,
            c.query.before,
        ),
        query=reads.ChangesQuery,
    ),
    look(
        "changes",
        "/changes/{entry}",
        name="showChange",
        summary="get a change",
        answer=ChangeView,
        read=lambda c: change_view(c.store, c.path["entry"], c.workspace.policy),
    ),
    look(
        "changes",
        "/changes/{entry}/diff",
        name="showDiff",
        summary="get the difference a change makes, line by line",
        answer=governed.Diff,
        read=reads.diff,
        query=reads.DiffQuery,
    ),
    look(
        "changes",
        "/changes/{entry}/history",
        name="showHistory",
        summary="get the history of a change",
        answer=list[HistoryView],
        read=lambda c: change_history(c.store, c.path["entry"]),
    ),
)
