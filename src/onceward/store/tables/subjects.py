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
    named_in_context: tuple[str, ...]

    def stream(self, subject: str) -> str:
        return f"{self.stream_kind}:{subject}"

    def context(self, subject: str) -> dict[str, str]:
        return dict.fromkeys(self.named_in_context, subject)


SUBJECTS = {
    "build": Subject("builds", "build_id", "state", "session", ("build_id", "session_id")),
}
