"""The part of the table that needs somebody's authority: sagas, grants, the registry, changes."""

from __future__ import annotations

from typing import Final

from onceward.edges.http import governed_shapes as governed
from onceward.edges.http import reads
from onceward.edges.http.routes import act, look
from onceward.engine import change_reading, saga_reading

GOVERNED: Final = (
    look(
        "sagas",
        "/sagas",
        "listSagas",
        "the newest sagas",
        list[governed.Saga],
        lambda c: saga_reading.saga_list(c.store, c.query.limit),
        query=reads.Page,
    ),
    look(
        "sagas",
        "/sagas/{saga}",
        "showSaga",
        "a saga and its actions",
        governed.SagaInFull,
        lambda c: saga_reading.saga_status(c.store, c.path["saga"]),
    ),
    look(
        "grants",
        "/grants",
        "listGrants",
        "the newest grants",
        list[governed.Grant],
        lambda c: saga_reading.grant_list(c.store, c.query.limit),
        query=reads.Page,
    ),
    look(
        "grants",
        "/grants/{grant}",
        "showGrant",
        "a grant",
        governed.Grant,
        lambda c: saga_reading.grant_named(c.store, c.path["grant"]),
    ),
    look(
        "registry",
        "/registry",
        "listRegistry",
        "every value",
        list[governed.Collection],
        lambda c: saga_reading.registry_list(c.store),
    ),
    look(
        "registry",
        "/registry/{value}",
        "showValue",
        "a value",
        governed.Value,
        lambda c: saga_reading.value_named(c.store, c.path["value"]),
    ),
    act(
        "registry",
        "/registry/foresee",
        "foreseePlan",
        "what a plan would do, what a grant must name, what stands against it",
        takes=reads.Foresee,
        act=reads.foreseen,
        answer=governed.Foreseen,
    ),
    look(
        "changes",
        "/changes",
        "listChanges",
        "the queue of changes",
        list[governed.Change],
        lambda c: change_reading.change_list(
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
        "a change",
        governed.ChangeInFull,
        lambda c: change_reading.change_status(c.store, c.path["entry"], c.workspace.policy),
    ),
    look(
        "changes",
        "/changes/{entry}/diff",
        "showDiff",
        "what a change would do, line by line",
        governed.Diff,
        reads.diff,
        query=reads.InFull,
    ),
    look(
        "changes",
        "/changes/{entry}/history",
        "showHistory",
        "what happened to a change",
        list[governed.Arrow],
        lambda c: change_reading.change_history(c.store, c.path["entry"]),
    ),
)
