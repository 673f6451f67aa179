"""Where each lifecycle's state lives: its table, key and state column, and the stream of its events."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """The place of one lifecycle's subjects. Every such table also has version, position, created_at, updated_at."""

    table: str
    key: str
    state: str
    stream_kind: str
    silent: tuple[str, ...] = ()
    """States that are entered without an event."""

    promises: bool = False
    """Whether its rows may refer to what comes later in the same commit."""

    def stream(self, subject: str) -> str:
        return f"{self.stream_kind}:{subject}"


def context_of(session: str) -> dict[str, str]:
    """How an event names its session; every build has one, with the build's id."""
    return {"session_id": session, **({"build_id": session} if session.startswith("bld_") else {})}


SUBJECTS = {
    "build": Subject("builds", "build_id", "state", "session"),
    "change": Subject("decision_backlog_entry", "entry_id", "status", "entry"),
    "change_set": Subject("cut_change_set", "change_set_id", "status", "entry"),
    "collection": Subject("registry_collections", "collection_id", "status", "entry"),
    "grant": Subject("grants", "grant_id", "status", "entry"),
    "saga": Subject("saga_runs", "saga_id", "state", "saga"),
    "value": Subject("registry_values", "vocab_id", "status", "entry", promises=True),
    "child": Subject(
        "urm_dispatch_token", "child_id", "phase", "child", silent=("queued", "leased")
    ),
}
