"""Work that a server does, as whoever asked for it sees it: from the record."""

from __future__ import annotations

from typing import Any

from onceward.dispatch.machine import Ended
from onceward.store.store import Store
from onceward.store.tables.children import Tokens, last_detail_of
from onceward.store.tables.events import events_of, head_of


class Ending:
    """Waits for the end of work that was taken, by what the workspace's stream says from now on."""

    def __init__(self, store: Store, verb: str, request_id: str) -> None:
        self._asked = (verb, request_id)
        with store.read() as rows:
            self._after = head_of(rows, "workspace")[0]

    def look(self, store: Store) -> dict[str, Any] | None:
        """How it ended; None while it goes on."""
        with store.read() as rows:
            for event in events_of(rows, "workspace", self._after):
                self._after = event.seq
                said = event.facts()
                detail = said["detail"]
                if (
                    said["event"] == "WORK_ENDED"
                    and (detail["verb"], detail["request_id"]) == self._asked
                ):
                    return dict(detail)
        return None


def ended_of(store: Store, child_id: str) -> Ended:
    """How a child ended."""
    with store.read() as rows:
        token = Tokens(rows).get(child_id)
        return Ended(token.reason or "lease_orphaned", last_detail_of(rows, child_id))
