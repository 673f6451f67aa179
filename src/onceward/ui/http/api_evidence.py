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
        "listLocks",
        "list target locks and their holders",
        list[shapes.Lock],
        lambda c: lock_list(c.workspace.locks),
    ),
    look(
        "locks",
        "/locks/{target}",
        "showLock",
        "get the claim on a target",
        shapes.Lock,
        lambda c: lock_named(c.workspace.locks, c.path["target"]),
    ),
    act(
        "locks",
        "/locks/{target}/clear",
        "clearLock",
        "remove a claim that nothing works under",
        takes=reads.ClearLock,
        act=reads.clear_lock,
        answer=shapes.Cleared,
    ),
    look(
        "events",
        "/streams",
        "listStreams",
        "list all streams and their numbers of events",
        list[reading.StreamView],
        lambda c: reading.stream_list(c.store),
    ),
    look(
        "events",
        "/streams/{stream}/events",
        "followStream",
        "follow the events of a stream",
        str,
        None,
        query=reads.After,
        kind="stream",
    ),
    look(
        "events",
        "/events",
        "followAll",
        "follow all events",
        str,
        None,
        query=reads.After,
        kind="stream",
    ),
    look(
        "evidence",
        "/explain",
        "explain",
        "describe anything by its id, with the next command",
        shapes.Explanation,
        lambda c: reads.told(c, c.query.of),
        query=reads.About,
    ),
    look(
        "evidence",
        "/verify",
        "verify",
        "check all records",
        shapes.Findings,
        reads.verify,
    ),
    look(
        "evidence",
        "/replay",
        "replay",
        "recompute states from the records and compare",
        shapes.Replayed,
        reads.replay,
        query=reads.Subject,
    ),
    look(
        "evidence",
        "/bundles/{subject}",
        "exportBundle",
        "export the evidence of a build, saga, change or session as one file",
        bytes,
        None,
        query=reads.Whole,
        kind="bundle",
    ),
    act(
        "evidence",
        "/seals",
        "seal",
        "sign the current end of every stream",
        takes=reads.Seal,
        act=reads.seal,
    ),
    look(
        "gate",
        "/gate",
        "listGateReports",
        "list stored gate reports",
        list[shapes.Report],
        reads.gate_reports,
    ),
    act(
        "gate",
        "/gate",
        "runGate",
        "run the gate: replay a manifest of locked fixtures",
        takes=reads.RunGate,
        act=reads.gate_run,
        answer=shapes.Report,
    ),
    look(
        "principals",
        "/principals",
        "listPrincipals",
        "list principals and their roles",
        list[PrincipalView],
        lambda c: principal_list(c.store),
    ),
    look(
        "keys",
        "/keys",
        "listKeys",
        "list keys",
        list[KeyView],
        lambda c: key_list(c.store, c.workspace.keyring),
    ),
    look(
        "tokens",
        "/tokens",
        "listTokens",
        "list access tokens and their states",
        list[shapes.Token],
        lambda c: token_list(c.store),
    ),
    look(
        "outbox",
        "/outbox",
        "showOutbox",
        "list sinks and the events that wait for them",
        list[reading.SinkView],
        lambda c: reading.outbox_status(c.store, c.workspace.settings.sinks()),
    ),
)
