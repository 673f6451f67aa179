"""Views of grants: list, status, explanation."""

from __future__ import annotations

from typing import Any

import msgspec

from onceward.core.grants import Grant
from onceward.core.sources import Micros, iso
from onceward.core.views import Explanation, View
from onceward.grants.lifecycle import about
from onceward.people.principals import who_may
from onceward.store.port import Reads
from onceward.store.store import Store
from onceward.store.subject import Kind, story
from onceward.store.tables.grants import Grants


class ScopeView(View, frozen=True):
    """What a grant allows, all of which must be the same."""

    plan_id: str
    revision: int
    manifest_digest: str
    schema_digest: str
    environment: str
    executor: str
    actions: list[str]


class GrantView(View, frozen=True):
    """A grant, and whether it can still be used."""

    grant_id: str
    status: str
    scope: ScopeView
    scope_digest: str
    expires_at: str | None = None
    granter: str | None = None
    consumed_by_root: str | None = None
    finalized_at: str | None = None
    about: Any = None
    """What it is for, as people read it."""


def grant_list(store: Store, limit: int = 100) -> list[GrantView]:
    with store.read() as rows:
        return [_view(grant, store.sources.now()) for grant in Grants(rows).all(limit)]


def grant_view(store: Store, name: str) -> GrantView:
    """A grant, by its id or the beginning of it."""
    with store.read() as rows:
        found = Grants(rows).named(name)
        return _view(found, store.sources.now(), about(rows, found.grant_id))


def _view(grant: Grant, now: Micros, about_it: Any = None) -> GrantView:
    late = grant.status == "active" and grant.expires_at <= now
    return GrantView(
        grant_id=grant.grant_id,
        status="expired" if late else grant.status,
        scope=msgspec.convert(msgspec.to_builtins(grant.scope), ScopeView),
        scope_digest=grant.scope.digest(),
        expires_at=iso(grant.expires_at) if grant.expires_at else None,
        granter=grant.granter,
        consumed_by_root=grant.consumed_by_root,
        finalized_at=iso(grant.finalized_at) if grant.finalized_at else None,
        about=about_it,
    )


# Explained in words.


def _find(rows: Reads, name: str) -> str | None:
    return Grants(rows).named(name).grant_id if name.startswith("grt_") else None


def _explain(store: Store, grant_id: str) -> Explanation:
    view = grant_view(store, grant_id)
    scope = view.scope
    with store.read() as rows:
        moves = story(rows, f"entry:{grant_id}", "grant")
        who = who_may(rows, "granter") if view.status in ("draft", "active") else []
    plan = f"{scope.plan_id}@{scope.revision}"
    return Explanation(
        id=grant_id,
        kind="grant",
        what=[
            f"an authority for {scope.executor} to carry out {plan}, once",
            f"in {scope.environment}: {', '.join(scope.actions)}",
        ],
        state=view.status,
        why=[_why(view)],
        story=moves,
        waits_for=["somebody with the role granter"] if view.status == "draft" else [],
        who=who,
        made=[f"manifest {scope.manifest_digest}", f"schema {scope.schema_digest}"],
        next=_commands(view),
    )


def _why(view: GrantView) -> str:
    return {
        "draft": "nobody has issued it, so it allows nothing",
        "active": f"{view.granter} issued it, until {(view.expires_at or '')[:19]} UTC",
        "consumed": f"the run {view.consumed_by_root} used it; nothing else ever can",
        "expired": "its time has passed",
        "revoked": "it was taken back before it was used",
    }[view.status]


def _commands(view: GrantView) -> list[str]:
    revoke = f"onceward grant revoke {view.grant_id}"
    following = {
        "draft": [f"onceward grant issue {view.grant_id}", revoke],
        "active": [f"onceward registry apply PLAN --grant {view.grant_id}", revoke],
        "consumed": [f"onceward explain {view.consumed_by_root}"],
    }
    return [*following.get(view.status, []), f"onceward grant show {view.grant_id}"]


KINDS = (Kind("grant", _find, _explain),)
