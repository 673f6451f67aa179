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
        "who holds which target",
        list[shapes.Lock],
        lambda c: lock_list(c.workspace.locks),
    ),
    look(
        "locks",
        "/locks/{target}",
        "showLock",
        "all that is known of a target's claim",
        shapes.Lock,
        lambda c: lock_named(c.workspace.locks, c.path["target"]),
    ),
    act(
        "locks",
        "/locks/{target}/clear",
        "clearLock",
        "remove a claim on your word that nobody works under it",
        takes=reads.ClearLock,
        act=reads.clear_lock,
        answer=shapes.Cleared,
    ),
    look(
        "events",
        "/streams",
        "listStreams",
        "every stream and how many events it has",
        list[reading.StreamView],
        lambda c: reading.stream_list(c.store),
    ),
    look(
        "events",
        "/streams/{stream}/events",
        "followStream",
        "a stream's events as they come",
        str,
        None,
        query=reads.After,
        kind="stream",
    ),
    look(
        "events",
        "/events",
        "followAll",
        "every event as it comes",
        str,
        None,
        query=reads.After,
        kind="stream",
    ),
    look(
        "evidence",
        "/explain",
        "explain",
        "anything here in plain words, with the next command",
        shapes.Explanation,
        lambda c: reads.told(c, c.query.of),
        query=reads.About,
    ),
    look(
        "evidence",
        "/verify",
        "verify",
        "everything recorded held against everything else",
        shapes.Findings,
        reads.verify,
    ),
    look(
        "evidence",
        "/replay",
        "replay",
        "everything made again from the records, and compared",
        shapes.Replayed,
        reads.replay,
        query=reads.Subject,
    ),
    look(
        "evidence",
        "/bundles/{subject}",
        "exportBundle",
        "everything that proves a build, saga, change or session, as one file",
        bytes,
        None,
        query=reads.Whole,
        kind="bundle",
    ),
    act(
        "evidence",
        "/seals",
        "seal",
        "sign the heads of all streams",
        takes=reads.Seal,
        act=reads.seal,
    ),
    look(
        "gate",
        "/gate",
        "listGateReports",
        "the reports of the gate that are kept here",
        list[shapes.Report],
        reads.gate_reports,
    ),
    act(
        "gate",
        "/gate",
        "runGate",
        "play a manifest of locked scripts through the engine",
        takes=reads.RunGate,
        act=reads.gate_run,
        answer=shapes.Report,
    ),
    look(
        "principals",
        "/principals",
        "listPrincipals",
        "who may act here, and as what",
        list[PrincipalView],
        lambda c: principal_list(c.store),
    ),
    look(
        "keys",
        "/keys",
        "listKeys",
        "the keys people act with",
        list[KeyView],
        lambda c: key_list(c.store, c.workspace.keyring),
    ),
    look(
        "tokens",
        "/tokens",
        "listTokens",
        "every token and how it stands",
        list[shapes.Token],
        lambda c: token_list(c.store),
    ),
    look(
        "outbox",
        "/outbox",
        "showOutbox",
        "what waits for delivery",
        list[reading.SinkView],
        lambda c: reading.outbox_status(c.store, c.workspace.settings.sinks()),
    ),
)
