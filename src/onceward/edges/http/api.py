"""The table of routes: every noun of the command line, read and acted on (I-3)."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from onceward import __version__
from onceward.edges.http.routes import PREFIX, Call, Query, Route
from onceward.engine import build_reading, change_reading, reading, saga_reading
from onceward.engine.explain import build_of, explain, why
from onceward.engine.spending import spending
from onceward.engine.targets import lock_list
from onceward.engine.tokens import token_list
from onceward.errors import CODES

MANY: Final = list[dict[str, Any]]


class Page(Query, frozen=True):
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 50


class After(Query, frozen=True):
    after: Annotated[int, msgspec.Meta(ge=0, le=10**18)] = 0
    """The id of the last event that is known already; a `Last-Event-ID` header counts more."""


class By(Query, frozen=True):
    by: str = "build"


class About(Query, frozen=True):
    of: Annotated[str, msgspec.Meta(pattern=r"\S")]
    """What to explain: an id, its beginning, or words as `onceward explain` takes them."""


def _health(call: Call) -> dict[str, Any]:
    return {"status": "ok", "version": __version__, "state": call.service.state}


def _whoami(call: Call) -> dict[str, Any]:
    return reading.principal_named(call.store, call.principal)


def _codes(call: Call) -> list[dict[str, Any]]:
    return [
        {"code": code, "meaning": facts.meaning, "status": facts.http_status, "retryable": facts.retryable}
        for code, facts in CODES.items()
    ]


def _look(noun: str, path: str, summary: str, read: Any, **more: Any) -> Route:
    many = "{" not in path
    name = ("list" if many else "show") + "".join(word.capitalize() for word in path.split("/") if word[:1] != "{")
    return Route(
        **(
            {"method": "GET", "path": PREFIX + path, "name": name, "summary": summary, "noun": noun, "read": read}
            | more
        )
    )


def _act(noun: str, path: str, summary: str, verb: str) -> Route:
    first, _, second = verb.partition(".")
    return Route(
        method="POST",
        path=PREFIX + path,
        name=f"{second}{first.capitalize()}",
        summary=summary,
        noun=noun,
        verb=verb,
    )


ROUTES: Final[tuple[Route, ...]] = (
    _look("server", "/health", "whether the server is there, and as what", _health, public=True, name="health"),
    _look("server", "/whoami", "who you are here, and what you may do", _whoami, name="whoami"),
    _look("server", "/codes", "every error code and what it means", _codes, answer=MANY),
    _look(
        *("builds", "/builds", "the newest builds", lambda c: build_reading.build_list(c.store, c.query.limit)),
        query=Page,
        answer=MANY,
    ),
    _look(
        "builds",
        "/builds/{build}",
        "a build and its steps",
        lambda c: build_reading.build_status(c.store, c.path["build"]),
    ),
    _look(
        *("builds", "/builds/{build}/why/{step}", "why a step ran, or did not"),
        lambda c: why(c.store, build_of(c.store, c.path["build"]), c.path["step"]),
    ),
    _act("builds", "/builds", "run a plan that is in the workspace's folder", "builds.run"),
    _act("builds", "/builds/{build}/resume", "go on with a build", "builds.resume"),
    _act("builds", "/builds/{build}/confirm", "let a paused build spend more", "builds.confirm"),
    _act("builds", "/builds/{build}/abandon", "give a build up", "builds.abandon"),
    _act("builds", "/builds/{build}/approve", "approve what flows into a step, or refuse it", "builds.approve"),
    _look(
        *("sessions", "/sessions", "the newest sessions", lambda c: reading.session_list(c.store, c.query.limit)),
        query=Page,
        answer=MANY,
    ),
    _look(
        "sessions",
        "/sessions/{session}",
        "a session and its children",
        lambda c: reading.session_status(c.store, c.path["session"]),
    ),
    _look(
        *("budgets", "/sessions/{session}/budget", "the lanes of a session's budget"),
        lambda c: reading.lane_list(c.store, reading.subject_named(c.store, c.path["session"])),
        answer=MANY,
    ),
    _act("sessions", "/sessions", "run commands as children", "sessions.spawn"),
    _act("children", "/cancel/{subject}", "ask a build, a session's children or a child to end", "children.cancel"),
    _look(
        "budgets", "/spend", "what was spent, by build, stage or day", lambda c: spending(c.store, c.query.by), query=By
    ),
    _look(
        *("sagas", "/sagas", "the newest sagas", lambda c: saga_reading.saga_list(c.store, c.query.limit)),
        query=Page,
        answer=MANY,
    ),
    _look(
        "sagas", "/sagas/{saga}", "a saga and its actions", lambda c: saga_reading.saga_status(c.store, c.path["saga"])
    ),
    _act("sagas", "/sagas", "run a saga that is in the workspace's folder", "sagas.run"),
    _act("sagas", "/sagas/{saga}/resume", "go on with a saga", "sagas.resume"),
    _act("sagas", "/sagas/{saga}/abandon", "give a saga up", "sagas.abandon"),
    _look(
        *("grants", "/grants", "the newest grants", lambda c: saga_reading.grant_list(c.store, c.query.limit)),
        query=Page,
        answer=MANY,
    ),
    _look("grants", "/grants/{grant}", "a grant", lambda c: saga_reading.grant_named(c.store, c.path["grant"])),
    _act("grants", "/grants", "draft a grant", "grants.draft"),
    _act("grants", "/grants/{grant}/issue", "issue a grant, all of it signed", "grants.issue"),
    _act("grants", "/grants/{grant}/revoke", "revoke a grant", "grants.revoke"),
    _act("grants", "/expire-grants", "mark what has run out", "grants.expire"),
    _look(
        *("registry", "/registry", "every value", lambda c: saga_reading.registry_list(c.store)),
        answer=MANY,
    ),
    _look("registry", "/registry/{value}", "a value", lambda c: saga_reading.value_named(c.store, c.path["value"])),
    _act("registry", "/registry/apply", "apply a plan", "registry.apply"),
    _act("registry", "/registry/rollback", "roll a plan back", "registry.rollback"),
    _look(
        *("changes", "/changes", "the queue of changes", lambda c: change_reading.change_list(c.store)),
        answer=MANY,
    ),
    _look(
        *("changes", "/changes/{entry}", "a change"),
        lambda c: change_reading.change_status(c.store, c.path["entry"], c.workspace.policy),
    ),
    _look(
        *("changes", "/changes/{entry}/history", "what happened to a change"),
        lambda c: change_reading.change_history(c.store, c.path["entry"]),
        answer=MANY,
    ),
    _act("changes", "/changes", "mark a change", "changes.mark"),
    _act("changes", "/sweep", "pass over the queue", "changes.sweep"),
    _act("changes", "/changes/{entry}/review", "approve, defer or reject exactly this", "changes.review"),
    _act("changes", "/changes/{entry}/cut", "cut what was approved", "changes.cut"),
    _act("changes", "/changes/{entry}/verify", "verify what was cut", "changes.verify"),
    _act("changes", "/changes/{entry}/abandon", "give a change up", "changes.abandon"),
    _look(
        "locks",
        "/locks",
        "who holds which target",
        lambda c: lock_list(c.workspace.locks),
        answer=MANY,
    ),
    _look(
        "streams",
        "/streams",
        "every stream and its head",
        lambda c: reading.stream_list(c.store),
        answer=MANY,
    ),
    _look("events", "/events", "every event as it comes", None, query=After, kind="stream", name="followAll"),
    _look("events", "/streams/{stream}/events", "a stream's events", None, query=After, kind="stream", name="follow"),
    _look(
        *("explain", "/explain", "anything here in plain words, with the next command"),
        lambda c: msgspec.to_builtins(explain(c.store, c.query.of.split())),
        query=About,
        name="explain",
    ),
    _look(
        "principals",
        "/principals",
        "who may act here, and as what",
        lambda c: reading.principal_list(c.store),
        answer=MANY,
    ),
    _act("principals", "/principals", "add somebody, or give them roles", "principals.add"),
    _act("principals", "/principals/{name}/take", "take roles away", "principals.take"),
    _look("tokens", "/tokens", "every token and how it stands", lambda c: token_list(c.store), answer=MANY),
    _act("tokens", "/tokens", "make a token of your own known by its hash", "tokens.new"),
    _act("tokens", "/tokens/{token}/revoke", "let a token be good for nothing", "tokens.revoke"),
    _act("outbox", "/outbox/flush", "deliver what waits, now", "outbox.flush"),
)
