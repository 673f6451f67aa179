"""The part of the table that proves things, and says who may do them: locks, events, evidence, people."""

from __future__ import annotations

from typing import Final

from onceward.dispatch.targets import lock_list, lock_named
from onceward.kernel import views as reading
from onceward.people.tokens import token_list
from onceward.people.views import KeyView, PrincipalView, key_list, principal_list
from onceward.ui.http import reads, shapes
from onceward.ui.http.routes import act, look

EVIDENCE: Final = (
    look(
        "locks",
        "/locks",
        name="listLocks",
        summary="list target locks and their holders",
        answer=list[shapes.Lock],
        read=lambda c: lock_list(c.workspace.locks),
    ),
    look(
        "locks",
        "/locks/{target}",
        name="showLock",
        summary="get the claim on a target",
        answer=shapes.Lock,
        read=lambda c: lock_named(c.workspace.locks, c.path["target"]),
    ),
    act(
        "locks",
        "/locks/{target}/clear",
        name="clearLock",
        summary="remove a claim that nothing works under",
        takes=reads.ClearLockBody,
        act=reads.clear_lock,
        answer=shapes.Cleared,
    ),
    look(
        "events",
        "/streams",
        name="listStreams",
        summary="list all streams and their numbers of events",
        answer=list[reading.StreamView],
        read=lambda c: reading.stream_list(c.store),
    ),
    look(
        "events",
        "/streams/{stream}/events",
        name="followStream",
        summary="follow the events of a stream",
        answer=str,
        read=None,
        query=reads.EventsQuery,
        kind="stream",
    ),
    look(
        "events",
        "/events",
        name="followAll",
        summary="follow all events",
        answer=str,
        read=None,
        query=reads.EventsQuery,
        kind="stream",
    ),
    look(
        "evidence",
        "/explain",
        name="explain",
        summary="describe anything by its id, with the next command",
        answer=shapes.SubjectExplanation,
        read=lambda c: reads.told(c, c.query.of),
        query=reads.ExplainQuery,
    ),
    look(
        "evidence",
        "/verify",
        name="verify",
        summary="check all records",
        answer=shapes.VerifyReport,
        read=reads.verify,
    ),
    look(
        "evidence",
        "/replay",
        name="replay",
        summary="recompute states from the records and compare",
        answer=shapes.ReplayReport,
        read=reads.replay,
        query=reads.ReplayQuery,
    ),
    look(
        "evidence",
        "/bundles/{subject}",
        name="exportBundle",
        summary="export the evidence of a build, saga, change or session as one file",
        answer=bytes,
        read=None,
        query=reads.BundleQuery,
        kind="bundle",
    ),
    act(
        "evidence",
        "/seals",
        name="seal",
        summary="sign the current end of every stream",
        takes=reads.SealBody,
        act=reads.seal,
    ),
    look(
        "gate",
        "/gate",
        name="listGateReports",
        summary="list stored gate reports",
        answer=list[shapes.GateReport],
        read=reads.gate_reports,
    ),
    act(
        "gate",
        "/gate",
        name="runGate",
        summary="run the gate: replay a manifest of locked fixtures",
        takes=reads.RunGateBody,
        act=reads.gate_run,
        answer=shapes.GateReport,
    ),
    look(
        "principals",
        "/principals",
        name="listPrincipals",
        summary="list principals and their roles",
        answer=list[PrincipalView],
        read=lambda c: principal_list(c.store),
    ),
    look(
        "keys",
        "/keys",
        name="listKeys",
        summary="list keys",
        answer=list[KeyView],
        read=lambda c: key_list(c.store, c.workspace.keyring),
    ),
    look(
        "tokens",
        "/tokens",
        name="listTokens",
        summary="list access tokens and their states",
        answer=list[shapes.AccessToken],
        read=lambda c: token_list(c.store),
    ),
    look(
        "outbox",
        "/outbox",
        name="showOutbox",
        summary="list sinks and the events that wait for them",
        answer=list[reading.SinkView],
        read=lambda c: reading.outbox_status(c.store, c.workspace.settings.sinks()),
    ),
)
