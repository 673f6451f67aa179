"""Whether a grant is what its granter signed, and is unused (S-3)."""

from __future__ import annotations

from typing import Any

from onceward.core.chain import Event
from onceward.core.grants import Grant
from onceward.grants.machine import GRANT
from onceward.people.authority import UNREADABLE, Authority, Doubt
from onceward.store.port import Reads


def objection_to_grant(authority: Authority, rows: Reads, grant: Grant, root: str = "") -> str:
    """Why a grant is not to be believed; empty where its granter signed exactly that with the role it needs, and
    nobody has used it. With `root`: where exactly that run used it."""
    try:
        issued: Event | None = None
        since: list[dict[str, Any]] = []
        events = authority.history(rows, f"entry:{grant.grant_id}", GRANT)
        for event in events:
            if event.facts()["event"] == "GRANT_ISSUED":
                issued, since = event, []
            elif issued is not None:
                since.append(event.facts())
        if issued is None:
            return "nobody signed it"
        used = [line["detail"].get("root") for line in since if line["event"] == "GRANT_CONSUMED"]
        if used != ([root] if root else []) or (since and not root):
            return "its history says that it is used up or gone"
        line = issued.facts()
        recorded = (
            line["detail"].get("scope"),
            line["detail"].get("expires_at"),
            line["context"].get("actor"),
            line["context"].get("signed"),
        )
        stored = (grant.scope.digest(), grant.expires_at, grant.granter, grant.statement_hash)
        if recorded != stored:
            return "it is not what its event says"
        asked = authority.believe(rows, issued, now=not root)
        authority.require_kept(rows, asked, grant.grant_id, events)
        return ""
    except Doubt as doubt:
        return str(doubt)
    except UNREADABLE:
        return "its statement lacks something"
