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
    act("sagas", "/sagas", "runSaga", "run a saga that is in the workspace's folder", "sagas.run"),
    act(
        "sagas",
        "/sagas/{saga}/resume",
        "resumeSaga",
        "go on with a saga, or try what it is stuck at again",
        "sagas.resume",
    ),
    act("sagas", "/sagas/{saga}/abandon", "abandonSaga", "give a saga up", "sagas.abandon"),
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
    act("grants", "/grants", "draftGrant", "draft a grant", "grants.draft"),
    act("grants", "/grants/{grant}/issue", "issueGrant", "issue a grant, all of it signed", "grants.issue"),
    act("grants", "/grants/{grant}/revoke", "revokeGrant", "revoke a grant", "grants.revoke"),
    act("grants", "/expire-grants", "expireGrants", "mark what has run out", "grants.expire"),
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
    act("registry", "/registry/apply", "applyPlan", "apply a plan", "registry.apply"),
    act("registry", "/registry/rollback", "rollBack", "roll a plan back", "registry.rollback"),
    look(
        "changes",
        "/changes",
        "listChanges",
        "the queue of changes",
        list[governed.Change],
        lambda c: change_reading.change_list(
            c.store, [c.query.status] if c.query.status else [], c.query.author, c.query.limit, c.query.before
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
    ),
    look(
        "changes",
        "/changes/{entry}/history",
        "showHistory",
        "what happened to a change",
        list[governed.Arrow],
        lambda c: change_reading.change_history(c.store, c.path["entry"]),
    ),
    act("changes", "/changes", "markChange", "mark a change whose contents were brought", "changes.mark"),
    act("changes", "/sweep", "sweepChanges", "pass over the queue", "changes.sweep"),
    act(
        "changes", "/changes/{entry}/review", "reviewChange", "approve, defer or reject exactly this", "changes.review"
    ),
    act("changes", "/changes/{entry}/cut", "cutChange", "cut what was approved", "changes.cut"),
    act("changes", "/changes/{entry}/verify", "verifyChange", "verify what was cut", "changes.verify"),
    act("changes", "/changes/{entry}/abandon", "abandonChange", "give a change up", "changes.abandon"),
)
