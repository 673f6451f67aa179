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
        name="health",
        summary="get the server's state",
        answer=shapes.Health,
        read=reads.health,
        public=True,
    ),
    look(
        "server",
        "/openapi.json",
        name="describe",
        summary="get this OpenAPI description",
        answer=shapes.Said,
        read=lambda c: openapi.document(ROUTES),
        public=True,
    ),
    act(
        "server",
        "/signin",
        name="signIn",
        summary="sign a browser in, by a code or a token",
        takes=reads.SignInBody,
        answer=shapes.Signed,
        public=True,
        kind="signin",
    ),
    act(
        "server",
        "/signout",
        name="signOut",
        summary="sign a browser out",
        takes=reads.EmptyBody,
        kind="signout",
    ),
    act(
        "server",
        "/codes",
        name="newCode",
        summary="create a sign-in code for a browser; it works once, for a short time",
        takes=reads.EmptyBody,
        act=reads.code,
        answer=shapes.SignInCode,
    ),
    look(
        "server",
        "/whoami",
        name="whoami",
        summary="get your principal and your roles",
        answer=PrincipalView,
        read=lambda c: principal_named(c.store, c.principal),
    ),
    look(
        "server",
        "/overview",
        name="overview",
        summary="get what runs, waits for a person or failed, and today's cost",
        answer=Overview,
        read=lambda c: overview(c.store),
    ),
    look(
        "server",
        "/metrics",
        name="metrics",
        summary="get metrics for Prometheus",
        answer=str,
        read=reads.metrics,
        kind="text",
    ),
    look(
        "server",
        "/doctor",
        name="doctor",
        summary="check the workspace and report what to fix",
        answer=shapes.Doctor,
        read=reads.examined,
    ),
    look(
        "server",
        "/error-codes",
        name="listErrorCodes",
        summary="list all error codes and their meanings",
        answer=list[shapes.ErrorCode],
        read=reads.codes,
    ),
    look(
        "server",
        "/machines",
        name="listMachines",
        summary="get the lifecycles: states, transitions, reasons and events",
        answer=list[shapes.MachineTable],
        read=reads.machines,
    ),
)

_WORK: Final = (
    look(
        "builds",
        "/builds",
        name="listBuilds",
        summary="list the newest builds",
        answer=list[BuildSummary],
        read=lambda c: build_list(c.store, c.query.limit),
        query=reads.PageQuery,
    ),
    look(
        "builds",
        "/builds/{build}",
        name="showBuild",
        summary="get a build and its steps",
        answer=BuildView,
        read=lambda c: build_view(c.store, c.path["build"]),
    ),
    look(
        "builds",
        "/builds/{build}/costs",
        name="showCosts",
        summary="get the costs of a build over time, by lane",
        answer=list[shapes.Curve],
        read=lambda c: spent_over_time(c.store, build_named(c.store, c.path["build"]).build_id),
    ),
    look(
        "builds",
        "/builds/{build}/why/{step}",
        name="whyStep",
        summary="get why a step ran or was skipped",
        answer=StepReasons,
        read=lambda c: why(c.store, build_of(c.store, c.path["build"]), c.path["step"]),
    ),
    look(
        "sessions",
        "/sessions",
        name="listSessions",
        summary="list the newest sessions",
        answer=list[SessionSummary],
        read=lambda c: session_list(c.store, c.query.limit),
        query=reads.PageQuery,
    ),
    look(
        "sessions",
        "/sessions/{session}",
        name="showSession",
        summary="get a session and its children",
        answer=SessionView,
        read=lambda c: session_view(c.store, c.path["session"]),
    ),
    look(
        "budgets",
        "/sessions/{session}/budget",
        name="showBudget",
        summary="get the budget lanes of a session",
        answer=list[LaneView],
        read=reads.session_budget,
    ),
    act(
        "sessions",
        "/environments",
        name="bringEnvironment",
        summary="upload environment variables for a spawn request; kept in memory only",
        takes=reads.EnvironmentBody,
        act=reads.bring_environment,
        answer=shapes.EnvironmentNames,
    ),
    look(
        "children",
        "/children/{child}",
        name="showChild",
        summary="get a child and its session",
        answer=SessionView,
        read=lambda c: session_view(c.store, c.path["child"]),
    ),
    look(
        "children",
        "/children/{child}/logs",
        name="showLogs",
        summary="get the end of a child's output",
        answer=shapes.Logs,
        read=reads.logs,
        query=reads.LogsQuery,
    ),
    look(
        "budgets",
        "/spend",
        name="showSpending",
        summary="get costs by build, stage or day",
        answer=shapes.Spending,
        read=lambda c: spending(c.store, c.query.by),
        query=reads.SpendQuery,
    ),
    look(
        "permits",
        "/permits",
        name="listPermits",
        summary="list the newest confirmation tokens, by their ids",
        answer=list[PermitView],
        read=lambda c: permit_list(c.store, c.query.limit),
        query=reads.PageQuery,
    ),
    look(
        "artifacts",
        "/artifacts",
        name="listArtifacts",
        summary="list the artifacts of an owner, or the newest",
        answer=list[ArtifactView],
        read=lambda c: artifact_list(c.store, c.query.owner or None, c.query.limit),
        query=reads.ArtifactsQuery,
    ),
    look(
        "artifacts",
        "/artifacts/{sha256}",
        name="readArtifact",
        summary="get an artifact's bytes, or a range of them",
        answer=bytes,
        read=None,
        kind="bytes",
        query=reads.ArtifactQuery,
    ),
    act(
        "artifacts",
        "/uploads/{sha256}",
        name="upload",
        summary="upload content for a change or a step, by its digest",
        method="PUT",
        kind="upload",
        answer=shapes.Upload,
    ),
)

ROUTES: Final[tuple[Route, ...]] = by_noun(
    (*_SERVER, *_WORK, *GOVERNED, *EVIDENCE, *routes_of_acts())
)
