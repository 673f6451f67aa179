"""What the routes look at, and the few acts that are more than one verb."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final

import msgspec

from onceward.changes.views import change_diff
from onceward.core.canon import sha256_hex
from onceward.core.version import VERSION
from onceward.core.views import LaneView
from onceward.dispatch.targets import claim_of
from onceward.dispatch.views import lane_list
from onceward.errors import CODES, NotFound
from onceward.gate import reports
from onceward.gate.run import run as run_gate
from onceward.kernel.answers import Pending
from onceward.kernel.logs import tail_of
from onceward.machines import MACHINES
from onceward.maintenance import doctor
from onceward.maintenance.metrics import metrics as numbers
from onceward.processes.spool import Spool
from onceward.registry.jobs import to_apply
from onceward.registry.views import PlanForecast, forecast
from onceward.subjects import explain, subject_named
from onceward.ui.http.access import CODE_SECONDS, ServerBusy
from onceward.ui.http.routes import Call, Query, RequestId, asked

TAIL_BYTES: Final = 64 * 1024


class PageQuery(Query, frozen=True):
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 50


class EventsQuery(Query, frozen=True):
    after: Annotated[int, msgspec.Meta(ge=0, le=10**18)] = 0
    """The id of the last event that is known already; a `Last-Event-ID` header counts more."""


class SpendQuery(Query, frozen=True):
    by: Annotated[str, msgspec.Meta(pattern="^(build|stage|day)$")] = "build"


class ExplainQuery(Query, frozen=True):
    of: Annotated[str, msgspec.Meta(pattern=r"\S", max_length=500)]
    """What to explain: an id, its beginning, or words as `onceward explain` takes them."""


class ChangesQuery(Query, frozen=True):
    status: str = ""
    """Only those in this status."""
    author: str = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 50
    before: str = ""
    """The last entry of the page before."""


class ArtifactsQuery(Query, frozen=True):
    owner: str = ""
    """A child, a session, a build; without one the newest of all."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100


class LogsQuery(Query, frozen=True):
    bytes: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)] = TAIL_BYTES
    """How much of the end of each log."""


class ArtifactQuery(Query, frozen=True):
    as_: Annotated[str, msgspec.Meta(pattern="^(text|)$")] = msgspec.field(default="", name="as")
    """`text` to read it here; otherwise it is something to be saved."""


class BundleQuery(Query, frozen=True):
    digests: bool = False
    """Without the artifacts' bytes."""


class ReplayQuery(Query, frozen=True):
    of: str = ""
    """A build or session; without one everything."""


class ClearLockBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    client_request_id: RequestId
    nonce: str
    """The claim's own, as it was looked at; `unreadable` where it has none."""


class SealBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    client_request_id: RequestId


class RunGateBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    client_request_id: RequestId
    manifest: str
    """A file in the workspace's folder."""
    expect: str = ""


class CheckPlanBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    plan: dict[str, Any]
    grant: str | None = None


class SignInBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    code: str = ""
    """From the link that `onceward open` shows; good once."""
    token: str = ""
    """Or a token of one's own."""


class EnvironmentBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    client_request_id: RequestId
    """Of the request that they are for; that is sent after this."""
    values: Annotated[dict[str, str], msgspec.Meta(max_length=1000)]
    """Variables by name."""


class EmptyBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


def bring_environment(call: Call) -> dict[str, Any]:
    """Values of variables, kept in memory until the request that they are for is taken."""
    call.service.require(call.principal, "operator")
    request_id = call.body["client_request_id"]
    call.service.bring_environment(call.principal, request_id, call.body["values"])
    return {"request_id": request_id, "names": sorted(call.body["values"])}


def health(call: Call) -> dict[str, Any]:
    said = {"status": "ok", "version": VERSION, "state": call.service.state}
    return {**said, **({"failure": call.service.failure} if call.service.failure else {})}


def codes(call: Call) -> list[dict[str, Any]]:
    return [
        {
            "code": code,
            "meaning": facts.meaning,
            "status": facts.http_status,
            "retryable": facts.retryable,
        }
        for code, facts in CODES.items()
    ]


def machines(call: Call) -> list[dict[str, Any]]:
    return [machine.document() for machine in MACHINES]


def metrics(call: Call) -> str:
    serving = {
        "serving_as_kernel": float(call.service.state == "kernel"),
        "browser_sessions": call.doors.sessions,
    }
    return numbers(call.store, serving)


def examined(call: Call) -> dict[str, Any]:
    with _alone(_verifying):
        checks = doctor.examine_machine(VERSION)
        checks += doctor.examine_store(
            call.store,
            call.workspace.settings.sinks(),
            verify=lambda: call.workspace.verify([], None),
            seal_file=call.workspace.seal_file,
        )
    said = [{"name": c.name, "status": c.status, "detail": c.detail, "fix": c.fix} for c in checks]
    return {"ok": not any(check.status == "fail" for check in checks), "checks": said}


def logs(call: Call) -> dict[str, Any]:
    spool = Spool(call.workspace.folder / "running")
    most = call.query.bytes if call.query is not None else TAIL_BYTES
    return tail_of(call.artifacts, spool, call.path["child"], most)


class DiffQuery(Query, frozen=True):
    whole: bool = False
    """Whether files that are large are shown as well."""


def diff(call: Call) -> dict[str, Any]:
    found = change_diff(call.artifacts, call.path["entry"], whole=call.query.whole)
    said: dict[str, Any] = msgspec.to_builtins(found)
    return said


def told(call: Call, of: str) -> dict[str, Any]:
    """What is explained, by its name; or, as on the command line, a build and a step of it."""
    words = of.split()
    try:
        found = explain(call.store, [of.strip()])
    except NotFound:
        if len(words) != 2:
            raise
        found = explain(call.store, words)
    said: dict[str, Any] = msgspec.to_builtins(found)
    return said


def verify(call: Call) -> dict[str, Any]:
    """One at a time; given up when the server is to end."""
    with _alone(_verifying):
        said: dict[str, Any] = call.workspace.verify(
            [], lambda *_: call.service.require_going()
        ).document()
        return said


def replay(call: Call) -> dict[str, Any]:
    with _alone(_verifying):
        (found,) = call.workspace.replay(
            call.query.of or None, 1, lambda _: call.service.require_going()
        )
    said = {"identical": found.difference is None, "sha256": found.sha256, "events": found.events}
    said |= {"children": found.children, "sessions": found.sessions}
    return {
        **said,
        **({"first_difference": msgspec.to_builtins(found.difference)} if found.difference else {}),
    }


def foreseen(call: Call) -> PlanForecast:
    assembly = to_apply(call.body["plan"], call.workspace.settings.grants.environment)
    return forecast(call.store, assembly, call.principal, call.body.get("grant"))


def clear_lock(call: Call) -> dict[str, Any] | Pending:
    """Recorded first; then the claim goes, if it is still the one that was looked at."""
    target, nonce = call.path["target"], call.body["nonce"]
    known = call.service.answered(call.principal, "locks.clear", call.body["client_request_id"])
    entry = known["claim"] if known else claim_of(call.workspace.locks, target, nonce)
    said = asked(
        call, "locks.clear", {"target": target, "claim": entry}, call.body["client_request_id"]
    )
    if isinstance(said, Pending):
        return said
    return {"target": target, "outcome": call.workspace.locks.clear(target, entry.get("nonce"))}


def seal(call: Call) -> dict[str, Any] | Pending:
    """Signed here, by the key that whoever asks has here. Asked again with the same id it is the same seal."""
    request_id = call.body["client_request_id"]
    payload = call.service.answered(call.principal, "seals.add", request_id)
    if payload is None:
        receipt = call.workspace.sealed_by(call.principal)
        payload = {"envelope": receipt.envelope.document()}
    return asked(call, "seals.add", payload, request_id)


def gate_reports(call: Call) -> list[dict[str, Any]]:
    return reports.kept(call.workspace.folder)


def gate_run(call: Call) -> dict[str, Any]:
    """Plays nothing of this workspace, and changes nothing in it: what comes of it is kept under the request's id."""
    call.service.require(call.principal, "operator")
    name = sha256_hex(f"{call.principal}|{call.body['client_request_id']}".encode())[:24]
    with _alone(_gating):
        for known in reports.kept(call.workspace.folder):
            if known["report"] == name:
                return known
        manifest = call.workspace.inside(call.body["manifest"])
        if not manifest.is_file():
            raise NotFound(
                f"there is no file {call.body['manifest'][:100]!a} in the workspace's folder"
            )
        found = run_gate(manifest, call.body.get("expect", "").strip().lower(), "sqlite")
        return reports.keep(
            call.workspace.folder, name, call.body["manifest"], call.store.sources.now(), found
        )


def code(call: Call) -> dict[str, Any]:
    assert call.caller is not None
    made = call.doors.code_for(call.principal, call.caller.token)
    return {"code": made, "seconds": CODE_SECONDS, "url": f"{call.service.url}/signin#code={made}"}


def session_budget(call: Call) -> list[LaneView]:
    return lane_list(call.store, subject_named(call.store, call.path["session"]))


@contextmanager
def _alone(lock: threading.Lock) -> Iterator[None]:
    """What takes long is done for one at a time: whoever comes meanwhile is told so, and keeps nobody waiting."""
    if not lock.acquire(blocking=False):
        raise ServerBusy("another request for this is running; try again when it is done")
    try:
        yield
    finally:
        lock.release()


_verifying, _gating = threading.Lock(), threading.Lock()
