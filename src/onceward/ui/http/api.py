"""The table of routes: every noun of the command line, read and acted on (I-3)."""

from __future__ import annotations

from typing import Final

from onceward.artifacts.views import ArtifactView, artifact_list
from onceward.builds.explain import StepReasons, build_of, why
from onceward.builds.views import (
    BuildSummary,
    BuildView,
    PermitView,
    build_list,
    build_named,
    build_view,
    permit_list,
)
from onceward.core.views import LaneView
from onceward.dispatch.spending import spending, spent_over_time
from onceward.dispatch.views import SessionSummary, SessionView, session_list, session_view
from onceward.overview import Overview, overview
from onceward.people.views import PrincipalView, principal_named
from onceward.ui.http import openapi, reads, shapes
from onceward.ui.http.api_evidence import EVIDENCE
from onceward.ui.http.api_governed import GOVERNED
from onceward.ui.http.routes import Route, act, by_noun, look, routes_of_acts

_SERVER: Final = (
    look(
        "server",
        "/health",
        "health",
        "whether the server is there, and as what",
        shapes.Health,
        reads.health,
        public=True,
    ),
    look(
        "server",
        "/openapi.json",
        "describe",
        "this description",
        shapes.Said,
        lambda c: openapi.document(ROUTES),
        public=True,
    ),
    act(
        "server",
        "/signin",
        "signIn",
        "let a browser in, by a code or a token",
        takes=reads.SignIn,
        answer=shapes.Signed,
        public=True,
        kind="signin",
    ),
    act(
        "server",
        "/signout",
        "signOut",
        "end a browser's session",
        takes=reads.Nothing,
        kind="signout",
    ),
    act(
        "server",
        "/codes",
        "newCode",
        "a code that lets a browser in as you, once, soon",
        takes=reads.Nothing,
        act=reads.code,
        answer=shapes.SignInCode,
    ),
    look(
        "server",
        "/whoami",
        "whoami",
        "who you are here, and what you may do",
        PrincipalView,
        lambda c: principal_named(c.store, c.principal),
    ),
    look(
        "server",
        "/overview",
        "overview",
        "what runs, what waits for a person, what failed, what today cost",
        Overview,
        lambda c: overview(c.store),
    ),
    look(
        "server", "/metrics", "metrics", "numbers for Prometheus", str, reads.metrics, kind="text"
    ),
    look(
        "server",
        "/doctor",
        "doctor",
        "everything looked over, and what to fix",
        shapes.Doctor,
        reads.examined,
    ),
    look(
        "server",
        "/error-codes",
        "listErrorCodes",
        "every error code and what it means",
        list[shapes.Code],
        reads.codes,
    ),
    look(
        "server",
        "/machines",
        "listMachines",
        "the lifecycles: states, moves, reasons and events",
        list[shapes.Machine],
        reads.machines,
    ),
)

_WORK: Final = (
    look(
        "builds",
        "/builds",
        "listBuilds",
        "the newest builds",
        list[BuildSummary],
        lambda c: build_list(c.store, c.query.limit),
        query=reads.Page,
    ),
    look(
        "builds",
        "/builds/{build}",
        "showBuild",
        "a build and its steps",
        BuildView,
        lambda c: build_view(c.store, c.path["build"]),
    ),
    look(
        "builds",
        "/builds/{build}/costs",
        "showCosts",
        "what a build spent over time, by lane",
        list[shapes.Curve],
        lambda c: spent_over_time(c.store, build_named(c.store, c.path["build"]).build_id),
    ),
    look(
        "builds",
        "/builds/{build}/why/{step}",
        "whyStep",
        "why a step ran, or did not",
        StepReasons,
        lambda c: why(c.store, build_of(c.store, c.path["build"]), c.path["step"]),
    ),
    look(
        "sessions",
        "/sessions",
        "listSessions",
        "the newest sessions",
        list[SessionSummary],
        lambda c: session_list(c.store, c.query.limit),
        query=reads.Page,
    ),
    look(
        "sessions",
        "/sessions/{session}",
        "showSession",
        "a session and its children",
        SessionView,
        lambda c: session_view(c.store, c.path["session"]),
    ),
    look(
        "budgets",
        "/sessions/{session}/budget",
        "showBudget",
        "the lanes of a session's budget",
        list[LaneView],
        reads.session_budget,
    ),
    act(
        "sessions",
        "/environments",
        "bringEnvironment",
        "values of variables for a request to spawn, kept in memory only",
        takes=reads.Environment,
        act=reads.bring_environment,
        answer=shapes.BroughtNames,
    ),
    look(
        "children",
        "/children/{child}",
        "showChild",
        "a child, with its session",
        SessionView,
        lambda c: session_view(c.store, c.path["child"]),
    ),
    look(
        "children",
        "/children/{child}/logs",
        "showLogs",
        "the end of what a child said",
        shapes.Logs,
        reads.logs,
        query=reads.Tail,
    ),
    look(
        "budgets",
        "/spend",
        "showSpending",
        "what was spent, by build, stage or day",
        shapes.Spending,
        lambda c: spending(c.store, c.query.by),
        query=reads.By,
    ),
    look(
        "permits",
        "/permits",
        "listPermits",
        "the newest confirmation tokens, by their ids",
        list[PermitView],
        lambda c: permit_list(c.store, c.query.limit),
        query=reads.Page,
    ),
    look(
        "artifacts",
        "/artifacts",
        "listArtifacts",
        "what somebody left, or the newest of all",
        list[ArtifactView],
        lambda c: artifact_list(c.store, c.query.owner or None, c.query.limit),
        query=reads.Of,
    ),
    look(
        "artifacts",
        "/artifacts/{sha256}",
        "readArtifact",
        "an artifact's bytes, all or a range",
        bytes,
        None,
        kind="bytes",
        query=reads.As,
    ),
    act(
        "artifacts",
        "/uploads/{sha256}",
        "upload",
        "bring a content that a change or a step is to have, by its digest",
        method="PUT",
        kind="upload",
        answer=shapes.Brought,
    ),
)

ROUTES: Final[tuple[Route, ...]] = by_noun(
    (*_SERVER, *_WORK, *GOVERNED, *EVIDENCE, *routes_of_acts())
)
