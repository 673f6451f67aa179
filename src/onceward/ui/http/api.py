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
        "get the server's state",
        shapes.Health,
        reads.health,
        public=True,
    ),
    look(
        "server",
        "/openapi.json",
        "describe",
        "get this OpenAPI description",
        shapes.Said,
        lambda c: openapi.document(ROUTES),
        public=True,
    ),
    act(
        "server",
        "/signin",
        "signIn",
        "sign a browser in, by a code or a token",
        takes=reads.SignIn,
        answer=shapes.Signed,
        public=True,
        kind="signin",
    ),
    act(
        "server",
        "/signout",
        "signOut",
        "sign a browser out",
        takes=reads.Nothing,
        kind="signout",
    ),
    act(
        "server",
        "/codes",
        "newCode",
        "create a sign-in code for a browser; it works once, for a short time",
        takes=reads.Nothing,
        act=reads.code,
        answer=shapes.SignInCode,
    ),
    look(
        "server",
        "/whoami",
        "whoami",
        "get your principal and your roles",
        PrincipalView,
        lambda c: principal_named(c.store, c.principal),
    ),
    look(
        "server",
        "/overview",
        "overview",
        "get what runs, waits for a person or failed, and today's cost",
        Overview,
        lambda c: overview(c.store),
    ),
    look(
        "server",
        "/metrics",
        "metrics",
        "get metrics for Prometheus",
        str,
        reads.metrics,
        kind="text",
    ),
    look(
        "server",
        "/doctor",
        "doctor",
        "check the workspace and report what to fix",
        shapes.Doctor,
        reads.examined,
    ),
    look(
        "server",
        "/error-codes",
        "listErrorCodes",
        "list all error codes and their meanings",
        list[shapes.Code],
        reads.codes,
    ),
    look(
        "server",
        "/machines",
        "listMachines",
        "get the lifecycles: states, transitions, reasons and events",
        list[shapes.Machine],
        reads.machines,
    ),
)

_WORK: Final = (
    look(
        "builds",
        "/builds",
        "listBuilds",
        "list the newest builds",
        list[BuildSummary],
        lambda c: build_list(c.store, c.query.limit),
        query=reads.Page,
    ),
    look(
        "builds",
        "/builds/{build}",
        "showBuild",
        "get a build and its steps",
        BuildView,
        lambda c: build_view(c.store, c.path["build"]),
    ),
    look(
        "builds",
        "/builds/{build}/costs",
        "showCosts",
        "get the costs of a build over time, by lane",
        list[shapes.Curve],
        lambda c: spent_over_time(c.store, build_named(c.store, c.path["build"]).build_id),
    ),
    look(
        "builds",
        "/builds/{build}/why/{step}",
        "whyStep",
        "get why a step ran or was skipped",
        StepReasons,
        lambda c: why(c.store, build_of(c.store, c.path["build"]), c.path["step"]),
    ),
    look(
        "sessions",
        "/sessions",
        "listSessions",
        "list the newest sessions",
        list[SessionSummary],
        lambda c: session_list(c.store, c.query.limit),
        query=reads.Page,
    ),
    look(
        "sessions",
        "/sessions/{session}",
        "showSession",
        "get a session and its children",
        SessionView,
        lambda c: session_view(c.store, c.path["session"]),
    ),
    look(
        "budgets",
        "/sessions/{session}/budget",
        "showBudget",
        "get the budget lanes of a session",
        list[LaneView],
        reads.session_budget,
    ),
    act(
        "sessions",
        "/environments",
        "bringEnvironment",
        "upload environment variables for a spawn request; kept in memory only",
        takes=reads.Environment,
        act=reads.bring_environment,
        answer=shapes.BroughtNames,
    ),
    look(
        "children",
        "/children/{child}",
        "showChild",
        "get a child and its session",
        SessionView,
        lambda c: session_view(c.store, c.path["child"]),
    ),
    look(
        "children",
        "/children/{child}/logs",
        "showLogs",
        "get the end of a child's output",
        shapes.Logs,
        reads.logs,
        query=reads.Tail,
    ),
    look(
        "budgets",
        "/spend",
        "showSpending",
        "get costs by build, stage or day",
        shapes.Spending,
        lambda c: spending(c.store, c.query.by),
        query=reads.By,
    ),
    look(
        "permits",
        "/permits",
        "listPermits",
        "list the newest confirmation tokens, by their ids",
        list[PermitView],
        lambda c: permit_list(c.store, c.query.limit),
        query=reads.Page,
    ),
    look(
        "artifacts",
        "/artifacts",
        "listArtifacts",
        "list the artifacts of an owner, or the newest",
        list[ArtifactView],
        lambda c: artifact_list(c.store, c.query.owner or None, c.query.limit),
        query=reads.Of,
    ),
    look(
        "artifacts",
        "/artifacts/{sha256}",
        "readArtifact",
        "get an artifact's bytes, or a range of them",
        bytes,
        None,
        kind="bytes",
        query=reads.As,
    ),
    act(
        "artifacts",
        "/uploads/{sha256}",
        "upload",
        "upload content for a change or a step, by its digest",
        method="PUT",
        kind="upload",
        answer=shapes.Brought,
    ),
)

ROUTES: Final[tuple[Route, ...]] = by_noun(
    (*_SERVER, *_WORK, *GOVERNED, *EVIDENCE, *routes_of_acts())
)
