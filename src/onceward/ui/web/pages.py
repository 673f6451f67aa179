"""The pages: each a row of a table like the API's, and answered from the same readings (I-4)."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from onceward.artifacts.views import artifact_list
from onceward.builds.approval_content import shown, to_approve
from onceward.builds.views import BuildView, build_list, build_view
from onceward.changes.views import change_counts, change_history, change_list, change_view
from onceward.dispatch.spending import spending
from onceward.dispatch.targets import lock_list
from onceward.dispatch.views import SessionView, session_list, session_view
from onceward.errors import OncewardError
from onceward.grants.views import grant_list, grant_view
from onceward.kernel import views as reading
from onceward.overview import overview
from onceward.people.tokens import token_list
from onceward.people.views import duties_left, key_list, principal_list
from onceward.registry.views import registry_list
from onceward.sagas.views import saga_list, saga_view
from onceward.subjects import explain
from onceward.ui.http import reads
from onceward.ui.http.routes import Call, Query, Read, Route
from onceward.ui.web import views
from onceward.ui.web.forms import act_named, acts

NAV: Final = (
    ("/", "Overview"),
    ("/builds", "Builds"),
    ("/sessions", "Sessions"),
    ("/changes", "Changes"),
    ("/sagas", "Sagas"),
    ("/grants", "Grants"),
    ("/registry", "Registry"),
    ("/locks", "Locks"),
    ("/streams", "Streams"),
    ("/spend", "Spend"),
    ("/evidence", "Evidence"),
    ("/gate", "Gate"),
    ("/people", "People"),
    ("/do", "Do"),
)


class BuildPageQuery(Query, frozen=True):
    step: str = ""
    """Whose log is shown."""
    whole: bool = False
    """Whether all that is to be approved is shown."""


class ChangesPageQuery(Query, frozen=True):
    status: str = ""
    before: str = ""


class ChangePageQuery(reads.DiffQuery, frozen=True):
    view: Annotated[str, msgspec.Meta(pattern="^(split|unified)$")] = "split"


class GatePageQuery(Query, frozen=True):
    report: str = ""


class ExplainPageQuery(Query, frozen=True):
    of: str = ""


class EvidencePageQuery(Query, frozen=True):
    check: Annotated[str, msgspec.Meta(pattern="^(verify|replay|doctor|)$")] = ""


class StaticQuery(Query, frozen=True):
    v: str = ""
    """What the file was when the page was made: with it, it may be kept for ever."""


class FormQuery(Query, frozen=True):
    """What a form begins with: names of its own, whatever they are."""

    given: str = ""
    """As JSON."""


def _page(path: str, name: str, template: str, read: Read, **more: Any) -> Route:
    said: dict[str, Any] = {
        "noun": "pages",
        "summary": f"a page: {name}",
        "kind": "page",
        "page": template,
        **more,
    }
    return Route(method="GET", path=path, name=f"page {name}", read=read, answer=str, **said)


def _overview(call: Call) -> dict[str, Any]:
    days = spending(call.store, "day")["groups"][:30]
    return {
        "seen": overview(call.store),
        "days": views.days(days),
        "builds": build_list(call.store, 8),
    }


def _builds(call: Call) -> dict[str, Any]:
    return {"builds": build_list(call.store, 200)}


def _build(call: Call) -> dict[str, Any]:
    found = build_view(call.store, call.path["build"])
    session = session_view(call.store, found.build_id)
    return {
        "build": found,
        "graph": views.graph(found),
        "timeline": _timeline(call, session, found.state == "ACTIVE" and not found.orphaned),
        "tally": views.tally(found.steps),
        "raised": views.raised(found),
        "to_approve": to_approve(call.artifacts, found, whole=call.query.whole),
        "is_whole": call.query.whole,
        "told": _told(call, found.build_id),
        **_log(call, found),
    }


def _timeline(call: Call, session: SessionView, running: bool) -> dict[str, Any]:
    return views.timeline(session.children, running, call.store.sources.now() / 1e6)


def _log(call: Call, found: BuildView) -> dict[str, Any]:
    """The log of the step that was chosen, or of the one that matters most."""
    chosen = views.chosen_step(found.steps, call.query.step)
    if chosen is None:
        return {"log_of": None, "log": None}
    return {"log_of": chosen, "log": views.logs_of(call, chosen.child_id or "")}


def _told(call: Call, *words: str) -> Any:
    """In plain words; a page does not fail because nothing can be said."""
    try:
        return msgspec.to_builtins(explain(call.store, list(words)))
    except OncewardError:
        return None


def _session(call: Call) -> dict[str, Any]:
    found = session_view(call.store, call.path["session"])
    running = any(not child.over for child in found.children)
    return {
        "session": found,
        "timeline": _timeline(call, found, running),
        "told": _told(call, found.session_id),
    }


def _child(call: Call) -> dict[str, Any]:
    found = session_view(call.store, call.path["child"])
    child = found.children[0]
    return {
        "session": found,
        "child": child,
        "log": views.logs_of(call, child.child_id),
        "artifacts": artifact_list(call.store, child.child_id),
        "told": _told(call, child.child_id),
    }


def _artifact(call: Call) -> dict[str, Any]:
    seen = shown(call.artifacts, call.path["sha256"])
    return {
        "sha256": seen.sha256,
        "size": seen.size,
        "text": seen.text,
        "cut": seen.cut,
        "told": _told(call, seen.sha256),
    }


def _changes(call: Call) -> dict[str, Any]:
    status = [call.query.status] if call.query.status else []
    found = change_list(call.store, status, "", 50, call.query.before)
    return {
        "changes": found,
        "counts": change_counts(call.store),
        "chosen": call.query.status,
    }


def _change(call: Call) -> dict[str, Any]:
    found = change_view(call.store, call.path["entry"], call.workspace.policy)
    files = views.files(reads.diff(call), whole=call.query.whole)
    drift = {unit.path for unit in found.origin.drift} if found.origin is not None else set()
    return {
        "change": found,
        "edited": not drift.isdisjoint(unit.path for unit in found.units),
        "files": files,
        "cut_off": any(file["cut_off"] for file in files),
        "is_whole": call.query.whole,
        "own": call.principal == found.author and not call.workspace.policy.authors_may_review,
        "history": change_history(call.store, found.entry_id),
        "view": call.query.view,
        "told": _told(call, found.entry_id),
    }


def _sagas(call: Call) -> dict[str, Any]:
    return {"sagas": saga_list(call.store, 200)}


def _saga(call: Call) -> dict[str, Any]:
    found = saga_view(call.store, call.path["saga"])
    session = session_view(call.store, found.saga_id)
    return {
        "saga": found,
        "timeline": _timeline(call, session, found.standing == "running"),
        "told": _told(call, found.saga_id),
    }


def _grants(call: Call) -> dict[str, Any]:
    return {"grants": grant_list(call.store, 200)}


def _grant(call: Call) -> dict[str, Any]:
    found = grant_view(call.store, call.path["grant"])
    return {"grant": found, "told": _told(call, found.grant_id)}


def _registry(call: Call) -> dict[str, Any]:
    return {"collections": registry_list(call.store)}


def _locks(call: Call) -> dict[str, Any]:
    return {"locks": lock_list(call.workspace.locks)}


def _streams(call: Call) -> dict[str, Any]:
    return {"streams": reading.stream_list(call.store)}


def _stream(call: Call) -> dict[str, Any]:
    stream = reading.stream_named(call.store, call.path["stream"])
    return {"stream": stream, **views.events(call.store, stream)}


def _spend(call: Call) -> dict[str, Any]:
    found = spending(call.store, call.query.by)
    days = found["groups"] if call.query.by == "day" else spending(call.store, "day")["groups"]
    return {"spent": found, "days": views.days(days[:60])}


def _evidence(call: Call) -> dict[str, Any]:
    look: dict[str, Read] = {
        "verify": reads.verify,
        "replay": views.replayed,
        "doctor": reads.examined,
    }
    checked = look[call.query.check](call) if call.query.check else None
    sinks = reading.outbox_status(call.store, call.workspace.settings.sinks())
    return {"check": call.query.check, "found": checked, "sinks": sinks}


def _gate(call: Call) -> dict[str, Any]:
    kept = reads.gate_reports(call)
    chosen = [one for one in kept if one["report"] == call.query.report] or kept[:1]
    return {"reports": kept, "shown": chosen[0] if chosen else None}


def _people(call: Call) -> dict[str, Any]:
    return {
        "people": principal_list(call.store),
        "tokens": token_list(call.store)[::-1][:200],
        "keys": key_list(call.store, call.workspace.keyring),
        "left": duties_left(call.store),
    }


def _explain(call: Call) -> dict[str, Any]:
    of = call.query.of.strip()
    found, error = None, ""
    if of:
        try:
            found = reads.told(call, of)
        except OncewardError as refused:
            error = refused.message
    return {
        "of": of,
        "told": found,
        "error": error,
        "place": views.place_of(found) if found else None,
    }


def _acts(call: Call) -> dict[str, Any]:
    return {"acts": acts()}


def _act(call: Call) -> dict[str, Any]:
    return {"act": act_named(call.path["act"], call.query.given)}


PAGES: Final[tuple[Route, ...]] = (
    _page("/", "overview", "overview.html", _overview),
    _page("/builds", "builds", "builds.html", _builds),
    _page("/builds/{build}", "build", "build.html", _build, query=BuildPageQuery),
    _page(
        "/sessions",
        "sessions",
        "sessions.html",
        lambda c: {"sessions": session_list(c.store, 200)},
    ),
    _page("/sessions/{session}", "session", "session.html", _session),
    _page("/children/{child}", "child", "child.html", _child),
    _page("/artifacts/{sha256}", "artifact", "artifact.html", _artifact),
    _page("/changes", "changes", "changes.html", _changes, query=ChangesPageQuery),
    _page("/changes/{entry}", "change", "change.html", _change, query=ChangePageQuery),
    _page("/sagas", "sagas", "sagas.html", _sagas),
    _page("/sagas/{saga}", "saga", "saga.html", _saga),
    _page("/grants", "grants", "grants.html", _grants),
    _page("/grants/{grant}", "grant", "grant.html", _grant),
    _page("/registry", "registry", "registry.html", _registry),
    _page("/locks", "locks", "locks.html", _locks),
    _page("/streams", "streams", "streams.html", _streams),
    _page("/streams/{stream}", "stream", "stream.html", _stream),
    _page("/spend", "spend", "spend.html", _spend, query=reads.SpendQuery),
    _page("/evidence", "evidence", "evidence.html", _evidence, query=EvidencePageQuery),
    _page("/gate", "gate", "gate.html", _gate, query=GatePageQuery),
    _page("/people", "people", "people.html", _people),
    _page("/explain", "explain", "explain.html", _explain, query=ExplainPageQuery),
    _page("/do", "acts", "acts.html", _acts),
    _page("/do/{act}", "act", "act.html", _act, query=FormQuery),
    _page("/signin", "sign in", "signin.html", lambda c: {}, public=True),
    Route(
        method="GET",
        path="/static/{file}",
        name="static",
        summary="get a static file of the pages",
        noun="pages",
        kind="static",
        query=StaticQuery,
        public=True,
    ),
)
