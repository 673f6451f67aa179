"""The part of the table that proves things, and says who may do them: locks, events, evidence, people."""

from __future__ import annotations

from typing import Final

import msgspec

from onceward.edges.http import reads, shapes
from onceward.edges.http.routes import act, look
from onceward.engine import reading
from onceward.engine.explain import explain
from onceward.engine.targets import lock_list, lock_named
from onceward.engine.tokens import token_list

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
        list[shapes.Stream],
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
    look("events", "/events", "followAll", "every event as it comes", str, None, query=reads.After, kind="stream"),
    look(
        "evidence",
        "/explain",
        "explain",
        "anything here in plain words, with the next command",
        shapes.Explanation,
        lambda c: msgspec.to_builtins(explain(c.store, c.query.of.split())),
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
    act("evidence", "/seals", "seal", "sign the heads of all streams", takes=reads.Seal, act=reads.seal),
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
        list[shapes.Principal],
        lambda c: reading.principal_list(c.store),
    ),
    act("principals", "/principals", "addPrincipal", "add somebody, or give them roles", "principals.add"),
    act("principals", "/principals/{name}/take", "takeRoles", "take roles away", "principals.take"),
    look(
        "keys",
        "/keys",
        "listKeys",
        "the keys people act with",
        list[shapes.Key],
        lambda c: reading.key_list(c.store, c.workspace.keyring),
    ),
    act("keys", "/keys", "addKey", "make a key of your own known", "keys.add"),
    act("keys", "/keys/{key}/revoke", "revokeKey", "let a key be good for nothing from now on", "keys.revoke"),
    look(
        "tokens",
        "/tokens",
        "listTokens",
        "every token and how it stands",
        list[shapes.Token],
        lambda c: token_list(c.store),
    ),
    act("tokens", "/tokens", "newToken", "make a token of your own known by its hash", "tokens.new"),
    act("tokens", "/tokens/{token}/revoke", "revokeToken", "let a token be good for nothing", "tokens.revoke"),
    look(
        "outbox",
        "/outbox",
        "showOutbox",
        "what waits for delivery",
        list[shapes.Sink],
        lambda c: reading.outbox_status(c.store, c.workspace.settings.sinks()),
    ),
    act("outbox", "/outbox/flush", "flushOutbox", "deliver what waits, now", "outbox.flush"),
)
